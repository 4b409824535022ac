"""`paramtool inspect`: what files are, and which rules they do not keep."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from paramtool.cli import _render
from paramtool.cli._failures import Failure, failure
from paramtool.cli._options import FAIL_ON, Row, command_line, given
from paramtool.cli._paths import FILES, check
from paramtool.cli._render import (
    FACTS,
    LISTED,
    MANY,
    NEXT,
    Rows,
    brief,
    current,
    every,
    listed,
    most,
    named,
    proof,
    rest,
)  # fmt: skip
from paramtool.cli._streams import quoted
from paramtool.commands import inspect as inspect_command
from paramtool.commands.inspect import Inspection, said_beside
from paramtool.errors import (
    MAX_LISTED,
    ParamtoolError,
    UsageError,
    exit_code,
    leading,
    plural,
    printable,
)  # fmt: skip
from paramtool.formats.once import remembering
from paramtool.formats.policy import is_allowed, is_dangerous
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import PENDING, SAID, Compound, Entry, NoData, Ordered, Unknown, Unreadable
from paramtool.model.display import size
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.commands.config_ties import DeclaredTies
    from paramtool.commands.dedup import Deduped
    from paramtool.commands.listed import Listing
    from paramtool.model.finding import Finding
    from paramtool.model.optimizer import Binding, Group
    from paramtool.passes.parts.groups import SeenParts


@frozen
class _Seen:
    """One of the paths, and what became of it."""

    path: str
    asked: Mapping[str, Any]
    """What is listed of it."""
    found: Inspection | None = None
    """None where it cannot be described."""
    failure: Failure | None = None
    _members = "path exit_code=code inspection error=failure"

    @property
    def inspection(self) -> Listing | None:
        """Its document."""
        from paramtool.commands.listed import Listing

        return Listing(self.found, **self.asked) if self.found is not None else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What rules found."""
        return self.found.findings if self.found is not None else ()

    @property
    def code(self) -> int:
        """The exit code that it has alone."""
        return exit_code([self.failure.code if self.failure else 0, int(bool(self.findings))])

    def show(self, rules: int, where: str = "") -> None:
        """The listing, the findings of so many rules, which say `where` if that is not plain, and the verdict."""
        shown = self.found if not current.quiet else None
        if shown is not None:
            _render.rows(rows(shown, **self.asked))
        findings(self.findings, where)
        if shown is not None and rules:
            broken = len({finding.rule for finding in self.findings})
            verdict = f"{plural(self.findings, 'finding')} from {broken} of {plural(rules, 'rule')}, exit code 1"
            fine = f"fine: {plural(rules, 'rule finds nothing', 'rules find nothing')}"
            _render.rows([("verdict", verdict if broken else fine)])

    def complain(self) -> None:
        """Its error, after what was printed of it."""
        if self.failure is not None:
            _render.flush()
            self.failure.complain()


