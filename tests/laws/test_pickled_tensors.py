"""A tensor that is run in one step is what its opcodes make one by one, and what is wrong is told in the same words."""

from __future__ import annotations

import io
import zipfile
from collections import OrderedDict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.errors import ParamtoolError
from paramtool.formats.pickle import opcodes
from paramtool.formats.pickle import read as pickle_read
from paramtool.formats.pickle.machine import Machine
from paramtool.formats.pickle.values import Global, Instance, PickleLimits
from paramtool.formats.torch.globals import CONSTRUCTORS, KNOWN, PickledTensor
from paramtool.formats.torch.storages import Storages
from paramtool.model.storage import SourceFile
from tests.examples import examples


def pickled(state: object, protocol: int = 2) -> bytes:
    """The pickle that torch.save writes."""
    file = io.BytesIO()
    torch.save(state, file, pickle_protocol=protocol)
    with zipfile.ZipFile(file) as archive:
        return archive.read("archive/data.pkl")


def state(count: int) -> OrderedDict[str, torch.Tensor]:
    """Tensors of all kinds of shapes, some of which share storages, behind as many as the memo's short keys reach."""
    shared = torch.arange(70_000)
    return OrderedDict({f"filler.{k}": torch.zeros(k % 3) for k in range(40)}) | OrderedDict(
        {
            f"layer.{k}": (
                torch.empty(k % 5, k),
                torch.empty(3, 2, k).transpose(0, 1),
                shared[k : 60_000 + k],
                torch.nn.Parameter(torch.empty(k, dtype=torch.bfloat16)),
                torch.tensor(float(k)),
                torch.empty(1, 1, 1, k),
            )[k % 6]
            for k in range(count)
        }
    )


Outcome = tuple[object, ...]


def outcome(data: bytes) -> Outcome:
    """All that a run leaves behind: its value, memo, counts and storages; or where it broke, and why."""
    storages = Storages(SourceFile("x", len(data), 0), "data/")
    machine = Machine(data, 0, "x", CONSTRUCTORS, persistent=storages.persistent, limits=PickleLimits(), known=KNOWN)
    try:
        found = machine.run()
    except ParamtoolError as error:
        return type(error).__name__, str(error), storages.whole
    return plain(found.value), plain(machine.memo), found.stop, found.uses, machine.objects, storages.whole


def plain(value: object, depth: int = 20) -> object:
    """A value as something that can be compared."""
    if not depth:
        return "..."
    if isinstance(value, PickledTensor):
        return "tensor", value.value, value.requires_grad, value.kind, plain(value.state, depth - 1)
    if isinstance(value, Instance):
        parts = (value.args, value.kwargs, value.mapping, value.sequence, value.state)
        return value.path, value.called, [plain(part, depth - 1) for part in parts]
    if isinstance(value, Global):
        return value.path
    if isinstance(value, dict):
        return [(plain(key, depth - 1), plain(item, depth - 1)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(item, depth - 1) for item in value]
    return value


def one_by_one(data: bytes) -> Outcome:
    """The outcome where no tensor is run in one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opcodes, "run", lambda machine, at: 0)
        return outcome(data)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_tensors_of_torch(protocol: int) -> None:
    data = pickled(state(300), protocol)
    assert outcome(data) == one_by_one(data)


def test_most_tensors_take_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    run = opcodes.run

    def counted(machine: Machine, at: int) -> int:
        steps.append(run(machine, at))
        return steps[-1]

    monkeypatch.setattr(opcodes, "run", counted)
    outcome(pickled({f"w{k}": torch.empty(k, 2) for k in range(1000)}))
    assert sum(map(bool, steps)) > 900


NEIGHBOURS = {
    "first": torch.empty(5, 3),
    "second": torch.empty(2, 300, 3).transpose(0, 1),
    "third": torch.nn.Parameter(torch.zeros(70_000)[66_000:]),
}
"""Their numbers have one, two and four bytes."""
PICKLE = pickled(state(0) | NEIGHBOURS)
TENSORS = range(PICKLE.index(b"first"), len(PICKLE))


@pytest.mark.sample(9)
@pytest.mark.parametrize("at", TENSORS[::2])
def test_each_byte_of_a_tensor_changed(at: int) -> None:
    for place in {at, at + 1} & {*TENSORS}:
        old = PICKLE[place]
        alike = next((kind for kind in (b"KMJ", b"\x85\x86\x87", b"\x88\x89", bytes(range(8))) if old in kind), b"")
        for new in {old ^ 1, old + 1 & 255, *alike}:
            changed = bytes((*PICKLE[:place], new, *PICKLE[place + 1 :]))
            assert outcome(changed) == one_by_one(changed), (place, new)


@given(st.data())
@settings(max_examples=examples(100))
def test_damage_is_told_alike(data: st.DataObject) -> None:
    """Bytes left out, copied or cut off."""
    damaged = bytearray(PICKLE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(TENSORS.start, len(damaged) - 1))
        kind = data.draw(st.sampled_from(["drop", "cut", "copy"]))
        if kind == "drop":
            del damaged[at]
        elif kind == "cut" and at > TENSORS.start + 100:
            del damaged[at:]
        else:
            damaged[at : at + 8] = damaged[at - 64 : at - 56]
    assert outcome(bytes(damaged)) == one_by_one(bytes(damaged))


def test_an_end_before_the_tensor_ends() -> None:
    """A limit of bytes holds inside a tensor, too."""
    for stop in TENSORS[::7]:
        storages = Storages(SourceFile("x", len(PICKLE), 0), "data/")
        with pytest.raises(ParamtoolError, match=f"at most {stop:,} bytes"):
            pickle_read.load(
                PICKLE,
                0,
                "x",
                CONSTRUCTORS,
                persistent=storages.persistent,
                limits=PickleLimits(max_nbytes=stop),
                known=KNOWN,
            )
