"""Hostile safetensors files and alias records, through the command line."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import safetensors

import paramtool
import paramtool.torch
from paramtool.errors import FormatError, UnsafeError
from tests.hostile import makers_torch
from tests.hostile.command import Hostile, check, command, contents, quick, refused
from tests.hostile.makers_pickle import PROTO, text
from tests.hostile.makers_safetensors import (
    ALIAS,
    BOMBS,
    FOREIGN_RECORD,
    FUZZ,
    HEADERS,
    KEY,
    NAMES,
    RECORD,
    RECORDS,
    build,
    item,
    made,
    named,
    recorded,
)
from tests.patience import calls


@pytest.mark.sample(20)
@pytest.mark.parametrize("key", HEADERS)
def test_a_hostile_header_is_refused(key: str, tmp_path: Path) -> None:
    """Exit 3, the file and the tensor named, nothing left."""
    check(HEADERS[key], tmp_path)


@pytest.mark.sample(2)
@pytest.mark.parametrize("key", ["deep_json", "length_near_2_to_64", "header_of_a_hundred_million_zeros", "overlap"])
def test_so_it_is_in_a_process_of_its_own(key: str, tmp_path: Path) -> None:
    """Real stack, real streams."""
    check(HEADERS[key], tmp_path, command)


def test_a_header_of_nearly_a_hundred_million_blanks_is_read(tmp_path: Path) -> None:
    """The specification allows blanks behind the object; it costs no more than reading them."""
    header = json.dumps({"w": item()}).encode()
    path = made(lambda: build(header + b" " * (99_999_000 - len(header))))(tmp_path)
    ran = []
    assert calls(lambda: ran.append(quick("inspect", path.name, cwd=tmp_path))) < 100_000
    assert ran[0].code == 0


@pytest.mark.parametrize("key", RECORDS)
def test_a_damaged_alias_record_is_refused(key: str, tmp_path: Path) -> None:
    """Exit 3; the message says that it is the record."""
    check(RECORDS[key], tmp_path)


@pytest.mark.parametrize("key", RECORDS)
def test_so_it_is_by_the_library(key: str, tmp_path: Path) -> None:
    """`load_file` raises what the command line says."""
    path = RECORDS[key].make(tmp_path)
    with pytest.raises(FormatError, match="alias record") as caught:
        paramtool.load_file(path)
    assert path.name in str(caught.value)


@pytest.mark.parametrize("key", BOMBS)
def test_a_record_that_derives_far_more_than_its_file_is_a_bomb(key: str, tmp_path: Path) -> None:
    """Exit 4 at once, from the command line and the library."""
    assert calls(lambda: check(BOMBS[key], tmp_path)) < 1_000_000
    path = BOMBS[key].make(tmp_path)
    for load in (paramtool.load_file, paramtool.torch.load_file):
        with pytest.raises(UnsafeError, match="derives"):
            load(path)


@pytest.mark.parametrize("evidence", ["storage", "content"])
def test_an_expanded_alias_costs_what_it_spans(evidence: str, tmp_path: Path) -> None:
    """A window of petabytes on 16 bytes: inspected, written again and loaded as a window; NumPy has a limit."""
    record = {**RECORD, "aliases": {"a": {
        **ALIAS, "shape": [2**50, 1], "strides": [0, 0], "evidence": evidence,
        "memory": "w" if evidence == "storage" else "a"}}}  # fmt: skip
    path = made(recorded(record))(tmp_path)
    check(Hostile(lambda _: path, inspect=0), tmp_path)
    assert quick("verify", "made.safetensors", "--against", path.name, cwd=tmp_path).code == 0
    assert paramtool.load_file(path)["a"].strides[0] == 0
    assert paramtool.torch.load_file(path)["a"].stride(0) == 0
    record["aliases"]["a"] |= {"shape": [2**31, 2**31]}
    path = made(recorded(record))(tmp_path)
    with pytest.raises(FormatError, match="'a': NumPy cannot make an array"):
        paramtool.load_file(path)
    assert paramtool.torch.load_file(path)["a"].shape == (2**31, 2**31)


@pytest.mark.sample(52)
@pytest.mark.parametrize("key", FUZZ)
def test_a_record_of_wrong_types_is_no_defect_of_ours(key: str, tmp_path: Path) -> None:
    """A wrong type in any field: either it is read as something, or it is exit 3; inspect and dedup agree."""
    path = FUZZ[key](tmp_path)
    ran = quick("inspect", "--json", path.name, cwd=tmp_path)
    if ran.code:
        refused(quick, "inspect", path.name, cwd=tmp_path, code=3, says=(path.name,))
        refused(quick, "dedup", path.name, cwd=tmp_path, code=3, says=(path.name,))
    else:
        json.loads(ran.out)
        made_ = quick("dedup", path.name, cwd=tmp_path)
        assert made_.code == 0, made_


def test_a_foreign_value_under_our_key_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    """Nothing of the user's metadata is overwritten."""
    check(FOREIGN_RECORD, tmp_path)
    check(FOREIGN_RECORD, tmp_path, command)


