"""Trees of modules with any code that torch lets them have for saving and loading: recipes, and what they make.

A recipe says the whole of a model but its values, which follow from torch's seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, parametrize


@dataclass(frozen=True)
class Node:
    """A module of a tree."""

    parent: int
    """The number of the module that holds it."""
    kind: str
    hooks: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    other: int = 0
    """The number of the earlier module that it is, or whose parameter is its own, too."""


# --- hooks: of a module's class, or closures over the module -----------------------------------------------------


def cloned(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
    state.update({name: one.clone() for name, one in state.items() if isinstance(one, torch.Tensor)})


def halved(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
    for name, one in state.items():
        if name.startswith(prefix) and isinstance(one, torch.Tensor) and one.dtype == torch.float32:
            state[name] = one.to(torch.bfloat16)


def saved_otherwise(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
    for name in [name for name in state if name.startswith(prefix + "w")]:
        state[f"{prefix}saved_{name.removeprefix(prefix)}"] = state.pop(name)


def left_out(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
    state.pop(prefix + "bias", None)


def put_in(module: nn.Module, state: Any, prefix: str, metadata: Any) -> None:
    state[prefix + "put_in"] = torch.ones(2)


def before_saving(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    """Something that no value shows."""


def named_back(module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
    for name in [name for name in state if name.startswith(prefix + "saved_")]:
        state[prefix + name.removeprefix(prefix + "saved_")] = state.pop(name)


def scaled(module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
    for name, one in state.items():
        if name.startswith(prefix) and isinstance(one, torch.Tensor) and one.is_floating_point():
            state[name] = one * 2


def dropped(module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
    state.pop(prefix + "put_in", None)
    state.pop("more", None)


def filled_in(module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
    for name, one in (*module._parameters.items(), *module._buffers.items()):
        if one is not None and name not in module._non_persistent_buffers_set:
            state.setdefault(prefix + name, torch.full(one.shape, 1, dtype=one.dtype))


def in_place(module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
    for name, one in state.items():
        if name.startswith(prefix) and isinstance(one, torch.Tensor) and one.is_floating_point():
            with torch.no_grad():
                one.add_(1)


def forgiving(module: nn.Module, keys: Any) -> None:
    keys.missing_keys[:] = [name for name in keys.missing_keys if not name.endswith(("bias", "put_in"))]
    keys.unexpected_keys[:] = [name for name in keys.unexpected_keys if not name.endswith("more")]


def computed(module: nn.Module, keys: Any) -> None:
    with torch.no_grad():
        for one in module.parameters(recurse=False):
            if one.is_floating_point():
                one.mul_(4)


STATE_HOOKS = {one.__name__: one for one in (cloned, halved, saved_otherwise, left_out, put_in)}
LOAD_HOOKS = {one.__name__: one for one in (named_back, scaled, dropped, filled_in, in_place)}
AFTER_HOOKS = {one.__name__: one for one in (forgiving, computed)}
HOOKS = ("before_saving", *STATE_HOOKS, *LOAD_HOOKS, *AFTER_HOOKS)


def hooked(module: nn.Module, name: str, is_closure: bool) -> None:
    """Register a hook by its name."""
    if name == "before_saving":
        module.register_state_dict_pre_hook(before_saving)
    elif name in STATE_HOOKS:
        module._register_state_dict_hook(STATE_HOOKS[name])
    elif name in LOAD_HOOKS:
        hook: Any = LOAD_HOOKS[name]
        if is_closure and name == "filled_in":
            module._register_load_state_dict_pre_hook(partial(lambda own, *args: hook(own[0], *args), [module]))
        elif is_closure:
            module._register_load_state_dict_pre_hook(lambda *args: hook(module, *args))
        else:
            module.register_load_state_dict_pre_hook(hook)
    else:
        after: Any = AFTER_HOOKS[name]
        module.register_load_state_dict_post_hook((lambda _, keys: after(module, keys)) if is_closure else after)


# --- modules --------------------------------------------------------------------------------------------------------


class Part(nn.Module):
    """Parameters, buffers of every kind, and parts."""

    def __init__(self, traits: tuple[str, ...]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 2))
        if "frozen" in traits:
            self.w.requires_grad_(False)
        if "two names" in traits:
            self.bias = self.w
        if "types" in traits:
            self.register_buffer("count", torch.randint(0, 99, ()))
            self.register_buffer("mask", torch.rand(3) > 0.5)
            self.register_buffer("low", torch.randn(2).to(torch.float16))
            self.register_buffer("wave", torch.randn(2, dtype=torch.complex64))
            self.register_buffer("codes", torch.randint(0, 255, (5,), dtype=torch.uint8))
            self.register_buffer("empty", torch.zeros(0, 3))
            self.number = nn.Parameter(torch.randn(()))
        if "not saved" in traits:
            self.register_buffer("positions", torch.randn(4), persistent=False)
        if "window" in traits:
            self.register_buffer("table", torch.randn(4, 3))
            self.register_buffer("row", self.table[1])
        if "turned" in traits:
            self.turned = nn.Parameter(torch.randn(2, 3).t())
        if "attribute" in traits:
            self.kept = torch.randn(2)
        if {"number", "object", "tensor"} & {*traits}:
            self.state: Any = {
                "number": 3 + torch.initial_seed(),
                "object": {"scale": 1.5 + torch.initial_seed(), "amax": torch.randn(2), "steps": [1, (2, "a"), None]},
                "tensor": torch.randn(3),
            }[next(one for one in traits if one in ("number", "object", "tensor"))]


class Versioned(Part):
    """Rows in another order since version 2, and another name."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            if prefix + "w" in state:
                state[prefix + "w"] = state[prefix + "w"].flip(0)
            if prefix + "old_bias" in state:
                state[prefix + "bias"] = state.pop(prefix + "old_bias")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


