"""The layers of a Keras file that are not recurrent: which tensor is which part of which layer.

    layers/dense_1/vars/0        Keras 3: the group is called after the class, or the configuration names the class
    fc/fc/kernel:0               Keras 1 and 2, and `.h5` of Keras 3: tensors have names, groups those of the layers

The attribute `name` of a group `vars`, and in `.h5` the group itself, is the name that the user gave the layer.

Source: keras/src/saving/saving_lib.py, `save_own_variables` of keras/src/layers (3.15.1): trainable variables first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from paramtool.formats.hdf5.keras_config import STACK, KerasConfig, Layer, cells_of, class_of, placed, snake_case
from paramtool.model import conventions
from paramtool.model.checkpoint import Entries, LayerPart, Module
from paramtool.model.curves import PLACES, made
from paramtool.model.described import Name
from paramtool.model.images import (
    CHANNEL,
    FIRST,
    LAST,
    PASSING,
    SCRAMBLED,
    STEP,
    Flow,
    Image,
    Signal,
    beside,
    first,
    image,
    moved,
    reshaped,
)
from paramtool.model.view import Shape, View

CLASSES = {
    "Dense": "dense",
    "Embedding": "embedding",
    "BatchNormalization": "batchnorm",
    "LayerNormalization": "layernorm",
    "GroupNormalization": "groupnorm",
    "PReLU": "prelu",
    **{f"Conv{k}D": "conv" for k in (1, 2, 3)},
    **{f"Conv{k}DTranspose": "conv_transposed" for k in (1, 2, 3)},
    **{f"DepthwiseConv{k}D": "depthwise" for k in (1, 2)},
    **{f"SeparableConv{k}D": "separable" for k in (1, 2)},
}
"""{class: its kind in `model.conventions`}."""
GROUPS = {snake_case(name): kind for name, kind in CLASSES.items()}
VARS = re.compile(r"(?P<path>.*?)/?vars/(?P<k>[0-9]+)")
NAMED = re.compile(r"(?P<path>.*)/(?P<own>[^/]+?)(?::0)?")
WEIGHTS = "model_weights"
STATES = ("seed_generator", "seed_generator_state")
FLAGS = {"gamma": "scale", "beta": "center"}
"""{a tensor of a norm: the setting without which it does not have it}."""


def parts(
    entries: Entries, config: KerasConfig, titles: Mapping[str, str], modules: Sequence[Module]
) -> dict[str, LayerPart]:
    """What the file says of each tensor; `titles` are the users' names of groups."""
    found: dict[str, LayerPart] = {}
    by_path = config.by_path()
    recurrent = {name: module.at for module in modules for name in module.tensors.values()}
    groups: dict[tuple[str, bool], dict[str, str]] = {}
    seen = walked(config.model) if config.source else None
    by_name = _by_name(config)
    axes = seen.axes if seen else {}

    def said(part: LayerPart, layer: Layer | None, settings: Mapping[str, object]) -> LayerPart:
        while layer and not layer.path.endswith("/layer") and layer.class_name == "TimeDistributed" and layer.inner:
            layer = layer.inner
        if seen is None or layer is None:
            return replace(part, settings=settings)
        return replace(
            part, images=seen.flow.found.get(layer.path, {}), settings={**settings, **seen.flow.settings(layer.path)}
        )

    for name, entry in entries.items():
        if entry.role not in ("model", "buffer") or not isinstance(entry.value, View):
            continue
        is_vars = (match := VARS.fullmatch(name)) is not None
        match = match or NAMED.fullmatch(name)
        if name in recurrent:
            at = recurrent[name]
            layer = by_path.get(at) if is_vars else by_name.get(_title(at, is_vars, titles, by_path))
            found[name] = said(LayerPart(_title(at, is_vars, titles, by_path)), layer, {})
        elif match is not None:
            groups.setdefault((match["path"], is_vars), {})[match["k" if is_vars else "own"]] = name
    named = Counter(_title(path, is_vars, titles, by_path) for path, is_vars in groups)
    for (path, is_vars), names in groups.items():
        layer = by_path.get(path) if is_vars else by_name.get(path.rpartition("/")[2])
        shapes = [view.shape for name in names.values() if isinstance(view := entries[name].value, View)]
        kind = _kind(path, layer, is_vars=is_vars, is_said=bool(config.source), own=list(names), shapes=shapes)
        if kind == "prelu" and any(prod(shape) != shape[-1] for shape in shapes):
            kind = ""
        own = _own(kind, list(names), layer) if is_vars else {key: key for key in names}
        around = (by_path.get("/".join(path.split("/")[:k])) for k in range(path.count("/") + 1, 0, -1))
        settings = _settings(layer or next(filter(None, around), None), axes)
        rows = conventions.of_kind(kind, "keras") + conventions.of_kind(kind, "tf_keras")
        title = _title(path, is_vars, titles, by_path)
        title = title if named[title] == 1 else f"{title}/{path}"
        for key, name in names.items():
            role = next((row.tensors[own[key]] for row in rows if own.get(key) in row.tensors), None)
            is_state = path.rpartition("/")[2] in STATES or key in STATES
            part = LayerPart(title, kind, *role) if role else LayerPart(title, "", key, is_state=is_state)
            found[name] = said(part, layer, settings)
    return found


