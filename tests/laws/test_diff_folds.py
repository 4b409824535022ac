"""Folded batch norms: `changed`, with the explanation, and never the same; torch folds them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.diff import ADDED, CHANGED, GRAPH, LAYOUT, REMOVED, RENAMED, SAME
from tests.examples import examples
from tests.versions import exporting

EPSILONS = (1e-5, 1e-3, 1e-6, 1e-4)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("folds")


def compared(place: Path, a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> Diffed:
    for name, tensors in (("a", a), ("b", b)):
        save_file({key: one.contiguous().clone() for key, one in tensors.items()}, place / f"{name}.safetensors")
    return diff(place / "a.safetensors", place / "b.safetensors")


def told(found: Diffed) -> list[Any]:
    return [(one.kind, one.a, one.b, one.how) for one in found.tensors]


def trained(norm: Any, seed: int) -> Any:
    """A batch norm with the numbers of a training."""
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        norm.running_mean.copy_(torch.randn(norm.num_features, generator=made))
        norm.running_var.copy_(torch.rand(norm.num_features, generator=made) * 4 + 0.01)
        if norm.affine:
            norm.weight.copy_(torch.randn(norm.num_features, generator=made))
            norm.bias.copy_(torch.randn(norm.num_features, generator=made))
    return norm.eval()


LAYERS: dict[str, Callable[[bool], tuple[Any, Any]]] = {
    "conv1d": lambda bias: (nn.Conv1d(6, 12, 3, bias=bias), nn.BatchNorm1d),
    "conv2d": lambda bias: (nn.Conv2d(6, 12, 3, bias=bias), nn.BatchNorm2d),
    "conv3d": lambda bias: (nn.Conv3d(2, 12, 3, bias=bias), nn.BatchNorm3d),
    "depthwise": lambda bias: (nn.Conv2d(12, 12, 3, groups=12, bias=bias), nn.BatchNorm2d),
    "transposed": lambda bias: (nn.ConvTranspose2d(6, 12, 3, bias=bias), nn.BatchNorm2d),
    "linear": lambda bias: (nn.Linear(6, 12, bias=bias), nn.BatchNorm1d),
}  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 2**32), layer=st.sampled_from(sorted(LAYERS)), bias=st.booleans(), affine=st.booleans(),
    epsilon=st.sampled_from(EPSILONS), back=st.booleans(), renamed=st.booleans(),
)  # fmt: skip
def test_what_torch_folds(
    place: Path, seed: int, layer: str, bias: bool, affine: bool, epsilon: float, back: bool, renamed: bool
) -> None:
    """Any layer, with or without a bias of its own, in both directions, under any name; one other number is told."""
    torch.manual_seed(seed)
    module, norm_class = LAYERS[layer](bias)
    norm = trained(norm_class(12, eps=epsilon, affine=affine), seed)
    fold: Any = fuse_linear_bn_eval if layer == "linear" else fuse_conv_bn_eval
    more = {"transpose": True} if layer == "transposed" else {}
    if more:
        from torch.nn.utils.fusion import fuse_conv_bn_weights

        made = copy.deepcopy(module)
        weights = fuse_conv_bn_weights(
            module.weight, module.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias, True
        )
        made.weight, made.bias = weights
    else:
        made = fold(module.eval(), norm)
    plain = {f"m.conv.{name}": one for name, one in module.state_dict().items()}
    plain |= {f"m.bn.{name}": one for name, one in norm.state_dict().items()}
    at = "14" if renamed else "m.conv"
    folded = {f"{at}.{name}": one for name, one in made.state_dict().items()}
    a, b = (folded, plain) if back else (plain, folded)
    found = compared(place, a, b)
    assert {one.kind for one in found.tensors} == {CHANGED} and not found.is_same, told(found)
    words = "a batch norm that A folded" if back else "a folded batch norm: 'm.bn'"
    assert all(words in one.how and f"epsilon {epsilon:g}" in one.how for one in found.tensors), told(found)
    assert {name for one in found.tensors for name in (*one.a, *one.b)} == {*a, *b}
    name = f"{at}.{('weight', 'bias')[seed % 2]}"
    folded[name] = folded[name].clone()
    folded[name].view(-1)[seed % folded[name].numel()] += 1e-2
    found = compared(place, a, b)
    assert not all("explained" in one.how for one in found.tensors), told(found)


def test_many_norms_each_find_their_layer(place: Path) -> None:
    """Layers of one shape, in another order and under names that say nothing."""
    plain, folded = {}, {}
    order = np.random.default_rng(0).permutation(8)
    for k in range(8):
        torch.manual_seed(k)
        conv, norm = nn.Conv2d(8, 8, 3, bias=False).eval(), trained(nn.BatchNorm2d(8), k)
        plain |= {f"s.{k}.conv.{name}": one for name, one in conv.state_dict().items()}
        plain |= {f"s.{k}.bn.{name}": one for name, one in norm.state_dict().items()}
        made: Any = fuse_conv_bn_eval(conv, norm)
        folded |= {f"{order[k] * 2 + 7}": made.weight, f"{order[k] * 2 + 8}": made.bias}
    found = compared(place, plain, folded)
    assert {one.kind for one in found.tensors} == {CHANGED}, told(found)
    pairs = {one.b[0]: one.a[0] for one in found.tensors if one.a[0].endswith("conv.weight")}
    assert pairs == {f"{order[k] * 2 + 7}": f"s.{k}.conv.weight" for k in range(8)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_fold_in_a_short_type(dtype: torch.dtype, place: Path) -> None:
    """Folded in float32 and rounded, as exporters of half models do."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(4, 8, 3).eval(), trained(nn.BatchNorm2d(8), 0)
    made: Any = fuse_conv_bn_eval(conv, norm)
    plain = {f"conv.{name}": one for name, one in conv.state_dict().items()}
    plain |= {f"bn.{name}": one for name, one in norm.state_dict().items()}
    found = compared(place, plain, {name: one.to(dtype) for name, one in made.state_dict().items()})
    assert {one.kind for one in found.tensors} == {CHANGED} and all("folded" in one.how for one in found.tensors)


