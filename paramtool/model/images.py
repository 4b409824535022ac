"""Where a layer takes or gives a flattened image, and whether the channels of the image come first or last in it.

    Conv -> Flatten -> Dense         inputs of the dense layer: channels-last "(place channel)", or channels-first
    Conv -> Reshape -> LSTM          so those of a recurrent layer
    Dense -> Reshape -> Conv         so the outputs of the dense layer, and what a norm behind it keeps of them

A library that has the channels of images at another place has such weights in another order, and nothing in their
shapes shows it.  A format that holds the graph of a model tells a `Flow` what each layer does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from paramtool.model.curves import ALSO, PLACES, Curve, alike, made, order

FIRST, LAST, MIXED = "channels-first", "channels-last", "in another order"
CHANNEL, STEP = -1, -2
FEATURES = -2
"""In place of a count of channels: no image, but what layers made, in another order."""


class Signal(NamedTuple):
    """What became of the outputs of layers on their way to others."""

    makers: frozenset[str] = frozenset()
    """The layers; an empty name for what the model takes."""
    curve: Curve = PLACES
    is_padded: bool = False
    """Whether it was padded or cropped on its own."""
    steps: tuple[str, ...] = ()
    """What was done to them that is no function of single numbers: `max` and `mean` over places."""
    taken: frozenset[tuple[str, Curve]] = frozenset()
    """{(layer, what was done to its outputs)} of those that it was mixed of before."""


class Image(NamedTuple):
    """What is known of a value between two layers."""

    channels: int = 0
    """Of an image, flattened or not; 0 if it is none, -1 if only a part is, or their count is unknown; or FEATURES."""
    unseen: str = ""
    """What before it can change the order unseen, in words: a custom layer, other values beside it."""
    makers: tuple[str, ...] = ()
    """The layers whose outputs it holds in their order, where it is no image, or only was reshaped into one."""
    dims: tuple[tuple[int, int], ...] = ()
    """(size or 0, place among them before any was moved) of the axes without the batch; the places `CHANNEL` and `STEP`
    are the channels of an image, and the steps of a sequence of images."""
    joined: int = 1
    """How many of `dims`, the last ones, are joined in its last axis."""
    is_input: bool = False
    """Whether the model takes it, and no convolution made it."""
    units: int = 0
    """How many outputs the layer has that made it, if that is a dense one."""
    signal: Signal = Signal()

    @property
    def order(self) -> str:
        """`FIRST`, `LAST` or `MIXED`: how the joined axes are flattened, or all would be; empty if not known."""
        places = [place for _, place in self.dims][-self.joined if self.joined > 1 else None :]
        rest = [place for place in places if place != CHANNEL]
        if rest != sorted(rest) or STEP in rest:
            return MIXED
        channels = [CHANNEL] * places.count(CHANNEL)  # several where a reshape split them
        if self.channels == 1 or places[: len(channels)] == channels:
            return FIRST if places else ""
        return LAST if places[-len(channels) :] == channels else MIXED


def image(channels: int, order: str, rank: int) -> Image:
    """An image of so many axes, with the channels and without the batch."""
    places, channel = [(0, k) for k in range(rank - 1)], [(channels, CHANNEL)]
    return Image(channels, dims=tuple(channel + places if order == FIRST else places + channel))


NOTHING = Image()


def _done(signal: Signal, word: str) -> Iterable[tuple[str, Curve]]:
    """(layer, what was done to its outputs, with a word for what is done to them now) of a signal."""
    return [(name, (*([word] if word else ()), *signal.steps, *signal.curve)) for name in signal.makers]


class Flow:
    """What the layers of a model take and give."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Image]] = {}
        """{layer: {`in` or `out`: the image that is flattened along that axis}}"""
        self.padded: set[str] = set()
        """Layers that take what was padded."""
        self.curves: dict[str, list[Curve]] = {}
        """{layer: what is done to its outputs until other layers take them}; with a space before it, to its inputs."""

    def ends(self, given: Iterable[Signal], maker: str = "", kind: str = "") -> Signal:
        """What a layer makes of values, or their way out of the model.

        Norms that have no statistics are noted, too: no tensor may show that they are there.
        """
        for one in given:
            self.padded |= {maker} if one.is_padded else set()
            for name, done in (*one.taken, *_done(one, kind if kind in ("layernorm", "groupnorm") else "")):
                found = self.curves.setdefault(name or f" {maker}", [])
                if done not in found and not any(alike(done, other) for other in found):
                    found.append(done)
        return Signal(frozenset({maker}))

    def computes(self, name: str, given: Sequence[Signal | float]) -> Signal:
        """What a function makes of values and numbers; PASSING ones leave each number as it is."""
        signals = [one for one in given if isinstance(one, Signal)]
        if len({one.makers for one in signals}) > 1 or (len(set(signals)) > 1 and PASSING.fullmatch(name)):
            word = ALSO.get(name.casefold(), name.casefold())
            words = [word if word in ("add", "mul") else f"{word} ({k})" for k in range(len(signals))]
            taken = {pair for one, word in zip(signals, words, strict=True) for pair in (*one.taken, *_done(one, word))}
            return Signal(frozenset(name for one in signals for name in one.makers), taken=frozenset(taken))
        if not signals or PASSING.fullmatch(name):
            x = signals[0] if signals else Signal()
            steps = [word for key, word in (("Max", "max"), ("Average", "mean"), ("Mean", "mean")) if key in name]
            return x._replace(is_padded=x.is_padded or "Pad" in name or "Crop" in name, steps=(*x.steps, *steps))
        return signals[0]._replace(curve=made(name, *(one.curve if isinstance(one, Signal) else one for one in given)))

    def settings(self, layer: str) -> dict[str, object]:
        """What is done to the inputs of a layer that are the model's, and to its outputs."""
        found: dict[str, object] = {"pads": None} if layer in self.padded else {}
        for name, at in (("inputs", f" {layer}"), ("outputs", layer)):
            if at in self.curves:
                found[f"function of its {name}"] = sorted(self.curves[at], key=order)
        return found

    def note(self, layer: str, axis: str, image: Image) -> None:
        """A layer has an image, perhaps flattened, along an axis."""
        if image.channels:
            held = self.found.setdefault(layer, {}).setdefault(axis, image)
            if (held.channels, held.order) != (image.channels, image.order):  # a shared layer
                self.found[layer][axis] = held._replace(unseen="a layer that takes several images")

    def takes(self, layer: str, image: Image, axis: str = "in") -> None:
        """A layer takes a value along its last axis."""
        places = [place for _, place in image.dims[-image.joined :]]
        if image.makers:
            is_moved = places != sorted(places) or STEP in places
            is_other = image.joined == 1 and places != sorted(place for _, place in image.dims)[-1:]
            self.note(layer, axis, image._replace(channels=FEATURES * (is_moved or is_other)))
        elif not places or CHANNEL in places or image.order == MIXED:
            self.note(layer, axis, image)

    def merged(self, images: Sequence[Image]) -> Image:
        """What one layer takes, of several values their sum or product; what meets a flattened image has its order."""
        x = first(images)
        for one in images if x.channels and not x.makers else ():
            if one.makers and x.joined > 1:
                for maker in one.makers:
                    self.note(maker, "out", x)
            elif one.makers:
                self.is_convolved("", one, x.channels, 0 if x.order == FIRST else -1)
            elif x.joined > 1 and not one.channels:
                x = x._replace(unseen=x.unseen or BESIDE)
        return x

    def dense(self, layer: str, image: Image, units: int) -> Image:
        """What a dense layer makes of a value along its last axis: of an image that is not flattened, an image."""
        self.takes(layer, image)
        if image.is_input or image.makers or image.joined > 1 or not (image.dims and image.channels):
            return Image(makers=(layer,), units=units)
        return image._replace(channels=units) if image.dims[-1][1] == CHANNEL else image

    def is_convolved(self, layer: str, image: Image, channels: int, at: int) -> None:
        """A convolution takes a value, an image if it was reshaped, with the channels at axis 0 or -1 of it."""
        if image.dims and not image.makers and (image.dims[at][1] != CHANNEL or (at and image.joined > 1)):
            self.note(layer, "in", image)  # its channels are places, too, as of pixels that were shuffled
        labels = [*range(max(1, len(image.dims) - 1))]
        labels.insert(0 if at == 0 else len(labels), CHANNEL)
        places = [place for _, place in image.dims] if len(image.dims) > 1 else [*range(len(labels))]
        dims = tuple((0, label) for _, label in sorted(zip(places, labels, strict=True)))
        unseen = image.unseen or MOVED * (image.joined > 1)
        for maker in image.makers:
            self.note(maker, "out", Image(channels, unseen, dims=dims))


