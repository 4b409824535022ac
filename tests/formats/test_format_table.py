"""`formats/table.py`: one row says all of a format, and what lists formats follows from the rows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from paramtool.errors import FormatError, ParamtoolError
from paramtool.formats import read_file, sniff, table
from paramtool.formats.table import FORMATS
from tests.hostile.command import quick

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT.parent / "shared" / "samples"
FILES = [
    path
    for folder in (ROOT / "fixtures", SAMPLES)
    for path in sorted(folder.rglob("*") if folder.is_dir() else ())
    if path.is_file() and "__pycache__" not in path.parts
]


def sniffed(path: Path) -> list[str]:
    """The rows that recognise a file."""
    with path.open("rb") as file:
        head = file.read(table.HEAD_NBYTES)
    return [row.name for row in FORMATS if row.sniff(head, path.stat().st_size, str(path))]


@pytest.mark.sample(87)
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_one_row_recognises_a_file_that_is_read_and_none_another(path: Path) -> None:
    """Every fixture and sample; an index and a part of a TensorFlow model are read with what lies beside them."""
    try:
        is_index = read_file(str(path)).format.startswith("sharded")
    except ParamtoolError:
        assert sniffed(path) == []
    else:
        is_part = ".data-" in path.name or path.name == "saved_model.pb"
        assert len(sniffed(path)) == (0 if is_index or is_part else 1)


def test_a_header_beyond_the_end_of_the_file() -> None:
    """A file that is called so was cut off; in any other file it is chance."""
    head = (1000).to_bytes(8, "little") + b'{"w":'
    assert sniff.is_safetensors(head, 1008, "x.bin") and sniff.is_safetensors(head, 13, "x.safetensors")
    assert not sniff.is_safetensors(head, 13, "x.bin")


@pytest.mark.parametrize("name", ["x.safetensors", "x.bin"])
def test_what_a_cut_off_header_is_called(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes((1000).to_bytes(8, "little") + b'{"w":')
    with pytest.raises(FormatError, match="1000" if name == "x.safetensors" else "not in a format"):
        read_file(str(tmp_path / name))


def test_suffixes_are_in_one_table() -> None:
    """What is read is no file of another program, and what is written is never refused."""
    assert not {*table.SUFFIXES} & {*table.OTHER_SUFFIXES}
    assert {*table.WRITTEN} <= {*table.SUFFIXES} and not {*table.WRITTEN} & table.NOT_WRITTEN
    assert {".npy", ".jld2"} <= {*table.SUFFIXES} & table.NOT_WRITTEN
    assert {".npy", ".keras"} <= {*table.SUFFIXES} & table.NOT_WRITTEN


def test_errors_name_every_format(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"something else")
    ran = quick("inspect", "x", cwd=tmp_path)
    assert ran.code == 3 and all(row.name in ran.err for row in FORMATS), ran


def test_the_page_is_made_from_the_rows() -> None:
    """`python docs/make_formats.py` would change nothing."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from make_formats import document
    finally:
        sys.path.remove(str(ROOT / "docs"))
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert page == document(page), "run: python docs/make_formats.py"


def test_readers_do_not_import_each_other() -> None:
    """The contract in pyproject.toml names the reader of every row."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (modules,) = re.findall(
        r'name = "formats stay replaceable"\ntype = "independence"\nmodules = \[(.*?)\]', text, re.S
    )
    named = set(re.findall(r'"(.*?)"', modules))
    assert named == {row.module for row in FORMATS} | {"paramtool.formats.safetensors.sharded"}
