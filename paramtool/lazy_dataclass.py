"""`dataclass` of the standard library, for which nothing is compiled before it pays.

Python compiles six methods for each frozen dataclass, which takes half a millisecond; `inspect` imports fifty such
classes and makes a few instances of most.  These decorators make the same class (slots, defaults, `match`) with methods
that know the names of its fields, and ask the standard library for a compiled `__init__` when there are many instances
or when arguments do not fit, and for its description of the fields when that is read.  Type checkers see the standard
library's own decorator.

    @frozen                  @dataclass(frozen=True, slots=True)
    class Field: ...         class Field: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from dataclasses import dataclass as _dataclass
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

C = TypeVar("C", bound=type)
_MADE = ("__dataclass_fields__", "__dataclass_params__", "__init__")
_MANY = 100
"""The instances that are made before `__init__` is compiled."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field

    from typing_extensions import dataclass_transform

    @dataclass_transform(frozen_default=True, field_specifiers=(field,))
    def frozen(cls: Any = None, *, kw_only: bool = False, repr: bool = True) -> Any: ...

else:

    def dataclass(*, frozen: bool = False, slots: bool, kw_only: bool = False, repr: bool = True) -> Callable[[C], C]:
        """The decorator; `slots` is True, and the other parameters are the standard library's."""
        assert slots, "classes without slots take the standard library's decorator"
        return lambda cls: _slotted(cls, frozen, kw_only, repr)

    def frozen(cls: Any = None, **how: bool) -> Any:
        """The decorator of values that never change, with or without parameters."""
        made = dataclass(frozen=True, slots=True, **how)
        return made if cls is None else made(cls)


def _slotted(cls: C, frozen: bool, kw_only: bool, shown: bool) -> C:
    """The class with slots, and with methods that make themselves."""
    own = {name: text for name, text in cls.__annotations__.items() if not str(text).startswith("ClassVar")}
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
    defaults = {name: cls.__dict__[name] for name in own if name in cls.__dict__}
    left_out = {*defaults, "__dict__", "__weakref__"}
    namespace = {name: value for name, value in cls.__dict__.items() if name not in left_out}
    namespace["__slots__"] = tuple(name for name in own if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, namespace)
    made.__qualname__ = cls.__qualname__
    twin = _Twin(made, own, defaults, frozen, kw_only)
    compared, printed = twin.named("compare"), twin.named("repr")
    get: Callable[[Any], Any] = attrgetter(*compared, *compared[:1] or ["__class__"])
    """What is compared, the first of it twice: of one field alone it would be no tuple."""

    def __eq__(one: Any, other: object) -> bool:
        return get(one) == get(other) if other.__class__ is one.__class__ else NotImplemented

    def __hash__(one: Any) -> int:
        return hash(get(one))

    @recursive_repr()
    def __repr__(one: Any) -> str:
        return f"{one.__class__.__qualname__}({', '.join(f'{name}={getattr(one, name)!r}' for name in printed)})"

    for method in (twin.starting(), __eq__, *([__repr__] if shown else [])):
        if method.__name__ not in namespace:
            setattr(made, method.__name__, method)
    if frozen:
        made.__setattr__, made.__delattr__ = _refuse_set, _refuse_delete  # type: ignore[assignment]
        made.__getstate__, made.__setstate__ = _state, _set_state  # type: ignore
    if "__hash__" not in cls.__dict__ or ("__eq__" in cls.__dict__ and cls.__dict__["__hash__"] is None):
        made.__hash__ = __hash__ if frozen else None  # type: ignore[assignment]
    late = [*(_Attribute(twin, name) for name in _MADE[:2]), _Signature(twin, "__signature__")]
    for name, value in {"__match_args__": twin.positional, **{one.name: one for one in late}}.items():
        setattr(made, name, value)
    return made


