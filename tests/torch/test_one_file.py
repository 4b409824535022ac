"""One file for the fused and the unfused variant of a model: the old names are recorded as views of the new tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import paramtool
import paramtool.torch
from paramtool.errors import PlanError
from tests.laws.sharing import partition

WIDTH, KEYS, FFN, EXPERTS = 8, 4, 5, 3


class Apart(nn.Module):
    """Queries, keys and values as layers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, WIDTH)
        self.k_proj = nn.Linear(WIDTH, KEYS)
        self.v_proj = nn.Linear(WIDTH, KEYS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], -1)


class Fused(nn.Module):
    """The same in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(WIDTH, WIDTH + 2 * KEYS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.qkv_proj(x)
        return made


class Gated(nn.Module):
    """A gate and its factor, apart."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, FFN)
        self.up_proj = nn.Linear(WIDTH, FFN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)
        return made


class Interleaved(nn.Module):
    """Rows of the gate and of its factor in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(WIDTH, 2 * FFN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.gate_up_proj(x)
        made: torch.Tensor = nn.functional.silu(both[..., ::2]) * both[..., 1::2]
        return made


class Listed(nn.Module):
    """Experts as modules."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.ModuleDict({
            "gate_proj": nn.Linear(WIDTH, FFN, bias=False), "up_proj": nn.Linear(WIDTH, FFN, bias=False),
            "down_proj": nn.Linear(FFN, WIDTH, bias=False),
        }) for _ in range(EXPERTS))  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        each = [one["down_proj"](nn.functional.silu(one["gate_proj"](x)) * one["up_proj"](x)) for one in self.experts]  # type: ignore[index]
        return torch.stack(each)


class _Stacks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(EXPERTS, 2 * FFN, WIDTH))
        self.down_proj = nn.Parameter(torch.zeros(EXPERTS, WIDTH, FFN))


