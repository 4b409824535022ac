"""Proofs of the other systems' dialects: what they would have of a model runs, there or by our equations.

`systems` says which model stands for which dialect, what our equations (`merges`) make of it, and who runs that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.oracles.dialects import merges, merges_experts
from tests.oracles.dialects.equations import GATED, gated, other_layouts, taken
from tests.oracles.dialects.models import BY_NAME, Attention, Family, Gated
from tests.oracles.dialects.proofs import OURS, Case, Proof
from tests.oracles.dialects.reference import context, sizes, with_attention, with_experts, with_gated

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class System:
    """A dialect of another system, and a model in it."""

    dialect: str
    family: Family
    expected: Callable[..., dict[str, torch.Tensor]]
    """Our equations, from a file of transformers 4 or 5."""
    run: Callable[[Case, Tensors], Iterator[tuple[str, str, float]]]
    """What is made of the dialect's tensors: (who, what, error); what is wrong begins with "not"."""
    form: str = "transformers-4"
    """The form of the file that our equations take."""
    partly: bool = False
    """The equations say only some of the tensors."""


def _case_of(family: Family, module: str) -> int:
    return int(next(part for part in module.split(".") if part.isdigit()))


def _attention(case: Case, parts_of: Callable[[int, Attention], Any], how: Any = context) -> float:
    return case.off(
        with_attention(case.model, case.family, case.given, lambda m, own: parts_of(_case_of(case.family, m), own), how)
    )


def _gated_error(case: Case, parts_of: Callable[[int], Any]) -> float:
    return case.off(
        with_gated(case.model, case.family, case.given, lambda module, own: parts_of(_case_of(case.family, module)))
    )


def _fused(found: Tensors, name: str, layout: str, own: Attention) -> dict[str, torch.Tensor]:
    """q, k and v of a fused weight and its bias."""
    made = dict(taken(found[f"{name}.weight"], layout, sizes(own)))
    if (bias := found.get(f"{name}.bias")) is not None:
        made |= {f"{part}.bias": value for part, value in taken(bias, layout, sizes(own)).items()}
    return made


def _qkv_and_gates(qkv: str, gate_up: str, layout: str) -> Any:
    """Attention and MLP of a Llama whose fused tensors have these names."""

    def run(case: Case, found: Tensors) -> Iterator[tuple[str, str, float]]:
        for read in (layout, *other_layouts(layout, sizes(case.family.attention[0]))):
            error = _attention(case, lambda k, own, read=read: _fused(found, qkv.format(k), read, own))
            yield OURS, read if read == layout else f"not {read}", error
        for read in ("gate-up", "up-gate", "gate-up-interleaved"):

            def parts(k: int, read: str = read) -> dict[str, torch.Tensor]:
                both: dict[str, torch.Tensor] = {}
                for kind, mark in (("weight", ""), ("bias", ".bias")):
                    if (value := found.get(f"{gate_up.format(k)}.{kind}")) is not None:
                        both[f"gate{mark}"], both[f"up{mark}"] = gated(value, read, 0)
                return both

            yield OURS, read if read == "gate-up" else f"not {read}", _gated_error(case, parts)

    return run


def _qkv_and_experts(
    qkv: str, experts_of: Callable[[Tensors, int, str], Tensors], layout: str, stacks: str = "gate-up"
) -> Any:
    """Attention and experts; attention is run where its equations are `context`'s, without norms of q and k.

    `stacks` is the layout of the experts.
    """

    def run(case: Case, found: Tensors) -> Iterator[tuple[str, str, float]]:
        normed = any("q_norm" in name or "q_layernorm" in name for name in found)
        for read in () if normed else (layout, *other_layouts(layout, sizes(case.family.attention[0]))):
            error = _attention(case, lambda k, own, read=read: _fused(found, qkv.format(k), read, own))
            yield OURS, read if read == layout else f"not {read}", error
        for read in GATED:

            def parts(module: str, own: Any, read: str = read) -> Tensors:
                return experts_of(found, _case_of(case.family, module), read)

            error = case.off(with_experts(case.model, case.family, case.given, parts))
            yield OURS, stacks if read == "gate-up" else f"not {read}", error

    return run


def _meta(case: Case, found: Tensors) -> Iterator[tuple[str, str, float]]:
    def parts(k: int, own: Attention) -> dict[str, torch.Tensor]:
        return {part: found[f"layers.{k}.attention.w{part}.weight"] for part in "qkv"}

    def in_pairs(x: Any, parts: Any, own: Attention, given: Any, module: Any) -> torch.Tensor:
        return context(x, parts, replace(own, position="pairs"), given, module)

    yield OURS, "rotary pairs", _attention(case, parts, in_pairs)
    yield OURS, "not rotary halves", _attention(case, parts)


