"""The record of parts when a file is read as a dialect: fused tensors that the dialect lacks are read as their parts.

record: fused query_key_value, qkv-per-group     Llama has q_proj, k_proj, v_proj: read as these
record: unfused query_key_value, qkv-per-head    BLOOM has query_key_value: refused; `fuse` restores it
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import NamedTuple

from paramtool import dialects
from paramtool.errors import LayoutError, listed, plural
from paramtool.grouping import omit
from paramtool.model.parts import FusedTensor, PartsRecord
from paramtool.model.view import Shape, Shapes
from paramtool.parts.blocks import merged
from paramtool.parts.config_facts import KnownModel, config_of, tower_of
from paramtool.parts.families import EXPERTS, named, of_family
from paramtool.parts.layout import find_part_layout
from paramtool.parts.pieces import Stored, whole
from paramtool.passes.parts.fuse import Joint, recorded


def kept_names(joints: Iterable[Joint], views: Container[str]) -> list[str]:
    """Parts of fused tensors that the file has under their names, too, as views."""
    return [part.name for joint in joints for part in joint.apart if part.name in views]


class WithParts(NamedTuple):
    """The tensors of a file, those that the dialect lacks as their parts."""

    shapes: dict[str, Shape]
    joints: tuple[Joint, ...] = ()
    """The fused tensors that are not in `shapes`; their parts are."""


def with_parts(
    shapes: Shapes, record: PartsRecord, dialect: str, model: KnownModel, *, views: Collection[str] = ()
) -> WithParts:
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
    return WithParts(found, joints)


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