def moved(image: Image, axes: Sequence[int]) -> Image:
    """An image whose axes were permuted; axis 0 is the batch.

    >>> [moved(image(4, *one, 3), axes).order for one, axes in [([FIRST], (0, 2, 3, 1)), ([LAST], (0, 2, 1, 3))]]
    ['channels-last', 'in another order']
    """
    if image.joined > 1 and axes[-1] == len(axes) - 1 and len(axes) < 4:
        return image
    dims = image.dims or tuple((0, k) for k in range(len(axes) - 1))
    if image.joined > 1 or sorted(axes) != [*range(len(dims) + 1)]:
        return image._replace(dims=SCRAMBLED, joined=1)
    return image._replace(dims=tuple(dims[k - 1] for k in axes if k))


def reshaped(image: Image, target: Sequence[int]) -> Image:
    """What layers made in another shape, without the batch; 0 or less is a size that is not known.

    >>> made = moved(reshaped(Image(makers=("a",)), [3, 4]), [0, 2, 1])
    >>> [reshaped(made, target).dims for target in ([12], [2, 6])]
    [((4, 1), (3, 0)), ((0, -2), (0, -2), (0, -2))]
    """
    places, size = [place for _, place in image.dims], target[-1] if target else 0
    ends = [[size for size, _ in image.dims[k:]] for k in range(len(places) - 1, -1, -1)]
    joined = next((len(sizes) for sizes in ends if min(sizes) > 0 and prod(sizes) == size), 0)
    if len(target) < 2:
        return image._replace(joined=joined or max(1, len(places)))
    if places == sorted(places) and STEP not in places:
        return image._replace(dims=tuple((size, k) for k, size in enumerate(target)), joined=1)
    if joined and joined <= len(places) - len(target) + 1:
        return image._replace(joined=joined)
    return image._replace(dims=SCRAMBLED, joined=1, unseen=image.unseen or MOVED)


