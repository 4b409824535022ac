"""Flax's msgpack: what flax wrote, what the msgpack library reads, and what is refused with its place."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import paramtool
from paramtool import formats
from paramtool.errors import Defects, FormatError, UnsafeError
from paramtool.formats import sniff
from paramtool.formats.msgpack import codes, read
from paramtool.model.objects import Leaf, Mapping
from tests.contracts import makers_msgpack as flax
from tests.examples import examples
from tests.laws.sharing import same_values

FIXTURE = Path(__file__).parents[2] / "fixtures" / "msgpack" / "train_state"


def written(folder: Path, data: bytes) -> Path:
    """A file of these bytes."""
    (folder / "x.msgpack").write_bytes(data)
    return folder / "x.msgpack"


def test_the_makers_make_what_flax_makes() -> None:
    """Read and written again by them, flax's own file has the same bytes."""
    data = (FIXTURE / "train_state.msgpack").read_bytes()
    assert flax.saved(flax.restored(data)) == data
    weight = np.arange(100, dtype=np.float32).reshape(20, 5)
    tree = {"params": {"w": flax.chunked(weight, 64), "b": weight[0]}}
    assert flax.saved(tree) == (FIXTURE / "chunked.msgpack").read_bytes()


def test_roles_sections_and_values() -> None:
    """The state of a training, as flax wrote it."""
    found = paramtool.read(FIXTURE / "train_state.msgpack")
    roles = {name: entry.role for name, entry in found.entries.items()}
    assert roles["params/OptimizedLSTMCell_0/hf/kernel"] == "model"
    assert roles["batch_stats/norm/mean"] == "buffer" and roles["opt_state/0/mu/head/bias"] == "optimizer"
    assert [section.name for section in found.sections] == ["params", "batch_stats", "opt_state"]
    assert isinstance(found.objects, Mapping)
    held = dict(found.objects.items)
    assert held["step"] == Leaf(1)
    assert dict(held["config"].items)["phase"] == Leaf(1 + 2j)


@pytest.mark.parametrize("name", ["train_state", "chunked"])
def test_values_are_those_of_the_library(name: str) -> None:
    """Of every array, also in pieces."""
    path = FIXTURE / f"{name}.msgpack"
    assert same_values(flax.load(path), paramtool.load_file(path))


def test_an_array_in_pieces_is_one_storage(tmp_path: Path) -> None:
    """Its headers are skipped; dedup writes it whole, and verify agrees."""
    paramtool.dedup(FIXTURE / "chunked.msgpack", tmp_path / "o.safetensors")
    assert same_values(flax.load(FIXTURE / "chunked.msgpack"), paramtool.load_file(tmp_path / "o.safetensors"))
    assert not paramtool.verify(tmp_path / "o.safetensors", FIXTURE / "chunked.msgpack").differences


