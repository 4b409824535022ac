"""Another implementation of attention and of experts, put in the place of a model's own.

The model runs as it is, except that what goes into each output projection, and what comes out of each block of experts,
is computed here from q, k and v, or from gate, up and down, which the caller gives.  Positions (rotary tables, biases)
are those that the model hands to its own attention: they are not in question.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.oracles.dialects.equations import Sizes, gated, taken
from tests.oracles.dialects.models import Attention, Experts, Family, Gated, results

Parts = Mapping[str, torch.Tensor]
"""{q, k, v: [out, in]; q.bias...: [out]}, or {gate, up: [E, F, N]; down: [E, N, F]; gate.bias...: [E, F]}"""
State = Mapping[str, torch.Tensor]


def sizes(attention: Attention) -> Sizes:
    return Sizes(attention.heads, attention.kv_heads, attention.head_dim)


def projections(state: State, attention: Attention, module: str, layout: str = "") -> dict[str, torch.Tensor]:
    """q, k and v of a module, of a fused weight as if it had a layout: by default its own."""
    found: dict[str, torch.Tensor] = {}
    turned = attention.transposed
    if not attention.fused:
        for part, name in zip("qkv", attention.apart, strict=True):
            for kind in ("weight", "bias"):
                if (value := state.get(f"{module}.{name}.{kind}")) is not None:
                    found[part if kind == "weight" else f"{part}.bias"] = value
        return found
    at = f"{module}.{attention.fused}"
    of = sizes(attention)
    for part, value in taken(state[f"{at}.weight"], layout or attention.layout, of, int(turned)).items():
        found[part] = value.T if turned else value
    if f"{at}.bias" in state:
        biases = taken(state[f"{at}.bias"], layout or attention.layout, of)
        found |= {f"{part}.bias": value for part, value in biases.items()}
    return found


def _linear(x: torch.Tensor, parts: Parts, part: str, heads: int) -> torch.Tensor:
    """[batch, heads, length, head_dim]"""
    y = torch.einsum("bln,on->blo", x, parts[part])
    if f"{part}.bias" in parts:
        y = y + parts[f"{part}.bias"]
    return y.unflatten(-1, (heads, -1)).transpose(1, 2)


def _turned(x: torch.Tensor, position: str, given: Mapping[str, Any], module: nn.Module) -> torch.Tensor:
    """Rotary positions, on as many values of a head as the tables have."""
    if position == "halves":
        cos, sin = given["position_embeddings"]
        cos, sin = cos[:, None], sin[:, None]
        count = cos.shape[-1]
        one, two = x[..., : count // 2], x[..., count // 2 : count]
        cos, sin = cos[..., : count // 2], sin[..., : count // 2]
        return torch.cat([one * cos - two * sin, two * cos + one * sin, x[..., count:]], -1)
    if position in ("pairs", "codegen"):
        if position == "pairs":  # a table for halves has each angle twice
            cos, sin = (table[:, None, :, : table.shape[-1] // 2] for table in given["position_embeddings"])
        elif "position_embeddings" in given:  # transformers 5.24 gives sines and cosines, each angle once
            sin, cos = (table[:, None] for table in given["position_embeddings"])
        else:
            angles: Any = module.embed_positions
            sin, cos = angles[given["position_ids"]][:, None].chunk(2, -1)
        count = 2 * cos.shape[-1]
        one, two = x[..., :count:2], x[..., 1:count:2]
        turned = torch.stack([one * cos - two * sin, two * cos + one * sin], -1).flatten(-2)
        return torch.cat([turned, x[..., count:]], -1)
    return x


def _bias(given: Mapping[str, Any], module: nn.Module, heads: int, length: int) -> torch.Tensor:
    """What is added to the scores, [batch or 1, heads, length or 1, length]."""
    found = given.get("alibi")
    if found is None:
        found = given.get("position_bias")
    if found is None:
        compute: Any = module.compute_bias
        found = compute(length, length)
    if found.dim() == 3:
        found = found.unflatten(0, (-1, heads))
    return found[..., -length:]  # type: ignore[no-any-return]


def context(
    x: torch.Tensor, parts: Parts, attention: Attention, given: Mapping[str, Any], module: nn.Module
) -> torch.Tensor:
    """What the heads make of x [batch, length, N]: [batch, length, heads x value_dim]."""
    heads, groups = attention.heads, attention.kv_heads
    q, k, v = (_linear(x, parts, part, count) for part, count in (("q", heads), ("k", groups), ("v", groups)))
    if (clip := attention.clip) is not None:
        q, k, v = (one.clamp(-clip, clip) for one in (q, k, v))
    q, k = (_turned(one, attention.position, given, module) for one in (q, k))
    k, v = (one.repeat_interleave(heads // groups, 1) for one in (k, v))
    scale = q.shape[-1] ** -0.5 if attention.scale is None else attention.scale
    scores = torch.einsum("bhld,bhmd->bhlm", q, k) * scale
    if attention.position in ("bias", "scaled bias"):
        bias = _bias(given, module, heads, x.shape[1])
        scores = scores + (bias * scale if attention.position == "scaled bias" else bias)
    if attention.causal:
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return torch.einsum("bhlm,bhmd->blhd", scores.softmax(-1), v).flatten(2)


def bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a module's forward by their names."""
    found = inspect.signature(module.forward).bind(*args, **kwargs)
    return {**found.arguments, **found.arguments.get("kwargs", {})}


