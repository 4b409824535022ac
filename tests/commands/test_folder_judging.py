"""Files of a folder judged by what they hold: what is a set, what is a copy, what is something else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paramtool.commands import dedup as dedup_command
from tests import attention
from tests.hostile.command import contents, quick, refused
from tests.versions import exporting

State = dict[str, torch.Tensor]


def weights(seed: int = 0) -> State:
    """Tensors of more than what is looked at to see that two files differ."""
    torch.manual_seed(seed)
    return {"a.weight": torch.randn(64, 64), "b.weight": torch.randn(64)}


def model(folder: Path, name: str = "model.safetensors", seed: int = 0) -> Path:
    """A folder with weights and a config."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    save_file(weights(seed), folder / name, {"format": "pt"})
    return folder


def last_changed() -> State:
    """The same weights but for the last element of the largest."""
    state = weights()
    state["a.weight"][-1, -1] += 1
    return state


def test_verify_reads_all_of_a_copy(tmp_path: Path) -> None:
    """What differs behind the first bytes is a set of its own there, as for the commands that write."""
    torch.save(last_changed(), model(tmp_path / "in") / "pytorch_model.bin")
    assert quick("dedup", "in", "-o", "out", cwd=tmp_path).code == 2
    ran = quick("dedup", "in", "-o", "out", "--each", cwd=tmp_path)
    assert ran.code == 0 and "written as pytorch_model.safetensors, since another set is model.safetensors" in ran.err
    good = quick("verify", "out", "--against", "in", "--each", cwd=tmp_path)
    assert good.code == 0 and "4 names" in good.out, good
    state = load_file(tmp_path / "out" / "pytorch_model.safetensors")
    state["a.weight"][-1, -1] += 5
    save_file(state, tmp_path / "out" / "pytorch_model.safetensors", {"format": "pt"})
    bad = quick("verify", "out", "--against", "in", "--each", cwd=tmp_path)
    assert bad.code == 1 and "pytorch_model.safetensors: 'a.weight'" in bad.out, bad
    refused = quick("verify", "in", "--against", "out", cwd=tmp_path)
    assert refused.code == 2 and "--weights model.safetensors" in refused.err and "verify" in refused.err
    again = quick("verify", "in", "--against", "in", "--weights", "model.safetensors", cwd=tmp_path)
    assert again.code == 0, again


def test_verify_says_what_it_does_not_compare(tmp_path: Path) -> None:
    """Exports and older checkpoints, whichever of the folders has them."""
    for name, more in (("one", b"1"), ("two", b"2")):
        for file in ("model.gguf", "onnx/model.onnx", "checkpoint-5/model.safetensors"):
            path = model(tmp_path / name) / file
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(more)
    model(tmp_path / "bare")
    for out, source in (("one", "two"), ("one", "bare"), ("bare", "one")):
        ran = quick("verify", out, "--against", source, cwd=tmp_path)
        assert ran.code == 0 and ran.err.count("not compared") == 3, ran
        assert ("in the output alone" in ran.err) == (source == "bare")


ROOTS = {
    "an array": lambda folder: np.savez(folder / "eval_preds.npz", a=np.ones(3)),
    "statistics": lambda folder: torch.save({"mean": torch.ones(3)}, folder / "stats.pt"),
    "arguments": lambda folder: torch.save({"lr": 0.5}, folder / "run_args.bin"),
    "another index": lambda folder: (folder / "search.index.json").write_text('{"docs": 1}'),
    "a text": lambda folder: (folder / "vocab.bin").write_text("words"),
}


@pytest.mark.parametrize("key", ROOTS)
def test_a_root_with_a_file_that_is_called_as_weights_are(key: str, tmp_path: Path) -> None:
    """The weights are in the folders inside: they are listed; `--each` writes them and leaves that file as it is."""
    model(tmp_path / "in" / "checkpoint-3")
    model(tmp_path / "in" / "checkpoint-6", seed=1)
    ROOTS[key](tmp_path / "in")
    ran = quick("dedup", "in", "-o", "out", cwd=tmp_path)
    assert ran.code == 2 and "checkpoint-3/" in ran.err and "checkpoint-6/" in ran.err, ran
    ran = quick("dedup", "in", "-o", "out", "--each", cwd=tmp_path)
    assert ran.code == 0, ran
    assert contents(tmp_path / "out").keys() == contents(tmp_path / "in").keys()
    assert quick("verify", "out", "--against", "in", "--each", cwd=tmp_path).code == 0


