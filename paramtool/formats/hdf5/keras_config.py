"""The layers in the configuration of a Keras file, and their paths in Keras 3.

Keras 3 calls the groups of a file after classes: the second LSTM of a model is `layers/lstm_1`, whatever its name is.

Source: keras/src/saving/saving_lib.py (_save_container_state), keras/src/utils/naming.py (to_snake_case), keras 3.15;
keras/models.py of Keras 1 and 2 for a Sequential whose configuration is a plain list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from paramtool.formats import policy, strict_json
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Unknown

VERSION = "keras_version"
ATTRIBUTES = (VERSION, "backend", "model_config", "training_config")
"""Attributes of the root group that are kept as a file's metadata."""
SOURCES = ("config.json", "model_config")
"""The places of a configuration: a member of a `.keras` zip, an attribute of an `.h5`."""
FORWARD, BACKWARD = "forward_layer", "backward_layer"
STACK = "StackedRNNCells"
OWN = ("keras", "tf_keras", "tensorflow")
"""Packages whose classes are Keras' own."""


@frozen
class Layer:
    """A layer of a configuration."""

    path: str
    """The group that Keras 3 keeps its weights in."""
    class_name: str
    """With its package, where that is not Keras: `my_package>LSTM`, `my_module.LSTM`."""
    config: Mapping[str, Any]
    inner: Layer | None = None
    """What a wrapper wraps: the forward layer of a Bidirectional."""
    backward: Layer | None = None
    """The backward layer of a Bidirectional, where it was given on its own."""
    cells: tuple[Layer, ...] = ()
    """What an RNN runs: one cell, or those of a StackedRNNCells one after another."""

    @property
    def name(self) -> str:
        """The name that the user gave it, which older files use for its group."""
        return str(self.config.get("name", ""))


@frozen
class KerasConfig:
    """The configuration of a model."""

    source: str = ""
    """Its place, one of `SOURCES`; empty if there is none."""
    version: str = ""
    """The version of Keras; empty if unknown."""
    layers: tuple[Layer, ...] = ()
    """Every layer, those in nested models included, in the model's order."""
    notes: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    """Code that Keras would unmarshal and run, and what it would import that runs programs or code."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The configuration itself; empty if there is none."""

    @staticmethod
    def of(texts: Mapping[str, str]) -> KerasConfig:
        """The configuration in the metadata of a file; a note for what cannot be parsed."""
        notes: list[str] = []
        source = next((key for key in SOURCES if key in texts), "")
        version = texts.get(VERSION) or _table(texts.get("metadata.json", "{}"), "metadata.json", notes).get(VERSION)
        model = _table(texts[source], source, notes) if source else {}
        layers = tuple(_layers(model, ""))
        code = tuple(marshalled(texts))
        return KerasConfig(source, version if isinstance(version, str) else "", layers, tuple(notes), code, model)

    def by_path(self) -> dict[str, Layer]:
        """{path: layer}, with what wrappers wrap."""
        found: dict[str, Layer] = {}
        waiting = list(self.layers)
        while waiting:
            layer = waiting.pop()
            found[layer.path] = layer
            waiting += [one for one in (layer.inner, layer.backward) if one is not None]
        return found

    def ranks(self) -> dict[str, int]:
        """{path: place in the model} of every layer, as Keras 3 calls them."""
        return {layer.path: k for k, layer in enumerate(self.layers)}


def _table(text: str, where: str, notes: list[str]) -> dict[str, Any]:
    """A JSON object; empty, with a note, if it is not one."""
    try:
        found = strict_json.strict(text)
    except ValueError as error:
        notes.append(f"{where} is not valid JSON: {error}")
        return {}
    return found if isinstance(found, dict) else {}


def decoded(data: bytes) -> str:
    """JSON as `json.loads` takes bytes, and Keras gives it those: in UTF-8 with or without a mark, UTF-16 or UTF-32."""
    return data.decode(json.detect_encoding(data), "replace")


ASKING = re.compile(r"ambda|odule|TFSM|\\u00[4-7]")
"""What JSON with "lambda", "module", "TorchModuleWrapper" or "TFSMLayer" has, however it is escaped."""
LOADING = {"TorchModuleWrapper": "torch.load", "TFSMLayer": "tensorflow.saved_model.load"}
"""Layers that unpickle a module, or load another model with its functions, when they are made."""
NO_LAYERS = {
    "utils", "saving", "config", "models", "preprocessing", "datasets", "export", "visualization",
    "io", "io_ops", "file_io", "gfile", "script_ops",
}  # fmt: skip
"""Modules of Keras and TensorFlow whose functions are no operations: they download, read, write and load files."""
OPERATIONS = ("normalize", "to_categorical")
"""Those that are."""


