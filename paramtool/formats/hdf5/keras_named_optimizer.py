"""The optimizers in `.h5` files of Keras 1 to 3, whose variables have names.

    optimizer_weights/adam/lstm_lstm_cell_kernel_momentum    Keras 3: the path of a variable with `_`, and the slot
    optimizer_weights/Adam/dense/kernel/m:0                  tf.keras: the path, and the slot

Source: keras 3.15.1, optimizers/base_optimizer.py (`add_variable_from_reference`), legacy/saving/legacy_h5_format.py
(`save_optimizer_weights_to_hdf5_group`); tf_keras 2.x, optimizers/legacy/optimizer_v2.py (`add_slot`).
"""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.errors import some
from paramtool.formats.hdf5.keras_optimizer import KINDS, OF_CLASS, TRAJECTORIES, said, settings
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import Group, OptimizerState, Slot, StateEntry
from paramtool.model.view import Shapes

FORM = "keras-h5"
AT = "optimizer_weights"
_WEIGHTS = "model_weights/"
_OLD_SLOTS = {
    "m": "momentum", "v": "velocity", "vhat": "velocity_hat", "rms": "velocity", "mg": "average_gradient",
    "accum_grad": "accumulated_grad", "accum_var": "accumulated_delta_var", "moving_mean_square": "velocity",
}  # fmt: skip
"""{slot of tf.keras before 2.11: its name in Keras 3} (tf_keras, optimizers/legacy)."""


def states(checkpoint: Checkpoint, shapes: Shapes) -> Iterator[OptimizerState]:
    """The optimizer of an `.h5` of Keras, whose variables have the names of the model's."""
    prefix = f"{AT}/"
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
        yield OptimizerState(AT, FORM, algorithm, (), (), refused=refused)
        return
    group = Group(tuple(held), settings(config))
    yield OptimizerState(AT, FORM, TRAJECTORIES.get(algorithm, algorithm), entries, (group,))


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
