"""The optimizers of a checkpoint, whatever library wrote them."""

from __future__ import annotations

from paramtool.formats.hdf5 import keras_named_optimizer, keras_optimizer
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import OptimizerState
from paramtool.passes.optimizer import gluon, optax, read


def optimizers(checkpoint: Checkpoint) -> tuple[OptimizerState, ...]:
    """Every optimizer of a checkpoint; Defects where one contradicts itself.

    The forms of torch are looked for first; a file has those of one library.
    """
    found = read.optimizers(checkpoint)
    if found:
        return found
    shapes = read.shapes_of(checkpoint)
    kinds = (optax.states, keras_optimizer.states, keras_named_optimizer.states, gluon.states)
    return tuple(state for states in kinds for state in states(checkpoint, shapes))