@command_line(
    inspect_command.inspect,
    "PATH...",
    paths=FILES,
    common="tensors tree digest config only weights optimizer fail_on",
    codes="0 fine, 1 a --fail-on rule found something, 2 usage, 3 bad file, 4 unsafe file.  Unsafe counts more than "
    "bad, and that more than usage and findings.",
    tensors=Row("List every tensor."),
    tree=Row("List the modules, with the tensors, parameters and bytes below each."),
    depth=Row("With --tree, go down N levels.", "N", type=click.IntRange(1)),
    digest=Row("Read everything: print a digest of each tensor and find equal tensors."),
    optimizer=Row("List the optimizers' states, which parameters they belong to, and how that is known."),
    optimizer_names=Row(
        "Take the names of the parameters from FILE, one line for each entry of the optimizer.", "FILE", type=FILES
    ),
    fail_on=FAIL_ON,
)
@remembering()
def command(
    paths: tuple[str, ...], tensors: bool, *, tree: bool, depth: int | None, digest: bool,
    fail_on: tuple[str, ...], allow_unknown: bool, **options: Any,
) -> int:  # fmt: skip
    """Show what is in checkpoints.  paramtool imports and runs nothing from them, and reads tensor data only for
    --digest, --config and rules about bytes.  A file is unsafe if its pickles call unknown names: inspect lists all of
    them and exits with code 4.  If one of several files cannot be read, the others are still listed.

    The parameter count covers floating-point and complex tensors of the model, and integer tensors called weight.  It
    excludes masks, and counts shared tensors once.  For a file without parameters, inspect lists the objects.

    \b
    $ paramtool inspect model.pt
    $ paramtool inspect *.pt --quiet --fail-on 'unused-bytes>1MB'
    $ paramtool inspect ./gpt2 --config ./gpt2 --fail-on config-ties
    $ paramtool inspect ./checkpoint-500 --optimizer
    """
    if current.quiet and current.as_json:
        raise UsageError("--quiet prints lines of text and --json one document", hint="give one of the two")
    if depth is not None and not tree:
        raise UsageError("--depth needs --tree", hint="--tree --depth 2")

    if fail_on:
        from paramtool.commands.rules import parse

        for text in fail_on:
            parse(text)
    asked = {"tensors": tensors or digest, "is_tree": tree, "depth": depth}

    def look(path: str) -> _Seen:
        check(path, "inspect")
        found = inspect_command.inspect(
            path, digest=digest, fail_on=fail_on, allow_unknown=allow_unknown, progress=_render.progress, **options
        )
        why = None
        try:  # it is listed all the same
            if not allow_unknown:
                found.refuse()
            if found.optimizers:
                from paramtool.commands.optimizers import refuse_defects

                refuse_defects(found.path, [binding for file in found.optimizers for binding in file.bindings])
        except ParamtoolError as error:
            why = failure(error)
        return _Seen(path, asked, found, why)

    if len(paths) > 1:
        listed = (*asked.values(), options["optimizer"], options["optimizer_names"])
        is_listing = any((*listed, current.verbose, current.quiet, current.as_json))
        return _many(paths, look, len(fail_on), is_listing=is_listing)
    seen = look(paths[0])
    if current.as_json:
        _render.json_document(seen.inspection)
    else:
        seen.show(len(fail_on))
    seen.complain()  # why it is unsafe, if it is
    return seen.code


def findings(found: Sequence[Finding], where: str) -> None:
    """What rules found: of a kind one row on a terminal, with the first names, and a line each elsewhere.

    Of one rule the first lines are there, and how many more.
    """
    if _render.is_table() and not current.verbose:
        groups = grouped(((finding.rule, finding.what or finding.message), finding) for finding in found)
        for (rule, what), group in groups.items():
            names = [name for finding in group for name in finding.names] if len(group) > 1 else []
            text = f"{plural(names, 'tensor')}: each {what}" if names else group[0].message
            _render.rows([("finding", where + rule, text, names or "")])
        return
    for rule, texts in grouped((finding.rule, finding.message) for finding in found).items():
        rest = [f"and {len(texts) - most(MAX_LISTED)} more; {LISTED}"] * (len(texts) > most(MAX_LISTED))
        _render.lines((f"{where}{rule}: {text}" for text in (*texts[: most(MAX_LISTED)], *rest)), "finding")


