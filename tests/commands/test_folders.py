"""A folder in, a folder out: what comes along, what stays, and which folders may be replaced."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import dedup_many
from paramtool.commands import export as export_command
from paramtool.commands import relayout as relayout_command
from paramtool.commands import verify as verify_command
from paramtool.commands.output.sidecar_checks import check_names
from paramtool.commands.output.sidecars import NOT_CHOSEN, Sidecars, sidecars_of
from paramtool.commands.variants import ask
from paramtool.errors import FormatError, OutputError, PlanError, UsageError
from paramtool.formats.folder.copies import MAIN
from paramtool.formats.folder.weight_names import of_file
from tests.hostile.command import contents, quick

SMALL = ("1_Pooling/config.json", "README.md", "config.json", "modeling_x.py", "speakers/a.npy", "tokenizer.json",
         "tokenizer.model")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model as transformers saves it, with everything that people put beside one."""
    place = tmp_path / "model"
    for name in SMALL:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("{}" if name == "config.json" else f"this is {name}")
    torch.manual_seed(0)
    a = torch.randn(64, 64)
    save_file({"a": a, "b": a.clone(), "c": torch.ones(3)}, place / "model.safetensors", {"format": "pt"})
    return place


STAYING = [
    "pytorch_model.bin", "model.fp16.safetensors", "tf_model.h5", "flax_model.msgpack", "rust_model.ot", "x.gguf",
    "consolidated.00.pth", "pytorch_model.bin.index.json", "model.ckpt.data-00000-of-00001", "model.ckpt.index",
    "model-00001-of-00002.safetensors", "tf_model-00001-of-00002.h5",
    "model_state.pdparams",
    "flax_model.msgpack.index.json", "model.safetensors.index.fp16.json", "model.fp16-00001-of-00002.safetensors",
    "model.onnx_data", "decoder_model_merged.onnx", "openvino_model.bin", "openvino_model.xml",
]  # fmt: skip
"""The same weights in other formats, and their indexes."""
COMING = [
    "optimizer.pt", "optimizer.bin", "optimizer_1.bin", "rank0-of-2-optimizer.pt", "scheduler.pt", "scheduler.bin",
    "rng_state.pth", "rng_state_0.pth", "training_args.bin", "scaler.pt", "random_states_0.pkl", "sampler.bin",
    "dl_state_dict.bin", "custom_checkpoint_0.pkl", "model_1.safetensors", "pytorch_model_1.bin",
    "adapter_model.safetensors", "adapter_model.bin", "ema_weights.pt", "pytorch_lora_weights.safetensors",
    "spk_embeddings.npz", "model.pkl", "last.ckpt", "vocab.bin", "vad.onnx", "tokens.msgpack", "x.pdopt",
    "faiss.index.json", "model.optim.pt", "open_clip_model.safetensors", "latest",
    "pytorch_model_fsdp_0/__0_0.distcp", "pytorch_model_fsdp_0/.metadata", "optimizer_0/__0_0.distcp", "x/.zarray",
    "adapters/german/adapter_model.safetensors", "speech_tokenizer/model.safetensors", "vad/onnx/model.onnx",
    "pytorch_model/mp_rank_00_model_states.pt", "0_Transformer/pytorch_model.bin", "parts/model.safetensors.index.json",
]  # fmt: skip
"""What a training resumes from, other weights, parts in folders: nothing of it is what was read."""


def test_what_comes_along(folder: Path, tmp_path: Path) -> None:
    """Everything that is no weights, with its bytes, in its subfolders; the weights under the name loaders look for."""
    found = dedup_command.dedup(folder, tmp_path / "out")
    before, after = contents(folder), contents(tmp_path / "out")
    assert before.keys() == after.keys()
    assert {n: b for n, b in before.items() if n != "model.safetensors"} == {
        n: b for n, b in after.items() if n != "model.safetensors"
    }
    assert list(load_file(tmp_path / "out" / "model.safetensors")) == ["a", "b", "c"]  # equal names are found by all
    assert {os.path.relpath(file, tmp_path / "out") for file in found.files} == {
        n for n, what in after.items() if what != "folder"
    }
    assert found.left_out == () and found.verified
    assert dedup_command.dedup(folder).output == f"{folder}.dedup"


