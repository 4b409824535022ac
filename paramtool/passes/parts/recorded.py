"""The record of parts when a file is read as a dialect: fused tensors that the dialect lacks are read as their parts.

record: fused query_key_value, qkv-per-group     Llama has q_proj, k_proj, v_proj: read as these
record: unfused query_key_value, qkv-per-head    BLOOM has query_key_value: refused; `fuse` restores it
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from paramtool import dialects
from paramtool.errors import LayoutError, PlanError, UsageError, listed, plural
from paramtool.grouping import omit
from paramtool.model.parts import FusedTensor, PartsRecord
from paramtool.model.view import Shape, Shapes
from paramtool.parts.blocks import merged
from paramtool.parts.config_facts import KnownModel, config_of, tower_of
from paramtool.parts.families import EXPERTS, named, of_family
from paramtool.parts.layout import find_part_layout
from paramtool.parts.pieces import Stored, whole
from paramtool.passes.parts import following
from paramtool.passes.parts.fuse import BIAS, Joint, pattern_of, recorded


def kept_names(joints: Iterable[Joint], views: Container[str]) -> list[str]:
    """Parts of fused tensors that the file has under their names, too, as views."""
    return [part.name for joint in joints for part in joint.apart if part.name in views]


def with_parts(
    shapes: Shapes, record: PartsRecord, dialect: str, model: KnownModel, *, views: Collection[str] = ()
) -> tuple[dict[str, Shape], tuple[Joint, ...]]:
    """The tensors of a file as `dialect` has them, by its record of parts; all of the record for an empty dialect.

    `views` are names that are views of other tensors.  LayoutError where the record contradicts the dialect.
    """
    there = [one for one in record.fused if one.tensor in shapes]
    own = {one.tensor for one in there if dialect and _has(one, dialect, model)}
    if lines := [
        f"{one.tensor!r} is of layout {one.layout}, by its record"
        for one in there
        if one.tensor in own and not _agrees(one, dialect, shapes, model)
    ]:
        raise LayoutError(
            listed(f"{plural(len(lines), 'tensor is', 'tensors are')} not as {dialect} has them:", lines),
            hint="`paramtool unfuse FILE -o OUT` restores what was there before",
        )
    if dialect:
        # LayoutError for parts that were taken out of a tensor which the dialect has
        apart = [
            one for one in record.unfused if one.tensor not in shapes and all(name in shapes for name in one.names)
        ]
        taken = [one for one in apart if _has(one, dialect, model)]
        if taken:
            lines = [f"{one.tensor!r}, layout {one.layout}: found {one.names[0]!r}" for one in taken]
            raise LayoutError(
                listed(f"{plural(len(lines), 'tensor')} of {dialect} {'was' if len(lines) == 1 else 'were'} taken "
                       "apart, by the record:", lines),
                hint=" and ".join(f"`paramtool fuse FILE --layout {one} -o OUT`" for one in dict.fromkeys(
                    one.layout for one in taken)) + ", which restores them",
            )  # fmt: skip
    joints = tuple(recorded(one, shapes, model.packing, is_fused=True) for one in there if one.tensor not in own)
    gone = {one.stored.name for one in joints}
    found = omit(shapes, gone)
    for joint in joints:
        for part in joint.apart:
            if part.name in found and part.name not in views:
                raise LayoutError(
                    f"{joint.stored.name!r} holds {part.name!r}, by its record, and the file has both",
                    hint="`export` without one of the two; nothing says which is meant",
                )
            found[part.name] = part.shape
    return found, joints


def _has(one: FusedTensor, dialect: str, model: KnownModel) -> bool:
    """Whether a dialect has a tensor of this name that holds several parts."""
    if dialects.opened(dialect, model.config, model.facts).joins(one.tensor):
        return True
    if dialect in dialects.TABLES or not family_layouts(one.tensor, model):
        return False
    return dialect == dialects.MEMORY or not dialects.is_of_hub(one.names, model.config)


def family_layouts(name: str, model: KnownModel) -> tuple[str, ...]:
    """The layouts that a tensor of this name has in the model's family, in a file or in memory."""
    tower = tower_of(name, model.config) if model.config else None
    if tower is None:
        return ()
    found = of_family(*config_of(model.config, tower))
    module, _, last = name.rpartition(".")
    is_layer = last in ("weight", "bias")
    if not is_layer and module.endswith("experts"):
        return named(found, "", EXPERTS)
    return named(found, *module.rpartition(".")[::2]) if is_layer else named(found, module, last)


