"""What Julia's BSON.jl writes, put together from its source and encoded by pymongo's `bson`.

There is no Julia here.  `lowered` follows src/write.jl (`_lower_recursive`) and src/extensions.jl (`lower`,
`structdata`) of JuliaIO/BSON.jl @0522fdc step by step: an object that can change is written once, and every place says
`backref` if there are several; an object is pushed to `_backrefs` again at each further place, and the last number
counts.  `tests/formats/test_bson.py` compares the form with files that Julia wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bson
import ml_dtypes
import numpy as np

NAMES = {
    "float16": "Float16", "float32": "Float32", "float64": "Float64", "bool": "Bool", "int8": "Int8", "int16": "Int16",
    "int32": "Int32", "int64": "Int64", "uint8": "UInt8", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
    "bfloat16": "BFloat16",
}  # fmt: skip
HALVES = {"complex64": "Float32", "complex128": "Float64"}


@dataclass(frozen=True)
class Type:
    """A DataType, by its path: `Flux.Dense`."""

    name: str
    params: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Symbol:
    """A symbol."""

    name: str


@dataclass(eq=False)
class Struct:
    """A struct; `mutable` as it was declared."""

    type: Type
    fields: Sequence[Any]
    mutable: bool = False


@dataclass(eq=False)
class Dict:
    """A Dict, or an IdDict, whose keys are not symbols alone."""

    pairs: Sequence[tuple[Any, Any]]
    name: str = "Main.Base.IdDict"


@dataclass(eq=False)
class Document:
    """A document as it stands in the file."""

    members: Mapping[str, Any]


@dataclass
class _Cell:
    """What BSON.jl calls RefValue."""

    value: Any = None


def named_tuple(**values: Any) -> Struct:
    """A NamedTuple."""
    names = tuple(map(Symbol, values))
    return Struct(Type("Core.NamedTuple", (names, Type("Core.Tuple"))), list(values.values()))


def element(dtype: np.dtype[Any]) -> Type:
    """The type of an array's elements."""
    if dtype.name in HALVES:
        return Type("Main.Base.Complex", (Type(f"Core.{HALVES[dtype.name]}"),))
    name = NAMES[dtype.name]
    return Type(f"BFloat16s.{name}" if name == "BFloat16" else f"Core.{name}")


@dataclass
class _Lowering:
    """One walk over the objects of a program."""

    cells: dict[int, _Cell] = field(default_factory=dict)
    again: list[_Cell] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    """The objects that `cells` knows by their ids."""

    def cell(self, value: Any) -> _Cell:
        """`_lower_recursive`."""
        mutable = isinstance(value, (np.ndarray, list, dict, Dict)) or (isinstance(value, Struct) and value.mutable)
        if not mutable:
            return _Cell(self.lower(value))
        if id(value) in self.cells:
            self.again.append(self.cells[id(value)])
            return self.cells[id(value)]
        self.cells[id(value)] = made = _Cell()
        self.kept.append(value)
        made.value = self.lower(value)
        return made

    def document(self, **members: Any) -> dict[str, _Cell]:
        """A BSONDict, its members lowered."""
        return {key: self.cell(value) for key, value in members.items()}

    def lower(self, value: Any) -> Any:
        """`lower`."""
        match value:
            case Document():
                return self.document(**value.members)
            case dict():
                return self.document(**value)
            case list():
                return [self.cell(item) for item in value]
            case tuple():
                return self.document(tag="tuple", data=list(value))
            case Symbol():
                return self.document(tag="symbol", name=value.name)
            case Type():
                return self.document(tag="datatype", params=list(value.params), name=value.name.split("."))
            case Struct():
                return self.document(tag="struct", type=value.type, data=list(value.fields))
            case Dict():
                data = [[key for key, _ in value.pairs], [child for _, child in value.pairs]]
                return self.document(tag="struct", type=Type(value.name), data=data)
            case np.generic():
                kind = element(value.dtype)
                return (
                    value.item() if kind.name in ("Core.Int32", "Core.Float64", "Core.Bool") else self.primitive(value)
                )
            case np.ndarray():
                if value.dtype == np.uint8 and value.ndim == 1:
                    return value.tobytes()
                data = value.tobytes("F")
                return self.document(tag="array", type=element(value.dtype), size=list(value.shape), data=data)
        return value

    def primitive(self, value: np.generic) -> dict[str, _Cell]:
        """A number that BSON has no element for."""
        return self.document(tag="struct", type=element(value.dtype), data=value.tobytes())


def _stripped(value: Any) -> Any:
    match value:
        case _Cell():
            return _stripped(value.value)
        case dict():
            return {key: _stripped(child) for key, child in value.items()}
        case list():
            return [_stripped(child) for child in value]
        case bool() | float() | str() | bytes() | None:
            return value
        case int():
            return bson.Int64(value)
    raise TypeError(type(value))


def lowered(top: Mapping[str, Any]) -> dict[str, Any]:
    """`lower_recursive`: the document of some variables."""
    walk = _Lowering()
    document = walk.lower(dict(top))
    if walk.again:
        document["_backrefs"] = [cell.value for cell in walk.again]
    for number, cell in enumerate(walk.again, 1):
        cell.value = {"tag": "backref", "ref": number}
    made: dict[str, Any] = _stripped(document)
    return made


def save(path: Path, **variables: Any) -> Path:
    """`BSON.@save path variables...`."""
    path.write_bytes(bson.encode(lowered(variables)))
    return path


def array(value: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The array of a decoded `array` document, in Julia's shape."""
    kind = value["type"]
    name = kind["name"][-1]
    if name == "Complex":
        name = {"Float32": "complex64", "Float64": "complex128"}[kind["params"][0]["name"][-1]]
    dtype = np.dtype(ml_dtypes.bfloat16) if name == "BFloat16" else np.dtype(name.lower())
    return np.frombuffer(value["data"], dtype).reshape(value["size"], order="F")
