"""Choosing a part of a checkpoint: one section of it, or the names that a model wants."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches

from paramtool.errors import UsageError
from paramtool.model.checkpoint import Checkpoint, Compound, Module, NoData, Ordered, Unreadable
from paramtool.model.objects import EMPTY, Opaque, map_tensors, rebased, subtree, tensor_names, walk
from paramtool.model.storage import Assembled, Cast
from paramtool.passes.compat.wanted import plain_window

WRAPPERS = ("module.", "_orig_mod.")
"""Prefixes that wrappers add: DataParallel, DistributedDataParallel and AveragedModel; torch.compile."""
OF_WRAPPERS = "n_averaged"
"""A buffer that AveragedModel adds (torch/optim/swa_utils.py)."""


def wrapper(names: Collection[str]) -> str:
    """The prefix that all names of a model have because it was saved inside a wrapper; empty without a wrapper.

    >>> wrapper(["module._orig_mod.a.weight", "module._orig_mod.module.bias"]), wrapper(["module.a", "head.a"])
    ('module._orig_mod.', '')
    """
    inner = [name for name in names if name != OF_WRAPPERS]
    found = ""
    while one := next((one for one in WRAPPERS if inner and all(name.startswith(one) for name in inner)), ""):
        found, inner = found + one, [name.removeprefix(one) for name in inner]
    return found


def compiled(names: Collection[str], wanted: Collection[str]) -> Mapping[str, str]:
    """{name of a file: the name that is wanted} where one side has the `_orig_mod.` of torch.compile and one has not.

    A block that was compiled by itself has it inside its names.  Nothing where two names would become one.

    >>> compiled(["a.0._orig_mod.w", "b"], ["a.0.w", "b"]), compiled(["w"], ["_orig_mod.w"])
    ({'a.0._orig_mod.w': 'a.0.w'}, {'w': '_orig_mod.w'})
    """
    if not any("_orig_mod." in name for name in (*names, *wanted)):
        return {}
    by_bare = {bare(name): name for name in wanted}
    new = {name: by_bare.get(bare(name), bare(name)) for name in names if name not in wanted}
    new = {name: other for name, other in new.items() if name != other}
    is_clear = len(by_bare) == len(wanted) and len({*new.values(), *(set(names) - new.keys())}) == len(names)
    return new if is_clear else {}


def bare(name: str) -> str:
    """A name without what torch.compile puts into it."""
    return re.sub(r"(^|(?<=\.))_orig_mod\.", "", name)


def section(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """Only one section, with its prefix stripped from every name; UsageError if no section has that name."""
    found = next((s for s in checkpoint.sections if s.name == name), None)
    if found is None:
        known = ", ".join(repr(s.name) for s in checkpoint.sections) or "none"
        near = alike(name, [s.name for s in checkpoint.sections])
        hint = f"do you mean {' or '.join(map(repr, near))}?" if near else ""
        prefix = f"{name.rstrip('.*')}."
        if any(one.startswith(prefix) for one in checkpoint.entries):
            hint = f"`export --prefix {prefix}` takes the tensors whose names begin so"
        raise UsageError(f"{checkpoint.path}: no section {name!r}; its sections: {known}", hint)
    cut = len(found.prefix)
    inside = subtree(checkpoint.objects, found.name)
    names = set(tensor_names(inside))
    entries = {name[cut:]: entry for name, entry in checkpoint.entries.items() if name in names}
    chosen = replace(checkpoint, entries=entries, sections=())
    used = {view.number for _, view in chosen.windows()}
    backings = [checkpoint.storages[number].backing for number in used]
    used |= {backing.view.number for backing in backings if isinstance(backing, Cast)}
    used |= {part.there.number for one in backings if isinstance(one, Assembled) for part in one.parts}
    classes = {node.path for node in walk(inside) if isinstance(node, Opaque)}
    unknown = tuple(
        replace(u, needed_by=tuple(n[cut:] for n in u.needed_by if n in names))
        for u in checkpoint.unknown
        if u.path in classes or not names.isdisjoint(u.needed_by)
    )
    return replace(
        chosen,
        modules=tuple(m for m in map(_cut(found.prefix), checkpoint.modules) if m is not None),
        storages={id_: storage for id_, storage in checkpoint.storages.items() if id_ in used},
        objects=rebased(map_tensors(inside, lambda name: name[cut:]), found.prefix),
        unknown=unknown,
    )


def _cut(prefix: str) -> Callable[[Module], Module | None]:
    """A function that strips the prefix of a section from a module; it gives None for a module of another section."""

    def cut(module: Module) -> Module | None:
        names = (module.at, *module.tensors.values())
        if not all(f"{name}.".startswith(prefix) for name in names):
            return None
        tensors = {own: name.removeprefix(prefix) for own, name in module.tensors.items()}
        return replace(module, at=module.at.removeprefix(prefix.rstrip(".")).lstrip("."), tensors=tensors)

    return cut


def section_for(checkpoint: Checkpoint, wanted: Collection[str]) -> str | None:
    """The section that holds most of the names in `wanted`, or None if the whole checkpoint holds as many.

    If several sections hold equally many, UsageError lists them.
    """
    asked, names = set(map(bare, wanted)), Ordered(checkpoint.entries if checkpoint.sections else ())
    held = {"": checkpoint.entries} | {s.prefix: names.under(s.prefix) for s in checkpoint.sections}
    counts = {prefix: sum(bare(n[len(prefix) :]) in asked for n in found) for prefix, found in held.items()}
    whole, scores = counts[""], {s.name: counts[s.prefix] for s in checkpoint.sections}
    best = max(scores.values(), default=0)
    if whole >= best:
        return None
    winners = [part for part, score in scores.items() if score == best]
    if len(winners) > 1:
        raise UsageError(
            f"{checkpoint.path}: {len(winners)} sections hold the wanted names: "
            + ", ".join(repr(winner) for winner in winners),
            hint="choose a section: --only SECTION",
        )
    return winners[0]


def model_section(checkpoint: Checkpoint, hint: str) -> str | None:
    """The section that holds the model of a training checkpoint; None if the whole checkpoint is the model.

    UsageError with the `hint` if the sections do not show which.
    """
    if not any(section.role in ("optimizer", "ema") for section in checkpoint.sections):
        return None
    models = [section for section in checkpoint.sections if section.role == "model"]
    names = Ordered(checkpoint.entries)
    inside = {name for section in models for name in names.under(section.prefix)}
    outside = any(e.role == "model" and name not in inside for name, e in checkpoint.entries.items())
    if len(models) == 1 and not outside:
        return models[0].name
    sections = ", ".join(f"{section.name!r} ({section.role})" for section in checkpoint.sections)
    raise UsageError(f"{checkpoint.path}: cannot tell which section is the model; its sections: {sections}", hint)


def under(checkpoint: Checkpoint, prefix: str) -> Checkpoint:
    """Only the names under a prefix, with the prefix stripped; UsageError if there are none."""
    entries = {n[len(prefix) :]: e for n, e in checkpoint.entries.items() if n.startswith(prefix) and n != prefix}
    if not entries:
        tops = ", ".join(dict.fromkeys(repr(name.split(".")[0]) for name in checkpoint.entries))
        raise UsageError(f"{checkpoint.path}: no name begins with {prefix!r}; its names begin with {tops:.200}")
    return replace(checkpoint, entries=entries, sections=(), modules=(), objects=EMPTY)


def keeps_weights(checkpoint: Checkpoint, kept: Collection[str]) -> bool:
    """Whether the weights are among these tensors: half of their numbers, and all in a library's own form."""
    found = [0, 0]
    for name, entry in checkpoint.entries.items():
        value = entry.value
        if entry.role in ("optimizer", "other", "graph") or isinstance(value, (NoData, Unreadable)):
            continue
        if name not in kept and isinstance(value, Compound) and ("." in value.kind or value.kind == "quantised"):
            return False
        parts = value.parts.values() if isinstance(value, Compound) else (value,)
        found[name in kept] += sum(part.numel for part in parts if not part.dtype.name.startswith(("int", "uint")))
    return 0 < found[True] >= found[False]


