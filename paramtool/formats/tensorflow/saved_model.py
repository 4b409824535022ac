"""The layers that a SavedModel describes, as a configuration of Keras.

    keras_metadata.pb     from TensorFlow 2.5 on: the objects of Keras, each with its JSON
    saved_model.pb        up to 2.4: the same JSON in the graph of its objects, after the graph of its operations

The object of a model built of layers has the configuration of all of them; of other models each layer has its own.

Source: tf_keras/protobuf/saved_metadata.proto, tf_keras/src/saving/legacy/saved_model/{save,load}.py;
tensorflow/core/protobuf/{saved_model,meta_graph,saved_object_graph}.proto.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from paramtool.errors import FormatError
from paramtool.formats import strict_json
from paramtool.formats.files import Contents, open_source
from paramtool.formats.hdf5.keras_config import VERSION, KerasConfig, marshalled
from paramtool.formats.protobuf import Message, Reader
from paramtool.formats.tensorflow import _proto
from paramtool.model.checkpoint import Unknown

METADATA, MODEL = "keras_metadata.pb", "saved_model.pb"
MAX_TEXT_NBYTES = 64 << 20
"""The most JSON of all objects together that is read."""
CELLS = ("Cell", "Cells")
"""The ends of the names of classes that are no layers: their layers name them."""
USUAL = "2"
"""The version of Keras, as far as it matters, where a SavedModel does not say it: Keras 1 and 3 write none."""


def keras_config(folder: str) -> tuple[KerasConfig, str]:
    """What a SavedModel says of its layers, and the version of TensorFlow; a note if it cannot be read."""
    config, version = KerasConfig(), ""
    notes: list[str] = []
    for name in (METADATA, MODEL):
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        try:
            texts, version = _texts(path)
            held = config if config.layers else _read(texts, name)
            config = replace(held, unknown=(*config.unknown, *code(texts, name)))
        except FormatError as error:
            notes.append(f"its layers are not known: {error.message}")
    return replace(config, notes=(*config.notes, *notes)), version


def scanned(path: str) -> Iterator[Unknown]:
    """The code in a file of a SavedModel that Keras would run; FormatError if it is damaged."""
    name = os.path.basename(path)
    yield from code(_texts(path)[0], name) if name in (METADATA, MODEL) else ()


def code(texts: Iterable[str], source: str) -> Iterator[Unknown]:
    """What Keras would unmarshal and run, in the JSON of several objects."""
    yield from dict.fromkeys(one for text in texts for one in marshalled({source: text}))


def _texts(path: str) -> tuple[list[str], str]:
    """The JSON of Keras' objects in a file of a SavedModel, and the version of TensorFlow that it says."""
    file, source = open_source(path)
    with file:
        reader = Reader(Contents(file, source.nbytes), path, "a file of a SavedModel")
        if os.path.basename(path) == METADATA:
            return [*_of_metadata(reader)], ""
        said = (one for graph in _graphs(reader) for one in reader.messages(graph, "meta_info_def", _proto.META_INFO))
        return [*_of_model(reader)], reader.text(next(said, {}), "tensorflow_version")


def _of_metadata(reader: Reader) -> Iterator[str]:
    """The JSON of each object in keras_metadata.pb."""
    for node in reader.messages(reader.whole(_proto.KERAS_METADATA), "nodes", _proto.KERAS_NODE):
        yield from reader.texts(node, "metadata")


def _of_model(reader: Reader) -> Iterator[str]:
    """The JSON of each object in saved_model.pb."""
    for graph in _graphs(reader):
        objects = reader.inner(graph, "object_graph_def", _proto.OBJECT_GRAPH)
        for node in reader.messages(objects, "nodes", _proto.SAVED_OBJECT):
            user = reader.inner(node, "user_object", _proto.USER_OBJECT)
            if reader.text(user, "identifier").startswith("_tf_keras_"):
                yield from reader.texts(user, "metadata")


def _graphs(reader: Reader) -> Iterator[Message]:
    return reader.messages(reader.whole(_proto.SAVED_MODEL), "meta_graphs", _proto.META_GRAPH)


def _read(texts: list[str], source: str) -> KerasConfig:
    """The configuration in the JSON of several objects."""
    objects: list[dict[str, Any]] = []
    left = MAX_TEXT_NBYTES
    for text in texts:
        left -= len(text)
        if left < 0:
            return KerasConfig(notes=(f"its layers are not known: {source} has too much JSON",))
        try:
            found = strict_json.strict(text)
        except ValueError:
            continue
        if isinstance(found, dict) and isinstance(found.get("config"), dict) and "class_name" in found:
            objects.append(found)
    model = next((one for one in objects if isinstance(one["config"].get("layers"), list)), None)
    if model is None:
        layers = [one for one in objects if not str(one["class_name"]).endswith(CELLS)]
        model = {"class_name": "Sequential", "config": {"layers": [*_unwrapped(layers)]}} if layers else None
    if model is None:
        return KerasConfig()
    version = next((one[VERSION] for one in objects if isinstance(one.get(VERSION), str)), USUAL)
    held = KerasConfig.of({"model_config": json.dumps(model), VERSION: version})
    return replace(held, source=source)


def _unwrapped(layers: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The layers without those that a wrapper among them describes as well."""
    inside = [one["config"][key].get("config", {}).get("name") for one in layers for key in ("layer", "backward_layer")
              if isinstance(one["config"].get(key), dict)]  # fmt: skip
    both = {f"{side}_{name}" for name in inside for side in ("forward", "backward")} | set(inside)
    yield from (one for one in layers if one["config"].get("name") not in both)
