"""The findings that no other test names: what their READMEs say is right.  Each finding is named by a test.

A row is a finding, a command in a folder with a copy of it, the exit code, and words of what it prints.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paramtool
from paramtool.passes.rnn import find
from tests.examples import shared
from tests.hostile.command import quick

TESTS = Path(__file__).parents[1]
SOURCES = (".py", ".toml")
ROWS = [
    ("surr.safetensors", "inspect surr.safetensors", 3, ["half of a surrogate pair"]),
    ("surrname.safetensors", "inspect surrname.safetensors", 3, ["half of a surrogate pair"]),
    ("surrogate_index", "inspect surrogate_index", 3, ["half of a surrogate pair"]),
    ("meta.safetensors", "export meta.safetensors --all-names -o out.safetensors", 0, ["all read back and equal"]),
    ("field/diff-own-outputs", "convert diff-own-outputs/train.pt -o out.onnx --skip-unsupported", 0, ["--subset"]),
    ("t_weightdrop.pt", "convert t_weightdrop.pt --to torch -o out.pt", 0, ["'rnn.weight_hh_l0_raw' is read as"]),
    ("field/gates", "inspect gates/dcp-surrogate-path", 3, [r"'\ud800', which is the name of no file"]),
    ("field/gates", "check gates/dcp-surrogate-path", 3, [r"\ud800"]),
    ("field/gates", "check a.pt --config gates/toml-nul/paramtool.toml", 2, ["no path and no pattern has a NUL"]),
    (
        "field/haste",
        "convert haste/haste_lstm.pt --to torch -o out.pt",
        5,
        ["names are those of keras in a file of PyTorch"],
    ),
    (
        "field/haste",
        "convert haste/haste_gru.pt --to torch -o out.pt",
        5,
        ["names are those of keras in a file of PyTorch"],
    ),
    (
        "field/haste",
        "convert haste/haste_lstm.pt --to torch --from keras --spec backward=no -o out.pt",
        0,
        ["warning: 'encoder.rnn': the names are those of keras in a file of PyTorch"],
    ),
    (
        "field/compiled-blocks",
        "variants compiled-blocks/blk.pt --against compiled-blocks/blk_names.txt",
        1,
        ["'_orig_mod.' of torch.compile", "--rename '*._orig_mod.*=*.*'"],
    ),
    (
        "field/compiled-blocks",
        "export compiled-blocks/blk.pt --names compiled-blocks/blk_names.txt --rename *._orig_mod.*=*.* -o out.pt",
        0,
        ["all read back and equal"],
    ),
    (
        "field/peft-load-line",
        "dedup peft-load-line/peft_adapter -o out",
        0,
        ["peft.PeftModel.from_pretrained(base, 'out')"],
    ),
    ("field/check-folder", "check check-folder/check_d_missed", None, ["PT301", "posix.system"]),
    ("field/check-folder", "check check-folder/check_t9_missed", None, ["PT301", "posix.system"]),
    ("field/onnx-zero-state", "inspect onnx-zero-state/e_False.onnx", 0, ["network"]),
    ("field/keras1", "guess keras1/k1_lstm.h5", 0, ["keras.gates", "lstm input="]),
    ("field/truncated-exec", "inspect truncated-exec/broken_model.pkl", 4, ["exec"]),
    ("field/keras-lambda", "check keras-lambda/lambda.keras", None, ["marshal.loads"]),
    (
        "field/weight-norm",
        "convert weight-norm/wnb.pt --into weight-norm/wn_new.onnx -o out.onnx",
        5,
        ["remove_weight_norm"],
    ),
    (
        "field/weight-norm",
        "convert weight-norm/wn.pt --into weight-norm/wn.keras -o out.keras",
        5,
        ["remove_parametrizations"],
    ),
]


@pytest.mark.parametrize("finding, line, code, says", ROWS, ids=lambda value: str(value)[:90])
def test_a_finding(finding: str, line: str, code: int | None, says: list[str], tmp_path: Path) -> None:
    """Right as its README says; without a code, it is a refusal or a finding, 1 to 4."""
    source = shared("findings", *finding.split("/"))
    (shutil.copytree if source.is_dir() else shutil.copyfile)(source, tmp_path / source.name)
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    ran = quick(*line.split(), cwd=tmp_path)
    assert ran.code == code or (code is None and ran.code in (1, 2, 3, 4)), ran
    assert all(word in ran.out + ran.err for word in says), (says, ran)


def test_a_zero_state_is_nothing_to_pass(tmp_path: Path) -> None:
    """onnx-zero-state: zeros that torch's exporter stored are not named, and do not come along."""
    source = shared("findings", "field", "onnx-zero-state", "e_False.onnx")
    ran = quick("convert", source, "--to", "torch", "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 0 and "initial state" not in ran.out + ran.err, ran
    assert not [name for name in paramtool.load_file(tmp_path / "out.safetensors") if name.startswith("val_")]


def test_a_layout_of_ones_own_computes_what_its_library_computed(tmp_path: Path) -> None:
    """haste: the order of gates that its code has, in twelve lines; torch gives the outputs of the library."""
    folder = shared("findings", "field", "haste")
    words = ("--to", "torch", "--from", "haste", "--layout-file", folder / "haste.toml", "-o", "out.pt")
    ran = quick("convert", folder / "haste_lstm.pt", *words, cwd=tmp_path)
    assert ran.code == 0, ran
    state = torch.load(tmp_path / "out.pt")
    (prefix,) = {name[: -len("weight_ih_l0")] for name in state if name.endswith("weight_ih_l0")}
    lstm = torch.nn.LSTM(5, 6)
    lstm.load_state_dict({name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)})
    known = np.load(folder / "haste_lstm_expected.npz")
    found, _ = lstm(torch.from_numpy(known["x"]))
    np.testing.assert_allclose(found.detach().numpy(), known["y"], atol=1e-6)