def marshalled(texts: Mapping[str, str]) -> Iterator[Unknown]:
    """What a configuration has Keras load and run: marshalled code of Python functions, and dangerous names.

    Keras 3 writes `{"class_name": "__lambda__", ...}` (serialize_keras_object, keras/src/saving/serialization_lib.py),
    Keras 1 and 2 `"function_type": "lambda"` beside `function`, and the like for `mask` and `output_shape`
    (layers/core.py, Lambda.get_config).  A function or class that is only named is imported from its `module` (of Keras
    1 and 2 also `mask_module`, ...): no code, but dangerous where its name is so in a pickle, as `os.system`, and where
    it is a function of Keras' own that loads files, as `keras.utils.get_file` (NON_MODELING_APIS,
    keras/src/saving/serialization_lib.py of 3.15).  What Keras' safe mode refuses to load is dangerous, too.
    JSON is read as Keras does, which is less strict than our own reader.
    """
    for source, text in texts.items():
        if not ASKING.search(text):
            continue
        try:  # as text, an integer may have any number of digits
            waiting: list[tuple[object, str]] = [(json.loads(text, parse_int=str), source)]
        except ValueError:  # Keras cannot read it, either; other attributes are no JSON
            continue
        except RecursionError:  # which depends on the limit of the program
            yield Unknown("marshal.loads", True, f"(perhaps: {source} is nested too deeply to be read)")
            continue
        while waiting:
            value, where = waiting.pop()
            if isinstance(value, dict):
                where = f"{value['name']!r:.200}" if isinstance(value.get("name"), str) else where
                pairs = value.items()
                is_type = (key.endswith("_type") and found == "lambda" and key[:-5] in value for key, found in pairs)
                if value.get("class_name") == "__lambda__" or any(is_type):
                    yield Unknown("marshal.loads", True, f"(the code of {where})")
                if (loaded := LOADING.get(str(value.get("class_name")))) is not None:
                    yield Unknown(loaded, True, f"(what {where} holds)")
                yield from (Unknown(path, True, f"(named by {where})") for path in _imported(value))
                waiting += [(inner, where) for inner in value.values()]
            elif isinstance(value, list):
                waiting += [(inner, where) for inner in value]


def _imported(value: Mapping[str, Any]) -> Iterator[str]:
    """Dangerous names that an object of a configuration has imported.

    >>> list(_imported({"module": "os", "class_name": "function", "config": "system"}))
    ['os.system']
    """
    main = value.get("config" if value.get("class_name") == "function" else "class_name")
    for key in value:
        if key.endswith("module"):
            for name in (main, value.get(key[:-7] or "function")):
                if isinstance(name, str) and (policy.is_dangerous(path := f"{value[key]}.{name}") or _loads(path)):
                    yield path


def _loads(path: str) -> bool:
    """Whether a function of Keras' own is no operation; those that are classes begin with a capital letter."""
    package, *inside, name = path.split(".")
    is_function = not name[:1].isupper() and name not in OPERATIONS
    return is_function and package in OWN and not NO_LAYERS.isdisjoint(inside)


def _layers(model: Mapping[str, Any], path: str) -> Iterator[Layer]:
    """The layers of a model, each before those inside it."""
    config = model.get("config")
    found = config.get("layers") if isinstance(config, dict) else config
    for item, place in placed(found, f"{path}layers/"):
        yield _layer(item, place)
        yield from _layers(item, f"{place}/")


def placed(items: object, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The objects of a list with their paths: after their classes, and numbered from the second of a class."""
    used: dict[str, int] = {}
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            word = snake_case(str(item.get("class_name", "")))
            used[word] = used.get(word, -1) + 1
            yield item, f"{path}{word}{f'_{used[word]}' if used[word] else ''}"


def _layer(item: Mapping[str, Any], path: str) -> Layer:
    config = item.get("config")
    config = config if isinstance(config, dict) else {}
    class_name = class_of(item)
    first = FORWARD if class_name == "Bidirectional" else "layer"
    inner = {key: _layer(config[key], f"{path}/{place}") for key, place in (("layer", first), (FORWARD, FORWARD),
             (BACKWARD, BACKWARD)) if isinstance(config.get(key), dict)}  # fmt: skip
    cells = tuple(cells_of(config["cell"], f"{path}/cell")) if isinstance(config.get("cell"), dict) else ()
    return Layer(path, class_name, config, inner.get("layer") or inner.get(FORWARD), inner.get(BACKWARD), cells)


def cells_of(item: Mapping[str, Any], path: str) -> Iterator[Layer]:
    """A cell, or the cells of a stack."""
    cell = _layer(item, path)
    if cell.class_name != STACK:
        yield cell
        return
    for inside, place in placed(cell.config.get("cells"), f"{path}/cells/"):
        yield from cells_of(inside, place)


def class_of(item: Mapping[str, Any]) -> str:
    """The class of an object; of one that is not Keras' own, as it was registered or with its module."""
    name, module, registered = (str(item.get(key) or "") for key in ("class_name", "module", "registered_name"))
    if ">" in registered:
        return registered
    return f"{module}.{name}" if module and module.partition(".")[0] not in OWN else name


def snake_case(name: str) -> str:
    """A class name as Keras writes it in paths.

    >>> snake_case("LSTM"), snake_case("SimpleRNN"), snake_case("TimeDistributed"), snake_case("Conv1D")
    ('lstm', 'simple_rnn', 'time_distributed', 'conv1d')
    """
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
