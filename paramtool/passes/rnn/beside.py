"""Tensors beside a network: every name in its module belongs to it, is known, or is an error.

A network that was recognised by some of its names has the right shapes and can still compute something else: layer
norm, a trained initial state or an extra bias would be lost without a message.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from shlex import quote

from paramtool import layouts
from paramtool.errors import LayoutError, listed, plural
from paramtool.layouts.layout import Layout
from paramtool.layouts.names import EXTRAS, HARMLESS, TAKEN, Extra, homes, is_at_home
from paramtool.layouts.networks import Network, named, network_if_any
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, Compound, Entry
from paramtool.model.view import View, overlaps

WRAPPED = ("torch", "torch.cell")
"""The layouts whose weights the wrappers of `EXTRAS` replace."""
STATES = frozenset(("h0", "c0", "h_0", "c_0", "hx", "cx", "init_h", "init_c", "initial_h", "initial_c"))
"""Names at the top of a file could belong to anything; these belong to a recurrent network even there."""
STEMS = "(?:weight|bias)_[a-z0-9_]+|(?:weight|bias)|(?:ln|layer_?norm|norm|batch_?norm|bn)(?:_?[a-z0-9]+)*"
"""So do these in PyTorch files: the stems of its cells, and norms, at any depth below them."""
TOPS = ("", "single_stored_object", "params")
"""Prefixes that count as the top: none, the single object of a JLD2 file (`save_object`), Flax's collection."""
SHOWN = 8
"""How many names an error lists."""


# --- weights under other names ----------------------------------------------------------------------------------------


@frozen
class Unwrapped:
    """A checkpoint whose raw weights have the names under which a network reads them."""

    checkpoint: Checkpoint
    names: Mapping[str, str]
    """{name that the network reads: name in the file}."""

    def in_file(self, one: Network) -> Network:
        """A network of this checkpoint with the names of the file."""
        raw = {self.names[name]: name for name in one.tensors.values() if name in self.names}
        return replace(one, tensors={own: self.names.get(n, n) for own, n in one.tensors.items()}, raw=raw)


def unwrapped(checkpoint: Checkpoint) -> Unwrapped:
    """The checkpoint with the weights from before weight dropout instead of those that dropout last produced."""
    names: dict[str, str] = {}
    for name in checkpoint.entries:
        for at, own, extra in _wrappers(name):
            inner = f"{at}.module" if at else "module"
            places = [inside for inside in (inner, at) if _has_partner(checkpoint, inside, own)]
            if extra.then == TAKEN and places:
                names[f"{places[0]}.{own}".lstrip(".")] = name
    moved = {real: seen for seen, real in names.items()}
    kept = ((name, entry) for name, entry in checkpoint.entries.items() if name not in names)
    entries: dict[str, Entry] = {moved.get(name, name): entry for name, entry in kept}
    return Unwrapped(replace(checkpoint, entries=entries) if names else checkpoint, names)


def _has_partner(checkpoint: Checkpoint, at: str, own: str) -> bool:
    """Whether a module has the other matrix of a tensor's layer."""
    here, there = ("_hh", "_ih") if "_hh" in own else ("_ih", "_hh")
    partner = f"{at}.{own.replace(here, there)}".lstrip(".")
    return partner in checkpoint.entries or f"{partner}_raw" in checkpoint.entries


def _wrappers(name: str) -> Iterator[tuple[str, str, Extra]]:
    """(module, own name of a tensor, row) of each wrapper of a network's weights that could have made a name."""
    if not any(head in name for head in _heads()):
        return
    for extra in EXTRAS:
        at, own = extra.read(name) or ("", "")
        if own and any("" in named(layouts.find(layout), own) for layout in WRAPPED):
            yield at, own, extra


@cache
def _heads() -> frozenset[str]:
    """Words, one of which the name of any weight has that a wrapper replaces: other names are passed over at once."""
    rows = (row for layout in WRAPPED for row in layouts.find(layout).rows())
    return frozenset(max(re.split(r"\[.*?\]|\{.*?\}", row.name), key=len) for row in rows)


def wrapped(checkpoint: Checkpoint, ignore: Sequence[str] = ()) -> dict[tuple[str, str], list[str]]:
    """{(module, own name of a weight): the tensors that a wrapper computes it from}, for weights that are missing."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in checkpoint.entries:
        for at, own, _ in _wrappers(name):
            if f"{at}.{own}".lstrip(".") not in checkpoint.entries and not _ignored(name, ignore):
                found.setdefault((at, own), []).append(name)
                break
    return found


def computed(checkpoint: Checkpoint, at: str, own: str, names: list[str]) -> LayoutError:
    """The error for a weight that a wrapper computes."""
    return _unaccounted(checkpoint, at, f"{own!r} is computed when the network runs, from", names, ignore=False)


def refuse_wrapped(checkpoint: Checkpoint, wants: Sequence[str], ignore: Sequence[str]) -> None:
    """LayoutError if the file lacks the weights of a network but has the tensors that a wrapper computes them from.

    `wants` are patterns of modules; empty for all modules.
    """
    for (at, own), names in wrapped(checkpoint, ignore).items():
        if not wants or any(fnmatchcase(at, pattern) for pattern in wants):
            raise computed(checkpoint, at, own, names)


# --- names beside a network's own -------------------------------------------------------------------------------------


def ignored(
    checkpoint: Checkpoint,
    one: Network,
    taken: Container[str],
    others: Iterable[tuple[Layout, str]],
    *,
    ignore: Sequence[str],
) -> Iterator[str]:
    """The names beside a network that match `ignore`; LayoutError for names that nothing accounts for.

    `taken` are the tensors of all networks that are converted, `others` the (layout, module) of every possible network.
    """
    inside = [(layout, at) for layout, at in others if (at != one.at and at.startswith(tuple(_begins(one))))]
    left: list[str] = []
    for name in _beside(checkpoint, one):
        if name in taken or any(at in named(layout, name) for layout, at in inside):
            continue
        if _ignored(name, ignore):
            yield name
        else:
            left.append(name)
    if left:
        head = f"layout {one.layout.name} has no place for {plural(len(left), 'tensor')} beside its weights"
        wanted, libraries = {*one.tensors.values(), *left}, homes(checkpoint.format)
        found = [n.layout.name for n in _other_readings(checkpoint, one) if wanted <= set(n.tensors.values())]
        raise _unaccounted(
            checkpoint, one.at, head, left, explained=[name for name in found if is_at_home(name, libraries)]
        )


def _ignored(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _begins(one: Network) -> list[str]:
    """The prefixes of the names in a network's module."""
    return [one.at + separator for separator in {".", "/", one.layout.separator}] if one.at else [""]


