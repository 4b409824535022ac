"""The optimizers in files of Keras 3, whose variables are numbered.

    optimizer/vars/0, 1           iteration, learning_rate (not where it is a schedule)
    optimizer/vars/2, 3, 4, ...   what is kept for the variables: momentum and velocity of the first, then of the next

What there is in which order is said by the configuration (`config.json`), or by the name of the
optimizer, its counts and its shapes.  Keras itself only compares the count, and skips a file that has another.

Source: keras 3.15.1, optimizers/base_optimizer.py (`__init__`, `build`, `add_optimizer_variables`: "Interleaves adding
variables for backward-compatibility"), `build` of each class there; loss_scale_optimizer.py, whose variables are its
own and those of the optimizer in it, which is saved once more by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from paramtool.errors import plural, some
from paramtool.formats import strict_json
from paramtool.formats.hdf5.keras_config import snake_case
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Leaf
from paramtool.model.optimizer import Group, NumberedSlots, OptimizerState, Slot, SlotKind, StateEntry
from paramtool.model.view import Shape, Shapes

FORM = "keras"
AT = "optimizer"
NAME = "optimizer_name"
"""Metadata: the name of the optimizer in a file without a configuration."""
_VARS, _INNER = "vars", "inner_optimizer/vars"
_SCALER, _SCALER_OWN = "LossScaleOptimizer", 4
"""The wrapper, and its own variables: iteration, learning_rate, step_counter, dynamic_scale."""


_ROWS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "SGD": (("momentum", "momentum"),),
    "Adam": (("", "momentum velocity"), ("amsgrad", "velocity_hat")),
    "AdamW": (("", "momentum velocity"), ("amsgrad", "velocity_hat")),
    "Nadam": (("", "momentum velocity"),),
    "Adamax": (("", "momentum norm"),),
    "RMSprop": (("", "velocity"), ("momentum", "momentum"), ("centered", "average_gradient")),
    "Adagrad": (("", "accumulator"),),
    "Adadelta": (("", "accumulated_grad accumulated_delta_var"),),
    "Adafactor": (("", "r c velocity"),),
    "Ftrl": (("", "accumulator linear"),),
    "Lion": (("", "momentum"),),
    "Lamb": (("", "momentum velocity"),),
    "ScheduleFreeAdamW": (("", "momentum velocity"),),
}
"""{class: (the setting without which there is no such block, or nothing; its slots for each variable)}, in the order of
its `build`, of keras 3.15.1: sgd.py l. 90-93, adam.py l. 92-100, nadam.py l. 89-93, adamax.py l. 100-103, rmsprop.py l.
95-107, adagrad.py l. 72-76, adadelta.py l. 77-82, adafactor.py l. 95-137, ftrl.py l. 161-169, lion.py l. 93-94, lamb.py
l. 84-87, schedule_free_adamw.py l. 106-114; `AdamW` is an `Adam`.  Muon, whose variables have one slot or two, and
MultiOptimizer are not here."""
_TAILS = {"Nadam": 1}
"""{class: single numbers behind its blocks}."""
_BASE = (("use_ema", "average"), ("gradient_accumulation_steps", "gradient_accumulator"))
"""Blocks before those of every class (base_optimizer.py, `build`)."""
KINDS: Mapping[str, SlotKind] = {
    "momentum": "first", "velocity": "second", "velocity_hat": "second", "norm": "magnitude", "accumulator": "second",
    "average_gradient": "first", "accumulated_grad": "second", "accumulated_delta_var": "second", "average": "weight",
    "gradient_accumulator": "first", "linear": "unknown", "r": "factored", "c": "factored",
}  # fmt: skip
OF_CLASS: Mapping[tuple[str, str], SlotKind] = {("ScheduleFreeAdamW", "momentum"): "weight"}
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
        """How many variables of the model an optimizer of `total` variables belongs to; None if no number fits."""
        many, each = total - self.head - self.tail, sum(map(len, self.blocks))
        if total <= self.head:
            return 0  # it has not been used yet
        if not each:
            return None if many else 0
        return many // each if many >= 0 and many % each == 0 else None


def states(checkpoint: Checkpoint, shapes: Shapes) -> Iterator[OptimizerState]:
    """The optimizer of a file of Keras; `shapes` are those of its tensors."""
    names = listed(checkpoint)
    if names:
        found = variables(checkpoint, shapes)
        if isinstance(found, Variables):
            # The optimizer; what a LossScaleOptimizer has twice is two slots
            lists = [NumberedSlots(f"{AT}/{_VARS}/", tuple(names), found.head, found.blocks, found.tail)]
            refused = ""
            if found.is_scaled:
                blocks = tuple(tuple(f"inner_optimizer/{slot}" for slot in block) for block in found.blocks)
                inner = tuple(listed(checkpoint, _INNER))
                lists.append(NumberedSlots(f"{AT}/{_INNER}/", inner, found.head - _SCALER_OWN, blocks, found.tail))
                if [shapes.get(name) for name in names[_SCALER_OWN:]] != [shapes.get(name) for name in inner]:
                    refused = f"{AT}/{_INNER} does not have the variables of {AT}/{_VARS} once more"
            held: list[list[Slot]] = [[] for _ in range(lists[0].count)]
            for one in lists if not refused else lists[:1]:
                for at, k, slot in one.places(one.count):
                    word = slot.rpartition("/")[2]
                    kind = OF_CLASS.get((found.algorithm, word)) or KINDS.get(word, "unknown")
                    held[k].append(Slot(slot, kind, one.names[at], is_whole=kind != "factored"))
            entries = tuple(StateEntry(k, 0, tuple(slots)) for k, slots in enumerate(held))
            group = Group(tuple(range(len(held))), settings(said(checkpoint.metadata) or {}))
            algorithm = TRAJECTORIES.get(found.algorithm, found.algorithm)
            yield OptimizerState(AT, FORM, algorithm, entries, (group,), refused=refused, numbered=tuple(lists))
        else:
            yield OptimizerState(AT, FORM, "", (), (), refused=found)


def listed(checkpoint: Checkpoint, inside: str = _VARS) -> list[str]:
    """The variables of an optimizer in order; none where a number is missing, or a name is no number."""
    prefix = f"{AT}/{inside}/"
    numbers = {name.removeprefix(prefix): name for name in checkpoint.entries if name.startswith(prefix)}
    order = [numbers.get(str(k), "") for k in range(len(numbers))]
    return order if all(order) else []


def variables(checkpoint: Checkpoint, shapes: Shapes) -> Variables | str:
    """What the variables of an optimizer are, or why that is not known."""
    found = [shapes.get(name) for name in listed(checkpoint)]
    config = said(checkpoint.metadata)
    if config is not None:
        one = _configured(config)
        if isinstance(one, str):
            return one
        return one if _fits(one, found) else f"its {plural(len(found), 'variable')} are not those of {one.algorithm}"
    name = checkpoint.metadata.get(NAME, "")
    there = Counter(shapes[n] for n, e in checkpoint.entries.items() if e.role != "optimizer" and n in shapes)
    fitting = [one for one in _possible(*name.split("/")) if _fits(one, found) and _has_variables(one, found, there)]
    if not fitting:
        return f"no optimizer is known that is called {name!r} and has such variables"
    places = {(one.head, tuple(map(len, one.blocks)), one.tail, one.is_scaled) for one in fitting}
    if len(places) > 1:
        return f"it is called {name!r}, and its variables can be several things; a `.keras` file says which"
    one, *others = fitting
    words = (f"slot {k}" for k in range(sum(map(len, one.blocks))))  # it is not known what they are, but where
    return one._replace(blocks=tuple(tuple(next(words) for _ in block) for block in one.blocks)) if others else one


def _has_variables(one: Variables, shapes: Sequence[Shape | None], model: Counter[tuple[int, ...]]) -> bool:
    """Whether a model has as many tensors of each shape as the optimizer has variables for."""
    if "r" in {slot for block in one.blocks for slot in block}:
        return True
    places = NumberedSlots("", (), one.head, one.blocks).places(one.counted(len(shapes)) or 0)
    held = Counter({k: shapes[at] for at, k, _ in places}.values())
    return all(shape is not None and many <= model[shape] for shape, many in held.items())


def _fits(one: Variables, shapes: Sequence[Shape | None]) -> bool:
    """Whether single numbers are where they should be, and all slots of a variable have one shape."""
    count = one.counted(len(shapes))
    if count is None or any(shape != () for shape in (*shapes[: one.head], *shapes[len(shapes) - one.tail :])):
        return False
    if "r" in {slot for block in one.blocks for slot in block}:
        return True
    held: dict[int, tuple[int, ...] | None] = {}
    places = NumberedSlots("", (), one.head, one.blocks).places(count)
    return all(held.setdefault(k, shapes[at]) == shapes[at] for at, k, _ in places)


def said(metadata: Mapping[str, str]) -> Mapping[str, Any] | None:
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
        if not isinstance(inner, dict) or "class_name" not in inner:
            return "its inner optimizer is not said"
        found = _configured(inner)
        return found if isinstance(found, str) else found._replace(head=found.head + _SCALER_OWN, is_scaled=True)
    if name not in _ROWS:
        return f"which variables {name} keeps is not known"
    return _of_row(name, {key for key, value in config.items() if value}, isinstance(config.get("learning_rate"), dict))


def _of_row(name: str, settings: set[str], is_schedule: bool) -> Variables:
    chosen = (slots for setting, slots in (*_BASE, *_ROWS[name]) if not setting or setting in settings)
    blocks = tuple(tuple(slots.split()) for slots in chosen)
    return Variables(name, 1 if is_schedule else 2, blocks, _TAILS.get(name, 0))


def _possible(name: str, inner: str = "") -> Iterator[Variables]:
    """What the variables of an optimizer with this name can be; `inner` is the name of that in a wrapper."""
    word = name.rstrip("0123456789").rstrip("_")
    if inner and word == snake_case(_SCALER):
        yield from (one._replace(head=one.head + _SCALER_OWN, is_scaled=True) for one in _possible(inner))
        return
    for row, found in _ROWS.items():
        if snake_case(row) == word:
            settings = [setting for setting, _ in (*_BASE, *found) if setting]
            for chosen in product((False, True), repeat=len(settings)):
                given = {setting for setting, there in zip(settings, chosen, strict=True) if there}
                yield from (_of_row(row, given, is_schedule) for is_schedule in (False, True))


def settings(said: Mapping[str, Any]) -> objects.Mapping:
    """The numbers and flags of a configuration."""
    config = said.get("config")
    config = config if isinstance(config, dict) else {}
    inner = config.get("inner_optimizer")
    if isinstance(inner, dict):
        return settings(inner)
    plain = {key: value for key, value in config.items() if isinstance(value, (bool, int, float))}
    return objects.Mapping("dict", tuple((_WORDS.get(key, key), Leaf(value)) for key, value in plain.items()))


_WORDS = {"learning_rate": "lr"}

# --- The optimizers in `.h5` files of Keras 1 to 3, whose variables have names ----------------------------------------
#
#     optimizer_weights/adam/lstm_lstm_cell_kernel_momentum    Keras 3: the path of a variable with `_`, and the slot
#     optimizer_weights/Adam/dense/kernel/m:0                  tf.keras: the path, and the slot
#
# Source: keras 3.15.1, optimizers/base_optimizer.py (`add_variable_from_reference`), legacy/saving/legacy_h5_format.py
# (`save_optimizer_weights_to_hdf5_group`); tf_keras 2.x, optimizers/legacy/optimizer_v2.py (`add_slot`).


NAMED_FORM = "keras-h5"
NAMED_AT = "optimizer_weights"
_WEIGHTS = "model_weights/"
_OLD_SLOTS = {
    "m": "momentum", "v": "velocity", "vhat": "velocity_hat", "rms": "velocity", "mg": "average_gradient",
    "accum_grad": "accumulated_grad", "accum_var": "accumulated_delta_var", "moving_mean_square": "velocity",
}  # fmt: skip
"""{slot of tf.keras before 2.11: its name in Keras 3} (tf_keras, optimizers/legacy)."""


def named_states(checkpoint: Checkpoint, shapes: Shapes) -> Iterator[OptimizerState]:
    """The optimizer of an `.h5` of Keras, whose variables have the names of the model's."""
    prefix = f"{NAMED_AT}/"
    names = [name for name in checkpoint.entries if name.startswith(prefix)]
    if not names:
        return
    known, twice = _named_slots(checkpoint)
    held: dict[str, list[Slot]] = {}
    lost = []
    config = said(checkpoint.metadata) or {}
    algorithm = str(config.get("class_name", ""))
    for name in names:
        own = name.removeprefix(prefix).partition("/")[2].removesuffix(":0")
        if own in known and own not in twice:
            parameter, slot = known[own]
            kind = OF_CLASS.get((algorithm, slot)) or KINDS.get(_OLD_SLOTS.get(slot, slot), "unknown")
            held.setdefault(parameter, []).append(Slot(slot, kind, name))
        elif shapes.get(name) != ():
            lost.append(name)
    entries = tuple(StateEntry(parameter, 0, tuple(slots)) for parameter, slots in held.items())
    if lost:
        refused = f"{some(lost, 4)} {'has' if len(lost) == 1 else 'have'} not the name of one variable of the model"
        yield OptimizerState(NAMED_AT, NAMED_FORM, algorithm, (), (), refused=refused)
        return
    group = Group(tuple(held), settings(config))
    yield OptimizerState(NAMED_AT, NAMED_FORM, TRAJECTORIES.get(algorithm, algorithm), entries, (group,))


def _named_slots(checkpoint: Checkpoint) -> tuple[dict[str, tuple[str, str]], set[str]]:
    """{what a slot is called: (parameter, slot)}, and what two of them are called."""
    known: dict[str, tuple[str, str]] = {}
    twice = set()
    for name, entry in checkpoint.entries.items():
        if entry.role == "optimizer" or not name.startswith(_WEIGHTS):
            continue
        own = name.removeprefix(_WEIGHTS)
        path = own.partition("/")[2].removesuffix(":0")
        slots = (
            [f"{path.replace('/', '_')}_{slot}" for slot in KINDS],
            [f"{path}/{slot}" for slot in (*KINDS, *_OLD_SLOTS)],
        )
        for called, slot in (*zip(slots[0], KINDS, strict=True), *zip(slots[1], (*KINDS, *_OLD_SLOTS), strict=True)):
            if called in known:
                twice.add(called)
            known[called] = (own, slot)
    return known, twice
