"""Universal checkpoints of DeepSpeed, which `ds_to_universal` makes of those of ZeRO; read without torch.

    zero/emb.weight/{fp32,exp_avg,exp_avg_sq,step}.pt   one parameter: {"param": T, "cat_dim": 0}, of stage 3 a flat T
    zero/optimizer_state.pt                             settings of the groups, and what is kept for all parameters
    mp_rank_00_model_states.pt                          copied (stage 3: zero_pp_rank_0_mp_rank_00_model_states.pt, ...)

Names that are no trained parameter have an `fp32.pt` as well, which is the tensor of `module` in float32: it is not
read.  Of stage 3 the step of each group is in zero/optimizer_state.pt, with the flat groups of rank 0, which are not
read: every parameter has its own files.

Source: `merge_tp_slices`, `merge_zero3_slices`, `_save_optimizer_state` and `main` in
deepspeed/checkpoint/ds_to_universal.py of 0.19.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod

from paramtool.errors import plural, some
from paramtool.formats.deepspeed import names, optimizer
from paramtool.formats.deepspeed.optimizer import AT, GROUPS, MASTERS, checkpoint, last_mark
from paramtool.formats.deepspeed.read import joined_module, lacks, stored
from paramtool.formats.deepspeed.states import (
    LAYOUT,
    OPTIMIZER,
    Findings,
    ModelStates,
    check_models,
    model_states,
    pairs,
    read_file,
    tensor,
    whole,
)
from paramtool.formats.files import is_folder, names_in, open_source
from paramtool.formats.joined import FolderTensors
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Leaf, Node, TensorRef, under
from paramtool.model.storage import SourceFile
from paramtool.model.view import Shape, View, contiguous

SUFFIX = ".pt"
WEIGHT = "fp32"
STEP = "step"
COMMON = f"optimizer_state{SUFFIX}"
CONVERT = "run ds_to_universal again, or copy the whole folder"
_SHOWN = 3


def read(path: str) -> Checkpoint:
    """Describe a folder; FormatError, Defects or UnsafeError if it is damaged, or holds only a part of the model."""
    folder = path if is_folder(path) else os.path.dirname(path)
    return _UniversalFolder(folder.rstrip(os.sep) or folder).checkpoint()


class _UniversalFolder:
    """One folder, as it is read."""

    def __init__(self, folder: str) -> None:
        self.files = names.files_of(folder)
        self.folder = os.path.join(folder, names.UNIVERSAL)
        self.findings = Findings(folder, CONVERT)
        self.joined = FolderTensors()
        self.sources: list[SourceFile] = []

    def checkpoint(self) -> Checkpoint:
        """The description."""
        models = self._models()
        self.findings.refuse()
        notes = [*check_models(models, (), self.findings)]
        common = self._file(os.path.join(self.folder, COMMON))
        self.findings.refuse()
        assert common is not None
        first, sliced = models[0], not self.files.model
        # Parameters that have no folder, and folders of no tensor of the model
        inside = {name for name in names_in(self.folder) if is_folder(os.path.join(self.folder, name))}
        wanted = [name for group in first.shapes for name in group]
        if lost := [name for name in wanted if name not in inside]:
            self.findings.add(f"{names.UNIVERSAL}/ lacks {plural(len(lost), 'parameter')}: {some(lost, _SHOWN)}")
        if strange := sorted(inside - {*wanted, *first.module}):
            what = f"{plural(len(strange), 'parameter')} that the model does not have: {some(strange, _SHOWN)}"
            self.findings.add(f"{names.UNIVERSAL}/ has {what}")
        self.findings.refuse()
        if sliced:
            lacks(first, self.findings)
            self.findings.refuse()
        kept = self._parameters(first, common, sliced)
        self.findings.refuse()
        adding = joined_module(models, self.joined, self.findings) if sliced else stored(first, self.joined)
        notes += [*adding, *self._again(first)]
        groups = optimizer.named_groups(
            under(common.objects, GROUPS), [list(one) for one in first.shapes], self.findings
        )
        own = [(key, value) for key, value in pairs(common.objects) if key not in (*LAYOUT, GROUPS)]
        mark = last_mark(first.file.objects)
        rest = optimizer.taken([(GROUPS, groups), *own], common, self.joined, mark, at="")
        made = optimizer.tree(kept, not sliced, rest)
        self.findings.refuse()
        files = [*(file for one in models for file in one.file.files), *self.sources]
        what = f"universal, of ZeRO stage {'3' if sliced else '1 or 2'}"
        return checkpoint(self.joined, first.file.objects, made, files, self.findings.asked, notes=notes, what=what)

    def _file(self, path: str) -> Checkpoint | None:
        """One file of the folder `zero`; None, with a line, where it cannot be read."""
        found = read_file(path, self.findings)
        if found is not None:
            self.sources += found.files
        return found

    def _models(self) -> list[ModelStates]:
        """The model states: one file, or those of all ranks of stage 3."""
        found, ranks = [], sorted(self.files.sliced)
        if self.files.model and ranks:
            self.findings.add("has model states of stage 3 and of stages 1 and 2: they are of two saves")
        if lost := sorted(set(range(len(ranks))) - set(ranks)):
            self.findings.add(f"the file 'zero_pp_rank_{lost[0]}_mp_rank_00_model_states.pt' is missing")
        for name in [self.files.model] if self.files.model else [self.files.sliced[rank] for rank in ranks]:
            states = model_states(self.files.path(name), self.findings)
            found += [states] if states else []
        world = whole(under(found[0].file.objects, "dp_world_size")) if found and ranks else None
        if world not in (None, len(ranks)):
            self.findings.add(f"has model states of {plural(len(ranks), 'rank')}; expected {world}, by `dp_world_size`")
        return found

    def _parameters(self, model: ModelStates, common: Checkpoint, sliced: bool) -> dict[str, dict[str, Node]]:
        """Add the float32 parameters and the state of all; {parameter: {slot: what is kept}}."""
        kept: dict[str, dict[str, Node]] = {}
        for group, shapes in enumerate(model.shapes):
            steps = dict(_steps(common, group))
            for name, shape in shapes.items():
                held = dict(self._held(name))
                if WEIGHT not in held:
                    self.findings.add(f"{names.UNIVERSAL}/{name}: has no {WEIGHT}{SUFFIX}")
                own = model.module[name] if sliced else f"{AT}.{MASTERS}.{name}"
                made = {slot: self._added(own if slot == WEIGHT else f"{AT}.state.{name}.{slot}", slot, shape, file)
                        for slot, file in held.items()}  # fmt: skip
                made |= {slot: self._step(name, slot, common, node) for slot, node in steps.items() if slot not in made}
                first = [STEP] * (STEP in made)
                kept[name] = {slot: made[slot] for slot in (*first, *made) if slot != WEIGHT}
            slots = dict.fromkeys(slot for name in shapes for slot in kept[name])  # all are updated together
            for name in shapes:
                for slot in slots:
                    if slot not in kept[name]:
                        has = f"{names.UNIVERSAL}/{name}: has no {slot}{SUFFIX}"
                        self.findings.add(f"{has}; others of its group have one")
        return kept

    def _held(self, name: str) -> Iterator[tuple[str, Checkpoint]]:
        """The files of a parameter that can be read."""
        folder = os.path.join(self.folder, name)
        for called in names_in(folder):
            if called.endswith(SUFFIX) and (file := self._file(os.path.join(folder, called))) is not None:
                yield called.removesuffix(SUFFIX), file

    def _added(self, at: str, slot: str, shape: Shape, file: Checkpoint) -> Node:
        """Add the tensor of a file in the shape of its parameter; a number, as of `step`, stays one."""
        found = under(file.objects, "param") or file.objects
        view = file.views().get(tensor(found))
        if view is None and isinstance(found, Leaf):
            return found
        where = f"{names.UNIVERSAL}/{os.path.relpath(file.path, self.folder)}"
        placed = None if view is None else _placed(view, shape, slot)
        if placed is None:
            has = "no tensor" if view is None else str(list(view.shape))
            self.findings.add(f"{where}: has {has}; `param_shapes` says {list(shape)}")
            return Leaf(None)
        self.joined.take(file, tensor(found), at, placed)
        return TensorRef(at)

    def _step(self, name: str, slot: str, common: Checkpoint, node: Node) -> Node:
        """What is kept for a whole group, as the parameter's own."""
        view = common.views().get(tensor(node))
        if view is None:
            return node
        at = f"{AT}.state.{name}.{slot}"
        optimizer.alone(self.joined, at, common, view)
        return TensorRef(at)

    def _again(self, model: ModelStates) -> Iterator[str]:
        """A note for tensors of `module` that have an fp32.pt as well; their files count as read."""
        trained = {name for group in model.shapes for name in group}
        other = [name for name in names_in(self.folder) if name in model.module and name not in trained]
        for name in other:
            for called in names_in(os.path.join(self.folder, name)):
                file, source = open_source(os.path.join(self.folder, name, called))
                file.close()
                self.sources.append(source)
        if not self.files.model:
            yield f"{names.UNIVERSAL}/{COMMON} has the flat groups of rank 0 once more; not read"
        if other:
            yield f"{names.UNIVERSAL}/ has {plural(len(other), 'tensor')} of `module` once more, in float32; not read"


def _steps(common: Checkpoint, group: int) -> Iterator[tuple[str, Node]]:
    """What the optimizer keeps for a whole group, as far as it is one number: of stage 3."""
    state = under(common.objects, OPTIMIZER, "state", group)
    views = common.views()
    for slot, node in pairs(state):
        view = views.get(tensor(node))
        if isinstance(node, Leaf) or (view is not None and not view.shape):
            yield slot, node


def _placed(view: View, shape: Shape, slot: str) -> View | None:
    """A tensor in the shape of its parameter, a step as it is; None for any other shape."""
    if view.shape == shape or (slot == STEP and view.numel == 1):
        return view
    is_flat = len(view.shape) == 1 and view.numel == prod(shape) and view.is_contiguous
    return contiguous(view.storage, view.dtype, shape, view.offset) if is_flat else None
