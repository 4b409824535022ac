"""ELMo's weights in HDF5: which networks the names of TensorFlow's cells say are there.

    RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0, B, W_P_0      the forward stack; RNN_1 is the backward one

The forget bias is 1: AllenNLP, for which such files are made, adds it to what they hold.

Source: allennlp/modules/elmo_lstm.py (load_weights) of AllenNLP 2.10.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from paramtool.model.checkpoint import Module

KERNEL = re.compile(r"(?P<at>RNN_(?P<side>[01]))/RNN/MultiRNNCell/Cell\d+/LSTMCell/W_0")
SIDES = ("forward", "backward")


def modules(names: Iterable[str]) -> list[Module]:
    """The forward and the backward stack, as far as they are there."""
    found = {match["at"]: SIDES[int(match["side"])] for name in names if (match := KERNEL.fullmatch(name))}
    return [
        Module(at, "tf1.elmo", "lstm", options={"forget_bias": "1.0"}, source=f"the names of ELMo's {side} stack")
        for at, side in sorted(found.items())
    ]