def _agrees(one: FusedTensor, dialect: str, shapes: Shapes, model: KnownModel) -> bool:
    """Whether a dialect's tensor has its parts where the record says."""
    if dialect not in dialects.TABLES:
        known = family_layouts(one.tensor, model)
        return not known or one.layout in known
    name, opened = one.tensor, dialects.opened(dialect, model.config, model.facts)
    layout = find_part_layout(one.layout)
    if layout is not None and opened.form(name) in [row.content for row in layout.tensors]:
        return True
    (held,) = opened.read({name: shapes[name]})
    return places(held) == places(recorded(one, shapes, model.packing, is_fused=True).stored)


def places(one: Stored, *, named: bool = False) -> Sequence[object]:
    """Where the parts are, with their names if `named`."""
    return sorted(
        (piece.part if named else "", piece.at, piece.start, tuple(map(merged, piece.digits))) for piece in one.pieces
    )


def put_together(held: Iterable[Stored], joints: Iterable[Joint]) -> list[Stored]:
    """What the tensors of a file hold, given what their parts would; LayoutError if a part is not a whole tensor."""
    by_name = {one.name: one for one in held}
    for joint in joints:
        names = {}
        for part in joint.apart:
            one = by_name.pop(part.name)
            if one.pieces != whole(one.name, one.shape, one.pieces[0].part).pieces:
                raise LayoutError(
                    f"{joint.stored.name!r} holds {part.name!r}, by its record, which is rearranged, too",
                    hint="`paramtool unfuse FILE -o OUT` first",
                )
            names[part.name] = one.pieces[0].part
        by_name[joint.stored.name] = joint.stored.with_parts(names.__getitem__)
    return [*by_name.values()]


# --- What a file says of the rows of its tensors, against a variant that has tensors of the same names and shapes -----
#
#     file: dialect vllm          BLOOM's query_key_value is q, k, v there, and a head after another in transformers
#     file: fused, rope-pairs     Llama's q_proj has its rotary rows in pairs there, and in halves in transformers
#
# Names and shapes agree in both, so a program loads the file and computes something else.  The record of parts, or the
# file name that only one program gives, tells.


UNFIT = (LayoutError, PlanError, UsageError)
"""What reading a tensor as something raises where it cannot be that."""


class SaidRows(NamedTuple):
    """What one tensor holds, by what its file says."""

    words: str
    """`qkv by its record`."""
    places: Sequence[object]
    """Where the parts are; empty where that cannot be told."""
    is_odd: bool
    """Whether a model of transformers has other rows under the name."""
    usual: str = ""
    """The layout that it has there, if that is known."""


def rows_said(shapes: Shapes, record: PartsRecord, config: Mapping[str, Any], dialect: str = "") -> dict[str, SaidRows]:
    """{tensor: what it holds} of those that a record describes, or whose rows are others in the dialect of the file.

    `dialect` is the one that the file's name tells, for a file whose record names none.
    """
    model = KnownModel(config)
    found: dict[str, SaidRows] = {}
    dialect, who = (record.dialect, "by its record") if record.dialect else (dialect, "by its file name")
    is_table = dialect in dialects.TABLES and bool(config)
    if is_table:
        found = dict(_of_dialect(shapes, record, dialect, model, who=who))
    for one in record.fused:
        if one.tensor in shapes and not one.companion and not (is_table and one.tensor in found):
            found[one.tensor] = _of_record(one, shapes, model)
    return found


def _of_record(one: FusedTensor, shapes: Shapes, model: KnownModel) -> SaidRows:
    """A tensor that the record calls fused."""
    words = f"{one.layout} by its record"
    try:
        stored = recorded(one, shapes, model.packing, is_fused=True).stored
    except UNFIT:
        return SaidRows(words, (), is_odd=True)
    known = family_layouts(one.tensor, model)
    if known:
        is_odd = not any(_is_same(one, layout, shapes, model) for layout in known)
    else:
        is_odd = one.tensor in one.names and places(stored) != places(whole(one.tensor, stored.shape))
    return SaidRows(words, places(stored, named=True), is_odd, " or ".join(known))


