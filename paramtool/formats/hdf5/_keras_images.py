"""Which layers of a Keras model take or give a flattened image, by the graph in its configuration.

Sources: keras/src/models/functional.py (3.15) and keras/engine/functional.py (2.15) for the nodes of a graph;
keras/src/layers/reshaping/flatten.py: with `channels_first`, `Flatten` puts the first axis last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from paramtool.formats.hdf5.keras_config import STACK, cells_of, class_of, placed
from paramtool.model.images import FIRST, LAST, NOTHING, SCRAMBLED, STEP, Flow, Image, beside, first, image, moved

CONVOLUTION = re.compile(r"(Separable|Depthwise)?Conv(LSTM)?(olution)?([123])D(Transpose)?")
RECURRENT = ("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU", "RNN", "Bidirectional")
NORMS = ("BatchNormalization", "LayerNormalization", "GroupNormalization")
NO_IMAGE = ("Embedding", "EinsumDense", "MultiHeadAttention", "GroupQueryAttention", "Attention", "AdditiveAttention")
"""Layers whose outputs have their features last in every library."""
Ref = tuple[str, int]
"""(the name of a layer, which of its calls)"""


def images(model: Mapping[str, Any]) -> dict[str, dict[str, Image]] | None:
    """{path of a layer: the images that are flattened along its axes}; None if the configuration has another form."""
    walk = _Walk()
    try:
        for one in walk.model(model, "", []):
            if len(one.dims) > 2 and one.makers:
                walk.convolved(one, LAST)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None
    return walk.flow.found


class _Walk:
    """The layers of a configuration, in the order in which they run."""

    def __init__(self) -> None:
        self.flow = Flow()

    def model(self, item: Mapping[str, Any], path: str, given: Sequence[Image]) -> list[Image]:
        """What a model makes of its inputs; of the whole one they are not given."""
        config = item["config"]
        layers = list(placed(config["layers"] if isinstance(config, dict) else config, f"{path}layers/"))
        if not isinstance(config, dict) or "output_layers" not in config:
            value = first(given)
            for k, (inside, at) in enumerate(layers):
                value = self.layer(inside, at, [value] if k or given else [], _shape(inside))
            return [value]
        made: dict[Ref, Image] = {
            ref: one for (ref, _), one in zip(_refs(config["input_layers"]), given, strict=bool(given))
        }
        waiting = [
            (inside, at, (str(inside.get("name") or inside["config"]["name"]), k), list(_refs(node)))
            for inside, at in layers
            for k, node in enumerate(inside.get("inbound_nodes") or [[]])
        ]
        while waiting:
            left = []
            for inside, at, ref, refs in waiting:
                if not all(one in made for one, _ in refs):
                    left.append((inside, at, ref, refs))
                elif ref not in made:
                    shape = next((shape for _, shape in refs if shape), _shape(inside))
                    made[ref] = self.layer(inside, at, [made[one] for one, _ in refs], shape)
            if len(left) == len(waiting):
                raise ValueError("layers take what none makes")
            waiting = left
        return [made[ref] for ref, _ in _refs(config["output_layers"])]

    def layer(self, item: Mapping[str, Any], path: str, given: Sequence[Image], shape: Sequence[int | None]) -> Image:
        """What a layer makes of its inputs, of which the first has this shape; empty if that is not known."""
        name, config = class_of(item), item["config"]
        order = FIRST if isinstance(config, dict) and config.get("data_format") == "channels_first" else LAST
        x = first(given)
        if not given and len(shape) > 3:
            x = image(shape[-1] or 0, LAST, len(shape) - 1)
        if not isinstance(config, dict) or isinstance(config.get("layers"), list):
            return first(self.model(item, f"{path}/", given or [x]))
        if name == "TimeDistributed":
            inner = x._replace(dims=x.dims[1:], is_sure=x.is_sure and not x.makers)
            y = self.layer(config["layer"], f"{path}/layer", [inner], [*shape[:1], *shape[2:]])
            return y._replace(dims=((0, STEP), *y.dims)) if y.dims else y
        if kind := CONVOLUTION.fullmatch(name):
            self.convolved(x, order)
            channels = config.get("filters") or x.channels * int(config.get("depth_multiplier", 1))
            y = image(int(channels), order, int(kind[4]) + 1)
            return y._replace(dims=((0, STEP), *y.dims)) if config.get("return_sequences") else y
        if name in RECURRENT:
            cell = config.get("cell")
            if isinstance(cell, dict) and class_of(cell) == STACK:
                path = next((one.path for one in cells_of(cell, f"{path}/cell")), path)
            self.flow.takes(path, x)
            return NOTHING
        if name == "Dense":
            self.flow.takes(path, x)
            return Image(makers=(path,))
        if name in NORMS:
            self.flow.takes(path, x, "out")
            return x._replace(makers=(*x.makers, path)) if x.makers and not x.dims else x
        if name.startswith("Global") or name in NO_IMAGE:
            return NOTHING
        if name == "Concatenate":
            axis = int(config.get("axis", -1))
            is_channels = axis == (1 if x.order == FIRST else -1) or (x.order == LAST and axis == len(shape) - 1)
            return beside(given) if is_channels or x.joined > 1 else x
        if name == "Permute":
            return moved(x, [0, *config["dims"]])
        if name in ("Flatten", "Reshape") and x.makers:
            dims = tuple((size, k) for k, size in enumerate(config.get("target_shape", ())))
            is_sure = x.is_sure and [*x.dims] == sorted(x.dims, key=lambda one: one[1])
            return Image(makers=x.makers, dims=dims, is_sure=is_sure)
        if name == "Flatten":
            if order == FIRST and len(x.dims) > x.joined:
                x = moved(x, [0, *range(2, len(x.dims) - x.joined + 2), 1])
            return x._replace(joined=max(1, len(x.dims)))
        if name == "Reshape" and x.channels:
            return _reshaped(x, config["target_shape"], shape[1:])
        if name == "Lambda" or ">" in name or "." in name:
            return x._replace(is_sure=False)
        return x

    def convolved(self, x: Image, order: str) -> None:
        """A convolution takes a value whose channels are first or last."""
        if x.dims and x.makers:
            at = 0 if order == FIRST else -1
            self.flow.is_convolved(x._replace(is_sure=x.is_sure and x.dims[at][0] > 0), x.dims[at][0], at)


def _reshaped(x: Image, target: Sequence[int], shape: Sequence[int | None]) -> Image:
    """An image in another shape, both without the batch; elements keep their order."""
    rank, order = len(target), x._replace(joined=1).order
    if rank == 1:
        return x._replace(joined=len(x.dims))
    if order == FIRST and target[0] == x.channels:
        return image(x.channels, FIRST, rank)._replace(is_sure=x.is_sure)
    if order == LAST and (target[-1] < 0 or target[-1] % x.channels == 0):
        is_flat = target[-1] != x.channels
        return image(x.channels, LAST, rank + is_flat)._replace(is_sure=x.is_sure, joined=1 + is_flat)
    old = [one or 0 for one in shape or [size for size, _ in x.dims]]
    old = [*old[: rank - 1], prod(old[rank - 1 :])]
    if x.joined > 1 or len(x.dims) < rank or any(a != b and a > 0 and b for a, b in zip(target, old, strict=True)):
        return x._replace(dims=SCRAMBLED)
    return x._replace(joined=len(x.dims) - rank + 1)


def _shape(item: Mapping[str, Any]) -> Sequence[int | None]:
    """The shape of the input of a layer, as its configuration has it; empty if it does not."""
    config, built = item.get("config"), item.get("build_config") or {}
    config = config if isinstance(config, dict) else {}
    found = config.get("batch_shape") or config.get("batch_input_shape") or built.get("input_shape")
    return found if isinstance(found, list) and not any(isinstance(one, list) for one in found) else ()


def _refs(node: Any) -> Iterator[tuple[Ref, Sequence[int | None]]]:
    """(call of a layer, shape) of the tensors in a node: those of Keras 3, and lists `[name, call, output, ...]`."""
    if isinstance(node, dict):
        if node.get("class_name") == "__keras_tensor__":
            name, k, _ = node["config"]["keras_history"]
            yield (name, k), node["config"].get("shape", ())
            return
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        if len(node) > 2 and isinstance(node[0], str) and all(type(one) is int for one in node[1:3]):
            yield (node[0], node[1]), ()
            node = node[3:]
        for one in node:
            yield from _refs(one)