def reached(model: nn.Module, module: str, path: str) -> nn.Module:
    """The module at a path from another; `..` goes up."""
    steps = module.split(".")
    for step in re.split(r"[/]", path):
        if step == "..":
            steps.pop()
        else:
            steps += step.split(".")
    return model.get_submodule(".".join(steps))


def attention_modules(model: nn.Module, attention: Attention) -> list[str]:
    """The names of the modules whose attention is replaced."""
    found = []
    for name, module in model.named_modules():
        inner = attention.fused or attention.apart[0]
        if re.search(attention.module, name) and hasattr(module, inner):
            found.append(name)
    assert found, attention.module
    return found


def with_attention(
    model: nn.Module, family: Family, given: State, parts_of: Callable[[str, Attention], Parts], how: Any = context
) -> torch.Tensor:
    """The model's results with the attention of `how`; `parts_of` gives q, k and v of a module."""
    count = 0
    with ExitStack() as stack:
        for attention in family.attention:
            for name in attention_modules(model, attention):
                module = model.get_submodule(name)
                seen: dict[str, Any] = {}

                def before(module: nn.Module, args: Any, kwargs: Any, seen: Any = seen) -> None:
                    seen["given"] = bound(module, args, kwargs)

                def instead(_: nn.Module, args: Any, name: str = name, own: Any = attention, seen: Any = seen) -> Any:
                    nonlocal count
                    count += 1
                    at = model.get_submodule(name)
                    found = how(seen["given"]["hidden_states"], parts_of(name, own), own, seen["given"], at)
                    return (found.reshape(args[0].shape), *args[1:])

                hooks = [
                    module.register_forward_pre_hook(before, with_kwargs=True),
                    reached(model, name, attention.output).register_forward_pre_hook(instead),
                ]
                for hook in hooks:
                    stack.callback(hook.remove)
        found = results(model, given)
    assert count, "no attention was replaced"
    return found


