"""Keras' files, all of which are HDF5: `.h5`, `.weights.h5`, and `.keras`, a zip with `model.weights.h5` in it.

    Keras 1, 2, tf.keras   `LAYER/LAYER/kernel:0`; the attributes `layer_names` and `weight_names` have the order
    a whole model          the same below `model_weights`, beside `optimizer_weights`
    Keras 3                `layers/lstm/cell/vars/0`: named after classes, and numbered

Names are the paths of the datasets; two hard links to one dataset are one alias set.  The configuration of recurrent
layers is kept (`keras_rnn.py`).  Other HDF5 files are read in the same way.

Source: keras 3.15, keras/src/saving/saving_lib.py and keras/src/legacy/saving/legacy_h5_format.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from paramtool.errors import Defects, FormatError, plural
from paramtool.formats import object_tree, sniff
from paramtool.formats.files import open_source
from paramtool.formats.hdf5 import _keras_layers, keras_rnn
from paramtool.formats.hdf5 import datasets as hdf5
from paramtool.formats.hdf5.keras_config import ATTRIBUTES, SOURCES, VERSION, KerasConfig, decoded
from paramtool.formats.zip import directory as zip_directory
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint, Entry, Module, Unknown
from paramtool.model.objects import EMPTY, TensorRef
from paramtool.model.storage import ByteRange, SourceFile

NAME = "keras"
WEIGHTS = "model.weights.h5"
LAYERS, WEIGHT_NAMES = "layer_names", "weight_names"
"""Attributes of groups that list what is in them, in order."""
TITLE = "name"
"""The attribute of a group `vars` with the name that the user gave the layer."""
OPTIMIZER, OPTIMIZER_NAME = ("optimizer", "optimizer/inner_optimizer"), "optimizer_name"
"""The groups of an optimizer and of that in it, and the metadata with their names: without a configuration, nothing
else says their classes."""
MAX_TEXT_NBYTES = 256 << 20


def read(path: str) -> Checkpoint:
    """Describe a Keras file, or any HDF5 file; FormatError, Defects or UnsafeError if that is not possible."""
    file, source = open_source(path)
    with file:
        place = _place(file, source)
        held = hdf5.read(file, place.range, (*ATTRIBUTES, LAYERS, WEIGHT_NAMES, TITLE))
    datasets = hdf5.Datasets(held, place.range)
    said = {**hdf5.texts(held, ATTRIBUTES), **place.texts}
    config = KerasConfig.of(said)
    order = _RankedNames(config.ranks())
    datasets.walk(held.root, order)
    names = order.names(path, datasets.found)
    texts_too = dict.fromkeys(name for name in names if datasets.found[name].is_string)
    values = {n: datasets.value(n, datasets.found[n]) for n in names if n not in texts_too}
    datasets.check_apart()
    entries = object_tree.with_roles({name: Entry(value) for name, value in values.items()}, EMPTY)
    sections = object_tree.groups(entries)
    tree = EMPTY
    if sections:
        below = ((one.prefix, [name for name in entries if name.startswith(one.prefix)]) for one in sections)
        groups = ((at, tuple((name.removeprefix(at), TensorRef(name)) for name in names)) for at, names in below)
        tree = objects.Mapping("dict", tuple((at[:-1], objects.Mapping("dict", pairs)) for at, pairs in groups))
    modules, notes = keras_rnn.modules(entries, config)
    if (called := [order.titles[at] for at in OPTIMIZER if at in order.titles]) and not config.source:
        said[OPTIMIZER_NAME] = "/".join(called)
    return Checkpoint(
        format=place.format or ("keras hdf5" if VERSION in said or _is_keras(names) else "hdf5"),
        files=(source,),
        storages=datasets.storages,
        entries=entries,
        objects=object_tree.complete(tree, tuple(entries)) if sections else EMPTY,
        sections=sections,
        metadata=said,
        producer=f"keras {config.version}" if config.version else "",
        left_out=tuple(f"{name!r:.200} holds strings and was left out" for name in texts_too),
        notes=(*config.notes, *notes, *place.notes),
        unknown=(*config.unknown, *place.unknown),
        modules=(*modules, *elmo_modules(entries)),
        parts=_keras_layers.parts(entries, config, order.titles, modules),
        sealed=(place.range,) if place.range.crc32 is not None else (),
    )


class _LayerPlace(NamedTuple):
    """The range of an HDF5 file, and the metadata next to it."""

    range: ByteRange
    texts: Mapping[str, str]
    format: str = ""
    unknown: tuple[Unknown, ...] = ()
    """Unknown names in the other members of the zip."""
    notes: tuple[str, ...] = ()


def _place(file: BinaryIO, source: SourceFile) -> _LayerPlace:
    """The whole file, or the member of a zip that holds the weights."""
    where = source.path
    if not sniff.is_zip(file.read(4)):
        return _LayerPlace(ByteRange(where, 0, source.nbytes), {})
    members = {member.name: member for member in zip_directory.read_directory(file, where)}
    member = members.get(WEIGHTS)
    if member is None:
        raise FormatError(f"{where}: is a zip archive without {WEIGHTS}, so Keras did not write it")
    if member.method != zip_directory.STORED:
        hint = f"unzip it and read {WEIGHTS} itself"
        raise FormatError(f"{where}: {WEIGHTS} is compressed; Keras stores it as it is", hint)
    texts = {}
    for name in (SOURCES[0], "metadata.json"):
        if name in members:
            data = zip_directory.read_member(file, members[name], where, MAX_TEXT_NBYTES)
            texts[name] = decoded(data)
    start = member.byte_start
    held = ByteRange(where, start, start + member.nbytes, member.crc32)
    read = (WEIGHTS, *(name for name, text in texts.items() if text.startswith("{")))
    if not (others := [one for name, one in members.items() if name not in read]):
        return _LayerPlace(held, texts, "keras zip")
    from paramtool.formats import scan

    scanned = scan.scan_members(file, source, others)
    note = f"{plural(len(others), 'other member')} of the archive, not scanned to the end for pickles"
    return _LayerPlace(held, texts, "keras zip", scanned.unknown, () if scanned.ended else (note,))


def _is_keras(names: Sequence[str]) -> bool:
    """Whether names are those of Keras 3, whose weights-only files have no other mark."""
    return any(name.startswith(("layers/", "_layer_checkpoint_dependencies/", "vars/")) for name in names)


@dataclass
class _RankedNames:
    """The order of names in groups: by the groups' attributes, by the configuration, by their numbers."""

    ranks: Mapping[str, int]
    listed: list[str] = field(default_factory=list)
    """Datasets in the order of `weight_names`."""
    missing: list[str] = field(default_factory=list)
    titles: dict[str, str] = field(default_factory=dict)
    """{group: the user's name of the layer in it}."""

    def __call__(self, path: str, group: hdf5.Hdf5Group) -> list[str]:
        """The names in a group, in order."""
        base = f"{path}/" if path else ""
        self.listed += [base + name for name in group.strings.get(WEIGHT_NAMES, [])]
        if TITLE in group.strings and path.endswith("/vars"):
            self.titles[path.removesuffix("/vars")] = "".join(group.strings[TITLE])
        names = list(group.links)
        layers = list(dict.fromkeys(group.strings.get(LAYERS, [])))
        known = set(names)
        lost = [name for name in layers if name not in known]
        self.missing += [f"{base + name!r:.200}: listed in layer_names, but not in the file" for name in lost]
        rank = {name: k for k, name in enumerate(layers)}
        last = len(self.ranks) + len(layers)
        return sorted(names, key=lambda name: (rank.get(name, self.ranks.get(base + name, last)), hdf5.natural(name)))

    def names(self, where: str, found: Mapping[str, object]) -> list[str]:
        """Every dataset, the listed ones first; Defects if a listed dataset is missing."""
        lost = [f"{n!r:.200}: listed in weight_names, but not in the file" for n in self.listed if n not in found]
        if self.missing or lost:
            raise Defects(where, [*self.missing, *lost])
        return list(dict.fromkeys([*self.listed, *found]))


# --- ELMo's weights in HDF5: which networks the names of TensorFlow's cells say are there ----------------------------
#
#     RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0, B, W_P_0      the forward stack; RNN_1 is the backward one
#
# The forget bias is 1: AllenNLP, for which such files are made, adds it to what they hold.
#
# Source: allennlp/modules/elmo_lstm.py (load_weights) of AllenNLP 2.10.1.


KERNEL = re.compile(r"(?P<at>RNN_(?P<side>[01]))/RNN/MultiRNNCell/Cell\d+/LSTMCell/W_0")
SIDES = ("forward", "backward")


def elmo_modules(names: Iterable[str]) -> list[Module]:
    """The forward and the backward stack, as far as they are there."""
    found = {match["at"]: SIDES[int(match["side"])] for name in names if (match := KERNEL.fullmatch(name))}
    return [
        Module(at, "tf1.elmo", "lstm", options={"forget_bias": "1.0"}, source=f"the names of ELMo's {side} stack")
        for at, side in sorted(found.items())
    ]
