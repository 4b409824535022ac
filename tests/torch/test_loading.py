"""Loading into arrays, tensors and models: every name resolves, shared stays shared, equal stays apart."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

import paramtool
import paramtool.torch
from paramtool.errors import FormatError, PlanError, TieError, UsageError
from tests.laws.sharing import partition, raw, same_values

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures/torch"
State = Mapping[str, torch.Tensor]
Saver = Callable[[object, Path], Path]
LOADERS = pytest.mark.parametrize("load", [paramtool.load_file, paramtool.torch.load_file], ids=["numpy", "torch"])


def pt(state: object, folder: Path) -> Path:
    """A file of torch.save."""
    torch.save(state, folder / "m.pt")
    return folder / "m.pt"


def legacy(state: object, folder: Path) -> Path:
    """A file of torch.save as it was before 1.6."""
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    return folder / "old.pt"


def deduped(state: object, folder: Path) -> Path:
    """What paramtool makes of a file of torch.save; small tensors are compared, too."""
    paramtool.dedup(pt(state, folder), folder / "m.safetensors", min_equal_bytes=1)
    return folder / "m.safetensors"


def sharded(state: object, folder: Path) -> Path:
    """The same in a folder of shards of a few tensors each."""
    paramtool.dedup(pt(state, folder), folder / "shards", min_equal_bytes=1, max_shard_size=300)
    assert len(list((folder / "shards").glob("*.safetensors"))) > 1
    return folder / "shards"


@pytest.fixture(params=[pt, legacy, deduped, sharded], ids=lambda form: form.__name__)
def save(request: pytest.FixtureRequest) -> Saver:
    """Every form in which a file keeps its ties."""
    return request.param


class Model(nn.Module):
    """Embedding, LSTM, norm with buffers, and a decoder that `tied` ties to the embedding, as it is or transposed."""

    def __init__(self, tied: str = "", decoder: bool = True) -> None:
        super().__init__()
        self.emb = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 8, 2, bidirectional=True)
        self.norm = nn.BatchNorm1d(8)
        if decoder:
            self.decoder = nn.Linear(8, 30, bias=False)
        if tied == "whole":
            self.decoder.weight = self.emb.weight
        if tied == "transposed":
            self.back = nn.Linear(30, 8, bias=False)
            self.back.weight = nn.Parameter(self.emb.weight.detach().t())


def made(tied: str = "", decoder: bool = True, seed: int = 0) -> Model:
    """A model with values of its own, in its buffers, too."""
    torch.manual_seed(seed)
    model = Model(tied, decoder)
    model.norm.running_mean.normal_()  # type: ignore[union-attr]
    model.norm.num_batches_tracked.fill_(seed + 3)  # type: ignore[union-attr,operator]
    return model


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all values."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def flattened(rnn: nn.LSTM) -> None:
    """Put the weights on one buffer: all matrices, then all biases, as cuDNN has them."""
    names = [name for name, _ in rnn.named_parameters()]
    order = [n for n in names if "weight" in n] + [n for n in names if "bias" in n]
    weights = [getattr(rnn, name) for name in order]
    buffer = torch.cat([weight.detach().flatten() for weight in weights])
    for weight, window in zip(weights, buffer.split([weight.numel() for weight in weights]), strict=True):
        weight.data = window.view(weight.shape)


# --- files into names ------------------------------------------------------------------------------------------------


def tangled() -> dict[str, torch.Tensor]:
    """Ties of every kind, and equal copies that are none."""
    w = torch.randn(12, 8)
    flat = torch.randn(40)
    return {
        "w": w, "same": w, "transposed": w.t(), "rows": w[2:5], "columns": w[:, 1:4], "reshaped": w.view(-1),
        "equal": w.clone(), "equal.rows": w[2:5].clone(), "first": flat[:20].view(4, 5), "second": flat[20:],
        "zeros.a": torch.zeros(6), "zeros.b": torch.zeros(6), "scalar": torch.tensor(3.5), "empty": torch.empty(0, 4),
        "expanded": torch.randn(5, 1).expand(5, 7), "half": w.half(), "bool": w > 0, "int": torch.arange(9),
    }  # fmt: skip


@LOADERS
def test_every_name_comes_back(load: Callable[[Path], State], save: Saver, tmp_path: Path) -> None:
    """Names in order, dtypes, shapes and bytes are those that were saved."""
    state = tangled()
    assert same_values(state, load(save(state, tmp_path)))


@LOADERS
def test_sharing_comes_back(load: Callable[[Path], State], save: Saver, tmp_path: Path) -> None:
    """Two names share an element exactly where they did when they were saved."""
    state = tangled()
    assert partition(load(save(state, tmp_path))) == partition(state)


def test_an_edit_in_place_is_seen_by_ties_alone(save: Saver, tmp_path: Path) -> None:
    """Arrays are writable; an edit reaches tied names and no equal one."""
    found = paramtool.load_file(save(tangled(), tmp_path))
    found["w"][2, 1] = 77
    assert (found["same"][2, 1], found["transposed"][1, 2], found["rows"][0, 1], found["columns"][2, 0]) == (77,) * 4
    assert found["equal"][2, 1] != 77
    assert found["equal.rows"][0, 1] != 77
    found["zeros.a"][:] = 1
    assert not found["zeros.b"].any()


@LOADERS
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "complex64", "uint16"])
def test_dtypes_that_few_know(load: Callable[[Path], State], save: Saver, tmp_path: Path, dtype: str) -> None:
    """They come back as themselves, ties included."""
    w = torch.arange(24).to(getattr(torch, dtype)).view(4, 6)
    state = {"w": w, "t": w.t(), "scalar": w[1, 2], "copy": w.clone(), "fill": torch.zeros(1000)}
    found = load(save(state, tmp_path))
    assert same_values(state, found)
    assert partition(found) == partition(state)


@LOADERS
def test_flat_pairs_of_save_model_resolve(load: Callable[[Path], State], tmp_path: Path) -> None:
    """A file of safetensors.torch.save_model names its ties in its metadata: they are one memory."""
    model = made("whole")
    save_model(model, str(tmp_path / "m.safetensors"))
    found = load(tmp_path / "m.safetensors")
    assert {name: raw(tensor) for name, tensor in found.items()} == {
        name: raw(tensor) for name, tensor in model.state_dict().items()
    }
    assert addresses_agree(found, "emb.weight", "decoder.weight")


def addresses_agree(found: Mapping[str, Any], a: str, b: str) -> bool:
    """Whether two whole names are one memory."""
    return partition({a: found[a]}) == partition({a: found[b]}) and len(partition({a: found[a], b: found[b]})) == len(
        partition({a: found[a]})
    )


def test_metadata_that_is_no_pair_stays_metadata(tmp_path: Path) -> None:
    """A foreign key whose value happens to be no tensor makes no name."""
    save_file({"w": torch.ones(3)}, tmp_path / "m.safetensors", metadata={"author": "somebody", "format": "pt"})
    assert list(paramtool.load_file(tmp_path / "m.safetensors")) == ["w"]


@LOADERS
def test_a_section_by_name(load: Callable[..., State], save: Saver, tmp_path: Path) -> None:
    """`section` strips the prefix; an unknown one is an error that lists what there is."""
    state = tangled()
    path = save({"model": state, "optimizer": {"state": {0: {"m": torch.ones(3)}}, "param_groups": []}}, tmp_path)
    assert same_values(state, load(path, only="model"))
    with pytest.raises(UsageError, match="'model', 'optimizer'"):
        load(path, only="ema")


@LOADERS
def test_a_tensor_without_data_is_refused_by_name(load: Callable[[Path], State], tmp_path: Path) -> None:
    """A meta tensor is never invented."""
    with pytest.raises(FormatError, match=r"'ghost' \(meta\)"):
        load(pt({"w": torch.ones(2), "ghost": torch.empty(3, device="meta")}, tmp_path))


def test_tensors_go_to_a_device_with_their_ties(tmp_path: Path) -> None:
    """`device` is honoured, and names of one memory share it there."""
    found = paramtool.torch.load_file(pt(tangled(), tmp_path), device=torch.device("cpu"))
    assert addresses_agree(found, "w", "same")
    assert {tensor.device.type for tensor in found.values()} == {"cpu"}


def test_a_loaded_optimizer_state_can_be_used(save: Saver, tmp_path: Path) -> None:
    """The optimizer's section of a training checkpoint loads by name, and torch goes on with it as with its own."""
    model = made()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    sum(parameter.square().sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    path = save(saved, tmp_path)
    found = paramtool.torch.load_file(path, only="optimizer")
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in found.items():
        _, number, field = name.split(".")
        state.setdefault(int(number), {})[field] = tensor
    twin = made(seed=1)
    paramtool.torch.load_model(twin, path, only="model")
    other = torch.optim.Adam(twin.parameters(), lr=0.1)
    other.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for each, engine in ((model, optimizer), (twin, other)):
        engine.zero_grad()
        sum(parameter.square().sum() for parameter in each.parameters()).backward()  # type: ignore[union-attr]
        engine.step()
    assert same_values(values(model), values(twin))


# --- files into models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", ["", "whole", "transposed"])
def test_a_model_comes_back(save: Saver, tmp_path: Path, tied: str) -> None:
    """Into the model that was saved: values of parameters and buffers, and who shares memory."""
    source, target = made(tied), made(tied, seed=1)
    loaded = paramtool.torch.load_model(target, save(source.state_dict(), tmp_path))
    assert same_values(values(source), values(target))
    assert partition(target.state_dict()) == partition(source.state_dict())
    assert (loaded.missing, loaded.unexpected, loaded.section) == ((), (), "")


@pytest.mark.parametrize("tied", ["whole", "transposed"])
def test_a_variant_without_the_tie(save: Saver, tmp_path: Path, tied: str) -> None:
    """The tied file fills a model that does not tie, and nothing gets tied by that."""
    source = made(tied)
    target = made(seed=1)
    if tied == "transposed":
        target.back = nn.Linear(30, 8, bias=False)
    paramtool.torch.load_model(target, save(source.state_dict(), tmp_path))
    assert same_values(values(source), values(target))
    with torch.no_grad():
        target.emb.weight.fill_(9)
    assert not (target.decoder.weight == 9).any()


def test_a_variant_without_the_decoder(save: Saver, tmp_path: Path) -> None:
    """What only shares the memory of a name that is loaded is not missed."""
    source, target = made("whole"), made(decoder=False, seed=1)
    loaded = paramtool.torch.load_model(target, save(source.state_dict(), tmp_path))
    assert loaded.unexpected == ()
    assert all(torch.equal(tensor, source.state_dict()[name]) for name, tensor in target.state_dict().items())


def test_an_alias_is_enough_for_a_tied_model(tmp_path: Path) -> None:
    """A file that holds one name of a tie fills a model that ties, whichever name it is."""
    for dropped in ("emb.weight", "decoder.weight"):
        source, target = made("whole"), made("whole", seed=1)
        state = source.state_dict()
        del state[dropped]
        assert paramtool.torch.load_model(target, pt(state, tmp_path)).missing == ()
        assert same_values(values(source), values(target))


def test_an_optimizer_step_keeps_ties_and_only_ties(save: Saver, tmp_path: Path) -> None:
    """After training on, what was tied is still one, and what was only equal has gone its own way."""
    source = made("whole")
    source.twin = nn.Embedding(30, 8)
    source.twin.weight.data.copy_(source.emb.weight.data)
    target = made("whole", seed=1)
    target.twin = nn.Embedding(30, 8)
    paramtool.torch.load_model(target, save(source.state_dict(), tmp_path))
    assert torch.equal(target.twin.weight, target.emb.weight)
    optimizer = torch.optim.SGD(target.parameters(), lr=0.5)
    target.decoder(target.emb(torch.arange(5))).sum().backward()
    optimizer.step()
    assert torch.equal(target.emb.weight, target.decoder.weight)
    assert not torch.equal(target.emb.weight, source.emb.weight)
    assert torch.equal(target.twin.weight, source.twin.weight)


@pytest.mark.parametrize("flat_file", [True, False])
@pytest.mark.parametrize("flat_model", [True, False])
def test_a_flattened_lstm(save: Saver, tmp_path: Path, flat_file: bool, flat_model: bool) -> None:
    """Windows on one buffer, in the file or in the model: every weight comes back and the outputs are equal."""
    source, target = made(), made(seed=1)
    if flat_file:
        flattened(source.lstm)
    if flat_model:
        flattened(target.lstm)
    before = partition(target.state_dict())
    paramtool.torch.load_model(target, save(source.state_dict(), tmp_path))
    assert same_values(values(source), values(target))
    assert partition(target.state_dict()) == before
    x = torch.randn(3, 2, 8)
    assert torch.equal(source.lstm(x)[0], target.lstm(x)[0])


def test_a_tie_that_the_file_contradicts_names_both(save: Saver, tmp_path: Path) -> None:
    """Never last-write-wins: TieError with both names and the largest difference, and the model is as it was."""
    source = made()
    with torch.no_grad():
        source.decoder.weight.copy_(source.emb.weight)
        source.decoder.weight[4, 2] += 0.25
    target = made("whole", seed=1)
    before = values(target)
    with pytest.raises(TieError, match=r"'emb\.weight' and 'decoder\.weight'.*largest difference 0\.25") as error:
        paramtool.torch.load_model(target, save(source.state_dict(), tmp_path))
    assert error.value.hint
    assert same_values(before, values(target))


def test_a_transposed_tie_that_the_file_contradicts(tmp_path: Path) -> None:
    """The same for a tie to the transpose, although the two shapes differ."""
    source = made()
    source.back = nn.Linear(30, 8, bias=False)
    with pytest.raises(TieError, match=r"'emb\.weight' and 'back\.weight'"):
        paramtool.torch.load_model(made("transposed", seed=1), pt(source.state_dict(), tmp_path))


def test_equal_bytes_satisfy_a_tie(save: Saver, tmp_path: Path) -> None:
    """A file of two equal tensors that nobody tied goes into a model that ties them."""
    source = made()
    with torch.no_grad():
        source.decoder.weight.copy_(source.emb.weight)
    target = made("whole", seed=1)
    paramtool.torch.load_model(target, save(source.state_dict(), tmp_path))
    assert same_values(values(source), values(target))


def test_a_nan_and_a_negative_zero_are_bytes(tmp_path: Path) -> None:
    """Two names with the same NaN satisfy a tie; 0.0 and -0.0 do not."""
    source = made()
    with torch.no_grad():
        source.decoder.weight.copy_(source.emb.weight)
        for weight in (source.emb.weight, source.decoder.weight):
            weight[0, 0] = float("nan")
            weight[0, 1] = 0.0
    paramtool.torch.load_model(made("whole"), pt(source.state_dict(), tmp_path))
    with torch.no_grad():
        source.decoder.weight[0, 1] = -0.0
    with pytest.raises(TieError):
        paramtool.torch.load_model(made("whole"), pt(source.state_dict(), tmp_path))


def test_missing_names_are_listed(save: Saver, tmp_path: Path) -> None:
    """Strict: an error that names them, and the model is as it was.  Otherwise they are reported and keep values."""
    target = made(seed=1)
    before = values(target)
    path = save(made(decoder=False).state_dict(), tmp_path)
    with pytest.raises(PlanError, match=r"lacks 1 name \('decoder\.weight'\)"):
        paramtool.torch.load_model(target, path)
    assert same_values(before, values(target))
    assert paramtool.torch.load_model(target, path, strict=False).missing == ("decoder.weight",)
    assert torch.equal(target.decoder.weight, before["decoder.weight"])
    assert torch.equal(target.emb.weight, made().emb.weight)


def test_unexpected_names_are_listed(save: Saver, tmp_path: Path) -> None:
    """Strict: an error that names them.  Otherwise they are reported and the rest is loaded."""
    target = made(decoder=False, seed=1)
    path = save(made().state_dict(), tmp_path)
    with pytest.raises(PlanError, match=r"does not want, 1 name \('decoder\.weight'\)"):
        paramtool.torch.load_model(target, path)
    assert paramtool.torch.load_model(target, path, strict=False).unexpected == ("decoder.weight",)
    assert torch.equal(target.emb.weight, made().emb.weight)


def test_shapes_that_differ_are_listed_together(save: Saver, tmp_path: Path) -> None:
    """Every wrong shape in one error, with what was found and what was wanted, and the model is as it was."""
    target = made(seed=1)
    target.decoder = nn.Linear(8, 31, bias=False)
    target.emb = nn.Embedding(29, 8)
    before = values(target)
    with pytest.raises(PlanError, match="2 tensors do not fit") as error:
        paramtool.torch.load_model(target, save(made().state_dict(), tmp_path), strict=False)
    assert re.search(r"'decoder\.weight': has shape \[30, 8\] in the file; the model wants \[31, 8\]", str(error.value))
    assert same_values(before, values(target))


def test_a_vector_of_one_is_a_scalar(tmp_path: Path) -> None:
    """Files of torch 0.3 have shape [1] where [] is meant, which torch loads; the other way round is refused."""

    class Scaled(nn.Module):
        def __init__(self, *shape: int) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(shape))

    paramtool.torch.load_model(model := Scaled(), pt({"scale": torch.ones(1)}, tmp_path))
    assert model.scale == 1 and model.scale.shape == ()
    with pytest.raises(PlanError, match=r"'scale': has shape \[\] in the file; the model wants \[1\]"):
        paramtool.torch.load_model(Scaled(1), pt({"scale": torch.ones(())}, tmp_path))


