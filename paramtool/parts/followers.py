"""Followers: the companions of one name, such as `weight_scale`, of a fused weight and of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from paramtool.model.view import Shape, Shapes
from paramtool.parts.blocks import Axis, Image, image, lengths
from paramtool.parts.packing import Packing
from paramtool.parts.pieces import Stored


class Followers(NamedTuple):
    """The companions of one name of a fused weight and of its parts, as far as a file has them."""

    weight: Stored
    """In the shape before packing, [.., outputs, inputs] in any order of axes; its pieces' parts have [.., outputs,
    inputs]."""
    suffix: str
    """The end of their names, behind those of the modules: `weight_scale`."""
    names: Mapping[str, str]
    """{the fused weight, or a part of it: its companion}"""
    shapes: Shapes
    """{companion: its shape}, of those that the file has: of all parts, or of the fused weight."""
    packing: Packing = Packing()

    @property
    def fused(self) -> str:
        """The name of the companion of the fused weight."""
        return self.names[self.weight.name]

    @property
    def parts(self) -> dict[str, Shape]:
        """{part of the weight: its shape}"""
        return lengths(self.weight)

    @property
    def own(self) -> dict[str, Shape]:
        """{part of the weight: the shape of its companion}, of those that the file has."""
        return {part: self.shapes[self.names[part]] for part in self.parts if self.names[part] in self.shapes}

    def image(self, axes: Sequence[Axis]) -> Image:
        """The companions as images of the weight, for these axes; LayoutError where a block would be cut."""
        return image(self.weight, axes, self.fused, {part: self.names[part] for part in self.parts})