class _Twin:
    """What a class is made of, and the standard library's dataclass of the same fields, made when one is needed."""

    def __init__(self, made: type, own: Iterable[str], defaults: dict[str, Any], frozen: bool, kw_only: bool) -> None:
        self.made = made
        self.defaults = defaults
        self.frozen, self.kw_only = frozen, kw_only
        self.fields: dict[str, tuple[Any, bool]] = {}
        """{its name: (its default, or a `field()`, or MISSING, whether it is given by its name alone)}"""
        for base in reversed(made.__mro__[1:]):
            if isinstance(attribute := base.__dict__.get("__signature__"), _Signature):
                self.fields |= attribute.twin.fields
        self.fields |= {name: (defaults.get(name, MISSING), kw_only) for name in own}
        self.positional = tuple(name for name, (_, by_name) in self.fields.items() if not by_name)

    def starting(self) -> Callable[..., None]:
        """`__init__` of the first instances; the standard library's takes its place after many, and says what is wrong.

        `field()` is used here with a factory or with a default, never with `init=False`.
        """
        ready = {name: default for name, (default, _) in self.fields.items() if default is not MISSING}
        late = [name for name, default in ready.items() if isinstance(default, Field)]
        after = getattr(self.made, "__post_init__", None)
        put = object.__setattr__
        called = 0

        def __init__(instance: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal called
            called += 1
            given = dict(zip(self.positional, args, strict=False)) | kwargs
            values = ready | given
            if called > _MANY or len(given) < len(args) + len(kwargs) or values.keys() != self.fields.keys():
                self.make()
                self.made.__init__(instance, *args, **kwargs)  # type: ignore[misc]
                return
            for name in late:
                if name not in given:
                    field = ready[name]
                    values[name] = field.default if field.default_factory is MISSING else field.default_factory()
            for name, value in values.items():
                put(instance, name, value)
            if after is not None:
                after(instance)

        __init__.makes = self  # type: ignore[attr-defined]
        return __init__

    def named(self, what: str) -> list[str]:
        """The fields that are for `compare`, or for `repr`, as their `field()` says if they have one."""
        return [one for one, (said, _) in self.fields.items() if not isinstance(said, Field) or getattr(said, what)]

    def make(self, *, init: bool = True) -> None:
        """Let the standard library make `__init__`, or describe the fields: that compiles nothing without a base."""
        also = ("__module__", "__annotations__", "__doc__", "__post_init__", "__orig_bases__")
        namespace = {name: self.made.__dict__[name] for name in also if name in self.made.__dict__} | self.defaults
        namespace["__qualname__"] = self.made.__qualname__
        bare = type(self.made)(self.made.__name__, self.made.__bases__, namespace)
        derived = any(hasattr(base, "__dataclass_fields__") for base in self.made.__bases__)
        how = {"frozen": self.frozen and (init or derived), "kw_only": self.kw_only}
        found: Any = _dataclass(init=init, eq=False, repr=False, **how)(bare)
        for name in _MADE if init else _MADE[:1]:
            now = self.made.__dict__.get(name)
            if isinstance(now, _Attribute) or getattr(now, "makes", None) is self:
                setattr(self.made, name, found.__dict__[name])


class _Attribute:
    """An attribute of a class that takes the place of itself when it is read."""

    def __init__(self, twin: _Twin, name: str) -> None:
        self.twin = twin
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        self.twin.make(init=self.name != "__dataclass_fields__")
        return self.twin.made.__dict__[self.name]


class _Signature(_Attribute):
    """What makes `__init__` before somebody looks at its parameters, as `inspect.signature` and `help` do."""

    def __get__(self, instance: object, owner: type) -> Any:
        self.twin.make()
        raise AttributeError(self.name)


def _refuse_set(instance: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(instance: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(instance: Any) -> list[Any]:
    """The values of the fields, for `copy` and `pickle`."""
    return [getattr(instance, field.name) for field in fields(instance)]


def _set_state(instance: Any, state: list[Any]) -> None:
    for field, value in zip(fields(instance), state, strict=True):
        object.__setattr__(instance, field.name, value)
