"""The optimizers in files of Keras: variables by their numbers, or, in older `.h5`, by names.

    optimizer/vars/0, 1           iteration, learning_rate (not where it is a schedule)
    optimizer/vars/2, 3, 4, ...   what is kept for the variables: momentum and velocity of the first, then of the next
    optimizer_weights/adam/...    `.h5`: the same order, and a name for each, with the path of the variable in it

What there is in which order is said by the configuration (`config.json`, `training_config`), or by the name of the
optimizer, its counts and its shapes.  Keras itself only compares the count, and skips a file that has another.

Source: keras 3.15.1, optimizers/base_optimizer.py (`__init__`, `build`, `add_optimizer_variables`: "Interleaves adding
variables for backward-compatibility"), `build` of each class there; loss_scale_optimizer.py, whose variables are its
own and those of the optimizer in it, which is saved once more by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from paramtool.errors import plural, some
from paramtool.formats import strict_json
from paramtool.formats.hdf5.keras_config import snake_case
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Leaf
from paramtool.model.optimizer import Group, OptimizerState, Slot, SlotKind, StateEntry

FORM, LEGACY = "keras", "keras-h5"
AT, LEGACY_AT = "optimizer", "optimizer_weights"
NAME = "optimizer_name"
"""Metadata: the name of the optimizer in a file without a configuration."""
_VARS, _INNER = "vars", "inner_optimizer/vars"
_SCALER, _SCALER_OWN = "LossScaleOptimizer", 2
"""The wrapper, and its variables behind `iteration` and `learning_rate`: step_counter, dynamic_scale."""


class _Row(NamedTuple):
    """The variables of a class of optimizers, in the order of its `build`."""

    blocks: tuple[tuple[str, str], ...]
    """[(the setting without which there is no such block, or nothing; its slots for each variable)]"""
    tail: int = 0
    """Single numbers behind them."""


_ROWS: Mapping[str, _Row] = {
    "SGD": _Row((("momentum", "momentum"),)),
    "Adam": _Row((("", "momentum velocity"), ("amsgrad", "velocity_hat"))),
    "AdamW": _Row((("", "momentum velocity"), ("amsgrad", "velocity_hat"))),
    "Nadam": _Row((("", "momentum velocity"),), 1),
    "Adamax": _Row((("", "momentum norm"),)),
    "RMSprop": _Row((("", "velocity"), ("momentum", "momentum"), ("centered", "average_gradient"))),
    "Adagrad": _Row((("", "accumulator"),)),
    "Adadelta": _Row((("", "accumulated_grad accumulated_delta_var"),)),
    "Adafactor": _Row((("", "r c velocity"),)),
    "Ftrl": _Row((("", "accumulator linear"),)),
    "Lion": _Row((("", "momentum"),)),
    "Lamb": _Row((("", "momentum velocity"),)),
    "ScheduleFreeAdamW": _Row((("", "momentum velocity"),)),
}
"""Of keras 3.15.1: sgd.py l. 90-93, adam.py l. 92-100, nadam.py l. 89-93, adamax.py l. 100-103, rmsprop.py l. 95-107,
adagrad.py l. 72-76, adadelta.py l. 77-82, adafactor.py l. 95-137, ftrl.py l. 161-169, lion.py l. 93-94, lamb.py l.
84-87, schedule_free_adamw.py l. 106-114; `AdamW` is an `Adam`.  Muon, whose variables have one slot or two, and
MultiOptimizer are not here."""
_BASE = (("use_ema", "average"), ("gradient_accumulation_steps", "gradient_accumulator"))
"""Blocks before those of every class (base_optimizer.py, `build`)."""
KINDS: Mapping[str, SlotKind] = {
    "momentum": "first", "velocity": "second", "velocity_hat": "second", "norm": "magnitude", "accumulator": "second",
    "average_gradient": "first", "accumulated_grad": "second", "accumulated_delta_var": "second", "average": "weight",
    "gradient_accumulator": "first", "linear": "unknown", "r": "factored", "c": "factored",
}  # fmt: skip
_OF_CLASS: Mapping[tuple[str, str], SlotKind] = {("ScheduleFreeAdamW", "momentum"): "weight"}
"""Its `momentum` begins as a copy of the variable."""
TRAJECTORIES = {"Lamb": "LAMB", "Adafactor": "Adafactor"}
"""{class: its name in `slots`, which says what it calculates from whole tensors}"""


class Variables(NamedTuple):
    """The variables of an optimizer by what they are, without their number."""

    algorithm: str
    head: int
    """Single numbers before the blocks."""
    blocks: tuple[tuple[str, ...], ...]
    tail: int
    is_scaled: bool = False
    """Whether a LossScaleOptimizer is around it, whose file has everything twice."""

    def counted(self, total: int) -> int | None:
        """For how many variables of the model there are so many of the optimizer; None where that is none."""
        many, each = total - self.head - self.tail, sum(map(len, self.blocks))
        if total <= self.head:
            return 0  # it was not used yet
        if not each:
            return None if many else 0
        return many // each if many >= 0 and many % each == 0 else None

    def places(self, count: int) -> Iterator[tuple[int, int, str]]:
        """[(number, which variable of the model, slot)] for so many variables of the model."""
        at = self.head
        for block in self.blocks:
            for k in range(count):
                for slot in block:
                    yield at, k, slot
                    at += 1


def states(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[OptimizerState]:
    """The optimizer of a file of Keras; `shapes` are those of its tensors."""
    names = listed(checkpoint)
    if names:
        found = variables(checkpoint, shapes)
        if isinstance(found, Variables):
            yield _state(checkpoint, names, found, shapes)
        else:
            yield OptimizerState(AT, FORM, "", (), (), refused=found)


def listed(checkpoint: Checkpoint, inside: str = _VARS) -> list[str]:
    """The variables of an optimizer in order; none where a number is missing, or a name is no number."""
    prefix = f"{AT}/{inside}/"
    numbers = {name.removeprefix(prefix): name for name in checkpoint.entries if name.startswith(prefix)}
    order = [numbers.get(str(k), "") for k in range(len(numbers))]
    return order if all(order) else []


def variables(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> Variables | str:
    """What the variables of an optimizer are, or why that is not known."""
    found = [shapes.get(name) for name in listed(checkpoint)]
    said = _said(checkpoint.metadata)
    if said is not None:
        one = _configured(said)
        if isinstance(one, str):
            return one
        return one if _fits(one, found) else f"its {plural(len(found), 'variable')} are not those of {one.algorithm}"
    name = checkpoint.metadata.get(NAME, "").rstrip("0123456789").rstrip("_")
    fitting = [one for one in _possible(name) if _fits(one, found)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        return f"no optimizer is known that is called {name!r} and has such variables"
    return f"it is called {name!r}, and its variables can be several things; a `.keras` file says which"


def _fits(one: Variables, shapes: Sequence[tuple[int, ...] | None]) -> bool:
    """Whether single numbers are where they should be, and all slots of a variable have one shape."""
    count = one.counted(len(shapes))
    if count is None or any(shape != () for shape in (*shapes[: one.head], *shapes[len(shapes) - one.tail :])):
        return False
    if "r" in {slot for block in one.blocks for slot in block}:
        return True
    held: dict[int, tuple[int, ...] | None] = {}
    return all(held.setdefault(k, shapes[at]) == shapes[at] for at, k, _ in one.places(count))


def _said(metadata: Mapping[str, str]) -> Mapping[str, Any] | None:
    """The configuration of the optimizer; None where the file has none."""
    for key, path in (("config.json", ("compile_config", "optimizer")), ("training_config", ("optimizer_config",))):
        try:
            found: Any = strict_json.strict(metadata.get(key, "null"))
        except ValueError:
            continue
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        if isinstance(found, dict) and isinstance(found.get("class_name"), str):
            return found
    return None


def _configured(said: Mapping[str, Any]) -> Variables | str:
    """The variables of a configuration, or why they are not known."""
    name, config = str(said["class_name"]), said.get("config")
    config = config if isinstance(config, dict) else {}
    if name == _SCALER:
        inner = config.get("inner_optimizer")
        is_said = isinstance(inner, dict) and "class_name" in inner
        found = _configured(inner) if is_said else "its inner optimizer is not said"
        if isinstance(found, str):
            return found
        return found._replace(head=found.head + 2 + _SCALER_OWN, is_scaled=True)
    if name not in _ROWS:
        return f"which variables {name} keeps is not known"
    return _of_row(name, {key for key, value in config.items() if value}, isinstance(config.get("learning_rate"), dict))


def _of_row(name: str, settings: set[str], is_schedule: bool) -> Variables:
    row = _ROWS[name]
    chosen = (slots for setting, slots in (*_BASE, *row.blocks) if not setting or setting in settings)
    blocks = tuple(tuple(slots.split()) for slots in chosen)
    return Variables(name, 1 if is_schedule else 2, blocks, row.tail)


def _possible(name: str) -> Iterator[Variables]:
    """What the variables of an optimizer with this name can be."""
    for row, found in _ROWS.items():
        if snake_case(row) == name:
            settings = [setting for setting, _ in (*_BASE, *found.blocks) if setting]
            for chosen in product((False, True), repeat=len(settings)):
                given = {setting for setting, there in zip(settings, chosen, strict=True) if there}
                yield from (_of_row(row, given, is_schedule) for is_schedule in (False, True))


# Writing


class NewNumbers(NamedTuple):
    """The variables of an optimizer after a change of the model's."""

    names: dict[str, str]
    """{old variable that stays what it is: its new name}"""
    made: dict[tuple[int, str], str]
    """{(which variable of the model, slot): the name of the new variable}, of those that are made."""
    items: tuple[tuple[str, str], ...]
    """[(key in the tree, name)] of all, in order."""