@pytest.mark.parametrize("name", STAYING)
def test_other_weights_stay(folder: Path, tmp_path: Path, name: str) -> None:
    """Each is named with the reason."""
    (folder / name).write_bytes(b"x")
    found = dedup_command.dedup(folder, tmp_path / "out")
    assert not (tmp_path / "out" / name).exists()
    assert [text for text in found.left_out if repr(name) in text], found.left_out


def test_everything_else_comes_along(folder: Path, tmp_path: Path) -> None:
    """Byte for byte: a pickle that calls something is copied like any other bytes, unless its name is of weights."""
    called = b"cos\nsystem\n(S'exit 1'\ntR."
    for name in COMING:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        is_weights = name.endswith(".distcp") or (name.endswith(MAIN) and of_file(name).is_usual)
        (folder / name).write_bytes((b"" if is_weights else called) + name.encode())
    found = dedup_command.dedup(folder, tmp_path / "out")
    assert found.left_out == () and set(found.sidecars) == {*SMALL, *COMING}
    before, after = contents(folder), contents(tmp_path / "out")
    assert {name: after[name] for name in COMING} == {name: before[name] for name in COMING}
    assert dedup_command.dedup(folder, tmp_path / "out", force=True).sidecars == found.sidecars


def test_what_comes_along_is_part_of_the_progress(folder: Path, tmp_path: Path) -> None:
    """An optimizer can be larger than its weights: every byte is told."""
    (folder / "optimizer.pt").write_bytes(bytes(100_000))
    told: dict[str, list[int]] = {}

    @contextmanager
    def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
        told[label] = [total, 0]
        yield lambda nbytes: told[label].__setitem__(1, told[label][1] + nbytes)

    found = dedup_command.dedup(folder, tmp_path / "out", progress=progress)
    total = sum((tmp_path / "out" / name).stat().st_size for name in found.sidecars)
    assert told["copy"] == [total, total] and total > 100_000
    dedup_many.dedup_family([folder, tmp_path / "out"], tmp_path / "many", progress=progress)
    assert told["copy"] == [2 * total, 2 * total]


def test_files_that_may_be_weights_are_named(folder: Path, tmp_path: Path) -> None:
    """They are no smaller than they were; the state of a training is no such file."""
    for name in ("model_1.safetensors", "optimizer.bin", "a/adapter_model.bin"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    ran = quick("dedup", "model", "-o", "out", cwd=tmp_path)
    names = "a/adapter_model.bin, model_1.safetensors, speakers/a.npy"
    assert ran.code == 0 and f"as before  3 files  {names}  may be weights" in ran.out, ran
    (folder / "model_1.safetensors").unlink()
    (folder / "speakers" / "a.npy").unlink()
    (folder / "a" / "adapter_model.bin").unlink()
    assert "as before" not in quick("dedup", "model", "-o", "out", "--force", cwd=tmp_path).out


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "pytorch_lora_weights.safetensors", "weights.bin"])
def test_the_state_of_a_training_is_never_what_is_read(name: str, folder: Path, tmp_path: Path) -> None:
    """An adapter in a Trainer's folder is its one weights file; a folder with states alone has none."""
    states = [
        n for n in COMING if n.startswith(("optimizer", "scheduler", "rng_", "training", "random")) and "/" not in n
    ]
    for state in states:
        (folder / state).write_bytes(b"x")
    (folder / "model.safetensors").rename(folder / "kept")
    with pytest.raises(FormatError, match="without weights files"):
        paramtool.read(folder)
    with pytest.raises(paramtool.ParamtoolError, match=r"config\.json"):
        ask(folder)
    (folder / "kept").rename(folder / name)
    assert paramtool.read(folder).files[0].path == str(folder / name)
    found = dedup_command.dedup(folder, tmp_path / "out")
    assert set(found.sidecars) == {*SMALL, *states} and found.left_out == ()