def _many(paths: tuple[str, ...], look: Callable[[str], _Seen], rules: int, *, is_listing: bool) -> int:
    """Every path in order, also after one has failed; the exit code is the one that counts of theirs."""
    codes: list[int] = []
    table: list[_render.Texts] = []
    broken: list[tuple[str, Finding]] = []

    def every_one() -> Iterator[_Seen]:
        for path in paths:
            seen = _looked(path, look)
            codes.append(seen.code)
            yield seen
            if is_listing:
                seen.complain()

    if current.as_json:
        from paramtool.cli._json_text import document, kept, pieces

        head = {"schema": "paramtool.inspect-files/1", "files": document(every_one())}
        _render.text(kept(pieces({**head, "exit_code": lambda: exit_code(codes)})))
        return exit_code(codes)
    for seen in every_one():
        if is_listing:
            # The listing of one of several, with an empty line after it.
            seen.show(rules, f"{seen.path}: ")
            _render.lines([""] if seen.found is not None and not current.quiet else [])
        else:
            table.append(_in_a_line(seen))
            broken += ((seen.path, one) for one in seen.findings)
    _render.rows(table)
    for path, group in grouped(broken).items():
        findings(group, f"{path}: ")
    fine, found = codes.count(0), codes.count(1)
    words = f"{fine} fine, {found} with findings, {len(codes) - fine - found} with errors"
    _render.rows([("total", plural(codes, "file"), words)])
    return exit_code(codes)


def _in_a_line(seen: _Seen) -> _render.Texts:
    """The verdict of a file, its format, tensors, size and path, and the reason."""
    if seen.failure is not None:
        is_unsafe = seen.code == 4
        why, *others = seen.failure.message.removeprefix(f"{printable(seen.path)}: ").splitlines()
        for other in map(str.strip, others[:1]):
            why = f"asks for {other}: nothing was run" if is_unsafe else f"{why.rstrip(':')}: {other}"
        return ("unsafe" if is_unsafe else "error", "", "", "", seen.path, why)
    assert seen.found is not None
    found, broken = seen.found.checkpoint, plural(seen.findings, "finding") if seen.findings else ""
    tensors = plural(found.entries, "tensor")
    return ("finding" if broken else "fine", found.format, tensors, size(found.nbytes), seen.path, broken)


def _looked(path: str, look: Callable[[str], _Seen]) -> _Seen:
    """One of several paths; an error of its own stays with it, and says which path it is of."""
    try:
        return look(path)
    except Exception as error:
        failed = failure(error)
        if failed is None:
            raise
        if not failed.message.startswith((path, printable(path))):
            failed = Failure(failed.code, f"{printable(path)}: {failed.message}", failed.hint)
        return _Seen(path, {}, failure=failed)


# --- The listing: what a file is, what it shares, what it wastes, and what can be done about it ----------------------


MANY_OBJECTS = 40
DIGEST_LENGTH = 12
"""Hexadecimal digits of a digest on a terminal."""
ENOUGH = 0.05
"""What dedup leaves out of a file, at least, where it is worth naming."""
ADAPTER = "adapter_config.json"
"""PEFT's settings of an adapter."""
MANY_BLOCKS = 4
"""How many fused blocks a report lists: each has many parts."""


