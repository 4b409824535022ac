"""Writes docs/schema from the types of reports: `python docs/make_schemas.py`.

What a document holds is what the report's class says in `_members` (`paramtool/model/document.py`).  The type of a
member is its annotation, and what it means is the string below it.  The documents that are no reports of commands, the
alias record and the record of a proved layout, have schemas of their own.
"""

from __future__ import annotations

import ast
import collections.abc as abc
import inspect
import json
import os
import textwrap
import types
import typing
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

from paramtool.cli.inspect import _Seen
from paramtool.commands.check.report import Checked
from paramtool.commands.dedup import Deduped
from paramtool.commands.dedup_many import Family
from paramtool.commands.diff.diff import Diffed
from paramtool.commands.diff.find_base import BaseFound
from paramtool.commands.export import Exported
from paramtool.commands.guess import Guessed
from paramtool.commands.layouts import EveryLayout
from paramtool.commands.listed import Listing
from paramtool.commands.lock import Locked
from paramtool.commands.opening import Each
from paramtool.commands.relayouted import Relayouted
from paramtool.commands.report.write import PageReport
from paramtool.commands.variants import Variants
from paramtool.commands.verify import Verified
from paramtool.errors import ParamtoolError
from paramtool.guessing.candidates import SURE
from paramtool.lockfile.lock import TIES
from paramtool.model.checkpoint import ROLES
from paramtool.model.diff import KINDS
from paramtool.model.document import Member, members_of
from paramtool.model.finding import SEVERITIES
from paramtool.passes.config_ties.declared import RESULTS

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schema")
TITLES: dict[type, str] = {
    Listing: "inspect --json",
    Variants: "variants --json",
    Deduped: "dedup --json",
    Family: "dedup --json of several checkpoints",
    Each: "dedup, export, convert, fuse or unfuse with --each and --json",
    Exported: "export --json",
    Relayouted: "convert, fuse and unfuse --json",
    Diffed: "diff --json",
    BaseFound: "diff --find-base --json",
    Checked: "check --json",
    Locked: "lock --json",
    PageReport: "report --json",
    Verified: "verify --json",
    Guessed: "guess --json",
    EveryLayout: "layouts --json",
    ParamtoolError: "with --json, of a command that fails",
}
"""{report: what prints its document}"""
EACH = (Deduped, Exported, Relayouted)
"""The reports that `Each` has."""
PRIMITIVE = {str: "string", bool: "boolean", float: "number", type(None): "null"}
COUNT = {"type": "integer", "minimum": 0}
"""No number that a report has is negative."""
NONE = type(None)
EVIDENCE = ("storage", "declared", "config", "content")
ONE_OF: dict[str, Sequence[str]] = {
    "Alias.evidence": EVIDENCE,
    "Alias.set_evidence": EVIDENCE,
    "Change.kind": ("summed", "shifted", "negated", "split", "made", "dropped", "kept", "taken", "stacked", "shaped",
                    "needs", "unproved"),
    "Considered.what": ("vector", "module"),
    "CountedSection.role": ROLES,
    "Declared.file": sorted({file for _, file in RESULTS}),
    "Declared.result": sorted(set(RESULTS.values())),
    "Entry.role": ROLES,
    "FilledLayer.how": ("name", "shape", "order", "map"),
    "Finding.severity": SEVERITIES[:3],
    "Form.kind": ("lstm", "gru", "rnn"),
    "Form.reset": ("", "after", "before"),
    "GroupMember.relation": ("same", "slice", "transpose", "view", "overlap", "cast"),
    "Guess.sure": SURE,
    "LayoutGuess.sure": ("said", "possible"),
    "LockedTensor.data": ("read", "unread", "none"),
    "LockedTie.kind": TIES,
    "Match.relation": ("slice", "transpose", "view", "cast"),
    "MatchedPair.how": ("name", "shape", "order", "map"),
    "NamedTie.kind": ("head", "entities", "sides", "bias", "layers", "other"),
    "OptimizerState.form": ("torch", "dcp", "dcp-flat", "deepspeed", "keras", "keras-h5", "optax", "gluon"),
    "SeenGroup.form": ("apart", "list", "fused"),
    "SeenGroup.kind": ("qkv", "kv", "gate-up", "experts"),
    "TensorDiff.kind": KINDS,
    "Through.relation": ("same", "slice", "transpose", "view", "overlap", "cast", "constant"),
    "Variant.kind": ("names", "checkpoint", "config", ""),
    "Variant.verdict": ("loads", "loads through aliases", "cannot load", "not judged"),
    "Verified.compared": ("tensors", "ties", "objects", "gradients", "files", "all other bytes"),
}  # fmt: skip
"""{text of a report: the values that it has}"""


