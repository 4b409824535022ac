"""What an error says is for a person, whatever a file holds: names, paths and values of any length are cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import MAX_LINE, MAX_MESSAGE, Defects, FormatError, ParamtoolError, bounded
from tests.hostile import makers_arrays, makers_onnx, makers_torch
from tests.hostile.command import quick
from tests.hostile.makers_pickle import PROTO, text
from tests.hostile.makers_safetensors import KEY, build, item
from tests.hostile.makers_torch import state, tensor
from tests.hostile.makers_zip import Part, archive
from tests.hostile.worst import written

LONG = 60_000


def _many(count: int, long: int) -> dict[str, object]:
    return {f"{k}{'n' * long}": item("F32", [4], [0, 15]) for k in range(count)}


FILES: dict[str, Callable[[str], tuple[str, bytes]]] = {
    "a name of a tensor": lambda long: ("model.safetensors", build({long: item("F32", [5])})),
    "names of many tensors": lambda long: ("model.safetensors", build(_many(30, len(long) // 20))),
    "a type": lambda long: ("model.safetensors", build({"w": item(long)})),
    "a shape": lambda long: ("model.safetensors", build({"w": item("F32", [10**18] * (len(long) // 20))})),
    "a record's key": lambda long: (
        "model.safetensors", build({"__metadata__": {KEY: json.dumps({"version": 3, long: 1})}, "w": item()})
    ),
    "a record": lambda long: ("model.safetensors", build({"__metadata__": {KEY: long}, "w": item()})),
    "an alias": lambda long: (
        "model.safetensors",
        build({"__metadata__": {KEY: json.dumps({"version": 1, "aliases": {long: {"owner": long}}})}, "w": item()}),
    ),
    "members of a zip": lambda long: ("model.pt", archive(*makers_torch.parts(), Part(f"archive/../{long}".encode()))),
    "two names in a zip": lambda long: (
        "model.pt", archive(*makers_torch.parts(), Part(b"archive/x", local_name=f"archive/{long}".encode()))
    ),
    "a storage's key": lambda long: (
        "model.pt", archive(*makers_torch.parts(state(w=tensor(makers_torch.storage(text(long))))))
    ),
    "a tensor's name": lambda long: (
        "model.pt",
        archive(*makers_torch.parts(state(**{long: tensor(size=makers_torch.numbers((9,)))}))),
    ),
    "a class": lambda long: (
        "model.pt",
        archive(*makers_torch.parts(PROTO + makers_torch.name("os", "s" * min(len(long), 4000)) + b")R.")),
    ),
    "classes": lambda long: (
        "model.pt",
        archive(*makers_torch.parts(
            PROTO + b"](" + b"".join(makers_torch.name(f"m{k}", "s" * 900) + b")R" for k in range(40)) + b"e."
        )),
    ),
    "an initialiser": lambda long: (
        "model.onnx",
        makers_onnx.build(makers_onnx.graph(makers_onnx.tensor(makers_onnx.RAW, name=long.encode(), dims=(9,)))),
    ),
    "a header": lambda long: (
        "model.npy", makers_arrays.npy(makers_arrays.header(shape=f"({long!a},)"), version=(2, 0))
    ),
    "a parameter": lambda long: (
        "model.params", makers_arrays.params([makers_arrays.W, makers_arrays.W], [long, long])
    ),
    "an index": lambda long: (
        "model.safetensors.index.json", json.dumps({"weight_map": {long: f"../{long}"}}).encode()
    ),
    "a shard": lambda long: (
        "model.safetensors.index.json", json.dumps({"weight_map": {"w": f"{long}.safetensors"}}).encode()
    ),
}  # fmt: skip


@pytest.mark.sample(24)
@pytest.mark.parametrize("long", ["n" * LONG, "\x1b" * LONG, "\U0001f600" * (LONG // 5), "n\n" * (LONG // 2)],
                         ids=["letters", "escapes", "wide", "lines"])  # fmt: skip
@pytest.mark.parametrize("key", FILES)
def test_a_message_is_for_a_person(key: str, long: str, tmp_path: Path) -> None:
    """A few screens at most, lines of a few hundred characters, as text and as JSON; and it still says which file."""
    name, data = FILES[key](long)
    written(tmp_path, name, data)
    for args in (("inspect",), ("dedup", "-o", "out.safetensors"), ("inspect", "--json")):
        ran = quick(args[0], name, *args[1:], cwd=tmp_path)
        if args[0] == "inspect" and ran.code in (0, 1):
            continue
        assert "internal error" not in ran.err, ran
        if ran.code:
            assert len(ran.err) < MAX_MESSAGE + 2 * MAX_LINE, len(ran.err)
            assert max(map(len, ran.err.splitlines())) < MAX_LINE + 20, ran.err[:3000]
            assert name in ran.err


@given(st.text(max_size=50), st.integers(1, 4000), st.lists(st.text(max_size=5), max_size=5))
def test_what_is_short_stays_and_what_is_long_keeps_its_ends(part: str, times: int, others: list[str]) -> None:
    """A law of all errors."""
    whole = part * times + "\n" + "\n".join(others)
    for made in (ParamtoolError(whole), FormatError("x", whole)):
        said = made.hint or str(made)
        assert len(said) <= MAX_MESSAGE
        assert said == bounded(said)  # once is enough
        if len(repr(whole)) < MAX_LINE:
            assert said == whole
    defects = Defects("where", [whole] * 30)
    assert len(str(defects)) <= MAX_MESSAGE and all(len(one) <= MAX_MESSAGE for one in defects.defects)


def test_what_is_cut_is_said() -> None:
    """The beginning, the end, and how much is missing between them."""
    said = str(FormatError("model.pt: " + "n" * 5000 + ": expected less"))
    assert said.startswith("model.pt: nnn") and said.endswith("nnn: expected less")
    kept = sum(map(len, said.split(" [... ")[0:1])) + len(said.split(" characters ...] ")[1])
    assert f"[... {5025 - kept} characters ...]" in said
