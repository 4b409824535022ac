"""The proofs: a model runs on parts that somebody converted, in another implementation, and on wrong ones.

Each gives a `Proof`: the error of the right conversion, in parts of the largest logit, and those of the wrong layouts
whose tensors have the same shape.  `make oracles` writes them into docs/proofs-dialects.md, and tests hold them to
BOUND and FAR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from paramtool.errors import LayoutError
from tests.oracles.dialects import converting
from tests.oracles.dialects.equations import GATED, KV, keys_and_values, other_layouts, pairs_of_halves
from tests.oracles.dialects.models import Attention, Experts, Family, Gated, results
from tests.oracles.dialects.reference import (
    FLAT,
    context,
    experts_of,
    gate_and_up,
    projections,
    sizes,
    torch_attention,
    with_attention,
    with_experts,
    with_gated,
    with_kv,
)
from tests.oracles.dialects.sources import Source, fused, in_proj, listed, parts_apart

BOUND, FAR = 1e-5, 0.05
"""Of the error of a right conversion, and of a wrong one."""


@dataclass(frozen=True)
class Proof:
    """What was run, and how far off it was."""

    family: str
    what: str
    """The conversion: unfuse qkv-per-head, ..."""
    judge: str
    """The implementation that ran it."""
    error: float
    wrong: Mapping[str, float] = field(default_factory=dict)
    """{layout of the same shape: the error of the model that takes it}"""
    refused: tuple[str, ...] = ()
    """Layouts of the same shape that paramtool refuses, although they are named."""

    def holds(self) -> bool:
        return self.error < BOUND and all(error > FAR for error in self.wrong.values())


class Case:
    """A model of a family, and its results."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.given = family.given()

    @cached_property
    def model(self) -> nn.Module:
        return self.family.build()

    @cached_property
    def state(self) -> dict[str, torch.Tensor]:
        return self.model.state_dict()

    @cached_property
    def logits(self) -> torch.Tensor:
        return results(self.model, self.given)

    def off(self, found: torch.Tensor) -> float:
        """The largest error, of the largest logit."""
        return float((found - self.logits).abs().max() / self.logits.abs().max())

    def attention(self, parts_of: Callable[[str, Attention], Any], how: Any = context) -> float:
        return self.off(with_attention(self.model, self.family, self.given, parts_of, how))


OURS = "our equations"


def unfused(case: Case, source: Source) -> Proof:
    """The fused attention of a family, taken apart; each other layout of its shape is a wrong one."""
    attention = case.family.attention[0]

    def error(layout: str) -> float:
        state = source.apart(layout)
        return case.attention(lambda module, own: parts_apart(state, module))

    right = attention.layout
    wrong, refused = tried((one for one in other_layouts(right, sizes(attention)) if source.knows(one)), error)
    return Proof(case.family.name, f"unfuse {named(right, attention)}", OURS, error(right), wrong, refused)


def named(layout: str, own: Attention) -> str:
    """What paramtool calls a layout of `equations`."""
    return converting.WORDS[f"transposed {layout}" if own.transposed else layout].layout


def tried(layouts: Iterable[str], error: Callable[[str], float]) -> tuple[dict[str, float], tuple[str, ...]]:
    """The errors of wrong layouts, and those that are refused."""
    wrong, refused = {}, []
    for layout in layouts:
        try:
            wrong[layout] = error(layout)
        except LayoutError:
            refused.append(layout)
    return wrong, tuple(refused)


def fused_for_torch(case: Case, source: Source) -> Proof:
    """q, k and v put together plainly: `torch.nn.MultiheadAttention` runs them."""
    wrong_of = [layout for layout in ("kqv", "qvk", "qkv-per-head") if source.knows(layout)]

    def error(layout: str) -> float:
        state = source.together(layout)
        return case.attention(lambda module, own: in_proj(state, module, layout), torch_attention)

    judge = f"torch.nn.MultiheadAttention {torch.__version__}"
    return Proof(case.family.name, "fuse qkv", judge, error("qkv"), {layout: error(layout) for layout in wrong_of})