def test_a_sound_file_beside_an_unsafe_one_that_cannot_be_read(tmp_path: Path) -> None:
    """gates/check-stops-at-bad-dcp: both are reported, in each form, and the unsafe one is a result."""
    folder = shared("findings", "field", "gates", "check-stops-at-bad-dcp")
    for form in ("sarif", "json", "text"):
        ran = quick("check", folder / "bad", folder / "evil.pt", "--format", form, cwd=tmp_path)
        assert ran.code == 4 and "posix.system" in ran.out and "bad" in ran.out + ran.err, ran


@pytest.mark.parametrize("clean", ["a.safetensors", "model.safetensors", "pytorch_model.bin"])
def test_an_array_of_objects_beside_a_clean_file(clean: str, tmp_path: Path) -> None:
    """object-arrays: what is read alone is looked at, or named, in a folder with other weights, too."""
    shared("findings", "field", "object-arrays")
    weights = {"a": torch.ones(4)}
    if clean.endswith(".bin"):
        torch.save(weights, tmp_path / clean)
    else:
        from safetensors.torch import save_file

        save_file(weights, tmp_path / clean)
    array = np.array({"w": np.ones(3)}, dtype=object)
    np.save(tmp_path / "d.npy", array, allow_pickle=True)
    alone = quick("inspect", "d.npy", cwd=tmp_path)
    assert alone.code == 0 and "1 tensor" in alone.out, alone
    for words in (("inspect", "."), ("check", ".")):
        ran = quick(*words, cwd=tmp_path)
        assert "d.npy" in ran.out + ran.err, ran


def test_no_step_of_diff_reads_a_network_again_for_each_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """slow-diff: the sample with 677 tensors against its conversion; `rnn.find` was called 1,634 times."""
    shared("findings", "field", "slow-diff")
    source = shared("samples", "Xiaobin-Rong__gtcrn__model_trained_on_vctk.tar")
    assert quick("convert", source, "--to", "cudnn", "-o", "out.safetensors", cwd=tmp_path).code == 0
    times = 0
    once = find.find

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal times
        times += 1
        return once(*args, **kwargs)

    for module in [*sys.modules.values()]:
        if module.__name__.startswith("paramtool.") and getattr(module, "find", None) is once:
            monkeypatch.setattr(module, "find", counted)
    ran = quick("diff", source, "out.safetensors", "--exit-code", cwd=tmp_path)
    assert ran.code == 0 and times < 100, (times, ran)


def test_each_finding_is_named_by_a_test() -> None:
    """By the name of its folder or file, with its quotes; the lists of what works do not count."""
    root = shared("findings")
    texts = [
        path.read_text(encoding="utf-8")
        for path in TESTS.rglob("*")
        if path.suffix in SOURCES and "works" not in path.parts
    ]
    names = [path.name for folder in (root, root / "field") for path in sorted(folder.iterdir())]
    part_of = re.compile(r".*\.io\.npz|.*\.onnx\.npz|README\.md|field")  # inputs and outputs beside a network
    words = {word for text in texts for word in re.findall(r"[\w.-]+", text)}
    unnamed = [name for name in names if not part_of.fullmatch(name) and name not in words]
    assert not unnamed, unnamed
