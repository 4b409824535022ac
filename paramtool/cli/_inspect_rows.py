"""The listing of `paramtool inspect`: what a file is, what it shares, what it wastes, and what can be done about it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from paramtool.cli._display import current, most
from paramtool.cli._render import LISTED, MANY, Row, Rows, brief, every, listed, rest
from paramtool.cli._text import count, evidence_in_short, named, plural, quoted, size
from paramtool.commands.inspect import Inspection
from paramtool.errors import FormatError, UsageError, leading
from paramtool.formats.policy import is_allowed, is_dangerous
from paramtool.formats.record import types as types_record
from paramtool.grouping import grouped
from paramtool.model.alias import Alias
from paramtool.model.checkpoint import PENDING, SAID, SHARDED, Compound, Entry, NoData, Ordered, Unknown, Unreadable
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.commands.config_ties import DeclaredTies
    from paramtool.model.optimizer import Binding, Group
    from paramtool.passes.parts.groups import SeenParts

MANY_OBJECTS = 40
DIGEST_LENGTH = 12
"""Hexadecimal digits of a digest on a terminal."""
ENOUGH = 0.05
"""What dedup leaves out of a file, at least, where it is worth naming."""
ADAPTER = "adapter_config.json"
"""PEFT's settings of an adapter."""
MAX_SETTINGS = 1 << 20
MANY_BLOCKS = 4
"""How many fused blocks a report lists: each has many parts."""


def rows(found: Inspection, tensors: bool, *, tree: bool = False, depth: int | None = None) -> Rows:
    """All rows of a checkpoint."""
    parameters = found.parameters
    checkpoint = found.checkpoint
    dtypes = checkpoint.dtypes()
    facts = [
        checkpoint.format,
        size(checkpoint.nbytes),
        f"{plural(len(checkpoint.entries), 'tensor')}, {found.distinct} distinct",
        f"{count(parameters)} parameter{'' if parameters == 1 else 's'}",
        ", ".join(f"{number} {dtype}" if len(dtypes) > 1 else dtype for dtype, number in dtypes.items()),
    ]
    yield ("file", found.path, " · ".join(fact for fact in facts if fact))
    if checkpoint.producer:
        yield ("written by", checkpoint.producer)
    if cast := types_record.decode(found.path, checkpoint.metadata).cast:
        before = ", ".join(sorted(set(cast.values())))
        yield (
            "cast",
            f"{plural(len(cast), 'tensor')} from {before}",
            "as its record says; verify compares the numbers",
        )
    if found.section is not None:
        yield ("only", found.section, "this section alone, its prefix stripped from every name")
    yield from _companions(found)
    views, held = checkpoint.views(), Ordered(checkpoint.entries if checkpoint.sections else ())
    for section in checkpoint.sections:
        names = list(held.under(section.prefix))
        nbytes = sum(view.nbytes for view in {views[name] for name in names if name in views})
        yield ("section", section.name, f"{plural(len(names), 'tensor')}, {section.role}", size(nbytes))
    # How the parameters of quantised weights are counted.
    weights = found.quantised
    known = sum(bool(one) for one in weights.values())
    if known:
        yield ("quantised", plural(known, "weight"), "parameters are counted before packing, without scales")
    if unknown := [name for name, one in weights.items() if one is None]:
        yield (
            "uncounted",
            leading(unknown, show=named),
            "nothing shows how many weights these codes hold; a config.json can",
        )
    # Tensors that are not plain views: those that cannot be written, and those with a pending sign.
    kinds = grouped(
        (_kind(entry), name) for name, entry in found.checkpoint.entries.items() if not isinstance(entry.value, View)
    )
    for (label, kind), names in kinds.items():
        yield (label, leading(names, show=named), kind)
    yield from _unknown(found)
    if found.unused_nbytes:
        storages = plural(len(found.graph.unused), "storage")
        yield (
            "unused",
            size(found.unused_nbytes),
            f"of {storages} belong to no tensor; dedup leaves them out",
        )
    yield from _shared(found)
    yield from _equal(found)
    # Names that the file does not store: loading calculates them.
    calculated = (
        (name, f"a cast of {how.window.storage}" if how.window else "one value", _geometry(found.graph.owners[name]),
         "on load, by readers of the alias record")
        for name, how in found.graph.derived.items()
    )  # fmt: skip
    yield from listed("calculated", calculated, "name", where="")
    yield from _repeated(found)
    yield from _networks(found)
    if found.parts is not None:
        yield from parts(found.parts)
        # What would decide where a layout is not known.
        undecided = {group.decides: group.at for group in found.parts.groups if group.decides}
        yield from listed("decide", ((at, decides) for decides, at in undecided.items()))
    yield from _fused_blocks(found)
    if found.config is not None:
        yield from _ties(found.config)
    if found.optimizers == ():
        yield ("optimizer", "none", "the file has no state of an optimizer")
    for file in found.optimizers or ():
        for binding in file.bindings:
            yield from _optimizer(file.file, binding)
    if not parameters:
        # What the file of an optimizer, a scheduler or random states holds: where no tensor is a model's.
        from paramtool.model.outline import outline

        lines = list(islice(outline(found.checkpoint.objects), MANY_OBJECTS + 1))
        yield from (("object", path, value) for path, value in lines[:MANY_OBJECTS])
        if len(lines) > MANY_OBJECTS:
            yield ("object", "and more", LISTED)
    yield from every("note", (*found.checkpoint.said(), *found.assumed))
    if tree:
        yield from _tree(found, depth)
    if tensors:
        yield from _tensors(found)
    yield from _next(found, tensors)