def _beside(checkpoint: Checkpoint, one: Network) -> Iterator[str]:
    """The names that could belong to a network and are not its tensors."""
    views = checkpoint.views()
    own = {name: views[name] for name in one.tensors.values()}
    begins, extends = tuple(_begins(one)), _extending(one)
    top = _at_the_top(checkpoint, one) if one.at in TOPS else None
    for name, entry in checkpoint.entries.items():
        below = name.startswith(begins) if top is None else name in top
        if not (below or extends.fullmatch(name)) or name in own or entry.role == "optimizer":
            continue
        window = views.get(name)
        is_part = window and any(view.storage == window.storage and overlaps(view, window) for view in own.values())
        inner = name[len(one.at) + 1 :] if one.at else name
        if not is_part and not any(extra.then == HARMLESS and extra.read(inner) is not None for extra in EXTRAS):
            yield name


def _extending(one: Network) -> re.Pattern[str]:
    """Matches names in the module, or in its parent, that begin with the name of one of its tensors."""
    parents = {one.at, *(one.at[: max(one.at.rfind(c), 0)] for c in "./")}
    begins = [f"{re.escape(parent)}[./]" if parent else "" for parent in parents]
    own = "|".join(map(re.escape, one.tensors))
    return re.compile(rf"(?:{'|'.join(begins)})(?:parametrizations\.)?(?:{own})[_./].+", re.DOTALL)


def _other_readings(checkpoint: Checkpoint, one: Network) -> Iterator[Network]:
    """The module as a network of each other layout, of several tensors, that finds one there."""
    shapes = checkpoint.shapes()
    for layout in layouts.all_layouts():
        is_other = layout.name != one.layout.name and any(len(form.tensors) > 1 for form in layout.forms)
        if is_other and (found := network_if_any(layout, one.at, shapes)):
            yield found


def _at_the_top(checkpoint: Checkpoint, one: Network) -> set[str]:
    """Names at the top that belong to the network: those that another layout reads together with it, and states."""
    mine = set(one.tensors.values())
    found = [set(other.tensors.values()) for other in _other_readings(checkpoint, one)]
    states = {begin + name for begin in _begins(one) for name in STATES}
    stem = re.compile(rf"(?:{'|'.join(map(re.escape, _begins(one)))})(?:{STEMS})(?:[./].*)?", re.DOTALL | re.IGNORECASE)
    stems = [name for name in checkpoint.entries if one.layout.name in WRAPPED and stem.fullmatch(name)]
    return states.union(stems, *(names for names in found if names > mine))


def _unaccounted(
    checkpoint: Checkpoint, at: str, head: str, names: list[str], *, explained: Sequence[str] = (), ignore: bool = True
) -> LayoutError:
    lines, hints = [], []
    if explained:
        have = "has" if len(explained) == 1 else "have"
        hints.append(
            f"{' and '.join(explained)} {have} a place for each: choose the layout with --from (unfuse: --layout)"
        )
    for name in names[:SHOWN]:
        known = _known(checkpoint, name)
        lines.append(f"{name!r}{_shape(checkpoint.entries[name])}" + (f": {known.what}" if known else ""))
        if known and known.hint:
            hints.append(known.hint.replace("NAME", (known.read(name) or ("", ""))[1]))
    if ignore:
        flags = " ".join(f"--ignore {quote(pattern)}" for pattern in _patterns(at, names))
        hints.append(f"{flags} converts the network without {'them' if len(names) > 1 else 'it'}")
    where = f"{checkpoint.path}: {repr(at) if at else 'the network at the top'}"
    text = listed(f"{where}: {head}:", lines, len(names) - len(lines))
    return LayoutError(text, hint="; or ".join(dict.fromkeys(hints)))


def _patterns(at: str, names: Sequence[str]) -> list[str]:
    """Patterns for --ignore: names, or the common part of names in one module."""
    found: list[str] = []
    for name in names:
        module = name[len(at) + 1 :] if at and name.startswith(at) else name
        part = re.split("[./]", module)[0]
        found.append(name if part == module else f"{name[: len(name) - len(module) + len(part) + 1]}*")
    return list(dict.fromkeys(found))


def _known(checkpoint: Checkpoint, name: str) -> Extra | None:
    """The wrapper that made a name: of several, the wrapper of which most names are present."""
    found = [(at, own, extra) for at, own, extra in _wrappers(name)]

    def there(at: str, own: str, extra: Extra) -> int:
        names = (f"{at}.{template.replace('{own}', own)}".lstrip(".") for template in extra.names)
        return sum(name in checkpoint.entries for name in names)

    return max(found, key=lambda row: there(*row), default=("", "", None))[2]


def _shape(entry: Entry) -> str:
    match entry.value:
        case View(shape=shape):
            return f" {list(shape)}"
        case Compound(kind=kind):
            return f" ({kind})"
    return ""
