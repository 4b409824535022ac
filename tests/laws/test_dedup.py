"""The law of the whole program: what was saved comes back, in values and in who shares memory with whom."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import export as export_command
from paramtool.commands import verify as verify_command
from paramtool.model.alias import SPAN_PREFIX
from tests.examples import examples
from tests.laws.sharing import partition, raw, same_values
from tests.laws.states import flat_states, states

law = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
forms = st.booleans().map(lambda zipped: {"_use_new_zipfile_serialization": zipped})
State = tuple[Any, dict[str, torch.Tensor]]


def saved(state: object, folder: str, **form: bool) -> str:
    """A file of torch.save."""
    path = os.path.join(folder, "model.pt")
    torch.save(state, path, **form)
    return path


def content(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


@law
@given(states(), forms)
def test_what_is_read_is_what_was_saved(state: State, form: dict[str, bool]) -> None:
    """`load_file` of torch's own file gives the values and the sharing of the tensors that were saved."""
    with tempfile.TemporaryDirectory() as folder:
        found = paramtool.load_file(saved(state[0], folder, **form))
    assert same_values(state[1], found)
    assert partition(state[1]) == partition(found)


@law
@given(states(), forms, st.sampled_from(("first", "last", "*b*")), st.sampled_from((1, 16, 4096)))
def test_what_is_deduplicated_is_what_was_saved(state: State, form: dict[str, bool], keep: str, least: int) -> None:
    """The values and the sharing of a deduplicated file are those of the tensors: equal is never shared."""
    with tempfile.TemporaryDirectory() as folder:
        path, output = saved(state[0], folder, **form), os.path.join(folder, "out.safetensors")
        dedup_command.dedup(path, output, keep=keep, min_equal_bytes=least)
        found = paramtool.load_file(output)
        assert verify_command.verify(output, path).differences == ()
    assert same_values(state[1], found)
    assert partition(state[1]) == partition(found)