def rows(found: Inspection, *, tensors: bool, is_tree: bool, depth: int | None) -> Rows:
    """All rows of a checkpoint."""
    parameters = found.parameters
    checkpoint = found.checkpoint
    dtypes = checkpoint.dtypes()
    facts = [
        checkpoint.format,
        size(checkpoint.nbytes),
        f"{plural(checkpoint.entries, 'tensor')}, {found.distinct} distinct",
        _count(parameters, "parameter"),
        ", ".join(f"{number} {dtype}" if len(dtypes) > 1 else dtype for dtype, number in dtypes.items()),
    ]
    yield "file", found.path, FACTS.join(filter(None, facts))
    yield "written by", checkpoint.producer
    if checkpoint.metadata:
        from paramtool.formats.record import edits

        cast = edits.types_of(found.path, checkpoint.metadata).cast
        before = sorted(f"from {dtype}" for dtype in {*cast.values()})
        yield "cast", plural(cast, "tensor"), before, "as its record says; verify compares the numbers"
    yield "only", found.section, "this section alone, its prefix stripped from every name"
    yield from _companions(found)
    graph, held = found.graph, Ordered(checkpoint.entries if checkpoint.sections else ())
    for section in checkpoint.sections:
        names = list(held.under(section.prefix))
        owners = {graph.names[name].owner for name in graph.names.keys() & names}
        nbytes = size(sum(graph.owners[owner].nbytes for owner in owners))
        yield "section", section.name, f"{plural(names, 'tensor')}, {section.role}", nbytes
    # How the parameters of quantised weights are counted.
    weights = found.quantised
    if known := sum(map(bool, weights.values())):
        yield "quantised", plural(known, "weight"), "parameters are counted before packing, without scales"
    uncounted = [name for name, one in weights.items() if one is None]
    yield "uncounted", uncounted, "nothing shows how many weights these codes hold; a config.json can"
    # Tensors that are not plain views: those that cannot be written, and those with a pending sign.
    kinds = grouped(
        (_kind(entry), name) for name, entry in checkpoint.entries.items() if not isinstance(entry.value, View)
    )
    for (label, kind), names in kinds.items():
        yield label, names, kind
    yield from _unknown(found)
    if found.unused_nbytes:
        what = f"of {plural(found.graph.unused, 'storage')} belong to no tensor; dedup leaves them out"
        yield "unused", size(found.unused_nbytes), what
    yield from shared(found)
    yield from _equal(found)
    # Names that the file does not store: loading calculates them.
    calculated = (
        (name, f"a cast of {how.window.storage}" if how.window else "one value", _geometry(found.graph.owners[name]),
         "on load, by readers of the alias record")
        for name, how in found.graph.derived.items()
    )  # fmt: skip
    yield from listed("calculated", calculated, "name")
    yield from _repeated(found)
    # Recurrent networks; those of a fused block are listed with the block.
    fused = {network.at for network in found.fused.values()}
    alone = (
        (one.at or "(top)", brief(f"{one.spec} · {one.layout}", f"{one.spec}  {one.layout}, by {one.source}"))
        for one in found.networks
        if one.at not in fused
    )
    yield from listed("network", alone, "network")
    if found.parts is not None:
        yield from parts(found.parts)
        # What would decide where a layout is not known.
        undecided = {group.decides: group.at for group in found.parts.groups if group.decides}
        yield from listed("decide", ((at, decides) for decides, at in undecided.items()))
    yield from _fused_blocks(found)
    if found.config is not None:
        yield from _ties(found.config)
    if found.optimizers == ():
        yield "optimizer", "none", "the file has no state of an optimizer"
    for file in found.optimizers or ():
        for binding in file.bindings:
            yield from _optimizer(file.file, binding)
    if not parameters:
        # What the file of an optimizer, a scheduler or random states holds: where no tensor is a model's.
        from paramtool.model.outline import outline

        lines = list(islice(outline(checkpoint.objects), MANY_OBJECTS + 1))
        yield from every("object", (*lines[:MANY_OBJECTS], *[("and more", LISTED)] * (len(lines) > MANY_OBJECTS)))
    yield from every("note", (*checkpoint.said(), *found.assumed))
    if is_tree:
        yield from _tree(found, depth)
    if tensors:
        yield from _tensors(found)
    yield from _next(found, tensors)


def _count(number: int, what: str) -> str:
    """A count with three digits: 124 M parameters."""
    return f"{size(number).removesuffix('B').rstrip()} {what}{'' if number == 1 else 's'}"


def _companions(found: Inspection) -> Rows:
    """What the files beside the weights are about: an adapter of PEFT, a training of transformers or accelerate."""
    folder = found.path if found.below else os.path.dirname(found.path)
    if adapter := said_beside(folder, ADAPTER):
        base, kind, rank = (adapter.get(key) for key in ("base_model_name_or_path", "peft_type", "r"))
        of_base = f"of {base}; " if base else ""
        yield "adapter", f"{kind}{f' r={rank}' if rank else ''}", f"{of_base}PEFT merges it, paramtool does not"
    if not found.below:
        return
    from paramtool.formats.folder.training_files import is_training_state, optimizer_of

    names = sorted(os.listdir(folder))
    if state := [name for name in names if is_training_state(name) and os.path.isfile(os.path.join(folder, name))]:
        sizes = (f"{name} {size(os.path.getsize(os.path.join(folder, name)))}" for name in state)
        step = said_beside(folder, "trainer_state.json").get("global_step")
        more = "--optimizer lists the optimizer's" if any(map(optimizer_of, state)) and found.optimizers is None else ""
        yield "training", ", ".join(sizes), "" if step is None else f"step {step}", more


