"""The sections of the page about one checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from paramtool import layouts
from paramtool.commands.inspect import Inspection
from paramtool.commands.report.modules import (
    MARK_WORDS,
    ROLE_WORDS,
    TINTS,
    UNUSED,
    StoredTensor,
    described,
    parts,
    separator_of,
    stored,
    tree,
)
from paramtool.commands.report.sharing import (
    caption,
    equal_groups,
    last_words,
    numberless,
    part_of,
    rows,
    shared_groups,
)  # fmt: skip
from paramtool.drawing.document import (
    NAME,
    NUMBER,
    WORDS,
    PageSection,
    as_table,
    figure,
    figures,
    folded,
    paragraph,
    searched,
    table,
    treemap,
)
from paramtool.drawing.markup import EMPTY, Markup, joined, tag
from paramtool.drawing.palette import SERIES, series
from paramtool.drawing.strips import Band, Grid, Segment, grid, key, ruler, shares, stacked, ticks, wired
from paramtool.drawing.treemap import TreemapNode
from paramtool.errors import ParamtoolError, plural
from paramtool.findings.report import kind
from paramtool.grouping import grouped
from paramtool.layouts.layout import LayoutTensor, Place
from paramtool.layouts.networks import Network, network
from paramtool.layouts.spec import parse, whole
from paramtool.layouts.spec import text as spec_text
from paramtool.model.alias import FusedBlock
from paramtool.model.checkpoint import Compound, NoData
from paramtool.model.display import size
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous
from paramtool.passes.rnn import find

if TYPE_CHECKING:
    from paramtool.parts.pieces import Digit, Piece
    from paramtool.passes.parts.fuse import Joint
    from paramtool.passes.parts.seen_groups import SeenGroup


MAX_GROUPS, MAX_BUFFERS, MAX_NETWORKS, MAX_PARTS = 16, 12, 12, 24
"""Figures of each section; the tables have more."""
MANY = 16
"""Findings that are shown without asking."""
ENOUGH = "; `inspect --json` lists all"


SECTION_IDS = ("findings", "bytes", "sharing", "buffers", "gates", "heads", "tensors")


def sections(found: Inspection) -> Iterator[PageSection]:
    """Everything about one checkpoint."""
    yield PageSection("findings", "Findings", finding_list(findings(found)))
    tensors = list(stored(found))
    yield PageSection("bytes", "Where the bytes are", _bytes(found, tensors))
    groups, equal = shared_groups(found), equal_groups(found)
    if groups or equal or found.content is not None:
        if found.content is None:
            equal_words = "Equal bytes in separate storages were not compared; --equal does that."
        elif not equal:
            equal_words = "No tensors hold equal bytes in separate storages."
        else:
            equal_words = "Names on dotted lines have equal bytes and memory of their own: equal is not tied."
        lines = (
            "A whole line is one storage in the file, a dashed line is declared by the file, a dotted line is equal "
            "bytes."
        )
        drawn = [*groups[:MAX_GROUPS], *equal[:MAX_GROUPS]]
        columns = {"Name": NAME, "Stored tensor": NAME, "Is": WORDS, "Evidence": WORDS}
        yield PageSection(
            "sharing",
            "Which names share memory",
            figures(
                f"{lines if drawn else 'No names share memory.'}  {equal_words}",
                (figure(wired(one.owner, one.words, one.wires), caption(one)) for one in drawn),
                len(groups) + len(equal) - len(drawn),
                "group",
                as_table(columns, rows(found), "Names that are views of other tensors", ENOUGH) if groups else EMPTY,
            ),
        )
    if blocks := buffers(found):
        yield PageSection("buffers", "Tensors inside one storage", _buffers(blocks))
    if networks := list(islice(network_figures(found), MAX_NETWORKS)):
        more = len(found.networks) - len(networks)
        lead = (
            "Which rows of each tensor belong to which gate, by the table of the layout.  Gates have the same colours "
            "in every layout, so that another order shows."
        )
        yield PageSection(
            "gates", "Gates of recurrent networks", figures(lead, map(_network, networks), more, "network")
        )
    if heads := list(islice(parts_figures(found), MAX_PARTS)):
        yield PageSection("heads", "Fused attention, MLPs and experts", _heads(heads))
    yield PageSection("tensors", "All tensors", _tensors(found))


def finding_list(rows_: Sequence[tuple[str, str, str]]) -> Markup:
    """Findings as a list; of very many, the others are folded."""
    items = [tag("li", tag("b", what), text, class_=severity) for severity, what, text in rows_]
    first, rest = (items, []) if len(items) <= MANY else (items[: MANY // 2], items[MANY // 2 :])
    made = tag("ul", joined(first), class_="findings")
    return joined((made, folded(f"{len(rest)} more", tag("ul", joined(rest), class_="findings")))) if rest else made


def _bytes(found: Inspection, tensors: Sequence[StoredTensor]) -> Markup:
    counted = parts(tensors)
    total = sum(counted.values())
    if not total:
        return paragraph("No tensor has bytes.", "lead")
    bar = stacked(
        (
            "unused" if role == UNUSED else ROLE_WORDS.get(role, role) + (f", {mark}" if mark else ""),
            nbytes,
            TINTS.get(role, "blank"),
            mark,
            f"{size(nbytes)}, {100 * nbytes / total:.1f} %",
        )
        for (role, mark), nbytes in counted.items()
    )
    label = f"{size(total)} of tensors: " + ", ".join(f"{one.label} {one.words}" for one in bar)
    root = tree(tensors, separator_of(found.checkpoint.entries))
    return joined((
        paragraph("Each rectangle is as large as the bytes that it stands for, and every byte counts once.  Click a "
                  "module to open it, or use the arrow keys, Enter and Escape.", "lead"),
        figure(shares(bar, label), f"{size(total)} of tensors by what they are") if len(bar) > 1 else EMPTY,
        key([(one.tint, one.marks, f"{one.label}: {one.words}") for one in bar]),
        treemap(root, "Bytes by module"),
        module_table(root),
    ))  # fmt: skip


def module_table(root: TreemapNode) -> Markup:
    """A treemap as rows: modules before what is inside them."""
    made: list[tuple[str, str, str, str]] = []
    stack = [(0, one) for one in reversed(root.children)]
    while stack:
        level, node = stack.pop()
        marks = MARK_WORDS.get(node.marks, "").partition(":")[0]
        made.append((f"{'· ' * level}{node.name}", f"{node.nbytes:,}", f"{node.count:,}", marks or node.words))
        if level < 3:
            stack += ((level + 1, child) for child in reversed(node.children) if child.children or level < 1)
    columns = {"Module or tensor": NAME, "Bytes": NUMBER, "Tensors": NUMBER, "What": WORDS}
    return as_table(columns, made, "Modules with their bytes, four levels deep")


def _buffers(blocks: Sequence[StorageRuler]) -> Markup:
    lead = (
        "Each ruler is one storage, from its first byte to its last; crossed bytes belong to no tensor.  Very small "
        "parts are drawn a little wider than they are."
    )
    return figures(lead, map(_buffer, blocks[:MAX_BUFFERS]), len(blocks) - MAX_BUFFERS, "storage")


def _buffer(one: StorageRuler) -> Markup:
    more = f", and {one.alike} more that look alike" if one.alike else ""
    gaps = f", {size(one.unused)} unused" if one.unused else ", no gap"
    text = f"{one.words}; {size(one.nbytes)}{gaps}{more}"
    scale = ticks(("0", size(one.nbytes // 2), f"{one.nbytes:,} bytes"))
    columns = {"Tensor": NAME, "From byte": NUMBER, "To byte": NUMBER, "Bytes": NUMBER}
    listed = ((name, f"{start:,}", f"{stop:,}", f"{stop - start:,}") for name, start, stop in one.parts)
    legend = key([(tint, "", kind) for tint, kind in one.kinds[:16]])
    return figure(
        joined((ruler(one.segments, one.nbytes, text), scale)), text, legend,
        as_table(columns, listed, f"Parts of the storage of {one.words}"),
    )  # fmt: skip


def _network(one: NetworkFigure) -> Markup:
    more = plural(one.left_out, "more tensor is not drawn", "more tensors are not drawn")
    hidden = f"; {more}: other layers look alike" if one.left_out and one.grids else ""
    text = f"{one.words}, layout {one.layout} by {one.source}{hidden}"
    return joined((
        tag("h3", one.at or "the network at the top"), paragraph(text),
        key([(tint, "", words) for tint, words in one.gates]) if one.gates and one.grids else EMPTY,
        _grids(one.grids) if one.grids else EMPTY,
    ))  # fmt: skip


def _grids(grids: Sequence[Grid]) -> Markup:
    """Tensors beside each other."""
    made = []
    for one in grids:
        label = f"{one.name} {one.words}: " + ", ".join(dict.fromkeys(band.label for band in one.bands[:24]))
        made.append(tag("figure", grid(one, label), tag("figcaption", tag("strong", one.name), f" {one.words}")))
    return tag("div", *made, class_="grids")


def _heads(found: Sequence[PartsFigure]) -> Markup:
    made = []
    for one in found:
        legend = key([(tint, "", words) for tint, words in one.terms]) if one.grids else EMPTY
        made += [tag("h3", one.at), paragraph(one.words), legend, _grids(one.grids) if one.grids else EMPTY]
    intro = "Which rows of a fused tensor are which part; the first module of each kind is drawn."
    return joined((paragraph(intro, "lead"), *made))


def _tensors(found: Inspection) -> Markup:
    entries, graph = found.checkpoint.entries, found.graph
    made = []
    for name, entry in entries.items():
        value = entry.value
        alias = graph.names.get(name)
        nbytes = value.nbytes if isinstance(value, View) else 0
        if isinstance(value, Compound):
            nbytes = sum(view.nbytes for view in value.parts.values())
        on = "" if alias is None or alias.owner == name else f"view of {alias.owner}"
        shown = "" if isinstance(value, NoData) else f"{nbytes:,}"
        made.append((name or "''", described(value), shown, entry.role, on))
    columns = {"Name": NAME, "Type and shape": WORDS, "Bytes": NUMBER, "Role": WORDS, "Stored as": NAME}
    if not made:
        return paragraph("The checkpoint has no tensors.", "lead")
    return searched(
        "Show names that contain",
        folded(plural(entries, "tensor"),
               table(columns, made, "Every name of the checkpoint, in the order of the file", ENOUGH)),
    )  # fmt: skip


# --- What a page says first: what is unsafe, what rules find, what is stored twice or not used, what is not known ----


ERROR, WARNING, NOTE, GOOD = "error", "warning", "note", "good"
Row = tuple[str, str, str]
"""(severity, what it is, a sentence)"""
MAX_FINDINGS = 200


def findings(found: Inspection) -> list[Row]:
    """Everything that somebody should know of a checkpoint; one row that says so if that is nothing."""
    rows = list(_rows(found))
    if not any(severity in (ERROR, WARNING) for severity, _, _ in rows):
        rows.insert(0, (GOOD, "fine", "nothing unsafe, and no bytes that no tensor uses"))
    if len(rows) > MAX_FINDINGS:
        more = len(rows) - MAX_FINDINGS
        rows = [
            *rows[:MAX_FINDINGS],
            (NOTE, "more", f"{plural(more, 'more finding')}: `inspect --json` has all"),
        ]
    return rows


def _rows(found: Inspection) -> Iterator[Row]:
    for one in found.own_unsafe:
        yield ERROR, "unsafe", f"{one.path} is {'called' if one.called else 'named'} by the file; it was not run"
    for name, unknown in found.unsafe_sidecars.items():
        yield from ((ERROR, "unsafe", f"{one.path} is asked for by {name}; it was not run") for one in unknown)
    allowed = [one.path for one in found.checkpoint.unknown if one not in found.own_unsafe]
    if allowed:
        yield (
            NOTE,
            "classes",
            f"{', '.join(allowed[:6])}{' and more' * (len(allowed) > 6)}: data of classes that are "
            "not known, none of them imported",
        )
    for broken in found.findings:
        yield NOTE if broken.allowed else broken.severity, kind(broken), broken.sentence
    if found.unused_nbytes:
        storages = plural(found.graph.unused, "storage")
        yield WARNING, "unused", f"{size(found.unused_nbytes)} of {storages} belong to no tensor: dedup leaves them out"
    if found.content is None:
        yield NOTE, "not compared", "equal bytes in separate storages were not searched for: --equal reads all tensors"
    elif found.duplicate_nbytes:
        words = "dedup --share-renamed" if found.below else "dedup"  # in a folder other programs look for each name
        yield WARNING, "equal", f"{size(found.duplicate_nbytes)} are stored more than once: {words} stores them once"
    if found.config is not None and not any(one.rule == "config-ties" for one in found.findings):
        from paramtool.commands.config_ties import text

        yield from ((WARNING, "config-ties", text(row)) for row in found.config.broken)
    for group in found.parts.groups if found.parts else ():
        if group.decides:
            yield NOTE, "decide", f"{group.at}: the layout of {', '.join(group.names)} is decided by {group.decides}"
    if found.graph.derived:
        yield NOTE, "calculated", f"{plural(len(found.graph.derived), 'name')} are calculated when the file is loaded"
    yield from ((NOTE, "note", text) for text in found.checkpoint.said())


# --- Fused attention, gated MLPs and experts as figures: which rows are queries, keys and values, gate and up --------


MAX_RUNS = 400
"""Runs of rows of one tensor: one with more is not drawn."""
TERM_WORDS = {"q": "queries", "k": "keys", "v": "values", "gate": "gate", "up": "up", "down": "down"}
ORDER = ("q", "k", "v", "gate", "up", "down")
"""Terms whose tints are the same in every figure."""


class PartsFigure(NamedTuple):
    """Fused tensors of one kind, in all layers of a tower."""

    at: str
    words: str
    grids: tuple[Grid, ...]
    terms: tuple[tuple[str, str], ...]
    """(tint, what has it)"""


def parts_figures(found: Inspection) -> Iterator[PartsFigure]:
    """A figure for each kind of fused tensor whose layout is known; words for the others."""
    for group in found.parts.groups if found.parts else ():
        if group.form != "fused":
            continue
        joints = _joints(found, group) if group.layout else []
        grids = [(one, made) for one in joints if (made := _grid(one)) is not None]
        terms = {term: None for one, _ in grids for term in one.described.parts}
        yield PartsFigure(
            ", ".join(f"{group.at}.{name}".lstrip(".") for name in group.names),
            _words(group),
            tuple(made for _, made in grids),
            tuple((tint_of(term), TERM_WORDS.get(term, term)) for term in terms),
        )


def _words(group: SeenGroup) -> str:
    modules = plural(group.modules, "module")
    if group.layout:
        return f"{group.layout}, as {group.source} says, in {modules}"
    if group.pattern:
        return f"{group.pattern}, as {group.source} says, in {modules}"
    fits = ", ".join(fit.layout for fit in group.fits)
    return f"the layout is not known: {fits} fit the shape, and {group.decides} decides; in {modules}"


def _joints(found: Inspection, group: SeenGroup) -> list[Joint]:
    """The fused weights of the first module; none where a fact is missing."""
    from paramtool.commands._fusing import seen_apart
    from paramtool.commands.rearrangement import config_beside, shapes_of
    from paramtool.parts.config_facts import KnownModel
    from paramtool.parts.facts import NONE
    from paramtool.passes.parts.fuse import KnownParts

    with suppress(ParamtoolError):
        model = KnownModel(config_beside(found.checkpoint.path))
        shapes = shapes_of(found.checkpoint)
        inside = {name: shape for name, shape in shapes.items() if name.startswith(group.first)}
        patterns = [f"{group.first}.{name}".lstrip(".") for name in group.names]
        at = patterns if group.kind != "experts" else [group.first]
        known = KnownParts(inside, model.sizes, packing=model.packing)
        made, _ = seen_apart(found.checkpoint, at, NONE, known)
        return [one for one in made if len(one.stored.shape) > 1 and not one.described.companion]
    return []


def _grid(joint: Joint) -> Grid | None:
    """The rows and columns of a fused tensor; of stacks those of the first expert."""
    shape = joint.stored.shape
    term_of = {name: term for term, names in joint.described.parts.items() for name in names}
    axis = joint.described.along
    pieces = list(joint.stored.pieces)
    if len(shape) == 3:
        pieces = [one for one in pieces if not one.at[0]]
    runs = list(islice(_runs(pieces, term_of, axis), MAX_RUNS + 1))
    if len(runs) > MAX_RUNS or not runs:
        return None
    rows, columns = shape[-2:]
    length, is_row = shape[axis], axis == len(shape) - 2
    if sum(stop - start for start, stop, _ in runs) != length:
        return None
    bands = tuple(
        Band(0.0, start / length, 1.0, stop / length, term, tint_of(term))
        if is_row
        else Band(start / length, 0.0, stop / length, 1.0, term, tint_of(term))
        for start, stop, term in runs
    )
    words = f"{list(shape)}, the first expert" if len(shape) == 3 else str(list(shape))
    return Grid(joint.stored.name, words, rows, columns, bands)


def _runs(pieces: list[Piece], term_of: dict[str, str], axis: int) -> Iterator[tuple[int, int, str]]:
    """(start, stop, term) along an axis, of the places that pieces have there; neighbours of one term are one."""
    found: list[tuple[int, int, str]] = []
    for piece in pieces:
        digits = sorted((one for own in piece.digits for one in own if one.axis == axis), key=lambda one: one.step)
        length, outer = _inner(digits)
        if len(found) > 16 * MAX_RUNS:
            return
        for values in islice(product(*(range(one.length) for one in outer)), 16 * MAX_RUNS):
            start = piece.at[axis] + sum(k * one.step for k, one in zip(values, outer, strict=True))
            found.append((start, start + length, term_of.get(piece.part, piece.part)))
    joined: list[tuple[int, int, str]] = []
    for start, stop, term in sorted(set(found)):
        if joined and joined[-1][1] == start and joined[-1][2] == term:
            joined[-1] = (joined[-1][0], stop, term)
        else:
            joined.append((start, stop, term))
    yield from joined


def _inner(digits: list[Digit]) -> tuple[int, list[Digit]]:
    """How many indexes follow each other, and the digits that skip others; digits ascend by their steps."""
    length = 1
    for k, one in enumerate(digits):
        if one.length > 1 and one.step != length:
            return length, digits[k:]
        length *= one.length
    return length, []


def tint_of(term: str) -> str:
    """The tint of a part."""
    head = term.partition(".")[0]
    return SERIES[ORDER.index(head) % 3 + (3 if head in ORDER[3:] else 0)] if head in ORDER else "grey"


# --- Storages that several tensors have parts of, as rulers: fused buffers, ranks' flat vectors, gaps ----------------


MAX_SEGMENTS = 240
"""Parts of one ruler; neighbours behind these are drawn as one."""


class StorageRuler(NamedTuple):
    """A storage, its parts, and how many others look like it."""

    words: str
    nbytes: int
    segments: tuple[Segment, ...]
    kinds: tuple[tuple[str, str], ...]
    """(tint, what has it)"""
    parts: tuple[tuple[str, int, int], ...]
    alike: int
    unused: int


def buffers(found: Inspection) -> list[StorageRuler]:
    """Every storage of several tensors, the largest first; those that look alike are one."""
    alike = grouped(
        (
            (
                block.nbytes,
                tuple((numberless(name), *place) for name, *place in block.parts),
                (network := found.fused.get(block.storage)) and str(network.spec),
            ),
            block,
        )
        for block in found.graph.fused
    )
    made = [_ruler(blocks, found) for blocks in alike.values()]
    return sorted(made, key=lambda one: -one.nbytes)


def _ruler(blocks: Sequence[FusedBlock], found: Inspection) -> StorageRuler:
    block = blocks[0]
    tints = _tints(name for name, _, _ in block.parts)
    segments = [
        Segment(start, stop, last_words(name), tints[_kind(name)], "", f"{name}, bytes {start:,} to {stop:,}, "
                f"{size(stop - start)}")
        for name, start, stop in block.parts
    ]  # fmt: skip
    gaps = [*block.gaps, *([(block.nbytes - block.tail, block.nbytes)] if block.tail else [])]
    segments += (
        Segment(start, stop, "gap", "blank", "unused", f"bytes {start:,} to {stop:,}, {size(stop - start)} that no "
                "tensor looks at")
        for start, stop in gaps
    )  # fmt: skip
    unused = sum(stop - start for start, stop in gaps)
    segments.sort(key=lambda one: one.start)
    kinds = tuple(dict.fromkeys((tint, kind) for kind, tint in tints.items()))
    return StorageRuler(
        _block_words(block, found), block.nbytes, _bounded(segments), kinds, block.parts, len(blocks) - 1, unused
    )


def _block_words(block: FusedBlock, found: Inspection) -> str:
    """What a storage is."""
    network = found.fused.get(block.storage)
    what = plural(block.parts, "tensor")
    if network is not None:
        return (
            f"{network.at or 'the network'}: {spec_text(network.spec)}, {what} in one buffer in {network.layout} order"
        )
    first, last = block.parts[0][0], block.parts[-1][0]
    return f"{what} in one storage, {first} to {last}" if len(block.parts) > 1 else f"{first} in a larger storage"


def _bounded(segments: list[Segment]) -> tuple[Segment, ...]:
    """The first segments, and the others as one."""
    if len(segments) <= MAX_SEGMENTS:
        return tuple(segments)
    rest = segments[MAX_SEGMENTS:]
    more = plural(rest, "more tensor")
    words = f"bytes {rest[0].start:,} to {rest[-1].stop:,}, drawn as one"
    return (*segments[:MAX_SEGMENTS], Segment(rest[0].start, rest[-1].stop, more, "grey", "", words))


def _kind(name: str) -> str:
    """What a part is, without numbers: its last words."""
    return numberless(last_words(name))


def _tints(names: Iterable[str]) -> dict[str, str]:
    """{kind: tint}; the kinds behind the last tint have that of no kind."""
    kinds = list(dict.fromkeys(map(_kind, names)))
    return {kind: series(k) for k, kind in enumerate(kinds)}


# --- Recurrent networks as figures: which rows of which tensors are which gate ---------------------------------------


MAX_GRIDS = 12
"""Tensors of one network that are drawn."""
MAX_BANDS = 200
"""Bands of one tensor: one with more is not drawn."""
GATE_WORDS = {
    "lstm": {"i": "input gate", "f": "forget gate", "g": "cell candidate", "o": "output gate"},
    "gru": {"r": "reset gate", "z": "update gate", "n": "candidate"},
    "rnn": {},
}  # fmt: skip
KIND_WORDS = {"W": "W", "R": "R", "bW": "bias W", "bR": "bias R", "P": "projection", "peep": "peephole"}
NONE = "grey"


class NetworkFigure(NamedTuple):
    """A recurrent network and its tensors."""

    at: str
    words: str
    layout: str
    source: str
    grids: tuple[Grid, ...]
    left_out: int
    """Tensors that are not drawn: those of further layers, or such as are not made of bands."""
    gates: tuple[tuple[str, str], ...]
    """(tint, what has it)"""


def network_figures(found: Inspection) -> Iterator[NetworkFigure]:
    """A figure for each network that `inspect` lists; without grids where its table does not give them."""
    known: dict[str, Network] = {}
    with suppress(ParamtoolError):
        known = {one.at: one for one in find.described(found.checkpoint)[0]}
    for one in found.networks:
        read = known.get(one.at) or _read(found, one.at, one.layout, one.spec)
        if read is None:
            yield NetworkFigure(one.at, one.spec, one.layout, one.source, (), 0, ())
            continue
        tensors = read.stored()
        kinds = {(tensor.row.name, tensor.shape): tensor for tensor in reversed(tensors)}  # layers that look alike once
        unlike = [tensor for tensor in tensors if kinds[tensor.row.name, tensor.shape] is tensor]
        grids = [made for tensor in unlike[:MAX_GRIDS] if (made := _gate_grid(tensor, read)) is not None]
        gates = tuple(
            (gate_tint(gate, read), f"{gate}: {GATE_WORDS.get(read.spec.kind, {}).get(gate, 'gate')}")
            for gate in read.form.gates
            if len(read.form.gates) > 1
        )
        yield NetworkFigure(one.at, one.spec, one.layout, one.source, tuple(grids), len(tensors) - len(grids), gates)


def _read(found: Inspection, at: str, layout: str, spec: str) -> Network | None:
    """A network that names and shapes show; None where the table finds none."""
    shapes = found.checkpoint.shapes()
    with suppress(ParamtoolError):
        name, options = layouts.parse(layout)
        return network(layouts.find(name), options, at, shapes, facts=whole(parse(spec)))
    return None


def _gate_grid(tensor: LayoutTensor, read: Network) -> Grid | None:
    """A tensor with a band for each cell; None where its cells are no rectangles, or too many."""
    shape = tensor.shape
    long = [size for size in shape if size != 1]
    rows, columns = (1, prod(shape)) if len(long) < 2 else (long[0], prod(long[1:]))
    owner = contiguous("tensor", DTYPES["float32"], (rows, columns))
    bands = []
    for place in islice(tensor.places(), MAX_BANDS + 1):
        left, top, right, bottom = part_of(place.view, owner)
        label, tint = _named(place, read)
        bands.append(Band(left, top, right, bottom, label, tint))
    area = sum((one.right - one.left) * (one.bottom - one.top) for one in bands)
    if len(bands) > MAX_BANDS or not prod(shape) or abs(area - 1) > 1e-6:
        return None
    return Grid(tensor.name, str(list(shape)), rows, columns, tuple(bands))


def _named(place: Place, read: Network) -> tuple[str, str]:
    """What a place holds, and its tint."""
    if not place.terms:
        return "zeros", "blank"
    cells = [cell for _, cell in place.terms]
    kinds = " + ".join(KIND_WORDS.get(cell.kind, cell.kind) for cell in cells)
    one = cells[0]
    is_whole = len(read.tensors) == 1 and read.spec.layers * read.spec.directions > 1
    layer = f", layer {one.layer}{' reverse' if one.direction else ''}" if is_whole else ""
    return f"{one.gate or ''} {kinds}".strip() + layer, gate_tint(one.gate, read)


def gate_tint(gate: str, read: Network) -> str:
    """The tint of a gate: the same in every layout, in the order of torch."""
    order = "ifgo" if read.spec.kind == "lstm" else "rzn"
    return SERIES[order.index(gate)] if gate and gate in order else NONE