def numbered(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]], kept: Sequence[int | None]) -> NewNumbers:
    """The numbers of all variables, where the optimizer has an entry for each of `kept`: an old one, or a new one."""
    found = variables(checkpoint, shapes)
    assert isinstance(found, Variables)
    old = listed(checkpoint)
    outer = _numbered(found, old, kept, _VARS)
    if not found.is_scaled:
        return outer
    own = 2 + _SCALER_OWN
    inner = _numbered(found._replace(head=found.head - own), listed(checkpoint, _INNER), kept, _INNER)
    made = {(k, f"inner_optimizer/{slot}"): name for (k, slot), name in inner.made.items()}
    return NewNumbers({**outer.names, **inner.names}, {**outer.made, **made}, (*inner.items, *outer.items))


def _numbered(found: Variables, old: Sequence[str], kept: Sequence[int | None], inside: str) -> NewNumbers:
    before = {(k, slot): old[at] for at, k, slot in found.places(found.counted(len(old)) or 0)}
    prefix = f"{AT}/{inside}/"
    names = {name: name for name in old[: found.head]}
    made: dict[tuple[int, str], str] = {}
    last = found.head
    for at, k, slot in found.places(len(kept)):
        one, last = kept[k], at + 1
        if one is None:
            made[k, slot] = f"{prefix}{at}"
        else:
            names[before[one, slot]] = f"{prefix}{at}"
    names |= {name: f"{prefix}{last + k}" for k, name in enumerate(old[len(old) - found.tail :] if found.tail else ())}
    keys = [f"{inside}/{k}" for k in range(len(names) + len(made))]
    return NewNumbers(names, made, tuple((key, f"{AT}/{key}") for key in keys))