FIRST = {
    "arguments": lambda folder: torch.save({"lr": 0.5}, folder / "args.pt"),
    "an optimizer": lambda folder: torch.save({"state": {}, "param_groups": []}, folder / "adam.pt"),
    "a text": lambda folder: (folder / "args.bin").write_text("words"),
}


@pytest.mark.parametrize("key", FIRST)
def test_a_file_without_weights_is_not_the_first_set(key: str, tmp_path: Path) -> None:
    """Whatever comes first by its name."""
    folder = tmp_path / "in"
    folder.mkdir()
    torch.save(weights(), folder / "net.pt")
    FIRST[key](folder)
    ran = quick("dedup", "in", "-o", "out", cwd=tmp_path)
    assert ran.code == 0, ran
    assert contents(tmp_path / "out").keys() == contents(folder).keys() - {"net.pt"} | {"net.safetensors"}


def test_weights_that_a_library_looks_for_have_to_be_readable(tmp_path: Path) -> None:
    """Nothing takes the place of a damaged file in silence."""
    folder = model(tmp_path / "in")
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    torch.save(weights(), folder / "net.pt")
    ran = quick("dedup", "in", "-o", "out", cwd=tmp_path)
    assert ran.code == 3 and "model.safetensors" in ran.err and "net.pt" in ran.err


MORE = {
    "packed weights": {"c.qweight": torch.ones(9, 9, dtype=torch.uint8)},
    "statistics": {"bn.running_mean": torch.randn(5), "bn.running_var": torch.ones(5)},
}


@pytest.mark.parametrize("key", MORE)
def test_a_copy_that_holds_more_is_none(key: str, tmp_path: Path) -> None:
    """Only what a model makes itself may be missing in the first: masks, positions, frequencies."""
    torch.save(weights() | MORE[key], model(tmp_path / "in") / "pytorch_model.bin")
    ran = quick("dedup", "in", "-o", "out", cwd=tmp_path)
    assert ran.code == 2 and f"'{next(iter(MORE[key]))}' is not in model.safetensors" in ran.err, ran


SMALL = {
    "model.npz": lambda path: np.savez(path, mean=np.ones(3)),
    "model.mean.pt": lambda path: torch.save({"mean": torch.ones(3)}, path),
    "model.index.json": lambda path: path.write_text(json.dumps({"docs": 1})),
    "original/pre_finetune.pt": lambda path: torch.save({"x": torch.ones(3)}, path),
    "original/vocab.bin": lambda path: path.write_text("words"),
    "onnx/calibration.npz": lambda path: np.savez(path, a=np.ones(3)),
    "openvino/openvino_tokenizer.bin": lambda path: path.write_text("words"),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_only_sounds_like_the_weights_comes_along(name: str, tmp_path: Path) -> None:
    """By its content, or because its name says too little."""
    path = model(tmp_path / "in") / name
    path.parent.mkdir(exist_ok=True)
    SMALL[name](path)
    found = dedup_command.dedup(tmp_path / "in", tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == path.read_bytes() and found.left_out == ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["model.onnx", "model_quantized.onnx", "encoder_model.onnx", "foo.onnx"])
def test_an_export_to_onnx_stays(name: str, tmp_path: Path) -> None:
    """torch.onnx's exporter names and transposes some weights itself."""
    pytest.importorskip("onnx")
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4, bias=False))
    (tmp_path / "in").mkdir()
    save_file(net.state_dict(), tmp_path / "in" / "model.safetensors", {"format": "pt"})
    torch.onnx.export(net, (torch.ones(2, 3, 8),), str(tmp_path / "in" / name), **exporting())
    found = dedup_command.dedup(tmp_path / "in", tmp_path / "out")
    assert len(found.left_out) == 1 and name in found.left_out[0], found.left_out


