"""What reviewers found, each with the smallest file that shows it."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from torch import nn

import paramtool
import paramtool.torch
from paramtool.errors import FormatError, OutputError, PlanError, UnsafeError


def saved(state: object, folder: Path, name: str = "m.pt") -> Path:
    torch.save(state, folder / name)
    return folder / name


class Tied(nn.Module):
    """A head that is the embedding."""

    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        self.emb = nn.Embedding(100, 32)
        self.body = nn.Linear(32, 32)
        self.lm_head = nn.Linear(32, 100, bias=False)
        if tie:
            self.lm_head.weight = self.emb.weight


def test_a_tie_in_the_index_of_the_hub_is_a_name(tmp_path: Path) -> None:
    """huggingface_hub writes the dropped name of a sharded model into the index only; it resolves, as declared."""
    model = Tied()
    (tmp_path / "hub").mkdir()
    huggingface_hub.save_torch_model(model, tmp_path / "hub", max_shard_size="8KB")
    checkpoint = paramtool.read(tmp_path / "hub")
    assert checkpoint.entries.keys() == model.state_dict().keys()
    declared = [m for m in paramtool.alias_graph(checkpoint).names.values() if m.set_evidence == "declared"]
    assert len(declared) == 1
    untied = Tied(tie=False)
    for path in (tmp_path / "hub", paramtool.dedup(tmp_path / "hub", tmp_path / "out").output):
        paramtool.torch.load_model(untied, path)
        assert torch.equal(untied.lm_head.weight, model.emb.weight)
        assert paramtool.verify(path, tmp_path / "hub").differences == ()


def test_metadata_of_an_index_is_preserved(tmp_path: Path) -> None:
    """A user's own words in an index stand in the new one."""
    (tmp_path / "hub").mkdir()
    huggingface_hub.save_torch_model(Tied(), tmp_path / "hub", max_shard_size="8KB")
    index = tmp_path / "hub" / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    data["metadata"] |= {"license": "MIT", "total_parameters": 12}
    index.write_text(json.dumps(data))
    paramtool.dedup(tmp_path / "hub", tmp_path / "out")
    metadata = json.loads((tmp_path / "out" / index.name).read_text())["metadata"]
    assert (metadata["license"], metadata["total_parameters"]) == ("MIT", 12)


@pytest.mark.parametrize(
    "state",
    [
        {"model.w": 0, "optimizer.state.0.exp_avg": 0},
        {"model.w": 0, "ema.w": 0},
        {"state_dict": {"model.diffusion_model.w": 0, "model_ema.diffusion_modelw": 0}},
        {"model": {"w": 0}, "polyak": {"w": 0}},
        {"model": {"w": 0}, "adam": {"exp_avg": 0}},
        {"layer.weight": 0, "bn.running_var": 0},
    ],
)
def test_content_never_joins_roles_even_where_names_are_flat(state: dict, tmp_path: Path) -> None:
    """Weights, optimizer state, averages and buffers stay apart although their bytes are equal."""

    def fill(value: object) -> object:
        return torch.ones(2000) if value == 0 else {k: fill(v) for k, v in value.items()}  # type: ignore[attr-defined]

    assert paramtool.dedup(saved(fill(state), tmp_path)).plan.aliases == ()


def test_tensors_in_the_attributes_of_a_tensor_are_listed(tmp_path: Path) -> None:
    """`w.extra = tensor` travels with a pickled parameter; it is a tensor of the file like any other."""
    w = nn.Parameter(torch.randn(3))
    w.extra = torch.randn(7)  # type: ignore[attr-defined]
    t = torch.randn(4)
    t.note = 5  # type: ignore[attr-defined]
    found = paramtool.load_file(paramtool.dedup(saved({"w": w, "t": t}, tmp_path)).output)
    assert found.keys() == {"w", "w.state.extra", "t"}
    assert np.array_equal(found["w.state.extra"], w.extra.numpy())  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("zipped", [True, False])