def test_the_weights_that_were_read_decide_what_is_the_same(folder: Path) -> None:
    """Beside an adapter the model is something else, and beside the model an adapter is."""
    names = ("model.safetensors", "adapter_model.safetensors", "adapter_model.bin", "diffusion_flax_model.msgpack")
    for name in names:
        (folder / name).write_bytes(b"x")
    for read, stays in {
        "model.safetensors": set(),
        "adapter_model.safetensors": {"adapter_model.bin"},
        "diffusion_pytorch_model-00001-of-00002.bin": {"diffusion_flax_model.msgpack"},
    }.items():
        found = sidecars_of(str(folder), [str(folder / read)], "elsewhere")
        assert set(found.same) == stays and set(found.files) == {*SMALL, *names} - {*stays, read}
        assert all(path == str((folder / name).resolve()) for name, path in found.same.items())


def test_weights_that_were_compared_or_not_chosen_stay(folder: Path, tmp_path: Path) -> None:
    """Whatever they are called, and they are named; what only has a name of weights comes along in each case."""
    shutil.copy(folder / "model.safetensors", folder / "again.safetensors")
    (folder / "vocab.bin").write_bytes(b"words")
    found = dedup_command.dedup(folder, tmp_path / "out")
    assert found.left_out == ("file 'again.safetensors': the same weights once more",)
    assert "vocab.bin" in found.sidecars
    family = dedup_many.dedup_family([folder, tmp_path / "out"], tmp_path / "many")
    assert family.members[0].left_out == found.left_out
    save_file({"a": torch.ones(3)}, folder / "ema.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match="2 sets of weights that differ"):
        dedup_command.dedup(folder, tmp_path / "one")
    found = dedup_command.dedup(folder, tmp_path / "one", weights="ema.safetensors")
    assert [text.split("'")[1] for text in found.left_out] == ["again.safetensors", "model.safetensors"]
    assert all(text.endswith(f": {NOT_CHOSEN}") for text in found.left_out)
    assert set(found.sidecars) == {*SMALL, "vocab.bin"}
    family = dedup_many.dedup_family([folder, tmp_path / "out"], tmp_path / "more", weights="model.safetensors")
    assert f"file 'ema.safetensors': {NOT_CHOSEN}" in family.members[0].left_out
    each = dedup_command.dedup_each(folder, tmp_path / "each")
    assert {"vocab.bin", "ema.safetensors", "model.safetensors"} <= contents(tmp_path / "each").keys()
    left = [text for member in each.members for text in member.left_out]
    assert left == ["file 'again.safetensors': the same weights once more"]


def test_the_state_beside_sets_in_a_checkpoints_folder(folder: Path, tmp_path: Path) -> None:
    """`--each` of a run whose checkpoints have their weights in folders inside, as scripts of diffusers save them."""
    for name in ("checkpoint-5", "checkpoint-9"):
        (folder / name / "unet").mkdir(parents=True)
        (folder / name / "optimizer.bin").write_bytes(name.encode())
    shutil.copy(folder / "model.safetensors", folder / "checkpoint-5" / "unet" / "diffusion_pytorch_model.safetensors")
    dedup_command.dedup_each(folder, tmp_path / "out")
    assert (tmp_path / "out" / "checkpoint-5" / "unet" / "diffusion_pytorch_model.safetensors").is_file()
    assert (tmp_path / "out" / "checkpoint-5" / "optimizer.bin").read_bytes() == b"checkpoint-5"
    assert not (tmp_path / "out" / "checkpoint-9").exists()


def test_a_companion_with_the_name_of_another_set(folder: Path, tmp_path: Path) -> None:
    """`--each` writes safetensors for a pickle; a file of that name that is no weights is not lost under it."""
    torch.save({"x": torch.ones(3)}, folder / "pytorch_model_1.bin")
    (folder / "model_1.safetensors").write_bytes(b"something else")
    before = contents(tmp_path)
    with pytest.raises(PlanError, match=r"'model_1\.safetensors' would be copied over"):
        dedup_command.dedup_each(folder, tmp_path / "out")
    assert contents(tmp_path) == before


def test_the_folder_that_deepspeed_resumes_from(folder: Path, tmp_path: Path) -> None:
    """The one that `latest` names is part of this checkpoint; others are older ones."""
    for step in (5, 10):
        (folder / f"global_step{step}").mkdir()
        (folder / f"global_step{step}" / "mp_rank_00_model_states.pt").write_text(str(step))
    (folder / "latest").write_text("global_step10\n")
    found = dedup_command.dedup(folder, tmp_path / "out")
    assert found.left_out == ("folder 'global_step5': a checkpoint of its own",)
    assert (tmp_path / "out" / "global_step10" / "mp_rank_00_model_states.pt").read_text() == "10"
    for text in (b"global_step7", b"\xff", b""):
        (folder / "latest").write_bytes(text)
        assert len(dedup_command.dedup(folder, tmp_path / "out2", dry_run=True).left_out) == 2


@pytest.mark.parametrize(
    "name",
    ["checkpoint-500", "checkpoint_0", "checkpoint-best", "global_step10", "coreml/text.mlpackage", "__pycache__"],
)
def test_other_checkpoints_stay(folder: Path, tmp_path: Path, name: str) -> None:
    """The whole folder, and one line for it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "params.json").write_text("{}")
    (folder / name / "optimizer.bin").write_bytes(b"x")
    found = dedup_command.dedup(folder, tmp_path / "out")
    assert not (tmp_path / "out" / name).exists()
    assert len(found.left_out) == 1 and repr(name) in found.left_out[0]


EXPORTED = {
    "onnx": (["model.onnx", "model_q4.onnx_data", "quantised/decoder.onnx"], ["tokenizer.json", "config.json"]),
    "original": (["consolidated.00.pth", "model.safetensors.index.json"], ["params.json", "tokenizer.model"]),
    "openvino": (["openvino_model.xml", "openvino_model.bin"], ["README.md", "parts/notes.txt"]),
}


@pytest.mark.parametrize("name", EXPORTED)
def test_copies_in_folders_stay_and_what_is_beside_them_comes_along(folder: Path, tmp_path: Path, name: str) -> None:
    """One line for a folder, that names the files."""
    staying, coming = EXPORTED[name]
    for file in (*staying, *coming):
        (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / file).write_bytes(file.encode())
    found = dedup_command.dedup(folder, tmp_path / "out")
    there = {n.removeprefix(f"{name}/") for n, what in contents(tmp_path / "out").items()
             if what != "folder" and n.startswith(name)}  # fmt: skip
    assert there == set(coming)
    assert len(found.left_out) == 1 and all(repr(f"{name}/{file}") in found.left_out[0] for file in staying)


def test_a_folder_that_is_only_called_as_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    """Without weights and without the state of a training it comes along."""
    (folder / "checkpoint-tokenizer").mkdir()
    (folder / "checkpoint-tokenizer" / "tokenizer.json").write_text("{}")
    (folder / "vocab.ot").write_bytes(b"words")
    found = dedup_command.dedup(folder, tmp_path / "out")
    assert found.left_out == () and {"checkpoint-tokenizer/tokenizer.json", "vocab.ot"} <= set(found.sidecars)


NO_WEIGHTS = {
    "no tensors": ("model_state.pt", {"step": 3}),
    "more than tensors": ("pytorch_model.bin", {"a": torch.zeros(2), "epoch": 3}),
    "names of its own": ("stats.pt", {"mean": torch.ones(4)}),
    "an optimizer and a tensor": ("optim.pt", {"state": {0: {"exp_avg": torch.ones(2)}}, "loss": torch.ones(1)}),
}


@pytest.mark.parametrize("key", NO_WEIGHTS)
def test_what_only_is_called_as_weights_are_comes_along(key: str, folder: Path, tmp_path: Path) -> None:
    """A file that can be read is judged by what it holds, and not by its name."""
    name, held = NO_WEIGHTS[key]
    if "a" in held:
        held = {**load_file(folder / "model.safetensors"), "epoch": 3}
    torch.save(held, folder / name)
    for run in (dedup_command.dedup, dedup_command.dedup_each):
        run(folder, tmp_path / "out", force=True)  # type: ignore[operator]
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    ran = quick("dedup", "model", "-o", "two", "--weights", "model.safetensors", cwd=tmp_path)
    assert ran.code == 0 and ((tmp_path / "two" / name).exists() or f"file {name!r}: {NOT_CHOSEN}" in ran.out), ran


def test_hidden_files_stay(folder: Path, tmp_path: Path) -> None:
    """`.git`, `.cache` and their like, in one line."""
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("x")
    (folder / "speakers" / ".DS_Store").write_text("x")
    found = dedup_command.dedup(folder, tmp_path / "out")
    assert found.left_out == ("hidden: '.git', 'speakers/.DS_Store'",)
    assert not any(name.rpartition("/")[2].startswith(".") for name in contents(tmp_path / "out"))


def test_links(folder: Path, tmp_path: Path) -> None:
    """To a regular file of the folder: copied as a file.  To anything else: not followed, and said."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (folder / "good.txt").symlink_to("README.md")
    (folder / "deep.txt").symlink_to(os.path.join("1_Pooling", "config.json"))
    for name, target in {"out.txt": "../secret", "absolute.txt": str(tmp_path / "secret"), "ghost.txt": "nowhere",
                         "folder": "../outside", "inner": "speakers", "loop.txt": "loop.txt"}.items():  # fmt: skip
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "fifo")
    found = dedup_command.dedup(folder, tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "good.txt").read_text() == "this is README.md" and not (out / "good.txt").is_symlink()
    assert (out / "deep.txt").read_text() == "this is 1_Pooling/config.json"
    stayed = ["absolute.txt", "fifo", "folder", "ghost.txt", "inner", "loop.txt", "out.txt"]
    assert not any((out / name).exists() for name in stayed)
    assert [text.split("'")[1] for text in found.left_out] == stayed
    assert not any(what == b"secret" for what in contents(out).values())


