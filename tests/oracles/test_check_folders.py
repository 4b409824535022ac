"""`check` on folders that transformers writes, on files of torch.save, and on checkpoints of other people."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import paramtool
from tests.examples import IS_WHOLE

SLOW = {"Xiaobin-Rong__gtcrn__model_trained_on_vctk.tar", "snakers4__silero-vad__v3_silero_vad.jit"}
"""Samples that are not locked in `make test`: test_diff_real_pairs.py has them."""
SAMPLES = Path(__file__).resolve().parents[2].parent / "shared" / "samples"
EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


def gpt2(folder: Path, *, tied: bool, sharded: bool = False) -> Any:
    """A tiny GPT-2 with fixed weights, saved."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=100, n_positions=16, n_embd=8, n_layer=2, n_head=2, tie_word_embeddings=tied,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder, **({"max_shard_size": "3KB"} if sharded else {}))
    return model


def ids(found: paramtool.Checked) -> set[str]:
    return {one.id for one in found.findings}


@pytest.mark.parametrize("sharded", [False, True])
def test_a_tied_model_keeps_to_its_policy(sharded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """save_pretrained leaves the head out; its config ties it."""
    monkeypatch.chdir(tmp_path)
    model = gpt2(tmp_path / "m", tied=True, sharded=sharded)
    count = sum(parameter.numel() for parameter in model.parameters())
    Path("paramtool.toml").write_text(
        f'files = ["m"]\ntied = [["{EMBEDDING}", "{HEAD}"]]\nconfig-ties = true\nno-nan = true\nmax-unused = 0\n'
        f'parameters = {count}\ndtype = {{"*" = "float32"}}\n'
    )
    found = paramtool.check()
    assert found.findings == () and found.exit_code == 0
    paramtool.lock(["m"])
    assert paramtool.check().findings == ()


def test_a_tie_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same model saved without the tie: the rule, the config's ties of the lock, and the new tensor."""
    monkeypatch.chdir(tmp_path)
    gpt2(tmp_path / "m", tied=True)
    paramtool.lock(["m"])
    shutil.rmtree("m")
    gpt2(tmp_path / "m", tied=False)
    Path("paramtool.toml").write_text(f'tied = [["{EMBEDDING}", "{HEAD}"]]')
    found = paramtool.check()
    assert {"PT103", "PT105", "PT203"} <= ids(found) and found.exit_code == 1
    (untied,) = (one for one in found.findings if one.id == "PT103")
    assert set(untied.names) == {EMBEDDING, HEAD} and untied.place is not None and untied.place.line == 1


def test_a_state_dict_that_torch_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.save keeps the tie; loading and copying every tensor loses it, which the lock says in a line."""
    monkeypatch.chdir(tmp_path)
    model = gpt2(tmp_path / "m", tied=True)
    torch.save(model.state_dict(), "model.pt")
    paramtool.lock(["model.pt"])
    assert paramtool.check().exit_code == 0
    torch.save({name: tensor.clone() for name, tensor in torch.load("model.pt").items()}, "model.pt")
    lost = [one for one in paramtool.check().findings if one.id == "PT101"]
    assert len(lost) == 1 and set(lost[0].names) == {EMBEDDING, HEAD}
    assert lost[0].message.endswith("does not any more (equal numbers)")
    assert lost[0].place is not None
    line = Path("paramtool.lock").read_text().splitlines()[lost[0].place.line - 1]
    assert line.startswith("tied ") and HEAD in line and EMBEDDING in line


def test_a_nan_in_any_type_of_torch(tmp_path: Path) -> None:
    """Every floating type that torch can write: one NaN is found where the type has one."""
    kinds = [
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
        torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    ]  # fmt: skip
    state = {}
    for kind in kinds:
        values = torch.zeros(70).to(kind)
        state[f"{kind}.clean"] = values.clone()
        values[69] = torch.tensor(float("nan")).to(kind)
        assert values.to(torch.complex128 if kind.is_complex else torch.float64).isnan().sum() == 1
        state[f"{kind}.lost"] = values
    torch.save(state, tmp_path / "m.pt")
    (tmp_path / "c.toml").write_text("no-nan = true")
    found = paramtool.check([tmp_path / "m.pt"], config=tmp_path / "c.toml")
    assert sorted(name for one in found.findings for name in one.names) == sorted(f"{kind}.lost" for kind in kinds)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the checkpoints of other people are not here")
def test_checkpoints_of_other_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that can be read is what its lock says; the others are named, and stop nothing."""
    monkeypatch.chdir(tmp_path)
    paths = [str(path) for path in SAMPLES.glob("*") if IS_WHOLE or path.name not in SLOW]
    seen = paramtool.check(paths)
    good = [file.path for file in seen.files if file.error is None]
    assert len(good) > 15 and {file.exit_code for file in seen.files if file.error} == {3}
    paramtool.lock(good)
    found = paramtool.check()
    assert len(found.files) == len(good) and [one for one in found.findings if one.id != "PT301"] == []


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the checkpoints of other people are not here")
def test_the_pointers_of_a_repository_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder cloned without git-LFS: an error without a lock, since nothing is known of its files."""
    monkeypatch.chdir(tmp_path)
    (file,) = paramtool.check([next(SAMPLES.glob("*sharded_lfs"))]).files
    assert file.exit_code == 3 and file.error is not None and "git-LFS pointer" in file.error.message
