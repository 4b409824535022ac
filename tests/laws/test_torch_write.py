"""The law of torch outputs: what torch.load finds in one is what it finds in the input, in values and in sharing."""

from __future__ import annotations

import os
import tempfile
import zipfile
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paramtool.commands import dedup as dedup_command
from paramtool.commands import verify as verify_command
from tests.examples import examples
from tests.laws.sharing import partition, same_values
from tests.laws.states import NAMES, UNTYPED, flat_states, states, windows

law = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
forms = st.booleans().map(lambda zipped: {"_use_new_zipfile_serialization": zipped})
PATTERNS = (torch.uint8, *((*UNTYPED, torch.uint64, torch.float8_e4m3fnuz) if UNTYPED else ()))
"""dtypes under which torch.save stores one storage together: its bytes stand untyped."""


@st.composite
def mixed_states(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """{name: tensor}: windows of several dtypes on few storages, beside those of `flat_states`."""
    count = draw(st.integers(1, 6)) * 8
    storages = [torch.frombuffer(bytearray(draw(st.binary(min_size=count, max_size=count))), dtype=torch.uint8).clone()]
    storages.append(torch.arange(48, dtype=torch.uint8))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=8, unique=True))
    found = {}
    for name in names:
        base = draw(st.sampled_from(storages)).view(draw(st.sampled_from(PATTERNS)))
        found[name] = draw(windows(base))
    return found


def flat(value: Any, path: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    """{name: tensor} of a nested state."""
    if isinstance(value, torch.Tensor):
        return {".".join(path): value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return {name: t for key, child in pairs for name, t in flat(child, (*path, str(key))).items()}


def content(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


def agree(state: Any, folder: str, least: int = 1, **form: bool) -> None:
    """Save, deduplicate to torch's form, and let torch compare both files."""
    path, output = os.path.join(folder, "model.pt"), os.path.join(folder, "out.pt")
    torch.save(state, path, **form)
    dedup_command.dedup(path, output, min_equal_bytes=least)
    # torch 2.13 cannot load untyped storages of the stacked form with weights_only
    expected = flat(torch.load(path, weights_only=True) if form.get("_use_new_zipfile_serialization", True) else state)
    with zipfile.ZipFile(output) as archive:
        assert archive.testzip() is None
    for mmap in (False, True):
        found = flat(torch.load(output, weights_only=True, mmap=mmap))
        assert same_values(expected, found)
        assert partition(expected) == partition(found)
    assert verify_command.verify(output, path).differences == ()


@law
@given(states(), forms, st.sampled_from((1, 4096)))
def test_torch_loads_the_values_and_the_sharing_of_the_input(state: tuple[Any, Any], form: Any, least: int) -> None:
    """Ties, slices, transposes, expanded and overlapping windows; equal copies stay apart whatever is looked for."""
    with tempfile.TemporaryDirectory() as folder:
        agree(state[0], folder, least, **form)


@law
@given(mixed_states())
def test_windows_of_several_dtypes_on_one_storage(state: dict[str, torch.Tensor]) -> None:
    """One storage under many dtypes comes back as one."""
    with tempfile.TemporaryDirectory() as folder:
        agree(state, folder)


@law
@given(states() | mixed_states().map(lambda state: (state, state)), st.sampled_from(("first", "last", "*b*")))
def test_equal_inputs_give_equal_bytes(state: tuple[Any, Any], keep: str) -> None:
    """Under any name, whatever `--keep` says, and again from its own output."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        one, other, again = (os.path.join(folder, name) for name in ("1.pt", "other.ckpt", "again.bin"))
        torch.save(state[0], path)
        dedup_command.dedup(path, one)
        dedup_command.dedup(path, other, keep=keep)
        dedup_command.dedup(one, again, keep=keep)
        assert content(one) == content(other) == content(again)


@law
@given(flat_states(), st.sampled_from((1, 4096)))
def test_by_way_of_safetensors(state: dict[str, torch.Tensor], least: int) -> None:
    """What stands once in a deduplicated safetensors file comes back tied in torch only where it was."""
    with tempfile.TemporaryDirectory() as folder:
        path, between, output = (os.path.join(folder, name) for name in ("m.pt", "m.safetensors", "o.pt"))
        torch.save(state, path)
        dedup_command.dedup(path, between, min_equal_bytes=least)
        dedup_command.dedup(between, output, min_equal_bytes=least)
        expected, found = torch.load(path, weights_only=True), torch.load(output, weights_only=True)
        assert same_values(expected, found)
        assert partition(expected) == partition(found)
