"""`verify` of folders: every file counts, the sets of weights of a folder, and what its writer allowed."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paramtool.commands import dedup as dedup_command
from paramtool.commands import relayout as relayout_command
from paramtool.commands.verify import verify
from tests.hostile import makers_torch
from tests.hostile.command import quick
from tests.hostile.makers_torch import mapping, state, tensor
from tests.hostile.test_hostile_entry_points import CALLED, EVIL


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """A few weights, two of which are equal."""
    torch.manual_seed(seed)
    a = torch.randn(64, 64)
    return {"a": a, "b": a.clone(), "c": torch.ones(3)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A checkpoint of a training, as Trainer lays it out."""
    place = tmp_path / "run"
    (place / "nested").mkdir(parents=True)
    save_file(weights(), place / "model.safetensors", {"format": "pt"})
    torch.save(weights(), place / "pytorch_model.bin")
    torch.save({"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": []}, place / "optimizer.pt")
    torch.save({"last_epoch": 3}, place / "scheduler.pt")
    (place / "nested" / "config.json").write_text("{}")
    return place


def follow(ran: object, folder: Path) -> object:
    """Run the line that a command says comes next."""
    line = next(line for line in ran.out.splitlines() if line.startswith("next"))  # type: ignore[attr-defined]
    return quick(*shlex.split(line)[2:], cwd=folder)