@pytest.mark.parametrize("key", NAMES)
def test_a_name_is_shown_and_not_obeyed(key: str, tmp_path: Path) -> None:
    """In lines no control character reaches the terminal; in JSON the name is whole; dedup keeps it as it is."""
    name = NAMES[key]
    path = made(named(name))(tmp_path)
    ran = quick("inspect", "--tensors", path.name, cwd=tmp_path)
    assert ran.code == 0, ran
    assert all(line.isprintable() for line in ran.out.splitlines()), ran
    assert len([line for line in ran.out.splitlines() if line.startswith("tensor  ")]) == 1, ran
    assert not any(line.startswith("finding: ") for line in ran.out.splitlines()), ran
    found = json.loads(quick("inspect", "--json", "--tensors", path.name, cwd=tmp_path).out)
    assert [tensor["name"] for tensor in found["tensor_list"]] == [name]
    ran = quick("dedup", path.name, "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    assert all(line.isprintable() for line in (ran.out + ran.err).splitlines()), ran
    (length,) = struct.unpack("<Q", (tmp_path / "out.safetensors").read_bytes()[:8])
    assert name in json.loads((tmp_path / "out.safetensors").read_bytes()[8 : 8 + length])
    assert sorted(contents(tmp_path)) == [path.name, "out.safetensors"]


SURROGATES = {
    "name": f'{{"w\\ud800":{json.dumps(item())}}}',
    "metadata": f'{{"__metadata__":{{"a":"\\udfff"}},"w":{json.dumps(item())}}}',
    "key": f'{{"__metadata__":{{"\\uDC00 ":"a"}},"w":{json.dumps(item())}}}',
    "turned_round": f'{{"\\udc00\\ud800":{json.dumps(item())}}}',
    "record": f'{{"__metadata__":{{"{KEY}":"\\ud800"}},"w":{json.dumps(item())}}}',
}


@pytest.mark.parametrize("key", SURROGATES)
def test_half_of_a_surrogate_pair_is_no_character(key: str, tmp_path: Path) -> None:
    """JSON can spell it and UTF-8 cannot hold it; the safetensors library refuses it, and so does every command."""
    path = made(build(SURROGATES[key]))(tmp_path)
    with pytest.raises(Exception, match="invalid JSON"):
        safetensors.deserialize(path.read_bytes())
    case = Hostile(lambda _: path, ("surrogate",))
    check(case, tmp_path)
    refused(quick, "inspect", "--json", path.name, cwd=tmp_path, code=3)
    refused(quick, "dedup", path.name, "-o", "made.pt", cwd=tmp_path, code=3)


def test_a_whole_surrogate_pair_is_a_character(tmp_path: Path) -> None:
    """Escaped as JSON has it."""
    path = made(build(f'{{"\\ud83d\\ude00 \\\\ud800":{json.dumps(item())}}}'))(tmp_path)
    assert list(paramtool.read(path).entries) == ["\U0001f600 \\ud800"]
    assert quick("dedup", path.name, "-o", "made.safetensors", cwd=tmp_path).code == 0


@pytest.mark.parametrize("label", ["__metadata__", "w"])
def test_a_tensor_called_metadata_cannot_be_written(label: str, tmp_path: Path) -> None:
    """safetensors keeps one name for itself; any other name of the same file is fine."""
    pickle = PROTO + b"}" + text(label) + makers_torch.tensor() + b"s."
    wrong = label == "__metadata__"
    check(Hostile(makers_torch.zipped(pickle), (label,) if wrong else (), 0, 6 if wrong else 0), tmp_path)


def test_messages_that_quote_names_are_plain(tmp_path: Path) -> None:
    """A defect of a tensor with escapes in its name, and a file with escapes in its own."""
    path = made(build({"w\x1b[2J\n": 5}), "mo\x1b[2Jdel.safetensors")(tmp_path)
    refused(command, "inspect", path.name, cwd=tmp_path, code=3, says=(r"mo\x1b[2Jdel", r"w\x1b[2J\n"))
