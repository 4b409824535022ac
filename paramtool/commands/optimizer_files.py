"""The state of optimizers in files of their own beside the weights of a folder.

    optimizer.pt               transformers' Trainer
    optimizer.bin              accelerate's save_state
    optimizer_0/.metadata ...  the same with FSDP, sharded: a folder of torch.distributed.checkpoint

Where parameters of the model are joined, split or renamed, such a file is written anew beside the weights: the same
name and format, and nothing but what `Optimizer.state_dict()` gives.  Its entries are in the order of the model
that the output is for, as far as that is known: programs bind them by position.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from paramtool.commands.optimizer_carry import (
    MAX_NAMED,
    Carried,
    OptimizerChoice,
    StateReport,
    changes,
    refuse_unknown,
    reported,
    with_state,
    without_moved,
)
from paramtool.commands.optimizers import (
    TRAINER_FILES,
    bound_files,
    class_parameters,
    refuse_defects,
)
from paramtool.commands.output.destination import Destination, state_name
from paramtool.commands.output.losses import keeping
from paramtool.commands.output.options import ObjectOptions
from paramtool.commands.output.sidecars import Sidecars
from paramtool.commands.output.write import Work, laid_out
from paramtool.commands.progress import Path
from paramtool.errors import LayoutError, PlanError, some
from paramtool.formats import hf_config
from paramtool.formats.folder.training_files import is_training_state, optimizer_of
from paramtool.formats.output import OutputFile
from paramtool.grouping import grouped, omit
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint, prefix_of
from paramtool.model.optimizer import Binding, Move, Order, Parameter
from paramtool.model.plan import Plan, check
from paramtool.model.view import Shapes
from paramtool.passes.optimizer import order
from paramtool.passes.optimizer.move import moved, refusal
from paramtool.passes.optimizer.order import ClassParameters
from paramtool.passes.rnn.rewrite import together

STATE_FOLDERS = ("optimizer", "global_step")
"""Beginnings of the names of folders inside that hold the state of optimizers: accelerate's and DeepSpeed's."""

WITHOUT_TRAINER = {"vllm": "vLLM", "meta": "Meta's code (consolidated.00.pth)"}
"""{dialect: its program}, of programs that run models and train none."""


def _holds_state(name: str) -> bool:
    """Whether a file of a folder has the state of an optimizer, given its name there, with `/`."""
    *folders, file = name.split("/")
    is_inside = any(folder.startswith(STATE_FOLDERS) for folder in folders)
    return is_inside or bool(optimizer_of(name)) or ("optim" in file and is_training_state(file))


def holds_state(beside: Sidecars) -> bool:
    """Whether one of the files beside the weights has the state of an optimizer, whether it comes along or stays."""
    return any(map(_holds_state, beside.files)) or bool(_staying(beside))


def _staying(beside: Sidecars) -> list[str]:
    """The states of optimizers that an output of one file has no place for."""
    return [name for name in beside.states if _holds_state(name) or optimizer_of(f"{name}/x")]


class Following(NamedTuple):
    """Files beside the weights whose state has to follow, and what the parameters become."""

    files: Mapping[str, Mapping[str, str]]
    """{the file or the folder of an optimizer: {name in the output: file}}"""
    moves: Sequence[Move]
    renamed: Mapping[str, str]
    has_config: bool = False
    """Whether the config.json of the output was given for it."""


def following(
    where: Destination, moves: Sequence[Move], renamed: Mapping[str, str], choice: OptimizerChoice, *,
    has_config: bool = False, target: str = "",
) -> tuple[Sidecars, Following | None]:  # fmt: skip
    """What comes along unchanged beside new weights, and the files whose state has to follow them.

    `target` is the layout or the dialect of the output.
    PlanError where parameters change, and the state of the old ones beside them cannot follow.
    """
    is_changed = changes(moves, renamed)
    stays = _staying(where.sidecars)
    if stays and is_changed and not choice.drop:
        raise _refusal(where.path, stays, "the output is one file", "-o FOLDER has both")
    files = {name: file for name, file in where.sidecars.files.items() if _holds_state(name)}
    if not files or not (is_changed or choice.drop):
        return where.sidecars, None
    kept = omit(where.sidecars.files, files)
    found = {at: dict(inside) for at, inside in grouped((optimizer_of(one[0]), one) for one in files.items()).items()}
    if choice.drop:
        left = (f"{name}: as --optimizer-state drop says" for name in files)
        return replace(where.sidecars, files=kept, left=(*where.sidecars.left, *left)), None
    if program := WITHOUT_TRAINER.get(target):
        raise _refusal(where.path, found, f"{program} runs models, and has no trainer that goes on from it")
    if "" in found:
        raise _refusal(where.path, found[""], "this version does not write such files for other parameters")
    if not where.is_alone:
        raise _refusal(where.path, found, "which of several sets of weights it is of is not known with --each")
    if len({os.path.splitext(name)[1] for name in found}) > 1:
        raise _refusal(
            where.path, found, "they are of two programs, and which of them goes on from the folder is not known",
            "move one of them out of the folder",
        )  # fmt: skip
    return replace(where.sidecars, files=kept), Following(found, moves, renamed, has_config)


def _refusal(where: str, files: Iterable[str], why: str, hint: str = "") -> PlanError:
    return refusal(where, "", f"{some([*files], MAX_NAMED)} beside the weights: {why}", hint)


@dataclass(slots=True)
class FollowingWork:
    """What becomes of the files beside the weights."""

    works: list[Work] = field(default_factory=list)
    report: StateReport = StateReport()
    unchanged: dict[str, str] = field(default_factory=dict)
    """{name: file} of files whose state does not change: they are copied."""
    left_out: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def outputs(self) -> tuple[OutputFile, ...]:
        """The files that are written."""
        return tuple(out for work in self.works for out in work.outputs)


def works(
    path: Path, source: Checkpoint, found: Following, plan: Plan, *, where: Destination, options: ObjectOptions,
    choice: OptimizerChoice,
) -> FollowingWork:  # fmt: skip
    """The work that writes the files with the state of new parameters; PlanError says why state cannot follow.

    `source` is the model before the change, and `plan` the one after it.
    """
    bound = {one.file: one for one in bound_files(path, source, names=choice.names, allowing=options)}
    if lacking := [name for name in found.files if name not in bound]:
        raise _refusal(where.path, lacking, "no optimizer that paramtool knows is in it")
    names = {name: one.window.shape for name, one in plan.names.items()}
    section = next((binding.optimizer.section for one in bound.values() for binding in one.bindings), "")
    target = target_order(where, names, prefix=prefix_of(source, section), is_given=found.has_config)
    done = FollowingWork()
    for name, files in found.files.items():
        one = bound[name]
        file = one.checkpoint
        refuse_defects(file.path, one.bindings)
        refuse_unknown(file, one.bindings)
        for binding in one.bindings:
            _refuse_unlike(path, source, file.path, binding, found, target=target)
        ranks = target.ranks if target is not None else None
        state = moved(file, one.bindings, found.moves, found.renamed, choice=choice.state, model=source, ranks=ranks)
        if state.bindings:
            more = f"; entries in the order of {target.source}" if target else ""
            report = reported(one.bindings, state, name, more)
            done.report = done.report.with_files(report)
            rest = without_moved(file, state)
            planned, outcome = together(rest, (), False, options.skip_unsupported, split_content=True)
            planned = with_state(planned, Carried(rest, state, report, one.bindings))
            check(planned, planned.order, rest.storages)
            read = (*where.read, *(one.path for one in file.files))
            there = where._replace(
                name=state_name(name), sidecars=Sidecars(), read=read, max_shard_size=None, made={}, notes=()
            )
            fitted = there.writer.fit(planned, rest, keeping(options))
            expected = {name: entry for name, entry in outcome.untouched.items() if name in fitted.plan.names}
            made = outcome.made | state.names.keys()
            outputs = laid_out(fitted.plan, there)
            done.works.append(Work(rest, fitted.plan, outputs, there, expected, outcome.windows, made))
            done.left_out += (f"{name}: {text}" for text in fitted.left_out)
            done.needs += fitted.needs
            done.warnings += (*state.warnings, *file.notes)
        else:
            done.unchanged |= files
        if target is None and not all(
            isinstance(entry.key, str) for it in one.bindings for entry in it.optimizer.entries
        ):
            done.warnings.append(
                f"{name}: its entries are in the order of the old parameters, new ones in the place of the first that "
                "they are made of; programs bind them by position, and the order of the model that opens the output is "
                "not known: --new-config CONFIG.json says which it is"
            )
    return done


# The order of the new parameters


class TargetOrder(NamedTuple):
    """The parameters of the model that an output is for."""

    ranks: Mapping[str, int]
    """{name in the output: its rank in `named_parameters()`}"""
    decays: Mapping[str, bool | None]
    """Which of them the Trainer applies weight decay to."""
    source: str


def target_order(where: Destination, shapes: Shapes, *, prefix: str, is_given: bool) -> TargetOrder | None:
    """The order of the class of the output's config.json; None where it is of another model, or nothing builds it.

    LayoutError where the config was given for the output, and is of another model.
    """
    config = where.sidecars.files.get(hf_config.NAME)
    found = class_parameters(config) if config else None
    if found is None:
        return None
    own = (Parameter(name.removeprefix(prefix), shape) for name, shape in shapes.items() if name.startswith(prefix))
    if why := order.of_class(replace(found, saved={}), Order(tuple(own), "", False), "it").missing:
        if is_given:
            raise LayoutError(f"{config}: is not of the model that the output holds: {why}",
                              hint="--new-config is the config.json of the model that opens the output")  # fmt: skip
        return None
    ranks = {prefix + name: rank for rank, one in enumerate(found.parameters) for name in one.names}
    said = {prefix + name: decays for name, decays in _decays((), found).items()}
    return TargetOrder(ranks, said, found.source)


def _refuse_unlike(
    path: Path, source: Checkpoint, file: str, binding: Binding, found: Following, *, target: TargetOrder | None
) -> None:
    """PlanError where entries would be of parameters that are not those of the output.

    The weights can have parameters in another form than the class, as a Mixtral, which trains with the experts of a
    layer in one tensor and whose files have them one by one; and the Trainer can have a new parameter in another group.
    """
    prefix, at = prefix_of(source, binding.optimizer.section), binding.optimizer.at
    held = {prefix + name: name for name in binding.names.values()}
    moves = [move for move in found.moves if not held.keys().isdisjoint(move.old)]
    if len(binding.optimizer.groups) == 2 and any(os.path.isfile(os.path.join(path, name)) for name in TRAINER_FILES):
        names = (*found.renamed.values(), *(name for move in moves for name in move.new))
        new = target.decays if target is not None else _decays(names, None)
        old_ones = _decays(source.entries, class_parameters(os.path.join(path, hf_config.NAME)))
        for old, name in order.misplaced(old_ones, new, moves, found.renamed):
            raise refusal(
                file, at,
                f"{old!r} becomes {name!r}, which the Trainer has in the other group: the Trainer's two groups (with "
                "weight decay, and without) do not fit",
            )  # fmt: skip
    own = [name for full, name in held.items() if full not in source.entries]
    lost = [move for move in found.moves if held.keys().isdisjoint(move.old)]
    if own and lost and target is None:
        raise refusal(
            file, at,
            f"it has entries for parameters such as {own[0]!r}, which the weights have in another form, and "
            f"{lost[0].old[0]!r} changes",
        )  # fmt: skip


def _decays(names: Iterable[str], found: ClassParameters | None) -> dict[str, bool | None]:
    """{each of some names, and each name of a class: whether the Trainer applies weight decay to it}"""
    parameters = found.parameters if found is not None else ()
    known = {name: order.decays(one.names[0], one.is_in_layer_norm) for one in parameters for name in one.names}
    return {name: order.may_decay(name) for name in names} | known
