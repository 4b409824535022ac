"""Models and tensors from memory into files: judged by torch, safetensors, transformers, and by `dedup` itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

import paramtool
import paramtool.torch
from paramtool.errors import OutputError, ParamtoolError, PlanError, UsageError


class Tied(nn.Module):
    """A tied head and an LSTM, whose weights are views of one buffer once they are flattened."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.emb = nn.Embedding(50, 24)
        self.lstm = nn.LSTM(24, 12, 2)
        self.head = nn.Linear(24, 50, bias=False)
        if tied:
            self.head.weight = self.emb.weight


def flattened(model: Tied) -> Tied:
    """The LSTM's weights as cuDNN has them: consecutive windows of one buffer."""
    buffer = torch.cat([weight.detach().reshape(-1) for weight in model.lstm.parameters()])
    at = 0
    for weight in model.lstm.parameters():
        weight.data = buffer[at : at + weight.numel()].view(weight.shape)
        at += weight.numel()
    return model


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
@pytest.mark.parametrize("flat", [False, True], ids=["apart", "flattened"])
def test_a_model_comes_back_with_its_ties(name: str, flat: bool, tmp_path: Path) -> None:
    model = flattened(Tied()) if flat else Tied()
    path = tmp_path / name
    saved = paramtool.torch.save_model(model, path)
    assert saved.path == str(path) and saved.names == tuple(model.state_dict())
    assert saved.aliases == {"head.weight": "emb.weight"} and saved.nbytes == path.stat().st_size
    assert os.listdir(tmp_path) == [name], "no temporary file is left"
    for twin in (Tied(), Tied(tied=False)):
        paramtool.torch.load_model(twin, path)
        assert all(torch.equal(value, twin.state_dict()[key]) for key, value in model.state_dict().items())
    if name == "m.pt":
        found = torch.load(path, weights_only=True)
        assert found["head.weight"].data_ptr() == found["emb.weight"].data_ptr()
        return
    with safetensors.safe_open(path, "pt") as file:
        assert set(file.keys()) == set(model.state_dict()) - {"head.weight"}
    missing, unexpected = safetensors.torch.load_model(twin := Tied(), path)
    assert not missing and not unexpected and torch.equal(twin.head.weight, model.emb.weight)


@pytest.mark.parametrize("name", ["m.safetensors", "m.pt"])
def test_it_is_what_torch_save_and_dedup_give(name: str, tmp_path: Path) -> None:
    model = Tied()
    torch.save(model.state_dict(), tmp_path / "source.pt")
    paramtool.dedup(tmp_path / "source.pt", tmp_path / f"two-{name}")
    paramtool.torch.save_model(model, tmp_path / f"one-{name}")
    assert (tmp_path / f"one-{name}").read_bytes() == (tmp_path / f"two-{name}").read_bytes()
    assert paramtool.verify(tmp_path / f"one-{name}", tmp_path / "source.pt").differences == ()


def test_any_strided_tensors(tmp_path: Path) -> None:
    """Slices, transposes, expanded and empty tensors, conjugates, and those that are not contiguous."""
    base = torch.arange(96.0).reshape(8, 12)
    tensors = {
        "base": base,
        "slice": base[2:5],
        "column": base[:, 3],
        "transposed": base.t(),
        "strided": torch.arange(60.0).reshape(6, 10)[:, ::2],
        "expanded": torch.ones(1).expand(5),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3),
        "bfloat16": torch.randn(4, 4).bfloat16(),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "parameter": nn.Parameter(torch.randn(2)),
    }
    saved = paramtool.torch.save_file(tensors, tmp_path / "t.safetensors")
    found = paramtool.torch.load_file(tmp_path / "t.safetensors")
    assert list(found) == list(tensors)
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert found["slice"].untyped_storage().data_ptr() == found["base"].untyped_storage().data_ptr()
    assert {"slice", "column", "transposed"} <= set(saved.aliases)
    stored = set(safetensors.torch.load_file(tmp_path / "t.safetensors"))
    assert stored == (set(tensors) - set(saved.aliases)) | {"paramtool.span/0"}, "an expanded tensor is one element"


def test_equal_bytes_are_shared_only_where_that_is_asked_for(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3000), "b": torch.ones(3000)}
    assert paramtool.torch.save_file(tensors, tmp_path / "1.safetensors").aliases == {"b": "a"}
    assert paramtool.torch.save_file(tensors, tmp_path / "2.safetensors", equal=False).aliases == {}
    assert set(safetensors.torch.load_file(tmp_path / "2.safetensors")) == {"a", "b"}


def test_metadata_goes_into_safetensors_files(tmp_path: Path) -> None:
    paramtool.torch.save_file({"a": torch.ones(2)}, tmp_path / "m.safetensors", {"license": "MIT"})
    with safetensors.safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata()["license"] == "MIT" and file.metadata()["format"] == "pt"
    with pytest.raises(UsageError, match="metadata"):
        paramtool.torch.save_file({"a": torch.ones(2)}, tmp_path / "m.pt", {"license": "MIT"})
    with pytest.raises(UsageError, match="expected strings"):
        paramtool.torch.save_file({"a": torch.ones(2)}, tmp_path / "n.safetensors", {"n": 1})  # type: ignore[dict-item]


def test_shards(tmp_path: Path) -> None:
    saved = paramtool.torch.save_model(model := Tied(), tmp_path / "out", max_shard_size=4000)
    assert len(saved.files) > 2 and (tmp_path / "out" / "model.safetensors.index.json").exists()
    paramtool.torch.load_model(twin := Tied(), tmp_path / "out")
    assert torch.equal(twin.emb.weight, model.emb.weight)


