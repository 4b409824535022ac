"""What each value is that an optimizer keeps for a parameter, by its name, and which shape it has.

The names of torch's own optimizers, and their settings, are those of torch 2.13 (torch/optim/*.py, each made and
stepped by tests/torch/test_optimizer_slots.py).  transformers' Adafactor is that of transformers 5.23
(optimization.py).  bitsandbytes is that of 0.50, GaLore that of galore-torch 1.0, and Shampoo, SOAP, Kron, LARS, LAMB,
Lion, AdamP and StableAdamW those of pytorch_optimizer 4.1.  Not checked against a release: the names that Keras, optax
and Gluon give.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import Literal, NamedTuple

from paramtool.lazy_dataclass import frozen
from paramtool.model.objects import Leaf, Node
from paramtool.model.optimizer import Slot, SlotKind, StateEntry
from paramtool.model.view import Shape, Shapes, View

KINDS: Mapping[str, SlotKind] = {
    "step": "scalar", "mu_product": "scalar", "eta": "scalar", "mu": "scalar", "RMS": "scalar",
    "exp_avg": "first", "momentum_buffer": "first", "grad_avg": "first", "prev": "first",
    "exp_avg_sq": "second", "max_exp_avg_sq": "second", "square_avg": "second", "acc_delta": "second",
    "sum": "second", "variance": "second", "exp_inf": "magnitude", "step_size": "magnitude", "ax": "weight",
    "row_var": "factored", "col_var": "factored", "exp_avg_sq_row": "factored", "exp_avg_sq_col": "factored",
    "weight_norm": "derived", "adam_norm": "derived", "trust_ratio": "derived",
    **dict.fromkeys(("state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2", "gnorm_vec", "unorm_vec",
                     "max1", "max2", "new_max1", "new_max2"), "blockwise"),
}  # fmt: skip
"""{slot: kind}.  `eta` and `mu` are ASGD's; optimizers of other libraries have tables of their own."""
_LBFGS = frozenset({"d", "t", "al", "ro", "H_diag", "old_dirs", "old_stps", "prev_flat_grad", "prev_loss",
                    "func_evals", "n_iter"})  # fmt: skip
"""One set of values for all parameters, kept under the first one; the vectors go over all of them in order."""
WRAPPED = "__bnb_optimizer_quant_state__"
"""Where bitsandbytes 0.50 keeps what is quantised, below each entry (optim/optimizer.py)."""
FLAT = ("prev_flat_grad", "d")
"""Those of L-BFGS that are one vector over all parameters."""
OF_ONE_SHAPE = frozenset({"weight", "first", "second", "magnitude"})
"""Kinds of slots that have an element for each of the parameter's."""
BLOCK = 256
"""How many elements bitsandbytes quantises together.  Not checked against a release."""


class _Algorithm(NamedTuple):
    """How an optimizer is recognised, and what becomes of its state."""

    name: str
    settings: frozenset[str] = frozenset()
    """Settings of a group that it has, all of them."""
    slots: frozenset[str] = frozenset()
    """Slots of which it has at least one; without any, state is not looked at."""
    without: frozenset[str] = frozenset()
    """Settings that it does not have."""


def _row(name: str, *words: str) -> _Algorithm:
    return _Algorithm(name, *(frozenset(one.split()) for one in words))