@law
@given(states(), st.sampled_from((1, 4096)))
def test_the_safetensors_library_reads_every_stored_tensor(state: State, least: int) -> None:
    """Every stored tensor that is a name has its values, read by the reference library; nothing stands twice."""
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "out.safetensors")
        report = dedup_command.dedup(saved(state[0], folder), output, min_equal_bytes=least)
        with safe_open(output, "pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    assert set(report.graph.owners) == set(stored)
    for name, tensor in stored.items():
        if not name.startswith(SPAN_PREFIX):
            assert raw(state[1][name]) == raw(tensor), name
            assert (state[1][name].dtype, state[1][name].shape) == (tensor.dtype, tensor.shape), name


@law
@given(states(), st.sampled_from((1, 4096)))
def test_dedup_of_a_deduplicated_file_gives_the_same_bytes(state: State, least: int) -> None:
    """Dedup is idempotent, byte for byte."""
    with tempfile.TemporaryDirectory() as folder:
        once, twice = (os.path.join(folder, name) for name in ("1.safetensors", "2.safetensors"))
        dedup_command.dedup(saved(state[0], folder), once, min_equal_bytes=least)
        dedup_command.dedup(once, twice, min_equal_bytes=least)
        assert content(once) == content(twice)


@law
@given(states(), st.sampled_from(("last", "*b*", "*e*")), st.sampled_from((1, 4096)))
def test_keep_is_idempotent(state: State, keep: str, least: int) -> None:
    """Whatever `keep` says, to say it again changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        once, twice = (os.path.join(folder, name) for name in ("1.safetensors", "2.safetensors"))
        dedup_command.dedup(saved(state[0], folder), once, keep=keep, min_equal_bytes=least)
        dedup_command.dedup(once, twice, keep=keep, min_equal_bytes=least)
        assert content(once) == content(twice)


@law
@given(states(), st.sampled_from(("last", "*b*")), st.sampled_from((1, 4096)))
def test_keep_can_be_changed_later(state: State, keep: str, least: int) -> None:
    """A file that was written with one `keep` and again with another still holds every value and every tie."""
    with tempfile.TemporaryDirectory() as folder:
        once, twice = (os.path.join(folder, name) for name in ("1.safetensors", "2.safetensors"))
        dedup_command.dedup(saved(state[0], folder), once, min_equal_bytes=least)
        dedup_command.dedup(once, twice, keep=keep, min_equal_bytes=least)
        found = paramtool.load_file(twice)
    assert same_values(state[1], found)
    assert partition(state[1]) == partition(found)


@law
@given(states(), st.integers(1, 200), st.sampled_from((1, 4096)))
def test_shards_hold_the_same(state: State, max_nbytes: int, least: int) -> None:
    """Split into shards of any size, values and sharing stay, and dedup of the folder gives the same files."""
    with tempfile.TemporaryDirectory() as folder:
        path, once, twice = saved(state[0], folder), os.path.join(folder, "1"), os.path.join(folder, "2")
        dedup_command.dedup(path, once, max_shard_size=max_nbytes, min_equal_bytes=least)
        found = paramtool.load_file(once)
        assert same_values(state[1], found)
        assert partition(state[1]) == partition(found)
        assert verify_command.verify(once, path).differences == ()
        dedup_command.dedup(once, twice, max_shard_size=max_nbytes, min_equal_bytes=least)
        assert sorted(os.listdir(once)) == sorted(os.listdir(twice))
        for name in os.listdir(once):
            assert content(os.path.join(once, name)) == content(os.path.join(twice, name)), name


@law
@given(states())
def test_shards_go_back_into_one_file(state: State) -> None:
    """A sharded output read as a source gives the shares and values on: shards and one file say the same."""
    with tempfile.TemporaryDirectory() as folder:
        path, shards = saved(state[0], folder), os.path.join(folder, "shards")
        dedup_command.dedup(path, shards, max_shard_size=16)
        assert verify_command.verify(path, shards).differences == ()


@law
@given(flat_states(), forms)
def test_the_objects_come_back(state: dict[str, torch.Tensor], form: dict[str, bool]) -> None:
    """The tree beside the tensors (typed keys, numbers, texts) survives being written and read."""
    rest = {0: 1, "0": 2.5, "n": [None, True, "ü", b"\0", (1, float("inf"))], "t": [*state.values()]}
    with tempfile.TemporaryDirectory() as folder:
        path, output = saved(rest, folder, **form), os.path.join(folder, "out.safetensors")
        dedup_command.dedup(path, output)
        assert paramtool.read(path).objects == paramtool.read(output).objects


@law
@given(flat_states())
def test_export_stores_every_name_for_itself(state: dict[str, torch.Tensor]) -> None:
    """`export` of all names of a deduplicated file gives plain tensors that the library reads, each with its values."""
    with tempfile.TemporaryDirectory() as folder:
        once, plain = (os.path.join(folder, name) for name in ("1.safetensors", "2.safetensors"))
        dedup_command.dedup(saved(state, folder), once, min_equal_bytes=1)
        export_command.export(once, plain, names=list(state))
        with safe_open(plain, "pt") as file:
            found = {name: file.get_tensor(name) for name in state}
    for name, tensor in state.items():
        assert raw(tensor) == raw(found[name]), name


@pytest.mark.parametrize("zipped", [True, False])
def test_equal_copies_are_stored_once_and_loaded_apart(tmp_path: Any, zipped: bool) -> None:
    """Two tensors with equal bytes stand once in the file, and an edit of one leaves the other alone."""
    w = torch.randn(64, 64)
    path, output = str(tmp_path / "m.pt"), str(tmp_path / "o.safetensors")
    torch.save({"a": w, "b": w.clone()}, path, _use_new_zipfile_serialization=zipped)
    report = dedup_command.dedup(path, output)
    found = paramtool.load_file(output)
    assert report.plan.nbytes == w.nbytes
    found["a"][0, 0] = 7
    assert found["b"][0, 0] == w[0, 0]
