"""What the files of one rank say: model states and optimizer states, out of their trees.

    {"module": {"emb.weight": T}, "param_shapes": [{"emb.weight": Size}], "frozen_param_shapes": {...},
     "frozen_param_fragments": {...}, "shared_params": {"head.weight": "emb.weight"}, "global_steps": 2, ...}

    {"optimizer_state_dict": {"base_optimizer_state": {"state": {0: {"step": T, "exp_avg": T}}, "param_groups": [...]},
                              "single_partition_of_fp32_groups": [T], "partition_count": [2], "zero_stage": 1, ...}}

Stage 3 calls the two in the middle `optimizer_state_dict` and `fp32_flat_groups`.

Sources: `_common_checkpoint_state` in deepspeed/runtime/engine.py; `state_dict` in runtime/zero/stage_1_and_2.py,
runtime/bf16_optimizer.py (which has no `zero_stage`), and `_rigid_state_dict` in runtime/zero/stage3.py, of 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Map
from collections.abc import Sequence as Sequence_
from itertools import pairwise
from math import prod
from typing import NamedTuple

from paramtool.errors import Defects, FormatError, leading, plural, some
from paramtool.formats.deepspeed.names import RankFiles
from paramtool.formats.torch import read as torch_read
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, Unknown
from paramtool.model.objects import (
    Leaf,
    Mapping,
    Node,
    Opaque,
    Pairs,
    Sequence,
    TensorRef,
    items_of,
    pairs_of,
    part,
    tensor_names,
    under,
    word,
)
from paramtool.model.view import MAX_AXES, Shape, Shapes, View, Views

_SHOWN = 3
OPTIMIZER = "optimizer_state_dict"
BASES = ("base_optimizer_state", OPTIMIZER)
MASTERS = ("single_partition_of_fp32_groups", "fp32_flat_groups")
LAYOUT = (
    *BASES, *MASTERS, "zero_stage", "group_paddings", "param_alignment_paddings", "partition_count",
    "param_slice_mappings", "ds_zero_partition_groups", "ds_version",
)  # fmt: skip
"""What says how ranks share the state, and nothing of the state itself; and the version, as in the model states."""


@frozen
class ModelStates:
    """The model states of a rank."""

    file: Checkpoint
    module: Map[str, str]
    """{name in the module: its tensor's name in the file}, in the order of the file."""
    shapes: tuple[Shapes, ...]
    """`param_shapes`: of each group, in the order in which they are in the flat group."""
    frozen: Shapes
    fragments: Map[str, str]
    """{frozen parameter: the tensor with its slice}, of stages 2 and 3."""
    shared: Map[str, str]
    """{name that the file does not store: the name that holds its data}."""


@frozen
class OptimizerStates:
    """The optimizer states of a rank."""

    file: Checkpoint
    base: str
    """The path of the mapping with `state` and `param_groups`."""
    stage: int
    counts: tuple[int, ...]
    """How many ranks share each group; one number for all groups in stage 3."""
    masters: tuple[View | None, ...]
    """The float32 parameters of each flat group; None where it is no plain vector."""
    states: tuple[Map[str, Node], ...]
    """{slot: what is kept} of each flat group."""
    groups: Node | None
    """`param_groups`."""
    aligned: tuple[tuple[int, ...], ...]
    """The padding after each parameter of a group, empty where there is none."""
    mappings: tuple[Map[str, tuple[int, int]], ...]
    """{parameter: first element and number of elements} of each group; empty where the file has none."""
    rest: Pairs
    """What else is kept: the loss scaler, the limit of gradients."""


def read_file(path: str, findings: Findings) -> Checkpoint | None:
    """Describe one file; None, with a line, where that is impossible."""
    try:
        found = torch_read.read(path)
    except FormatError as error:
        findings.add(f"{file_name(path)}: {error.message.replace(f'{path}: ', '')}")
        return None
    findings.asked += found.unknown
    return found


def file_name(path: str) -> str:
    """The name of a file."""
    return path.replace("\\", "/").rpartition("/")[2]


def model_states(path: str, findings: Findings) -> ModelStates | None:
    """The model states in a file; None, with lines, where it has something else."""
    file = read_file(path, findings)
    if file is None:
        return None
    top, name = file.objects, file_name(file.path)
    module = under(top, "module")
    if not isinstance(module, Mapping):
        findings.add(f"{name}: has no `module`; expected the tensors of a model")
        return None
    shapes = [_shapes(one) for one in items_of(under(top, "param_shapes"))]
    frozen = _shapes(under(top, "frozen_param_shapes"))
    if None in shapes or frozen is None:
        findings.add(f"{name}: its `param_shapes` or `frozen_param_shapes` are not names with shapes")
        return None
    shared = {key: value.value for key, value in pairs(under(top, "shared_params")) if isinstance(value, Leaf)}
    return ModelStates(
        file=file,
        module={key: found for key, value in pairs(module) if (found := tensor(value))},
        shapes=tuple(one for one in shapes if one is not None),
        frozen=frozen,
        fragments={
            key: found for key, value in pairs(under(top, "frozen_param_fragments")) if (found := tensor(value))
        },
        shared={key: value for key, value in shared.items() if isinstance(value, str)},
    )


def _shapes(node: Node | None) -> dict[str, Shape] | None:
    """{name: shape}; empty for None, and None for something else."""
    if is_none(node):
        return {}
    found = {key: wholes(value) for key, value in pairs(node)}
    shapes = {
        key: shape
        for key, shape in found.items()
        if shape is not None and len(shape) <= MAX_AXES and prod(size or 1 for size in shape) < MAX_NUMEL
    }
    return shapes if isinstance(node, Mapping) and len(shapes) == len(found) else None


def optimizer_states(path: str, findings: Findings) -> OptimizerStates | None:
    """The optimizer states in a file; None, with a line, where it has something else."""
    file = read_file(path, findings)
    if file is None:
        return None
    name = file_name(file.path)
    top = under(file.objects, OPTIMIZER)
    held = dict(pairs(top))
    key = next((key for key in BASES if key in held), "")
    base = held.get(key)
    masters = next((held[key] for key in MASTERS if key in held), None)
    count = held.get("partition_count")
    counts = wholes(count) or tuple(one for one in [whole(count)] if one is not None)
    experts = [whole(under(one, "partition_count")) for one in items_of(held.get("ds_zero_partition_groups"))]
    stage = whole(held["zero_stage"]) if "zero_stage" in held else 1
    if base is None or masters is None or not counts or stage not in (1, 2, 3):
        findings.add(f"{name}: does not have the state of ZeRO, stage 1, 2 or 3, in `{OPTIMIZER}`")
        return None
    views = file.views()
    return OptimizerStates(
        file=file,
        base=f"{OPTIMIZER}.{key}",
        stage=stage,
        counts=(*counts, *(one for one in experts if one is not None)),
        masters=tuple(vector(views, item) for item in items_of(masters)),
        states=_states(base, len(items_of(masters))),
        groups=under(base, "param_groups"),
        aligned=tuple(wholes(one) or () for one in items_of(held.get("param_alignment_paddings"))),
        mappings=tuple(_addresses(one) for one in items_of(held.get("param_slice_mappings"))),
        rest=tuple((key, held[key]) for key in held if key not in LAYOUT),
    )


def _states(base: Node, count: int) -> tuple[Map[str, Node], ...]:
    """{slot: what is kept} of each of `count` flat groups, in order, and one more if there is state for no group.

    A list is that of an elastic checkpoint.
    """
    state = under(base, "state")
    if isinstance(state, Mapping):
        by_number = {key: dict(pairs(value)) for key, value in state.items}
        known = tuple(by_number.pop(k, {}) for k in range(count))
        return (*known, *list(by_number.values())[:1])
    return tuple(dict(pairs(one)) for one in items_of(base))


def vector(views: Views, node: Node | None) -> View | None:
    """The view of a vector without gaps; None for anything else."""
    view = views.get(tensor(node))
    return view if view is not None and len(view.shape) == 1 and view.is_contiguous else None


def _addresses(node: Node) -> dict[str, tuple[int, int]]:
    """{parameter: (first element, number of elements)}, from `fragment_address`."""
    found = {}
    for key, value in pairs(node):
        state = part(value, "state")
        start, numel = whole(under(state, "start")), whole(under(state, "numel"))
        if start is not None and numel is not None:
            found[key] = start, numel
    return found


# --- Plain values in the tree of a file of DeepSpeed, and the defects of a folder, gathered ---------------------------


MAX_NUMEL = 1 << 60
"""More elements than any file has."""


class Findings:
    """What is wrong with a folder, a line each, and the unknown names in its files."""

    def __init__(self, folder: str, hint: str) -> None:
        self.folder, self.hint = folder, hint
        self.lines: list[str] = []
        self.asked: list[Unknown] = []

    def add(self, line: str) -> None:
        """One more, once."""
        if line not in self.lines:
            self.lines.append(line)

    def refuse(self) -> None:
        """Defects if there is any."""
        if self.lines:
            raise Defects(self.folder, self.lines, self.hint)


def pairs(node: Node | None) -> Iterator[tuple[str, Node]]:
    """The items of a mapping, with their keys as strings."""
    return ((word(key), value) for key, value in pairs_of(node))


def is_none(node: Node | None) -> bool:
    """Whether there is nothing, or None."""
    return node is None or node == Leaf(None)


def whole(node: Node | None) -> int | None:
    """A whole number, also of an enum; None for anything else."""
    if isinstance(node, Opaque):
        found = items_of(part(node, "args"))
        node = found[0] if len(found) == 1 else None
    value = node.value if isinstance(node, Leaf) else None
    return value if type(value) is int and 0 <= value < MAX_NUMEL else None


def wholes(node: Node | None) -> tuple[int, ...] | None:
    """A list of whole numbers; None for anything else."""
    found = [whole(item) for item in items_of(node)]
    if not isinstance(node, Sequence) or None in found:
        return None
    return tuple(number for number in found if number is not None)


def tensor(node: Node | None) -> str:
    """The name of a tensor, also of one with attributes; empty for anything else."""
    if isinstance(node, Opaque):
        node = part(node, "data")
    return node.name if isinstance(node, TensorRef) else ""


# --- Whether the files of a folder are of one save: the same world, model, settings and step in all of them -----------


SAME = ("global_steps", "global_samples", "skipped_steps", "param_shapes", "frozen_param_shapes", "ds_version")
"""What all model states of one save have alike."""
ROUND_ROBIN = "round_robin_gradients"


def check_ranks(files: RankFiles, found: Map[int, OptimizerStates], findings: Findings) -> None:
    """Findings where ranks are missing, or of several worlds or stages; FormatError where experts are split."""
    if not files.optimizers:
        findings.add("has no file `*_optim_states.pt`")
    for rank, states in found.items():
        if len(set(states.counts)) > 1:
            raise FormatError(
                f"{files.folder}: experts split its model: rank {rank} shares its groups with {list(states.counts)} "
                "ranks; expected one number",
                hint="save the model in one piece with the program that trained it",
            )
    worlds = grouped((states.counts[0], rank) for rank, states in found.items())
    stages = grouped((states.stage, rank) for rank, states in found.items())
    if len(worlds) > 1:
        said = "; ".join(f"{_listed(of)} of {plural(world, 'rank')}" for world, of in worlds.items())
        findings.add(f"the files are of {len(worlds)} worlds: {said}")
    if len(stages) > 1:
        said = "; ".join(f"{_listed(of)} of stage {stage}" for stage, of in stages.items())
        findings.add(f"the files are of several saves: {said}")
    if len(worlds) == 1:
        world = next(iter(worlds))
        beyond = [rank for rank in files.optimizers if rank >= world]
        lacking = [
            rank for rank in range(min(world, len(files.optimizers) + _SHOWN + 1)) if rank not in files.optimizers
        ]
        if beyond:
            findings.add(f"has files of {_listed(beyond)}; `partition_count` says {plural(world, 'rank')}")
        elif lost := world - len(files.optimizers):
            what = f"{plural(lost, 'file')} of {plural(world, 'rank')} are missing"
            findings.add(f"{what}, as of {_listed(lacking[:_SHOWN])}: `*_optim_states.pt`")


def _listed(ranks: Sequence_[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {leading(ranks, _SHOWN)}"


def check_models(
    models: Sequence_[ModelStates], ranks: Sequence_[OptimizerStates], findings: Findings
) -> Iterator[str]:
    """Findings where model states are of another save than others or than the optimizer's; yields notes."""
    first = models[0]
    for key in SAME:
        held = [under(one.file.objects, key) for one in models]
        for other, model in zip(held, models, strict=True):
            if other != held[0]:
                told = f"{key!r} is {_word(other)}; {_base(first)} has {_word(held[0])}"
                findings.add(f"{_base(model)}: {told}: they are of two saves")
    if ranks:
        world = whole(under(first.file.objects, "dp_world_size"))
        if world not in (None, len(ranks)):
            count = f"the optimizer's files are of {plural(len(ranks), 'rank')}"
            findings.add(f"{_base(first)}: is of {plural(world or 0, 'rank')}; {count}")
        mine = under(first.file.objects, "ds_version")
        for rank in ranks:
            theirs = under(rank.file.objects, "ds_version")
            if not is_none(theirs) and not is_none(mine) and theirs != mine:
                told = f"written by DeepSpeed {_word(theirs)}; {_base(first)} by {_word(mine)}"
                findings.add(f"{_base(rank)}: {told}: they are of two saves")
    for rank in ranks[1:]:
        if rank.groups != ranks[0].groups:
            findings.add(f"{_base(rank)}: its `param_groups` are not those of {_base(ranks[0])}: they are of two saves")
        odd = [
            str(key)
            for (key, a), (_, b) in zip(ranks[0].rest, rank.rest, strict=False)
            if a != b and not any(True for _ in tensor_names(a))
        ]
        if odd or len(rank.rest) != len(ranks[0].rest):
            findings.add(f"{_base(rank)}: {some(odd, _SHOWN)} differ from {_base(ranks[0])}: they are of two saves")
    # A note for what each rank has its own of.
    tops = [dict(one.file.objects.items) for one in models if isinstance(one.file.objects, Mapping)]
    own = ("module", "shared_params", "frozen_param_fragments", *SAME)
    keys = [str(key) for key in tops[0] if key not in own and any(one.get(key) != tops[0][key] for one in tops[1:])]
    if keys:
        yield f"ranks have their own {some(keys, _SHOWN)}: rank 0's is read"


def _word(node: Node | None) -> str:
    if isinstance(node, Leaf):
        return repr(node.value)[:60]
    return "missing" if node is None else "other"


def _base(one: ModelStates | OptimizerStates) -> str:
    return file_name(one.file.path)


# The flat groups


@frozen
class FlatGroups:
    """The parameters of each flat group, where their elements are, and the states of all ranks."""

    shapes: Sequence_[Shapes]
    fragments: Fragments
    ranks: Sequence_[OptimizerStates]
    notes: tuple[str, ...] = ()
    """What was odd."""


def check_groups(shapes: Sequence_[Shapes], ranks: Sequence_[OptimizerStates], findings: Findings) -> FlatGroups:
    """Where the elements of each parameter are; findings where the vectors of the ranks have other lengths."""
    found: Fragments = {}
    names = [name for group in shapes for name in group]
    if len(set(names)) < len(names):
        findings.add("`param_shapes` has a parameter in two groups")
    for rank, one in enumerate(ranks):
        if len(one.masters) != len(shapes) or len(one.states) > len(shapes):
            has = f"{plural(len(one.masters), 'flat group')} and {len(one.states)} with state"
            findings.add(f"rank {rank} has {has}; `param_shapes` has {len(shapes)}: they are of different models")
        elif wrong := [k for k, view in enumerate(one.masters) if view is None]:
            findings.add(f"rank {rank}: the float32 parameters of group {wrong[0]} are not one vector")
    if findings.lines:
        return FlatGroups(shapes, {}, ranks)
    mapped = True
    for group, held in enumerate(shapes):
        if ranks[0].stage == 3:
            found |= _slices(group, held, ranks, findings)
        else:
            made = _runs(group, held, ranks, findings)
            mapped = mapped and _is_mapped(group, made, ranks)
            found |= made
    notes = () if mapped or findings.lines else (_unmapped(ranks, findings),)
    return FlatGroups(shapes, found, ranks, notes)


def _slices(group: int, shapes: Shapes, ranks: Sequence_[OptimizerStates], findings: Findings) -> Fragments:
    """The fragments of a group of stage 3; a finding where a vector has another length."""
    found = of_slices(group, shapes, len(ranks))
    numel = sum(slice_numel(shape, len(ranks)) for shape in shapes.values())
    for rank, one in enumerate(ranks):
        for what, view in _vectors(one, group):
            if view.numel != numel:
                findings.add(_length(f"rank {rank}: {what} of group {group}", view.numel, f"{numel}"))
    return found


def _runs(group: int, shapes: Shapes, ranks: Sequence_[OptimizerStates], findings: Findings) -> Fragments:
    """The fragments of a group of stages 1 and 2; a finding where a vector has another length."""
    paddings = ranks[0].aligned[group] if group < len(ranks[0].aligned) else ()
    if len(paddings) not in (0, len(shapes)) or any(one.aligned != ranks[0].aligned for one in ranks):
        findings.add(f"group {group}: `param_alignment_paddings` do not fit its {plural(len(shapes), 'parameter')}")
        return {}
    numel = numel_of(shapes, paddings)
    held = [[*_vectors(one, group)] for one in ranks]
    run = max((view.numel for _, view in held[0]), default=0)
    total = sum(view.numel for one in ranks if (view := one.masters[group]) is not None)
    if aligned(total, len(ranks)) != aligned(numel, len(ranks)) or run * len(ranks) < numel:
        findings.add(
            f"group {group}: its ranks have {plural(total, 'element')}; `param_shapes` has {numel}: "
            "they are of different models"
        )
        return {}
    for rank, vectors in enumerate(held):
        lean = max(0, min(run, numel - rank * run))
        for what, view in vectors:
            if view.numel not in (run, lean):
                findings.add(
                    _length(
                        f"rank {rank}: {what} of group {group}",
                        view.numel,
                        f"{run}" if lean == run else f"{run} or {lean}",
                    )
                )
    return of_runs(group, shapes, paddings, run)


def _vectors(one: OptimizerStates, group: int) -> Iterator[tuple[str, View]]:
    """The vectors of a rank for a group: the parameters, and the slots that are vectors as long or longer."""
    master = one.masters[group]
    if master is None:
        return
    yield "float32 parameters", master
    views = one.file.views()
    for slot, node in (one.states[group] if group < len(one.states) else {}).items():
        view = vector(views, node)
        if view is not None and (view.numel > 1 or master.numel <= 1):
            yield slot, view


def _length(vector: str, numel: int, expected: str) -> str:
    return f"{vector} have {plural(numel, 'element')}; expected {expected}"


def _is_mapped(group: int, found: Fragments, ranks: Sequence_[OptimizerStates]) -> bool:
    """Whether `param_slice_mappings` of all ranks say the same; those of old versions are missing."""
    for rank, one in enumerate(ranks):
        if group >= len(one.mappings):
            continue
        mine = {name: (part.start, part.numel) for name, parts in found.items() for part in parts if part.rank == rank}
        if mine != dict(one.mappings[group]):
            return False
    return True


def _unmapped(ranks: Sequence_[OptimizerStates], findings: Findings) -> str:
    """The note where the mappings say another order, because ranks take turns; else a finding."""
    settings = under(ranks[0].file.objects, "ds_config", "zero_optimization", ROUND_ROBIN)
    if settings != Leaf(True):
        findings.add("`param_slice_mappings` and `param_shapes` have different orders: they are of two saves")
    return (
        f"`param_slice_mappings` have the order without `{ROUND_ROBIN}`; the order of `param_shapes` is read, as by "
        "DeepSpeed's zero_to_fp32"
    )


# --- Where the elements of each parameter are in the flat groups of the ranks -----------------------------------------
#
#     stages 1 and 2   one vector for each group, cut into one run for each rank       a a a b b | b b c c .
#     stage 3          each parameter cut into equal slices, one for each rank         a a b b c | a . b b .
#
# A dot is padding: at the end of a vector; after a parameter that is aligned; after the last slice.
#
# Sources: `_zero2_merge_trainable_params` and `zero3_partitioned_param_info` in deepspeed/utils/zero_to_fp32.py (0.19).


ALIGNED = 2
"""The vector of a group is as long as a multiple of this and the number of ranks (`nccl_start_alignment_factor` in
runtime/zero/stage_1_and_2.py)."""


class Fragment(NamedTuple):
    """Some elements of a parameter, one after the other, in a flat group of a rank."""

    rank: int
    group: int
    start: int
    """In elements of the flat group."""
    numel: int


Fragments = dict[str, tuple[Fragment, ...]]
"""{parameter: where its elements are, in row-major order}"""


def numel_of(shapes: Shapes, paddings: Sequence_[int] = ()) -> int:
    """The elements of a group, with the padding between its parameters."""
    return sum(map(prod, shapes.values())) + sum(paddings)


def of_runs(group: int, shapes: Shapes, paddings: Sequence_[int], run: int) -> Fragments:
    """The fragments of stages 1 and 2, where each rank has `run` elements of the vector of a group.

    `paddings` has the padding after each parameter; it is empty where there is none.

    >>> of_runs(0, {"a": (3,), "b": (2, 2)}, (), 5)["b"]
    (Fragment(rank=0, group=0, start=3, numel=2), Fragment(rank=1, group=0, start=0, numel=2))
    """
    found: Fragments = {}
    at = 0
    for k, (name, shape) in enumerate(shapes.items()):
        stop = at + prod(shape)
        cuts = [at, *range(at - at % run + run, stop, run), stop] if run and stop > at else [at]
        found[name] = tuple(Fragment(low // run, group, low % run, high - low) for low, high in pairwise(cuts))
        at = stop + (paddings[k] if paddings else 0)
    return found


def of_slices(group: int, shapes: Shapes, world: int) -> Fragments:
    """The fragments of stage 3, where each of `world` ranks has a slice of each parameter.

    >>> of_slices(0, {"a": (3,), "b": (2, 2)}, 2)["a"]
    (Fragment(rank=0, group=0, start=0, numel=2), Fragment(rank=1, group=0, start=0, numel=1))
    """
    found: Fragments = {}
    at = 0
    for name, shape in shapes.items():
        numel = prod(shape)
        width = slice_numel(shape, world)
        held = [(rank, min(width, numel - rank * width)) for rank in range(world)]
        found[name] = tuple(Fragment(rank, group, at, count) for rank, count in held if count > 0)
        at += width
    return found


def slice_numel(shape: Shape, world: int) -> int:
    """The elements of a slice of stage 3, with its padding.

    >>> slice_numel((3,), 2), slice_numel((), 2)
    (2, 1)
    """
    return -(-prod(shape) // world)


def aligned(numel: int, world: int) -> int:
    """The length of the vector of a group, with the padding at its end."""
    unit = ALIGNED * world
    return -(-numel // unit) * unit
