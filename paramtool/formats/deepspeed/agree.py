"""Whether the files of a folder are of one save: the same world, model, settings and step in all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Sequence as Sequence_
from itertools import pairwise
from math import prod
from typing import NamedTuple

from paramtool.errors import FormatError, leading, plural, some
from paramtool.formats.deepspeed.names import RankFiles
from paramtool.formats.deepspeed.states import Findings, ModelStates, OptimizerStates, file_name, is_none, vector, whole
from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.objects import Leaf, Node, tensor_names, under
from paramtool.model.objects import Mapping as Tree
from paramtool.model.view import Shape, Shapes, View

SAME = ("global_steps", "global_samples", "skipped_steps", "param_shapes", "frozen_param_shapes", "ds_version")
"""What all model states of one save have alike."""
ROUND_ROBIN = "round_robin_gradients"
_SHOWN = 3


def check_ranks(files: RankFiles, found: Mapping[int, OptimizerStates], findings: Findings) -> None:
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
    worlds = _by({rank: states.counts[0] for rank, states in found.items()})
    stages = _by({rank: states.stage for rank, states in found.items()})
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


def _by(values: Mapping[int, int]) -> dict[int, list[int]]:
    return grouped((value, rank) for rank, value in values.items())


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
        _check_optimizers(first, ranks, findings)
    # A note for what each rank has its own of.
    tops = [dict(one.file.objects.items) for one in models if isinstance(one.file.objects, Tree)]
    own = ("module", "shared_params", "frozen_param_fragments", *SAME)
    keys = [str(key) for key in tops[0] if key not in own and any(one.get(key) != tops[0][key] for one in tops[1:])]
    if keys:
        yield f"ranks have their own {some(keys, _SHOWN)}: rank 0's is read"


def _check_optimizers(first: ModelStates, ranks: Sequence_[OptimizerStates], findings: Findings) -> None:
    """Findings where optimizer states are of another save than the model's, or than the others."""
    world = whole(under(first.file.objects, "dp_world_size"))
    if world not in (None, len(ranks)):
        files = f"the optimizer's files are of {plural(len(ranks), 'rank')}"
        findings.add(f"{_base(first)}: is of {plural(world or 0, 'rank')}; {files}")
    mine = under(first.file.objects, "ds_version")
    for one in ranks:
        theirs = under(one.file.objects, "ds_version")
        if not is_none(theirs) and not is_none(mine) and theirs != mine:
            told = f"written by DeepSpeed {_word(theirs)}; {_base(first)} by {_word(mine)}"
            findings.add(f"{_base(one)}: {told}: they are of two saves")
    _check_kept(ranks, findings)


def _check_kept(ranks: Sequence_[OptimizerStates], findings: Findings) -> None:
    """Findings for settings and values that differ among the ranks."""
    first = ranks[0]
    for one in ranks[1:]:
        if one.groups != first.groups:
            findings.add(f"{_base(one)}: its `param_groups` are not those of {_base(first)}: they are of two saves")
        other = [
            str(key)
            for (key, a), (_, b) in zip(first.rest, one.rest, strict=False)
            if (not any(True for _ in tensor_names(a))) and a != b
        ]
        if other or len(one.rest) != len(first.rest):
            findings.add(f"{_base(one)}: {some(other, _SHOWN)} differ from {_base(first)}: they are of two saves")


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
    found: dict[str, tuple[Fragment, ...]] = {}
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


def _slices(
    group: int, shapes: Shapes, ranks: Sequence_[OptimizerStates], findings: Findings
) -> dict[str, tuple[Fragment, ...]]:
    """The fragments of a group of stage 3; a finding where a vector has another length."""
    found = of_slices(group, shapes, len(ranks))
    numel = sum(-(-numel_of({name: shape}) // len(ranks)) for name, shape in shapes.items())
    for rank, one in enumerate(ranks):
        for what, view in _vectors(one, group):
            if view.numel != numel:
                findings.add(_length(f"rank {rank}: {what} of group {group}", view.numel, f"{numel}"))
    return found


def _runs(
    group: int, shapes: Shapes, ranks: Sequence_[OptimizerStates], findings: Findings
) -> dict[str, tuple[Fragment, ...]]:
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


Fragments = Mapping[str, tuple[Fragment, ...]]
"""{parameter: where its elements are, in row-major order}"""


def numel_of(shapes: Shapes, paddings: Sequence[int] = ()) -> int:
    """The elements of a group, with the padding between its parameters."""
    return sum(map(prod, shapes.values())) + sum(paddings)


def of_runs(group: int, shapes: Shapes, paddings: Sequence[int], run: int) -> dict[str, tuple[Fragment, ...]]:
    """The fragments of stages 1 and 2, where each rank has `run` elements of the vector of a group.

    `paddings` has the padding after each parameter; it is empty where there is none.

    >>> of_runs(0, {"a": (3,), "b": (2, 2)}, (), 5)["b"]
    (Fragment(rank=0, group=0, start=3, numel=2), Fragment(rank=1, group=0, start=0, numel=2))
    """
    found: dict[str, tuple[Fragment, ...]] = {}
    at = 0
    for k, (name, shape) in enumerate(shapes.items()):
        stop = at + prod(shape)
        cuts = [at, *range(at - at % run + run, stop, run), stop] if run and stop > at else [at]
        found[name] = tuple(Fragment(low // run, group, low % run, high - low) for low, high in pairwise(cuts))
        at = stop + (paddings[k] if paddings else 0)
    return found


def of_slices(group: int, shapes: Shapes, world: int) -> dict[str, tuple[Fragment, ...]]:
    """The fragments of stage 3, where each of `world` ranks has a slice of each parameter.

    >>> of_slices(0, {"a": (3,), "b": (2, 2)}, 2)["a"]
    (Fragment(rank=0, group=0, start=0, numel=2), Fragment(rank=1, group=0, start=0, numel=1))
    """
    found: dict[str, tuple[Fragment, ...]] = {}
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