def test_a_hub_cache(folder: Path, tmp_path: Path) -> None:
    """A snapshot of links to blobs, as huggingface_hub keeps one, becomes a folder of files."""
    repo = tmp_path / "models--x--y"
    snapshot = repo / "snapshots" / "0123abcd"
    (repo / "blobs").mkdir(parents=True)
    for k, (name, what) in enumerate(contents(folder).items()):
        if isinstance(what, bytes):
            (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            (repo / "blobs" / f"{k:040x}").write_bytes(what)
            (snapshot / name).symlink_to(os.path.relpath(repo / "blobs" / f"{k:040x}", (snapshot / name).parent))
    (snapshot / "evil.txt").symlink_to("../../refs")
    (repo / "refs").write_text("secret")
    found = dedup_command.dedup(snapshot, tmp_path / "out")
    (tmp_path / "link").symlink_to(snapshot)
    assert dedup_command.dedup(tmp_path / "link", tmp_path / "out2").sidecars == found.sidecars
    dedup_command.dedup(folder, tmp_path / "plain")
    assert contents(tmp_path / "out") == contents(tmp_path / "plain") == contents(tmp_path / "out2")
    assert found.left_out == ("file 'evil.txt': a link that leads out of the folder, not followed",)


def test_an_output_inside_the_input(folder: Path) -> None:
    """Refused: it would be a companion of the next output."""
    before = contents(folder)
    with pytest.raises(OutputError, match="would be inside"):
        dedup_command.dedup(folder, folder / "small")
    assert contents(folder) == before


def test_equal_names_stand_again_unless_asked(folder: Path, tmp_path: Path) -> None:
    """A folder is opened by programs that read no alias record: every name is stored, and the report says the cost."""
    plain = dedup_command.dedup(folder, tmp_path / "plain")
    assert plain.repeated_nbytes == 16384 and plain.warnings == ()
    once = dedup_command.dedup(folder, tmp_path / "once", share_renamed=True)
    assert once.repeated_nbytes == 0 and list(load_file(tmp_path / "once" / "model.safetensors")) == ["a", "c"]
    assert verify_command.verify(once.output, plain.output).differences == ()


def test_a_link_is_never_replaced(folder: Path, tmp_path: Path) -> None:
    """--force would put a file where the link is, and leave what it leads to as it was."""
    (tmp_path / "real").write_text("real")
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "real")
    for target in ("link.safetensors",):
        with pytest.raises(OutputError, match="link"):
            dedup_command.dedup(folder, tmp_path / target, force=True)
    assert (tmp_path / "real").read_text() == "real" and (tmp_path / "link.safetensors").is_symlink()


