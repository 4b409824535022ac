"""`convert --untie` and `--tie` of a folder with an optimizer beside the weights: `verify` does all of it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hostile.command import Ran, quick

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
TIE = f"{HEAD}={EMBEDDING}"


def run(*words: object) -> Ran:
    """One command."""
    return quick(*words, cwd=Path.cwd())


class Model(nn.Module):
    """An embedding, a layer, and a head that is the embedding, under the names of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(6, 4), "mid": nn.Linear(4, 4)})
        self.lm_head = nn.Linear(4, 6, bias=False)
        self.lm_head.weight = self.model["embed_tokens"].weight  # type: ignore[assignment]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tied model, its optimizer after a step, and its config."""
    torch.manual_seed(0)
    model, found = Model(), tmp_path / "run"
    optimizer = torch.optim.AdamW(model.parameters())
    model.lm_head(model.model["mid"](model.model["embed_tokens"](torch.arange(6)))).square().sum().backward()
    optimizer.step()
    found.mkdir()
    torch.save(model.state_dict(), found / "pytorch_model.bin")
    torch.save(optimizer.state_dict(), found / "optimizer.pt")
    (found / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": True}))
    return found


def state_of(folder: Path) -> dict[str, Any]:
    """The optimizer of a folder."""
    found: dict[str, Any] = torch.load(folder / "optimizer.pt", weights_only=True)
    return found


@pytest.mark.parametrize("choice", ["copy", "split", "zero", "one"])
def test_verify_unties_and_ties_the_state_beside_the_weights_again(choice: str, folder: Path, tmp_path: Path) -> None:
    """The line that `convert` prints agrees with what it wrote; any other state is a difference."""
    untied, tied = tmp_path / "untied", tmp_path / "tied"
    ran = run("convert", folder, "--untie", HEAD, "--optimizer-state", choice, "-o", untied)
    assert ran.code == 0, ran
    assert len(state_of(untied)["param_groups"][0]["params"]) == (3 if choice == "one" else 4)
    assert run("convert", untied, "--tie", TIE, "--optimizer-state", "first", "-o", tied).code == 0
    for output, source in ((untied, folder), (tied, untied)):
        ran = run("verify", output, "--against", source)
        assert ran.code == 0 and "files" in ran.out, ran
        whole = (output / "optimizer.pt").read_bytes()
        state = state_of(output)
        state["state"][0]["exp_avg"] += 1
        torch.save(state, output / "optimizer.pt")
        ran = run("verify", output, "--against", source)
        assert ran.code == 1 and "file 'optimizer.pt'" in ran.err + ran.out, ran
        (output / "optimizer.pt").write_bytes(whole)


def said(folder: Path) -> object:
    """What a config says of tied embeddings."""
    return json.loads((folder / "config.json").read_text())["tie_word_embeddings"]


def test_the_config_says_that_the_head_is_tied_again(folder: Path, tmp_path: Path) -> None:
    """Else from_pretrained would make a head of random numbers, as the file has one name."""
    untied, tied = tmp_path / "untied", tmp_path / "tied"
    assert run("convert", folder, "--untie", HEAD, "--optimizer-state", "copy", "-o", untied).code == 0
    ran = run("convert", untied, "--tie", TIE, "-o", tied)
    assert ran.code == 0 and "from_pretrained" not in ran.err, ran
    assert (said(untied), said(tied)) == (False, True)
    (tied / "config.json").write_bytes((untied / "config.json").read_bytes())
    ran = run("verify", tied, "--against", untied)
    assert ran.code == 1 and "file 'config.json'" in ran.out + ran.err, ran


def test_a_tie_that_no_config_says_is_told(folder: Path, tmp_path: Path) -> None:
    """Two layers with equal bytes: the setting is about the head."""
    state = {"a.weight": torch.ones(3), "b.weight": torch.ones(3)}
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "optimizer.pt").unlink()
    ran = run("convert", folder, "--tie", "b.weight=a.weight", "-o", tmp_path / "out")
    assert ran.code == 0 and "does not tie 'b.weight' to 'a.weight'" in ran.err and "--new-config" in ran.err, ran
    assert (tmp_path / "out/config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert run("verify", tmp_path / "out", "--against", folder).code == 0
