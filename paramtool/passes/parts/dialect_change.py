"""A model in another dialect: the tensors of the source and of the output, as pieces of the tensors of transformers 4.

`dialects` says what each dialect stores; here two of them are put together, with companions of quantised weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from paramtool import dialects
from paramtool.dialects import OpenedDialect
from paramtool.errors import LayoutError, listed, plural, some
from paramtool.grouping import grouped, omit
from paramtool.model import quantised
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import WORDS
from paramtool.model.view import Shape, Shapes
from paramtool.parts import widths
from paramtool.parts.config_facts import SIDES, KnownModel, config_of, is_known, tower_of
from paramtool.parts.config_types import LAYERS, OF_SIDE
from paramtool.parts.families import Config
from paramtool.parts.layout import find_part_layout
from paramtool.parts.pieces import Digits, Stored, part_shapes, whole
from paramtool.parts.widths import exceptions
from paramtool.passes.parts import consistency, following
from paramtool.passes.parts.fuse import Joint
from paramtool.passes.parts.recorded import family_layouts, put_together
from paramtool.passes.parts.rewrite import Rearranged, of_made, of_parts


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
    held = as_one(read, read.read(found.weights), model.config, added)
    hub = part_shapes(held)
    # LayoutError if shapes contradict the config, by the names that the file has
    scaled = {one.weight for one in found.beside} - found.packed
    holders = {part: one for one in held if one.name not in scaled for part in one.parts}
    plain = {name: shape for name, shape in hub.items() if name in holders}
    if lines := [*widths.contradictions(plain, model.config), *widths.row_contradictions(plain, model.config)]:
        widths.refuse(lines, holders)
    consistency.check_biases(found.weights, {one.weight for one in found.beside} | found.packed)
    unsure = check(hub, model.config)
    made = with_head(write, write.write(hub), model.config)
    _refuse_left(made)
    order = of_parts(held, hub, ranks, order) if ranks is not None else ()
    if found.beside:
        held, made = following.followed(held, made, found, shapes, packing=model.packing)
    return DialectChange(
        Rearranged(tuple(put_together(held, joints)), tuple(made), of_made(made, hub, order)),
        (*write.caveats(hub), *unsure),
        added_heads(write, made),
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
    refuse_left(left, (part for one in stacks for part in one.parts))


def refuse_left(left: Mapping[str, str], parts: Iterable[str]) -> None:
    """LayoutError if experts whose tensors are parts of stacks have others: {expert: a tensor that is not a part}."""
    stacked = {found[1] for name in parts if (found := EXPERT.match(name)) is not None} if left else set()
    if names := [name for expert, name in left.items() if expert in stacked]:
        raise LayoutError(
            listed(
                f"{plural(len(names), 'expert has', 'experts have')} a tensor that is not a part of the stack:", names
            ),
            hint="`export --names` writes the names of a list alone; or config.json is of another model",
        )


def views_of(checkpoint: Checkpoint) -> frozenset[str]:
    """The names that are views of other tensors, as `--keep-names` leaves them."""
    return frozenset(name for name, entry in checkpoint.entries.items() if entry.link is not None and entry.link.owner)


def without_old_names(
    shapes: Shapes, views: Collection[str], ways: tuple[str, str], model: KnownModel
) -> dict[str, Shape]:
    """Tensors without those that `--keep-names` left in a file as views, under the names that they had before."""
    views = {name for name in shapes if name in views}
    if not views:
        return dict(shapes)
    stored = omit(shapes, views)
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
    fitting = [name for name, tensors in held.items() if not widths.contradictions(part_shapes(tensors), config)]
    found = fitting or found
    # The tensors that do not hold the same in all readings of a file
    readings = [held[name] for name in found]
    first, *others = ({one.name: _plain(one) for one in held} for held in readings)
    differing = [name for name, one in first.items() if any(other[name] != one for other in others)]
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


def _plain(one: Stored) -> Stored:
    """A tensor as one piece, if its pieces are those of one other tensor, in their places."""
    parts = {*one.parts}
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


# --- Whether a model has the layers that its config.json says, and whether each has what the others have -------------
#
#     config.json says 32 layers (num_hidden_layers); model.layers has 31 of them: no 17
#     'model.layers.5' has no self_attn.q_norm.weight; 'model.layers.0' has
#
# Some classes of transformers 5.23 really have layers that differ; `DIFFERING` lists them.  A test runs the rules
# over every class.


STACK = re.compile(r"((?:[A-Za-z_]\w*\.)*(?:layers|layer|h|blocks|block))\.([0-9]{1,9})\.(.*)")
"""The layers of a model, the number of one, and what is in it."""
ONE_LESS = exceptions()["one_less"].split()
"""Model types whose layers are one less than a key says (transformers 5.23 modeling_mask2former.py)."""
BLOCKS = exceptions()["blocks"].split()
"""Model types whose config counts attention and MLP apart: two of its layers are one of the model in memory
(transformers 5.24, dory/configuration_dory.py, `to_dict`)."""
STAGES = "depths"
"""A key of models whose layers are stages, which hold layers."""
PREDICTING = re.compile(r"nextn|mtp")
"""In keys that say how many layers follow the others, to predict further tokens."""
PREDICTS = frozenset(["eh_proj", "enorm", "hnorm", "shared_head"])
"""What such a layer has (transformers 5.23 does not load it: deepseek_v3/modeling_deepseek_v3.py,
`_keys_to_ignore_on_load_unexpected`)."""
SHOWN = 4
MOST = 1 << 16
"""A config that says more layers is not believed."""
DIFFERING: Mapping[str, Sequence[str]] = {word: types.split() for word, types in exceptions()["differing"].items()}
"""{a word in names: the model types of which only some layers have it}"""


class _LayerStack(NamedTuple):
    """The layers of one tower of a model."""

    at: str
    model_type: str
    config: Config
    layers: Mapping[int, frozenset[str]]
    """{number: the names in the layer}"""
    expected: int
    """How many its config says; 0 where it does not."""
    said: str
    """The key that says it."""


def check(names: Iterable[str], config: Config) -> list[str]:
    """LayoutError for layers that are missing, too many, or lack what the others have.

    Of model types that paramtool does not know, the same are sentences for warnings.
    """
    wrong: list[str] = []
    unsure: list[str] = []
    for stack in _stacks(names, config):
        lines = wrong if is_known(stack.model_type) else unsure
        lines += [line for line in (_missing(stack), _more(stack)) if line]
        lines += _uneven(stack, config)
    if wrong:
        raise LayoutError(
            listed(f"{plural(len(wrong), 'contradiction')} between layers, or with config.json:", wrong),
            hint="the file lacks tensors, is one stage of a pipeline, or config.json is of another model; nothing is "
            "converted in part",
        )
    return unsure


def _stacks(names: Iterable[str], config: Config) -> Iterator[_LayerStack]:
    """The stacks of layers of which some have parts."""
    found: dict[str, dict[int, set[str]]] = {}
    for name in names:
        if (match := STACK.match(name)) and "lora_" not in name:
            found.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(match[3])
    with_parts = {
        at
        for at, layers in found.items()
        if any(not consistency.PARTS.isdisjoint(name.split(".")) for names in layers.values() for name in names)
    }
    counts = dict(_counts(found, config))
    for at in with_parts:
        tower = tower_of(f"{at}.0.", config)
        model_type, inner = config_of(config, tower) if tower is not None else ("", {})
        layers = {number: frozenset(own) for number, own in found[at].items()}
        expected, said = counts.get(at, (0, ""))
        if inner.get("model_type") in BLOCKS and any("self_attn" in name.split(".") for name in layers[min(layers)]):
            expected //= 2
        yield _LayerStack(at, model_type, inner, layers, expected, said)


# --- how many --------------------------------------------------------------------------------------------------------


def _counts(stacks: Iterable[str], config: Config) -> Iterator[tuple[str, tuple[int, str]]]:
    """(the only stack of layers that a key of the config speaks of, (the number, the key))"""
    towers: dict[tuple[str, str], list[str]] = {}
    for stack in stacks:
        if (tower := tower_of(f"{stack}.0.", config)) is not None:
            path, _, side = tower.rpartition(".") if tower.endswith(SIDES) else (tower, "", "")
            named = next((one for one in SIDES if one in stack.split(".") and (not side or one == side)), "")
            towers.setdefault((path, named if _side_key(config, path, named) else ""), []).append(stack)
    for (path, side), own in towers.items():
        if len(own) == 1 and (said := _said(path, side, config)):
            yield own[0], said


def _side_key(config: Config, path: str, side: str) -> str:
    inner = config_of(config, path)[1]
    keys = (key.format(side) for key in OF_SIDE) if side else ()
    return next((key for key in keys if type(inner.get(key)) is int), "")


def _said(path: str, side: str, config: Config) -> tuple[int, str] | None:
    """How many layers a config says, and its key; None where it does not, or is not believed."""
    inner = config_of(config, path)[1]
    keys = [_side_key(config, path, side)] if side else [key for key in LAYERS if type(inner.get(key)) is int]
    if len({inner[key] for key in keys}) != 1 or inner[keys[0]] > MOST or inner.get("model_type") in ONE_LESS:
        return None
    return inner[keys[0]], f"{path}.{keys[0]}" if path else keys[0]


def _missing(stack: _LayerStack) -> str:
    """A sentence if layers are missing."""
    missing = [k for k in range(stack.expected) if k not in stack.layers]
    if not missing:
        return ""
    there = stack.expected - len(missing)
    return f"{_by_config(stack)}; {stack.at} has {there} of them: no {_numbers(missing)}"


def _more(stack: _LayerStack) -> str:
    """A sentence if there are more layers, which do not predict further tokens."""
    more = sorted(k for k in stack.layers if k >= stack.expected)
    if not stack.said or not more or STAGES in stack.config or _predicting(stack):
        return ""
    return f"{_by_config(stack)}; {stack.at} has {len(more)} more: {_numbers(more)}"


def _by_config(stack: _LayerStack) -> str:
    return f"config.json says {plural(stack.expected, 'layer')} ({stack.said})"


def _numbers(numbers: Collection[int]) -> str:
    more = len(numbers) - SHOWN
    return ", ".join(map(str, islice(numbers, SHOWN))) + (f" and {more} more" if more > 0 else "")


def _predicting(stack: _LayerStack) -> bool:
    """Whether the layers behind the others predict further tokens."""
    said = any(PREDICTING.search(key) and type(value) is int and value > 0 for key, value in stack.config.items())
    return said or all(_predicts(names) for k, names in stack.layers.items() if k >= stack.expected)


def _predicts(names: Iterable[str]) -> bool:
    return any(not PREDICTS.isdisjoint(name.split(".")) for name in names)


# --- what each has ---------------------------------------------------------------------------------------------------


def _uneven(stack: _LayerStack, config: Config) -> Iterator[str]:
    """A line for each set of names that layers lack, and that others have which have all the rest of them."""
    lines: dict[tuple[str, ...], list[int]] = {}
    others: dict[tuple[str, ...], int] = {}
    for kinds in _alike(stack, config):
        by_number = sorted(kinds, key=lambda one: (-len(kinds[one]), -len(one)))
        for names, layers in kinds.items():
            fuller = next((one for one in by_number if names < one), None)
            if fuller is None:
                continue
            for number in layers:
                if lacking := _lacking(stack, number, sorted(fuller - names), config):
                    lines.setdefault(lacking, []).append(number)
                    others[lacking] = min(kinds[fuller])
    for lacking, numbers in lines.items():
        like = f" (and {plural(len(numbers) - 1, 'layer')} like it)" if numbers[1:] else ""
        yield f"'{stack.at}.{min(numbers)}' has no {some(lacking, SHOWN)}{like}; '{stack.at}.{others[lacking]}' has"


def _alike(stack: _LayerStack, config: Config) -> Iterable[dict[frozenset[str], list[int]]]:
    """{names in a layer: the layers that have them}, for each sort of layers that lists of the config say."""
    lists = [
        value
        for value in stack.config.values()
        if stack.said
        and (
            isinstance(value, list)
            and len(value) == stack.expected
            and all(isinstance(one, (str, int)) for one in value)
        )
    ]
    found: dict[tuple[object, ...], dict[frozenset[str], list[int]]] = {}
    for number, names in sorted(stack.layers.items()):
        if not (stack.said and number >= stack.expected) and not _predicts(names):
            sort = tuple(values[number] for values in lists)
            # The names that are compared: not those of layers in stages, which differ; of a quantised model only norms,
            # as layers may be left as they are
            is_quantised = not quantised.IN_CONFIG.isdisjoint(config)
            found.setdefault(sort, {}).setdefault(
                frozenset(name for name in names if not name[0].isdecimal() and ("norm" in name or not is_quantised)),
                [],
            ).append(number)
    return found.values()


def _lacking(stack: _LayerStack, number: int, names: Iterable[str], config: Config) -> tuple[str, ...]:
    """Those of the names which a layer lacks that one of this model type, or by this config, must have."""
    model_type = stack.model_type or str(config.get("model_type"))  # of a stack that the config does not name
    by_module = grouped(
        (consistency.module_of(f"{stack.at}.{number}.{name}"), name)
        for name in names
        if not any(model_type in DIFFERING.get(word, ()) for word in name.split("."))
    )
    found: list[str] = []
    for module, own in by_module.items():
        inside = module[len(f"{stack.at}.{number}.") :]
        if not consistency.is_so(module, [name.removeprefix(f"{inside}.") for name in own], config):
            found += own
    return tuple(sorted(found))


# --- The head of a tied model in dialects whose programs want it beside the embedding: vLLM's sharded state, Meta's fi
#
#     transformers    model.embed_tokens.weight                    and the config says tie_word_embeddings
#     vllm            model.embed_tokens.weight, lm_head.weight    twice the same bytes
#     meta            tok_embeddings.weight, output.weight
#
# Going back, both are one tensor again if the record says that one was added: their bytes have to be equal.


def as_one(dialect: OpenedDialect, held: Sequence[Stored], config: Config, added: Collection[str] = ()) -> list[Stored]:
    """What tensors of a dialect hold, with the head of a tied model as a copy of its embedding.

    So is the one of both that `added` names, and a head without an embedding beside it, as vLLM saves it.
    """
    found = list(held)
    if dialect.tied is None or config.get(WORDS) is False:
        return found
    head, embedding = dialect.tied
    at = {one.name: k for k, one in enumerate(found)}
    copy, kept = (embedding, head) if embedding in added else (head, embedding)
    if copy not in at or (kept in at and copy not in added):
        return found
    one = found[at[copy]]
    (other,) = [found[at[kept]]] if kept in at else dialect.read({kept: one.shape})
    if other.shape == one.shape:
        found[at[copy]] = whole(copy, one.shape, other.pieces[0].part)
    return found


def with_head(dialect: OpenedDialect, made: Sequence[Stored], config: Config) -> list[Stored]:
    """The tensors that a dialect stores, with both the head and the embedding of a tied model.

    LayoutError if a model that is not tied lacks its head.
    """
    held = [one for one in made if one.name in (dialect.tied or ())]
    says = config.get(WORDS)
    if dialect.tied is None or len(held) != 1:
        return [*made]
    (one,) = held  # the only tensor of its part
    head, embedding = dialect.tied
    if one.name == head:
        return [*made, *([whole(embedding, one.shape, one.pieces[0].part)] if says else ())]
    if says is False:
        raise LayoutError(
            f"{head!r} cannot be made: the file lacks it, and the config says {WORDS}=false",
            hint=f"if the head is the embedding, set {WORDS} to true in config.json",
        )
    return [*made, whole(head, one.shape, one.pieces[0].part)]


def added_heads(dialect: OpenedDialect, made: Sequence[Stored]) -> dict[str, str]:
    """{the head or embedding that `with_head` added, behind all others: the other, which it repeats}"""
    parts = {one.name: one.pieces[0].part for one in made if one.name in (dialect.tied or ())}
    if len(parts) != 2 or len(set(parts.values())) != 1:
        return {}
    kept, added = parts
    return {added: kept}
