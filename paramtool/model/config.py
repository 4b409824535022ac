"""What a model's config.json says of ties."""

from __future__ import annotations

from collections.abc import Mapping

from paramtool.lazy_dataclass import dataclass

WORDS = "tie_word_embeddings"
"""The setting whether the output head is the input embeddings."""
SIDES = "tie_encoder_decoder"
"""Whether a decoder is its encoder; transformers 4 alone reads it."""
SHARE = "share_encoder_decoder_embeddings"
"""Marian's: whether encoder and decoder look at the same embeddings."""
TEXT = ("text_config", "language_config", "llm_config")
"""Nested configs of the same text model that the outer setting is about; theirs counts where the outer says nothing."""


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of a config that say which names share memory, and of what they are settings."""

    path: str
    said: Mapping[str, bool]
    """What is written, by its path: {`tie_word_embeddings`: True, `text_config.tie_word_embeddings`: True}."""
    model_types: Mapping[str, str]
    """{path of a nested config, empty for the outermost: its `model_type`}."""

    def prefixes(self) -> list[str]:
        """The nested configs that say anything, the outermost first: ``, `text_config`."""
        keys = [*self.model_types, *(key.rpartition(".")[0] for key in self.said)]
        return sorted(dict.fromkeys(keys), key=lambda key: (key.count(".") + bool(key), key))