UNUSED = re.compile(
    r"(?!hidden_)(trainable|module|registered_name|autocast|\w*dtype\w*|\w*init(ializer)?|\w*_(regularizer|"
    r"constraint)|(batch_)?input_(?!layers)\w+|batch_shape|build_config|momentum|\w*dropout|rate|seed|noise_shape|"
    r"stateful|renorm\w*|virtual_batch_size|fused|synchronized|lora_\w+|quantization_\w+|weights|use_bias|center)"
)
"""Settings of layers on which no output depends in inference, or which the tensors of the layer show."""
INERT = re.compile(rf"{UNUSED.pattern}|name|layers?|bias|scale|data_format|axis")
"""These, and what the names and the shapes of tensors show, or the order of a flattened image."""


def _settings(layer: Layer | None, axes: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, object]:
    """What a layer computes besides its weights; `axes` are those over which norms compute."""
    if layer is None:
        return {}
    found = plain(layer.config)
    if layer.class_name in CLASSES:
        found.pop("activation", None)  # it is a part of the function of its outputs
    return {**found, **axes.get(layer.path, {})}


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a layer on which its outputs depend."""
    return {
        key: plain(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not INERT.fullmatch(str(key))
    }


def described(value: Any) -> Any:
    """A configuration as `model.described` has it: names, and what outputs depend on."""
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        value = value["config"]["keras_history"]
    if isinstance(value, dict):
        own = value.get("config") or {}
        kept = {**value, "config": plain(own) | {"name": own.get("name")}} if class_of(value) in CLASSES else value
        return {
            key: Name(one) if key == "name" and isinstance(one, str) else described(one)
            for key, one in kept.items() if not UNUSED.fullmatch(str(key))
        }  # fmt: skip
    if not isinstance(value, (list, tuple)):
        return value
    is_call = len(value) > 2 and isinstance(value[0], str) and all(type(one) is int for one in value[1:3])
    return [*map(Name, value[:is_call]), *map(described, value[is_call:])]


def _by_name(config: KerasConfig) -> dict[str, Layer]:
    """{the user's name: layer}, of names that are there once."""
    layers = config.by_path().values()
    names = Counter(layer.name for layer in layers)
    return {layer.name: layer for layer in layers if layer.name and names[layer.name] == 1}


def _title(path: str, is_vars: bool, titles: Mapping[str, str], by_path: Mapping[str, Layer]) -> str:
    """The user's name of the layer in a group, with those of the models around it."""
    pieces = path.split("/")
    if not is_vars:
        pieces = pieces[1:] if pieces[0] == WEIGHTS and len(pieces) > 1 else pieces
        return pieces[0] if pieces[-1] == pieces[0] else f"{pieces[0]}/{pieces[-1]}"
    found: list[str] = []
    for k in range(1, len(pieces) + 1):
        at = "/".join(pieces[:k])
        if pieces[k - 1] in ("layers", "layer") or (k > 1 and pieces[k - 2] != "layers" and found):
            continue
        layer = by_path.get(at)
        found.append(titles.get(at) or (layer.name if layer else "") or pieces[k - 1])
    return "/".join(found) or path


def _kind(
    path: str,
    layer: Layer | None,
    *,
    is_vars: bool,
    is_said: bool,
    own: Sequence[str],
    shapes: Sequence[Shape],
) -> str:
    """The kind of the layer in a group; empty if nothing shows it."""
    if layer is not None:
        while layer.class_name == "TimeDistributed" and layer.inner is not None and not is_vars:
            layer = layer.inner
        return CLASSES.get(layer.class_name, "")
    word = re.sub(r"_\d+$", "", path.rpartition("/")[2])
    if is_vars:
        return "" if is_said else GROUPS.get(word, "")
    return next(iter(_kinds(word, set(own), shapes)), "")


def _kinds(word: str, own: set[str], shapes: Sequence[Shape]) -> Iterator[str]:
    """The kind that names of tensors show."""
    if "embeddings" in own:
        yield "embedding"
    if "depthwise_kernel" in own:
        yield "separable" if "pointwise_kernel" in own else "depthwise"
    if "moving_mean" in own:
        yield "batchnorm"
    if own <= {"gamma", "beta"}:
        yield "layernorm"
    if "kernel" in own and own <= {"kernel", "bias"}:
        rank = max(map(len, shapes))
        if rank == 2:
            yield "dense"
        elif GROUPS.get(word) in ("conv", "conv_transposed", "depthwise"):
            yield GROUPS[word]


def _own(kind: str, numbers: Sequence[str], layer: Layer | None) -> dict[str, str]:
    """{number in `vars`: Keras' name of the tensor}; empty if the count shows that there is more to it."""
    if not kind:
        return {}
    (row,) = conventions.of_kind(kind, "keras")
    names = list(row.tensors)
    if layer is not None:
        names = [name for name in names if layer.config.get(FLAGS.get(name, "use_bias"), True) or name == "kernel"]
    elif len(numbers) == 2 and kind == "batchnorm":
        names = names[2:]
    elif names[-1] == "bias" and len(numbers) == len(names) - 1:
        names = names[:-1]
    if sorted(numbers, key=int) != [str(k) for k in range(len(names))]:
        return {}
    return {str(k): name for k, name in enumerate(names)}


# --- Which layers of a Keras model take or give a flattened image, by the graph in its configuration -----------------
#
# Sources: keras/src/models/functional.py (3.15) and keras/engine/functional.py (2.15) for the nodes of a graph;
# keras/src/layers/reshaping/flatten.py: with `channels_first`, `Flatten` puts the first axis last.


CONVOLUTION = re.compile(r"(Separable|Depthwise)?Conv(LSTM)?(olution)?([123])D(Transpose)?")
RECURRENT = ("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU", "RNN", "Bidirectional")
NORMS = ("BatchNormalization", "LayerNormalization", "GroupNormalization")
NO_IMAGE = ("Embedding", "EinsumDense", "MultiHeadAttention", "GroupQueryAttention", "Attention", "AdditiveAttention")
"""Layers whose outputs have their features last in every library."""
ELEMENTWISE = re.compile(
    "(Leaky|Hard|Log)?(Relu6?|[SCG]?elu|Silu|Swish|Mish|Sigmoid|Tanh|Softmax|Softplus|Softsign)|Add|Sub(tract)?|"
    "Mul(tiply)?|(True)?Div(ide)?|Maximum|Minimum|Pow(er)?|Square|R?sqrt|Exp|Log(1p)?|Abs(olute)?|Neg(ative|g)?|Clip|"
    "Cast|Concatenate|Pad|(Max|Average)Pool|Resize",
    re.IGNORECASE,
)
"""Operations of `keras.ops`, and of TensorFlow in Keras 2, that keep the order of axes."""
DAMAGED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a configuration of another form raises."""
Ref = tuple[str, int]
"""(the name of a layer, which of its calls)"""


def walked(model: Mapping[str, Any]) -> _Walk | None:
    """What the layers take and give; None if the configuration has another form."""
    walk = _Walk()
    try:
        for one in walk.model(model, "", []):
            walk.flow.ends([one.signal])
            if len(one.dims) > 2 and one.makers:
                walk.convolved(one, LAST)
    except DAMAGED:
        return None
    return walk


class _Walk:
    """The layers of a configuration, in the order in which they run."""

    def __init__(self) -> None:
        self.flow = Flow()
        self.axes: dict[str, dict[str, list[int]]] = {}
        """{path of a norm: {`axis`: the axes over which it computes, as places of `Image`, else from the last one}};
        {path of a convolution: {`pads`: as in `conventions.pads`}}."""

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
        y = self.held(item, path, given, shape)
        if not isinstance(config, dict) or isinstance(config.get("layers"), list) or name == "TimeDistributed":
            return y
        signals = [one.signal for one in given] or [Signal(frozenset({""}))]
        if name in CLASSES or name in (*RECURRENT, *NO_IMAGE) or CONVOLUTION.fullmatch(name):
            signal = self.flow.ends(signals, path, CLASSES.get(name, ""))
            if name not in RECURRENT and "LSTM" not in name:
                signal = self.computed(config.get("activation"), {}, [signal], path)
        elif name in ("Dot", "Matmul", "Einsum"):
            signal = Signal()
        elif name == "Rescaling":
            signal = self.flow.computes("mul", [*signals, config["scale"]])
            signal = self.flow.computes("add", [signal, config["offset"]])
        else:
            signal = self.computed(name, config, signals, path)
        return y._replace(signal=signal)

    def computed(self, name: object, config: Mapping[str, Any], given: Sequence[Signal], path: str) -> Signal:
        """What a function makes of values: a word, a class with its settings, or an object that has either."""
        if name == "Activation":
            return self.computed(config.get("activation"), {}, given, path)
        if isinstance(name, dict):
            inside = name.get("config") or {}
            word = inside if isinstance(inside, str) else class_of(name)
            return self.computed(word, inside if isinstance(inside, dict) else {}, given, path)
        word, slope = str(name or "linear").rpartition(".")[2], config.get("negative_slope", config.get("alpha"))
        more = [slope] if slope is not None else [0.2] if word == "leaky_relu" else []
        if word == "ReLU":
            top, low = config.get("max_value"), config.get("threshold")
            word, more = ("clip", [0.0, top]) if top is not None else ("leaky_relu", [slope or 0.0])
            word = "ReLU of its own" if low or (slope and top is not None) else word
        elif word.casefold() == "gelu":
            more = [config.get("approximate") or 0.0]
        if not PASSING.fullmatch(word) and len(given) < 2 and len(made(word, PLACES, *more)) < 2:
            facts = [f"{key}={value}" for key, value in sorted(plain(config).items())]
            return Signal(given[0].makers | {path}, (" ".join([str(name), *facts]),))
        return self.flow.computes(word, [*given, *more])

    def held(self, item: Mapping[str, Any], path: str, given: Sequence[Image], shape: Sequence[int | None]) -> Image:
        """What is known of what a layer makes, as in `layer`."""
        name, config = class_of(item), item["config"]
        order = FIRST if isinstance(config, dict) and config.get("data_format") == "channels_first" else LAST
        x = first(given) if name == "Concatenate" else self.flow.merged(given)
        if not given:
            given_image = image(shape[-1] or 0, LAST, len(shape) - 1) if len(shape) > 2 else Image(makers=("",))
            x = given_image._replace(is_input=len(shape) > 2)
        if not isinstance(config, dict) or isinstance(config.get("layers"), list):
            return first(self.model(item, f"{path}/", given or [x]))
        if name == "TimeDistributed":
            inner = x._replace(dims=x.dims[1:], unseen=x.unseen or "TimeDistributed" * bool(x.makers))
            y = self.layer(config["layer"], f"{path}/layer", [inner], [*shape[:1], *shape[2:]])
            step = x.dims[0] if class_of(config["layer"]) == "Dense" and y.dims else (0, STEP)
            return y._replace(dims=(step, *y.dims)) if y.dims else y
        if kind := CONVOLUTION.fullmatch(name):
            self.convolved(x, order, path)
            sizes = shape[2:] if order == FIRST else shape[1:-1]
            pads = conventions.pads(config, sizes, bool(kind[5]))
            self.axes[path] = {"pads": pads} if pads else {}
            channels = config.get("filters") or x.channels * int(config.get("depth_multiplier", 1))
            y = image(int(channels), order, int(kind[4]) + 1)
            return y._replace(dims=((0, STEP), *y.dims)) if config.get("return_sequences") else y
        if name in RECURRENT:
            cell = config.get("cell")
            if isinstance(cell, dict) and class_of(cell) == STACK:
                path = next((one.path for one in cells_of(cell, f"{path}/cell")), path)
            self.flow.takes(path, x)
            return Image(makers=(path,), unseen="steps" * bool(config.get("return_sequences")))
        if name == "Dense":
            return self.flow.dense(path, x, int(config.get("units", 0)))
        if name in (*NORMS, "PReLU"):
            axes = config.get("axis")
            many = len(axes) if isinstance(axes, list) else 1  # the last ones
            self.flow.takes(path, x._replace(joined=max(x.joined, many)), "out")
            self.normed(path, x, axes if isinstance(axes, list) else [-1 if axes is None else axes], len(shape))
            return x._replace(makers=(*x.makers, path)) if x.makers and not x.dims else x
        if name in NO_IMAGE:
            return Image(makers=(path,), unseen="" if name == "EinsumDense" or shape[1:] == [1] else "steps")
        if name.startswith("Global"):
            return Image(makers=("",))
        if name == "Concatenate":
            axis = int(config.get("axis", -1))
            is_channels = axis == (1 if x.order == FIRST else -1) or (x.order == LAST and axis == len(shape) - 1)
            return beside(given) if is_channels or x.joined > 1 else x
        if name == "Permute":
            return moved(x, [0, *config["dims"]])
        if name == "Transpose" and config.get("axes"):
            return moved(x, config["axes"])
        target = config.get("target_shape") or config.get("newshape", ())[1:]
        if name in ("Flatten", "Reshape") and x.makers:
            return reshaped(x, target)
        if name == "Flatten" and order == FIRST and len(x.dims) > x.joined:
            x = moved(x, [0, *range(2, len(x.dims) - x.joined + 2), 1])
        if name in ("Flatten", "Reshape") and x.channels:
            return _reshaped(x, target, shape[1:])
        called = str(config.get("function") if name.endswith("OpLambda") else name).rpartition(".")[2]
        is_operation = called != name or ".ops." in str(item.get("module"))
        if name == "Lambda" or ">" in name or (is_operation and not ELEMENTWISE.fullmatch(called)):
            what = f"{name} {config.get('name', '')!r:.200}"
            return x._replace(dims=SCRAMBLED, joined=1, unseen=what)
        return x

    def normed(self, path: str, x: Image, axes: Sequence[int], rank: int) -> None:
        """A norm computes over some axes of a value, of which the first is the batch."""
        if x.dims and x.joined == 1:
            self.axes[path] = {"axis": [x.dims[k - (k > 0)][1] for k in axes]}
        else:
            word = "axis" if rank or max(axes) < 0 else "axis of all"
            self.axes[path] = {word: [k - rank * (k > 0) for k in axes]}

    def convolved(self, x: Image, order: str, path: str = "") -> None:
        """A convolution takes a value whose channels are first or last."""
        if x.dims:
            at = 0 if order == FIRST else -1
            unseen = x.unseen or "a size that is not said" * bool(x.makers and x.dims[at][0] <= 0)
            self.flow.is_convolved(path, x._replace(unseen=unseen), x.dims[at][0], at)


def _reshaped(x: Image, target: Sequence[int], shape: Sequence[int | None]) -> Image:
    """An image in another shape, both without the batch; elements keep their order."""
    rank, order = len(target), x._replace(joined=1).order
    if rank < 2:
        return x._replace(joined=max(1, len(x.dims)))
    is_flat = order == LAST and target[-1] != x.channels
    if (order == FIRST and target[0] == x.channels) or (
        order == LAST and (target[-1] < 0 or target[-1] % x.channels == 0)
    ):
        return x._replace(dims=image(0, order, rank + is_flat).dims, joined=1 + is_flat)
    old = [one or 0 for one in shape or [size for size, _ in x.dims]]
    before = [*target[: len(x.dims) - 1]]
    if x.joined == 1 and rank > len(x.dims) and order == LAST and before == old[:-1] and prod(target) == prod(old):
        split = tuple((size, CHANNEL) for size in target[len(before) :])
        return x._replace(dims=(*x.dims[:-1], *split))
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
