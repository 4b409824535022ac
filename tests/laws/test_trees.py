"""The law of objects in a record: whatever it says, dedup refuses it, or writes a `.pt` that torch.load opens."""

from __future__ import annotations

import json
import warnings
from base64 import b64encode
from collections import Counter
from pathlib import Path
from random import Random
from struct import pack
from typing import Any

import pytest
import torch

from paramtool.commands import dedup as dedup_command
from paramtool.errors import OutputError, ParamtoolError
from paramtool.formats.torch import _check
from tests.examples import IS_HARD
from tests.laws.trees import tree
from tests.versions import needs

ELSEWHERE = ("pathlib._local", "cannot instantiate 'WindowsPath'", "cannot instantiate 'PosixPath'")
"""What other Pythons and other systems open."""


def with_objects(path: Path, objects: Any) -> Path:
    """A safetensors file with one tensor and a record of these objects."""
    stored = {"w": {"memory": "w", "memory_evidence": "storage"}}
    record = {"version": 3, "aliases": {}, "stored": stored, "spans": [], "objects": objects}
    item = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": {"paramtool.aliases": json.dumps(record)}, "w": item}).encode()
    path.write_bytes(pack("<Q", len(header)) + header + bytes(4))
    return path


def opens(path: Path, weights_only: bool) -> str:
    """Empty where torch.load opens a file; else what it says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.load(path, weights_only=weights_only)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.sample(2)
@pytest.mark.parametrize("part", range(40 if IS_HARD else 2))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"skip_unsupported": True},
        pytest.param({"plain": True}, marks=needs("torch", "2.6", "weights_only=True takes Counter")),
    ],
    ids=str,
)
def test_torch_opens_what_is_written(options: dict[str, bool], part: int, tmp_path: Path) -> None:
    """Honest and hostile trees of every class of the table; plain ones with weights_only, too."""
    outcomes: Counter[str] = Counter()
    source, output = tmp_path / "m.safetensors", tmp_path / "m.pt"
    for seed in range(part * 1000, part * 1000 + (1000 if IS_HARD else 60)):
        with_objects(source, tree(Random(seed)))
        try:
            dedup_command.dedup(source, output, force=True, **options)  # type: ignore[arg-type]
        except ParamtoolError as error:
            assert IS_HARD or not isinstance(error, OutputError), (seed, error)
            outcomes["refused"] += 1
            continue
        said = opens(output, False) or (opens(output, True) if options.get("plain") else "")
        assert not said or any(words in said for words in ELSEWHERE), (seed, said)
        outcomes["opened"] += 1
    assert outcomes["opened"] > 5 < outcomes["refused"], outcomes


OBJECTS: dict[str, Any] = {
    "attributes_of_a_row": {"map": "collections.OrderedDict", "items": [1], "attributes": {"seq": "list", "items": []}},
    "array_of_fewer_bytes": {"map": "dict", "items": [1, ["a", {"array": ["<f4", [2], "C", ""]}]]},
    "array_of_no_type": {"map": "dict", "items": [1, ["a", {"array": ["<f3", [], "C", "AAAA"]}]]},
    **{
        key: {"map": "dict", "items": [1, ["a", {"opaque": name, "parts": [["args", {"seq": "tuple", "items": row}]]}]]}
        for key, (name, row) in {
            "date": ("datetime.date", [{"bytes": b64encode(b"\xff" * 4).decode()}]),
            "moment": ("datetime.datetime", [{"bytes": b64encode(b"\xff" * 10).decode()}]),
            "delta": ("datetime.timedelta", [10**12, 0, 0]),
            "decimal": ("decimal.Decimal", ["x"]),
            "fraction": ("fractions.Fraction", ["1/0"]),
            "fraction_of_a_thousand_million_digits": ("fractions.Fraction", ["1e999999999"]),
            "range": ("builtins.range", [0, 1, 0]),
            "device": ("torch.device", ["cuda:x"]),
            "layout": ("torch.serialization._get_layout", ["round"]),
            "bytearray": ("builtins.bytearray", ["x", "nothing"]),
        }.items()
    },
    "two_keys_that_are_one": {"map": "dict", "items": [1, [1, "a"], [True, "b"]]},
    "complex_key": {"map": "dict", "items": [1, [{"complex": [0.0, 2.0]}, "a"]]},
    "namespace_with_both": {"map": "dict", "items": [1, ["a", {"opaque": "argparse.Namespace", "parts": [
        ["args", {"seq": "tuple", "items": []}], ["state", {"map": "dict", "items": []}]]}]]},
}  # fmt: skip


@pytest.mark.parametrize("key", OBJECTS)
def test_what_no_pickle_can_hold_is_refused(key: str, tmp_path: Path) -> None:
    """Named, with exit code 3 or 6; with skip_unsupported left out, and torch opens the rest."""
    source, output = with_objects(tmp_path / "m.safetensors", OBJECTS[key]), tmp_path / "m.pt"
    with pytest.raises(ParamtoolError) as caught:
        dedup_command.dedup(source, output)
    assert caught.value.exit_code in (3, 6) and "defect of paramtool" not in caught.value.hint
    assert not output.exists()
    dedup_command.dedup(source, output, skip_unsupported=True)
    assert opens(output, False) == ""


def test_the_finding(findings: Path, tmp_path: Path) -> None:
    """Attributes that are a number: torch.load raised a TypeError."""
    with pytest.raises(ParamtoolError) as caught:
        dedup_command.dedup(findings / "attr.safetensors", tmp_path / "m.pt")
    assert caught.value.exit_code == 3


TENSOR = (b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000"
          b"X\x03\0\0\0cpuK\x04tQK\x00K\x04\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR")  # fmt: skip
SOUND = b"\x80\x02}(X\x01\0\0\0w" + TENSOR + b"u."
DAMAGE: dict[str, tuple[bytes, bytes, str]] = {
    "reaches_behind_its_storage": (b"K\x00K\x04\x85", b"K\x01K\x04\x85", "needs 20 bytes of a storage of 16"),
    "negative_stride": (b"K\x01\x85\x89", b"J\xff\xff\xff\xff\x85\x89", "not made of"),
    "hooks_a_list": (b"ccollections\nOrderedDict\n)R", b"]", "other arguments"),
    "unknown_function": (b"_rebuild_tensor_v2", b"_rebuild_tensor_v9", "is called"),
    "foreign_function": (b"ctorch._utils\n_rebuild_tensor_v2", b"cos\nsystem", "os.system"),
    "other_opcode": (b"\x89cc", b"0cc", "KeyError"),
    "device": (b"X\x03\0\0\0cpu", b"X\x03\0\0\0gpu", "storage is not named"),
    "list_as_key": (b"X\x01\0\0\0w", b"]", "unhashable"),
    "one_key_twice": (b"RtRu.", b"RtRX\x01\0\0\0wNu.", "twice"),
    "odd_number_of_items": (b"RtRu.", b"RtRNu.", "not a dict"),
    "two_values": (b"u.", b"uN.", "one value"),
    "attributes_a_number": (b"OrderedDict\n)R", b"OrderedDict\n)RK\x07b", "not a dict"),
    "cut_off": (b"u.", b"u", "EOFError"),
}


def test_the_check_takes_what_is_sound() -> None:
    """A pickle as the writer makes them."""
    _check.check(SOUND)


@pytest.mark.parametrize("key", DAMAGE)
def test_the_check_sees(key: str) -> None:
    """Each mistake that a writer could make."""
    old, new, words = DAMAGE[key]
    assert SOUND.count(old) == 1
    with pytest.raises(_check.Wrong, match=words):
        _check.check(SOUND.replace(old, new))
