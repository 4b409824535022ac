"""The head of a tied model in dialects that want it stored: added, recorded, and one tensor again on the way back."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool import dialects
from paramtool.errors import LayoutError
from paramtool.parts.config_facts import KnownModel
from paramtool.parts.pieces import whole
from paramtool.passes.parts import dialect_change
from tests.attention import HEAD_DIM, HEADS, LLAMA

CONFIG: dict[str, Any] = {**LLAMA, "hidden_size": HEADS * HEAD_DIM, "tie_word_embeddings": True}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
SHAPE = (7, HEADS * HEAD_DIM)


def vllm(config: dict[str, Any] = CONFIG) -> dialects.OpenedDialect:
    """vLLM for a Llama."""
    return dialects.opened("vllm", config, KnownModel(config).facts)


def test_a_head_is_added_and_taken_back() -> None:
    made = dialect_change.with_head(vllm(), [whole(EMBEDDING, SHAPE)], CONFIG)
    assert [(one.name, one.pieces[0].part) for one in made] == [(EMBEDDING, EMBEDDING), (HEAD, EMBEDDING)]
    added = dialect_change.added_heads(vllm(), made)
    assert added == {HEAD: EMBEDDING}
    both = [whole(EMBEDDING, SHAPE), whole(HEAD, SHAPE)]
    assert {one.pieces[0].part for one in dialect_change.as_one(vllm(), both, CONFIG, added)} == {EMBEDDING}
    assert dialect_change.as_one(vllm(), both, CONFIG) == both


def test_a_head_that_is_there_stays() -> None:
    both = [whole(EMBEDDING, SHAPE), whole(HEAD, SHAPE)]
    assert dialect_change.with_head(vllm(), both, CONFIG) == both
    assert dialect_change.added_heads(vllm(), both) == {}


def test_a_head_alone_is_the_embedding() -> None:
    (one,) = dialect_change.as_one(vllm(), [whole(HEAD, SHAPE)], CONFIG)
    assert (one.name, one.pieces[0].part) == (HEAD, EMBEDDING)


def test_an_embedding_is_added_and_taken_back() -> None:
    """A file that stores the head alone: the program reads the embedding, too."""
    made = dialect_change.with_head(vllm(), [whole(HEAD, SHAPE)], CONFIG)
    assert [(one.name, one.pieces[0].part) for one in made] == [(HEAD, HEAD), (EMBEDDING, HEAD)]
    added = dialect_change.added_heads(vllm(), made)
    assert added == {EMBEDDING: HEAD}
    both = [whole(EMBEDDING, SHAPE), whole(HEAD, SHAPE)]
    assert {one.pieces[0].part for one in dialect_change.as_one(vllm(), both, CONFIG, added)} == {HEAD}


def test_a_model_that_is_not_tied() -> None:
    untied = {**CONFIG, "tie_word_embeddings": False}
    head = [whole(HEAD, SHAPE)]
    assert dialect_change.as_one(vllm(untied), head, untied) == head
    with pytest.raises(LayoutError, match="tie_word_embeddings=false"):
        dialect_change.with_head(vllm(untied), [whole(EMBEDDING, SHAPE)], untied)


@pytest.mark.parametrize("architecture", ["LlamaModel", "Gemma2ForCausalLM"])
def test_models_whose_head_vllm_does_not_store(architecture: str) -> None:
    config = {**CONFIG, "architectures": [architecture]}
    alone = [whole(EMBEDDING, SHAPE)]
    assert vllm(config).tied is None
    assert dialect_change.with_head(vllm(config), alone, config) == alone
