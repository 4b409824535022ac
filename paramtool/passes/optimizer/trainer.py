"""The two groups that the Trainer of transformers makes: parameters with weight decay, and those without.

The rule is that of transformers 5.23 (trainer.py, `create_optimizer` and `get_decay_parameter_names`;
trainer_pt_utils.py, `get_parameter_names`): both groups are in the order of `named_parameters()`, and leave out what is
frozen.  Older releases decided otherwise for normalisations that are not torch's LayerNorm, and never for biases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from paramtool.model.optimizer import Move, Order, Parameter

_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def decays(name: str, is_in_layer_norm: bool) -> bool:
    """Whether the Trainer applies weight decay to a parameter; those of torch's LayerNorm are known by the class.

    >>> decays("h.0.attn.c_attn.weight", False), decays("h.0.ln_1.weight", True), decays("h.0.q_norm.weight", False)
    (True, False, False)
    """
    return not is_in_layer_norm and not _WITHOUT_DECAY.search(name.lower())


def may_decay(name: str) -> bool | None:
    """The same where the class is not known: False, or None.

    >>> may_decay("h.0.attn.c_attn.bias"), may_decay("h.0.ln_1.weight")
    (False, None)
    """
    return None if decays(name, False) else False


def allowed(order: Order, counts: Sequence[int]) -> tuple[Callable[[Parameter], bool], ...]:
    """Which parameters each of the two groups may have; none where there are not two groups.

    Where the numbers are those of the rule, the rule decides.  Where they are not, some parameters are frozen, or
    another release made the groups: it is only sure that biases are not in the first.
    """
    if len(counts) != 2:
        return ()
    said = [parameter.decays for parameter in order.parameters]
    if None not in said and (said.count(True), said.count(False)) == tuple(counts):
        return (lambda parameter: parameter.decays is True), (lambda parameter: parameter.decays is False)
    return (lambda parameter: "bias" not in parameter.name.lower()), (lambda parameter: True)


def misplaced(
    old: Mapping[str, bool | None], new: Mapping[str, bool | None], moves: Iterable[Move], renamed: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """(old parameter, new parameter) that the Trainer has in different groups.

    `old` and `new` say which decay, or None where that is not known.

    >>> list(misplaced({"a.weight": True}, {"norm.weight": False}, (), {"a.weight": "norm.weight"}))
    [('a.weight', 'norm.weight')]
    """
    pairs = [*renamed.items(), *((name, made) for move in moves for made in move.new for name in move.old)]
    for name, made in pairs:
        said = old.get(name), new.get(made)
        if None not in said and said[0] is not said[1]:
            yield name, made