def _companions(found: Inspection) -> Rows:
    """What the files beside the weights are about: an adapter of PEFT, a training of transformers or accelerate."""
    folder = found.path if found.below else os.path.dirname(found.path)
    if adapter := _said(folder, ADAPTER):
        base, kind, rank = (adapter.get(key) for key in ("base_model_name_or_path", "peft_type", "r"))
        of_base = f"of {base}; " if base else ""
        yield ("adapter", f"{kind} r={rank}" if rank else f"{kind}", f"{of_base}PEFT merges it, paramtool does not")
    if not found.below:
        return
    from paramtool.formats.folder.training_files import is_training_state, optimizer_of

    names = sorted(os.listdir(folder))
    if state := [name for name in names if is_training_state(name) and os.path.isfile(os.path.join(folder, name))]:
        sizes = (f"{name} {size(os.path.getsize(os.path.join(folder, name)))}" for name in state)
        step = _said(folder, "trainer_state.json").get("global_step")
        yield (
            "training",
            ", ".join(sizes),
            *([] if step is None else [f"step {step}"]),
            *(["--optimizer lists the optimizer's"] if any(map(optimizer_of, state)) else []),
        )


def _said(folder: str, name: str) -> Mapping[str, object]:
    """What a JSON file says; nothing where it is not there, or damaged: it is a neighbour of what is looked at."""
    place = os.path.join(folder, name)
    if not os.path.isfile(place):
        return {}
    from paramtool.formats import strict_json

    try:
        found, _ = strict_json.strict_file(place, "settings", MAX_SETTINGS)
    except FormatError:
        return {}
    return found if isinstance(found, dict) else {}


def _kind(entry: Entry) -> tuple[str, str]:
    match entry.value:
        case Compound(kind=kind):
            return ("pending" if kind in PENDING else "unsupported", kind)
        case NoData(why=why):
            return ("unsupported", f"no data ({why})")
        case Unreadable(needs=needs):
            return ("unsupported", f"unreadable, needs {needs}")
    return ("tensor", "")