def test_a_file_out_of_a_folder_in(folder: Path, tmp_path: Path) -> None:
    """`-o` that ends in .safetensors is a file, and nothing comes along; nor does it for a file in."""
    found = dedup_command.dedup(folder, tmp_path / "one.safetensors")
    assert (tmp_path / "one.safetensors").is_file() and found.sidecars == ()
    found = dedup_command.dedup(folder / "model.safetensors", tmp_path / "shards", max_shard_size=1000)
    assert found.sidecars == () and sorted(contents(tmp_path / "shards")) == sorted(
        os.path.basename(file) for file in found.files
    )


def test_a_sharded_folder(folder: Path, tmp_path: Path) -> None:
    """Shards and an index with the same files beside them; what is read is no companion."""
    sharded = tmp_path / "sharded"
    dedup_command.dedup(folder, sharded, max_shard_size=1000, equal=False)
    assert (sharded / "model.safetensors.index.json").is_file() and (sharded / "config.json").is_file()
    found = dedup_command.dedup(sharded)
    assert found.left_out == () and found.sidecars == SMALL
    assert (Path(found.output) / "model-00001-of-00001.safetensors").is_file()
    export = export_command.export(found.output, tmp_path / "plain", all_names=True, max_shard_size=1000)
    assert set(export.names) == {"a", "b", "c"} and contents(tmp_path / "plain").keys() == contents(sharded).keys()
    assert set(load_file(tmp_path / "plain" / "model-00001-of-00003.safetensors")) == {"a"}


