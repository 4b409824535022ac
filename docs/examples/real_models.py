"""Real models from small configs: built by transformers or plain torch, seeded, and nothing is downloaded.

    MODELS["gpt2 tied"].build()       a model with values of its own
    outputs(model)                    what it makes of a few tokens

Each model holds what real checkpoints hold and what goes wrong with them: the ties of its class and its config, a pair
of matrices and all its norms equal by chance and not tied, and weights that are views of one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.bart.modeling_bart import BartEncoder

VOCABULARY, WIDTH, LENGTH = 200, 32, 12
SPECIAL: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT2: dict[str, Any] = SPECIAL | {
    "vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 24,
}  # fmt: skip
BERT: dict[str, Any] = SPECIAL | {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 24,
}  # fmt: skip
LLAMA: dict[str, Any] = BERT | {"num_key_value_heads": 2}
T5: dict[str, Any] = SPECIAL | {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
BART: dict[str, Any] = SPECIAL | {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 24,
}  # fmt: skip


class Recurrent(nn.Module):
    """A language model as a training program on a GPU leaves it: a tied decoder, and weights on one buffer."""

    def __init__(self, kind: type[nn.RNNBase], tied: bool, flat: bool) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.rnn = kind(WIDTH, WIDTH, 2, batch_first=True)
        self.decoder = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.decoder.weight = self.emb.weight
        if flat:
            flatten(self.rnn)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, [batch, length, vocabulary]."""
        scores: torch.Tensor = self.decoder(self.rnn(self.emb(tokens))[0])
        return scores


def flatten(rnn: nn.RNNBase) -> None:
    """Put the weights into one buffer in the order that flatten_parameters() gives them on a GPU.

    cuDNN wants all matrices first (per layer W_ih, W_hh), then all biases (per layer b_ih, b_hh), without a gap.
    """
    order = [f"{kind}_l{layer}" for kinds in (("weight_ih", "weight_hh"), ("bias_ih", "bias_hh"))
             for layer in range(rnn.num_layers) for kind in kinds]  # fmt: skip
    parameters = [getattr(rnn, name) for name in order]
    buffer = torch.cat([parameter.detach().flatten() for parameter in parameters])
    views = buffer.split([parameter.numel() for parameter in parameters])
    for parameter, view in zip(parameters, views, strict=True):
        parameter.data = view.view(parameter.shape)


@dataclass(frozen=True)
class Model:
    """How one of them is made."""

    make: Callable[..., nn.Module]
    """The class; of transformers, it takes a config."""
    config: type[transformers.PreTrainedConfig] | None = None
    sizes: dict[str, Any] = field(default_factory=dict)
    """What the config is made with; without a config, what the class is."""
    more: dict[str, Any] = field(default_factory=dict)
    """What the class takes beside the config."""

    def build(self, seed: int = 0) -> nn.Module:
        """The model with random values, also where transformers puts zeros and ones, and with equal pairs planted."""
        model = self.blank()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.2, generator=generator)
            for first, second in equal_by_chance(model):
                model.get_parameter(second).copy_(model.get_parameter(first))
        return model

    def blank(self) -> nn.Module:
        """The model as its class makes it, in evaluation mode, wherever torch is told to make tensors."""
        if self.config is None:
            return self.make(**self.sizes).eval()
        config = self.config(**self.sizes)
        config.architectures = [getattr(self.make, "__name__", "")]
        model = self.make(config, **self.more).eval()
        model.tie_weights()  # type: ignore[operator]
        return model


def equal_by_chance(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Pairs of parameters that get equal values and are not tied: two matrices of one shape, and all norms of a width.

    Fresh models have such pairs: norms are ones, biases zeros, and layers are copies of each other.
    """
    named = dict(model.named_parameters())
    norms: dict[torch.Size, str] = {}
    matrices: dict[torch.Size, str] = {}
    for name, parameter in named.items():
        is_norm = parameter.ndim == 1 and name.endswith("weight")
        if is_norm and (first := norms.setdefault(parameter.shape, name)) != name:
            yield first, name
    for name, parameter in named.items():
        if parameter.ndim == 2 and (first := matrices.setdefault(parameter.shape, name)) != name:
            yield first, name
            return


def outputs(model: nn.Module) -> torch.Tensor:
    """What a model makes of two sentences: its logits, or its last hidden states where it has no head."""
    tokens = torch.arange(2 * LENGTH).view(2, LENGTH) % (VOCABULARY - 5) + 3
    if isinstance(model, Recurrent):
        scores: torch.Tensor = model(tokens)
        return scores
    decodes = hasattr(model, "get_decoder") and model.config.is_encoder_decoder  # type: ignore[union-attr]
    more = {"decoder_input_ids": tokens.flip(1)} if decodes and not _is_encoder(model) else {}
    found = model(input_ids=tokens, **more)
    values: torch.Tensor = found.logits if "logits" in found else found.last_hidden_state
    return values


def _is_encoder(model: nn.Module) -> bool:
    return isinstance(model, transformers.T5EncoderModel | BartEncoder)


TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
HEADLESS = {"add_pooling_layer": False}
MODELS = {
    "GPT-2 tied": Model(transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT2 | TIED),
    "GPT-2 untied": Model(transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT2 | UNTIED),
    "BERT with its MLM head": Model(transformers.BertForMaskedLM, transformers.BertConfig, BERT),
    "BERT without a head": Model(transformers.BertModel, transformers.BertConfig, BERT, HEADLESS),
    "T5": Model(transformers.T5ForConditionalGeneration, transformers.T5Config, T5),
    "T5 encoder": Model(transformers.T5EncoderModel, transformers.T5Config, T5),
    "BART": Model(transformers.BartForConditionalGeneration, transformers.BartConfig, BART),
    "BART encoder": Model(BartEncoder, transformers.BartConfig, BART),
    "ALBERT": Model(transformers.AlbertForMaskedLM, transformers.AlbertConfig, BERT | {"embedding_size": 24}),
    "Llama tied": Model(transformers.LlamaForCausalLM, transformers.LlamaConfig, LLAMA | TIED),
    "Llama untied": Model(transformers.LlamaForCausalLM, transformers.LlamaConfig, LLAMA | UNTIED),
    "Mixtral": Model(transformers.MixtralForCausalLM, transformers.MixtralConfig, LLAMA | {"num_local_experts": 4}),
    "LSTM": Model(Recurrent, sizes={"kind": nn.LSTM, "tied": True, "flat": True}),
    "GRU": Model(Recurrent, sizes={"kind": nn.GRU, "tied": True, "flat": True}),
}


if __name__ == "__main__":
    for name, made in MODELS.items():
        print(name, len(made.build().state_dict()), "tensors")
