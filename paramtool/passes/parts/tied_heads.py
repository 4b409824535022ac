"""The head of a tied model in dialects whose programs want it beside the embedding: vLLM's sharded state, Meta's files.

    transformers    model.embed_tokens.weight                    and the config says tie_word_embeddings
    vllm            model.embed_tokens.weight, lm_head.weight    twice the same bytes
    meta            tok_embeddings.weight, output.weight

Going back, both are one tensor again if the record says that one was added: their bytes have to be equal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paramtool.dialects import OpenedDialect
from paramtool.errors import LayoutError
from paramtool.model.config import WORDS
from paramtool.parts.pieces import Stored, whole


def as_one(
    dialect: OpenedDialect, held: Sequence[Stored], config: Mapping[str, Any], added: Collection[str] = ()
) -> list[Stored]:
    """What tensors of a dialect hold, with the head of a tied model as a copy of its embedding.

    So is a head that `added` names, and one without an embedding beside it, as vLLM saves it.
    """
    found = list(held)
    if dialect.tied is None or config.get(WORDS) is False:
        return found
    head, embedding = dialect.tied
    at = {one.name: k for k, one in enumerate(found)}
    if head not in at or (embedding in at and head not in added):
        return found
    one = found[at[head]]
    (other,) = [found[at[embedding]]] if embedding in at else dialect.read({embedding: one.shape})
    if other.shape == one.shape:
        found[at[head]] = whole(head, one.shape, other.pieces[0].part)
    return found


def with_head(dialect: OpenedDialect, made: Sequence[Stored], config: Mapping[str, Any]) -> list[Stored]:
    """The tensors that a dialect stores, with the head of a tied model.

    LayoutError if a model that is not tied lacks its head.
    """
    found = list(made)
    if dialect.tied is None:
        return found
    head, embedding = dialect.tied
    at = {one.name: k for k, one in enumerate(found)}
    if head in at or embedding not in at:
        return found
    if config.get(WORDS) is False:
        raise LayoutError(
            f"{head!r} cannot be made: the file lacks it, and the config says {WORDS}=false",
            hint=f"if the head is the embedding, set {WORDS} to true in config.json",
        )
    one = found[at[embedding]]  # the only tensor of its part
    return [*found, whole(head, one.shape, one.pieces[0].part)]


def added(dialect: OpenedDialect, made: Sequence[Stored]) -> dict[str, str]:
    """{a head that `with_head` added: the embedding that it repeats}"""
    if dialect.tied is None:
        return {}
    parts = {one.name: one.pieces[0].part for one in made if one.name in dialect.tied}
    return dict([dialect.tied]) if len(parts) == 2 and len(set(parts.values())) == 1 else {}
