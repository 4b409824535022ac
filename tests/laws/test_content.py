"""The laws of comparing: everything that is reported is true, everything that was planted is found, nothing is tied."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import verify as verify_command
from paramtool.commands.compare import Looking, compare
from paramtool.engine.read import streams
from paramtool.model import alias
from paramtool.model.match import Content, Match
from tests.examples import examples
from tests.laws.sharing import partition

slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
law = settings(max_examples=examples(120), deadline=None, suppress_health_check=slow)
Arrays = dict[str, np.ndarray]
CASTS = {"float32": ("bfloat16", "float16"), "float64": ("float32",), "float16": ("float32",), "int64": ("int32",)}


def found_in(arrays: Mapping[str, Any], memory: int = 1 << 20, least: int = 8) -> Content:
    """What comparing finds in a file of these arrays."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        save_file(dict(arrays), path)
        checkpoint = paramtool.read(path)
        smallest = 64 if memory == 1 else streams.MIN_BLOCK_NBYTES  # so that small arrays have many blocks
        with mock.patch.object(streams, "MIN_BLOCK_NBYTES", smallest):
            return compare(checkpoint, alias.build(checkpoint), Looking(min_nbytes=least, memory=memory))


def seen(arrays: Arrays, match: Match) -> np.ndarray:
    """What the window of a match shows of its owner."""
    owner, window = arrays[match.owner].reshape(-1), match.window
    strides = [stride * owner.itemsize for stride in window.strides]
    return np.lib.stride_tricks.as_strided(owner[window.offset :], window.shape, strides)


def cast(array: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers in another type."""
    with np.errstate(all="ignore"):
        return array.astype(getattr(ml_dtypes, dtype, dtype))


def assert_true(arrays: Arrays, content: Content) -> None:
    """Everything that was reported, asked of NumPy."""
    for equal in content.equal:
        first = arrays[equal.names[0]]
        for name in equal.names[1:]:
            assert arrays[name].dtype == first.dtype and arrays[name].shape == first.shape
            assert arrays[name].tobytes() == first.tobytes()
        assert equal.constant == (len({e.tobytes() for e in first.reshape(-1)}) == 1)
    for name, element in content.constants.items():
        assert arrays[name].tobytes() == element * arrays[name].size
    for match in content.matches:
        shown, value = seen(arrays, match), arrays[match.name]
        assert shown.shape == value.shape
        if match.relation == "cast":
            assert shown.dtype != value.dtype
            assert cast(shown, value.dtype.name).tobytes() == value.tobytes()
            back = cast(value, shown.dtype.name).tobytes()
            assert not match.lossless or back == np.ascontiguousarray(shown).tobytes()
        else:
            assert shown.dtype == value.dtype
            assert np.ascontiguousarray(shown).tobytes() == value.tobytes()


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@st.composite
def coincidences(draw: st.DrawFn) -> Arrays:
    """Arrays of few different values, so that much repeats by chance."""
    found = {}
    for k in range(draw(st.integers(1, 8))):
        shape = draw(SHAPES)
        values = st.lists(st.sampled_from((0.0, -0.0, 1.0, float("nan"))), min_size=1, max_size=3)
        pattern = np.resize(np.array(draw(values)), shape)
        found[f"t{k}"] = cast(pattern, draw(st.sampled_from(("float32", "bfloat16", "float16", "float64"))))
    return found


@law
@given(coincidences(), st.sampled_from((1, 1 << 14, 1 << 29)))
def test_what_is_reported_is_true(arrays: Arrays, memory: int) -> None:
    """Few values, many coincidences: every class, match and constant holds for every byte."""
    assert_true(arrays, found_in(arrays, memory, least=1))


@st.composite
def planted(draw: st.DrawFn) -> tuple[Arrays, dict[str, str]]:
    """Random arrays and, made of them, slices, transposes, other shapes, casts, copies, constants: {name: which}."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays: Arrays = {}
    kinds: dict[str, str] = {}
    for k in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.integers(2, 9), min_size=1, max_size=3)))
        kind = draw(st.sampled_from(("float32", "float16", "float64", "int64")))
        numbers = random.integers(-(2**31), 2**31, shape) if kind == "int64" else random.standard_normal(shape)
        base = f"base{k}"
        arrays[base] = numbers.astype(kind)
        for n in range(draw(st.integers(0, 4))):
            name = f"{draw(st.sampled_from('az'))}{k}.{n}"
            what = draw(st.sampled_from(("slice", "transpose", "cast", "equal", "constant", "view")))
            made = arrays[base]
            if what == "slice" and shape[0] > 2:
                start = draw(st.integers(0, shape[0] - 2))
                stop = draw(st.integers(start + 1, shape[0] - (start == 0)))
                made = made[start:stop]
                if draw(st.booleans()) and len(shape) > 1 and stop == start + 1:
                    made = made[0]
            elif what == "transpose" and len(shape) > 1:
                made = made.transpose(draw(st.permutations(range(len(shape)))))
            elif what == "view" and len(shape) > 1:
                made = made.reshape(draw(st.sampled_from((-1, (*shape[1:], shape[0]), (1, *shape)))))
            elif what == "cast":
                made = cast(made, draw(st.sampled_from(CASTS[kind])))
            elif what == "constant":
                made = np.full(shape, random.standard_normal()).astype(kind)
            elif what != "equal":
                continue
            arrays[name] = np.ascontiguousarray(made)
            kinds[name] = what
    order = draw(st.permutations(list(arrays)))
    return {name: arrays[name] for name in order}, kinds