def storable(checkpoint: Checkpoint, refusals: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Checkpoint:
    """The tensors of a checkpoint that are one window and that a format can hold, judged by name and dtype."""
    views = {name: view for name, entry in checkpoint.entries.items() if (view := plain_window(entry.value))}
    refused = refusals({name: view.dtype.name for name, view in views.items()})
    kept = {n: entry for n, entry in checkpoint.entries.items() if n in views and n not in refused}
    return replace(checkpoint, entries=kept)


# --- What a missing name could have meant: similar names, and the prefix that would make it match ---------------------


MAX_COMPARED = 2_000
"""At most this many names are searched for similar ones: comparing two takes the product of their lengths."""
MAX_LOOKED_UP = 50
LIKENESS = 0.75


def alike(name: str, names: Collection[str]) -> list[str]:
    """At most two of `names` that are similar to `name`, the most similar first.

    >>> alike("wte.wieght", ["wpe.weight", "wte.weight", "ln.bias"])
    ['wte.weight', 'wpe.weight']
    """
    last = name.rpartition(".")[2]
    likely = [other for other in names if other.rpartition(".")[2] == last]
    pool = likely if get_close_matches(name, likely[:MAX_COMPARED], 1, LIKENESS) else list(names)
    return get_close_matches(name, pool[:MAX_COMPARED], 2, LIKENESS)


def advice(missing: Collection[str], names: Collection[str]) -> str:
    """The flag that would make most of the `missing` names match, or an empty string.

    >>> advice(["w", "b"], ["bert.w", "bert.b", "head.w"])
    'with --prefix bert. 2 of them match'
    >>> advice(["model.w"], ["w"])
    "with --rename '*=model.*' 1 of them matches"
    """
    prefix, count = prefix_before(missing, names)
    if count:
        return f"with --prefix {prefix} {_match(count)}"
    head, count = head_of(missing, names)
    return f"with --rename '*={head}*' {_match(count)}" if count else ""


def _match(count: int) -> str:
    return f"{count} of them {'matches' if count == 1 else 'match'}"


def padded(missing: Collection[str], names: Collection[str]) -> str:
    """A hint for a missing name that would be found without the spaces around it, or an empty string.

    >>> padded(["  w ", "b"], ["w", "x"])
    "'  w ' has spaces around it, which are part of the name: write 'w'"
    """
    found = next((name for name in missing if name != name.strip() in names), None)
    return (
        "" if found is None else f"{found!r} has spaces around it, which are part of the name: write {found.strip()!r}"
    )


def prefix_before(missing: Collection[str], names: Collection[str]) -> tuple[str, int]:
    """The prefix, up to a dot, that most of `missing` have in `names`, and how many have it.

    >>> prefix_before(["w", "b", "g"], ["bert.w", "bert.b", "head.w"])
    ('bert.', 2)
    """
    some = list(missing)[:MAX_LOOKED_UP]
    prefixes = Counter(prefix for name in some for prefix in _before(name, names))
    for prefix, _ in prefixes.most_common(1):
        return prefix, sum(prefix + name in names for name in missing)
    return "", 0


def head_of(missing: Collection[str], names: Collection[str]) -> tuple[str, int]:
    """The prefix, up to a dot, without which most of `missing` are among `names`, and how many are.

    >>> head_of(["model.w", "model.x"], ["w"])
    ('model.', 1)
    """
    some = list(missing)[:MAX_LOOKED_UP]
    heads = Counter(name[: len(name) - len(rest)] for name in some for rest in _tails(name) if rest in names)
    for head, _ in heads.most_common(1):
        return head, sum(name.startswith(head) and name[len(head) :] in names for name in missing)
    return "", 0


def _before(name: str, names: Collection[str]) -> Iterator[str]:
    """The prefixes, up to a dot, of the names that end with `name`."""
    end = f".{name}"
    return (other[: len(other) - len(name)] for other in names if other.endswith(end))


def _tails(name: str) -> Iterator[str]:
    """`b.c` and `c` of `a.b.c`."""
    while "." in name:
        name = name.partition(".")[2]
        yield name