def _shared(found: Inspection) -> Rows:
    graph = found.graph
    shown_groups = list(graph.groups())
    for owner, members in shown_groups[: most(MANY)]:
        view = graph.owners[owner]
        label = "shared" if len({m.alias_set for m in members}) == 1 else "equal"
        if owner in graph.anonymous:
            yield (label, f"{plural(len(members), 'window')} on one span", _geometry(view), size(view.nbytes))
        else:
            yield (label, named(owner), _geometry(view), size(view.nbytes))
        others = (member for member in members if member.name != owner)
        yield from listed("", ((f"  {named(one.name)}", _relation(one, found)) for one in others), "name", where="")
    yield from rest("shared", shown_groups, "group")


def _relation(member: Alias, found: Inspection) -> str:
    relation = found.graph.relation(member)
    words = {"same": "", "slice": "a slice, ", "transpose": "transposed, ", "view": "another view, "}
    alias_set = "same memory" if member.evidence != "content" else f"equal bytes, memory of {named(member.alias_set)}"
    declared = f", {SAID[member.evidence]}" if member.evidence in SAID else ""
    shape = "" if relation == "same" else f"{_geometry(member.window)}, "
    return f"{shape}{words.get(relation, '')}{alias_set}{declared}"


def _geometry(view: View) -> str:
    return f"{list(view.shape)} {view.dtype.name}"


def _equal(found: Inspection) -> Rows:
    for equal in (found.equal or ())[: most(MANY)]:
        first = found.graph.names[equal.names[0]].window
        constant = ", constant" if equal.constant else ""
        names = plural(len(equal.names) - 1, "name")
        yield ("equal", named(equal.names[0]), _geometry(first), size(first.nbytes))
        yield ("", f"  {leading(equal.names[1:], show=named)}", f"{names}, equal bytes, separate memory{constant}")
    yield from rest("equal", found.equal or (), "group")


def _repeated(found: Inspection) -> Rows:
    """Slices, transposes and casts of other tensors, and tensors of one repeated value."""
    if found.content is None:
        return
    words = {
        "view": "is, in another shape,", "slice": "is a slice of", "transpose": "is the transpose of",
        "cast": "is a cast of",
    }  # fmt: skip
    for match in found.content.matches[: most(MANY)]:
        view = found.graph.names[match.name].window
        rounded = "" if match.lossless else ", rounded to nearest even"
        where = f"from element {match.window.offset} on" if match.relation == "slice" else ""
        what = f"{words[match.relation]} {match.owner}"
        yield (match.relation, match.name, what, f"{_geometry(view)}{rounded}", where or size(view.nbytes))
    yield from rest("", found.content.matches)
    if constants := list(found.content.constants):
        yield ("constant", leading(constants, show=named), f"{plural(len(constants), 'tensor')} of one value each")


def _networks(found: Inspection) -> Rows:
    """Recurrent networks; those of a fused block are listed with the block."""
    fused = {network.at for network in found.fused.values()}
    alone = (
        (one.at or "(top)", brief(f"{one.spec} · {one.layout}", f"{one.spec}  {one.layout}, by {one.source}"))
        for one in found.networks
        if one.at not in fused
    )
    yield from listed("network", alone, "network")


def _tree(found: Inspection, depth: int | None) -> Rows:
    """A row for each module, indented; a tensor that another module shares counts there."""
    from paramtool.commands.listed import tree

    for level, node in tree(found).walk(depth):
        label = brief("  " * level + (node.name or "(all)"), node.path or "(all)")
        shared = leading([*node.shared.items()], 1, " = ".join)
        is_lowest = node.shared and not any(child.shared for child in node.children.values())
        yield (
            "module",
            label,
            plural(node.tensors, "tensor"),
            f"{count(node.parameters)} param{'' if node.parameters == 1 else 's'}",
            size(node.nbytes),
            f"shared: {shared}" if is_lowest else "",
        )