class Keeping(Part):
    """A tensor that is no parameter, taken as it comes."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "kept_too"] = self.w.detach()[0] + 1

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.kept_too = state.pop(prefix + "kept_too", None)
        super()._load_from_state_dict(state, prefix, *rest)


class Extra:
    """`get_extra_state` and its setter."""

    state: Any

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


class ExtraPart(Extra, Part): ...


class ExtraVersioned(Extra, Versioned): ...


class Doubled(nn.Module):
    """A parametrisation with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.rand(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def _parametrised() -> nn.Module:
    return parametrize.register_parametrization(nn.Linear(2, 3), "weight", Doubled())


LEAVES: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(2, 3),
    "without bias": lambda: nn.Linear(2, 3, bias=False),
    "BatchNorm": lambda: nn.BatchNorm1d(3),
    "LSTM": lambda: nn.LSTM(2, 2),
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(2, 3)),
    "old weight_norm": lambda: nn.utils.weight_norm(nn.Linear(2, 3)),
    "parametrised": _parametrised,
    "attention": lambda: nn.MultiheadAttention(4, 2),
}
PARTS = {"part": Part, "versioned": Versioned, "keeping": Keeping}
TRAITS = ("frozen", "two names", "types", "not saved", "window", "turned", "attribute")
EXTRA = {"part": ExtraPart, "versioned": ExtraVersioned}


def build(tree: tuple[Node, ...], closures: bool = False) -> nn.Module:
    """The model of a recipe."""
    made: list[nn.Module] = []
    for number, node in enumerate(tree):
        if node.kind == "same":
            module = made[node.other]
        elif node.kind in LEAVES:
            module = LEAVES[node.kind]()
        else:
            kind = (EXTRA if {"number", "object", "tensor"} & {*node.traits} else PARTS)[node.kind]
            module = kind(node.traits)
        made.append(module)
        if number:
            made[node.parent].add_module(f"m{number}", module)
        if "tied" in node.traits and (theirs := getattr(made[node.other], "weight", None)) is not None:
            module.head = theirs
        for hook in node.hooks:
            hooked(module, hook, closures)
    return made[0]


@st.composite
def trees(draw: st.DrawFn, most: int = 6) -> tuple[Node, ...]:
    """Recipes of up to so many modules."""
    found: list[Node] = []
    for number in range(draw(st.integers(1, most))):
        parts = [k for k, one in enumerate(found) if one.kind in PARTS]
        leaves = [k for k, one in enumerate(found) if one.kind in LEAVES]
        linear = [k for k, one in enumerate(found) if one.kind in ("Linear", "without bias", "BatchNorm")]
        kinds = [*PARTS, *(LEAVES if number else ()), *(["same"] if leaves else ())]
        kind = draw(st.sampled_from(kinds))
        hooks = draw(st.lists(st.sampled_from(HOOKS), max_size=2, unique=True)) if draw(st.booleans()) else []
        traits = draw(st.lists(st.sampled_from(TRAITS), max_size=3, unique=True)) if kind in PARTS else []
        if kind in EXTRA and draw(st.booleans()):
            traits.append(draw(st.sampled_from(["number", "object", "tensor"])))
        other = 0
        if kind == "same":
            other, hooks = draw(st.sampled_from(leaves)), []
        elif kind in PARTS and linear and draw(st.booleans()):
            other = draw(st.sampled_from(linear))
            traits.append("tied")
        parent = draw(st.sampled_from(parts)) if number else 0
        found.append(Node(parent, kind, tuple(hooks), tuple(traits), other))
    return tuple(found)