def document(kind: type, title: str) -> dict[str, Any]:
    """The schema of a report."""
    schema: str = kind._schema  # type: ignore[attr-defined]
    return _whole(schema, title, _object(kind, members_of(kind)))


def _whole(schema: str, title: str, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{schema.replace('/', '-')}.json",
        "title": f"paramtool {title}, version {schema.partition('/')[2]}",
        "$comment": "Members may be added within this version; a reader ignores those that it does not know.",
        **found,
        "required": ["schema", *found["required"]],
        "properties": {"schema": {"const": f"paramtool.{schema}"}, **found["properties"]},
    }


def _object(kind: Any, found: tuple[Member, ...]) -> dict[str, Any]:
    """The schema of the members of a class."""
    properties: dict[str, Any] = {}
    required = []
    for one in found:
        kinds, words, key = _followed(kind, one.path)
        if not one.name:
            parts = [_object(each, members_of(each)) for each in kinds if each is not NONE]
            properties |= {name: schema for part in parts for name, schema in part["properties"].items()}
            required += parts[0]["required"] if len(kinds) == 1 else []
            continue
        if one.mark in ("?", "+"):
            kinds = [each for each in kinds if each is not NONE]
        else:
            required.append(one.name)
        said = _union([_schema(each, one.inside) for each in (*kinds, *([NONE] if one.mark == "!" else []))])
        said = _limited(said, ONE_OF.get(key, ()))
        properties[one.name] = said | ({"description": words} if words and "$ref" not in said else {})
    return {"type": "object", "required": required, "properties": properties}


