"""docs/add-a-format.md, followed word by word: its package is installed, and the commands read its files."""

from __future__ import annotations

import re
import struct
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from paramtool.errors import FormatError
from paramtool.formats.files import read_bytes
from tests.hostile.command import Ran, command

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "add-a-format.md").read_text(encoding="utf-8")
CODE, TIES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
(PROJECT,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^\$ paramtool (.*)$", PAGE, re.MULTILINE)
ARRAYS = {
    "a.weight": np.arange(6000, dtype="f4").reshape(60, 100),
    "b.weight": np.arange(6000, dtype="f4").reshape(60, 100),
    "scale": np.float32(3).reshape(()),
}


def toy(arrays: dict[str, np.ndarray]) -> bytes:
    """A file as the page describes it."""
    parts = [b"TOYW"]
    for name, array in arrays.items():
        parts.append(struct.pack("<H", len(name)) + name.encode() + struct.pack("<B", array.ndim))
        parts.append(struct.pack(f"<{array.ndim}I", *array.shape) + array.tobytes())
    return b"".join(parts)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages, into which the page's package was installed."""
    site = tmp_path / "site"
    (site / "toy_format-1.0.dist-info").mkdir(parents=True)
    (site / "toy_format.py").write_text(CODE)
    (point,) = re.findall(r'^toy = "(.*)"$', PROJECT, re.MULTILINE)
    (group,) = re.findall(r'^\[project\.entry-points\."(.*)"\]$', PROJECT, re.MULTILINE)
    info = site / "toy_format-1.0.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-format\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\ntoy = {point}\n")
    (tmp_path / "model.toy").write_bytes(toy(ARRAYS))
    return site


def run(words: str, site: Path) -> Ran:
    """A command in a process of its own, where the package is installed."""
    return command(*words.split(), cwd=site.parent, env={"PYTHONPATH": f"{site}:{Path(__file__).parents[2]}"})


def test_the_commands_of_the_page(site: Path) -> None:
    """Inspect, dedup and verify, as they stand there; another library reads what was written."""
    assert [words.split()[0] for words in COMMANDS] == ["inspect", "dedup", "verify"]
    for words in COMMANDS:
        ran = run(words, site)
        assert ran.code == 0, ran
    assert "toy" in run(COMMANDS[0], site).out
    found = load_file(site.parent / "model.safetensors")
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in ARRAYS.items() if name != "b.weight"
    }


def test_names_that_share_a_storage(site: Path) -> None:
    """The reader of the page with the page's second block at its end: `inspect` shows what each name is."""
    imported, _, made = TIES.partition("\n\n")
    statements = textwrap.indent(made, "    ")
    assert CODE.count("    return Checkpoint(") == 1
    code = CODE.replace("    return Checkpoint(", f"{statements}    return Checkpoint(")
    (site / "toy_format.py").write_text(f"{imported}\n{code}")
    (site.parent / "model.toy").write_bytes(toy({"w": np.arange(2400, dtype="f4").reshape(60, 40)}))
    found = run("inspect model.toy", site)
    assert found.code == 0 and "transposed  [40, 60] float32, transposed, same memory" in found.out, found
    assert "4 tensors, 1 distinct" in found.out and re.search(r"  rows  \[10, 40\] float32, .*same memory", found.out)


def test_a_folder_of_such_files(site: Path) -> None:
    """Its weights are found by the row's suffixes."""
    (site.parent / "run").mkdir()
    (site.parent / "model.toy").rename(site.parent / "run" / "model.toy")
    ran = run("inspect run", site)
    assert ran.code == 0 and "3 tensors" in ran.out, ran


def test_a_file_that_was_cut_off(site: Path) -> None:
    """At every byte: an error that names the file, or whole tensors."""
    data = toy(ARRAYS)
    for length in (5, 12, 14, 20, 300, len(data) - 2):
        (site.parent / "model.toy").write_bytes(data[:length])
        ran = run("inspect model.toy", site)
        assert ran.code == 3 and "model.toy" in ran.err and "Traceback" not in ran.err, (length, ran)


