"""Places of names in what they share: equal just where the elements are, by torch, whatever the container does."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable
from itertools import combinations, product
from operator import mul
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import paramtool
from paramtool.commands.locked_model import LockReading, locked_model
from paramtool.lockfile import read, write
from paramtool.lockfile.lock import LockedModel, LockedTie
from paramtool.model.finding import Finding
from paramtool.passes.lock.compare import findings
from tests.examples import IS_WHOLE

TIES = {"PT101", "PT102", "PT106"}
State = dict[str, torch.Tensor]


def locked(state: State) -> LockedModel:
    """What a lock says of a state dict that torch saved; read back from its text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.pt"
        torch.save(state, path)
        return read.parse(write.text([locked_model(path, "m.pt", LockReading())])).models["m.pt"]


def shared(state: State) -> dict[tuple[str, str], set[tuple[int, int]]]:
    """{two names: pairs of elements that are one}, by torch: the elements of each storage are numbered."""
    numbers = {}
    for name, tensor in state.items():
        storage = tensor.untyped_storage()
        size = storage.nbytes() // tensor.element_size()
        ids = torch.arange(size).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        numbers[name] = [(storage.data_ptr(), one) for one in ids.flatten().tolist()]
    found = {}
    for a, b in combinations(sorted(state), 2):
        where: dict[tuple[int, int], list[int]] = {}
        for k, one in enumerate(numbers[a]):
            where.setdefault(one, []).append(k)
        if pairs := {(k, j) for j, one in enumerate(numbers[b]) for k in where.get(one, ())}:
            found[a, b] = pairs
    return found


def of_ties(rows: Iterable[Finding]) -> list[Finding]:
    return [one for one in rows if one.id in TIES]


def reloaded(state: State) -> State:
    """Through torch.save and torch.load, which keep storages and strides."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: State = torch.load(buffer)
    return loaded


def views(rank: int, most: int = 4, room: int = 12) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """(shape, strides, reach) of every view of a storage in which no two places are the same element."""
    found = []
    sizes = list(product(range(1, most + 1), repeat=rank))
    for shape, strides in product(sizes, sizes):
        elements = [sum(map(mul, at, strides)) for at in product(*map(range, shape))]
        if max(elements) < room and len({*elements}) == len(elements):
            found.append((shape, strides, max(elements)))
    return found


VIEWS = [views(rank) for rank in range(3)]


@st.composite
def states(draw: st.DrawFn) -> State:
    """Views of two storages: slices, transposes and strides, with equal numbers everywhere."""
    state = {}
    storages = [torch.zeros(12), torch.zeros(12)]
    for name in draw(st.lists(st.sampled_from("abcde"), unique=True, min_size=2, max_size=4)):
        shape, strides, reach = draw(st.sampled_from(draw(st.sampled_from(VIEWS))))
        offset = draw(st.integers(0, 11 - reach))
        state[name] = draw(st.sampled_from(storages)).as_strided(shape, strides, offset)
    return state


@settings(deadline=None, suppress_health_check=[HealthCheck.filter_too_much])  # of few examples, few share a name
@given(states(), states())
def test_a_finding_just_where_torch_shares_other_elements(was: State, now: State) -> None:
    """Of names that both have with one shape; without numbers that could tell them apart."""
    both = [name for name in was if name in now and was[name].shape == now[name].shape]
    was, now = {name: was[name] for name in both}, {name: now[name] for name in both}
    assume(both)
    same = shared(was) == shared(now)
    rows = of_ties(findings(locked(was), locked(now), "l"))
    if not same:
        assert rows, (shared(was), shared(now))
    elif _has_cover(was):
        assert not rows, [one.message for one in rows]


def _has_cover(state: State) -> bool:
    """Whether in each alias set one name has all elements of the others; otherwise gaps between them count, too."""
    pairs = shared(state)
    if not pairs:
        return True
    return any(
        all(len(found) == min(state[a].numel(), state[b].numel()) for (a, b), found in pairs.items() if whole in (a, b))
        and all(whole in pair for pair in pairs)
        for whole in state
    ) and len({name for pair in pairs for name in pair}) == len(state)


@settings(deadline=None)
@given(states())
def test_other_containers_have_the_same_places(state: State) -> None:
    """torch.save again, a torch file and a safetensors file of dedup's: no tie is another one."""
    was = locked(state)
    assert not of_ties(findings(was, locked(reloaded(state)), "l"))
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder) / "m.pt")
        for name in ("d.safetensors", "d.pt"):
            paramtool.dedup(Path(folder) / "m.pt", Path(folder) / name, min_equal_bytes=1)
            now = locked_model(Path(folder) / name, name, LockReading())
            assert not of_ties(findings(was, now, "l")), write.text([was, now])


