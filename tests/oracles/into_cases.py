"""Models that `convert --into` fills: what computes the same afterwards, and what has to be refused.

Each case is a module of PyTorch and a model of Keras for its weights.  Images are channels first in PyTorch, and
channels last in Keras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, weight_norm

k = keras.layers
Built = Callable[[], Any]


class Case(NamedTuple):
    """A source, and a model of Keras for its weights."""

    name: str
    source: Built
    model: Built
    shape: tuple[int, ...]
    """Of one input of the source."""
    more: dict[str, Any] = {}  # noqa: RUF012 - read only
    """Options of `convert`."""
    suffix: str = ".keras"
    moves: tuple[int, ...] | None = None
    """How the axes of an input are permuted for Keras; None puts channels last in images of three axes."""
    suffixes: tuple[str, ...] = (".keras", ".h5")
    """Of full models that Keras loads again: its `.h5` forgets operations, and axes of norms."""


def seq(shape: tuple[int, ...], *layers: Any) -> Any:
    """A Sequential of Keras."""
    return keras.Sequential([keras.Input(shape), *layers])


class Fn(nn.Module):
    """A function as a layer."""

    def __init__(self, does: Callable[[Any], Any]) -> None:
        super().__init__()
        self.does = does

    def forward(self, x: Any) -> Any:
        return self.does(x)


def net(**layers: nn.Module) -> nn.Sequential:
    """A Sequential with names."""
    made = nn.Sequential()
    for name, layer in layers.items():
        made.add_module(name, layer)
    return made


def frames(conv: nn.Module) -> Fn:
    """A layer on each image of a sequence."""

    class Each(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv

        def forward(self, x: Any) -> Any:
            found = self.conv(x.flatten(0, 1))
            return found.reshape(*x.shape[:2], -1)

    return Each()  # type: ignore[return-value]


def last(x: Any) -> Any:
    """The outputs of a recurrent layer at the last step."""
    return x[0][:, -1]


def gap(x: Any) -> Any:
    return x.mean((2, 3))


def zeroed(layer: nn.Module, *names: str, value: dict[str, float] | None = None) -> nn.Module:
    """A layer of which some tensors hold one number."""
    for name in names:
        nn.init.constant_(getattr(layer, name), (value or {}).get(name, 0.0))
    layer.keeps = names  # type: ignore[assignment]
    return layer


def filled_with_noise(module: nn.Module) -> nn.Module:
    """A module with other numbers everywhere, statistics among them."""
    torch.manual_seed(3)
    kept = {id(getattr(m, name)) for m in module.modules() for name in getattr(m, "keeps", ())}
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers()):
            if value.is_floating_point() and id(value) not in kept:
                value.copy_(torch.rand(value.shape) * 0.8 + 0.1)
    return module.eval()


class LayerScale(nn.Module):
    """As timm has it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gamma


def operation(name: str, does: Callable[[Any], Any], function: Callable[[Any], Any] | None = None) -> Case:
    """An operation of `keras.ops` between an image and a flattened one, and what it is in PyTorch."""

    def model() -> Any:
        x = keras.Input((5, 5, 3))
        y = k.Flatten()(does(k.Conv2D(4, 3, name="c")(x)))
        return keras.Model(x, k.Dense(2, name="fc")(y))

    return Case(
        name,
        lambda: net(c=nn.Conv2d(3, 4, 3), f=Fn(function or flat), fc=nn.Linear(36, 2)),
        model,
        (3, 5, 5),
        suffixes=(".keras",),
    )


def normed(channels: int) -> Case:
    """A norm over a whole image, whose weights have the axes of one."""
    return Case(
        f"a norm over an image of {channels} channels",
        lambda: net(c=nn.Conv2d(3, channels, 3), n=nn.LayerNorm((channels, 3, 3)), p=Fn(gap)),
        lambda: seq(
            (5, 5, 3),
            k.Conv2D(channels, 3, name="c"),
            k.LayerNormalization(axis=[1, 2, 3], epsilon=1e-5, name="n"),
            k.GlobalAveragePooling2D(),
        ),
        (3, 5, 5),
        suffixes=(".keras",),
    )


class Sum(nn.Module):
    """Outputs of a dense layer have the order of the flattened image that they are added to."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.a, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(60, 24), nn.Linear(24, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.c(x).flatten(1) + self.a(x.flatten(1)))


def summed() -> Any:
    """The same in Keras."""
    x = keras.Input((5, 4, 3))
    image, beside = k.Flatten()(k.Conv2D(4, 3, name="c")(x)), k.Dense(24, name="a")(k.Flatten()(x))
    return keras.Model(x, k.Dense(2, name="fc")(k.Add()([image, beside])))


class Row(nn.Module):
    """A row of a table, as an image."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.c = nn.Embedding(7, 24), nn.ConvTranspose2d(4, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.e(x.long())[:, 0].reshape(-1, 4, 3, 2)).permute(0, 2, 3, 1)


