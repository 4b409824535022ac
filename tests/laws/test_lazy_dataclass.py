"""`lazy_dataclass` makes what the standard library makes, whatever is asked of a class first."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.lazy_dataclass import dataclass

T = TypeVar("T")
NAMES = ("a", "b", "c", "d")
DEFAULTS: tuple[Any, ...] = (dataclasses.MISSING, 1, "x", (), None)


@st.composite
def classes(draw: st.DrawFn) -> tuple[type, type]:
    """One class twice, by this decorator and by the standard library's; perhaps with a base and `__post_init__`."""
    how = {"frozen": draw(st.booleans()), "kw_only": draw(st.booleans())}
    bases: tuple[type, type] = (object, object)
    for level in range(draw(st.integers(1, 2))):
        names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
        defaults = {name: draw(st.sampled_from(DEFAULTS)) for name in names}
        listed = draw(st.booleans())
        said = {"compare": draw(st.booleans()), "repr": draw(st.booleans())}
        post = draw(st.booleans())

        def body(space: dict[str, Any], defaults: dict[str, Any] = defaults, listed: bool = listed, post: bool = post,
                 level: int = level, said: dict[str, bool] = said) -> None:  # fmt: skip
            space["__annotations__"] = {
                **dict.fromkeys(defaults, "Any"),
                "KIND": "ClassVar[int]",
                f"many{level}": "Any",
            }
            space |= {name: value for name, value in defaults.items() if value is not dataclasses.MISSING}
            space |= {
                "__doc__": "A class.",
                "KIND": 3,
                f"many{level}": field(default_factory=list, **said) if listed else 0,
            }
            space["__module__"] = __name__
            if post:
                space["__post_init__"] = lambda self: object.__setattr__(self, f"many{level}", ["post"])

        def made(base: type, body: Callable[[dict[str, Any]], None] = body) -> type:
            space: dict[str, Any] = {}
            body(space)
            return type("Made", (base,), space)

        try:
            theirs = dataclasses.dataclass(slots=True, **how)(made(bases[1]))
        except TypeError:  # a field without a default after one with
            break
        bases = (dataclass(slots=True, **how)(made(bases[0])), theirs)
    return bases


def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    """What a call gives, or the type and the text of its error."""
    try:
        return "gives", str(call())
    except Exception as error:
        return type(error).__name__, str(error)


ASKED: dict[str, Callable[[type, tuple[Any, ...], dict[str, Any]], Any]] = {
    "init": lambda cls, args, more: [getattr(cls(*args, **more), f.name) for f in dataclasses.fields(cls)],
    "repr": lambda cls, args, more: repr(cls(*args, **more)),
    "equal": lambda cls, args, more: cls(*args, **more) == cls(*args, **more),
    "other": lambda cls, args, more: cls(*args, **more) == 3,
    "hash": lambda cls, args, more: hash(cls(*args, **more)) == hash(cls(*args, **more)),
    "set": lambda cls, args, more: setattr(cls(*args, **more), "many0", 3),
    "unknown": lambda cls, args, more: hasattr(cls(*args, **more), "__dict__"),
    "delete": lambda cls, args, more: delattr(cls(*args, **more), "many0"),
    "replace": lambda cls, args, more: repr(dataclasses.replace(cls(*args, **more), many0=7)),
    "asdict": lambda cls, args, more: dataclasses.asdict(cls(*args, **more)),
    "copy": lambda cls, args, more: repr(copy.deepcopy(cls(*args, **more))),
    "signature": lambda cls, args, more: inspect.signature(cls),
    "match": lambda cls, args, more: cls.__match_args__,  # type: ignore[attr-defined]
    "fields": lambda cls, args, more: [(f.name, f.default, f.kw_only, f.init) for f in dataclasses.fields(cls)],
    "is_one": lambda cls, args, more: dataclasses.is_dataclass(cls),
    # Python 3.10 repeats the slots of the base
    "slots": lambda cls, args, more: sys.version_info < (3, 11) or cls.__slots__,  # type: ignore[attr-defined]
    "kind": lambda cls, args, more: (cls.KIND, cls.__doc__, cls.__qualname__),  # type: ignore[attr-defined]
}


@given(classes(), st.permutations(list(ASKED)), st.data())
def test_the_same_in_any_order(both: tuple[type, type], order: list[str], data: st.DataObject) -> None:
    """Whichever is asked first, and of whatever arguments, the answers and the errors are the same."""
    mine, theirs = both
    if mine is object:
        return
    args = data.draw(st.lists(st.integers(), max_size=3))
    more = data.draw(st.dictionaries(st.sampled_from(NAMES), st.integers(), max_size=3))
    if data.draw(st.integers(0, 3)):  # arguments that fit
        args, more = [], {f.name: k for k, f in enumerate(dataclasses.fields(theirs)) if f.name in NAMES}
    for name in order:
        ask = ASKED[name]
        found, expected = (outcome(partial(ask, cls, tuple(args), more)) for cls in (mine, theirs))
        assert found == expected, name


@dataclass(frozen=True, slots=True)
class Pair(Generic[T]):
    """Of a module, so that pickle finds it."""

    first: T
    second: int = 2
    KIND: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class Own:
    """With methods that are written down."""

    value: int

    def __repr__(self) -> str:
        return "mine"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)


def test_pickle_and_match() -> None:
    assert pickle.loads(pickle.dumps(Pair("x"))) == Pair("x", 2)
    match Pair("x", 5):
        case Pair(first, 5):
            assert first == "x"
        case _:
            pytest.fail("no match")


def test_methods_that_are_written_down_stay() -> None:
    assert repr(Own(1)) == "mine" and Own(1) == Own(2) and hash(Own(1)) != hash(Own(2))


def test_nothing_is_made_before_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few instances, comparisons and `repr` compile nothing, many instances or wrong arguments compile once."""
    made: list[dict[str, Any]] = []
    module = sys.modules["paramtool.lazy_dataclass"]
    monkeypatch.setattr(module, "_dataclass", lambda **how: made.append(how) or dataclasses.dataclass(**how))

    @dataclass(frozen=True, slots=True)
    class Lazy:
        value: int

    assert [Lazy(1).value, Lazy(value=2).value] == [1, 2]
    assert Lazy(1) == Lazy(1) and len({Lazy(1), Lazy(1)}) == 1 and repr(Lazy(1)).endswith("Lazy(value=1)")
    assert made == [] and hasattr(Lazy.__init__, "makes")
    assert [Lazy(number).value for number in range(200)] == list(range(200))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'value'"):
        Lazy()  # type: ignore[call-arg]
    assert [one.name for one in dataclasses.fields(Lazy)] == ["value"]
    assert len(made) == 1 and not hasattr(Lazy.__init__, "makes")
