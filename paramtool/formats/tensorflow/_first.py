"""Variables of checkpoints without objects, as TensorFlow 1 saves them: their names say what they are.

    lstm/kernel/Adam, lstm/kernel/Adam_1, beta1_power     an optimizer's
    lstm/kernel/ExponentialMovingAverage                  an average
    global_step                                           a counter

Source: tensorflow/python/training/{slot_creator,adam,moving_averages,training_util}.py.
"""

from __future__ import annotations

import re
from collections.abc import Container

SLOTS = re.compile(
    r"(?:[Aa]dam\w*|Nadam|LAMB\w*|[Mm]omentum|RMSProp|Adagrad\w*|Adadelta|Ftrl|SM3|adam_[mv]|Lars\w*|YF\w*)(?:_\d+)?"
)
"""The names of optimizers' slots, which follow the name of their variable; `adam_m` is BERT's."""
COUNTERS = ("global_step", "save_counter")
POWERS = re.compile(r"(.*/)?beta[12]_power(_\d+)?")


def role(name: str, names: Container[str]) -> str:
    """The role of a variable among others.

    >>> role("w/Adam_1", {"w", "w/Adam_1"}), role("w/ExponentialMovingAverage", {}), role("adam/w", {}), role("w", {})
    ('optimizer', 'ema', 'model', 'model')
    """
    of, _, last = name.rpartition("/")
    if POWERS.fullmatch(name) or (SLOTS.fullmatch(last) and of in names):
        return "optimizer"
    if last == "ExponentialMovingAverage":
        return "ema"
    return "other" if name in COUNTERS else "model"
