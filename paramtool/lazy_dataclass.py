"""`dataclass` of the standard library, whose methods are made when they are first used.

Python compiles six methods for each frozen dataclass, which takes half a millisecond; `inspect` imports fifty such
classes and uses a few.  These decorators make the same class (slots, defaults, `match`), and ask the standard library
for its methods at the first instance, comparison or `repr`.  Type checkers see the standard library's own decorator.

    @frozen                  @dataclass(frozen=True, slots=True)
    class Field: ...         class Field: ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from dataclasses import dataclass as _dataclass
from typing import TYPE_CHECKING, Any, TypeVar

C = TypeVar("C", bound=type)
_ATTRIBUTES = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_STARTING = ("__init__", *_ATTRIBUTES)
_COMPARING = ("__eq__", "__hash__")
_SHOWING = ("__repr__",)

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
    twin = _Twin(made, defaults, frozen, kw_only)
    for name in ("__init__", "__eq__", *(("__repr__",) if shown else ())):
        if name not in namespace:
            setattr(made, name, twin.method(name))
    if frozen:
        made.__setattr__, made.__delattr__ = _refuse_set, _refuse_delete  # type: ignore[assignment]
        made.__getstate__, made.__setstate__ = _state, _set_state  # type: ignore
    if "__hash__" not in cls.__dict__ or ("__eq__" in cls.__dict__ and cls.__dict__["__hash__"] is None):
        made.__hash__ = twin.method("__hash__") if frozen else None  # type: ignore[assignment]
    for name in _ATTRIBUTES:
        setattr(made, name, _Attribute(twin, name))
    made.__signature__ = _Signature(twin, "__signature__")  # type: ignore[attr-defined]
    return made


class _Twin:
    """The standard library's dataclass of the same fields, made in parts when one is needed."""

    def __init__(self, made: type, defaults: dict[str, Any], frozen: bool, kw_only: bool) -> None:
        self.made = made
        self.defaults = defaults
        self.how = {"frozen": frozen, "kw_only": kw_only}

    def dataclass(self, **how: bool) -> type:
        """A dataclass without slots, with the fields and defaults of the class."""
        namespace: dict[str, Any] = {name: self.made.__dict__[name] for name in ("__module__", "__annotations__")}
        also = ("__post_init__", "__orig_bases__")
        namespace |= {name: self.made.__dict__[name] for name in also if name in self.made.__dict__}
        namespace |= {"__doc__": self.made.__doc__ or "", "__qualname__": self.made.__qualname__, **self.defaults}
        return _dataclass(**how, **self.how)(type(self.made)(self.made.__name__, self.made.__bases__, namespace))

    def method(self, name: str) -> Callable[..., Any]:
        """A method that takes the place of itself when it is called."""

        def first(instance: Any, *args: Any, **kwargs: Any) -> Any:
            self.make(name)
            return self.made.__dict__[name](instance, *args, **kwargs)

        first.__name__, first.__qualname__ = name, f"{self.made.__qualname__}.{name}"
        first.makes = self  # type: ignore[attr-defined]
        return first

    def make(self, name: str) -> None:
        """Make a method or an attribute, with those that come at the same price."""
        names = next((group for group in (_COMPARING, _SHOWING) if name in group), _STARTING)
        found = self.dataclass(init=names is _STARTING, eq=names is _COMPARING, repr=names is _SHOWING)
        for one in names:
            now = self.made.__dict__.get(one)
            if isinstance(now, _Attribute) or getattr(now, "makes", None) is self:
                setattr(self.made, one, found.__dict__[one])


class _Attribute:
    """An attribute of a class that takes the place of itself when it is read."""

    def __init__(self, twin: _Twin, name: str) -> None:
        self.twin = twin
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        self.twin.make(self.name)
        return self.twin.made.__dict__[self.name]


class _Signature(_Attribute):
    """What makes `__init__` before somebody looks at its parameters, as `inspect.signature` and `help` do."""

    def __get__(self, instance: object, owner: type) -> Any:
        self.twin.make("__init__")
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
