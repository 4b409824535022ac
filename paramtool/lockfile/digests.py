"""The digests of a whole model: the same for every container, sharding and deduplication of one set of tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from paramtool.lockfile.lock import FULL, HEADERS, UNREAD, LockedTensor
from paramtool.lockfile.words import quoted, shape_text


def content(tensors: Collection[LockedTensor]) -> str:
    """blake3 of the lines `name dtype shape digest`, sorted; it does not depend on the order of the tensors."""
    return _digest(tensors, (f"{quoted(one.name)} {_rest(one)}" for one in tensors))


def unnamed(tensors: Collection[LockedTensor]) -> str:
    """The same without the names: a renamed model keeps it."""
    return _digest(tensors, map(_rest, tensors))


def _rest(one: LockedTensor) -> str:
    return f"{one.dtype} {shape_text(one.shape)} {one.digest}"


def _digest(tensors: Collection[LockedTensor], lines: Iterable[str]) -> str:
    kind = HEADERS if any(one.digest == UNREAD for one in tensors) else FULL
    return f"{kind}:{blake3_of(chr(10).join(sorted(lines)))}"


def blake3_of(text: str) -> str:
    """blake3 of a text as UTF-8, in hexadecimal; text that is quoted has no surrogates."""
    from blake3 import blake3

    return str(blake3(text.encode()).hexdigest())
