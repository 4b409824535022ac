"""Hostile ONNX models, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramtool
from paramtool.errors import FormatError, UnsafeError
from tests.examples import examples
from tests.hostile.command import Hostile, check, command, quick
from tests.hostile.makers_onnx import HONEST, PLACES, RAW, TENSORS, WIRE, build, graph, made, nested, tensor
from tests.patience import calls


@pytest.mark.parametrize("key", WIRE)
def test_damaged_messages_are_refused(key: str, tmp_path: Path) -> None:
    """Exit 3, the file and the byte named, nothing left."""
    check(WIRE[key], tmp_path)


@pytest.mark.sample(13)
@pytest.mark.parametrize("key", TENSORS)
def test_tensors_that_lie_are_refused(key: str, tmp_path: Path) -> None:
    """Exit 3, the tensor named; nothing is allocated for what it claims."""
    check(TENSORS[key], tmp_path)


@pytest.mark.parametrize("key", PLACES)
def test_data_elsewhere_is_refused(key: str, tmp_path: Path) -> None:
    """Exit 4 where a file reaches out of its folder, 3 where what it wants is not there."""
    check(PLACES[key], tmp_path)


@pytest.mark.parametrize("case", [WIRE["graphs_nested_ten_thousand_deep"], PLACES["location_0"]])
def test_so_it_is_in_a_process_of_its_own(case: Hostile, tmp_path: Path) -> None:
    """Real stack, real streams."""
    check(case, tmp_path, command)


def test_what_is_allowed(tmp_path: Path) -> None:
    """The makers' honest models are read: what is refused is refused for what it does."""
    for data in (build(graph(HONEST)), nested(30), build(graph(tensor(dims=(2**40, 0))))):
        path = made(data)(tmp_path)
        assert quick("dedup", path.name, "-o", "o.safetensors", "--force", cwd=tmp_path).code == 0


def test_every_flipped_bit_is_an_error_or_a_model(tmp_path: Path) -> None:
    """No bit of a small model can be turned so that anything but an answer or a clear refusal comes."""
    data = build(graph(HONEST, tensor(RAW, name=b"v", dims=(2, 1)), nodes=b""))
    path = tmp_path / "model.onnx"
    for bit in range(8 * len(data)):
        turned = bytearray(data)
        turned[bit // 8] ^= 1 << bit % 8
        path.write_bytes(turned)
        try:
            found = paramtool.read(path)
        except (FormatError, UnsafeError):
            continue
        assert all(view.nbytes <= len(data) for _, view in found.windows())


def test_many_small_fields_take_no_time(tmp_path: Path) -> None:
    """A quarter of a megabyte of empty fields is stepped over, and a whole one in `make hard`."""
    count = examples(400_000)
    path = made(build(graph(HONEST)) + b"\xfa\x07\0" * count)(tmp_path)
    ran = []
    assert calls(lambda: ran.append(quick("inspect", path.name, cwd=tmp_path))) < 20 * count
    assert ran[0].code == 0
