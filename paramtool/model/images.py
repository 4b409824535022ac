"""Where a layer takes or gives a flattened image, and whether the channels of the image come first or last in it.

    Conv -> Flatten -> Dense         inputs of the dense layer: channels-last "(place channel)", or channels-first
    Conv -> Reshape -> LSTM          so those of a recurrent layer
    Dense -> Reshape -> Conv         so the outputs of the dense layer, and what a norm behind it keeps of them

A library that has the channels of images at another place has such weights in another order, and nothing in their
shapes shows it.  A format that holds the graph of a model tells a `Flow` what each layer does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

FIRST, LAST = "channels-first", "channels-last"


class Image(NamedTuple):
    """What is known of a value between two layers."""

    channels: int = 0
    """Of an image, flattened or not; 0 if it is none, and -1 if only a part is, or their count is unknown."""
    order: str = ""
    """`FIRST` or `LAST`: where the channels are among the axes that a flattening joins."""
    is_sure: bool = True
    """Whether nothing stands before it that can change the order unseen: a custom layer, other values beside it."""
    is_flat: bool = False
    makers: tuple[str, ...] = ()
    """The layers whose outputs it holds in their order, where it is no image, or only was reshaped into one."""
    dims: tuple[tuple[int, int], ...] = ()
    """(size, place among them before any was moved) of the axes that it was reshaped into, without the batch."""


NOTHING = Image()


class Flow:
    """What the layers of a model take and give."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Image]] = {}
        """{layer: {`in` or `out`: the image that is flattened along that axis}}"""

    def note(self, layer: str, axis: str, image: Image) -> None:
        """A layer has an image, perhaps flattened, along an axis."""
        if image.channels:
            held = self.found.setdefault(layer, {}).setdefault(axis, image)
            if held[:2] != image[:2]:  # a shared layer
                self.found[layer][axis] = held._replace(is_sure=False)

    def takes(self, layer: str, image: Image, axis: str = "in") -> None:
        """A layer takes a value along an axis."""
        if not image.makers:
            self.note(layer, axis, image)

    def is_convolved(self, image: Image, channels: int, order: str) -> None:
        """A convolution takes a value: what was reshaped into it is an image."""
        for maker in image.makers:
            self.note(maker, "out", Image(channels, order, image.is_sure))


def moved(image: Image, axes: Sequence[int]) -> Image:
    """An image whose axes were permuted; axis 0 is the batch.  Axes behind the channels are taken to be joined to them.

    >>> moved(Image(4, FIRST), (0, 2, 3, 1)).order, moved(Image(4, LAST), (0, 2, 1, 3)).order
    ('channels-last', 'channels-last')
    """
    if image.dims:
        return image._replace(dims=tuple(image.dims[k - 1] for k in axes[1:]))
    if not image.order or image.is_flat:
        return image
    at = list(axes).index(1 if image.order == FIRST else len(axes) - 1)
    return image._replace(order=LAST if at == len(axes) - 1 else FIRST)


def beside(images: Sequence[Image]) -> Image:
    """Values side by side, by their channels; of flattened ones the parts cannot be told apart, and -1 is the count."""
    found = [one for one in images if one.channels not in (0, 1) and not one.makers]
    if not found:
        return NOTHING
    if any(one.is_flat for one in found) or len({one.order for one in found}) > 1:
        return found[0]._replace(channels=-1, is_sure=False)
    is_sure = all(one.is_sure and one.channels for one in images)
    return found[0]._replace(channels=sum(one.channels for one in images), is_sure=is_sure)


def first(images: Iterable[Image]) -> Image:
    """Of values that are added or multiplied, the one of which most is known."""
    return max(images, key=lambda one: (one.channels > 0, len(one.makers)), default=NOTHING)