# Older files


def named_states(checkpoint: Checkpoint, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[OptimizerState]:
    """The optimizer of an `.h5` of Keras, whose variables have the names of the model's."""
    prefix = f"{LEGACY_AT}/"
    names = [name for name in checkpoint.entries if name.startswith(prefix)]
    if not names:
        return
    known, twice = _named_slots(checkpoint)
    held: dict[str, list[Slot]] = {}
    lost = []
    said = _said(checkpoint.metadata)
    algorithm = str(said["class_name"]) if said else ""
    for name in names:
        own = name.removeprefix(prefix).partition("/")[2].removesuffix(":0")
        if own in known and own not in twice:
            parameter, slot = known[own]
            kind = _OF_CLASS.get((algorithm, slot)) or KINDS.get(_OLD_SLOTS.get(slot, slot), "unknown")
            held.setdefault(parameter, []).append(Slot(slot, kind, name))
        elif shapes.get(name) != ():
            lost.append(name)
    entries = tuple(StateEntry(parameter, 0, tuple(slots)) for parameter, slots in held.items())
    if lost:
        refused = f"{some(lost, 4)} {'has' if len(lost) == 1 else 'have'} not the name of one variable of the model"
        yield OptimizerState(LEGACY_AT, LEGACY, algorithm, (), (), refused=refused)
        return
    group = Group(tuple(held), _settings(said or {}))
    yield OptimizerState(LEGACY_AT, LEGACY, TRAJECTORIES.get(algorithm, algorithm), entries, (group,))


_WEIGHTS = "model_weights/"
_OLD_SLOTS = {
    "m": "momentum", "v": "velocity", "vhat": "velocity_hat", "rms": "velocity", "mg": "average_gradient",
    "accum_grad": "accumulated_grad", "accum_var": "accumulated_delta_var", "moving_mean_square": "velocity",
}  # fmt: skip
"""{slot of tf.keras before 2.11: its name in Keras 3} (tf_keras, optimizers/legacy)."""


def _named_slots(checkpoint: Checkpoint) -> tuple[dict[str, tuple[str, str]], set[str]]:
    """{what a slot is called: (parameter, slot)}, and what two of them are called."""
    known: dict[str, tuple[str, str]] = {}
    twice = set()
    for name, entry in checkpoint.entries.items():
        if entry.role == "optimizer" or not name.startswith(_WEIGHTS):
            continue
        own = name.removeprefix(_WEIGHTS)
        path = own.partition("/")[2].removesuffix(":0")
        slots = [f"{path.replace('/', '_')}_{slot}" for slot in KINDS], [f"{path}/{slot}" for slot in (*KINDS, *_OLD_SLOTS)]
        for called, slot in (*zip(slots[0], KINDS, strict=True), *zip(slots[1], (*KINDS, *_OLD_SLOTS), strict=True)):
            if called in known:
                twice.add(called)
            known[called] = (own, slot)
    return known, twice


def _state(
    checkpoint: Checkpoint, names: Sequence[str], found: Variables, shapes: Mapping[str, tuple[int, ...]]
) -> OptimizerState:
    count = found.counted(len(names)) or 0
    held: list[list[Slot]] = [[] for _ in range(count)]
    inner = listed(checkpoint, _INNER) if found.is_scaled else []
    refused = ""
    for at, k, slot in found.places(count):
        kind = _OF_CLASS.get((found.algorithm, slot)) or KINDS.get(slot, "unknown")
        held[k].append(Slot(slot, kind, names[at]))
        own = at - 2 - _SCALER_OWN
        if found.is_scaled and own < len(inner) and shapes.get(inner[own]) == shapes.get(names[at]):
            held[k].append(Slot(f"inner_optimizer/{slot}", kind, inner[own]))
        elif found.is_scaled:
            refused = f"{AT}/{_INNER} does not have the variables of {AT}/{_VARS} once more"
    entries = tuple(StateEntry(k, 0, tuple(slots)) for k, slots in enumerate(held))
    config = _said(checkpoint.metadata) or {}
    group = Group(tuple(range(count)), _settings(config))
    algorithm = TRAJECTORIES.get(found.algorithm, found.algorithm)
    return OptimizerState(AT, FORM, algorithm, entries, (group,), refused=refused)


def _settings(said: Mapping[str, Any]) -> objects.Mapping:
    """The numbers and flags of a configuration."""
    config = said.get("config")
    config = config if isinstance(config, dict) else {}
    inner = config.get("inner_optimizer")
    if isinstance(inner, dict):
        return _settings(inner)
    plain = {key: value for key, value in config.items() if isinstance(value, (bool, int, float))}
    return objects.Mapping("dict", tuple((_WORDS.get(key, key), Leaf(value)) for key, value in plain.items()))


_WORDS = {"learning_rate": "lr"}