BROKEN = {
    "no such module": ("raise ImportError('no module named nothing')", "ImportError: no module named nothing"),
    "no row": ("TOY = 3", "is 3; expected a paramtool.formats.table.Format"),
    "a name that is taken": (CODE.replace('name="toy"', 'name="torch"'), "paramtool already has a format 'torch'"),
    "suffixes that are text": (CODE.replace('(".toy",)', '".toy"'), "suffixes is '.toy'; expected a tuple"),
    "no suffix": (CODE.replace('(".toy",)', '("toy",)'), "'toy' is not a suffix"),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("key", BROKEN)
def test_a_package_that_cannot_be_used(key: str, site: Path) -> None:
    """It is named where its format might have been meant, and touches nothing else."""
    code, says = BROKEN[key]
    (site / "toy_format.py").write_text(code)
    ran = run("inspect model.toy", site)
    assert ran.code == 3 and "package toy-format 1.0, entry point toy" in ran.err and says in ran.err, ran
    np.savez(site.parent / "other.npz", a=np.ones(3))
    assert run("inspect other.npz", site) == run("inspect other.npz", site)
    assert run("inspect other.npz", site).code == 0


def test_a_reader_that_fails(site: Path) -> None:
    """An error of its code is one of the file, and names the package."""
    (site / "toy_format.py").write_text(CODE.replace("    file, source = open_source(path)", "    oops", 1))
    ran = run("inspect model.toy", site)
    assert ran.code == 3 and "the reader of toy-format 1.0 failed: NameError" in ran.err, ran


WRONG = {
    "a range behind the end": ("ByteRange(path, start, at)", "ByteRange(path, start, at + 99999)", "the file has"),
    "a range that is no range": ("ByteRange(path, start, at)", "ByteRange(path, -4, at)", "bytes -4 to"),
    "another file": ("ByteRange(path, start, at)", "ByteRange('x', start, at)", "is read from x, which is not in"),
    "a storage of another size": ("Storage(number, at - start,", "Storage(number, 8 * at,", "and its range"),
    "a storage of another number": (
        "Storage(number, at",
        "Storage(number + 1, at",
        "expected a Storage of that number",
    ),
    "a view that is too large": (
        "contiguous(number, FLOAT32, shape)",
        "contiguous(number, FLOAT32, (*shape, 2))",
        "ends at",
    ),
    "a view of nothing": ("contiguous(number,", "contiguous(7,", "is a view of storage 7, which does not exist"),
    "no entry": (
        "Entry(contiguous(number, FLOAT32, shape))",
        "contiguous(number, FLOAT32, shape)",
        "expected an Entry",
    ),
    "no checkpoint": ('return Checkpoint("toy", (source,), storages, entries)', "return None", "it returns NoneType"),
    "no files": ("(source,)", "()", "`files` is empty"),
    "an end": ("    storages, entries = {}, {}", "    raise SystemExit(3)", "failed: SystemExit: 3"),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("key", WRONG)
def test_a_reader_that_is_wrong(key: str, site: Path) -> None:
    """Its package is named, and nothing relies on what it says."""
    old, new, says = WRONG[key]
    assert old in CODE
    (site / "toy_format.py").write_text(CODE.replace(old, new))
    ran = run("inspect model.toy", site)
    assert ran.code == 3 and "the reader of toy-format 1.0" in ran.err and says in ran.err, ran


def test_a_sniffer_that_fails(site: Path) -> None:
    """It recognises nothing, and no other file suffers for it."""
    (site / "toy_format.py").write_text(CODE.replace('return head.startswith(b"TOYW")', "return head[9999] == 1"))
    ran = run("inspect model.toy", site)
    assert ran.code == 3 and "is not in a format" in ran.err, ran


def test_a_length_that_the_file_does_not_have(tmp_path: Path) -> None:
    """Nothing of it is allocated."""
    (tmp_path / "x").write_bytes(b"x" * 10)
    with (tmp_path / "x").open("rb") as file, pytest.raises(FormatError, match="ends at byte 10"):
        read_bytes(file, 4, 1 << 62)