CHANGES = {
    "optimizer.pt": "has other bytes", "scheduler.pt": "is missing", "nested/config.json": "has other bytes",
    "more.txt": "the source does not have it",
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_every_file_counts(name: str, run: Path, tmp_path: Path) -> None:
    """One that is missing, changed in its last byte or new is a difference; the copy that stayed behind is a note."""
    ran = quick("dedup", "run", "-o", "out", "-v", cwd=tmp_path)
    good = follow(ran, tmp_path)
    assert good.code == 0 and "objects, gradients, files" in good.out, good
    assert "'pytorch_model.bin': the same weights once more" in good.err, good
    changed = tmp_path / "out" / name
    if CHANGES[name] == "is missing":
        changed.unlink()
    elif changed.exists():
        held = changed.read_bytes()
        changed.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
    else:
        changed.write_bytes(b"x")
    bad = follow(ran, tmp_path)
    assert bad.code == 1 and bad.out.partition("verdict")[0] == f"difference: file {name!r}: {CHANGES[name]}\n", bad
    document = quick("verify", "out", "--against", "run", "--json", cwd=tmp_path)
    assert document.code == 1 and json.loads(document.out)["compared"][-1] == "files"
    for flag in ("--tensors-only", "--subset"):
        assert quick("verify", "out", "--against", "run", flag, cwd=tmp_path).code == 0
    assert quick("verify", "out", "--against", "run/model.safetensors", cwd=tmp_path).code == 0


def test_one_of_several_sets(run: Path, tmp_path: Path) -> None:
    """The line that follows names the weights that were taken."""
    save_file(weights(1), run / "model_1.safetensors", {"format": "pt"})
    ran = quick("dedup", "run", "-o", "out", "--weights", "model_1.safetensors", "-v", cwd=tmp_path)
    assert ran.code == 0 and "--weights model_1.safetensors" in ran.out, ran
    assert follow(ran, tmp_path).code == 0  # type: ignore[attr-defined]
    found = quick("verify", "out", "--against", "run", cwd=tmp_path)
    assert found.code == 2 and "2 sets of weights that differ" in found.err


def pipeline(folder: Path) -> Path:
    """Sets in folders inside, two of them in one, and the files of a pipeline."""
    for k, name in enumerate(("unet/diffusion_pytorch_model", "unet/diffusion_pytorch_model.fp16", "vae/model")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save(weights(k), folder / f"{name}.bin")
        (folder / name).with_name("config.json").write_text("{}")
    (folder / "model_index.json").write_text("{}")
    return folder


EACH = [("dedup",), ("dedup", "--plain"), ("export", "--all-names"), ("dedup", "--max-shard-size", "10kB")]


@pytest.mark.parametrize("words", EACH, ids=" ".join)
def test_each_set(words: tuple[str, ...], tmp_path: Path) -> None:
    """One line for all of them; whatever differs in one is named with its file."""
    pipeline(tmp_path / "pipe")
    ran = quick(words[0], "pipe", "-o", "out", "--each", *words[1:], cwd=tmp_path)
    assert ran.out.count("next  ") == 1 and "--each" in ran.out.splitlines()[-1], ran
    good = follow(ran, tmp_path)
    assert good.code == 0 and "9 names" in good.out, good  # type: ignore[attr-defined]
    if words[1:]:
        return
    save_file(weights(9), tmp_path / "out" / "vae" / "model.safetensors", {"format": "pt"})
    (tmp_path / "out" / "unet" / "config.json").write_text("{ }")
    shutil.copy(tmp_path / "out" / "vae" / "model.safetensors", tmp_path / "out" / "vae" / "more.safetensors")
    (tmp_path / "out" / "unet" / "diffusion_pytorch_model.fp16.safetensors").unlink()
    bad = follow(ran, tmp_path)
    lines = [line.partition("difference: ")[2] for line in bad.out.splitlines()]  # type: ignore[attr-defined]
    if words[0] == "dedup":
        assert bad.code == 1, bad  # type: ignore[attr-defined]
        assert "file 'unet/config.json': has other bytes" in lines
        assert any(line.startswith("vae/model.safetensors: 'a'") for line in lines)
        lacking = "weights 'unet/diffusion_pytorch_model.fp16.safetensors': are missing; the source has "
        assert any(line.startswith(lacking) for line in lines)


def test_each_of_what_has_one_set(run: Path, tmp_path: Path) -> None:
    """`--each` needs no several sets."""
    dedup_command.dedup(run, tmp_path / "out")
    assert quick("verify", "out", "--against", "run", "--each", cwd=tmp_path).code == 0
    for more in (("--weights", "model.safetensors"), ("--only", "model")):
        assert quick("verify", "out", "--against", "run", "--each", *more, cwd=tmp_path).code == 2


@pytest.mark.parametrize("allowed", [("--allow-class", CALLED), ("--allow-unknown",)], ids=" ".join)
@pytest.mark.parametrize("words", [("dedup",), ("export", "--all-names")], ids=" ".join)
def test_what_was_allowed_is_said_again(words: tuple[str, ...], allowed: tuple[str, ...], tmp_path: Path) -> None:
    """Without it the line that verifies would be refused."""
    pickle = state(model=mapping(w=tensor()), args=EVIL)
    (tmp_path / "evil.pt").write_bytes(makers_torch.archive(*makers_torch.parts(pickle)))
    more = ("--skip-unsupported",) if words[0] == "dedup" and allowed[0] == "--allow-class" else ()
    ran = quick(words[0], "evil.pt", "-o", "out.pt", *words[1:], *allowed, *more, "-v", cwd=tmp_path)
    assert ran.code == 0, ran
    assert follow(ran, tmp_path).code == 0, (ran, follow(ran, tmp_path))  # type: ignore[attr-defined]


def test_a_file_holds_no_config(tmp_path: Path) -> None:
    """What config.json says of codes is beside a file, and what they stand for is not proved without it."""
    (folder := tmp_path / "m").mkdir()
    codes = {"q.qweight": torch.zeros(4, 8, dtype=torch.int32), "q.qzeros": torch.zeros(1, 1, dtype=torch.int32)}
    save_file({**codes, "q.scales": torch.ones(1, 8)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text('{"quantization_config": {"quant_method": "gptq", "bits": 4}}')
    for name in ("one.safetensors", "one.pt"):
        relayout_command.convert(folder, tmp_path / name)
        (said,) = verify(tmp_path / name, folder).differences
        assert said.endswith("in one of the two only: config.json")
    shutil.copytree(folder, tmp_path / "o")
    (tmp_path / "o" / "config.json").unlink()
    assert any("in one of the two only" in text for text in verify(tmp_path / "o", folder).differences)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq", "bits": 8}}')
    assert any("bits is 8" in text for text in verify(tmp_path / "one.pt", folder).differences)