def _kind(entry: Entry) -> tuple[str, str]:
    match entry.value:
        case Compound(kind=kind):
            return "pending" if kind in PENDING else "unsupported", kind
        case NoData(why=why):
            return "unsupported", f"no data ({why})"
        case Unreadable(needs=needs):
            return "unsupported", f"unreadable, needs {needs}"
    return "tensor", ""


def shared(found: Inspection | Deduped) -> Rows:
    """What is stored, and a row for each other name of it: the same memory, or equal bytes that part on load."""
    graph, groups = found.graph, [*found.graph.groups()]
    constants = {name for equal in found.equal or () if equal.constant for name in equal.names}
    for owner, members in groups[: most(MANY)]:
        view, sets = graph.owners[owner], {one.alias_set for one in members}
        own = min(members, key=lambda one: (one.name != owner, one.evidence == "content")).alias_set
        what = f"{plural(members, 'window')} on one span" if owner in graph.anonymous else named(owner)
        yield "shared" if len(sets) == 1 else "equal", what, _geometry(view), size(view.nbytes)
        others = []
        for one in members:
            relation, declared = graph.relation(one), f", {SAID[one.evidence]}" if one.evidence in SAID else ""
            shape = "" if relation == "same" else f"{_geometry(one.window)}, "
            home = f"memory of {'its own' if one.alias_set == one.name else named(one.alias_set)}"
            equal = f"equal bytes{', constant' if one.name in constants else ''}, stored once; on load {home}"
            how = "same memory" if one.alias_set == own else equal
            others += [(f"  {named(one.name)}", f"{shape}{RELATED.get(relation, '')}{how}{declared}")] * (
                one.name != owner
            )
        yield from listed("", others, "name")
    yield from rest("shared", groups, "group")


RELATED = {"slice": "a slice, ", "transpose": "transposed, ", "view": "another view, "}


def _geometry(view: View) -> str:
    return f"{list(view.shape)} {view.dtype.name}"


def _equal(found: Inspection) -> Rows:
    groups = found.equal or ()
    for equal in groups[: most(MANY)]:
        first = found.graph.names[equal.names[0]].window
        constant = ", constant" if equal.constant else ""
        names = plural(len(equal.names) - 1, "name")
        yield "equal", named(equal.names[0]), _geometry(first), size(first.nbytes)
        yield "", f"  {leading(equal.names[1:], most(3), named)}", f"{names}, equal bytes, separate memory{constant}"
    yield from rest("equal", groups, "group")


def _repeated(found: Inspection) -> Rows:
    """Slices, transposes and casts of other tensors, and tensors of one repeated value."""
    if found.content is None:
        return
    words = {
        "view": ", in another shape,", "slice": " a slice of", "transpose": " the transpose of", "cast": " a cast of",
    }  # fmt: skip
    for match in found.content.matches[: most(MANY)]:
        view = found.graph.names[match.name].window
        rounded = "" if match.lossless else ", rounded to nearest even"
        where = f"from element {match.window.offset} on" if match.relation == "slice" else ""
        what = f"is{words[match.relation]} {match.owner}"
        yield match.relation, match.name, what, f"{_geometry(view)}{rounded}", where or size(view.nbytes)
    yield from rest("", found.content.matches)
    constants = [*found.content.constants]
    yield "constant", constants, f"{plural(constants, 'tensor')} of one value each"


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
            _count(node.parameters, "param"),
            size(node.nbytes),
            f"shared: {shared}" if is_lowest else "",
        )


