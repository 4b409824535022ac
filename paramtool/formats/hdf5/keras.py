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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, NamedTuple

from paramtool.errors import Defects, FormatError, PlanError, listed, plural
from paramtool.formats import object_tree, sniff
from paramtool.formats.files import open_source, pread
from paramtool.formats.hdf5 import _keras_layers, keras_rnn
from paramtool.formats.hdf5 import datasets as hdf5
from paramtool.formats.hdf5.keras_config import ATTRIBUTES, SOURCES, VERSION, KerasConfig, decoded
from paramtool.formats.output import Late, OutputFile, Segment, spliced
from paramtool.formats.zip import directory as zip_directory
from paramtool.formats.zip.crc import crc32_joined
from paramtool.formats.zip.directory import Member, crc_places
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint, Entry, Module, Unknown
from paramtool.model.objects import EMPTY, TensorRef
from paramtool.model.plan import Target
from paramtool.model.storage import ByteRange, Encoded, SourceFile

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
        format=place.format
        or (
            "keras hdf5"
            if VERSION in said
            or any(name.startswith(("layers/", "_layer_checkpoint_dependencies/", "vars/")) for name in names)
            else "hdf5"
        ),
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


# --- Keras files, and other HDF5 files, with the values of some datasets replaced and every other byte as it was -----
#
# A dataset that is stored as one run of bytes is replaced in place.  In a `.keras` zip the CRC of the weights follows.


def described(model: Checkpoint) -> object:
    """What a model computes, by its configuration; empty where it has none of a known form."""
    with suppress(*_keras_layers.DAMAGED):
        return _keras_layers.described(KerasConfig.of(model.metadata).model)
    return {}


def lay_out(model: Checkpoint, targets: Mapping[str, Target]) -> tuple[OutputFile, ...]:
    """The model with the targets in place of its own tensors; PlanError for datasets that are not one run of bytes."""
    (source,) = model.files
    views, fills, refused = model.views(), {}, []
    for name, target in targets.items():
        backing = model.storages[int(views[name].storage)].backing
        if isinstance(backing, ByteRange):
            fills[backing.start, backing.stop] = target
        else:
            is_chunked = isinstance(backing, Encoded) and backing.steps[0].startswith(hdf5.STEP)
            is_big = isinstance(backing, Encoded) and not is_chunked
            how = "in chunks" if is_chunked else "big-endian" if is_big else "inside its header"
            refused.append(f"{name!r} is stored {how}")
    if refused:
        head = f"{source.path}: {plural(len(refused), 'dataset is', 'datasets are')} not replaced in place:"
        raise PlanError(
            listed(head, refused), hint="save the model again with Keras, or `h5repack -l CONTI -f NONE IN OUT`"
        )
    file, _ = open_source(source.path)
    with file:
        if not sniff.is_zip(file.read(4)):
            return (OutputFile("", spliced(ByteRange(source.path, 0, source.nbytes), fills)),)
        members = {member.name: member for member in zip_directory.read_directory(file, source.path)}
        member = members[WEIGHTS]
        inner = spliced(ByteRange(source.path, member.byte_start, member.byte_start + member.nbytes), fills)
        parts = [part for part in inner if isinstance(part, (Target, ByteRange))]
        return (OutputFile("", replaced(file, source.path, source.nbytes, member, inner=parts)),)


def differences(path: str, written: Checkpoint, names: Mapping[str, str]) -> Iterator[str]:
    """What h5py reads otherwise than the program: {name: digest of its elements, row by row}."""
    (source,) = written.files
    file, _ = open_source(path)
    with file:
        place = ByteRange(path, 0, source.nbytes)
        if sniff.is_zip(file.read(4)):
            (member,) = (one for one in zip_directory.read_directory(file, path) if one.name == WEIGHTS)
            place = ByteRange(path, member.byte_start, member.byte_start + member.nbytes)
        nbytes = sum(view.nbytes for name, view in written.views().items() if name in names)
        found = hdf5.digests(file, place, tuple(names), nbytes)
    yield from (f"{name!r}: h5py reads other values" for name in names if found.get(name) != names[name])


# --- An archive with one stored member replaced by another of the same length, and everything else byte for byte -----


CRC_NBYTES = 4


def replaced(
    file: BinaryIO, where: str, nbytes: int, member: Member, *, inner: Sequence[bytes | Target | ByteRange]
) -> tuple[Segment, ...]:
    """The segments of an archive of `nbytes` bytes in which `member` is `inner`.

    `inner` holds targets and ranges, as long as the member together.  Its CRC is put wherever the archive states the
    old one.  FormatError if the two statements of the old one differ.
    """
    places = crc_places(file, where, member.name)
    old = (member.crc32 or 0).to_bytes(CRC_NBYTES, "little")
    for place in places:
        if (found := pread(file.fileno(), CRC_NBYTES, place)) != old:
            raise FormatError(
                f"{where}: {member.name!r}: found CRC {found[::-1].hex()} at byte {place}; the directory has "
                f"{old[::-1].hex()}"
            )
    stop = member.byte_start + member.nbytes
    before = sum(place < member.byte_start for place in places)
    late = Late(
        CRC_NBYTES, partial(_crc, before + 1, tuple(part.nbytes for part in inner if not isinstance(part, bytes)))
    )
    segments: list[Segment] = []
    at = 0
    for place in places:
        if at <= member.byte_start < place:
            segments += [ByteRange(where, at, member.byte_start), *inner]
            at = stop
        segments += [ByteRange(where, at, place), late]
        at = place + CRC_NBYTES
    return (*segments, ByteRange(where, at, nbytes))


def _crc(first: int, lengths: Sequence[int], crcs: Sequence[int]) -> bytes:
    """The CRC of the parts of the member, of which `first` other ranges of the file come before."""
    found = 0
    for nbytes, crc32 in zip(lengths, crcs[first:], strict=False):
        found = crc32_joined(found, crc32, nbytes)
    return found.to_bytes(CRC_NBYTES, "little")