_ALGORITHMS = (
    _row("GaLore", "update_proj_gap"),
    _row("Kron", "pre_conditioner_update_probability"),
    _row("SOAP", "precondition_frequency"),
    _row("SOAP", "", "GG Q"),
    _row("Shampoo", "", "preconditioner inv_preconditioner precond_0 inv_precond_0 factor_matrices "
         "pre_cond_0 inv_pre_cond_0 pre_conditioner"),
    _row("K-FAC", "", "m_aa m_gg A_inv G_inv"),
    _row("bitsandbytes", "", f"state1 absmax1 {WRAPPED}.state1"),
    _row("LBFGS", "history_size tolerance_grad"),
    _row("Muon", "ns_steps"),
    _row("LARS", "trust_coeff"),
    _row("LARS", "trust_coefficient"),
    _row("LAMB", "betas always_adapt"),
    _row("LAMB", "betas trust_clip"),
    _row("LAMB", "betas grad_averaging"),
    _row("Adafactor", "beta2_decay"),
    _row("Adafactor", "clip_threshold"),
    _row("AdamP", "betas wd_ratio"),
    _row("StableAdamW", "betas kahan_sum"),
    _row("NAdam", "betas momentum_decay"),
    _row("AdamW", "betas amsgrad"),
    _row("Adamax", "betas", "exp_inf"),
    _row("RAdam", "betas decoupled_weight_decay"),
    _row("Adam or AdamW", "betas bias_correction", "exp_avg_sq"),
    _row("SparseAdam", "betas eps", "exp_avg_sq", "weight_decay"),
    _row("Lion", "betas weight_decay", "exp_avg", "eps"),
    _row("Adadelta", "rho"),
    _row("Rprop", "etas step_sizes"),
    _row("ASGD", "lambd alpha"),
    _row("RMSprop", "alpha centered"),
    _row("Adagrad", "lr_decay initial_accumulator_value"),
    _row("SGD", "momentum dampening"),
)  # fmt: skip
"""The first that fits."""
_REFUSED = {
    "GaLore": "GaLore keeps moments in a projection that is of the whole tensor",
    "K-FAC": "K-FAC keeps preconditioners that are of a whole layer",
    **{name: f"{name} keeps preconditioners that are of the whole tensor" for name in ("Kron", "SOAP", "Shampoo")},
}
"""{algorithm: why its state never follows parameters that change}"""
TRAJECTORIES = {
    "Muon": "Muon orthogonalises the update of a whole matrix",
    "Adafactor": "Adafactor scales the update by the norm of a whole tensor",
    "AdamP": "AdamP projects the update of a whole tensor",
    "StableAdamW": "StableAdamW scales the update by a mean of the whole tensor",
    **{name: f"{name} scales the update by the norms of a whole tensor" for name in ("LARS", "LAMB")},
}
"""{algorithm: what it calculates from a whole tensor, which joined or split parameters change}"""
_MOST_SLOTS = {"SparseAdam": {"step", "exp_avg", "exp_avg_sq"}, "Lion": {"exp_avg"}}
"""Rows that fit no optimizer with more slots than these."""


def algorithm_of(slots: Collection[str], settings: Mapping[str, Node]) -> tuple[str, str]:
    """An optimizer by its slots and the settings of a group, and why its state cannot follow parameters that change.

    The name is empty where it is not sure, and the reason where the state can follow.

    >>> algorithm_of(["momentum_buffer"], {"momentum": Leaf(0.9), "dampening": Leaf(0)}), algorithm_of(["kron"], {})
    (('SGD', ''), ('', ''))
    >>> adam = {"betas": Leaf(None), "amsgrad": Leaf(False)}
    >>> algorithm_of([], adam)[0], algorithm_of([], adam | {"decoupled_weight_decay": Leaf(True)})[0]
    ('Adam or AdamW', 'AdamW')
    """
    there, has = frozenset(settings), frozenset(slots)
    for row in _ALGORITHMS:
        fits = row.settings <= there and not row.without & there and (not row.slots or row.slots & has)
        if fits and has <= _MOST_SLOTS.get(row.name, has):
            decoupled = settings.get("decoupled_weight_decay")
            if row.name != "AdamW":
                return row.name, _REFUSED.get(row.name, "")
            # since torch 2.7 they have the same settings, and one says which it is
            return ("AdamW" if decoupled.value else "Adam") if isinstance(decoupled, Leaf) else "Adam or AdamW", ""
    return "", ""