def _fused_blocks(found: Inspection) -> Rows:
    blocks = found.graph.fused
    for block in blocks[: most(MANY_BLOCKS)]:
        network = found.fused.get(block.storage)
        gaps = plural(block.gaps, "gap") if block.gaps else "no gap"
        tail = f", {size(block.tail)} unused at the end" if block.tail else ""
        yield "fused", f"{plural(block.parts, 'tensor')} on one buffer", f"{size(block.nbytes)}, {gaps}{tail}"
        if network is not None:
            what = f"{network.layout} order: {network.spec}"
            yield "", f"  {network.at or 'the network'}", f"{what}{FACTS}{proof(network.proof)}"
        parts = ((f"  {part}", f"bytes {start}-{stop}") for part, start, stop in block.parts)
        yield from listed("", parts)
    yield from rest("fused", blocks, "block", MANY_BLOCKS)


def _unknown(found: Inspection) -> Rows:
    unsafe = {unknown.path for unknown in found.own_unsafe}
    for unknown in found.checkpoint.unknown:
        label = "allowed" if is_allowed(unknown, found.allow_class) else "unknown"
        yield "unsafe" if unknown.path in unsafe else label, unknown.path, _asked(unknown)
    beside = ((name, one.path, _asked(one)) for name, asked in found.unsafe_sidecars.items() for one in asked)
    yield from every("unsafe", beside)


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
                yield "tensor", named(own), kind, "", entry.role
                for label, view in parts.items():
                    part = f"{own}/{label}"
                    yield "part", part, _geometry(view), size(view.nbytes), "", "", _digest(digests, part)
            case NoData(dtype, shape, why):
                yield "tensor", named(own), f"{list(shape)} {dtype.name}", "no data", entry.role, why
            case Unreadable(needs):
                yield "tensor", named(own), "unreadable", "", entry.role, f"needs {needs}"


def _digest(digests: Mapping[str, str], own: str) -> str:
    """The beginning of a digest on a terminal, in a pipe all of it."""
    digest = digests.get(own, "")
    return brief(digest[:DIGEST_LENGTH], digest)


def _next(found: Inspection, tensors: bool) -> Rows:
    """The command that fits the file best, where it gains something."""
    path, entries = " ".join([quoted(found.path), *given("weights", "only", "allow_class")]), found.checkpoint.entries
    if current.verbose and not tensors:
        yield NEXT, f"paramtool inspect {path} --tensors", "lists every tensor"
    if not entries or found.own_unsafe:  # the error says what can be done
        return
    # In a folder equal tensors stay, for programs that read no record.
    gain = found.unused_nbytes + (0 if found.below else found.duplicate_nbytes or 0)
    if found.checkpoint.is_of_a_rank:
        yield _other_ranks(found)
    elif gain > ENOUGH * found.checkpoint.nbytes:
        yield from _next_dedup(found, path, size(gain))
    else:
        nothing = found.duplicate_nbytes == 0 and not found.unused_nbytes
        note = "note", "dedup would leave nothing out: no tensors that it compares are equal, and no bytes are unused"
        yield from [*_next_relayout(found, path)] or [note] * nothing


def _next_relayout(found: Inspection, path: str) -> Rows:
    """What can be done with recurrent networks."""
    sources = {one.layout for one in found.networks}
    if len(sources) != 1 or sources & {"torch", "torch.cell"} or path != quoted(found.path) or found.refused:
        return
    (source,) = sources
    from paramtool import layouts
    from paramtool.commands.networks import can_convert

    with suppress(UsageError):  # of a layout that is not installed nobody knows
        if layouts.find(layouts.parse(source)[0]).is_of_one_tensor:
            yield NEXT, f"paramtool unfuse {path}", "splits the fused networks into named tensors"
            return
    is_said = all(one.source != "names and shapes" for one in found.networks)
    if can_convert(found.checkpoint, None if is_said else source):
        words = "" if is_said else f" --from {quoted(source)}"
        yield (
            NEXT,
            f"paramtool convert {path}{words} --to torch",
            f"converts {plural(found.networks, 'network')} to PyTorch",
        )
    else:
        yield NEXT, f"paramtool guess {path}", "names the facts that a conversion needs"