def _fused_blocks(found: Inspection) -> Rows:
    blocks = found.graph.fused
    for block in blocks[: most(MANY_BLOCKS)]:
        network = found.fused.get(block.storage)
        gaps = plural(len(block.gaps), "gap") if block.gaps else "no gap"
        tail = f", {size(block.tail)} unused at the end" if block.tail else ""
        yield ("fused", f"{plural(len(block.parts), 'tensor')} on one buffer", f"{size(block.nbytes)}, {gaps}{tail}")
        if network is not None:
            what = f"{network.layout} order: {network.spec}"
            proof = brief(f"{what} · {evidence_in_short(network.proof)}", f"{what}  {'; '.join(network.proof)}")
            yield ("", f"  {network.at or 'the network'}", proof)
        parts = ((f"  {part}", f"bytes {start}-{stop}") for part, start, stop in block.parts)
        yield from listed("", parts, where="")
    yield from rest("fused", blocks, "block", MANY_BLOCKS)


def _unknown(found: Inspection) -> Rows:
    unsafe = {unknown.path for unknown in found.own_unsafe}
    for unknown in found.checkpoint.unknown:
        label = (
            "unsafe" if unknown.path in unsafe else "allowed" if is_allowed(unknown, found.allow_class) else "unknown"
        )
        yield (label, unknown.path, _asked(unknown))
    for name, asked in found.unsafe_sidecars.items():
        for unknown in asked:
            yield ("unsafe", name, unknown.path, _asked(unknown))


def _asked(unknown: Unknown) -> str:
    """What a pickle does with a name, for people."""
    if unknown.needed_by:
        return f"needed by {leading(unknown.needed_by, show=named)}: not run, nothing was imported"
    if unknown.called:
        return f"called by the file with {unknown.arguments}: not run, nothing was imported"
    if is_dangerous(unknown.path):
        return "named by the pickle, and runs programs or code: not run, nothing was imported"
    return "a class that was not looked up; torch.load(weights_only=True) refuses the file"


def _tensors(found: Inspection) -> Rows:
    digests = found.digests or {}
    for own, entry in found.checkpoint.entries.items():
        match entry.value:
            case View() as view:
                owner = found.graph.names[own].owner
                on = "" if owner == own else f"on {named(owner)}"
                yield ("tensor", named(own), _geometry(view), size(view.nbytes), entry.role, on,
                       _digest(digests, own))  # fmt: skip
            case Compound(kind, parts, _):
                yield ("tensor", named(own), kind, "", entry.role)
                for label, view in parts.items():
                    part = f"{own}/{label}"
                    yield ("part", part, _geometry(view), size(view.nbytes), "", "", _digest(digests, part))
            case NoData(dtype, shape, why):
                yield ("tensor", named(own), f"{list(shape)} {dtype.name}", "no data", entry.role, why)
            case Unreadable(needs):
                yield ("tensor", named(own), "unreadable", "", entry.role, f"needs {needs}")


def _digest(digests: Mapping[str, str], own: str) -> str:
    """The beginning of a digest on a terminal, in a pipe all of it."""
    digest = digests.get(own, "")
    return brief(digest[:DIGEST_LENGTH], digest)


def _next(found: Inspection, tensors: bool) -> Rows:
    """The command that fits the file best, where it gains something."""
    path, entries = quoted(found.path), found.checkpoint.entries
    if found.weights is not None:
        path += f" --weights {quoted(found.weights)}"
    if found.section is not None:
        path += f" --only {quoted(found.section)}"
    if current.verbose and not tensors:
        yield ("next", f"paramtool inspect {path} --tensors", "lists every tensor")
    if entries and not found.own_unsafe:  # the error says what can be done
        yield from _next_relayout(found, path) or _next_dedup(found, path)


def _next_relayout(found: Inspection, path: str) -> list[Row]:
    """What can be done with recurrent networks, where dedup has nothing to gain."""
    sources = {one.layout for one in found.networks}
    is_plain = not (found.allow_class or found.weights or found.section is not None)
    if _gain(found) or len(sources) != 1 or _refused(found) or not is_plain:
        return []
    (source,) = sources
    if source in ("torch", "torch.cell"):
        return []
    if _is_fused(source):
        return [("next", f"paramtool unfuse {path}", "splits the fused networks into named tensors")]
    many = plural(len(found.networks), "network")
    is_said = all(one.source != "names and shapes" for one in found.networks)
    from paramtool.commands.networks import can_convert

    if not can_convert(found.checkpoint, None if is_said else source, "torch"):
        return [("next", f"paramtool guess {path}", "names the facts that a conversion needs")]
    words = "" if is_said else f" --from {quoted(source)}"
    output = _beside(found, "torch")
    return [("next", f"paramtool convert {path}{words} --to torch -o {output}", f"converts {many} to PyTorch")]