def with_kv(model: nn.Module, given: State, parts_of: Callable[[str], tuple[torch.Tensor, torch.Tensor]]) -> Any:
    """JetMoE's results where k and v [heads head_dim, N] of each attention are what `parts_of` gives of its module.

    Its queries are those of several experts, each with all heads, so k and v are repeated as a whole; the output
    projections of its experts are called `experts.reduce`.
    """
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if not hasattr(module, "kv_proj"):
                continue
            own: Any = module
            seen: dict[str, Any] = {}

            def before(module: nn.Module, args: Any, kwargs: Any, seen: Any = seen) -> None:
                seen.update(bound(module, args, kwargs))

            def instead(x: Any, routes: Any, own: Any = own, seen: Any = seen, name: str = name) -> Any:
                q = own.experts.map(seen["hidden_states"])[0].unflatten(-1, (-1, own.head_dim)).flatten(2, 3)
                k, v = parts_of(name)
                parts = {"q": torch.eye(1), "k": k, "v": v}
                k, v = (_linear(seen["hidden_states"], parts, part, own.num_key_value_heads) for part in "kv")
                q, k = (_turned(one, "halves", seen, own) for one in (q.transpose(1, 2), k))
                k, v = (one.repeat(1, own.top_k, 1, 1) for one in (k, v))
                scores = torch.einsum("bhld,bhmd->bhlm", q, k) * own.head_dim**-0.5
                later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
                made = torch.einsum("bhlm,bhmd->blhd", scores.masked_fill(later, -torch.inf).softmax(-1), v)
                return type(own.experts).reduce(own.experts, made.flatten(2).reshape(x.shape), routes)

            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            own.experts.reduce = instead
            stack.callback(delattr, own.experts, "reduce")
        return results(model, given)


# --- gated MLPs ------------------------------------------------------------------------------------------------------

ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def gate_and_up(state: State, own: Gated, module: str, layout: str = "gate-up") -> dict[str, torch.Tensor]:
    """gate and up [F, N], and their biases, of a module; of a fused weight as if it had a layout."""
    found: dict[str, torch.Tensor] = {}
    for kind, mark in (("weight", ""), ("bias", ".bias")):
        if own.fused and f"{module}.{own.fused}.{kind}" in state:
            both = gated(state[f"{module}.{own.fused}.{kind}"], layout, 0)
        elif f"{module}.{own.apart[0]}.{kind}" in state:
            one, two = (state[f"{module}.{name}.{kind}"] for name in own.apart)
            both = (two, one) if layout == "up-gate" else (one, two)
        else:
            continue
        found[f"gate{mark}"], found[f"up{mark}"] = both
    return found


def with_gated(model: nn.Module, family: Family, given: State, parts_of: Callable[[str, Gated], Parts]) -> torch.Tensor:
    """The model's results where each MLP's gate and up are what `parts_of` gives of a module."""
    own = family.gated
    assert own is not None
    names = [name for name, _ in model.named_modules() if re.search(own.module, name)]
    assert names
    with ExitStack() as stack:
        for name in names:
            seen: dict[str, torch.Tensor] = {}

            def before(_: nn.Module, args: Any, seen: Any = seen) -> None:
                seen["x"] = args[0]

            def instead(_: nn.Module, args: Any, name: str = name, seen: Any = seen) -> Any:
                parts = parts_of(name, own)
                gate, up = (
                    torch.einsum("bln,fn->blf", seen["x"], parts[part]) + parts.get(f"{part}.bias", torch.zeros(1))
                    for part in ("gate", "up")
                )
                return (ACTIVATIONS[own.activation](gate) * up,)

            stack.callback(model.get_submodule(name).register_forward_pre_hook(before).remove)
            stack.callback(model.get_submodule(f"{name}.{own.output}").register_forward_pre_hook(instead).remove)
        return results(model, given)


# --- experts ---------------------------------------------------------------------------------------------------------


FLAT = ("gate-up", "up-gate")
"""What can be mistaken where gate and up are apart: which is which."""


def experts_of(state: State, experts: Experts, module: str, count: int, layout: str = "") -> dict[str, torch.Tensor]:
    """gate and up [E, F, N] and down [E, N, F] of the tensors that transformers 5 has in memory."""
    layout = layout or experts.layout
    if experts.orientation == "flat":
        found = {
            part: state[f"{module}.mlp.{name}"].unflatten(0, (count, -1))
            for part, name in (("gate", "w1"), ("up", "v1"), ("down", "w2"))
        }
        assert layout in FLAT
        if layout == "up-gate":
            found["gate"], found["up"] = found["up"], found["gate"]
        return {**found, "down": found["down"].transpose(1, 2)}
    weights = [state[f"{module}.{name}"] for name in experts.stacks]
    if experts.orientation == "matmul":
        weights = [weight.transpose(1, 2) for weight in weights]
    gate, up = gated(weights[0], layout, 1)
    made = {"gate": gate, "up": up, "down": weights[1]}
    if (bias := state.get(f"{module}.gate_up_proj_bias")) is not None:
        made["gate.bias"], made["up.bias"] = gated(bias, layout, 1)
        made["down.bias"] = state[f"{module}.down_proj_bias"]
    return made