def test_equal_transposes_are_moved_with_what_they_share(tmp_path: Path) -> None:
    """dedup stores a tensor in the transpose of another one, with its slice: other strides, and one relation."""
    torch.manual_seed(0)
    base = torch.randn(64, 48)
    copy = base.t().contiguous()
    state = {"base": base, "copy": copy, "copy.part": copy[8:16], "copy.column": copy[:, 3]}
    torch.save(state, tmp_path / "m.pt")
    paramtool.dedup(tmp_path / "m.pt", tmp_path / "d.safetensors")
    assert (tmp_path / "d.safetensors").stat().st_size < 2 * base.nbytes  # the copy is not stored
    now = locked_model(tmp_path / "d.safetensors", "d", LockReading())
    assert not of_ties(findings(locked(state), now, "l"))


WHOLE = torch.zeros(24)
PAIRS: dict[str, tuple[State, State, list[tuple[str, tuple[str, ...]]]]] = {
    "a window that moved": (
        {"a": WHOLE[0:8], "b": WHOLE[4:12]}, {"a": WHOLE[0:8], "b": WHOLE[6:14]}, [("PT106", ("b", "a"))],
    ),
    "another place in the file, the same overlap": (
        {"a": WHOLE[0:8], "b": WHOLE[4:12]}, {"a": WHOLE[8:16], "b": WHOLE[12:20]}, [],
    ),
    "an overlap that became a full alias": (
        {"a": WHOLE[0:8], "b": WHOLE[4:12]}, {"a": WHOLE[0:8], "b": WHOLE[0:8]},
        [("PT106", ("a", "b")), ("PT106", ("b", "a"))],
    ),
    "a transpose that became a reshape": (
        {"a": WHOLE.view(4, 6), "b": WHOLE.view(4, 6).t()}, {"a": WHOLE.view(4, 6), "b": WHOLE.view(6, 4)},
        [("PT106", ("b", "a"))],
    ),
    "slices of a fused tensor that was copied": (
        {"all": WHOLE, "first": WHOLE[:12], "last": WHOLE[12:]},
        {"all": WHOLE.clone(), "first": WHOLE[:12], "last": WHOLE[12:]},
        [("PT101", ("first", "all")), ("PT101", ("last", "all"))],
    ),
    "the first name was copied: the others are still tied": (
        dict.fromkeys("abcd", WHOLE), {"a": WHOLE.clone(), "b": WHOLE, "c": WHOLE, "d": WHOLE},
        [("PT101", ("a", "b"))],
    ),
    "the first name was never near the one that was copied": (
        {"a": WHOLE[:4], "m": WHOLE[2:10], "z": WHOLE[8:12]},
        {"a": WHOLE[:4], "m": WHOLE[2:10], "z": WHOLE[8:12].clone()},
        [("PT101", ("z", "m"))],
    ),
    "names that were apart": (
        {"a": WHOLE[:8].clone(), "b": WHOLE[4:12]}, {"a": WHOLE[:8], "b": WHOLE[4:12]}, [("PT102", ("b", "a"))],
    ),
    "a name more does not move the others": (
        {"b": WHOLE.view(4, 6), "c": WHOLE.view(4, 6)[1:]},
        {"a": WHOLE.view(4, 6).t(), "b": WHOLE.view(4, 6), "c": WHOLE.view(4, 6)[1:]}, [],
    ),
}  # fmt: skip
"""{what changed: (then, now, (id, names) of each finding of ties)}"""