def _next_dedup(found: Inspection, path: str, gain: str) -> Rows:
    """What dedup would do, with the flags that it asks for."""
    refused, entries, why = found.refused, found.checkpoint.entries, ""
    if refused:
        from paramtool.passes.select import keeps_weights

        if not keeps_weights(found.checkpoint, entries.keys() - refused):
            yield NEXT, f"dedup refuses {plural(refused, 'tensor')}: safetensors cannot hold them"
            return
        path += " --skip-unsupported"
        leaves = "it" if len(refused) == 1 else "them"
        why = f"dedup refuses {plural(refused, 'tensor')}: --skip-unsupported leaves {leaves} out; "
    kept = plural(len(entries) - len(refused), "name")
    every = "all " if len(entries) > 1 and not refused else ""
    yield NEXT, f"paramtool dedup {path}", f"{why}would leave out {gain} and keep {every}{kept}"


def _other_ranks(found: Inspection) -> _render.Texts:
    """Where the rest of a file is that has one rank's parts of tensors, if it is there."""
    from paramtool import formats

    folder, _, name = found.checkpoint.path.rpartition("/")
    try:
        formats.read(folder or ".", name, allow_class=found.allow_class)
    except ParamtoolError as error:
        why = "; ".join(line.strip() for line in error.message.splitlines()[1:3]) or error.message
        return "note", f"one rank's parts of tensors, which are not joined: {why}"
    line = f"paramtool inspect {quoted(folder or '.')} --weights {quoted(name)}"
    return NEXT, line, "one rank's parts of tensors: with those of the other ranks"


# --- Optimizers as rows of `inspect --optimizer` ---------------------------------------------------------------------


_SHOWN = ("lr", "momentum", "betas", "alpha", "rho", "weight_decay")
"""Settings that a terminal shows; --json has all."""


def _optimizer(file: str, binding: Binding) -> Rows:
    """An optimizer with its proof, then its groups, its entries, and what is not bound."""
    state = binding.optimizer
    at = ":".join(part for part in (file, state.at) if part) or "(top)"
    entries = f"{plural(state.entries, 'entry', 'entries')} in {plural(state.groups, 'group')}"
    yield "optimizer", at, state.algorithm or "unknown algorithm", entries, binding.words
    if state.refused:
        yield "", "", "cannot be moved", state.refused
    groups = (
        (str(k), plural(group.keys, "entry", "entries"), _settings(group)) for k, group in enumerate(state.groups)
    )
    yield from listed("group", groups, "group")
    entries_ = (
        (str(one.key), named(name) if (name := binding.names.get(one.key)) else "not bound", f"group {one.group}",
         ", ".join(slot.key for slot in one.slots) or "no state")
        for one in state.entries
    )  # fmt: skip
    yield from listed("entry", entries_)
    yield from listed("ambiguous", ((names, plural(names, "parameter")) for names in binding.ambiguous), "set")
    yield "no entry", binding.unbound, plural(binding.unbound, "parameter")


def _settings(group: Group) -> str:
    """The settings of a group that tell it from others."""
    from paramtool.model.outline import outline

    lines = dict(outline(group.settings))
    return ", ".join(f"{key} {lines[key]}" for key in _SHOWN if key in lines)


# --- The table of a config's ties for people: config says / file says / result ---------------------------------------


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
    yield "config", found.path, "config says", "file says", "result"
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


# --- The rows of attention, gated MLPs and experts, as `inspect` and `guess` show them -------------------------------


def parts(found: SeenParts) -> Rows:
    """A row for each tower, the first with the dialect whose names these are."""
    from paramtool.passes.parts.groups import words

    names = f"names of {found.dialect}" if found.dialect else ""
    towers = ((tower.at, words(tower), "" if k else names) for k, tower in enumerate(found.towers))
    yield from listed("parts", towers, "tower")