PASSING = re.compile(
    r"(Keras)?(Reshape|Flatten|Permute|Transpose|Squeeze|Unsqueeze|Identity|Cast(Like)?|Slice|Gather\w*|Split|GetItem|"
    r"Get|Pad|Resize|Upsample|Expand\w*|Tile|Repeat\w*|DepthToSpace|SpaceToDepth|Concat\w*|InputLayer|Masking|Copy|"
    r"(Global)?(Max|Average|Lp)Pool\w*|Reduce\w*|Mean|Activity\w*|(Cropping|ZeroPadding|UpSampling).D|Random\w*|"
    r"\w*Dropout\w*|Gaussian\w*|Linear)"
)
"""What leaves every number as it is, or is no function of single numbers, in the words of ONNX and of Keras."""
BESIDE, MOVED = "other values beside it", "axes in another order"
SCRAMBLED = ((0, STEP),) * 3
"""Axes of which nobody knows the order."""


def beside(images: Sequence[Image]) -> Image:
    """Values side by side, by their channels; of flattened ones the parts cannot be told apart, and -1 is the count."""
    found = [one for one in images if one.channels not in (0, 1) and not one.makers]
    if not found:
        return NOTHING
    if any(one.joined > 1 for one in found) or len({one.order for one in found}) > 1:
        return found[0]._replace(channels=-1, unseen=BESIDE)
    unseen = [one.unseen or BESIDE for one in images if one.unseen or not one.channels]
    return found[0]._replace(channels=sum(one.channels for one in images), unseen="".join(unseen[:1]))


def first(images: Iterable[Image]) -> Image:
    """Of values that are added or multiplied, the one of which most is known."""
    return max(images, key=lambda one: (one.channels > 0, len(one.makers)), default=NOTHING)