@pytest.mark.parametrize("what", PAIRS)
def test_the_pair_that_is_named(what: str) -> None:
    """A pair that torch shows to have elements in common, at its line of the lock."""
    was, now, wanted = PAIRS[what]
    model = locked(was)
    rows = of_ties(findings(model, locked(now), "l"))
    assert [(one.id, one.names) for one in rows] == wanted, [one.message for one in rows]
    text = write.text([model]).split("\n")
    for one in rows:
        assert one.place is not None and tuple(sorted(one.names)) in shared(now if one.id == "PT102" else was)
        assert text[one.place.line - 1].split()[0] in {"PT101": "tied", "PT106": "tied view", "PT102": "model"}[one.id]


SQUARE = WHOLE[:16].view(4, 4)
LOST: dict[str, tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], str]] = {
    "a copy": ({"a": WHOLE, "b": WHOLE}, {"a": WHOLE.clone(), "b": WHOLE.clone()}, " (equal numbers)"),
    "trained apart": ({"a": WHOLE, "b": WHOLE}, {"a": WHOLE.clone(), "b": WHOLE + 1}, " (other numbers)"),
    "trained, and equal": ({"a": WHOLE, "b": WHOLE}, {"a": WHOLE + 1, "b": WHOLE + 1}, " (equal numbers)"),
    "another type": ({"a": WHOLE, "b": WHOLE}, {"a": WHOLE.clone(), "b": WHOLE.double()}, ""),
    "another shape": ({"a": WHOLE, "b": WHOLE}, {"a": WHOLE.clone(), "b": WHOLE.view(1, -1).clone()}, ""),
    "a slice": ({"a": WHOLE, "b": WHOLE[:8]}, {"a": WHOLE.clone(), "b": WHOLE[:8].clone()}, ""),
    "a transpose": ({"a": SQUARE, "b": SQUARE.t()}, {"a": SQUARE.clone(), "b": SQUARE.t().clone()}, ""),
}
"""{what became of two names that shared memory: (then, now, what the finding says of their numbers)}"""


@pytest.mark.parametrize("what", LOST)
def test_whether_the_numbers_of_a_lost_tie_diverged(what: str) -> None:
    """As torch.equal says, of names that were all of the same tensor."""
    was, now, said = LOST[what]
    assert said in ("", f" ({'equal' if torch.equal(now['a'], now['b']) else 'other'} numbers)")
    (lost,) = (one for one in findings(locked(was), locked(now), "l") if one.id == "PT101")
    assert lost.message.partition(", and does not any more")[2] == said


def test_nothing_is_said_of_numbers_that_were_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of headers reads no tensor."""
    monkeypatch.chdir(tmp_path)
    torch.save({"a": WHOLE, "b": WHOLE}, "m.pt")
    paramtool.lock(["m.pt"], headers=True)
    torch.save({"a": WHOLE, "b": WHOLE + 1}, "m.pt")
    (lost,) = (one for one in paramtool.check().findings if one.id == "PT101")
    assert lost.message.endswith("and does not any more")


def test_an_alias_set_of_many_names_that_fell_apart() -> None:
    """Each name once; what covers the others is their partner, however many there are."""
    count = 2000 if IS_WHOLE else 500
    whole = torch.zeros(2 * count)
    was = {"whole": whole} | {f"part.{k:04}": whole[2 * k : 2 * k + 2] for k in range(count)}
    now = {name: tensor.clone() for name, tensor in was.items()}
    rows = of_ties(findings(locked(was), locked(now), "l"))
    assert len(rows) == count and all("whole" in one.names for one in rows)


def test_a_tie_of_a_lock_without_a_known_type() -> None:
    """A type of a later version: the names are tied or not, and their places are not judged."""
    model = locked({"a": WHOLE[0:8], "b": WHOLE[4:12]})
    odd = {name: one._replace(dtype="float3") for name, one in model.tensors.items()}
    other = LockedModel(model.path, model.files, model.content, model.unnamed, odd, model.ties, views=model.views)
    apart = LockedModel(model.path, model.files, model.content, model.unnamed, odd)
    assert not of_ties(findings(other, model, "l"))
    assert [one.id for one in of_ties(findings(other, apart, "l"))] == ["PT101"]
    assert model.ties == (LockedTie(("a", "b"), "storage", model.ties[0].line),)