class UNet(nn.Module):
    """Two scales, and a skip between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(6, 4, 2, stride=2), nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.one(x)
        two = self.two(nn.functional.max_pool2d(one, 2))
        return self.out(torch.cat([one, self.up(two)], 1)).permute(0, 2, 3, 1)


def unet() -> Any:
    """The same in Keras."""
    x = keras.Input((8, 6, 3))
    one = k.Conv2D(4, 3, padding="same", name="one")(x)
    two = k.Conv2D(6, 3, padding="same", name="two")(k.MaxPooling2D()(one))
    up = k.Conv2DTranspose(4, 2, strides=2, name="up")(two)
    return keras.Model(x, k.Conv2D(2, 1, name="out")(k.Concatenate()([one, up])))


def on_channels(x: Any) -> Any:
    return x.permute(0, 2, 3, 1)


FILLED = (
    Case(
        "slopes of channels",
        lambda: net(c=nn.Conv2d(3, 4, 3), s=Fn(lambda x: x - 2), p=nn.PReLU(4), g=Fn(gap), fc=nn.Linear(4, 2)),
        lambda: seq(
            (5, 5, 3),
            k.Conv2D(4, 3, name="c"),
            k.Rescaling(1.0, offset=-2),
            k.PReLU(shared_axes=[1, 2], name="p"),
            k.GlobalAveragePooling2D(),
            k.Dense(2, name="fc"),
        ),
        (3, 5, 5),
    ),
    Case(
        "slopes of channels, in a file of weights alone",
        lambda: net(c=nn.Conv2d(3, 4, 3), p=nn.PReLU(4), g=Fn(gap), fc=nn.Linear(4, 2)),
        lambda: seq(
            (5, 5, 3),
            k.Conv2D(4, 3, name="c"),
            k.PReLU(shared_axes=[1, 2], name="p"),
            k.GlobalAveragePooling2D(),
            k.Dense(2, name="fc"),
        ),
        (3, 5, 5),
        suffix=".weights.h5",
    ),
    Case(
        "a dense layer on features that no convolution made",
        lambda: net(a=nn.Linear(3, 4), f=nn.Flatten(), fc=nn.Linear(80, 2)),
        lambda: seq((5, 4, 3), k.Dense(4, name="a"), k.Flatten(), k.Dense(2, name="fc")),
        (5, 4, 3),
        moves=(0, 1, 2, 3),
    ),
    Case(
        "a layer scale of ones",
        lambda: net(fc=nn.Linear(4, 3), ls1=zeroed(LayerScale(3), "gamma", value={"gamma": 1})),
        lambda: seq((4,), k.Dense(3, name="fc")),
        (4,),
    ),
    *(
        Case(
            f"slopes of ones, {count} of them, that the model does not have",
            lambda count=count: net(
                fc=nn.Linear(4, 3), act=zeroed(nn.PReLU(count), "weight", value={"weight": 1}), b=nn.Linear(3, 2)
            ),
            lambda: seq((4,), k.Dense(3, name="fc"), k.Dense(2, name="b")),
            (4,),
        )
        for count in (1, 3)
    ),
    *(
        Case(
            f"norms of equal values under other names, {len(values)} kinds of values",
            lambda layer=layer, values=values: net(
                a=nn.Linear(4, 3),
                pre=zeroed(layer(3), *values, value=values),
                post=zeroed(layer(3), *values, value=values),
                b=nn.Linear(3, 2),
            ),
            lambda made=made: seq((4,), k.Dense(3, name="a"), made(), made(), k.Dense(2, name="b")),
            (4,),
        )
        for layer, made, values in (
            (nn.LayerNorm, lambda: k.LayerNormalization(epsilon=1e-5), {"weight": 1.0, "bias": 0.0}),
            (
                lambda size: nn.BatchNorm1d(size, eps=1e-3),
                k.BatchNormalization,
                {"weight": 2.0, "bias": 0.5, "running_mean": 0.25, "running_var": 0.75},
            ),
        )
    ),
    Case(
        "convolutions over steps that widen, and a norm by root mean squares",
        lambda: net(
            c=nn.ConvTranspose1d(3, 4, 2, stride=2),
            g=Fn(lambda x: x.mean(2)),
            n=nn.RMSNorm(4, eps=1e-6),
            b=nn.Linear(4, 2),
        ),
        lambda: seq(
            (5, 3),
            k.Conv1DTranspose(4, 2, strides=2, name="c"),
            k.GlobalAveragePooling1D(),
            k.RMSNormalization(epsilon=1e-6, name="n"),
            k.Dense(2, name="b"),
        ),
        (3, 5),
        moves=(0, 2, 1),
    ),
    Case("an image that comes back", UNet, unet, (3, 8, 6)),
    Case(
        "groups of channels",
        lambda: net(c=nn.Conv2d(4, 6, 3, groups=2), g=Fn(gap), fc=nn.Linear(6, 2)),
        lambda: seq((5, 5, 4), k.Conv2D(6, 3, groups=2, name="c"), k.GlobalAveragePooling2D(), k.Dense(2, name="fc")),
        (4, 5, 5),
    ),
    Case(
        "one vector at each step, into cells in one layer",
        lambda: net(
            a=nn.Linear(4, 6),
            r=Fn(lambda x: x[:, None].repeat(1, 5, 1)),
            rnn=nn.LSTM(6, 4, 2, batch_first=True),
            o=Fn(last),
            fc=nn.Linear(4, 2),
        ),
        lambda: seq(
            (4,),
            k.Dense(6, name="a"),
            k.RepeatVector(5),
            k.RNN([k.LSTMCell(4), k.LSTMCell(4)], name="rnn"),
            k.Dense(2, name="fc"),
        ),
        (4,),
    ),
    Case("dense", lambda: net(fc=nn.Linear(4, 3)), lambda: seq((4,), k.Dense(3, name="fc")), (4,)),
    Case(
        "a chain of dense layers of one size",
        lambda: nn.Sequential(*(nn.Linear(5, 5) for _ in range(3))),
        lambda: seq((5,), *(k.Dense(5, name=f"dense_{n}") for n in range(3))),
        (5,),
    ),
    Case(
        "convolutions, norms and a pooled image",
        lambda: net(
            c=nn.Conv2d(3, 4, 3), n=nn.BatchNorm2d(4), r=nn.ReLU(), p=Fn(gap), a=nn.Linear(4, 8), b=nn.Linear(8, 2)
        ),
        lambda: seq(
            (6, 6, 3),
            k.Conv2D(4, 3, name="c"),
            k.BatchNormalization(epsilon=1e-5, name="n"),
            k.ReLU(),
            k.GlobalAveragePooling2D(),
            k.Dense(8, name="a"),
            k.Dense(2, name="b"),
        ),
        (3, 6, 6),
    ),
    Case(
        "a pooled image, in a file of weights alone",
        lambda: net(c=nn.Conv2d(3, 4, 3), p=Fn(gap), a=nn.Linear(4, 8), b=nn.Linear(8, 2)),
        lambda: seq(
            (6, 6, 3), k.Conv2D(4, 3, name="c"), k.GlobalAveragePooling2D(), k.Dense(8, name="a"), k.Dense(2, name="b")
        ),
        (3, 6, 6),
        suffix=".weights.h5",
    ),
    Case(
        "a flattened image of one pixel",
        lambda: net(c=nn.Conv2d(3, 4, 5), f=nn.Flatten(), fc=nn.Linear(4, 2)),
        lambda: seq((5, 5, 3), k.Conv2D(4, 5, name="c"), k.Flatten(), k.Dense(2, name="fc")),
        (3, 5, 5),
    ),
    Case(
        "a flattened image of one channel",
        lambda: net(c=nn.Conv2d(3, 1, 3), f=nn.Flatten(), fc=nn.Linear(9, 2)),
        lambda: seq((5, 5, 3), k.Conv2D(1, 3, name="c"), k.Flatten(), k.Dense(2, name="fc")),
        (3, 5, 5),
    ),
    Case(
        "a grey image",
        lambda: net(f=nn.Flatten(), fc=nn.Linear(16, 2)),
        lambda: seq((4, 4, 1), k.Flatten(), k.Dense(2, name="fc")),
        (1, 4, 4),
    ),
    Case(
        "steps that are flattened",
        lambda: net(rnn=nn.LSTM(3, 4, batch_first=True), o=Fn(lambda x: x[0].flatten(1)), fc=nn.Linear(20, 2)),
        lambda: seq((5, 3), k.LSTM(4, return_sequences=True, name="rnn"), k.Flatten(), k.Dense(2, name="fc")),
        (5, 3),
    ),
    Case(
        "a convolution over steps before a recurrent layer",
        lambda: net(
            t=Fn(lambda x: x.transpose(1, 2)),
            c=nn.Conv1d(3, 4, 2),
            u=Fn(lambda x: x.transpose(1, 2)),
            rnn=nn.GRU(4, 5, batch_first=True),
            o=Fn(last),
            fc=nn.Linear(5, 2),
        ),
        lambda: seq((6, 3), k.Conv1D(4, 2, name="c"), k.GRU(5, name="rnn"), k.Dense(2, name="fc")),
        (6, 3),
    ),
    Case(
        "both directions",
        lambda: net(rnn=nn.LSTM(3, 4, batch_first=True, bidirectional=True), o=Fn(lambda x: x[0]), fc=nn.Linear(8, 2)),
        lambda: seq(
            (5, 3),
            k.Bidirectional(k.LSTM(4, return_sequences=True), name="rnn"),
            k.TimeDistributed(k.Dense(2), name="fc"),
        ),
        (5, 3),
    ),
    Case(
        "transposed and depthwise convolutions",
        lambda: net(u=nn.ConvTranspose2d(3, 4, 2), d=nn.Conv2d(4, 8, 2, groups=4), p=Fn(gap), fc=nn.Linear(8, 2)),
        lambda: seq(
            (5, 5, 3),
            k.Conv2DTranspose(4, 2, name="u"),
            k.DepthwiseConv2D(2, depth_multiplier=2, name="d"),
            k.GlobalAveragePooling2D(),
            k.Dense(2, name="fc"),
        ),
        (3, 5, 5),
    ),
    Case(
        "norms of layers and groups",
        lambda: net(a=nn.Linear(4, 6), n=nn.LayerNorm(6), g=nn.GroupNorm(2, 6), b=nn.Linear(6, 2)),
        lambda: seq(
            (4,),
            k.Dense(6, name="a"),
            k.LayerNormalization(epsilon=1e-5, name="n"),
            k.GroupNormalization(2, epsilon=1e-5, name="g"),
            k.Dense(2, name="b"),
        ),
        (4,),
    ),
    Case(
        "a part of a source",
        lambda: net(encoder=net(a=nn.Linear(4, 3), b=nn.Linear(3, 2))),
        lambda: seq((4,), k.Dense(3, name="a"), k.Dense(2, name="b")),
        (4,),
        {"extra": {"decoder.a.weight": torch.randn(9, 9), "decoder.b.bias": torch.randn(9)}},
    ),
    Case(
        "no bias on either side",
        lambda: net(c=nn.Conv2d(3, 4, 3, bias=False), p=Fn(gap), fc=nn.Linear(4, 2, bias=False)),
        lambda: seq(
            (5, 5, 3),
            k.Conv2D(4, 3, use_bias=False, name="c"),
            k.GlobalAveragePooling2D(),
            k.Dense(2, use_bias=False, name="fc"),
        ),
        (3, 5, 5),
    ),
    Case(
        "a bias of zeros that the model starts with",
        lambda: net(fc=nn.Linear(4, 3, bias=False)),
        lambda: seq((4,), k.Dense(3, name="fc")),
        (4,),
    ),
    Case(
        "a bias of zeros without a place",
        lambda: net(fc=zeroed(nn.Linear(4, 3), "bias")),
        lambda: seq((4,), k.Dense(3, use_bias=False, name="fc")),
        (4,),
    ),
    Case(
        "scales of one and shifts of zero without a place",
        lambda: net(fc=nn.Linear(4, 3), n=zeroed(nn.LayerNorm(3), "weight", "bias", value={"weight": 1})),
        lambda: seq(
            (4,), k.Dense(3, name="fc"), k.LayerNormalization(center=False, scale=False, epsilon=1e-5, name="n")
        ),
        (4,),
    ),
    Case(
        "a batch norm that changes nothing and that the model does not have",
        lambda: net(
            fc=nn.Linear(4, 3),
            n=zeroed(
                nn.BatchNorm1d(3, eps=1e-7),
                "weight",
                "bias",
                "running_mean",
                "running_var",
                value={"weight": 1, "running_var": 1},
            ),
        ),
        lambda: seq((4,), k.Dense(3, name="fc")),
        (4,),
    ),
    Case(
        "counters, indices and frequencies",
        lambda: net(fc=nn.Linear(4, 3)),
        lambda: seq((4,), k.Dense(3, name="fc")),
        (4,),
        {
            "extra": {
                "position_ids": torch.arange(4),
                "rope.inv_freq": 10000 ** -torch.linspace(0, 0.75, 4),
                "n.num_batches_tracked": torch.ones(()),
            }
        },
    ),
    Case(
        "a tie of which the model has one name",
        lambda: net(emb=nn.Linear(4, 3, bias=False)),
        lambda: seq((4,), k.Dense(3, use_bias=False, name="emb")),
        (4,),
        {"tied": {"head.weight": "emb.weight"}},
    ),
)
"""What computes the same after `convert --into`, as it always did."""


def through(name: str, function: Callable[[Any], Any], *layers: Any) -> Case:
    """Layers of Keras between an image and a dense layer, and what they are in PyTorch."""
    return Case(
        name,
        lambda: net(c=nn.Conv2d(3, 4, 3), f=Fn(function), fc=nn.Linear(36, 2)),
        lambda: seq((5, 5, 3), k.Conv2D(4, 3, name="c"), *layers, k.Dense(2, name="fc")),
        (3, 5, 5),
    )


def rows(name: str, axes: tuple[int, ...], size: int, *layers: Any) -> Case:
    """Layers of Keras that make an image the steps of a recurrent layer, and the axes of them in PyTorch."""
    return Case(
        name,
        lambda: net(
            c=nn.Conv2d(3, 4, 3),
            r=Fn(lambda x: x.permute(0, *axes).flatten(2)),
            rnn=nn.GRU(size, 5, batch_first=True),
            o=Fn(last),
        ),
        lambda: seq((5, 4, 3), k.Conv2D(4, 3, name="c"), *layers, k.GRU(5, name="rnn")),
        (3, 5, 4),
    )


def flat(x: Any) -> Any:
    return x.flatten(1)


FLATTENED = (
    Case(
        "an image before a dense layer",
        lambda: net(c=nn.Conv2d(3, 4, 3), f=nn.Flatten(), fc=nn.Linear(24, 2)),
        lambda: seq((5, 4, 3), k.Conv2D(4, 3, name="c"), k.Flatten(), k.Dense(2, name="fc")),
        (3, 5, 4),
    ),
    Case("a dense layer beside the flattened image", Sum, summed, (3, 5, 4)),
    Case(
        "places that become channels",
        lambda: net(s=nn.PixelUnshuffle(2), c=nn.Conv2d(12, 3, 1), f=Fn(on_channels)),
        lambda: seq(
            (4, 6, 3),
            k.Reshape((2, 2, 3, 2, 3)),
            k.Permute((1, 3, 2, 4, 5)),
            k.Reshape((2, 3, 12)),
            k.Conv2D(3, 1, name="c"),
        ),
        (3, 4, 6),
    ),
    Case(
        "an image made of a row of a table",
        Row,
        lambda: seq((1,), k.Embedding(7, 24, name="e"), k.Reshape((3, 2, 4)), k.Conv2DTranspose(2, 2, name="c")),
        (1,),
        suffixes=(".keras",),
    ),
    Case(
        "an image of three axes",
        lambda: net(c=nn.Conv3d(2, 3, 2), f=nn.Flatten(), fc=nn.Linear(18, 2)),
        lambda: seq((4, 3, 2, 2), k.Conv3D(3, 2, name="c"), k.Flatten(), k.Dense(2, name="fc")),
        (2, 4, 3, 2),
        moves=(0, 2, 3, 4, 1),
    ),
    Case(
        "an image that is widened and padded",
        lambda: net(
            c=nn.Conv2d(3, 4, 3),
            u=nn.Upsample(scale_factor=2),
            p=nn.ZeroPad2d((0, 0, 1, 1)),
            f=nn.Flatten(),
            fc=nn.Linear(128, 2),
        ),
        lambda: seq(
            (5, 4, 3),
            k.Conv2D(4, 3, name="c"),
            k.UpSampling2D(2),
            k.ZeroPadding2D((1, 0)),
            k.Flatten(),
            k.Dense(2, name="fc"),
        ),
        (3, 5, 4),
    ),
    Case(
        "dense layers of the same size behind it",
        lambda: net(c=nn.Conv2d(3, 4, 3), f=nn.Flatten(), a=nn.Linear(24, 24), b=nn.Linear(24, 24)),
        lambda: seq(
            (5, 4, 3),
            k.Conv2D(4, 3, name="c"),
            k.Flatten(),
            k.Dropout(0.5),
            k.Dense(24, name="a"),
            k.Dense(24, name="b"),
        ),
        (3, 5, 4),
    ),
    Case(
        "as many channels as places",
        lambda: net(c=nn.Conv2d(3, 4, 3), f=nn.Flatten(), fc=nn.Linear(16, 16)),
        lambda: seq((4, 4, 3), k.Conv2D(4, 3, name="c"), k.Flatten(), k.Dense(16, name="fc")),
        (3, 4, 4),
    ),
    Case(
        "an image that no convolution sees",
        lambda: net(f=nn.Flatten(), a=nn.Linear(24, 5), b=nn.Linear(5, 2)),
        lambda: seq((4, 2, 3), k.Flatten(), k.Dense(5, name="a"), k.Dense(2, name="b")),
        (3, 4, 2),
    ),
    Case(
        "a norm of the flattened image",
        lambda: net(
            c=nn.Conv2d(3, 4, 3), f=nn.Flatten(), n=nn.BatchNorm1d(24), l=nn.LayerNorm(24), fc=nn.Linear(24, 2)
        ),
        lambda: seq(
            (5, 4, 3),
            k.Conv2D(4, 3, name="c"),
            k.Flatten(),
            k.BatchNormalization(epsilon=1e-5, name="n"),
            k.LayerNormalization(epsilon=1e-5, name="l"),
            k.Dense(2, name="fc"),
        ),
        (3, 5, 4),
    ),
    Case(
        "a reshaped image",
        lambda: net(c=nn.Conv2d(3, 4, 3), f=nn.Flatten(), fc=nn.Linear(24, 2)),
        lambda: seq((5, 4, 3), k.Conv2D(4, 3, name="c"), k.Reshape((24,)), k.Dense(2, name="fc")),
        (3, 5, 4),
    ),
    Case(
        "an image for each step of a recurrent layer",
        lambda: net(c=frames(nn.Conv2d(3, 4, 3)), rnn=nn.LSTM(24, 5, batch_first=True), o=Fn(last), fc=nn.Linear(5, 2)),
        lambda: seq(
            (6, 5, 4, 3),
            k.TimeDistributed(k.Conv2D(4, 3, name="conv"), name="c"),
            k.TimeDistributed(k.Flatten()),
            k.LSTM(5, name="rnn"),
            k.Dense(2, name="fc"),
        ),
        (6, 3, 5, 4),
        moves=(0, 1, 3, 4, 2),
    ),
    Case(
        "rows of an image as steps, in both directions",
        lambda: net(
            c=nn.Conv2d(3, 4, 3),
            r=Fn(lambda x: x.permute(0, 2, 1, 3).flatten(2)),
            rnn=nn.GRU(8, 5, batch_first=True, bidirectional=True),
            o=Fn(lambda x: x[0]),
            fc=nn.Linear(10, 2),
        ),
        lambda: seq(
            (5, 4, 3),
            k.Conv2D(4, 3, name="c"),
            k.Reshape((3, 8)),
            k.Bidirectional(k.GRU(5, return_sequences=True), name="rnn"),
            k.Dense(2, name="fc"),
        ),
        (3, 5, 4),
    ),
    Case(
        "a model in a model",
        lambda: net(c=nn.Conv2d(3, 4, 3), f=nn.Flatten(), fc=nn.Linear(24, 2)),
        lambda: seq(
            (5, 4, 3),
            keras.Sequential([keras.Input((5, 4, 3)), k.Conv2D(4, 3, name="c"), k.ReLU(max_value=1e9)]),
            keras.Sequential([keras.Input((3, 2, 4)), k.Flatten(), k.Dense(2, name="fc")]),
        ),
        (3, 5, 4),
    ),
    Case(
        "an image that a dense layer makes",
        lambda: net(
            a=nn.Linear(4, 24), n=nn.BatchNorm1d(24), u=nn.Unflatten(1, (4, 3, 2)), c=nn.ConvTranspose2d(4, 1, 2)
        ),
        lambda: seq(
            (4,),
            k.Dense(24, name="a"),
            k.BatchNormalization(epsilon=1e-5, name="n"),
            k.Reshape((3, 2, 4)),
            k.Conv2DTranspose(1, 2, name="c"),
            k.Reshape((1, 4, 3)),
        ),
        (4,),
    ),
    Case(
        "steps of a convolution",
        lambda: net(c=nn.Conv1d(3, 4, 2), f=nn.Flatten(), fc=nn.Linear(20, 2)),
        lambda: seq((6, 3), k.Conv1D(4, 2, name="c"), k.Flatten(), k.Dense(2, name="fc")),
        (3, 6),
        moves=(0, 2, 1),
    ),
    Case(
        "channels last in the source, too",
        lambda: net(c=nn.Conv2d(3, 4, 3), f=Fn(lambda x: x.permute(0, 2, 3, 1).flatten(1)), fc=nn.Linear(24, 2)),
        lambda: seq((5, 4, 3), k.Conv2D(4, 3, name="c"), k.Flatten(), k.Dense(2, name="fc")),
        (3, 5, 4),
        {"flatten": "channels-last"},
    ),
    operation(
        "an operation of elements", lambda x: keras.ops.relu(x - 1) * 2, lambda x: (torch.relu(x - 1) * 2).flatten(1)
    ),
    operation("an image that an operation reshapes", lambda x: keras.ops.reshape(x, (-1, 36))),
    normed(3),
    normed(4),
    Case(
        "slopes of a flattened image",
        lambda: net(c=nn.Conv2d(3, 4, 3), s=Fn(lambda x: x - 2), f=nn.Flatten(), p=nn.PReLU(36), fc=nn.Linear(36, 2)),
        lambda: seq(
            (5, 5, 3),
            k.Conv2D(4, 3, name="c"),
            k.Rescaling(1.0, offset=-2),
            k.Flatten(),
            k.PReLU(name="p"),
            k.Dense(2, name="fc"),
        ),
        (3, 5, 5),
    ),
    *(
        Case(
            f"a dense layer on the channels of an image{name}",
            lambda: net(
                c=nn.Conv2d(3, 4, 3),
                l=Fn(on_channels),
                a=nn.Linear(4, 5),
                b=Fn(lambda x: x.permute(0, 3, 1, 2)),
                f=nn.Flatten(),
                fc=nn.Linear(30, 2),
            ),
            lambda layer=layer: seq((5, 4, 3), k.Conv2D(4, 3, name="c"), layer(), k.Flatten(), k.Dense(2, name="fc")),
            (3, 5, 4),
        )
        for name, layer in (
            ("", lambda: k.Dense(5, name="a")),
            (", each", lambda: k.TimeDistributed(k.Dense(5), name="a")),
        )
    ),
    rows("columns as steps", (3, 1, 2), 12, k.Permute((2, 1, 3)), k.Reshape((2, 12))),
    Case(
        "branches of a graph",
        lambda: branches(),
        lambda: branches_model(),
        (3, 5, 4),
    ),
)
"""What is refused until `--flatten` says the order of the source, `channels-first` where a case does not say."""


class branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 2, 3), nn.Linear(36, 2)

    def forward(self, x: Any) -> Any:
        return self.fc(torch.cat([self.one(x), self.two(x)], 1).flatten(1))


def branches_model() -> Any:
    x = keras.Input((5, 4, 3))
    both = k.Concatenate()([k.Conv2D(4, 3, name="one")(x), k.Conv2D(2, 3, name="two")(x)])
    return keras.Model(x, k.Dense(2, name="fc")(k.Flatten()(both)))


PERMUTED = (
    through("channels to the front", flat, k.Permute((3, 1, 2)), k.Flatten()),
    through("places, then channels to the front", flat, k.Reshape((9, 4)), k.Permute((2, 1)), k.Flatten()),
    through(
        "to the front and back to the front",
        flat,
        k.Permute((3, 1, 2)),
        k.Permute((2, 3, 1)),
        k.Permute((3, 1, 2)),
        k.Flatten(),
    ),
    through("channels first, reshaped", flat, k.Permute((3, 1, 2)), k.Reshape((4, 9)), k.Reshape((36,))),
    rows("columns as steps, channels before rows", (3, 1, 2), 12, k.Permute((2, 3, 1)), k.Reshape((2, 12))),
    operation("channels to the front by an operation", lambda x: keras.ops.transpose(x, (0, 3, 1, 2))),
    Case(
        "channels that change their places",
        lambda: net(
            c=nn.Conv2d(3, 6, 1),
            s=nn.ChannelShuffle(2),
            d=nn.Conv2d(6, 2, 2),
            f=Fn(on_channels),
        ),
        lambda: seq(
            (5, 4, 3),
            k.Conv2D(6, 1, name="c"),
            k.Reshape((5, 4, 2, 3)),
            k.Permute((1, 2, 4, 3)),
            k.Reshape((5, 4, 6)),
            k.Conv2D(2, 2, name="d"),
        ),
        (3, 5, 4),
    ),
    rows("channels as steps", (1, 2, 3), 6, k.Permute((3, 1, 2)), k.Reshape((4, 6))),
)
"""What is in PyTorch's order in the model, too: filled without `--flatten`."""


