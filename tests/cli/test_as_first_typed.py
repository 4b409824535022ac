"""What a person types first: positions instead of flags, no -o, and the names of libraries for their dialects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.hostile.command import quick


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 4)
    torch.save({f"rnn.{name}": value for name, value in lstm.state_dict().items()}, tmp_path / "m.pt")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (("convert", "m.pt", "--to", "keras"), "m.to-keras.safetensors"),
        (("convert", "m.pt", "--dtype", "float16"), "m.converted.safetensors"),
        (("export", "m.pt", "--all-names"), "m.plain.safetensors"),
    ],
)
def test_without_an_output(model: Path, words: tuple[str, ...], made: str) -> None:
    """It stands beside the input, and a second run refuses; `verify` takes both by their positions."""
    assert quick(*words, cwd=model).code == 0
    assert {one.name for one in model.iterdir()} == {"m.pt", made}
    assert quick("verify", made, "m.pt", cwd=model).code == 0
    again = quick(*words, cwd=model)
    assert again.code == 7
    assert "--force" in again.err


@pytest.mark.parametrize("words", [(), ("m.pt", "--against", "m.pt")])
def test_verify_needs_one_source(model: Path, words: tuple[str, ...]) -> None:
    ran = quick("verify", "m.pt", *words, cwd=model)
    assert ran.code == 2
    assert "verify OUT CKPT" in ran.err


@pytest.mark.parametrize("word", ["hf", "huggingface", "transformers"])
def test_a_library_by_its_name(model: Path, word: str) -> None:
    ran = quick("convert", "m.pt", "--to", word, cwd=model)
    assert ran.code == 2
    assert "transformers-4" in ran.err


@pytest.mark.parametrize("unused", [0, 20, 400, 4000])
def test_dedup_is_offered_where_it_gains(tmp_path: Path, unused: int) -> None:
    """What `inspect` promises to leave out is what `dedup` leaves out, its record and header included."""
    shared = torch.arange(300.0 + unused)[:300]
    torch.save({"a": shared, "b": shared[:30]}, tmp_path / "m.pt")
    (offered,) = [line for line in quick("inspect", "m.pt", cwd=tmp_path).out.splitlines() if "next" in line] or [""]
    after = [
        line for line in quick("dedup", "m.pt", cwd=tmp_path).out.splitlines() if "unused" in line or "size" in line
    ]
    if offered:
        said = offered.partition("leave out ")[2].partition(" and")[0]
        assert any(line.startswith("unused") and said in line for line in after)
        assert (tmp_path / "m.dedup.safetensors").stat().st_size < (tmp_path / "m.pt").stat().st_size
    assert bool(offered) == (unused >= 400)


def test_other_weights_are_said_quietly(model: Path) -> None:
    torch.save({"rnn.x": torch.ones(2)}, model / "n.pt")
    assert quick("diff", "-q", "m.pt", "n.pt", cwd=model).out == "difference  different weights\n"
    assert quick("diff", "-q", "m.pt", "m.pt", cwd=model).out == ""


def test_a_tie_that_is_stored_twice_is_named(tmp_path: Path) -> None:
    w = torch.ones(30, 3)
    torch.save({"module.a": w, "module.b": w}, tmp_path / "m.pt")
    ran = quick("export", "m.pt", "--prefix", "module.", cwd=tmp_path)
    assert "left out  which names are one tensor: a = b; 360 B more are stored" in ran.out
    torch.save({"model": {"a": w, "b": w, "turned": w.T}}, tmp_path / "m.pt")
    ran = quick("export", "m.pt", "--only", "model", "-o", "n.safetensors", cwd=tmp_path)
    assert "left out  which names are one tensor: a = b = turned; 720 B more are stored" in ran.out
    assert "section  model  3 tensors, model  360 B" in quick("inspect", "m.pt", cwd=tmp_path).out


def test_an_output_that_is_typed_as_an_input_is_led_to_its_flag(model: Path) -> None:
    ran = quick("dedup", "m.pt", "out.safetensors", cwd=model)
    assert ran.code == 2 and "hint: -o out.safetensors\n" in ran.err, ran
    ran = quick("dedup", "m.pt", "m.pt", cwd=model)
    assert ran.code == 2 and "hint: -o DIR\n" in ran.err, ran


def test_the_size_before_is_that_of_the_files(tmp_path: Path) -> None:
    """Whatever is written of them, and whatever ties are given."""
    torch.save({"model": {"a": torch.randn(9)}, "ema": {"a": torch.randn(900)}}, tmp_path / "m.pt")
    for flags in ((), ("--only", "model"), ("--only", "model", "--ties", "b=a")):
        ran = quick("dedup", "m.pt", "--json", "--dry-run", *flags, cwd=tmp_path)
        assert ran.code == 0, ran
        assert json.loads(ran.out)["nbytes_before"] == (tmp_path / "m.pt").stat().st_size, flags


def test_a_dry_run_where_the_output_exists(model: Path) -> None:
    assert quick("dedup", "m.pt", cwd=model).code == 0
    ran = quick("dedup", "m.pt", "--dry-run", cwd=model)
    assert ran.code == 0 and "exists: --force replaces it" in ran.err


def test_a_layer_with_other_than_numbers_has_a_row(tmp_path: Path) -> None:
    """A NaN does not hide among layers that are alike; --verbose has a row for each."""
    first = {f"layers.{k}.w": torch.ones(3) for k in range(4)}
    torch.save(first, tmp_path / "a.pt")
    second = {name: value * 2 for name, value in first.items()}
    second["layers.2.w"][1] = float("nan")
    torch.save(second, tmp_path / "b.pt")
    ran = quick("diff", "a.pt", "b.pt", cwd=tmp_path)
    assert "layers.2.w  3 of 3 elements, 1 element is NaN only in B" in ran.out and "3 tensors  layers.*.w" in ran.out
    assert "layers.3.w" in quick("diff", "-v", "a.pt", "b.pt", cwd=tmp_path).out
    checked = quick("check", "b.pt", "--fail-on", "nan", cwd=tmp_path)
    assert checked.code == 1 and "inspect b.pt --fail-on nan" in checked.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("inspect", "mm.pt"), "did you mean m.pt?"),
        (("--json", "inspect", "m.pt"), "paramtool inspect FILE --json"),
        (("export", "m.pt", "--only", "rnn.*"), "export --prefix rnn."),
        (("variants", "m.pt"), "paramtool variants m.pt --against OTHER"),
        (("convert", "m.pt", "--to", "keras", "-o", "m.weights.h5"), "--into MODEL.keras"),
        (("convert", "m.pt", "--to", "safetensors"), "-o NAME.safetensors writes one"),
        (("convert", "m.pt", "--to", "pt"), "-o NAME.pt writes one"),
        (("convert", "m.pt", "--to", "gguf"), "paramtool writes .pt, "),
        (("convert", "m.pt", "--to", "dcp"), "--format dcp writes a folder"),
    ],
)
def test_what_was_meant(model: Path, words: tuple[str, ...], said: str) -> None:
    ran = quick(*words, cwd=model)
    assert ran.code in (2, 3) and said in ran.err


def test_the_names_of_types_that_people_use(model: Path) -> None:
    assert "float32 -> bfloat16" in quick("convert", "m.pt", "--dtype", "bf16", cwd=model).out


def test_files_that_a_lock_lacks_are_one_error(model: Path) -> None:
    for name in ("a.pt", "b.pt"):
        (model / name).write_bytes((model / "m.pt").read_bytes())
    assert quick("lock", "a.pt", "b.pt", cwd=model).code == 0
    (model / "c.pt").write_bytes((model / "m.pt").read_bytes())
    ran = quick("check", "m.pt", "c.pt", cwd=model)
    assert ran.code == 2 and ran.err.count("does not name it") == 1 and "error: m.pt, c.pt: " in ran.err


def test_what_is_beside_the_weights(model: Path) -> None:
    folder = model / "run"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes((model / "m.pt").read_bytes())
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "base_model_name_or_path": "base"}')
    torch.save({"state": {}, "param_groups": []}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text('{"global_step": 7}')
    ran = quick("inspect", "run", cwd=model)
    assert "adapter  LORA r=4  of base" in ran.out and "step 7  --optimizer" in ran.out
