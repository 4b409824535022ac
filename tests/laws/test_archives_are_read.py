"""Every member of a zip archive is scanned as Python's zipfile and as its local headers give it.

The oracle is zipfile, which reads each archive here: local headers lie, archives stand behind other bytes and in
others.
"""

from __future__ import annotations

import io
import lzma
import pickle
import zipfile
from pathlib import Path
from struct import pack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from paramtool.formats import scan
from tests.examples import examples
from tests.hostile.command import quick
from tests.laws.test_folders_are_files import EVIL

METHODS = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
CLEAN = pickle.dumps({"a": [1, 2.5]}, 2)
SAFETENSORS = save({"w": np.ones(3)})
FIELDS = {"method": (8, "<H"), "stored": (18, "<I"), "size": (22, "<I")}


def archive(data: bytes, method: int, lies: dict[str, int], prefix: bytes, comment: bytes, zip64: bool) -> bytes:
    """An archive of one member, and a clean one, whose local headers say something else."""
    made = io.BytesIO(prefix)
    made.seek(len(prefix))
    with zipfile.ZipFile(made, "a", method) as file:
        with file.open("archive/data.pkl", "w", force_zip64=zip64) as member:
            member.write(data)
        file.writestr("archive/version", "3\n")
        file.comment = comment
    whole = bytearray(made.getvalue())
    at = whole.find(b"PK\3\4", len(prefix))
    for field, value in lies.items():
        place, form = FIELDS[field]
        whole[at + place : at + place + len(pack(form, value))] = pack(form, value)
    with zipfile.ZipFile(io.BytesIO(bytes(whole))) as file:
        assert file.read("archive/data.pkl") == data
    return bytes(whole)


SHAPE = st.tuples(
    st.sampled_from(METHODS),
    st.fixed_dictionaries({}, optional={
        "method": st.sampled_from([0, 8, 12, 14, 99]), "stored": st.sampled_from([0, 1, 999, 0xFFFFFFFF]),
        "size": st.sampled_from([0, 1, 999, 0xFFFFFFFF]),
    }),
    st.sampled_from([b"", b"", b"hello" * 10, SAFETENSORS, CLEAN]),
    st.sampled_from([b"", b"a comment", bytes(9999)]),
    st.booleans(),
)  # fmt: skip


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(SHAPE, min_size=1, max_size=3))
def test_what_zipfile_reads_is_scanned(shapes: list[tuple[int, dict[str, int], bytes, bytes, bool]]) -> None:
    """However deep."""
    data = EVIL
    for shape in shapes:
        data = archive(data, *shape)
    assert [one.path for one in scan.scan_bytes(data).unknown if one.called] == ["builtins.print"]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(SHAPE.filter(lambda shape: not shape[1]), min_size=1, max_size=3))
def test_a_clean_archive_is_looked_through(shapes: list[tuple[int, dict[str, int], bytes, bytes, bool]]) -> None:
    data = CLEAN
    for shape in shapes:
        data = archive(data, *shape)
    found = scan.scan_bytes(data)
    assert not found.unknown and (found.ended or any(shape[2] in (SAFETENSORS, CLEAN) for shape in shapes)), shapes


@pytest.mark.parametrize("how", ["alone", "xz"])
def test_what_a_limit_of_memory_stops_is_named(how: str, tmp_path: Path) -> None:
    """As a bomb is."""
    if how == "alone":
        data = bytearray(lzma.compress(EVIL, format=lzma.FORMAT_ALONE))
        data[1:5] = pack("<I", 1 << 30)
    else:
        filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 300 << 20, "mode": lzma.MODE_FAST, "mf": lzma.MF_HC3}]
        data = bytearray(lzma.compress(EVIL, format=lzma.FORMAT_XZ, filters=filters))
    assert lzma.decompress(bytes(data)) == EVIL
    assert not scan.scan_bytes(bytes(data)).ended
    (tmp_path / "a.pkl.xz").write_bytes(data)
    (tmp_path / "model.safetensors").write_bytes(SAFETENSORS)
    ran = quick("inspect", ".", cwd=tmp_path)
    assert ran.code == 0 and "not looked at for pickles: 'a.pkl.xz'" in ran.out + ran.err, ran
    ran = quick("inspect", "a.pkl.xz", cwd=tmp_path)
    assert ran.code == 3 and "not scanned to the end" in ran.err, ran