class Cnn(nn.Module):
    """Convolutions and their batch norms, an activation with numbers of its own, and a norm that no layer is before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_bn, self.act = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.PReLU(16)
        self.second, self.second_bn = nn.Conv2d(16, 20, 3, stride=2, bias=False), nn.BatchNorm2d(20)
        self.last_bn, self.head = nn.BatchNorm2d(20), nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second_bn(self.second(self.act(self.first_bn(self.first(x)))))
        made: torch.Tensor = self.head(self.last_bn(torch.relu(x)).mean((2, 3)))
        return made


def test_an_export_that_folds(tmp_path: Path) -> None:
    """torch.onnx.export folds two norms and keeps one, whose counter no graph has; ONNX Runtime computes the same."""
    torch.manual_seed(0)
    module = Cnn().eval()
    for k, norm in enumerate((module.first_bn, module.second_bn, module.last_bn)):
        trained(norm, k)
    with torch.no_grad():
        module.act.weight.normal_()
    x, path = torch.randn(1, 3, 16, 16), tmp_path / "m.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), str(path), **exporting())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        np.testing.assert_allclose(
            session.run(None, {session.get_inputs()[0].name: x.numpy()})[0], module(x), rtol=1e-3
        )
    torch.save(module.state_dict(), tmp_path / "m.pt")
    for a, b in ((tmp_path / "m.pt", path), (path, tmp_path / "m.pt")):
        found = diff(a, b)
        assert not found.is_same and not {one.kind for one in found.tensors} & {ADDED, REMOVED}, told(found)
        changed = [one for one in found.tensors if one.kind == CHANGED]
        assert len(changed) >= 4 and all("batch norm" in one.how for one in changed)
        rest = {one.kind for one in found.tensors if one.kind != CHANGED}
        assert rest <= {SAME, RENAMED, LAYOUT, GRAPH}
        counters = [one for one in found.tensors if "counter" in one.how]
        assert [(*one.a, *one.b) for one in counters] == [("last_bn.num_batches_tracked",)]
        assert any(
            one.kind == LAYOUT and "act.weight" in (*one.a, *one.b) for one in found.tensors
        )  # [16] in [16, 1, 1]


def test_a_counter_is_missed_where_names_are_loaded(place: Path) -> None:
    """A file of tensors says nothing of its layers: a batch norm without its counter is not the same."""
    norm = trained(nn.BatchNorm2d(16), 0).state_dict()
    rest = {name: one for name, one in norm.items() if name != "num_batches_tracked"}
    assert {one.kind for one in compared(place, norm, rest).tensors} == {SAME, REMOVED}


def test_small_numbers_under_other_names(place: Path) -> None:
    """Slopes of one number: many different ones are found, a few or equal ones prove nothing."""
    slopes = [torch.randn(1, generator=torch.Generator().manual_seed(k)) for k in range(9)]
    for count, others, kind in ((9, slopes, RENAMED), (5, slopes, ADDED), (9, [slopes[0]] * 9, ADDED)):
        a = {f"a.{k}.act": slopes[k] if others is slopes else others[k] for k in range(count)}
        b = {f"b.{8 - k}": others[k] for k in range(count)}
        assert kind in {one.kind for one in compared(place, a, b).tensors}
    found = compared(place, {f"a.{k}": slopes[k] for k in range(9)}, {f"b.{8 - k}": slopes[k] for k in range(9)})
    assert {(one.a[0], one.b[0]) for one in found.tensors} == {(f"a.{k}", f"b.{8 - k}") for k in range(9)}