def test_the_weights_that_transformers_would_open(folder: Path) -> None:
    """Of several that hold the same, in its order: the one file, an index, and the same of torch."""
    names = ["pytorch_model.bin.index.json", "pytorch_model.bin", "model.safetensors.index.json"]
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "shard.safetensors")
    index = json.dumps({"weight_map": dict.fromkeys("abc", "shard.safetensors")})
    for name in names:
        (folder / name).write_bytes(index.encode() if "index" in name else b"x")
        if name == "pytorch_model.bin":
            torch.save(state, folder / name)
        assert paramtool.read(folder).files[0].path == str(folder / name)
    save_file(state, folder / "model.safetensors")
    assert paramtool.read(folder).files[0].path == str(folder / "model.safetensors")


def test_an_earlier_output_is_replaced(folder: Path, tmp_path: Path) -> None:
    """With --force: weights, and exact copies of what comes along.  Whatever was added or changed stops it."""
    out = tmp_path / "out"
    args = ("dedup", "model", "-o", "out")
    assert quick(*args, cwd=tmp_path).code == 0
    assert quick(*args, cwd=tmp_path).code == 7
    assert quick(*args, "--force", cwd=tmp_path).code == 0
    assert quick(*args, "--max-shard-size", "1kB", "--force", cwd=tmp_path).code == 0
    assert not (out / "model.safetensors").exists()
    assert quick(*args, "--force", cwd=tmp_path).code == 0
    for name, said in {"diary.txt": "diary.txt", "speakers/diary.txt": "speakers/diary.txt", "more/x": "more",
                       "config.json": "config.json (changed)", "1_Pooling/config.json": "config.json (changed)",
                       "pytorch_model.bin": "pytorch_model.bin"}.items():  # fmt: skip
        (out / name).parent.mkdir(exist_ok=True)
        old = (out / name).read_bytes() if (out / name).exists() else None
        (out / name).write_text("precious")
        before = contents(tmp_path)
        ran = quick(*args, "--force", cwd=tmp_path)
        assert ran.code == 7 and said in ran.err and "--force would lose" in ran.err, (name, ran)
        assert contents(tmp_path) == before
        (out / name).unlink() if old is None else (out / name).write_bytes(old)
        if name == "more/x":
            (out / "more").rmdir()
    assert quick(*args, "--force", cwd=tmp_path).code == 0
    (out / "README.md").unlink()
    (out / "README.md").symlink_to(folder / "README.md")
    assert quick(*args, "--force", cwd=tmp_path).code == 7
    (out / "README.md").unlink()
    (out / "speakers" / "a.npy").unlink()
    (out / "speakers").rmdir()
    (out / "speakers").symlink_to(folder / "speakers")
    assert quick(*args, "--force", cwd=tmp_path).code == 7


def test_the_input_is_never_replaced(folder: Path, tmp_path: Path) -> None:
    """Nor the folder around it."""
    before = contents(tmp_path)
    for output in ("model", ".", "model/../model"):
        for name in ("dedup", "export"):
            more = ("--all-names",) if name == "export" else ()
            ran = quick(name, "model", "-o", output, "--force", *more, cwd=tmp_path)
            assert ran.code == 7, ran
    assert contents(tmp_path) == before