@settings(max_examples=examples(60))
@given(st.lists(st.permutations(range(4)), min_size=1, max_size=3), st.sampled_from(["safetensors", "h5"]))
def test_pieces_in_any_order(orders: list[list[int]], suffix: str) -> None:
    """Their numbers say how they follow, not where they are: what flax restores is what any command writes."""
    tree: dict[str, Any] = {}
    for k, order in enumerate(orders):
        made = flax.chunked(np.arange(k, k + 8, dtype=np.float32).reshape(4, 2), 8)
        made["chunks"] = {str(n): made["chunks"][str(n)] for n in order}
        tree |= {f"{k}a": np.full(2, k, np.float32), f"{k}w": made}
    tree["z"] = np.full(3, 9, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        source = written(Path(folder), flax.saved(tree))
        paramtool.convert(source, Path(folder) / f"o.{suffix}")
        assert same_values(flax.load(source), paramtool.load_file(Path(folder) / f"o.{suffix}"))


def test_plain_parameters_have_no_tree(tmp_path: Path) -> None:
    """Names say all there is, so torch gets a state dict."""
    path = written(tmp_path, flax.saved({"params": {"dense": {"kernel": np.ones((2, 3), np.float32)}}}))
    assert paramtool.read(path).sections == () and paramtool.read(path).notes == ()
    paramtool.convert(path, tmp_path / "o.pt")
    assert list(torch.load(tmp_path / "o.pt")) == ["params/dense/kernel"]


ARRAY = flax.packed(np.arange(3, dtype=np.int16))


def pieces(chunks: dict[str, Any]) -> dict[str, Any]:
    """An array of three elements in pieces."""
    return {codes.CHUNKED: True, "shape": {"0": 3}, "chunks": chunks}


BAD: dict[str, tuple[bytes, type[Exception], str]] = {
    "no value": (b"\x81\xa1a\xc1", FormatError, "0xc1"),
    "count": (b"\xdf\xff\xff\xff\xff\xa1a\x01", FormatError, "4294967295 items, but 3 bytes follow"),
    "ext length": (b"\x81\xa1w\xc9\xff\xff\xff\xff\x01\x93", FormatError, "byte 3.*4294967295 bytes, 1 are left"),
    "key of a list": (b"\x82\xa1w" + msgpack.packb(ARRAY) + b"\x91\x01\x02", FormatError, "key of another kind"),
    "twice": (b"\x82\xa1a" + msgpack.packb(ARRAY) + b"\xa1a\x02", FormatError, "'a' is there twice"),
    "two of one name": (
        msgpack.packb({"a/b": ARRAY, "a": {"b": ARRAY}}), Defects, "two arrays are called so"),
    "shape lies": (
        msgpack.packb({"w": msgpack.ExtType(1, msgpack.packb(((4,), "int16", b"123456")))}), FormatError,
        r"int16 \[4\] needs 8 bytes; found 6"),
    "bytes end early": (
        msgpack.packb({"w": msgpack.ExtType(1, msgpack.packb(((3,), "int16", b"123456")) + b"x")}), FormatError,
        "bytes of an array end at"),
    "negative size": (
        msgpack.packb({"w": msgpack.ExtType(1, msgpack.packb(((-1,), "int16", b"")))}), FormatError, "is -1"),
    "deep": (b"\x81\xa1a" * 300 + b"\x01", UnsafeError, "nested more than 200"),
    "behind": (msgpack.packb({"w": ARRAY}) + b"\x00", FormatError, "1 bytes follow the tree"),
    "pieces": (msgpack.packb({"w": {codes.CHUNKED: True, "shape": {"0": 9}, "chunks": {"0": ARRAY}}}), FormatError,
               "pieces have 6 bytes"),
    "pieces unnumbered": (msgpack.packb({"w": {codes.CHUNKED: True, "shape": {"x": 9}, "chunks": {}}}), FormatError,
                          "no numbered shape"),
    "pieces in a piece": (msgpack.packb(pieces({"0": pieces({"0": ARRAY})})), FormatError, "needs a shape and arrays"),
    "pieces of other rows": (
        msgpack.packb(pieces({"0": flax.packed(np.ones((1, 2), np.int16)), "1": flax.packed(np.ones(1, np.int16))})),
        FormatError, "rows of several shapes"),
    "pieces without axes": (
        msgpack.packb(pieces({str(k): flax.packed(np.ones((), np.int16)) for k in range(3)})), FormatError, "rows of"),
    "pieces of several types": (
        msgpack.packb(pieces({"0": ARRAY, "1": flax.packed(np.ones(1, np.int32))})), FormatError, "several types"),
    "a mark that is no True": (msgpack.packb(pieces({"0": ARRAY}) | {codes.CHUNKED: ARRAY}), FormatError,
                               "needs a shape and arrays"),
    "no text": (b"\x81\xa2\xff\xfe\x01", FormatError, "not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_refused_with_its_place(case: str, tmp_path: Path) -> None:
    """What was found, and where."""
    data, error, says = BAD[case]
    with pytest.raises(error, match=says) as caught:
        formats.read(written(tmp_path, data))
    assert str(tmp_path / "x.msgpack") in str(caught.value)


def test_types_without_a_form(tmp_path: Path) -> None:
    """Listed as unreadable, by name; an unknown extension is a note."""
    tree = {"w": msgpack.ExtType(1, msgpack.packb(((1,), "longdouble", bytes(16)))), "x": msgpack.ExtType(9, b"ab"),
            "y": ARRAY}  # fmt: skip
    found = formats.read(written(tmp_path, msgpack.packb(tree)))
    assert "longdouble" in str(found.entries["w"].value) and "extension type 9" in found.left_out[0]
    assert list(found.views()) == ["y"]


def test_a_training_without_a_tensor_that_cannot_be_read(tmp_path: Path) -> None:
    """The rest is written and equal; the tree says what is left out where it was."""
    unread = msgpack.ExtType(1, msgpack.packb(((2,), "floit32", bytes(8))))
    here = np.ones(3, "f4")
    tree = {"params": {"w": here}, "opt_state": {"0": {"mu": {"w": unread}, "nu": {"w": here}, "count": np.int32(3)}}}
    source = written(tmp_path, flax.saved(tree))
    paramtool.dedup(source, tmp_path / "x.safetensors", skip_unsupported=True)
    assert set(paramtool.load_file(tmp_path / "x.safetensors")) == {"params/w", "opt_state/0/nu/w", "opt_state/0/count"}
    assert paramtool.verify(tmp_path / "x.safetensors", against=source, subset=True).differences == ()


def test_no_length_costs_memory(tmp_path: Path) -> None:
    """Lengths of 4 GB in a file of 40 bytes, and 64 KiB of bytes beside arrays are not kept."""
    data = msgpack.packb({"w": ARRAY, "blob": bytes(1 << 20)})
    tracemalloc.start()
    formats.read(written(tmp_path, data))
    with pytest.raises(FormatError):
        formats.read(written(tmp_path, b"\x81\xa1w\xc6\xff\xff\xff\xff"))
    assert tracemalloc.get_traced_memory()[1] < 1 << 19
    tracemalloc.stop()


def test_what_is_no_tree_is_not_taken_for_one() -> None:
    """Pickles, text, other formats, and random bytes."""
    for head in (b"\x80\x02}q\x00.", b"\x89HDF\r\n\x1a\n", b"\x93NUMPY\x01\x00", b"{}", b"PK\x03\x04", b"\x82\x00\x01",
                 b"\x81\xc0\x01", b"\x81\xa1"):  # fmt: skip
        assert not sniff.is_msgpack(head, len(head), "x.bin"), head
    assert sniff.is_msgpack(b"\x81\xa1", 2, "x.msgpack")


KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), max_size=40)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=300),
    st.binary(max_size=300),
    st.complex_numbers(), st.builds(lambda n: np.arange(n, dtype=np.int32), st.integers(0, 70)),
    st.builds(np.float16, st.floats(-4, 4)),
)  # fmt: skip
TREES: Any = st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=20), max_leaves=40)


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=20))
def test_trees_by_the_library(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]) -> None:
    """Whatever the library packs is described: the same arrays under the same names."""
    path = written(tmp_path_factory.getbasetemp(), flax.saved(tree))
    found = read.read(str(path))
    assert sniff.is_msgpack(path.read_bytes()[:4096], path.stat().st_size)
    expected = flax.flat(flax.restored(path.read_bytes()))
    assert list(found.entries) == list(expected)
    assert same_values(expected, paramtool.load_file(path)) or not expected
