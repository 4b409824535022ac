"""The values of tensors, moved from one dialect to another piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from paramtool.parts.pieces import Piece, Stored, joined

Tensors = Mapping[str, torch.Tensor]


def shapes(tensors: Tensors) -> dict[str, tuple[int, ...]]:
    """Their shapes."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def view(piece: Piece, tensor: torch.Tensor) -> torch.Tensor:
    """A piece's elements."""
    digits = [digit for axis in piece.digits for digit in axis]
    offset = sum(k * stride for k, stride in zip(piece.at, tensor.stride(), strict=True))
    strides = [digit.step * tensor.stride(digit.axis) for digit in digits]
    return torch.as_strided(tensor, [digit.length for digit in digits], strides, offset)


def moved(tensors: Tensors, read: Iterable[Stored], made: Iterable[Stored]) -> dict[str, torch.Tensor]:
    """New tensors with the values of those that hold the same parts; every element is written, once or the same."""
    held: dict[str, list[tuple[torch.Tensor, Piece]]] = {}
    for stored in read:
        for piece in stored.pieces:
            held.setdefault(piece.part, []).append((tensors[stored.name].contiguous(), piece))
    found = {}
    for stored in made:
        new = torch.full(stored.shape, float("nan"))
        for mine in stored.pieces:
            for tensor, other in held[mine.part]:
                for pair in joined([mine], [other]):
                    view(pair.mine, new).copy_(view(pair.other, tensor))
        assert not new.isnan().any(), stored.name
        found[stored.name] = new
    return found