def test_a_companion_that_cannot_be_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written then; it is not left out silently."""
    real = paramtool.formats.files.open_source
    from paramtool.engine.write import writer

    def refuse(path: str) -> object:
        if path.endswith("tokenizer.json"):
            raise FormatError(f"{path}: cannot be read: Permission denied")
        return real(path)

    monkeypatch.setattr(writer, "open_source", refuse)
    before = contents(tmp_path)
    with pytest.raises(FormatError, match=r"tokenizer\.json: cannot be read"):
        dedup_command.dedup(folder, tmp_path / "out")
    assert contents(tmp_path) == before


def test_a_disk_that_fills_while_they_are_copied(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OutputError, and nothing is left behind."""
    from paramtool.engine.write import sink

    def full(*places: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sink, "COPY", full)
    before = contents(tmp_path)
    with pytest.raises(OutputError, match="No space left"):
        dedup_command.dedup(folder, tmp_path / "out")
    assert contents(tmp_path) == before


def test_names_that_only_the_record_knows(folder: Path, tmp_path: Path) -> None:
    """One warning names them and the command that writes them all, which then is right."""
    ran = quick("dedup", "model", "-o", "my out", "--share-renamed", cwd=tmp_path)
    assert ran.code == 0 and ran.err.count("warning: ") == 1, ran
    command = ran.err.strip().rpartition("paramtool ")[2]
    assert "1 of 3 names" in ran.err and "'b'" in ran.err
    assert command == "export 'my out' --all-names -o 'my out.plain'"
    ran = quick("export", "my out", "--all-names", "-o", "my out.plain", cwd=tmp_path)
    assert ran.code == 0 and ran.err == "", ran
    old, new = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "my out.plain"))
    assert old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)
    assert (tmp_path / "my out.plain" / "tokenizer.json").read_text() == "this is tokenizer.json"
    assert quick("dedup", "model", "-o", "other", "--no-equal", cwd=tmp_path).err == ""


