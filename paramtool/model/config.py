"""What a model's config.json says about ties."""

from __future__ import annotations

from collections.abc import Mapping

from paramtool.lazy_dataclass import dataclass

WORDS = "tie_word_embeddings"
"""The setting that ties the output head to the input embeddings."""
SIDES = "tie_encoder_decoder"
"""The setting that ties a decoder to its encoder; only transformers 4 reads it."""
SHARE = "share_encoder_decoder_embeddings"
"""Marian's setting that ties the embeddings of encoder and decoder."""
TEXT = ("text_config", "language_config", "llm_config")
"""Nested configs of the text model that the outer setting is about; theirs counts where the outer one is absent."""


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a config that say which names share memory, and the model types that they are for."""

    path: str
    said: Mapping[str, bool]
    """The settings by their paths: {`tie_word_embeddings`: True, `text_config.tie_word_embeddings`: True}."""
    model_types: Mapping[str, str]
    """{path of a nested config, empty for the outermost config: its `model_type`}."""

    def prefixes(self) -> list[str]:
        """The paths of the configs that have any of the settings, the outermost first: ``, `text_config`."""
        keys = [*self.model_types, *(key.rpartition(".")[0] for key in self.said)]
        return sorted(dict.fromkeys(keys), key=lambda key: (key.count(".") + bool(key), key))