def _encoder(case: Case, found: Tensors) -> Iterator[tuple[str, str, float]]:
    """BERT's layers by `torch.nn.TransformerEncoder`, in the place of its own."""
    config: Any = case.model.config
    own: Any = case.model.get_submodule("bert.encoder")

    def error(state: Tensors) -> float:
        layer = nn.TransformerEncoderLayer(
            config.hidden_size, config.num_attention_heads, config.intermediate_size, activation="gelu",
            batch_first=True, layer_norm_eps=config.layer_norm_eps,
        )  # fmt: skip
        made = nn.TransformerEncoder(layer, config.num_hidden_layers, enable_nested_tensor=False).eval()
        made.load_state_dict({name: state[name] for name in made.state_dict()})

        def instead(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            output.last_hidden_state = made(args[0] if args else kwargs["hidden_states"])
            return output

        hook = own.register_forward_hook(instead, with_kwargs=True)
        try:
            from tests.oracles.dialects.models import results

            return case.off(results(case.model, case.given))
        finally:
            hook.remove()

    judge = f"torch.nn.TransformerEncoder {torch.__version__}"
    yield judge, "qkv", error(found)
    turned = {
        name: torch.cat(list(reversed(value.chunk(3)))) if ".in_proj_" in name else value
        for name, value in found.items()
    }
    yield judge, "not vkq", error(turned)


def _interleaved(case: Case, found: Tensors) -> Iterator[tuple[str, str, float]]:
    cell = "encoder.transformer_cells.{}.attention_cell.in_"
    for read in ("qkv-per-head", "qkv", "qkv-per-head-interleaved"):

        def parts(k: int, own: Attention, read: str = read) -> dict[str, torch.Tensor]:
            made = dict(taken(found[f"{cell.format(k)}weight"], read, sizes(own)))
            biases = taken(found[f"{cell.format(k)}bias"], read, sizes(own))
            return made | {f"{part}.bias": value for part, value in biases.items()}

        yield OURS, read if read == "qkv-per-head" else f"not {read}", _attention(case, parts)


def has_timm() -> bool:
    try:
        import timm  # noqa: F401
    except ImportError:
        return False
    return True


def _timm(case: Case, found: Tensors) -> Iterator[tuple[str, str, float]]:
    """timm itself, on the ViT; where it is not installed, our equations of its `qkv`."""
    if not has_timm():
        for read in ("qkv", "vkq", "qkv-per-head"):
            error = _attention(case, lambda k, own, read=read: _fused(found, f"blocks.{k}.attn.qkv", read, own))
            yield OURS, read if read == "qkv" else f"not {read}", error
        return
    import timm
    from timm.models.vision_transformer import VisionTransformer

    config: Any = case.model.config
    made = VisionTransformer(
        img_size=config.image_size, patch_size=config.patch_size, num_classes=config.num_labels,
        embed_dim=config.hidden_size, depth=config.num_hidden_layers, num_heads=config.num_attention_heads,
        mlp_ratio=config.intermediate_size / config.hidden_size,
        norm_layer=partial(nn.LayerNorm, eps=config.layer_norm_eps),
    ).eval()  # fmt: skip
    judge = f"timm {timm.__version__}"

    def error(state: Tensors) -> float:
        made.load_state_dict(dict(state))
        with torch.no_grad():
            return case.off(made(case.given["pixel_values"]))

    yield judge, "qkv", error(found)
    turned = {
        name: torch.cat(list(reversed(value.chunk(3)))) if ".attn.qkv." in name else value
        for name, value in found.items()
    }
    yield judge, "not vkq", error(turned)


def _plain(family: Family, **settings: Any) -> Family:
    """A family with other settings."""
    return replace(family, config={**family.config, **settings})


_LLAMA, _QWEN = BY_NAME["Llama"], BY_NAME["Qwen2"]
_NO_BIASES = _plain(_LLAMA, attention_bias=False, mlp_bias=False)
_VLLM = _qkv_and_gates("model.layers.{}.self_attn.qkv_proj", "model.layers.{}.mlp.gate_up_proj", "qkv")
_CORE = _qkv_and_gates(
    "decoder.layers.{}.self_attention.linear_qkv", "decoder.layers.{}.mlp.linear_fc1", "qkv-per-group"
)
_MIXTRAL = BY_NAME["Mixtral"]
_QWEN_MOE = replace(BY_NAME["Qwen3-MoE"], attention=_MIXTRAL.attention)
"""Its heads are Mixtral's; its attention has norms, which `context` lacks, and is not run."""
_VLLM_EXPERTS = _qkv_and_experts("model.layers.{}.self_attn.qkv_proj", merges_experts.of_vllm, "qkv", "experts")
_CORE_EXPERTS = _qkv_and_experts(
    "decoder.layers.{}.self_attention.linear_qkv", merges_experts.of_megatron, "qkv-per-group"
)
SYSTEMS = (
    System("vllm", _LLAMA, merges.vllm, _VLLM),
    System("vllm", _QWEN, merges.vllm, _VLLM),
    System("megatron", _NO_BIASES, merges.megatron, _CORE),
    System("megatron", _QWEN, merges.megatron, _CORE),
    *(System("vllm", family, merges_experts.vllm, _VLLM_EXPERTS) for family in (_MIXTRAL, _QWEN_MOE)),
    *(System("megatron", family, merges_experts.megatron, _CORE_EXPERTS) for family in (_MIXTRAL, _QWEN_MOE)),
    System("meta", _plain(_NO_BIASES, hidden_size=72), merges.meta, _meta),  # Meta has no other head_dim
    System("torch-mha", BY_NAME["BERT"], merges.torch_encoder, _encoder, partly=True),
    System("gluonnlp-interleaved", BY_NAME["BERT"], merges.interleaved, _interleaved, partly=True),
    System("timm", BY_NAME["ViT"], merges.timm, _timm, form="transformers-5"),
)


def proofs(system: System, case: Case, found: Tensors) -> list[Proof]:
    """What runs of a model in the dialect, and what must not."""
    ran = list(system.run(case, found))
    made = []
    for who in dict.fromkeys(who for who, _, _ in ran):
        right = [(what, error) for one, what, error in ran if one == who and not what.startswith("not ")]
        wrong = {what.removeprefix("not "): error for one, what, error in ran if one == who and what.startswith("not ")}
        names = ", ".join(what for what, _ in right)
        what = f"convert --to {system.dialect} ({names})"
        made.append(Proof(system.family.name, what, who, max(error for _, error in right), wrong))
    return made


__all__ = ["SYSTEMS", "Gated", "System"]
