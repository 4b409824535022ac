"""The sections of the page about one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from paramtool.commands.inspect import Inspection
from paramtool.commands.report.buffers import StorageRuler, buffers
from paramtool.commands.report.findings import findings
from paramtool.commands.report.gates import NetworkFigure, network_figures
from paramtool.commands.report.heads import PartsFigure, parts_figures
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
from paramtool.commands.report.sharing import SharedGroup, caption, equal_groups, rows, shared_groups
from paramtool.drawing.document import (
    Column,
    PageSection,
    figure,
    folded,
    paragraph,
    searched,
    table,
    treemap,
)
from paramtool.drawing.markup import EMPTY, Markup, joined, tag
from paramtool.drawing.rows import grid, key
from paramtool.drawing.strips import ruler, shares, stacked, ticks
from paramtool.drawing.treemap import TreemapNode
from paramtool.drawing.wires import wired
from paramtool.errors import plural
from paramtool.model.checkpoint import Compound, NoData
from paramtool.model.display import size
from paramtool.model.view import View

MAX_GROUPS, MAX_BUFFERS, MAX_NETWORKS, MAX_PARTS = 16, 12, 12, 24
"""Figures of each section; the tables have more."""
MAX_ROWS = 2000
"""Rows of a table."""
MANY = 16
"""Findings that are shown without asking."""
ENOUGH = "; `paramtool inspect --json` lists all"


SECTION_IDS = ("findings", "bytes", "sharing", "buffers", "gates", "heads", "tensors")


def sections(found: Inspection) -> Iterator[PageSection]:
    """Everything about one checkpoint."""
    yield PageSection("findings", "Findings", finding_list(findings(found)))
    tensors = list(stored(found))
    yield PageSection("bytes", "Where the bytes are", _bytes(found, tensors))
    groups, equal = shared_groups(found), equal_groups(found)
    if groups or equal or found.content is not None:
        yield PageSection("sharing", "Which names share memory", _sharing(found, groups, equal))
    if blocks := buffers(found):
        yield PageSection("buffers", "Tensors inside one storage", _buffers(blocks))
    if networks := list(islice(network_figures(found), MAX_NETWORKS)):
        more = len(found.networks) - len(networks)
        yield PageSection("gates", "Gates of recurrent networks", _networks(networks, more))
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
        folded("The same as a table", module_table(root)),
    ))  # fmt: skip


def module_table(root: TreemapNode) -> Markup:
    """A treemap as rows: modules before what is inside them."""
    made: list[tuple[str, str, str, str]] = []
    stack = [(0, one) for one in reversed(root.children)]
    while stack and len(made) < MAX_ROWS:
        level, node = stack.pop()
        marks = MARK_WORDS.get(node.marks, "").partition(":")[0]
        made.append((f"{'· ' * level}{node.name}", f"{node.nbytes:,}", f"{node.count:,}", marks or node.words))
        if level < 3:
            stack += ((level + 1, child) for child in reversed(node.children) if child.children or level < 1)
    columns = (Column("Module or tensor", is_name=True), Column("Bytes", is_number=True),
               Column("Tensors", is_number=True), Column("What"))  # fmt: skip
    cut = f"; the first {MAX_ROWS:,}" if stack else ""
    return table(columns, made, f"Modules with their bytes, four levels deep{cut}")


def _sharing(found: Inspection, groups: Sequence[SharedGroup], equal: Sequence[SharedGroup]) -> Markup:
    if found.content is None:
        equal_words = "Equal bytes in separate storages were not compared; --equal does that."
    elif not equal:
        equal_words = "No tensors hold equal bytes in separate storages."
    else:
        equal_words = "Names on dotted lines have equal bytes and memory of their own: equal is not tied."
    lines = (
        "A whole line is one storage in the file, a dashed line is declared by the file, a dotted line is equal bytes."
    )
    drawn = [*groups[:MAX_GROUPS], *equal[:MAX_GROUPS]]
    hidden = len(groups) + len(equal) - len(drawn)
    made = list(islice(rows(found), MAX_ROWS + 1))
    columns = (Column("Name", is_name=True), Column("Stored tensor", is_name=True), Column("Is"), Column("Evidence"))
    cut = f"; the first {MAX_ROWS:,}{ENOUGH}" if len(made) > MAX_ROWS else ""
    return joined((
        paragraph(f"{lines}  {equal_words}" if drawn else f"No names share memory.  {equal_words}", "lead"),
        joined(figure(wired(one.owner, one.words, one.wires), caption(one)) for one in drawn),
        paragraph(f"{plural(hidden, 'more group')} of names are not drawn.") if hidden > 0 else EMPTY,
        folded("The same as a table", table(columns, made[:MAX_ROWS], f"Names that are views of other tensors{cut}"))
        if made else EMPTY,
    ))  # fmt: skip


def _buffers(blocks: Sequence[StorageRuler]) -> Markup:
    hidden = len(blocks) - MAX_BUFFERS
    return joined((
        paragraph("Each ruler is one storage, from its first byte to its last; crossed bytes belong to no tensor.  "
                  "Very small parts are drawn a little wider than they are.", "lead"),
        joined(map(_buffer, blocks[:MAX_BUFFERS])),
        paragraph(f"{plural(hidden, 'more kind')} of storages are not drawn.") if hidden > 0 else EMPTY,
    ))  # fmt: skip


def _buffer(one: StorageRuler) -> Markup:
    more = f", and {one.alike} more that look alike" if one.alike else ""
    gaps = f", {size(one.unused)} unused" if one.unused else ", no gap"
    text = f"{one.words}; {size(one.nbytes)}{gaps}{more}"
    scale = ticks(("0", size(one.nbytes // 2), f"{one.nbytes:,} bytes"))
    columns = (Column("Tensor", is_name=True), Column("From byte", is_number=True), Column("To byte", is_number=True),
               Column("Bytes", is_number=True))  # fmt: skip
    listed = [(name, f"{start:,}", f"{stop:,}", f"{stop - start:,}") for name, start, stop in one.parts[:MAX_ROWS]]
    legend = key([(tint, "", kind) for tint, kind in one.kinds[:16]])
    return figure(
        joined((ruler(one.segments, one.nbytes, text), scale)), text, legend,
        folded("The same as a table", table(columns, listed, f"Parts of the storage of {one.words}")),
    )  # fmt: skip


def _networks(found: Sequence[NetworkFigure], more: int) -> Markup:
    return joined((
        paragraph("Which rows of each tensor belong to which gate, by the table of the layout.  Gates have the same "
                  "colours in every layout, so that another order shows.", "lead"),
        joined(map(_network, found)),
        paragraph(f"{plural(more, 'more network')} are not drawn.") if more > 0 else EMPTY,
    ))  # fmt: skip


def _network(one: NetworkFigure) -> Markup:
    more = plural(one.left_out, "more tensor is not drawn", "more tensors are not drawn")
    hidden = f"; {more}: other layers look alike" if one.left_out and one.grids else ""
    text = f"{one.words}, layout {one.layout} by {one.source}{hidden}"
    return joined((
        tag("h3", one.at or "the network at the top"), paragraph(text),
        key([(tint, "", words) for tint, words in one.gates]) if one.gates and one.grids else EMPTY,
        _grids(one.grids) if one.grids else EMPTY,
    ))  # fmt: skip


def _grids(grids: Sequence[object]) -> Markup:
    """Tensors beside each other."""
    from paramtool.drawing.rows import Grid

    made = []
    for one in grids:
        assert isinstance(one, Grid)
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
    for name, entry in islice(entries.items(), MAX_ROWS):
        value = entry.value
        alias = graph.names.get(name)
        nbytes = value.nbytes if isinstance(value, View) else 0
        if isinstance(value, Compound):
            nbytes = sum(view.nbytes for view in value.parts.values())
        on = "" if alias is None or alias.owner == name else f"view of {alias.owner}"
        shown = "" if isinstance(value, NoData) else f"{nbytes:,}"
        made.append((name or "''", described(value), shown, entry.role, on))
    columns = (Column("Name", is_name=True), Column("Type and shape"), Column("Bytes", is_number=True), Column("Role"),
               Column("Stored as", is_name=True))  # fmt: skip
    hidden = len(entries) - len(made)
    cut = f", the first {len(made):,} of {len(entries):,}{ENOUGH}" if hidden > 0 else ""
    if not made:
        return paragraph("The checkpoint has no tensors.", "lead")
    return searched(
        "Show names that contain",
        folded(f"{plural(len(made), 'tensor')}{cut}",
               table(columns, made, "Every name of the checkpoint, in the order of the file")),
    )  # fmt: skip