MIXED = (
    operation("an operation of axes", lambda x: keras.ops.moveaxis(x, 3, 1)),
    operation("an operation that turns", lambda x: keras.ops.flip(x, 1), lambda x: x.flip(2).flatten(1)),
    operation("axes of which the first two change", lambda x: keras.ops.transpose(x, (0, 2, 1, 3))),
    Case(
        "channels that become places",
        lambda: net(c=nn.Conv2d(3, 8, 1), s=nn.PixelShuffle(2), d=nn.Conv2d(2, 3, 1), f=Fn(on_channels)),
        lambda: seq(
            (5, 4, 3),
            k.Conv2D(8, 1, name="c"),
            k.Reshape((5, 4, 2, 2, 2)),
            k.Permute((1, 3, 2, 4, 5)),
            k.Reshape((10, 8, 2)),
            k.Conv2D(3, 1, name="d"),
        ),
        (3, 5, 4),
    ),
    through("height and width swapped", flat, k.Permute((2, 1, 3)), k.Flatten()),
    through("swapped, and channels to the front", flat, k.Permute((3, 2, 1)), k.Flatten()),
    through("a data format that is not the image's", flat, k.Flatten(data_format="channels_first")),
    through("channels between the others", flat, k.Permute((1, 3, 2)), k.Flatten()),
    through("columns of rows, flattened", flat, k.Permute((2, 1, 3)), k.Reshape((3, 12)), k.Flatten()),
    through("channels cut", flat, k.Permute((3, 1, 2)), k.Reshape((6, 6)), k.Permute((2, 1)), k.Flatten()),
    Case(
        "steps, flattened too",
        lambda: net(c=frames(nn.Conv2d(3, 4, 3)), f=nn.Flatten(), fc=nn.Linear(48, 2)),
        lambda: seq((2, 5, 4, 3), k.TimeDistributed(k.Conv2D(4, 3), name="c"), k.Flatten(), k.Dense(2, name="fc")),
        (2, 3, 5, 4),
        moves=(0, 1, 3, 4, 2),
    ),
)
"""What no `--flatten` says: neither order is the model's."""