def _gain(found: Inspection) -> int:
    """The bytes that dedup is known to leave out; in a folder equal ones stay, for programs that read no record."""
    repeated = 0 if found.below else found.duplicate_nbytes or 0
    gain = found.unused_nbytes + repeated
    return gain if gain > ENOUGH * found.checkpoint.nbytes else 0


def _is_fused(layout: str) -> bool:
    """Whether a layout keeps a whole network in one tensor; of one that is not installed nobody knows."""
    from paramtool import layouts

    try:
        return len({row.name for form in layouts.find(layouts.parse(layout)[0]).forms for row in form.tensors}) == 1
    except UsageError:
        return False


def _beside(found: Inspection, word: str) -> str:
    """An output beside the file, named after it: `model.plain.safetensors`."""
    stem = os.path.splitext(found.path.rstrip("/"))[0].removesuffix(".dedup")
    return quoted(f"{stem}.{word}.safetensors")


def _next_dedup(found: Inspection, path: str) -> list[Row]:
    """What dedup would do, with the flags that it asks for."""
    refused = _refused(found)
    kept = [name for name in found.checkpoint.entries if name not in refused]
    if any(isinstance(e.value, Compound) and SHARDED in e.value.facts for e in found.checkpoint.entries.values()):
        return [_other_ranks(found)]
    if not (gain := _gain(found)):
        is_known = found.duplicate_nbytes == 0 and not refused and not found.unused_nbytes
        return [("note", "nothing to deduplicate: no bytes are stored twice, and none are unused")] * is_known
    flags = "".join(f" --allow-class {quoted(name)}" for name in found.allow_class)
    why = ""
    if refused:
        from paramtool.passes.select import keeps_weights

        if not keeps_weights(found.checkpoint, kept):
            return [("next", f"dedup refuses {plural(len(refused), 'tensor')}: safetensors cannot hold them")]
        flags += " --skip-unsupported"
        leaves = "it" if len(refused) == 1 else "them"
        why += f"dedup refuses {plural(len(refused), 'tensor')}: --skip-unsupported leaves {leaves} out; "
    names = ("all " if len(kept) > 1 and not refused else "") + plural(len(kept), "name")
    written = f"{why}would leave out {size(gain)} and keep {names}"
    return [("next", f"paramtool dedup {path}{flags}", written)]


def _other_ranks(found: Inspection) -> Row:
    """Where the rest of a file is that has one rank's parts of tensors, if it is there."""
    from paramtool import formats
    from paramtool.errors import ParamtoolError

    folder, _, name = found.checkpoint.path.rpartition("/")
    try:
        formats.read(folder or ".", name, allow_class=found.allow_class)
    except ParamtoolError as error:
        why = "; ".join(line.strip() for line in error.message.splitlines()[1:3]) or error.message
        return ("note", f"one rank's parts of tensors, which are not joined: {why}")
    line = f"paramtool inspect {quoted(folder or '.')} --weights {quoted(name)}"
    return ("next", line, "one rank's parts of tensors: with those of the other ranks")


def _refused(found: Inspection) -> set[str]:
    """Tensors that dedup cannot write to safetensors."""
    from paramtool.formats.safetensors import CODE_OF

    names, owners = found.graph.names, found.graph.owners
    return {
        name
        for name, entry in found.checkpoint.entries.items()
        if (view := _window(entry)) is None
        or view.dtype.name not in CODE_OF
        or (name in names and owners[names[name].owner].dtype.name not in CODE_OF)
    }


