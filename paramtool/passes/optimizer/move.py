"""The state of an optimizer for parameters that are made of others: the same maps, asked once more for each slot.

A map is never stored or inverted.  `Move.through` makes new tensors of any windows of the old ones, so that it is asked
with the windows of `exp_avg` as the conversion was with the weights.  Entries that belong to no changed parameter keep
what they have; their ids and groups are renumbered as torch numbers them: group by group, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paramtool.model.alias import Alias
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import (
    Binding,
    Move,
    MovedState,
    StateChoice,
)
from paramtool.passes.optimizer import copies, numbered, optax, schedules, tree
from paramtool.passes.optimizer.moving import Done, refusal
from paramtool.passes.optimizer.slots import trajectory
from paramtool.passes.optimizer.writing import StateTree

NOTHING_SAID = StateChoice()
MOVABLE = ("torch", "dcp", "dcp-flat", "deepspeed", copies.FORM, optax.FORM, numbered.FORM)
"""Forms of optimizers whose trees are written."""


def moved(
    checkpoint: Checkpoint, bindings: Sequence[Binding], moves: Sequence[Move], renamed: Mapping[str, str], *,
    choice: StateChoice = NOTHING_SAID, model: Checkpoint | None = None, ranks: Mapping[str, int] | None = None,
) -> MovedState:  # fmt: skip
    """What a plan has to have, so that the optimizers of a checkpoint fit its new parameters.

    `renamed` is {old name: new name} of tensors that only get another name, and `choice` says what becomes of the state
    of parameters that are tied and untied.  `model` has the parameters, where the optimizers are in a file of their
    own.  `ranks` is {new name: its rank in the model that the output is for}: each group has that order.  PlanError
    says why the state of one cannot follow.
    """
    parameters = model if model is not None else checkpoint
    done = [
        _Moved(checkpoint, binding, moves, renamed, choice=choice, parameters=parameters, ranks=ranks).run()
        for binding in bindings
    ]
    tree_of_all = checkpoint.objects
    for one, binding in zip(done, bindings, strict=True):
        if one.node is not None:
            node = one.node
            tree_of_all = tree.changed(tree_of_all, binding.optimizer.at, lambda _, node=node: node)  # type: ignore[misc]
    emptied = _emptied(checkpoint, bindings, done)
    for count, gone in emptied:
        tree_of_all = schedules.without_groups(tree_of_all, count, gone)
    targets = tuple(target for one in done for target in one.targets)
    names = {
        target.name: Alias(target.name, target.view, target.name, "storage", "storage", target.view)
        for target in targets
    }
    return MovedState(
        targets=targets,
        gone=frozenset(name for one in done for name in one.gone),
        objects=tree_of_all,
        names=names,
        requires=tuple(requirement for one in done for requirement in one.requires),
        warnings=tuple(dict.fromkeys(text for one in done for text in one.warnings)),
        bindings=tuple(one.binding for one in done if one.binding is not None),
        renamed={old: new for one in done for old, new in one.renamed.items()},
        counts={one.at: one.counts for one in done if one.counts is not None},
        emptied=emptied,
    )


def _emptied(
    checkpoint: Checkpoint, bindings: Sequence[Binding], done: Sequence[Done]
) -> tuple[tuple[int, frozenset[int]], ...]:
    """Groups that have no parameter any more; PlanError where it is not known whose schedule has items for them."""
    found = []
    counts = [len(binding.optimizer.groups) for binding in bindings if binding.optimizer.form != copies.FORM]
    for binding, one in zip(bindings, done, strict=True):
        if one.emptied:
            count = len(binding.optimizer.groups)
            if counts.count(count) > 1 and schedules.of_groups(checkpoint.objects, count):
                reason = f"group {min(one.emptied)} would have no parameter, and which schedule is its own is not known"
                raise refusal(checkpoint.files[0].path, binding.optimizer.at, reason)
            found.append((count, one.emptied))
    return tuple(found)


class _Moved(StateTree):
    """From the parameters that change to the new tree."""

    def run(self) -> Done:
        """What becomes of it."""
        if self.moves and not self.binding.is_unique:
            hint = "--optimizer-names FILE says whose its entries are (docs/optimizers.md has an example)"
            raise self.refusal(self.binding.words, hint)
        moving = [*self.concerned()]
        renames = any(self.new_name(key) != name for key, name in self.names.items())
        if not moving and not self.is_reordered() and not (renames and self.has_names()):
            return self.done
        # PlanError where the optimizer is of a form, or of a kind, that is not moved.
        is_moved = bool(moving)
        if self.state.form not in MOVABLE:
            raise self.refusal(f"it is in the form {self.state.form}, which this version does not write")
        if (is_moved or self.state.form == optax.FORM) and self.state.refused:
            raise self.refusal(self.state.refused)
        if is_moved and not copies.are_listed(self.state):
            raise self.refusal("it has float32 copies of the parameters, which this version does not convert")
        made = {old: new for one in moving for old, new in self.joined(one)}
        if self.state.form == optax.FORM:
            self.write_trees(made)
        elif self.state.form == numbered.FORM:
            self.write_numbers(made)
        else:
            self.write(made)
        if moving and self.state.form != copies.FORM:
            self.done.warnings += self.trajectory()
        before = sum(len(one.keys) + len(one.gone) for one in moving)
        self.done.counts = (before, sum(len(new) for new in made.values()))
        return self.done

    def trajectory(self) -> Iterator[str]:
        """What will not be the same in a training that continues."""
        at = self.state.at or "the optimizer"
        if told := trajectory(self.state.algorithm):
            yield f"{at}: the training that continues is not the same: {told}"
        elif self.state.form == optax.FORM:
            yield f"{at}: {optax.UNSAID}"
        elif not self.state.algorithm and any(entry.slots for entry in self.state.entries):
            yield (
                f"{at}: which optimizer it is, is not known; if its update looks at a whole tensor, as norms do, the "
                "training that continues is not the same"
            )
        derived = {slot.key for entry in self.state.entries for slot in entry.slots if slot.kind == "derived"}
        if derived:
            left = ", ".join(sorted(derived))
            yield f"{at}: {left} of joined or split parameters are left out: each step calculates them anew"
