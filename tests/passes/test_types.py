"""Rules for types: their language, the kinds that stay in float32, and which name gets which type."""

from __future__ import annotations

from typing import Any

import pytest

from paramtool.errors import UsageError
from paramtool.model.checkpoint import Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.view import contiguous
from paramtool.passes.types import kinds
from paramtool.passes.types.kinds import TypeRules, parse, parse_all


def names(**shapes: tuple[int, ...]) -> dict[str, Any]:
    """Views of float32 by names whose dots are written as double underscores."""
    return {
        name.replace("__", "."): contiguous(k, DTYPES["float32"], shape)
        for k, (name, shape) in enumerate(shapes.items())
    }


def of(kind: str, views: dict[str, Any]) -> set[str]:
    return set(kinds.KINDS[kind](views, {name: Entry(view) for name, view in views.items()}))


def test_a_rule_is_a_type_or_a_pattern_and_a_type() -> None:
    assert [str(rule) for rule in parse_all(["float16", "a=b=float32", "[xy].*=bfloat16"])] == [
        "float16", "a=b=float32", "[xy].*=bfloat16"
    ]  # fmt: skip
    assert parse("a=b=float32").pattern == "a=b" and parse("a[0]=float32").matches("a[0]")
    assert parse_all("float16")[0].pattern == ""
    assert TypeRules(parse_all(["float16", "x=float32", "bfloat16"])).default == DTYPES["bfloat16"]


@pytest.mark.parametrize("text", ["", "int8", "=float16", "x=", "x=torch.half", "float6_e2m3fn", "x float16"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@pytest.mark.parametrize(("text", "dtype"), [("half", "float16"), ("x=bf16", "bfloat16"), ("x=FP32", "float32")])
def test_other_words_for_a_type(text: str, dtype: str) -> None:
    assert parse(text).dtype.name == dtype


def test_the_hint_takes_off_a_prefix() -> None:
    with pytest.raises(UsageError, match="did you mean float32"):
        parse("torch.float32")


BATCHNORM = [
    (["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"], ["fc.weight", "bn.other"]),
    (["running_mean", "running_var", "weight", "bias"], ["fc.weight"]),
    (["bn.running_mean", "bn.running_var"], ["conv.weight", "weight"]),
    (["bn0_gamma", "bn0_beta", "bn0_moving_mean", "bn0_moving_var"], ["conv0_bias", "bn1_gamma"]),
    (["arg:bn_gamma", "arg:bn_beta", "aux:bn_moving_mean", "aux:bn_moving_var"], ["arg:fc_bias"]),
    (["bn/gamma:0", "bn/beta:0", "bn/moving_mean:0", "bn/moving_variance:0"], ["dense/bias:0"]),
    (["params.bn.scale", "params.bn.bias", "batch_stats.bn.mean", "batch_stats.bn.var"], ["params.d.bias"]),
]


@pytest.mark.parametrize(("inside", "outside"), BATCHNORM, ids=lambda found: found[0])
def test_modules_with_running_statistics(inside: list[str], outside: list[str]) -> None:
    views = {name: contiguous(k, DTYPES["float32"], (4,)) for k, name in enumerate([*inside, *outside])}
    assert of("batchnorm", views) == set(inside)
    assert of("norm", views) >= set(inside)


def test_statistics_of_other_shapes_are_no_batchnorm() -> None:
    views = names(bn__running_mean=(4,), bn__running_var=(5,), a__running_mean=(4, 4), a__running_var=(4, 4))
    assert not of("batchnorm", views) and not of("batchnorm", names(v__mean=(4,), v__var=(4,)))
    wide = names(bn__running_mean=(4,), bn__running_var=(4,), bn__weight=(4, 4), bn__bias=(4,))
    assert of("batchnorm", wide) == {"bn.running_mean", "bn.running_var", "bn.bias"}


@pytest.mark.parametrize("module", ["ln", "ln_f", "ln_1", "bn2", "q_norm", "input_layernorm", "LayerNorm", "RMSNorm_0"])
def test_norms_by_name(module: str) -> None:
    assert of("norm", names(**{f"h__{module}__weight": (4,), "h__fc__weight": (4, 4)})) == {f"h.{module}.weight"}
    assert not of("norm", names(**{f"h__{module}__weight": (4, 4)}))


def test_norms_by_shape() -> None:
    """A weight and a bias of one axis and nothing else, where no name helps; a weight alone is none."""
    views = names(
        seq__1__weight=(4,), seq__1__bias=(4,), seq__2__weight=(4,), fc__weight=(4, 4), fc__bias=(4,),
        odd__weight=(4,), odd__bias=(5,), more__weight=(4,), more__bias=(4,), more__alpha=(4,),
    )  # fmt: skip
    assert of("norm", views) == {"seq.1.weight", "seq.1.bias"}


def test_counters_and_scales() -> None:
    views = names(opt__step=(), bn__num_batches_tracked=(1,), steps=(3,), w_scale=(4,))
    assert of("counters", views) == {"opt.step", "bn.num_batches_tracked"}
    views = {"l.weight": contiguous(9, DTYPES["int8"], (4, 4)), **names(l__weight_scale=(4,), l__bias=(4,))}
    assert of("scales", views) == {"l.weight_scale"}
