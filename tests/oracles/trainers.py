"""transformers' Trainer and accelerate, as tests of whole trainings use them."""

from __future__ import annotations

from typing import Any

from accelerate.state import AcceleratorState, GradientState
from transformers import Trainer


class Recording(Trainer):
    """A Trainer that keeps every loss as it is; its own log rounds them."""

    losses: list[float]

    def compute_loss(self, *args: Any, **more: Any) -> Any:
        """The loss, written down."""
        found = super().compute_loss(*args, **more)
        self.losses.append(float((found[0] if isinstance(found, tuple) else found).detach()))
        return found


def reset_accelerate() -> None:
    """Clear the state that accelerate keeps for the whole process."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