class Stacked(nn.Module):
    """Experts as stacks."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = _Stacks()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = torch.einsum("bi,eoi->ebo", x, self.experts.gate_up_proj).chunk(2, -1)
        return torch.einsum("ebf,eof->ebo", nn.functional.silu(gate) * up, self.experts.down_proj)


PAIRS = [("qkv", Apart, Fused), ("gate-up-interleaved", Gated, Interleaved), ("experts", Listed, Stacked)]
PAIR = pytest.mark.parametrize(("layout", "apart", "fused"), PAIRS, ids=[name for name, _, _ in PAIRS])
Class = Callable[[], nn.Module]


class Model(nn.Module):
    """A layer of one of the classes, beside another."""

    def __init__(self, inside: Class) -> None:
        super().__init__()
        self.layer, self.head = inside(), nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x), self.head(x)


def both(folder: Path, layout: str, apart: Class, suffix: str = "safetensors") -> tuple[nn.Module, Path]:
    """A model whose parts are apart, and one file of it for both variants."""
    torch.manual_seed(0)
    model = Model(apart)
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / f"both.{suffix}"
    paramtool.fuse(folder / "model.safetensors", path, layout=layout, keep_names=True)
    return model, path


@PAIR
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_either_class_loads_it(tmp_path: Path, layout: str, apart: Class, fused: Class, suffix: str) -> None:
    model, path = both(tmp_path, layout, apart, suffix)
    x = torch.randn(3, WIDTH)
    for kind in (apart, fused):
        other = Model(kind)
        found = paramtool.torch.load_model(other, path)
        assert not found.missing and not found.unexpected
        for one, expected in zip(other(x), model(x), strict=True):
            torch.testing.assert_close(one, expected)
        state = other.state_dict()
        assert partition(state) == partition(Model(kind).state_dict())  # what the file shares ties nothing in a model
        for name in state.keys() & model.state_dict().keys():
            assert torch.equal(state[name], model.state_dict()[name])


@PAIR
def test_variants_says_so(tmp_path: Path, layout: str, apart: Class, fused: Class) -> None:
    _, path = both(tmp_path, layout, apart)
    first, second = paramtool.torch.variants([Model(apart), Model(fused)], path)
    assert (first.verdict, second.verdict) == ("loads through aliases", "loads")
    assert {one.relation for one in first.through} == {"view" if layout == "gate-up-interleaved" else "slice"}
    _, plain = paramtool.torch.variants([Model(apart), Model(fused)], tmp_path / "model.safetensors")
    assert plain.verdict == "cannot load"


@PAIR
def test_either_is_exported(tmp_path: Path, layout: str, apart: Class, fused: Class) -> None:
    model, path = both(tmp_path, layout, apart)
    for kind in (apart, fused):
        plain = tmp_path / f"{kind.__name__}.safetensors"
        paramtool.export(path, plain, names=Model(kind).state_dict().keys())
        assert not paramtool.verify(plain, path, subset=True).differences
        Model(kind).load_state_dict(paramtool.torch.load_file(plain))
        if kind is apart:
            assert not paramtool.verify(plain, tmp_path / "model.safetensors").differences
            from safetensors.torch import load_model

            again = Model(apart)
            load_model(again, plain)
            for name, tensor in model.state_dict().items():
                assert torch.equal(again.state_dict()[name], tensor)


@PAIR
def test_what_is_loaded_shares_memory_as_the_record_says(
    tmp_path: Path, layout: str, apart: Class, fused: Class
) -> None:
    """The parts of a fused tensor lie in it, and two fused tensors of equal bytes stay apart."""
    model = nn.ModuleList([Model(apart), Model(apart)])
    model[1].load_state_dict(model[0].state_dict())
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    paramtool.fuse(tmp_path / "model.safetensors", tmp_path / "both.safetensors", layout=layout, keep_names=True)
    state = paramtool.torch.load_file(tmp_path / "both.safetensors")
    memory = {name: tensor.untyped_storage().data_ptr() for name, tensor in state.items()}
    halves = [{place for name, place in memory.items() if name.startswith(half)} for half in ("0.", "1.")]
    assert not halves[0] & halves[1], "equal is not tied"
    first = {name.removeprefix("0.") for name in state if name.startswith("0.layer")}
    held = {name for name in Model(apart).state_dict() if name.startswith("layer")}
    assert first == held | {name for name in Model(fused).state_dict() if name.startswith("layer")}
    for name in held:
        owners = [n for n, place in memory.items() if place == memory[f"0.{name}"] and n.removeprefix("0.") not in held]
        assert len(owners) == 1
    paramtool.dedup(tmp_path / "both.safetensors", tmp_path / "again.safetensors")
    assert partition(paramtool.torch.load_file(tmp_path / "again.safetensors")) == partition(state)


@PAIR
def test_back_to_one_variant(tmp_path: Path, layout: str, apart: Class, fused: Class) -> None:
    """Unfused it is the file that it was made of, and fused again without the old names the fused variant alone."""
    _, path = both(tmp_path, layout, apart)
    paramtool.unfuse(path, tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()
    paramtool.fuse(path, tmp_path / "alone.safetensors", layout=layout)
    assert paramtool.torch.load_file(tmp_path / "alone.safetensors").keys() == Model(fused).state_dict().keys()
    for output in ("back", "alone"):
        assert not paramtool.verify(tmp_path / f"{output}.safetensors", path).differences


def test_what_is_no_view_is_refused(tmp_path: Path) -> None:
    """Heads of queries between those of keys and values are at unequal distances for grouped heads."""
    save_file(Model(Apart).state_dict(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    options = {"layout": "qkv-per-group", "spec": "qkv heads=4 kv_heads=2 head_dim=2"}
    with pytest.raises(PlanError, match=r"'layer\.q_proj\.bias' is not a view") as refused:
        paramtool.fuse(tmp_path / "model.safetensors", tmp_path / "both.safetensors", keep_names=True, **options)  # type: ignore[arg-type]
    assert "`unfuse`" in refused.value.hint and "qkv" in refused.value.hint
    assert not (tmp_path / "both.safetensors").exists()
    paramtool.fuse(tmp_path / "model.safetensors", tmp_path / "fused.safetensors", **options)  # type: ignore[arg-type]
    paramtool.unfuse(tmp_path / "fused.safetensors", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()
