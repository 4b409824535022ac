"""load_model with assign, device, dtype and prefix, and into models on the meta device."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations

import paramtool
import paramtool.torch
from paramtool.errors import PlanError, TieError, UsageError
from paramtool.torch import load_model
from tests.laws.sharing import partition, raw, same_values


class Tied(nn.Module):
    """An embedding, its decoder, and a buffer that no file holds."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.emb = nn.Embedding(30, 8)
        self.norm = nn.BatchNorm1d(8)
        self.decoder = nn.Linear(8, 30)
        self.register_buffer("mask", torch.ones(3), persistent=False)
        if tied:
            self.decoder.weight = self.emb.weight


def made(tied: bool = True, seed: int = 0) -> Tied:
    torch.manual_seed(seed)
    return Tied(tied)


def on_meta(tied: bool = True) -> Tied:
    with torch.device("meta"):
        return Tied(tied)


def saved(state: Any, folder: Path) -> Path:
    torch.save(state, folder / "m.pt")
    return folder / "m.pt"


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def identities(model: nn.Module) -> dict[str, int]:
    return {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("file_tied", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("meta", [True, False])
def test_assign_takes_the_files_types_and_the_models_ties(
    tmp_path: Path, file_tied: bool, tied: bool, meta: bool
) -> None:
    """New parameters of the file's dtype; one Parameter under two names where the model has one, never where not."""
    source = made(file_tied).double()
    if not file_tied:
        source.decoder.weight.data.copy_(source.emb.weight.data)
    target = on_meta(tied) if meta else made(tied, seed=1)
    target.emb.weight.requires_grad_(False)
    old = list(target.parameters())  # held, so that no new one has the number of one that is gone
    loaded = load_model(target, saved(source.state_dict(), tmp_path), assign=True)
    assert same_values(values(source), values(target))
    assert target.emb.weight.dtype == torch.float64
    assert (target.emb.weight is target.decoder.weight) == tied
    assert partition(target.state_dict()) == partition(made(tied).double().state_dict())
    assert not {id(parameter) for parameter in old} & set(identities(target).values())
    assert not target.emb.weight.requires_grad and target.decoder.bias.requires_grad
    assert target.decoder.weight.requires_grad != tied
    assert loaded.on_meta == (("mask",) if meta else ())


def test_a_meta_model_without_assign_keeps_its_own_types(tmp_path: Path) -> None:
    """It gets memory, and the values are cast into it as into any model."""
    source, target = made().double(), on_meta()
    loaded = load_model(target, saved(source.state_dict(), tmp_path))
    assert same_values(values(source.float()), values(target))
    assert target.emb.weight is target.decoder.weight
    assert loaded.on_meta == ("mask",)


@pytest.mark.parametrize("meta", [True, False])
def test_dtype_casts_what_floats(tmp_path: Path, meta: bool) -> None:
    """Counters stay whole numbers; the cast is torch's."""
    source = made()
    target = on_meta() if meta else made(seed=1)
    load_model(target, saved(source.state_dict(), tmp_path), assign=True, dtype=torch.bfloat16)
    assert same_values(values(source.bfloat16()), values(target))
    assert target.norm.num_batches_tracked.dtype == torch.int64  # type: ignore[union-attr]


def test_device_is_where_new_tensors_are(tmp_path: Path) -> None:
    """Also of a model on the meta device; without it, they come to the CPU."""
    path = saved(made().state_dict(), tmp_path)
    for device in (None, "cpu", torch.device("cpu")):
        target = on_meta()
        load_model(target, path, assign=True, device=device)
        assert {tensor.device.type for tensor in target.state_dict().values()} == {"cpu"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("assign", [True, False])
def test_a_gpu(tmp_path: Path, assign: bool) -> None:
    """Onto the GPU, ties included; an LSTM that cuDNN flattened stays flattened."""
    source = nn.LSTM(8, 8, 2)
    path = saved(source.state_dict(), tmp_path)
    target = nn.LSTM(8, 8, 2).cuda()
    target.flatten_parameters()
    before = partition(target.state_dict())
    load_model(target, path, assign=assign)
    assert partition(target.state_dict()) == before
    x = torch.randn(3, 2, 8)
    assert torch.allclose(target(x.cuda())[0].cpu(), source(x)[0], atol=1e-5)
    with torch.device("meta"):
        fresh = nn.LSTM(8, 8, 2)
    load_model(fresh, path, assign=assign, device="cuda")
    assert {tensor.device.type for tensor in fresh.state_dict().values()} == {"cuda"}


@pytest.mark.parametrize("asked", [{"dtype": torch.float16}, {"device": "cuda"}])
def test_what_a_model_has_stays_as_it_is(tmp_path: Path, asked: dict[str, Any]) -> None:
    """device and dtype are of new tensors; where none is made, asking for others is an error with advice."""
    target = made(seed=1)
    before = values(target)
    with pytest.raises(UsageError, match="stays") as error:
        load_model(target, saved(made().state_dict(), tmp_path), **asked)
    assert "assign=True" in error.value.hint
    assert same_values(before, values(target))
    load_model(target, tmp_path / "m.pt", device="cpu", dtype=torch.float32)  # what it is already


def test_the_meta_device_holds_no_values(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no values"):
        load_model(made(), saved(made().state_dict(), tmp_path), assign=True, device="meta")


def test_dtype_is_a_floating_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="int8"):
        load_model(made(), saved(made().state_dict(), tmp_path), assign=True, dtype=torch.int8)


def test_numbers_of_another_kind_are_cast_even_when_assigned(tmp_path: Path) -> None:
    """A parameter that trains cannot be whole numbers: assign keeps the model's kind of numbers."""
    source, target = made().state_dict(), made(seed=1)
    source["decoder.bias"] = torch.arange(30)
    load_model(target, saved(source, tmp_path), assign=True)
    assert target.decoder.bias.dtype == torch.float32 and target.decoder.bias.requires_grad
    assert target.decoder.bias.tolist() == list(range(30))


def test_ties_of_two_types_in_the_file(tmp_path: Path) -> None:
    """The first name decides the type; the other must have its value in that type."""
    state = made().state_dict()
    state["decoder.weight"] = state["emb.weight"].bfloat16()
    with pytest.raises(TieError, match="largest difference"):
        load_model(made(), saved(state, tmp_path), assign=True)
    target = made(seed=1)
    load_model(target, tmp_path / "m.pt", assign=True, dtype=torch.bfloat16)
    assert target.emb.weight is target.decoder.weight
    assert raw(target.emb.weight) == raw(state["decoder.weight"])


@pytest.mark.parametrize("assign", [True, False])
def test_an_error_changes_nothing(tmp_path: Path, assign: bool) -> None:
    """A tie that does not hold, a shape, a missing name: the model is as it was, down to its parameters."""
    good, target = made(tied=False).state_dict(), made(seed=1)
    before, same = values(target), identities(target)
    bad: list[dict[str, torch.Tensor]] = [
        good,
        {**good, "decoder.bias": torch.zeros(31)},
        {name: tensor for name, tensor in good.items() if name != "decoder.bias"},
    ]
    for state in bad:
        with pytest.raises(PlanError):
            load_model(target, saved(state, tmp_path), assign=assign)
        assert same_values(before, values(target))
        assert identities(target) == same


def test_assign_where_not_strict_leaves_what_is_missing(tmp_path: Path) -> None:
    """What the file lacks stays the very same tensor; of a meta model it stays without memory, and is named."""
    state = made(tied=False).state_dict()
    del state["decoder.bias"], state["norm.weight"]
    target = made(tied=False, seed=1)
    bias = target.decoder.bias
    loaded = load_model(target, saved(state, tmp_path), strict=False, assign=True)
    assert target.decoder.bias is bias
    assert set(loaded.missing) == {"decoder.bias", "norm.weight"}
    loaded = load_model(on_meta(tied=False), tmp_path / "m.pt", strict=False, assign=True)
    assert set(loaded.on_meta) == {"decoder.bias", "norm.weight", "mask"}


class Overlapping(nn.Module):
    """Two windows that share a row, and a third inside one of them."""

    def __init__(self) -> None:
        super().__init__()
        base = torch.randn(6, 4)
        self.top = nn.Parameter(base[:4])
        self.bottom = nn.Parameter(base[3:])
        self.row = nn.Parameter(base[0])


@pytest.mark.parametrize("assign", [True, False])
def test_overlapping_windows_stay_so(tmp_path: Path, assign: bool) -> None:
    """Any geometry of the model's memory; where the file's values do not meet, a TieError."""
    torch.manual_seed(0)
    source, target = Overlapping(), Overlapping()
    before = partition(target.state_dict())
    path = saved(source.state_dict(), tmp_path)
    load_model(target, path, assign=assign)
    assert same_values(values(source), values(target))
    assert partition(target.state_dict()) == before
    state = values(source)
    state["bottom"][0, 2] += 1
    with pytest.raises(TieError, match="'top' and 'bottom'"):
        load_model(target, saved(state, tmp_path), assign=assign)
    state = values(source)
    state["row"][2] += 0.5
    with pytest.raises(TieError, match=r"'top' and 'row'.*largest difference 0\.5"):
        load_model(target, saved(state, tmp_path), assign=assign)


def test_a_part_of_overlapping_windows(tmp_path: Path) -> None:
    """Where not strict, values that the file lacks move to the new memory; a meta model has none to move."""
    source, target = Overlapping(), Overlapping()
    state = values(source)
    del state["bottom"], state["row"]
    old = target.bottom.clone()
    loaded = load_model(target, saved(state, tmp_path), strict=False, assign=True)
    assert loaded.missing == ("bottom",)
    assert torch.equal(target.top, source.top) and torch.equal(target.bottom[1:], old[1:])
    assert torch.equal(target.bottom[0], source.top[3]) and torch.equal(target.row, source.top[0])
    with torch.device("meta"):
        empty = Overlapping()
    with pytest.raises(PlanError, match="'bottom' is on the meta device"):
        load_model(empty, tmp_path / "m.pt", strict=False, assign=True)


def test_an_lstm_goes_on_with_assigned_weights(tmp_path: Path) -> None:
    """torch's RNNs keep a list of their weights; it holds the new ones."""
    source, target = nn.LSTM(4, 4, 2, bidirectional=True), nn.LSTM(4, 4, 2, bidirectional=True)
    load_model(target, saved(source.state_dict(), tmp_path), assign=True)
    x = torch.randn(3, 2, 4)
    assert torch.equal(source(x)[0], target(x)[0])
    target(x)[0].sum().backward()
    assert all(parameter.grad is not None for parameter in target.parameters())


def test_a_parametrised_layer(tmp_path: Path) -> None:
    """Its originals are parameters like any other."""
    source = parametrizations.weight_norm(nn.Linear(4, 3))
    target = parametrizations.weight_norm(nn.Linear(4, 3))
    load_model(target, saved(source.state_dict(), tmp_path), assign=True)
    x = torch.randn(2, 4)
    assert torch.equal(source(x), target(x))


def test_a_module_that_stands_in_two_places(tmp_path: Path) -> None:
    """The new parameter is there under every name."""
    shared = nn.Linear(4, 4)
    source = nn.Sequential(shared, nn.ReLU(), shared)
    other = nn.Linear(4, 4)
    target = nn.Sequential(other, nn.ReLU(), other)
    load_model(target, saved(source.state_dict(), tmp_path), assign=True)
    assert target[0].weight is target[2].weight
    assert torch.equal(target[0].weight, shared.weight)


def test_words_on_a_parameter_stay(tmp_path: Path) -> None:
    """Frameworks write on parameters (`tensor_model_parallel`); a new one has the same."""
    target = made()
    target.emb.weight.rank = 3  # type: ignore[attr-defined]
    load_model(target, saved(made(seed=1).state_dict(), tmp_path), assign=True)
    assert target.decoder.weight.rank == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("prefix", ["encoder", "encoder."])
@pytest.mark.parametrize("assign", [True, False])
def test_a_prefix_is_a_part_of_the_file(tmp_path: Path, prefix: str, assign: bool) -> None:
    """Names outside are neither missing nor unexpected, also where they share memory with those inside."""
    source = made()
    state = {f"encoder.{name}": tensor for name, tensor in source.state_dict().items()}
    state |= {"head.weight": source.emb.weight, "other.weight": torch.ones(3)}
    save_file(values(source), tmp_path / "whole.safetensors")
    path = paramtool.dedup(saved(state, tmp_path), tmp_path / "m.safetensors").output
    target = made(seed=1)
    loaded = load_model(target, path, prefix=prefix, assign=assign)
    assert same_values(values(source), values(target))
    assert (loaded.missing, loaded.unexpected) == ((), ())
    with pytest.raises(UsageError, match=r"no name begins with 'decoder\.'.*'encoder', 'head', 'other'"):
        load_model(target, path, prefix="decoder")


def test_a_prefix_inside_a_section(tmp_path: Path) -> None:
    """The section is found by the names with the prefix."""
    source = made()
    model = {f"encoder.{name}": tensor for name, tensor in source.state_dict().items()}
    path = saved({"net": model, "ema": {name: t.clone() for name, t in source.state_dict().items()}}, tmp_path)
    target = made(seed=1)
    assert load_model(target, path, prefix="encoder").section == "net"
    assert same_values(values(source), values(target))


def test_an_untied_model_from_one_memory_shares_nothing_with_anyone(tmp_path: Path) -> None:
    """Two loads of one file, and two names of one memory: four tensors."""
    path = saved(made().state_dict(), tmp_path)
    first, second = made(tied=False), made(tied=False)
    load_model(first, path, assign=True)
    load_model(second, path, assign=True)
    tensors = {f"{k}.{n}": t for k, m in enumerate((first, second)) for n, t in m.state_dict().items()}
    assert len({tensor.data_ptr() for tensor in tensors.values()}) == len(tensors)


def test_one_memory_at_a_time(tmp_path: Path) -> None:
    """Into a meta model: what NumPy and Python hold beside the model's own tensors stays below one layer's size."""
    layers = {f"{k}.weight": torch.randn(512, 512) for k in range(8)}
    path = saved(layers, tmp_path)
    with torch.device("meta"):
        target = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)])
    load_model(target, path, assign=True)  # imports
    with torch.device("meta"):
        target = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(8)])
    tracemalloc.start()
    load_model(target, path, assign=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 512 * 512 * 4 * 2
    storages = {tensor.untyped_storage().nbytes() for tensor in target.state_dict().values()}
    assert storages == {512 * 512 * 4}


# --- refused by name -------------------------------------------------------------------------------------------------


class FullyShardedDataParallel(nn.Linear):
    """By its name, torch's wrapper."""


def test_fsdp_is_refused(tmp_path: Path) -> None:
    """What its state dict shows are copies."""
    model = nn.Sequential(FullyShardedDataParallel(2, 2))
    with pytest.raises(PlanError, match="'0' is a FullyShardedDataParallel"):
        load_model(model, saved(model.state_dict(), tmp_path))


def test_tensors_made_of_others_are_filled_by_their_own_code(tmp_path: Path) -> None:
    """As torch does, also with `assign`; new ones, as of another type, only their library could make."""
    from torch.testing._internal.two_tensor import TwoTensor

    model = nn.Linear(2, 2)
    path = saved(model.state_dict(), tmp_path)
    expected = model.weight.clone()
    model.weight = nn.Parameter(TwoTensor(torch.ones(2, 2), torch.ones(2, 2)))
    with pytest.raises(PlanError, match="'weight' is a TwoTensor"):
        load_model(model, path, assign=True, dtype=torch.float64)
    for assign in (False, True):
        with torch.no_grad():
            model.weight.zero_()
        load_model(model, path, assign=assign)
        assert all(torch.equal(one, expected) for one in (model.weight.a, model.weight.b))  # type: ignore[attr-defined]


class Conjured(nn.Module):
    """A state dict with a tensor that is made for it."""

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[prefix + "made"] = torch.ones(2)


def test_what_no_module_holds_is_left_over(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"does not want, 1 name \('made'\)"):
        load_model(Conjured(), saved({"made": torch.ones(2)}, tmp_path), assign=True)
