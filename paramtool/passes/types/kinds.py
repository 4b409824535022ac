"""Kinds of modules whose tensors stay in float32, recognised by names and shapes; each tensor with the reason.

    batchnorm   modules with running statistics: `running_mean` and `running_var` (torch, Gluon), `moving_mean` and
                `moving_var` or `moving_variance` (MXNet, Keras), `mean` and `var` in `batch_stats` (Flax), of one axis
                and one length; with them the tensors called weight, bias, gamma, beta and scale of that shape
    norm        batchnorm; and modules whose tensors all have one axis and one length, if the module is called `norm`
                (layer_norm, RMSNorm, norm1, ...) or ln, bn or gn, or if they are a weight and a bias and nothing else
    scales      the scales and zero points of quantised weights (`model/quantised.py`)
    counters    single numbers called num_batches_tracked, step, count or iterations

A norm that has neither running statistics nor such a name nor a bias cannot be told from other weights of one axis; a
pattern names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from fnmatch import fnmatchcase

from paramtool.errors import UsageError
from paramtool.lazy_dataclass import frozen
from paramtool.model import quantised
from paramtool.model.checkpoint import Entries
from paramtool.model.dtype import DTYPES, DType
from paramtool.model.view import Views

# --- The language of rules for types, as `--dtype`, `--keep-float32` and the table `[types]` of a TOML file have it ---
#
# float16             every floating point tensor of the model that no pattern matches
#     head.*=float32      every floating point tensor whose name matches; of several patterns, the last one counts
#     counter=float32     one tensor by its whole name, integers too where float32 holds each of its numbers
#
# Patterns are those of `--ignore`: `*` and `?` match anything, `[ab]` one of several characters.


TARGETS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
"""The types that tensors can be cast to."""
SHORT = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32", "fp32": "float32",
         "double": "float64", "fp64": "float64"}  # fmt: skip
"""What people also call them."""


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

    >>> parse("head.*=float32").pattern, parse("fp16").dtype.name
    ('head.*', 'float16')
    """
    pattern, equals, name = text.rpartition("=")
    if equals and not pattern:
        raise UsageError(f"dtype {text!r}: the pattern is empty", hint=f"--dtype {name} is for all tensors")
    name = SHORT.get(name.lower(), name)
    if name not in TARGETS:
        usual = name.rpartition(".")[2]
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


STATISTICS = (("running_mean", "running_var"), ("moving_mean", "moving_var"), ("moving_mean", "moving_variance"))
FLAX = ("mean", "var")
"""Flax's names, inside its collection `batch_stats`; what belongs to them is in `params`."""
AFFINE = ("weight", "bias", "gamma", "beta", "scale")
NORM = re.compile(r".*norm.*|(?:.*_)?(?:ln|bn|gn)(?:_?(?:\d+|[a-z]))?", re.I)
COUNTERS = ("num_batches_tracked", "step", "steps", "global_step", "count", "iteration", "iterations")

Names = Views
Reasons = dict[str, str]
"""{tensor: why it is of a kind}"""


def kept(names: Names, entries: Entries, rules: TypeRules) -> tuple[Reasons, list[str]]:
    """The tensors that `--keep-float32` names, each with the reason, and the kinds of which there is none.

    UsageError for a word that is neither a kind nor matches a tensor.
    """
    found: Reasons = {}
    absent = []
    for word in rules.keep:
        if word in KINDS:
            new = KINDS[word](names, entries)
        elif word in rules.kinds:
            new = {name: f"{word}: matches {p!r}" for p in rules.kinds[word] for name in names if matches(p, name)}
        else:
            new = {name: f"matches {word!r}" for name in names if matches(word, name)}
            if not new:
                known = [*KINDS, *rules.kinds]
                near = get_close_matches(word, [*known, *names], 1)
                raise UsageError(
                    f"--keep-float32 {word!r}: is no kind of modules and matches no tensor; the kinds are "
                    f"{', '.join(known)}",
                    hint=f"did you mean {near[0]}?" if near else "",
                )
        if not new:
            absent.append(word)
        found = {**new, **found}
    return found, absent


