"""What a person types first: positions instead of flags, no -o, and the names of libraries for their dialects."""

from __future__ import annotations

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