@pytest.mark.parametrize(("held", "wanted"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float64", "float16")])
def test_values_are_cast_as_torch_casts_them(save: Saver, tmp_path: Path, held: str, wanted: str) -> None:
    """A file of one dtype into a model of another: the model keeps its dtype and its ties."""
    source = made("whole").to(getattr(torch, held))
    target = made("whole", seed=1).to(getattr(torch, wanted))
    before = partition(target.state_dict())
    paramtool.torch.load_model(target, save(source.state_dict(), tmp_path))
    assert same_values(values(source.to(getattr(torch, wanted))), values(target))
    assert partition(target.state_dict()) == before


def test_float8_into_a_model(save: Saver, tmp_path: Path) -> None:
    """float8 parameters come back bit for bit."""
    source, target = made(), made(seed=1)
    for model in (source, target):
        model.decoder.weight = nn.Parameter(model.decoder.weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    paramtool.torch.load_model(target, save(source.state_dict(), tmp_path))
    assert raw(target.decoder.weight) == raw(source.decoder.weight)


def test_requires_grad_and_identity_stay(tmp_path: Path) -> None:
    """Loading fills parameters and replaces none: optimizers and hooks that hold them go on working."""
    target = made(seed=1)
    target.emb.weight.requires_grad_(False)
    before = {name: id(tensor) for name, tensor in target.named_parameters()}
    paramtool.torch.load_model(target, pt(made().state_dict(), tmp_path))
    assert {name: id(tensor) for name, tensor in target.named_parameters()} == before
    assert not target.emb.weight.requires_grad
    assert target.decoder.weight.requires_grad


def test_the_one_section_that_fits_is_taken(save: Saver, tmp_path: Path) -> None:
    """Of a training checkpoint, the section whose names the model wants; the report says which."""
    source, target = made(), made(seed=1)
    optimizer = {"state": {0: {"m": torch.ones(3)}}, "param_groups": []}
    path = save({"epoch": 1, "net": source.state_dict(), "optimizer": optimizer}, tmp_path)
    assert paramtool.torch.load_model(target, path).section == "net"
    assert same_values(values(source), values(target))


def test_several_sections_that_fit_are_ambiguous(save: Saver, tmp_path: Path) -> None:
    """Model and EMA copy fit alike: an error that lists both, and `section` decides."""
    source, ema = made(), made(seed=2)
    path = save({"model": source.state_dict(), "ema": ema.state_dict()}, tmp_path)
    target = made(seed=1)
    with pytest.raises(UsageError, match="'model', 'ema'") as error:
        paramtool.torch.load_model(target, path)
    assert "only=" in str(error.value)
    paramtool.torch.load_model(target, path, only="ema")
    assert same_values(values(ema), values(target))


def test_equal_sections_stay_apart(save: Saver, tmp_path: Path) -> None:
    """A fresh EMA copy has the bytes of the model and a memory of its own."""
    source = made()
    path = save({"model": source.state_dict(), "ema": values(source)}, tmp_path)
    found = paramtool.torch.load_file(path)
    found["model.emb.weight"].zero_()
    assert torch.equal(found["ema.emb.weight"], source.emb.weight)


def test_a_plain_file_loads(tmp_path: Path) -> None:
    """A safetensors file of somebody else, without any record."""
    source, target = made(), made(seed=1)
    save_file(source.state_dict(), tmp_path / "plain.safetensors")
    paramtool.torch.load_model(target, tmp_path / "plain.safetensors")
    assert same_values(values(source), values(target))


def test_a_plain_file_written_for_a_variant(save: Saver, tmp_path: Path) -> None:
    """`export` of the names of one variant loads into it with safetensors alone."""
    source, target = made("whole"), made(seed=1)
    path = save(source.state_dict(), tmp_path)
    paramtool.export(path, tmp_path / "plain.safetensors", names=list(target.state_dict()))
    from safetensors.torch import load_file

    target.load_state_dict(load_file(tmp_path / "plain.safetensors"))
    assert same_values(values(source), values(target))


def test_the_index_and_the_folder_are_one(tmp_path: Path) -> None:
    """A sharded model is named by its folder or by its index."""
    folder = sharded(made("whole").state_dict(), tmp_path)
    (index,) = folder.glob("*.index.json")
    assert same_values(paramtool.load_file(folder), paramtool.load_file(index))


def test_an_extra_state_is_no_tensor(tmp_path: Path) -> None:
    """What get_extra_state puts into a state dict is no parameter that could be missing."""

    class Counting(nn.Linear):
        def get_extra_state(self) -> object:
            return {"calls": 3}

        def set_extra_state(self, state: object) -> None:
            pass

    source, target = Counting(3, 2), Counting(3, 2)
    paramtool.torch.load_model(target, pt(source.state_dict(), tmp_path))
    assert torch.equal(source.weight, target.weight)


def test_the_fixture_gives_the_outputs_of_torch() -> None:
    """The values of the committed file, through paramtool and through torch.load."""
    path = FIXTURES / "tied_flattened/tied_flattened.pt"
    state = torch.load(path, weights_only=True)
    found = paramtool.torch.load_file(path)
    assert same_values(state, found)
    assert partition(state) == partition(found)


def test_numpy_arrays_own_their_memory(tmp_path: Path) -> None:
    """Nothing of the file stays open or mapped: it can be removed and the arrays stay."""
    path = pt({"w": torch.arange(1000.0)}, tmp_path)
    found = paramtool.load_file(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    path.unlink()
    assert np.array_equal(found["w"], np.arange(1000, dtype=np.float32))
    assert found["w"].flags.writeable


# --- the examples ----------------------------------------------------------------------------------------------------


RUN_ELSEWHERE = {"savers_table.py", "real_models_table.py"}
"""Scripts whose whole output tests/oracles/ reads: test_savers_table.py, test_real_models_table.py."""
SCRIPTS = sorted(path for path in (ROOT / "docs/examples").glob("*.py") if path.name not in RUN_ELSEWHERE)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_examples_run(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every example of the documentation runs to its end and says something."""
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.syspath_prepend(script.parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        assert not ended.code
    assert capsys.readouterr().out


# --- models that cannot be filled ------------------------------------------------------------------------------------


class Holder(nn.Module):
    """A model of one buffer."""

    def __init__(self, w: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("w", w)


@pytest.mark.parametrize(
    ("model", "saved", "word"),
    [
        (torch.zeros(3, 3).to_sparse(), torch.zeros(3, 3), "sparse"),
        (torch.zeros(1).expand(3), torch.zeros(3), "expanded"),
        (torch.zeros(5).as_strided((3, 3), (1, 1)), torch.zeros(3, 3), "expanded"),
    ],
)
def test_what_cannot_be_held_is_refused_before_anything_is_copied(
    model: torch.Tensor, saved: torch.Tensor, word: str, tmp_path: Path
) -> None:
    """Tensors that cannot be filled are a PlanError that names them."""
    with pytest.raises(PlanError, match=f"'w'.*{word}"):
        paramtool.torch.load_model(Holder(model), pt({"w": saved}, tmp_path))


def test_lazy_layers_get_their_shapes(tmp_path: Path) -> None:
    """By their own hook, as in torch."""
    paramtool.torch.load_model(model := nn.LazyLinear(3), pt(state := nn.Linear(2, 3).state_dict(), tmp_path))
    assert same_values(state, values(model))


@LOADERS
def test_memory_that_is_not_to_be_had_is_an_error_with_a_name(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What NumPy and torch raise where there is no room comes as an error of ours, with the file and the tensor."""
    path = pt({"w": torch.ones(1000)}, tmp_path)

    def nothing(error: Exception) -> Callable[..., Any]:
        def empty(*args: Any, **options: Any) -> Any:
            raise error

        return empty

    monkeypatch.setattr(np, "empty", nothing(MemoryError()))
    monkeypatch.setattr(torch, "empty", nothing(RuntimeError("DefaultCPUAllocator: can't allocate memory")))
    with pytest.raises(FormatError, match=r"m\.pt: 'w': cannot allocate 4000 bytes"):
        load(path)


PENDING = {
    "scalar": lambda: torch.tensor(1 + 2j).conj(),
    "one part": lambda: torch.tensor([1 + 2j]).conj().imag[0],
    "both signs": lambda: torch._neg_view(torch.tensor([[1 + 2j, 3 - 1j]]).conj()),
    "transposed": lambda: torch.arange(6).view(2, 3).t().mul(1 + 2j).conj(),
    "empty": lambda: torch.zeros(0, 3, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("make", PENDING.values(), ids=PENDING)
@LOADERS
def test_pending_signs_are_carried_out_in_any_shape(
    load: Callable[[Path], Mapping[str, Any]], make: Callable[[], torch.Tensor], save: Saver, tmp_path: Path
) -> None:
    """A conjugate and a negated part load with their values and can be written to, of no axes too."""
    state = {"a": make(), "b": torch.ones(100)}
    found = load(save(state, tmp_path))
    assert same_values(state, found)
    found["a"][...] = 0
    assert not found["a"].any()


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_a_pending_conjugate_of_complex32_loads_as_pairs(tmp_path: Path) -> None:
    """NumPy has no complex32: the second of each pair has its sign turned."""
    for shape in ((), (3,)):
        tensor = torch.full(shape, 1 + 2j, dtype=torch.complex32).conj()
        found = paramtool.load_file(pt({"a": tensor}, tmp_path))["a"]
        assert found.shape == (*shape, 2) and (found == [1, -2]).all()


def conjugates() -> dict[str, torch.Tensor]:
    """Two names of one conjugate, a part of it, its base, and two names of a negated part of another."""
    w, v = torch.randn(8, 4, dtype=torch.complex64), torch.randn(5, dtype=torch.complex64)
    conj = {"a": w.conj(), "b": w.conj(), "row": w.conj()[0], "w": w, "same w": w.view(8, 4)}
    return {**conj, "n": v.conj().imag, "m": v.conj().imag}


@LOADERS
def test_names_of_one_pending_view_are_one_memory(
    load: Callable[[Path], Mapping[str, Any]], save: Saver, tmp_path: Path
) -> None:
    """What is one conjugate in the file is one tensor when it is loaded, from the file and from what is made of it."""
    state = conjugates()
    path = save(state, tmp_path)
    found = load(path)
    assert same_values(state, found)
    found["b"][...] = 7
    found["m"][...] = 3
    assert (found["a"] == 7).all() and (found["n"] == 3).all()
    assert not (found["row"] == 7).any() and not (found["w"] == 7).any()


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("name", ["o.safetensors", "o.pt"])
def test_a_pending_view_is_written_once(name: str, keep: str, tmp_path: Path) -> None:
    """Both forms tie the names of one view; the ties that break are warned of, and `verify` says so."""
    path = pt(conjugates(), tmp_path)
    report = paramtool.dedup(path, tmp_path / name, keep=keep, equal=False)
    assert len(report.plan.targets) == 4 and report.plan.order == tuple(conjugates())
    assert report.warnings == (
        f"'a', 'b', 'row' follow 'w' in {path}; conjugated and negated views are stored as separate tensors, "
        "with conjugation and negation applied",
    )
    found = paramtool.verify(report.output, path)
    assert not found.differences
    assert found.warnings == (
        f"'a', 'b', 'row' follow 'w' in {path}, conjugated or negated, and apart from it in "
        f"{report.output}; only values were compared",
    )
    assert paramtool.verify(path, path).warnings == ()
    again = paramtool.dedup(report.output, tmp_path / f"again.{name}", keep=keep, equal=False)
    assert Path(again.output).read_bytes() == Path(report.output).read_bytes() and not again.warnings


def test_names_of_one_pending_view_that_came_apart_are_a_difference(tmp_path: Path) -> None:
    """`verify` compares who shares memory after the signs were carried out."""
    path = pt(conjugates(), tmp_path)
    apart = tmp_path / "apart.pt"
    torch.save({name: tensor.resolve_conj().resolve_neg().clone() for name, tensor in conjugates().items()}, apart)
    texts = paramtool.verify(apart, path).differences
    assert "'b': shares memory with 'a' in the source and not in the output" in texts
    assert "'m': shares memory with 'n' in the source and not in the output" in texts