REFUSED = (
    (
        Case(
            "a layer scale",
            lambda: net(fc=nn.Linear(4, 3), ls1=LayerScale(3)),
            lambda: seq((4,), k.Dense(3, name="fc")),
            (4,),
        ),
        "'ls1.gamma' of the source has no place",
    ),
    (
        Case(
            "a bias without a place",
            lambda: net(fc=nn.Linear(4, 3)),
            lambda: seq((4,), k.Dense(3, use_bias=False, name="fc")),
            (4,),
        ),
        "'fc.bias' of the source has no place",
    ),
    (
        Case(
            "a gamma without a place",
            lambda: net(fc=nn.Linear(4, 3), n=nn.BatchNorm1d(3)),
            lambda: seq((4,), k.Dense(3, name="fc"), k.BatchNormalization(scale=False, name="n")),
            (4,),
        ),
        "'n.weight' of the source has no place",
    ),
    (
        Case(
            "two norms of equal values, and a third",
            lambda: net(
                **{n: zeroed(nn.LayerNorm(4), "weight", "bias", value={"weight": 1}) for n in ("n", "pre", "post")},
                fc=nn.Linear(4, 3),
            ),
            lambda: seq((4,), k.LayerNormalization(), k.LayerNormalization(), k.Dense(3, name="fc")),
            (4,),
        ),
        ".weight' of the source has no place",
    ),
    (
        Case(
            "a beta without a place",
            lambda: net(fc=nn.Linear(4, 3), n=nn.LayerNorm(3)),
            lambda: seq((4,), k.Dense(3, name="fc"), k.LayerNormalization(center=False, name="n")),
            (4,),
        ),
        "'n.bias' of the source has no place",
    ),
    (
        Case(
            "a norm that the model does not have",
            lambda: net(
                block=net(conv=net(c=nn.Conv2d(3, 4, 3)), norm=net(n=nn.BatchNorm2d(4))), p=Fn(gap), fc=nn.Linear(4, 2)
            ),
            lambda: seq((5, 5, 3), k.Conv2D(4, 3, name="c"), k.GlobalAveragePooling2D(), k.Dense(2, name="fc")),
            (3, 5, 5),
        ),
        "'block.norm.n.running_mean' of the source has no place",
    ),
    *(
        (
            Case(
                f"a neutral {layer(4).__class__.__name__} that the model does not have",
                lambda layer=layer: net(
                    c=nn.Conv2d(3, 4, 3),
                    n=zeroed(layer(4), *dict(layer(4).named_parameters()), value={"weight": 1}),
                    p=Fn(gap),
                    fc=nn.Linear(4, 2),
                ),
                lambda: seq((5, 5, 3), k.Conv2D(4, 3, name="c"), k.GlobalAveragePooling2D(), k.Dense(2, name="fc")),
                (3, 5, 5),
            ),
            "'n.weight' of the source has no place",
        )
        for layer in (
            lambda n: nn.LayerNorm(3),
            lambda n: nn.RMSNorm(3),
            lambda n: nn.GroupNorm(2, n),
            lambda n: nn.InstanceNorm2d(n, affine=True),
        )
    ),
    *(
        (
            Case(
                f"a trained {name}",
                lambda: net(fc=nn.Linear(4, 3)),
                lambda: seq((4,), k.Dense(3, name="fc")),
                (4,),
                {"extra": {name: torch.tensor([0.3, 0.1, 0.2])}},
            ),
            f"'{name}' of the source has no place",
        )
        for name in ("position_ids", "token_type_ids", "inv_freq", "masked_bias", "relative_position_index")
    ),
    (
        Case(
            "weight norm",
            lambda: net(c=parametrizations.weight_norm(nn.Conv1d(3, 4, 2)), d=nn.Conv1d(4, 4, 2)),
            lambda: seq((6, 3), k.Conv1D(4, 2, name="c"), k.Conv1D(4, 2, name="d")),
            (3, 6),
        ),
        "remove_parametrizations",
    ),
    (
        Case(
            "weight norm of old",
            lambda: net(c=weight_norm(nn.Conv1d(3, 4, 2)), d=nn.Conv1d(4, 4, 2)),
            lambda: seq((6, 3), k.Conv1D(4, 2, name="c"), k.Conv1D(4, 2, name="d")),
            (3, 6),
        ),
        "remove_weight_norm",
    ),
    (
        Case(
            "pruning",
            lambda: net(fc=prune.l1_unstructured(nn.Linear(4, 3), "weight", 5), d=nn.Linear(3, 2)),
            lambda: seq((4,), k.Dense(3, name="fc"), k.Dense(2, name="d")),
            (4,),
        ),
        "prune.remove",
    ),
    (
        Case(
            "an affine that no library calls so",
            lambda: net(fc=nn.Linear(4, 3), n=Affine()),
            lambda: seq((4,), k.Dense(3, name="fc")),
            (4,),
        ),
        "'n.gain' of the source has no place",
    ),
)
"""(case, what the error or its hint says)"""


class Beside(nn.Module):
    """A flattened image beside other values."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(27, 2)

    def forward(self, x: Any) -> Any:
        return self.fc(torch.cat([self.c(x).flatten(1), gap(x)], 1))


def beside_model() -> Any:
    x = keras.Input((5, 4, 3))
    both = k.Concatenate()([k.Flatten()(k.Conv2D(4, 3, name="c")(x)), k.GlobalAveragePooling2D()(x)])
    return keras.Model(x, k.Dense(2, name="fc")(both))


class Affine(nn.Module):
    """A layer of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: Any) -> Any:
        return x * self.gain