def test_names_that_are_calculated(folder: Path, tmp_path: Path) -> None:
    """Casts and constants are not stored at all: they are in the warning, and `export` calculates them."""
    a = torch.randn(64, 64).bfloat16()
    state = {"a": a.float(), "half": a, "ones": torch.ones(64, 64), "turned": a.float().t().contiguous()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    found = dedup_command.dedup(folder, tmp_path / "out", derive_casts=True, fold_constants=True, share_renamed=True)
    assert len(found.warnings) == 1 and found.warnings[0].startswith("3 of 4 names"), found.warnings
    export_command.export(tmp_path / "out", tmp_path / "plain", all_names=True)
    plain = load_file(tmp_path / "plain" / "model.safetensors")
    assert plain.keys() == state.keys() and all(torch.equal(plain[name], state[name]) for name in state)


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_a_folder_of_which_nothing_is_stored(form: str, tmp_path: Path) -> None:
    """Constants alone need no shards: the folder has one file, which is read, replaced and read again."""
    x = torch.zeros(2000)
    torch.save({"a": x, "b": x}, tmp_path / "c.pt")
    (tmp_path / "in").mkdir()
    save_file({"a": x, "b": x.clone()}, tmp_path / "in" / "model.safetensors")
    source = tmp_path / ("in" if form == "safetensors" else "c.pt")
    for _ in range(2):
        found = dedup_command.dedup(source, tmp_path / "t", max_shard_size=1 << 30, fold_constants=True, force=True)
        assert not found.plan.targets and found.files == (str(tmp_path / "t" / "model.safetensors"),)
    assert verify_command.verify(tmp_path / "t", source).differences == ()
    loaded = paramtool.load_file(tmp_path / "t")
    loaded["a"][0] = 1
    assert loaded["b"][0] == (form == "pt") and not loaded["b"][1:].any()


def test_the_report_says_what_came_along(folder: Path, tmp_path: Path) -> None:
    """As a row, with what stayed; a dry run says the same and writes nothing."""
    (folder / "x.gguf").write_text("x")
    before = contents(tmp_path)
    for name in ("dedup", "export"):
        more = ("--all-names",) if name == "export" else ()
        ran = quick(name, "model", "-o", "out", "--dry-run", *more, cwd=tmp_path)
        assert ran.code == 0 and "with  7 other files  1_Pooling/config.json, README.md" in ran.out, ran
        assert "left out  file 'x.gguf': the weights as another program takes them" in ran.out
    assert contents(tmp_path) == before


def test_a_networks_conversion_takes_them_along(folder: Path, tmp_path: Path) -> None:
    """`convert` of a folder writes a folder, too."""
    lstm = torch.nn.LSTM(3, 4)
    save_file({f"rnn.{name}": value for name, value in lstm.state_dict().items()}, folder / "model.safetensors")
    found = relayout_command.convert(folder, tmp_path / "out", target="keras", keep_split=True)
    assert (tmp_path / "out" / "model.safetensors").is_file() and "config.json" in found.sidecars
    ran = quick("convert", "model", "--to", "keras", "--keep-split", "-o", "in-keras", cwd=tmp_path)
    assert ran.code == 0 and "other files" in ran.out and (tmp_path / "in-keras" / "README.md").is_file(), ran


def test_an_optimizer_beside_converted_weights(folder: Path, tmp_path: Path) -> None:
    """It is of the weights before the conversion: refused, unless it is left out."""
    lstm = torch.nn.LSTM(3, 4)
    save_file({f"rnn.{name}": value for name, value in lstm.state_dict().items()}, folder / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "optimizer_0.bin"):
        (folder / name).write_bytes(b"x")
    with pytest.raises(PlanError, match=r"'optimizer.pt', 'optimizer_0.bin' beside the weights"):
        relayout_command.fuse(folder, tmp_path / "out", layout="cudnn")
    assert not (tmp_path / "out").exists()
    found = relayout_command.fuse(folder, tmp_path / "out", layout="cudnn", optimizer_state=["drop"])
    assert not (tmp_path / "out" / "optimizer.pt").exists() and (tmp_path / "out" / "scheduler.pt").exists()
    assert len([text for text in found.left_out if "--optimizer-state drop" in text]) == 2
    told = [text for text in dedup_command.dedup(folder, tmp_path / "out2").warnings if "optimizer" in text]
    assert not any(str(folder) in text for text in told)
    assert len(told) == 2 and all("no training goes on from it" in text for text in told)


def test_names_that_the_output_writes_are_never_sidecars(folder: Path) -> None:
    """Indexes and shards of the file that is read stay; what else has a written name is an error."""
    for name in ("model.safetensors.index.json", "model-00001-of-00002.safetensors"):
        (folder / name).write_text("x")
    found = sidecars_of(str(folder), [str(folder / "model.safetensors")], "elsewhere")
    assert {n for n in found.files if n.lower().startswith("model")} == {"modeling_x.py"}
    found = sidecars_of(str(folder), [str(folder / "other.safetensors")], "elsewhere")
    with pytest.raises(
        PlanError, match=r"'model.safetensors' would be copied over a file that the output writes: 'MODEL"
    ):
        check_names(["other.safetensors", "MODEL.safetensors"], found.files, "out")
    check_names(["other.safetensors", "shards/model.safetensors"], found.files, "out")


def test_a_written_name_is_refused_before_anything_is_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one checkpoint and by a family."""
    shutil.copytree(folder, tmp_path / "other")
    before = contents(tmp_path)
    found = {"modeling_x.py": str(folder / "modeling_x.py"), **{name: str(folder / "README.md") for name in WRITTEN}}
    for module in ("output.destination", "dedup_many"):
        monkeypatch.setattr(f"paramtool.commands.{module}.sidecars_of", lambda *_, **__: Sidecars(found))
    for dry_run in (False, True):
        with pytest.raises(PlanError, match="would be copied over"):
            dedup_command.dedup(folder, tmp_path / "out", dry_run=dry_run)
        with pytest.raises(PlanError, match="would be copied over"):
            dedup_many.dedup_family([folder, tmp_path / "other"], tmp_path / "out", dry_run=dry_run)
    assert contents(tmp_path) == before


WRITTEN = ("Model.safetensors", "model.safetensors.INDEX.json")
