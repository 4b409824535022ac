"""The language of rules for types, as `--dtype`, `--keep-float32` and the table `[types]` of a TOML file have it.

    float16             every floating point tensor of the model that no pattern matches
    head.*=float32      every floating point tensor whose name matches; of several patterns, the last one counts
    counter=float32     one tensor by its whole name, integers too where float32 holds each of its numbers

Patterns are those of `--ignore`: `*` and `?` match anything, `[ab]` one of several characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase

from paramtool.errors import UsageError
from paramtool.lazy_dataclass import frozen
from paramtool.model.dtype import DTYPES, DType

TARGETS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
"""The types that tensors can be cast to."""
SHORT = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32",
         "double": "float64", "fp64": "float64"}  # fmt: skip
"""What people also call them, for hints."""


@frozen
class TypeRule:
    """One rule; without a pattern it is for every floating point tensor of the model."""

    pattern: str
    dtype: DType

    def __str__(self) -> str:
        return f"{self.pattern}={self.dtype.name}" if self.pattern else self.dtype.name

    def matches(self, name: str) -> bool:
        """Whether a name is meant by the pattern."""
        return matches(self.pattern, name)


@frozen
class TypeRules:
    """All that is asked of types."""

    rules: tuple[TypeRule, ...] = ()
    keep: tuple[str, ...] = ()
    """Kinds of modules, or patterns, of tensors that are float32 in the output."""
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """{a kind of one's own: patterns of its tensors}"""

    @property
    def default(self) -> DType | None:
        """The type for what no pattern matches; None where it stays."""
        plain = [rule.dtype for rule in self.rules if not rule.pattern]
        return plain[-1] if plain else None


def matches(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern, or is it."""
    return name == pattern or fnmatchcase(name, pattern)


def parse(text: str) -> TypeRule:
    """Parse `DTYPE` or `PATTERN=DTYPE`; UsageError if it is neither.

    >>> parse("head.*=float32").pattern, parse("float16").dtype.name
    ('head.*', 'float16')
    """
    pattern, equals, name = text.rpartition("=")
    if equals and not pattern:
        raise UsageError(f"dtype {text!r}: the pattern is empty", hint=f"--dtype {name} is for all tensors")
    if name not in TARGETS:
        usual = SHORT.get(name.lower(), name.rpartition(".")[2])
        hint = f"did you mean {usual}?" if usual in TARGETS and usual != name else ""
        raise UsageError(f"dtype {text!r}: {name!r} is not one of {', '.join(TARGETS)}", hint=hint)
    return TypeRule(pattern, DTYPES[name])


def parse_all(given: str | Mapping[str, str] | Sequence[str]) -> tuple[TypeRule, ...]:
    """The rules of a keyword `dtype`: one text, several, or {pattern: dtype}; UsageError where one is no rule.

    >>> [str(rule) for rule in parse_all({"*": "float16", "head.*": "float32"})]
    ['*=float16', 'head.*=float32']
    """
    if isinstance(given, str):
        return (parse(given),)
    if isinstance(given, Mapping):
        return tuple(parse(f"{pattern}={dtype}") for pattern, dtype in given.items())
    return tuple(parse(text) for text in given)