REFUSED = {
    "an output that exists": (lambda at: paramtool.torch.save_model(Tied(), at / "there.safetensors"), OutputError),
    "a folder that does not exist": (lambda at: paramtool.torch.save_model(Tied(), at / "no" / "m.pt"), OutputError),
    "meta tensors": (lambda at: paramtool.torch.save_model(Tied().to("meta"), at / "m.pt"), PlanError),
    "lazy modules": (lambda at: paramtool.torch.save_model(nn.LazyLinear(3), at / "m.pt"), PlanError),
    "sparse tensors": (
        lambda at: paramtool.torch.save_file({"s": torch.eye(3).to_sparse()}, at / "m.safetensors"),
        PlanError,
    ),
    "no tensors": (lambda at: paramtool.torch.save_file({}, at / "m.safetensors"), PlanError),
    "a list": (lambda at: paramtool.torch.save_file({"a": [1.0]}, at / "m.safetensors"), UsageError),
    "a bad option": (
        lambda at: paramtool.torch.save_file({"a": torch.ones(2)}, at / "m.pt", max_shard_size=0),
        ValueError,
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_leaves_nothing_behind(case: str, tmp_path: Path) -> None:
    (tmp_path / "there.safetensors").write_bytes(b"mine")
    call, kind = REFUSED[case]
    with pytest.raises(kind) as error:
        call(tmp_path)
    assert isinstance(error.value, ParamtoolError)
    assert "/proc/" not in str(error.value) and ".paramtool" not in str(error.value), "the temporary file is not named"
    assert os.listdir(tmp_path) == ["there.safetensors"] and (tmp_path / "there.safetensors").read_bytes() == b"mine"


def test_force_replaces(tmp_path: Path) -> None:
    for _ in range(2):
        paramtool.torch.save_model(model := Tied(), tmp_path / "m.safetensors", force=True)
    paramtool.torch.load_model(twin := Tied(), tmp_path / "m.safetensors")
    assert torch.equal(twin.emb.weight, model.emb.weight)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system has no /proc")
def test_a_killed_process_leaves_no_temporary_file_of_torch_save(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, torch, paramtool.torch\n"
        "from paramtool.torch import _saving\n"
        "_saving.opened = lambda *args: os.kill(os.getpid(), signal.SIGKILL)\n"
        "paramtool.torch.save_file({'a': torch.ones(5)}, sys.argv[1])\n"
    )
    where = os.environ | {"PYTHONPATH": str(Path(paramtool.__file__).parents[1])}
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m.pt")], env=where)
    assert ran.returncode == -9 and os.listdir(tmp_path) == []


def test_without_proc_the_temporary_file_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paramtool.torch import _saving

    monkeypatch.setattr(_saving, "OPEN_FILES", str(tmp_path / "none"))
    paramtool.torch.save_model(Tied(), tmp_path / "m.safetensors")
    with pytest.raises(PlanError, match=r"^tensors: "):
        paramtool.torch.save_file({}, tmp_path / "n.safetensors")
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_transformers_loads_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=32, vocab_size=64, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    config.save_pretrained(tmp_path)
    paramtool.torch.save_model(model, tmp_path / "model.safetensors", equal=False)
    twin = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert all(torch.equal(value, twin.state_dict()[name]) for name, value in model.state_dict().items())
    assert twin.lm_head.weight is twin.transformer.wte.weight


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_a_gpu(tmp_path: Path) -> None:
    paramtool.torch.save_model(model := Tied().cuda(), tmp_path / "m.safetensors")
    paramtool.torch.load_model(twin := Tied(), tmp_path / "m.safetensors")
    assert torch.equal(twin.emb.weight, model.emb.weight.cpu())


def test_an_unwritable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said of the output, and not of a temporary file."""
    for folder in ("/sys/kernel", "/proc"):
        with pytest.raises(OutputError, match=rf"^{folder}/m\.safetensors: "):
            paramtool.torch.save_model(nn.Linear(2, 2), f"{folder}/m.safetensors")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("unexpected pos 832 vs 726")])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """torch turns an error of writing into a RuntimeError; nothing is left behind."""

    def full(*args: object) -> None:
        raise error

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OutputError, match=r"m\.safetensors: cannot be written") as caught:
        paramtool.torch.save_model(nn.Linear(2, 2), tmp_path / "m.safetensors")
    assert "twice the size" in str(caught.value) and not os.listdir(tmp_path)


def test_what_cannot_be_pickled(tmp_path: Path) -> None:
    """A generator in a model's extra state."""

    class Extra(nn.Linear):
        def get_extra_state(self) -> object:
            return (k for k in range(3))

    with pytest.raises(PlanError, match=r"Extra: torch\.save cannot write it: cannot pickle 'generator'"):
        paramtool.torch.save_model(Extra(2, 2), tmp_path / "m.safetensors")
    assert not os.listdir(tmp_path)


def test_missing_and_unexpected_as_a_pair(tmp_path: Path) -> None:
    """As torch's and safetensors' loaders return them."""
    paramtool.torch.save_model(nn.Linear(2, 2), tmp_path / "m.safetensors")
    missing, unexpected = paramtool.torch.load_model(nn.Linear(2, 2), tmp_path / "m.safetensors")
    assert missing == unexpected == ()