def _is_same(one: FusedTensor, name: str, shapes: Shapes, model: KnownModel) -> bool:
    """Whether a tensor's parts are where a layout has them: per group is per head where heads are as many as groups."""
    if one.layout == name:
        return True
    layout = find_part_layout(name)
    if layout is None or len(layout.tensors) != 1:
        return False
    row, sizes = layout.tensors[0], {**model.sizes(one.tensor), **one.sizes}
    is_bias = len(shapes[one.tensor]) == 1
    pattern, along = pattern_of(row, BIAS) if is_bias else (row.content, one.along)
    try:
        mine = recorded(one, shapes, model.packing, is_fused=True).stored
        other = recorded(replace(one, pattern=pattern, along=along, sizes=sizes), shapes, model.packing, is_fused=True)
    except (*UNFIT, KeyError):
        return False
    return places(mine) == places(other.stored)


def _of_dialect(
    shapes: Shapes, record: PartsRecord, dialect: str, model: KnownModel, *, who: str
) -> Iterator[tuple[str, SaidRows]]:
    """The tensors that a dialect stores otherwise than transformers 4, and the parts that were taken out of them."""
    words = f"rows of {dialect} {who}"
    try:
        opened = dialects.opened(dialect, model.config, model.facts, record.prefix)
    except UNFIT:  # the dialect has no table for the model, so nothing is known
        return
    apart = [one for one in record.unfused if one.tensor not in shapes and shapes.keys() >= {*one.names}]
    for one in apart:
        if not _gives_hub(one, opened, model):
            yield from ((name, SaidRows(words, (), is_odd=True)) for name in one.names)
    taken = {name for one in apart for name in one.names}
    weights = following.told_apart(shapes, model.packing).weights
    try:
        held = opened.read(omit(weights, taken))
    except UNFIT:  # the form of one tensor is known, where that of all is not
        for name in weights:
            if name not in taken and (pattern := _form(opened, name)):
                yield name, SaidRows(f"{pattern}, {words}", (), is_odd=True)
        return
    for stored in held:
        if stored == (plain := whole(stored.name, stored.shape)):
            continue
        if (found := places(stored, named=True)) != places(plain, named=True):
            yield stored.name, SaidRows(words, found, not _is_of_memory(stored, model))


def _form(opened: dialects.OpenedDialect, name: str) -> str:
    try:
        return opened.form(name)
    except UNFIT:
        return ""


def _gives_hub(one: FusedTensor, opened: dialects.OpenedDialect, model: KnownModel) -> bool:
    """Whether what was taken out of a tensor of a dialect are tensors of transformers 4, under their names."""
    shapes: dict[str, Shape] = {}
    try:
        joint = recorded(one, shapes, model.packing, is_fused=False)
        (held,) = opened.read({one.tensor: joint.stored.shape})
    except UNFIT:
        return False
    return places(held, named=True) == places(joint.stored, named=True)


def _is_of_memory(stored: Stored, model: KnownModel) -> bool:
    """Whether transformers 5 has the tensor in memory as the file has it."""
    memory = dialects.opened(dialects.MEMORY, model.config, model.facts)
    try:
        if not memory.joins(stored.name):
            return False
        (held,) = memory.read({stored.name: stored.shape})
    except (*UNFIT, ValueError):
        return False
    return places(held, named=True) == places(stored, named=True)


def clashes(
    mine: Mapping[str, SaidRows], theirs: Mapping[str, SaidRows], names: Iterable[str]
) -> Iterator[tuple[str, str, str]]:
    """(name, what the file holds, what the variant holds) of tensors with the same name and other rows."""
    for name in names:
        a, b = mine.get(name), theirs.get(name)
        if a is not None and b is not None:
            if a.places != b.places or not a.places:
                yield name, a.words, b.words
        elif a is not None and a.is_odd:
            yield name, a.words, a.usual or PLAIN
        elif b is not None and b.is_odd:
            yield name, b.usual or PLAIN, b.words


PLAIN = "rows of transformers"
"""What a tensor holds of which nothing else is said."""
