"""The laws of several checkpoints at once: each folder is its input, and what is shared is just what is equal."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

import paramtool
from paramtool.commands import dedup_many
from paramtool.commands import verify as verify_command
from tests.examples import examples
from tests.laws.sharing import partition, raw, same_values
from tests.laws.states import states

law = settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
State = dict[str, torch.Tensor]
INDEX = "model.safetensors.index.json"

names = st.sampled_from(("a", "b", "c.w", "d", "e.bias", "paramtool.linked/0"))
values = st.tuples(st.integers(0, 2), st.sampled_from((torch.float32, torch.int32)), st.sampled_from(((6,), (2, 3))))
plain = st.dictionaries(names, values, min_size=1)
"""Few values, so that many are equal: under one name, under different names, within one input and across."""
families = st.lists(plain, min_size=2, max_size=4)


def made(state: Mapping[str, Any]) -> State:
    """Tensors of their own from (value, dtype, shape)."""
    return {name: torch.full(shape, value).to(dtype) for name, (value, dtype, shape) in state.items()}


def save_all(family: list[State], folder: str) -> list[str]:
    """Every state as a safetensors file."""
    paths = [os.path.join(folder, f"m{k}.safetensors") for k in range(len(family))]
    for path, state in zip(paths, family, strict=True):
        save_file(state, path)
    return paths


def placed(folder: str) -> dict[str, str]:
    """{stored name: its file}, as the index says and as every other program reads it."""
    with open(os.path.join(folder, INDEX)) as file:
        weight_map = json.load(file)["weight_map"]
    return {name: os.path.join(folder, shard) for name, shard in weight_map.items()}


def held(path: str) -> set[str]:
    """The names in a file, as the safetensors library reads them."""
    with safe_open(path, "pt") as file:
        return set(file.keys())


def content(folder: str) -> dict[str, bytes]:
    """Every file of a folder."""
    found = {}
    for place, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(place, name), "rb") as file:
                found[os.path.relpath(os.path.join(place, name), folder)] = file.read()
    return found


@law
@given(families, st.sampled_from((1, 40, 10**6)))
def test_what_is_equal_under_one_name_is_one_file_and_nothing_else_is(family: list[Any], most: int) -> None:
    """Every folder holds just its input's names, and two inputs share a file for a name where its bytes are equal."""
    inputs = [made(state) for state in family]
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "out")
        report = dedup_many.dedup_family(save_all(inputs, folder), output, min_equal_bytes=1, max_shard_size=most)
        folders = [member.folder for member in report.members]
        places = [placed(one) for one in folders]
        for one, state, place in zip(folders, inputs, places, strict=True):
            assert same_values(dict(sorted(state.items())), dict(sorted(paramtool.load_file(one).items())))
            assert place.keys() == state.keys()
            for shard in set(place.values()):
                assert held(shard) == {name for name, file in place.items() if file == shard}
        for k, a in enumerate(inputs):
            for m, b in enumerate(inputs[:k]):
                for name in a.keys() & b.keys():
                    alike = (a[name].dtype, a[name].shape, raw(a[name])) == (b[name].dtype, b[name].shape, raw(b[name]))
                    assert os.path.samefile(places[k][name], places[m][name]) == alike, name
        assert report.nbytes_after == sum(
            {os.stat(f).st_ino: os.stat(f).st_size for m in report.members for f in m.files}.values()
        )


@law
@given(families)
def test_with_renamed_ones_no_bytes_stand_twice(family: list[Any]) -> None:
    """`share_renamed`: every folder reads back as its input, and of equal bytes (dtype and shape) there is one copy."""
    inputs = [made(state) for state in family]
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "out")
        report = dedup_many.dedup_family(save_all(inputs, folder), output, min_equal_bytes=1, share_renamed=True)
        for member, state in zip(report.members, inputs, strict=True):
            found = paramtool.load_file(member.folder)
            assert same_values(dict(sorted(state.items())), dict(sorted(found.items())))
            assert partition(state) == partition(found)
        files = {os.stat(path).st_ino: path for s in report.shards for path in s.files}
        stored = []
        for path in files.values():
            with safe_open(path, "pt") as file:
                stored += [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118 - no mapping
    kinds = {(t.dtype, t.shape, raw(t)) for state in inputs for t in state.values()}
    assert len(stored) == len(kinds)


@law
@given(states(), st.data(), st.booleans())
def test_ties_and_windows_come_back(state: tuple[Any, State], data: st.DataObject, renamed: bool) -> None:
    """Of a checkpoint with views and ties, and of what training made of it: values and sharing of both."""
    tuned = copy.deepcopy(state)
    if tuned[1]:
        tensor = tuned[1][data.draw(st.sampled_from(sorted(tuned[1])))]
        with suppress(RuntimeError, NotImplementedError):  # a window that meets elements twice is not written to
            tensor.zero_()
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"m{k}.pt") for k in range(2)]
        for path, (tree, _) in zip(paths, (state, tuned), strict=True):
            torch.save(tree, path)
        report = dedup_many.dedup_family(paths, os.path.join(folder, "out"), min_equal_bytes=1, share_renamed=renamed)
        for path, member, (_, flat) in zip(paths, report.members, (state, tuned), strict=True):
            found = paramtool.load_file(member.folder)
            assert same_values(flat, found)
            assert partition(flat) == partition(found)
            assert verify_command.verify(member.folder, path).differences == ()


