"""A model in another dialect: the tensors of the source and of the output, as pieces of the tensors of transformers 4.

`dialects` says what each dialect stores; here two of them are put together, with companions of quantised weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import add
from typing import NamedTuple

from paramtool import dialects
from paramtool.errors import LayoutError, listed, plural
from paramtool.model.checkpoint import Checkpoint
from paramtool.parts import vocabulary, widths
from paramtool.parts.known_model import KnownModel
from paramtool.parts.layout import find_part_layout
from paramtool.parts.pieces import Digits, Stored, whole
from paramtool.passes.parts import consistency, following, layers, tied_heads
from paramtool.passes.parts import order as first_order
from paramtool.passes.parts.fuse import Joint
from paramtool.passes.parts.rearranged import Rearranged
from paramtool.passes.parts.recorded import family_layouts, put_together

Shapes = Mapping[str, tuple[int, ...]]


class DialectChange(NamedTuple):
    """A model in another dialect."""

    change: Rearranged
    caveats: tuple[str, ...]
    """What a reader of the target should know."""
    added: Mapping[str, str]
    """{a name that the target's program wants: the tensor that it repeats}"""
    order: tuple[int, ...] = ()
    """The first order of the tensors of transformers 4, as the record of parts has it."""
    prefix: str = ""
    """What the target has in front of all names of transformers 4, which lack it."""


def dialect_change(
    shapes: Shapes,
    ways: tuple[str, str],
    model: KnownModel,
    added: Collection[str] = (),
    *,
    joints: Iterable[Joint] = (),
    ranks: Mapping[str, int] | None = None,
    order: Sequence[int] = (),
    prefix: str = "",
) -> DialectChange:
    """Tensors of one dialect as those of another, `ways`; LayoutError where they do not fit, or contradict the config.

    `added` are names that an earlier conversion added, as copies of others; `joints` are fused tensors that stand
    in the file in place of their parts in `shapes`.  `ranks` is the first order of the file's names, which those of the
    output keep, and `order` the one that its record says: with it, going back restores the file.
    `prefix` is what the record says that the file has in front of all names.
    """
    read = dialects.opened(ways[0], model.config, model.facts, prefix)
    write = dialects.opened(ways[1], model.config, model.facts)
    found = following.told_apart(shapes, model.packing)
    consistency.check(found.weights, model.config)
    held = tied_heads.as_one(read, read.read(found.weights), model.config, added)
    hub = _hub(held)
    _check_widths(hub, held, {one.weight for one in found.beside} - found.packed, model)
    consistency.check_biases(found.weights, {one.weight for one in found.beside} | found.packed)
    unsure = layers.check(hub, model.config)
    made = tied_heads.with_head(write, write.write(hub), model.config)
    _refuse_left(made)
    order = first_order.of_parts(held, hub, ranks, order) if ranks is not None else ()
    if found.beside:
        held, made = following.followed(held, made, found, shapes, packing=model.packing)
    return DialectChange(
        Rearranged(tuple(put_together(held, joints)), tuple(made), first_order.of_made(made, hub, order)),
        (*write.caveats(hub), *unsure),
        tied_heads.added(write, made),
        tuple(order),
        write.prefix(hub),
    )


EXPERT = re.compile(r"(.*expert[^.]*\.[0-9]+)\.")
"""One expert of a list, at the beginning of a name."""


def _refuse_left(made: Iterable[Stored]) -> None:
    """LayoutError for tensors of an expert of a list that stay there, where its others become parts of stacks."""
    left: dict[str, str] = {}
    for one in made:
        if (found := EXPERT.match(one.name)) is not None and one.pieces == whole(one.name, one.shape).pieces:
            left.setdefault(found[1], one.name)
    if not left:
        return
    stacks = (one for one in made if len(one.pieces) > 1 and EXPERT.match(one.name) is None)
    refuse_left(left, (piece.part for one in stacks for piece in one.pieces))


def refuse_left(left: Mapping[str, str], parts: Iterable[str]) -> None:
    """LayoutError if experts whose tensors are parts of stacks have others: {expert: a tensor that is not a part}."""
    stacked = {found[1] for name in parts if (found := EXPERT.match(name)) is not None} if left else set()
    if names := [name for expert, name in left.items() if expert in stacked]:
        raise LayoutError(
            listed(
                f"{plural(len(names), 'expert has', 'experts have')} a tensor that is not a part of the stack:", names
            ),
            hint="`paramtool export --names` writes the names of a list alone; or config.json is of another model",
        )


def _check_widths(hub: Shapes, held: Iterable[Stored], scaled: Collection[str], model: KnownModel) -> None:
    """LayoutError if shapes contradict the config, by the names that the file has.

    `scaled` are weights with scales beside them, which may hold two elements in a byte.
    """
    holders = {part: one for one in held if one.name not in scaled for part in one.parts}
    plain = {name: shape for name, shape in hub.items() if name in holders}
    if lines := [*widths.contradictions(plain, model.config), *vocabulary.contradictions(plain, model.config)]:
        widths.refuse(lines, holders)


def _hub(held: Iterable[Stored]) -> dict[str, tuple[int, ...]]:
    """{tensor of transformers 4: its shape}, from the pieces of all tensors."""
    found: dict[str, tuple[int, ...]] = {}
    for tensor in held:
        for part, start, shape in tensor.boxes:
            ends = tuple(map(add, start, shape))
            known = found.setdefault(part, ends)
            if known is not ends:
                found[part] = tuple(map(max, known, ends))
    return found


def views_of(checkpoint: Checkpoint) -> frozenset[str]:
    """The names that are views of other tensors, as `--keep-names` leaves them."""
    return frozenset(name for name, entry in checkpoint.entries.items() if entry.link is not None and entry.link.owner)


def without_old_names(
    shapes: Shapes, views: Collection[str], ways: tuple[str, str], model: KnownModel
) -> dict[str, tuple[int, ...]]:
    """Tensors without those that `--keep-names` left in a file as views, under the names that they had before."""
    views = {name for name in shapes if name in views}
    if not views:
        return dict(shapes)
    stored = {name: shape for name, shape in shapes.items() if name not in views}
    old = {one.name for one in dialect_change(stored, ways, model).change.made} - stored.keys()
    return {name: shape for name, shape in shapes.items() if name not in views or name not in old}


def dialects_fitting(shapes: Shapes, model: KnownModel) -> tuple[list[str], list[str]]:
    """The dialects whose names these are and whose shapes fit the config, and the tensors that they store otherwise.

    One dialect where the file holds the same in all of them.
    """
    config = model.config
    found = dialects.recognised(shapes, config, model.facts)
    if len(found) < 2:
        return found, []
    held = {name: dialects.opened(name, config, model.facts).read(shapes) for name in found}
    fitting = [name for name, tensors in held.items() if not widths.contradictions(_hub(tensors), config)]
    found = fitting or found
    differing = _differing([held[name] for name in found])
    return (found if differing else [dialects.HUB if dialects.HUB in found else found[0]]), differing


def dialect_of(where: str, shapes: Shapes, model: KnownModel) -> str:
    """The one dialect whose names these are; LayoutError lists several, or says that there is none."""
    config = model.config
    found, differing = dialects_fitting(shapes, model)
    if len(found) == 1:
        return found[0]
    if not found:
        raise LayoutError(
            f"{where}: {dialects.why_none(shapes, config)}",
            hint="the file was converted in part, or it is of another model than config.json says"
            if dialects.architecture(config)
            else 'name the model\'s class in config.json, as in "architectures": ["LlamaForCausalLM"]',
        )
    if found == [dialects.HUB, dialects.MEMORY]:  # the shapes do not tell, either: the error says why
        dialects.opened(dialects.MEMORY, config, model.facts).read(shapes)
    raise LayoutError(
        listed(
            f"{where}: its names are those of {plural(len(found), 'dialect')}:", _told(found, differing, shapes, model)
        ),
        hint="no shape tells how the rows follow each other: --from DIALECT says which program wrote the file",
    )


def _differing(readings: Sequence[Sequence[Stored]]) -> list[str]:
    """The tensors that do not hold the same in all readings of a file."""
    first, *others = ({one.name: _plain(one) for one in held} for held in readings)
    return [name for name, one in first.items() if any(other[name] != one for other in others)]


def _plain(one: Stored) -> Stored:
    """A tensor as one piece, if its pieces are those of one other tensor, in their places."""
    parts = {piece.part for piece in one.pieces}
    is_same = len(parts) == 1 and all(
        piece.start == piece.at and all(_is_dense(axis, digits) for axis, digits in enumerate(piece.digits))
        for piece in one.pieces
    )
    return whole(one.name, one.shape, parts.pop()) if is_same and len(one.pieces) > 1 else one


def _is_dense(axis: int, digits: Digits) -> bool:
    """Whether digits count along this axis of a tensor without a gap."""
    inner = 1
    for digit in reversed(digits):
        if digit.length != 1 and (digit.axis, digit.step) != (axis, inner):
            return False
        inner *= digit.length
    return True


def _told(names: Sequence[str], differing: Sequence[str], shapes: Shapes, model: KnownModel) -> list[str]:
    """Dialects with the form that each has of a tensor which they do not store alike."""
    opened = {name: dialects.opened(name, model.config, model.facts) for name in names}
    told = [one for one in differing if len({dialect.form(one) for dialect in opened.values()}) > 1]
    if not told:
        return [*names]
    tensor = max(told, key=lambda name: len(shapes[name]))
    known = [one for layout in family_layouts(tensor, model) if (one := find_part_layout(layout)) is not None]
    usual = known[0].tensors[0].content if known else "otherwise"
    return [f"{name}: {tensor!r} is {dialect.form(tensor) or usual}" for name, dialect in opened.items()]