def one_expert(x: torch.Tensor, parts: Parts, expert: int, activation: str) -> torch.Tensor:
    """What an expert makes of rows [tokens, N]."""

    def linear(x: torch.Tensor, part: str) -> torch.Tensor:
        y = torch.einsum("tn,on->to", x, parts[part][expert])
        return y + parts[f"{part}.bias"][expert] if f"{part}.bias" in parts else y

    gate, up = linear(x, "gate"), linear(x, "up")
    if activation == "gpt-oss":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return linear((up + 1) * gate * torch.sigmoid(1.702 * gate), "down")
    return linear(functional.silu(gate) * up, "down")


def mixed(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, parts: Parts, activation: str) -> torch.Tensor:
    """The weighted sum of the chosen experts of each token."""
    x = x.reshape(-1, x.shape[-1])
    found = torch.zeros_like(x)
    for expert in range(parts["gate"].shape[0]):
        for place in range(chosen.shape[1]):
            tokens = (chosen[:, place] == expert).nonzero()[:, 0]
            if len(tokens):
                made = one_expert(x[tokens], parts, expert, activation)
                found[tokens] += made * weights[tokens, place, None]
    return found


def _block(module: nn.Module, args: tuple[Any, ...], parts: Parts, experts: Experts) -> torch.Tensor:
    """A whole block of experts, by what its forward gets."""
    x = args[0]
    if experts.activation == "llama4":  # each expert gets all tokens, weighed before
        count = parts["gate"].shape[0]
        rows = x.reshape(count, -1, x.shape[-1])
        return torch.cat([one_expert(rows[k], parts, k, "silu") for k in range(count)]).reshape(x.shape)
    if experts.activation == "jetmoe":  # with its router, and a bias at the end
        router: Any = module.router
        logits = torch.einsum("tn,en->te", x.reshape(-1, x.shape[-1]), router.layer.weight)
        values, chosen = logits.topk(router.top_k, 1)
        return mixed(x, chosen, values.softmax(1), parts, "silu").reshape(x.shape) + module.bias
    return mixed(x, args[1], args[2], parts, experts.activation).reshape(x.shape)


def with_experts(
    model: nn.Module, family: Family, given: State, parts_of: Callable[[str, Experts], Parts]
) -> torch.Tensor:
    """The model's results with the experts of this module; `parts_of` gives gate, up and down of a module."""
    experts = family.experts
    assert experts is not None
    names = [name for name, _ in model.named_modules() if re.search(experts.module, name)]
    assert names
    with ExitStack() as stack:
        for name in names:

            def instead(module: nn.Module, args: Any, output: Any, name: str = name) -> Any:
                return _block(module, args, parts_of(name, experts), experts)

            hook = model.get_submodule(name).register_forward_hook(instead)
            stack.callback(hook.remove)
        return results(model, given)


# --- attention of torch ----------------------------------------------------------------------------------------------


def torch_attention(
    x: torch.Tensor, parts: Parts, attention: Attention, given: Mapping[str, Any], module: nn.Module
) -> torch.Tensor:
    """The same by `torch.nn.MultiheadAttention` with in_proj_weight and in_proj_bias: {in_proj, in_proj.bias}."""
    width = x.shape[-1]
    made = nn.MultiheadAttention(width, attention.heads, batch_first=True).eval()
    with torch.no_grad():
        made.load_state_dict(
            {"in_proj_weight": parts["in_proj"], "in_proj_bias": parts["in_proj.bias"],
             "out_proj.weight": torch.eye(width), "out_proj.bias": torch.zeros(width)}
        )  # fmt: skip
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if attention.causal else None
        found, _ = made(x, x, x, attn_mask=later)
    return found  # type: ignore[no-any-return]