def _schema(kind: Any, inside: tuple[Member, ...]) -> dict[str, Any]:
    """The schema of a type; of its items only the members `inside` are taken."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.TypeVar):
        return {"anyOf": [{"$ref": f"{one._schema.replace('/', '-')}.json"} for one in EACH]}
    if kind in (Any, object):
        return {}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        return _union([_schema(one, inside) for one in arguments])
    if origin in (dict, abc.Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], inside)}
    if origin is tuple and Ellipsis not in arguments:
        items = _union([_schema(one, inside) for one in arguments])
        return {"type": "array", "items": items, "minItems": len(arguments), "maxItems": len(arguments)}
    if origin is not None and issubclass(origin, abc.Iterable):
        return {"type": "array", "items": _schema(arguments[0], inside)}
    if kind is int:
        return COUNT
    if kind in PRIMITIVE:
        return {"type": PRIMITIVE[kind]}
    if kind is bytes:
        return {"type": "string", "pattern": "^([0-9a-f]{2})*$"}
    if not inside and getattr(kind, "_schema", ""):
        return {"$ref": f"{kind._schema.replace('/', '-')}.json"}
    if found := inside or members_of(kind):
        return _object(kind, found)
    if hasattr(kind, "_fields"):
        return _schema(tuple[tuple(_type(kind, name)[0][0] for name in kind._fields)], ())  # type: ignore[misc]
    return {"type": "string"}


def _limited(said: dict[str, Any], values: Sequence[str]) -> dict[str, Any]:
    """A text, or a list of texts, of these values."""
    if "items" in said:
        return said | {"items": _limited(said["items"], values)}
    return {"enum": list(values)} if values and said == {"type": "string"} else said


def _union(found: list[dict[str, Any]]) -> dict[str, Any]:
    """One of several schemas."""
    different = [one for k, one in enumerate(found) if one not in found[:k]]
    if len(different) == 1:
        return different[0]
    if all(list(one) == ["type"] for one in different):
        return {"type": [one["type"] for one in different]}
    return {"anyOf": different}


def _followed(kind: Any, path: tuple[str, ...]) -> tuple[list[Any], str, str]:
    """The types of what is at a path, what is said of it, and its class and name."""
    kinds, words, key, is_null = [kind], "", "", False
    for name in path:
        pairs = [_type(one, name) for one in kinds if one is not NONE]
        is_null |= NONE in kinds
        kinds = [one for found, _, _ in pairs for one in found]
        _, words, key = pairs[0]
    return [*dict.fromkeys([*kinds, *([NONE] if is_null else [])])], words, key


def _type(kind: Any, name: str) -> tuple[list[Any], str, str]:
    """The types of an attribute, property or method, the words of its string, and its class and name."""
    if name == "__len__":
        return [int], "", ""
    if typing.get_origin(kind) in (dict, abc.Mapping):
        keys, values = typing.get_args(kind)
        return [abc.Iterator[keys] if name == "keys" else abc.Iterator[values]], "", ""
    if isinstance(origin := typing.get_origin(kind), type):
        found, words, key = _type(origin, name)
        chosen = dict(zip(origin.__parameters__, typing.get_args(kind), strict=True))  # type: ignore[attr-defined]
        return [chosen.get(one, one) for one in found], words, key
    for base in kind.__mro__:
        key = f"{base.__name__}.{name}"
        if name in (said := inspect.get_annotations(base)):
            return _kinds(said[name], base.__module__), _strings(base).get(name, ""), key
        if name in base.__dict__:
            found = base.__dict__[name]
            found = found.fget if isinstance(found, property) else found
            if inspect.isfunction(found):
                words = " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())
                return _kinds(found.__annotations__["return"], base.__module__), words, key
            return [type(found)], "", key
    raise AttributeError(f"{kind} has no annotation of {name}")


def _kinds(annotation: Any, module: str) -> list[Any]:
    """The types that an annotation names."""
    text = getattr(annotation, "__forward_arg__", annotation)
    found = eval(text, _names(module)) if isinstance(text, str) else text
    return list(typing.get_args(found)) if typing.get_origin(found) in (types.UnionType, typing.Union) else [found]


@cache
def _names(module: str) -> dict[str, Any]:
    """The names of a module, with those that it imports for type checkers alone."""
    found = import_module(module)
    names = dict(vars(found))
    for node in ast.walk(ast.parse(inspect.getsource(found))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                if hasattr(import_module(node.module), one.name):
                    names.setdefault(one.asname or one.name, getattr(import_module(node.module), one.name))
    return names


@cache
def _strings(kind: type) -> dict[str, str]:
    """{field: the string below it}"""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        one.target.id: " ".join(below.value.value.split())
        for one, below in zip(body.body, body.body[1:], strict=False)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


def documents() -> dict[str, str]:
    """{name of the file: its text}"""
    made = [document(kind, title) for kind, title in TITLES.items()]
    several = {"exit_code": COUNT, "files": _schema(abc.Iterator[_Seen], ())}  # type: ignore[type-abstract]
    found = {"type": "object", "required": list(several), "properties": several}
    made.append(_whole("inspect-files/1", "inspect --json of several paths", found))
    return {one["$id"]: json.dumps(one, indent=2) + "\n" for one in made}


if __name__ == "__main__":
    for name, text in documents().items():
        with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as file:
            file.write(text)
