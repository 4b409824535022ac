"""Shows the values of defaults in docs/api: `min_equal_bytes: int = 4096` in place of the name of a constant."""

from __future__ import annotations

from typing import Any

import griffe


class Values(griffe.Extension):
    """Replaces each default that is the name of a constant of paramtool by the value of the constant."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Once the whole package is read."""
        for function in _functions(pkg, set()):
            for parameter in function.parameters:
                if isinstance(parameter.default, griffe.ExprName):
                    constant = _constant(parameter.default.canonical_path, loader)
                    if constant is not None:
                        parameter.default = constant


def _functions(inside: griffe.Object, seen: set[str]) -> list[griffe.Function]:
    """Every function of a module or class, and of those inside."""
    found: list[griffe.Function] = []
    for member in inside.members.values():
        if member.is_alias or member.path in seen:
            continue
        seen.add(member.path)
        if isinstance(member, griffe.Function):
            found.append(member)
        elif isinstance(member, (griffe.Module, griffe.Class)):
            found += _functions(member, seen)
    return found


def _constant(path: str, loader: griffe.GriffeLoader) -> Any:
    """The value of a constant, which is an expression; None if the name is of something else."""
    try:
        found = loader.modules_collection[path]
        value = found.value if found.is_attribute else None
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return None
    return value if value is not None and not isinstance(value, griffe.ExprCall) else None