def kinds_of(slots: Mapping[str, View | None], algorithm: str) -> dict[str, SlotKind]:
    """The kind of each slot of an entry, by its name and its tensor; None is a plain value.

    >>> kinds_of({"exp_avg": None, "kron": None}, "")
    {'exp_avg': 'first', 'kron': 'unknown'}

    bitsandbytes keeps small tensors in float32: then two slots are Adam's moments, and it is not known what one is.
    """
    if any(key.startswith(f"{WRAPPED}.") for key in slots):
        inner = {last_part(key): value for key, value in slots.items()}
        kinds = kinds_of(inner, algorithm)
        return {key: kinds[last_part(key)] for key in slots}
    if algorithm == "LBFGS":
        return {key: "global" if key in _LBFGS else KINDS.get(key, "unknown") for key in slots}
    found = {key: KINDS.get(key, "unknown") for key in slots}
    for key, kind in (("state1", "first"), ("state2", "second")):
        view = slots.get(key)
        if view is not None and view.dtype.name != "uint8":
            found[key] = kind if "state2" in slots else "unknown"  # type: ignore[assignment]
    return found


def last_part(key: str) -> str:
    """A slot without what it is below.

    >>> last_part("__bnb_optimizer_quant_state__.state1"), last_part("exp_avg")
    ('state1', 'exp_avg')
    """
    return key.rpartition(".")[2]


_NOT_OF_GRADIENTS = ("step_size", "acc_delta")
"""Slots that do not grow with the gradients: Rprop's step sizes, and Adadelta's squares of updates."""


def power_of(key: str, kind: SlotKind) -> int:
    """The power of the gradient with which a slot grows.

    >>> power_of("exp_avg", "first"), power_of("exp_avg_sq", "second"), power_of("step_size", "magnitude")
    (1, 2, 0)
    """
    if last_part(key) in _NOT_OF_GRADIENTS:
        return 0
    return {"first": 1, "magnitude": 1, "second": 2}.get(kind, 0)


_How = Literal["whole", "rows", "columns", "blocks"]
_Rule = tuple[_How, tuple[int, ...]]
"""How the shape of a slot follows from its parameter's, and that shape."""


@frozen
class ExpectedShape:
    """What the slots of an entry say of the shape of its parameter: all of it must hold."""

    rules: tuple[_Rule, ...] = ()
    """Each with the shape of a slot, sorted; none for an entry that shows nothing."""

    def allows(self, shape: Shape) -> bool:
        """Whether a parameter of this shape can have such an entry.

        >>> ExpectedShape((("rows", (3, 1)),)).allows((3, 2)), ExpectedShape((("whole", (6,)),)).allows((3, 2))
        (True, False)
        """
        *outer, columns = shape or (1,)
        before = outer[:-1]
        possible = {
            "whole": [shape], "rows": [(*outer, 1), (*outer,)] if outer else [],
            "columns": [(*before, 1, columns), (*before, columns)] if outer else [],
        }  # fmt: skip
        blocks = -(-prod(shape) // BLOCK)
        return all(found in possible[how] if how in possible else prod(found) == blocks for how, found in self.rules)


def expected_shape(entry: StateEntry, shapes: Shapes, master: str | None = None) -> ExpectedShape:
    """What an entry says of its parameter's shape; `shapes` are those of the tensors in the checkpoint.

    `master` is the tensor that is the float32 copy of the parameter.
    """
    rules: set[_Rule] = {("whole", shapes[master])} if master is not None and master in shapes else set()
    rules |= {(how, shapes[slot.tensor]) for slot in entry.slots if slot.tensor in shapes and (how := _how(slot))}
    return ExpectedShape(tuple(sorted(rules)))


_FACTORED: Mapping[str, _How] = {
    "row_var": "rows", "col_var": "columns", "exp_avg_sq_row": "rows", "exp_avg_sq_col": "columns",
}  # fmt: skip
"""The slots whose shape is the parameter's without its last axis, or without the one before; optax factors the two
largest axes, and has placeholders for parameters that it does not factor."""


def _how(slot: Slot) -> _How | None:
    """How the shape of a slot follows from its parameter's; None where it says nothing."""
    key = last_part(slot.key)
    if slot.kind in OF_ONE_SHAPE or slot.is_whole or key in ("state1", "state2"):
        return "whole"
    if slot.kind == "factored":
        return _FACTORED.get(key)
    return "blocks" if key in ("absmax1", "absmax2") else None
