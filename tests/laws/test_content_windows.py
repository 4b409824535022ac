"""The laws of comparing where tensors share memory: windows, and copies of what they show, in files of torch.save."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import verify as verify_command
from tests.examples import examples
from tests.laws.sharing import partition, same_values

law = settings(
    max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
Tensors = dict[str, torch.Tensor]
LEAST_NBYTES = 8


@st.composite
def windowed(draw: st.DrawFn) -> tuple[Tensors, dict[str, str]]:
    """Windows on shared storages, copies made of them, constants, and of each copy what it was made of."""
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    tensors: Tensors = {}
    made: dict[str, str] = {}
    for k in range(draw(st.integers(1, 3))):
        rows, columns = draw(st.integers(2, 7)), draw(st.integers(2, 7))
        base = torch.randn(rows, columns, generator=random)
        for n in range(draw(st.integers(1, 4))):
            tensors[f"{draw(st.sampled_from('az'))}{k}.{n}"] = draw(windows(base))
    for n in range(draw(st.integers(0, 4))):
        origin = draw(st.sampled_from(sorted(tensors)))
        value = tensors[origin]
        how = draw(st.sampled_from(("equal", "slice", "transpose", "cast", "constant")))
        copy = {
            "equal": value,
            "slice": value[draw(st.integers(0, len(value) - 1)) :][: draw(st.integers(1, len(value)))],
            "transpose": value.t() if value.ndim == 2 else value,
            "cast": value.bfloat16() if value.dtype == torch.float32 else value,
            "constant": torch.full(tuple(value.shape), float(n), dtype=value.dtype),
        }[how]
        name = f"{draw(st.sampled_from('by'))}.{n}"
        tensors[name], made[name] = copy.clone(memory_format=torch.contiguous_format), f"{how} {origin}"
    order = draw(st.permutations(list(tensors)))
    return {name: tensors[name] for name in order}, made


@st.composite
def windows(draw: st.DrawFn, base: torch.Tensor) -> torch.Tensor:
    """All of a matrix, its transpose, some rows, one row, all in one line, or some columns."""
    rows, columns = base.shape
    kind = draw(st.sampled_from(("all", "transpose", "rows", "row", "line", "columns")))
    if kind == "rows":
        start = draw(st.integers(0, rows - 1))
        return base[start : draw(st.integers(start + 1, rows))]
    if kind == "columns":
        start = draw(st.integers(0, columns - 1))
        return base[:, start : draw(st.integers(start + 1, columns))]
    if kind == "row":
        return base[draw(st.integers(0, rows - 1))]
    return {"all": base, "transpose": base.t(), "line": base.view(-1)}[kind]


@law
@given(windowed(), st.booleans(), st.booleans(), st.sampled_from(("first", "last")))
def test_windows_and_their_copies(case: tuple[Tensors, dict[str, str]], derive: bool, fold: bool, keep: str) -> None:
    """Values come back, memory is shared as it was and by nobody else, and a second dedup changes nothing."""
    tensors, _ = case
    options: dict[str, Any] = {"derive_casts": derive, "fold_constants": fold, "keep": keep}
    with tempfile.TemporaryDirectory() as folder:
        source, output, again = (os.path.join(folder, name) for name in ("in.pt", "out.safetensors", "2.safetensors"))
        torch.save(tensors, source)
        dedup_command.dedup(source, output, min_equal_bytes=LEAST_NBYTES, **options)
        found = paramtool.load_file(output)
        assert verify_command.verify(output, source).differences == ()
        dedup_command.dedup(output, again, min_equal_bytes=LEAST_NBYTES, **options)
        with open(output, "rb") as one, open(again, "rb") as other:
            assert one.read() == other.read()
    assert same_values(tensors, found)
    assert partition(tensors) == partition(found)


@law
@given(windowed())
def test_copies_of_windows_take_no_room(case: tuple[Tensors, dict[str, str]]) -> None:
    """A copy of a window that is stored row by row stands on other bytes, whoever the window shares them with."""
    tensors, made = case
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "in.pt")
        torch.save(tensors, source)
        report = dedup_command.dedup(
            source, dry_run=True, min_equal_bytes=LEAST_NBYTES, derive_casts=True, fold_constants=True
        )
    members = report.graph.names
    for name, text in made.items():
        how, origin = text.split()
        if how == "cast" or tensors[name].nbytes < LEAST_NBYTES or not members[origin].window.is_contiguous:
            continue
        alone = [one for one in tensors if members[one].owner == members[name].owner] == [name]
        assert not alone or name in report.graph.derived, (name, text, report.content)
