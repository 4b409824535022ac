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

from paramtool.formats.hdf5._keras_images import images
from paramtool.formats.hdf5.keras_config import KerasConfig, Layer, snake_case
from paramtool.model import conventions
from paramtool.model.checkpoint import Entry, LayerPart, Module
from paramtool.model.images import Image
from paramtool.model.view import View

CLASSES = {
    "Dense": "dense",
    "Embedding": "embedding",
    "BatchNormalization": "batchnorm",
    "LayerNormalization": "layernorm",
    "GroupNormalization": "groupnorm",
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
    entries: Mapping[str, Entry], config: KerasConfig, titles: Mapping[str, str], modules: Sequence[Module]
) -> dict[str, LayerPart]:
    """What the file says of each tensor; `titles` are the users' names of groups."""
    found: dict[str, LayerPart] = {}
    by_path = config.by_path()
    recurrent = {name: module.at for module in modules for name in module.tensors.values()}
    groups: dict[tuple[str, bool], dict[str, str]] = {}
    seen = images(config.model) if config.source else None
    by_name = _by_name(config)

    def of(layer: Layer | None) -> Mapping[str, Image] | None:
        while layer and not layer.path.endswith("/layer") and layer.class_name == "TimeDistributed" and layer.inner:
            layer = layer.inner
        return None if seen is None or layer is None else seen.get(layer.path, {})

    for name, entry in entries.items():
        if entry.role not in ("model", "buffer") or not isinstance(entry.value, View):
            continue
        is_vars = (match := VARS.fullmatch(name)) is not None
        match = match or NAMED.fullmatch(name)
        if name in recurrent:
            at = recurrent[name]
            layer = by_path.get(at) if is_vars else by_name.get(_title(at, is_vars, titles, by_path))
            found[name] = LayerPart(_title(at, is_vars, titles, by_path), images=of(layer))
        elif match is not None:
            groups.setdefault((match["path"], is_vars), {})[match["k" if is_vars else "own"]] = name
    named = Counter(_title(path, is_vars, titles, by_path) for path, is_vars in groups)
    for (path, is_vars), names in groups.items():
        layer = by_path.get(path) if is_vars else by_name.get(path.rpartition("/")[2])
        shapes = [view.shape for name in names.values() if isinstance(view := entries[name].value, View)]
        kind = _kind(path, layer, is_vars=is_vars, is_said=bool(config.source), own=list(names), shapes=shapes)
        own = _own(kind, list(names), layer) if is_vars else {key: key for key in names}
        rows = conventions.of_kind(kind, "keras") + conventions.of_kind(kind, "tf_keras")
        title = _title(path, is_vars, titles, by_path)
        title = title if named[title] == 1 else path
        for key, name in names.items():
            said = next((row.tensors[own[key]] for row in rows if own.get(key) in row.tensors), None)
            is_state = path.rpartition("/")[2] in STATES or key in STATES
            made = LayerPart(title, kind, *said) if said else LayerPart(title, "", key, is_state=is_state)
            found[name] = replace(made, images=of(layer))
    return found


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
    shapes: Sequence[tuple[int, ...]],
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


def _kinds(word: str, own: set[str], shapes: Sequence[tuple[int, ...]]) -> Iterator[str]:
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
