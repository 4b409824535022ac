"""Judging a model against its lock: one change in it gives the finding of its kind, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.lockfile import digests, read, write
from paramtool.lockfile.lock import (
    COMPOUND,
    CONFIG,
    DECLARED,
    STORAGE,
    UNREAD,
    UNTIED,
    LockedFile,
    LockedModel,
    LockedObject,
    LockedTensor,
    LockedView,
)
from paramtool.lockfile.lock import LockedTie as Tie
from paramtool.model.finding import ERROR, NOTE, WARNING, Finding
from paramtool.passes.lock.compare import findings

LOCK = "paramtool.lock"


def tensor(name: str, digit: str = "1", shape: tuple[int, ...] = (2,), dtype: str = "float32") -> LockedTensor:
    """A tensor whose digest is one digit."""
    return LockedTensor(name, dtype, shape, digit * 64)


def model(*tensors: LockedTensor, **more: object) -> LockedModel:
    """A model of one file."""
    by_name = {one.name: one for one in sorted(tensors)}
    files = (LockedFile("m.pt", 9, "1" * 64),)
    made = LockedModel(
        "m.pt", files, digests.content(by_name.values()), digests.unnamed(by_name.values()), by_name
    )  # fmt: skip
    return replace(made, **more)


def locked(made: LockedModel) -> LockedModel:
    """The same with the lines that it has in a lock file."""
    return read.parse(write.text([made])).models["m.pt"]


def found(was: LockedModel, now: LockedModel, content_only: bool = False) -> list[Finding]:
    """What the second is found to be, beside the first."""
    return list(findings(locked(was), now, LOCK, content_only=content_only))


def ids(rows: Iterable[Finding]) -> list[tuple[str, str]]:
    """(id, severity) of each."""
    return [(one.id, one.severity) for one in rows]


A, B = tensor("a", "1"), tensor("b", "2")
PAIR = tensor("a", "1", (), COMPOUND)
LONG = tensor("a", "1", (4,))
BOTH = (Tie(("a", "b"), STORAGE),)
OBJECTS = {"epoch": LockedObject("epoch", "3" * 64, "3")}
UNSEEN = tensor("a")._replace(digest=UNREAD)
SIZED = (LockedFile("m.pt", 9, ""),)
OTHER_FILE = (LockedFile("m.safetensors", 9, "2" * 64),)
CHANGES: dict[str, tuple[LockedModel, LockedModel, list[tuple[str, str]]]] = {
    "same": (model(A, B), model(A, B), []),
    "numbers": (model(A, B), model(A, tensor("b", "3")), [("PT201", ERROR)]),
    "type": (model(A, B), model(A, tensor("b", "2", dtype="int32")), [("PT201", ERROR)]),
    "shape": (model(A, B), model(A, tensor("b", "2", (1, 2))), [("PT201", ERROR)]),
    "a compound": (model(PAIR), model(PAIR._replace(digest="2" * 64)), [("PT201", ERROR)]),
    "missing": (model(A, B), model(A), [("PT202", ERROR)]),
    "added": (model(A), model(A, B), [("PT203", ERROR)]),
    "renamed": (model(A, B), model(tensor("x.a", "1"), tensor("x.b", "2")), [("PT210", ERROR)]),
    "one renamed": (model(A, B), model(A, tensor("c", "2")), [("PT210", ERROR)]),
    "exchanged": (model(A, B), model(tensor("a", "2"), tensor("b", "1")), [("PT201", ERROR)] * 2),
    "tie lost": (model(A, tensor("b"), ties=BOTH), model(A, tensor("b")), [("PT101", ERROR)]),
    "tie gained": (model(A, tensor("b")), model(A, tensor("b"), ties=BOTH), [("PT102", ERROR)]),
    "slice moved": (
        model(LONG, B, ties=BOTH, views={"b": LockedView("b", 0, (1,))}),
        model(LONG, B, ties=BOTH, views={"b": LockedView("b", 8, (1,))}), [("PT106", ERROR)],
    ),
    "tie from a record": (model(A, B, ties=BOTH), model(A, B, ties=(Tie(("a", "b"), DECLARED),)), []),
    "declared": (model(A, B), model(A, B, ties=(Tie(("a", "b"), CONFIG),)), [("PT105", WARNING)]),
    "untied": (model(A, B, ties=(Tie(("a", "b"), CONFIG),)), model(A, B, ties=(Tie(("a", "b"), UNTIED),)),
               [("PT105", ERROR)]),
    "dropped, and tied to what is there": (
        model(A, tensor("b"), ties=BOTH), model(A, ties=(Tie(("a",), CONFIG),)),
        [("PT202", WARNING), ("PT105", WARNING)],
    ),
    "stored with its tie": (
        model(A, ties=(Tie(("a",), CONFIG),)), model(A, tensor("b"), ties=BOTH),
        [("PT203", WARNING), ("PT105", WARNING)],
    ),
    "stored beside its tie": (
        model(A, ties=(Tie(("a",), CONFIG),)), model(A, tensor("b")), [("PT203", ERROR), ("PT105", ERROR)],
    ),
    "stored with a part of its tie": (
        model(LONG, ties=(Tie(("a",), CONFIG),)),
        model(LONG, tensor("b"), ties=BOTH, views={"b": LockedView("b", 0, (1,))}),
        [("PT203", ERROR), ("PT105", WARNING)],
    ),
    "stored with what was not tied": (model(A), model(A, tensor("b"), ties=BOTH), [("PT203", ERROR)]),
    "untied without a config": (model(A, B, ties=(Tie(("a", "b"), UNTIED),)), model(A, B), [("PT105", WARNING)]),
    "no longer declared": (model(A, B, ties=(Tie(("a", "b"), CONFIG),)), model(A, B), [("PT105", ERROR)]),
    "dropped by its saver": (
        model(A, tensor("b"), ties=(Tie(("a", "b"), CONFIG),)), model(A, ties=(Tie(("a", "b"), CONFIG),)),
        [("PT202", WARNING)],
    ),
    "dropped with other bytes": (
        model(A, B, ties=(Tie(("a", "b"), CONFIG),)), model(A, ties=(Tie(("a", "b"), CONFIG),)), [("PT202", ERROR)]
    ),
    "object": (model(A, objects=OBJECTS), model(A, objects={"epoch": LockedObject("epoch", "4" * 64, "4")}),
               [("PT402", ERROR)]),
    "object gone": (model(A, objects=OBJECTS | {"z": LockedObject("z", "4" * 64, "4")}), model(A, objects=OBJECTS),
                    [("PT402", ERROR)]),
    "no room for objects": (model(A, objects=OBJECTS), model(A), [("PT402", ERROR)]),
    "object added": (model(A), model(A, objects=OBJECTS), [("PT402", ERROR)]),
    "dialect": (model(A, dialect="vllm"), model(A), [("PT403", WARNING)]),
    "container": (model(A), model(A, files=OTHER_FILE), [("PT401", WARNING)]),
    "headers": (model(UNSEEN, files=SIZED), model(UNSEEN, files=SIZED), [("PT405", NOTE)]),
    "another size, with headers": (
        model(UNSEEN, files=SIZED), model(UNSEEN, files=(LockedFile("m.pt", 10, ""),)),
        [("PT405", NOTE), ("PT401", WARNING)],
    ),
}  # fmt: skip
"""{what changed: (the lock, what is there now, ids and severities)}."""


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_has_its_finding(what: str) -> None:
    was, now, expected = CHANGES[what]
    rows = found(was, now)
    assert ids(rows) == expected
    text = write.text([was]).split("\n")
    for one in rows:
        assert one.place is not None and one.place.path == LOCK
        assert text[one.place.line - 1].startswith(
            ("tensor", "tied", "view", "model", "object", "content", "dialect", "file")
        )
    for name, word in (("numbers", "tensor b "), ("tie lost", "tied a = b"), ("object", "object epoch")):
        if what == name:
            assert rows[0].place is not None and text[rows[0].place.line - 1].startswith(word)


def test_what_changed_of_a_compound() -> None:
    """Its line has the digest of what its parts do not show, and its parts have the numbers."""
    was, now, _ = CHANGES["a compound"]
    (row,) = found(was, now)
    assert row.what == "has another shape, scale, zero point or kind; the lock has the digest of these"


@pytest.mark.parametrize("what", CHANGES)
def test_content_alone(what: str) -> None:
    """With content only, whatever is found is of tensors; where nothing is, the digests agree."""
    was, now, _ = CHANGES[what]
    rows = found(was, now, content_only=True)
    assert {one.id for one in rows} <= {"PT201", "PT202", "PT203", "PT210", "PT405"}
    assert bool([one for one in rows if one.id != "PT405"]) == (was.content != now.content)


TENSORS = st.dictionaries(st.sampled_from("abcd"), st.tuples(st.sampled_from("123"), st.sampled_from([(2,), (3,)])))
TIES = st.lists(st.sets(st.sampled_from("abcd"), min_size=2), max_size=1)
made_model: Callable[..., st.SearchStrategy[LockedModel]] = lambda: st.builds(  # noqa: E731
    lambda held, ties: model(
        *(tensor(name, *rest) for name, rest in held.items()),
        ties=tuple(Tie(tuple(sorted(names)), STORAGE) for names in ties if names <= held.keys()),
    ),
    TENSORS,
    TIES,
)


@given(made_model(), made_model())
def test_nothing_is_found_just_where_all_is_equal(was: LockedModel, now: LockedModel) -> None:
    """An error or a warning wherever tensors or shared memory differ, and an error where a name has other bytes."""
    rows = found(was, now)
    assert bool(rows) == (was.content != now.content or was.ties != now.ties)
    both = was.tensors.keys() & now.tensors.keys()
    if any(was.tensors[name] != now.tensors[name] for name in both):
        assert any(one.id == "PT201" and one.severity == ERROR for one in rows)