def test_a_storage_that_is_saved_for_itself_is_a_row(zipped: bool, tmp_path: Path) -> None:
    """Its bytes are not lost, and it shares memory with the tensors on it."""
    t = torch.arange(6.0)
    torch.save({"st": t.storage(), "t": t}, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    found = paramtool.load_file(tmp_path / "m.pt")
    assert np.array_equal(found["st"], t.numpy())
    assert np.shares_memory(found["st"], found["t"])


def test_a_section_has_only_its_own_tensors(tmp_path: Path) -> None:
    """A key that looks like a section's prefix belongs to the top."""
    path = saved({"a": {"c": torch.ones(2)}, "a.x": torch.zeros(2)}, tmp_path)
    assert paramtool.dedup(path, only="a").plan.order == ("c",)


def test_a_pickle_is_unsafe_as_a_whole(tmp_path: Path) -> None:
    """What another section calls stops this one, too: loading any of it would call it."""
    import functools

    path = saved({"model": {"w": torch.ones(2)}, "cfg": functools.partial(print)}, tmp_path)
    with pytest.raises(UnsafeError, match="partial"):
        paramtool.dedup(path, only="model")
    assert paramtool.dedup(path, only="model", allow_unknown=True).warnings == ()


def test_a_section_in_a_section(tmp_path: Path) -> None:
    """Where one key wraps everything, what is in it can be named."""
    model = nn.Linear(2, 2)
    path = saved({"ckpt": {"model": model.state_dict(), "epoch": 3}}, tmp_path)
    assert paramtool.dedup(path, only="ckpt.model").plan.order == ("weight", "bias")
    target = nn.Linear(2, 2)
    assert paramtool.torch.load_model(target, path).section == "ckpt.model"
    assert torch.equal(target.weight, model.weight)


def test_many_interleaved_columns_are_tensors_of_their_own(tmp_path: Path) -> None:
    """A hundred columns of one matrix share no byte."""
    base = torch.randn(10, 100)
    found = paramtool.dedup(saved({f"c{k}": base[:, k] for k in range(100)}, tmp_path))
    assert len(found.plan.targets) == 100
    assert found.plan.aliases == ()


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["plain", "transposed", "deflated"])
def test_a_thousand_tensors_need_few_open_files(kind: str, tmp_path: Path) -> None:
    """dedup, verify and load_file work under a limit of 64 open files."""
    state = {f"w{k}": torch.full((4, 3), float(k)) for k in range(1000)}
    if kind == "transposed":
        state = {name: tensor.t() for name, tensor in state.items()}
    path = saved(state, tmp_path)
    if kind == "deflated":
        import zipfile

        with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "d.pt", "w", zipfile.ZIP_DEFLATED) as new:
            for info in old.infolist():
                new.writestr(info.filename, old.read(info))
        path = tmp_path / "d.pt"
    code = (
        "import sys, paramtool; out = paramtool.dedup(sys.argv[1]).output; paramtool.verify(out, sys.argv[1]); "
        "assert len(paramtool.load_file(sys.argv[1])) == 1000"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_folder_is_only_replaced_where_it_is_an_earlier_output(tmp_path: Path) -> None:
    """--force never takes a stranger's weights with it, nor a snapshot of links that is being read."""
    path = saved({"w": torch.ones(2)}, tmp_path)
    out = paramtool.dedup(path, tmp_path / "lib", max_shard_size=1000).output
    paramtool.dedup(path, out, max_shard_size=1000, force=True)
    (tmp_path / "lib" / "lora.safetensors").write_bytes(b"precious")
    with pytest.raises(OutputError, match=r"lora\.safetensors"):
        paramtool.dedup(path, out, max_shard_size=1000, force=True)
    snapshot = tmp_path / "snapshot"
    (tmp_path / "lib" / "lora.safetensors").unlink()
    snapshot.mkdir()
    for name in sorted(p.name for p in (tmp_path / "lib").iterdir()):
        (snapshot / name).symlink_to(tmp_path / "lib" / name)
    with pytest.raises(OutputError, match="is an input"):
        paramtool.dedup(snapshot, snapshot, force=True)


def test_a_model_is_not_touched_by_a_damaged_file(tmp_path: Path) -> None:
    """A wrong CRC in the last member leaves every parameter as it was, where a lock asks for the bytes."""
    path = saved({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, tmp_path)
    paramtool.lock([path], tmp_path / "paramtool.lock")
    data = bytearray(path.read_bytes())
    at = data.index(np.ones(2, "f4").tobytes(), data.index(np.ones(4, "f4").tobytes()) + 16)
    data[at] ^= 1
    path.write_bytes(data)
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    with pytest.raises(FormatError, match="CRC"):
        paramtool.torch.load_model(model, path, lock=tmp_path / "paramtool.lock")
    assert torch.equal(model.weight, before)


def test_compounds_are_verified_by_their_parts(tmp_path: Path) -> None:
    """A file with sparse and conjugated tensors is equal to itself, and differs where a part differs."""
    state = {"s": torch.eye(3).to_sparse(), "c": torch.randn(3, dtype=torch.complex64).conj()}
    a = saved(state, tmp_path, "a.pt")
    state["s"] = (2 * torch.eye(3)).to_sparse()
    b = saved(state, tmp_path, "b.pt")
    assert paramtool.verify(a, a).differences == ()
    assert [text.split(":")[0] for text in paramtool.verify(b, a).differences] == ["'s/values'"]


def test_an_export_says_which_section_it_took(tmp_path: Path) -> None:
    """Names of a training checkpoint's model are found in its section, and the comparison with it can be repeated."""
    path = saved({"model": {"w": torch.ones(2)}, "optimizer": {"state": {}, "param_groups": []}}, tmp_path)
    found = paramtool.export(path, tmp_path / "plain.safetensors", names=["w"])
    assert found.section == "model"
    assert paramtool.verify(found.output, path, only=found.section).differences == ()


def test_a_prefix_on_every_name_is_said(tmp_path: Path) -> None:
    """A model that was wrapped when it was saved: the message says so instead of listing every name."""
    path = saved({f"module.{name}": t for name, t in nn.Linear(2, 2).state_dict().items()}, tmp_path)
    with pytest.raises(PlanError) as caught:
        paramtool.torch.load_model(nn.Linear(2, 2), path)
    assert "'module.'" in caught.value.hint


def test_two_hundred_shards_need_few_open_files(tmp_path: Path) -> None:
    """Sharded in and out under a limit of 64 open files; the second dedup gives the same bytes."""
    path = saved({f"w{k}": torch.randn(100, 20).t() if k % 3 else torch.randn(2000) for k in range(200)}, tmp_path)
    code = (
        "import sys, paramtool; a = paramtool.dedup(sys.argv[1], 'a', max_shard_size=8000); "
        "b = paramtool.dedup('a', 'b', max_shard_size=8000); assert len(b.files) == 201; "
        "assert paramtool.verify('b', sys.argv[1]).differences == (); paramtool.inspect('b', digest=True); "
        "assert all(open(x, 'rb').read() == open(y, 'rb').read() for x, y in zip(a.files, b.files, strict=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