def batchnorm(names: Names, entries: Entries) -> Reasons:
    """The tensors of modules with running statistics."""
    plain = {name.removesuffix(":0"): name for name in names}
    found: Reasons = {}
    for name in plain:
        for mean, variance in (*STATISTICS, FLAX):
            stem = _stem(name, mean)
            if stem is None or ((mean, variance) == FLAX and "batch_stats" not in re.split("[./]", stem)):
                continue
            shape = names[plain[name]].shape
            partner = plain.get(stem + variance)
            if partner is None or len(shape) != 1 or names[partner].shape != shape:
                continue
            stems = dict.fromkeys(
                (stem, re.sub(r"(^|[./])batch_stats(?=[./])", r"\1params", stem.replace("aux:", "arg:", 1), count=1))
            )
            own = [plain.get(begin + word) for begin in stems for word in AFFINE]
            theirs = [one for one in own if one is not None and names[one].shape == shape]
            for one in (*theirs, plain[name], partner):
                found[one] = f"batchnorm: its module has {mean} and {variance}"
    return found


def _stem(name: str, word: str) -> str | None:
    """What is before the last word of a name; None where that is another word."""
    if name == word:
        return ""
    return name[: -len(word)] if name.endswith(word) and name[-len(word) - 1] in "./_:" else None


def norm(names: Names, entries: Entries) -> Reasons:
    """The tensors of norms of any kind."""
    found = batchnorm(names, entries)
    modules: dict[str, dict[str, str]] = {}
    for name in names:
        module, word = _split(name.removesuffix(":0"))
        modules.setdefault(module, {})[word] = name
    for module, tensors in modules.items():
        if (
            module
            and not any(name in found for name in tensors.values())
            and (why := _why_norm(module, tensors, names))
        ):
            found |= dict.fromkeys(tensors.values(), f"norm: {why}")
    return found


def _split(name: str) -> tuple[str, str]:
    """(module, last word) of a name; MXNet's symbols join the two by `_`."""
    at = max(name.rfind("."), name.rfind("/"))
    module, word = name[: max(at, 0)], name[at + 1 :]
    begin, _, last = word.rpartition("_")
    return (name[: -len(last) - 1], last) if begin and last in ("gamma", "beta") else (module, word)


def _why_norm(module: str, tensors: Mapping[str, str], names: Names) -> str:
    """Why a module is a norm; empty if it is none."""
    shapes = {names[name].shape for name in tensors.values() if names[name].dtype.is_floating}
    words = {word for word, name in tensors.items() if names[name].dtype.is_floating}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1 or not words <= {*AFFINE, "a_2", "b_2", "g", "b"}:
        return ""
    own = re.split("[./]", module)[-1]
    if NORM.fullmatch(own):
        return f"the module is called {own!r}, and its tensors have one axis"
    if words in ({"weight", "bias"}, {"gamma", "beta"}, {"scale", "bias"}):
        return f"the module has {' and '.join(sorted(words))} of one axis and one length, and nothing else"
    return ""


def scales(names: Names, entries: Entries) -> Reasons:
    """The scales of quantised weights."""
    found = quantised.groups({name: entry for name, entry in entries.items() if name in names})
    return {name: f"scales: belongs to {packed!r}" for packed, belongs in found.items() for name in belongs}


def counters(names: Names, entries: Entries) -> Reasons:
    """Counters, by name and size."""
    return dict(_counters(names))


def _counters(names: Names) -> Iterator[tuple[str, str]]:
    for name, view in names.items():
        word = re.split("[./]", name)[-1]
        if word in COUNTERS and view.numel == 1:
            yield name, f"counters: one number called {word!r}"


KINDS: Mapping[str, Callable[[Names, Entries], Reasons]] = {
    "batchnorm": batchnorm,
    "norm": norm,
    "scales": scales,
    "counters": counters,
}


def refuse_own(kinds: Collection[str]) -> None:
    """UsageError where a kind of one's own has the name of another."""
    if taken := [name for name in kinds if name in KINDS]:
        raise UsageError(f"the kind {taken[0]!r} comes with paramtool; choose another name")