@law
@given(plain)
def test_the_objects_come_back(state: Any) -> None:
    """The tree beside the tensors stands in the index."""
    tree = {0: 1, "n": [None, True, "ü", (1, float("inf"))], "state": made(state)}
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"m{k}.pt") for k in range(2)]
        for path in paths:
            torch.save(tree, path)
        report = dedup_many.dedup_family(paths, os.path.join(folder, "out"), min_equal_bytes=1)
        for path, member in zip(paths, report.members, strict=True):
            assert paramtool.read(path).objects == paramtool.read(member.folder).objects


keeps = st.sampled_from(("first", "last", "b", "[cd]*", "e.*"))
alike = st.dictionaries(names, st.tuples(st.integers(0, 1), st.just(torch.float32), st.just((6,))), min_size=1)
"""Nearly all are equal to others: which of the names is stored is the question."""
ties = st.lists(st.sampled_from(("", "a", "x", "e.y")), min_size=4, max_size=4)


@law
@given(families | st.lists(alike, min_size=2, max_size=4), ties, keeps, st.booleans(), st.sampled_from((1, 40)))
def test_a_family_of_the_folders_gives_the_same_bytes(
    family: list[Any], ties: list[str], keep: str, renamed: bool, least: int
) -> None:
    """What was written, given in again with the same options, gives the same files: no stored name is lost."""
    inputs = [made(state) for state in family]
    for state, tie in zip(inputs, ties, strict=False):
        if tie:
            state[tie] = state[min(state)]
    options: dict[str, Any] = {"keep": keep, "share_renamed": renamed, "min_equal_bytes": least}
    with tempfile.TemporaryDirectory() as folder:
        once, twice = os.path.join(folder, "1"), os.path.join(folder, "2")
        paths = [os.path.join(folder, f"m{k}.pt") for k in range(len(inputs))]
        for path, state in zip(paths, inputs, strict=True):
            torch.save(state, path)
        report = dedup_many.dedup_family(paths, once, **options)
        dedup_many.dedup_family([member.folder for member in report.members], twice, **options)
        assert content(once) == content(twice)


@law
@given(st.lists(states(), min_size=2, max_size=3), keeps, st.booleans())
def test_a_second_run_loses_no_stored_name(trees: list[tuple[Any, State]], keep: str, renamed: bool) -> None:
    """Also with windows and nested states: what the index says of the first run's folders, that of the second says."""
    options: dict[str, Any] = {"keep": keep, "share_renamed": renamed, "min_equal_bytes": 1}
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, f"m{k}.pt") for k in range(len(trees))]
        for path, (tree, _) in zip(paths, trees, strict=True):
            torch.save(tree, path)
        first = dedup_many.dedup_family(paths, os.path.join(folder, "1"), **options)
        second = dedup_many.dedup_family([m.folder for m in first.members], os.path.join(folder, "2"), **options)
        for one, again in zip(first.members, second.members, strict=True):
            assert placed(one.folder).keys() == placed(again.folder).keys()
            assert verify_command.verify(again.folder, one.folder).differences == ()


@law
@given(st.lists(st.lists(st.integers(0, 3), min_size=300, max_size=300), min_size=2, max_size=6))
def test_bytes_decide(rows: list[list[int]]) -> None:
    """Rows that differ in any one element are kept apart, whatever they agree in."""
    inputs = [{"w": torch.from_numpy(np.array(row, "u1"))} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        report = dedup_many.dedup_family(save_all(inputs, folder), os.path.join(folder, "out"), min_equal_bytes=1)
    assert len(report.shards) == len({tuple(row) for row in rows})