def test_a_folder_of_links_into_a_hubs_cache(tmp_path: Path) -> None:
    """huggingface_hub before 0.23 made such: every link leads to a blob; a link elsewhere is the first line."""
    blobs = tmp_path / "cache" / "models--x--y" / "blobs"
    blobs.mkdir(parents=True)
    model(tmp_path / "there")
    (tmp_path / "in").mkdir()
    for name in ("config.json", "model.safetensors"):
        os.replace(tmp_path / "there" / name, blobs / f"{name}0")
        (tmp_path / "in" / name).symlink_to(blobs / f"{name}0")
    ran = quick("dedup", "in", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and ran.err == "" and (tmp_path / "out" / "config.json").read_text() == "{}"
    (tmp_path / "secret.txt").write_text("x")
    (tmp_path / "in" / "more.txt").symlink_to(tmp_path / "secret.txt")
    ran = quick("dedup", "in", "-o", "out", "--force", cwd=tmp_path)
    assert ran.code == 0 and ran.err.startswith("warning: left out: file 'more.txt': a link that leads out"), ran


def test_links_beside_the_weights_are_followed(tmp_path: Path) -> None:
    """Every link leads into the folder where the weights are: what is just there comes along, and nothing deeper."""
    model(tmp_path / "there")
    (tmp_path / "there" / "deeper").mkdir()
    (tmp_path / "there" / "deeper" / "secret.txt").write_text("x")
    (tmp_path / "in").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "in" / name).symlink_to(tmp_path / "there" / name)
    (tmp_path / "in" / "more.txt").symlink_to("../there/deeper/secret.txt")
    ran = quick("dedup", "in", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and (tmp_path / "out" / "config.json").read_text() == "{}"
    assert not (tmp_path / "out" / "more.txt").exists() and "'more.txt': a link that leads out" in ran.err


@pytest.mark.parametrize(
    "command", [("convert", "--to", "vllm"), ("fuse", "--layout", "qkv"), ("unfuse", "--layout", "gate-up")]
)
def test_a_config_that_is_a_link_out_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    """Without it no program would open the output; the weights are no link, so nothing says where links may lead."""
    state = attention.state_of(attention.LLAMA)
    if command[0] == "unfuse":
        at = "model.layers.{}.mlp.gate_up_proj.weight"
        state = {at.format(k): torch.randn(10, 6) for k in (0, 1)}
    folder = attention.folder_of(tmp_path / "m", attention.LLAMA, state)
    os.replace(folder / "config.json", tmp_path / "elsewhere.json")
    (folder / "config.json").symlink_to("../elsewhere.json")
    says = ("m/config.json: a link that leads out of the folder, not followed",)
    refused(quick, command[0], "m", *command[1:], "-o", "out", cwd=tmp_path, code=4, says=says)


def test_a_family_of_adapters_is_refused(tmp_path: Path) -> None:
    """PEFT itself does not open shards of an adapter; each folder alone is opened."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(8, 8))
    for name in ("one", "two"):
        adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules=["0"], r=2))
        adapted.save_pretrained(tmp_path / name)
        base = adapted.unload()
    ran = quick("dedup", "one", "two", "-o", "both", cwd=tmp_path)
    assert (
        ran.code == 6 and "PEFT opens adapter_model.safetensors alone" in ran.err and not (tmp_path / "both").exists()
    )
    assert quick("dedup", "one", "-o", "out", cwd=tmp_path).code == 0
    again = peft.PeftModel.from_pretrained(torch.nn.Sequential(torch.nn.Linear(8, 8)), tmp_path / "out")
    held = load_file(tmp_path / "one" / "adapter_model.safetensors")
    assert all(torch.equal(tensor, held[name]) for name, tensor in peft.get_peft_model_state_dict(again).items())


def test_links_to_the_weights_inside_folders(tmp_path: Path) -> None:
    """A hub's cache has one blob for equal files: what is in a folder inside comes along, as a file would."""
    folder = model(tmp_path / "in")
    (folder / "0_Transformer").mkdir()
    (folder / "0_Transformer" / "model.safetensors").symlink_to("../model.safetensors")
    (folder / "pytorch_model.safetensors").symlink_to("model.safetensors")
    found = dedup_command.dedup(folder, tmp_path / "out")
    inside = tmp_path / "out" / "0_Transformer" / "model.safetensors"
    assert inside.read_bytes() == (folder / "model.safetensors").read_bytes() and not inside.is_symlink()
    assert found.left_out == ("file 'pytorch_model.safetensors': the same weights once more",)


def test_a_folder_called_original_without_weights_beside_it(tmp_path: Path) -> None:
    """It is not a copy of anything, so `--each` writes it like any other folder."""
    model(tmp_path / "in" / "original")
    model(tmp_path / "in" / "finetuned", seed=1)
    ran = quick("dedup", "in", cwd=tmp_path)
    assert ran.code == 2 and "original/" in ran.err and "finetuned/" in ran.err
    assert quick("dedup", "in", "-o", "out", "--each", cwd=tmp_path).code == 0
    assert contents(tmp_path / "out").keys() == contents(tmp_path / "in").keys()


def test_names_in_other_letters(tmp_path: Path) -> None:
    """No library looks for them, and nobody compared them: they come along."""
    folder = model(tmp_path / "in")
    torch.save(weights(1), folder / "PYTORCH_MODEL.BIN")
    assert "PYTORCH_MODEL.BIN" in dedup_command.dedup(folder, tmp_path / "out").sidecars


NOT_MADE = {
    "a pruning mask": {"fc.mask": torch.ones(64, 64, dtype=torch.bool)},
    "packed bias": {"q.bias": torch.full((64,), 7, dtype=torch.uint8)},
    "trained positions": {"emb.position_ids": torch.randn(1, 512)},
    "other positions": {"emb.position_ids": torch.arange(512).flip(0)[None]},
}


@pytest.mark.parametrize("key", NOT_MADE)
def test_what_only_is_called_as_a_buffer_is(key: str, tmp_path: Path) -> None:
    """Masks, positions and the like are excused for what they hold."""
    torch.save(weights() | NOT_MADE[key], model(tmp_path / "in") / "pytorch_model.bin")
    ran = quick("dedup", "in", "-o", "out", cwd=tmp_path)
    assert ran.code == 2 and "is not in model.safetensors" in ran.err, ran


def test_real_buffers_of_older_transformers(tmp_path: Path) -> None:
    """A causal mask, positions, token types, rotary frequencies: models make them again."""
    made = {
        "h.0.attn.bias": torch.ones(1, 1, 96, 96, dtype=torch.bool).tril(), "h.0.attn.masked_bias": torch.tensor(-1e4),
        "emb.position_ids": torch.arange(512)[None], "emb.token_type_ids": torch.zeros(1, 512, dtype=torch.long),
        "rotary.inv_freq": 1 / 10000 ** (torch.arange(0, 64, 2) / 64),
    }  # fmt: skip
    torch.save(weights() | made, model(tmp_path / "in") / "pytorch_model.bin")
    found = dedup_command.dedup(tmp_path / "in", tmp_path / "out")
    assert found.left_out == ("file 'pytorch_model.bin': the same weights once more",)


def test_a_copy_with_metadata_of_its_own_comes_along(tmp_path: Path) -> None:
    """As trainers of LoRA write it; the metadata stands nowhere else."""
    folder = model(tmp_path / "in")
    save_file(weights(), folder / "copy.safetensors", {"format": "pt", "ss_network_alpha": "8"})
    assert "copy.safetensors" in dedup_command.dedup(folder, tmp_path / "out").sidecars


def test_what_cannot_be_read_is_told_by_its_name(tmp_path: Path) -> None:
    """Nobody compared it, and the report says so."""
    folder = model(tmp_path / "in")
    (folder / "pytorch_model.bin").write_bytes(b"junk")
    left = dedup_command.dedup(folder, tmp_path / "out").left_out
    assert left == ("file 'pytorch_model.bin': the same weights in another format or variant, by its name",)


def test_a_tie_beside_a_tensor_that_begins_alike(tmp_path: Path) -> None:
    """The tensor that it is tied to counts before one whose first bytes are the same."""
    a, b = torch.randn(3, 2048), torch.randn(3, 2048)
    a[0], b[0] = 0, 0
    folder = tmp_path / "in"
    folder.mkdir()
    save_file({"a": a, "b": b}, folder / "model.safetensors", {"format": "pt"})
    torch.save({"a": a, "b": b, "c": b}, folder / "pytorch_model.bin")
    assert len(dedup_command.dedup(folder, tmp_path / "out").left_out) == 1