@law
@given(planted(), st.sampled_from((1, 1 << 29)))
def test_what_was_planted_is_found(case: tuple[Arrays, dict[str, str]], memory: int) -> None:
    """Every planted name is had from another, or is what others are had from, or is a constant."""
    arrays, kinds = case
    content = found_in(arrays, memory)
    assert_true(arrays, content)
    linked = {name for equal in content.equal for name in equal.names} | set(content.constants)
    linked |= {name for match in content.matches for name in (match.name, match.owner)}
    for name, what in kinds.items():
        base = arrays[f"base{name[1]}"]
        if min(arrays[name].nbytes, base.nbytes) >= 8 and not (what == "cast" and arrays[name].dtype == "int32"):
            assert name in linked, (name, what, content)


@law
@given(planted())
def test_what_was_planted_takes_no_room(case: tuple[Arrays, dict[str, str]]) -> None:
    """Slices, transposes, shapes, copies, casts and constants cost nothing beside what they were made of."""
    arrays, kinds = case
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "model.safetensors")
        save_file(arrays, source)
        least: dict[str, Any] = {"min_equal_bytes": 8, "derive_casts": True, "fold_constants": True}
        plan = dedup_command.dedup(source, dry_run=True, **least).plan
    given = {name for name in arrays if name not in kinds or arrays[name].nbytes < 8}
    given |= {name for name, what in kinds.items() if what == "cast" and arrays[name].dtype == "int32"}  # not exact
    given |= {name for name in kinds if arrays[f"base{name[1]}"].nbytes < 8}
    assert plan.nbytes <= sum(arrays[name].nbytes for name in given)


@law
@given(planted(), st.booleans(), st.booleans(), st.sampled_from(("first", "last")))
def test_nothing_found_is_tied(case: tuple[Arrays, dict[str, str]], derive: bool, fold: bool, keep: str) -> None:
    """However bytes are stored, every name loads with them, in memory of its own; a second dedup changes nothing."""
    arrays = case[0]
    with tempfile.TemporaryDirectory() as folder:
        source, output, again = (os.path.join(folder, f"{k}.safetensors") for k in range(3))
        save_file(arrays, source)
        options: dict[str, Any] = {"min_equal_bytes": 8, "derive_casts": derive, "fold_constants": fold, "keep": keep}
        done = dedup_command.dedup(source, output, **options)
        found = paramtool.load_file(output)
        assert verify_command.verify(output, source).differences == ()
        dedup_command.dedup(output, again, **options)
        with open(output, "rb") as one, open(again, "rb") as other:
            assert one.read() == other.read()
    assert done.plan.nbytes <= sum(array.nbytes for array in arrays.values())
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
        assert found[name].flags.writeable
    whole = {name: np.ascontiguousarray(array) for name, array in found.items()}
    assert partition(found)[0] == partition(whole)[0]
    assert partition(found)[1] == partition(whole)[1]