def fused_for_groups(case: Case, source: Source, layout: str) -> Proof:
    """q, k and v put together, and read again by the equations of that layout, and by those of others."""
    state = source.together(layout)

    def error(read: str) -> float:
        return case.attention(lambda module, own: projections(state, replace(fused(own, layout), layout=read), module))

    wrong = {read: error(read) for read in other_layouts(layout, sizes(case.family.attention[0]))}
    return Proof(case.family.name, f"fuse {layout}", OURS, error(layout), wrong)


def gates(case: Case, state_of: Callable[[str], Mapping[str, torch.Tensor]] | None = None) -> Proof:
    """Gate and up of an MLP; the other orders are wrong.  `state_of` gives a state with both apart, by a layout."""
    own = case.family.gated
    assert own is not None
    plain = Gated(own.module, own.output, "", ("gate_proj", "up_proj"), own.activation)

    def error(layout: str) -> float:
        def parts(module: str, own: Gated) -> Any:
            if state_of is None:
                return gate_and_up(case.state, own, module, layout)
            return gate_and_up(state_of(layout), plain, module)

        return case.off(with_gated(case.model, case.family, case.given, parts))

    others = [
        layout
        for layout in (GATED[1:] if own.fused else ("up-gate",))
        if state_of is None or layout in converting.WORDS
    ]
    what = "unfuse gate-up" if own.fused else "gate and up apart"
    return Proof(case.family.name, what, OURS, error("gate-up"), {layout: error(layout) for layout in others})


def experts(case: Case, state_of: Callable[[str], Mapping[str, torch.Tensor]] | None = None) -> Proof:
    """The experts of a family; the other orders of gate and up are wrong.

    `state_of` gives a state with a list of experts, by an order and an orientation.
    """
    own = case.family.experts
    assert own is not None
    config: Any = case.model.config
    count = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or EXPERTS

    def error(layout: str) -> float:
        def parts(module: str, own: Experts) -> Any:
            if state_of is not None:
                return listed(state_of(f"{layout} {own.orientation}"), module + own.inside)
            return experts_of(case.state, own, module, count, layout)

        return case.off(with_experts(case.model, case.family, case.given, parts))

    others = [layout for layout in (FLAT if own.orientation == "flat" else GATED) if layout != own.layout]
    if state_of is not None:
        others = [layout for layout in others if f"{layout} {own.orientation}" in converting.WORDS]
    wrong = {layout: error(layout) for layout in others}
    return Proof(case.family.name, f"experts, {own.layout}, {own.orientation}", OURS, error(own.layout), wrong)


EXPERTS = 5
"""Of every family that does not say so in its config's usual place."""


def kv(case: Case, state_of: Callable[[str], Mapping[str, torch.Tensor]] | None = None) -> Proof:
    """JetMoE's keys and values, which are one weight; `state_of` gives a state with both apart, by a layout."""

    def error(layout: str) -> float:
        def parts(module: str) -> tuple[torch.Tensor, torch.Tensor]:
            if state_of is not None:
                state = state_of(layout)
                return state[f"{module}.k_proj.weight"], state[f"{module}.v_proj.weight"]
            return keys_and_values(
                case.state[f"{module}.kv_proj.weight"], layout, case.model.config.num_key_value_heads
            )

        return case.off(with_kv(case.model, case.given, parts))

    others = [layout for layout in KV[1:] if state_of is None or layout in converting.WORDS]
    return Proof(case.family.name, "unfuse kv", OURS, error("kv"), {layout: error(layout) for layout in others})


def rotary_pairs(case: Case, turned: Callable[[torch.Tensor, int], torch.Tensor] = pairs_of_halves) -> Proof:
    """A Llama with the values that turn together side by side, run by an attention that turns such pairs."""

    def in_pairs(x: Any, parts: Any, own: Attention, given: Any, module: Any) -> torch.Tensor:
        return context(x, parts, replace(own, position="pairs"), given, module)

    def parts(module: str, own: Attention) -> dict[str, torch.Tensor]:
        found = dict(projections(case.state, own, module))
        for part, heads in (("q", own.heads), ("k", own.kv_heads)):
            for name in (part, f"{part}.bias"):
                if name in found:
                    found[name] = turned(found[name], heads)
        return found

    wrong = {
        "halves read as pairs": case.attention(lambda module, own: projections(case.state, own, module), in_pairs),
        "pairs read as halves": case.attention(parts),
    }
    return Proof(case.family.name, "rotary pairs", OURS, case.attention(parts, in_pairs), wrong)