def _window(entry: Entry) -> View | None:
    """The one window that a tensor is written from."""
    if isinstance(entry.value, Compound):
        return entry.value.parts["data"] if entry.value.kind in PENDING else None
    return entry.value if isinstance(entry.value, View) else None


# --- Optimizers as rows of `inspect --optimizer` ----------------------------------------------------------------------


_SHOWN = ("lr", "momentum", "betas", "alpha", "rho", "weight_decay")
"""Settings that a terminal shows; --json has all."""


def _optimizer(file: str, binding: Binding) -> Rows:
    """An optimizer with its proof, then its groups, its entries, and what is not bound."""
    state = binding.optimizer
    at = ":".join(part for part in (file, state.at) if part) or "(top)"
    entries = f"{plural(len(state.entries), 'entry', 'entries')} in {plural(len(state.groups), 'group')}"
    yield ("optimizer", at, state.algorithm or "unknown algorithm", entries, binding.words)
    if state.refused:
        yield ("", "", "cannot be moved", state.refused)
    groups = (
        (str(k), plural(len(group.keys), "entry", "entries"), _settings(group)) for k, group in enumerate(state.groups)
    )
    yield from listed("group", groups, "group", where="")
    entries_ = (
        (str(one.key), named(name) if (name := binding.names.get(one.key)) else "not bound", f"group {one.group}",
         ", ".join(slot.key for slot in one.slots) or "no state")
        for one in state.entries
    )  # fmt: skip
    yield from listed("entry", entries_)
    ambiguous = ((leading(names, show=named), plural(len(names), "parameter")) for names in binding.ambiguous)
    yield from listed("ambiguous", ambiguous, "set", where="")
    if binding.unbound:
        yield ("no entry", leading(binding.unbound, show=named), plural(len(binding.unbound), "parameter"))


def _settings(group: Group) -> str:
    """The settings of a group that tell it from others."""
    from paramtool.model.outline import outline

    lines = dict(outline(group.settings))
    return ", ".join(f"{key} {lines[key]}" for key in _SHOWN if key in lines)


# --- The table of a config's ties for people: config says / file says / result ----------------------------------------


RESULT_TEXTS = {
    "tied": "declared and tied",
    "one-name": "fine: the file stores one name",
    "equal-not-tied": "declared, and equal in separate memory",
    "diverged": "DIVERGED: declared, and different",
    "shared-though-denied": "SHARED: one storage, and the config denies the tie",
    "equal-though-denied": "equal bytes in separate memory; the config denies the tie",
    "apart": "stored apart, and no tie is declared",
    "undeclared": "shared, and the config does not declare it",
    "undeclared-equal": "equal in separate memory, and the config declares nothing",
    "not-compared": "not compared",
}
"""Results of `passes.declared` for people."""
DENIED_NAME = "the file stores one name; a model with both initialises the other"
SAYS = {True: "tied", False: "apart", None: "nothing"}


def _ties(found: DeclaredTies) -> Rows:
    """A head, and a row for each tie, those that do not hold first; of very many the first."""
    from paramtool.commands.config_ties import apart_text
    from paramtool.passes.config_ties.declared import BROKEN

    ties = sorted(found.rows, key=lambda row: row.result not in BROKEN)
    yield ("config", found.path, "config says", "file says", "result")
    rows = (
        (
            leading(row.tie.names, MANY, between=" = "),
            f"{SAYS[row.says]}: {row.why}",
            f"{row.file}{apart_text(row)}",
            DENIED_NAME if row.says is False and row.result == "one-name" else RESULT_TEXTS[row.result],
        )
        for row in ties
    )
    yield from listed("tie", rows)


# --- The rows of attention, gated MLPs and experts, as `inspect` and `guess` show them --------------------------------


def parts(found: SeenParts) -> Rows:
    """A row for each tower, the first with the dialect whose names these are."""
    from paramtool.passes.parts.groups import words

    names = f"names of {found.dialect}" if found.dialect else ""
    towers = ((tower.at, words(tower), "" if k else names) for k, tower in enumerate(found.towers))
    yield from listed("parts", towers, "tower")
