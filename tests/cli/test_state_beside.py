"""What becomes of an optimizer beside weights where the output is a file, or has other names."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

from tests.hostile.command import Ran, quick


def run(*words: object) -> Ran:
    """One command."""
    return quick(*words, cwd=Path.cwd())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Weights and the optimizer that trained them, as a folder of a training."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    found = tmp_path / "run"
    found.mkdir()
    save_file(model.state_dict(), found / "model.safetensors")
    torch.save(optimizer.state_dict(), found / "optimizer.pt")
    torch.save({"last_epoch": 1}, found / "scheduler.pt")
    return found


@pytest.mark.parametrize("words", [("dedup",), ("convert",), ("export", "--all-names")])
def test_a_file_says_which_state_stays(words: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """The report of one file names the optimizer that the folder has."""
    ran = run(words[0], folder, *words[1:], "-o", tmp_path / "out.safetensors")
    assert ran.code == 0 and "'optimizer.pt'" in ran.out and "'scheduler.pt'" in ran.out, ran


@pytest.mark.parametrize("words", [("--names", "one"), ("--all-names", "--rename", "0.*=7.*")])
def test_an_export_of_other_names_leaves_the_optimizer(words: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    """Some names, or new ones, get no optimizer of all the old ones."""
    (tmp_path / "one").write_text("0.weight\n")
    given = [tmp_path / "one" if word == "one" else word for word in words]
    ran = run("export", folder, *given, "-o", tmp_path / "out")
    assert ran.code == 0 and "'optimizer.pt'" in ran.out, ran
    assert not (tmp_path / "out/optimizer.pt").exists() and not (tmp_path / "out/scheduler.pt").exists()


def test_an_export_of_all_names_keeps_the_optimizer(folder: Path, tmp_path: Path) -> None:
    """The same names are the same parameters."""
    assert run("export", folder, "--all-names", "-o", tmp_path / "out").code == 0
    assert (tmp_path / "out/optimizer.pt").read_bytes() == (folder / "optimizer.pt").read_bytes()


COMMANDS = [("dedup",), ("convert",), ("export", "--all-names")]


def trained(sizes: tuple[int, ...], frozen: int = 0, kind: type[torch.optim.Optimizer] = torch.optim.AdamW) -> object:
    """The state of an optimizer of a chain of linear layers, the first of which are not trained."""
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
    for layer in model[:frozen]:
        layer.requires_grad_(False)
    optimizer = kind([one for one in model.parameters() if one.requires_grad], lr=0.1)  # type: ignore[call-arg]
    model(torch.randn(4, sizes[0])).square().mean().backward()
    optimizer.step()
    return optimizer.state_dict()


def projected(slot: str, value: object) -> object:
    """The state of an optimizer that keeps moments of fewer rows, as GaLore and APOLLO do."""
    found: Any = trained((3, 5, 2))
    for entry in found["state"].values():
        entry |= {"exp_avg": entry["exp_avg"][:1].clone(), "exp_avg_sq": entry["exp_avg_sq"][:1].clone(), slot: value}
    return found


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("name", ["optimizer.pt", "optimizer.bin"])
def test_a_copied_state_that_is_cut_off_is_told(words: tuple[str, ...], name: str, folder: Path) -> None:
    """It is copied as it is, and the warning says what was found."""
    content = (folder / "optimizer.pt").read_bytes()
    (folder / "optimizer.pt").unlink()
    (folder / name).write_bytes(content[:-300])
    ran = run(words[0], folder, *words[1:], "-o", folder.parent / "out")
    assert ran.code == 0 and f"{name!r} is copied, and no training goes on from it" in ran.err, ran
    assert "found no end record" in ran.err


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("sizes", [(3, 7, 2), (3, 5, 2, 2), (5, 3, 2)])
def test_a_copied_state_of_another_model_is_told(words: tuple[str, ...], sizes: tuple[int, ...], folder: Path) -> None:
    """Other shapes, and more entries."""
    torch.save(trained(sizes), folder / "optimizer.pt")
    ran = run(words[0], folder, *words[1:], "-o", folder.parent / "out")
    assert ran.code == 0 and "'optimizer.pt' is copied, and is not the state of this model: " in ran.err, ran


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize(
    "state",
    [
        lambda: trained((3, 5, 2)), lambda: trained((3, 5, 2), 1), lambda: trained((3, 5, 2), 0, torch.optim.Adagrad),
        lambda: torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1).state_dict(),
        lambda: {"what": torch.ones(7)}, dict,
        lambda: projected("projector", {"rank": 2}), lambda: projected("seed", 3),
    ],
)  # fmt: skip
def test_a_copied_state_that_fits_or_is_not_understood_is_no_matter(
    words: tuple[str, ...], state: Callable[[], object], folder: Path
) -> None:
    """All parameters, some of them, entries without tensors, and objects that are no known optimizer."""
    torch.save(state(), folder / "optimizer.pt")
    ran = run(words[0], folder, *words[1:], "-o", folder.parent / "out")
    assert ran.code == 0 and "is copied" not in ran.err, ran


def test_with_several_models_no_state_is_told(folder: Path, tmp_path: Path) -> None:
    """accelerate saves model_1 and optimizer_1 of a second model into the same folder."""
    save_file({"a": torch.ones(4, 4)}, folder / "model_1.safetensors")
    torch.save(trained((4, 9)), folder / "optimizer_1.bin")
    ran = run("dedup", folder, "--weights", "model.safetensors", "-o", tmp_path / "out")
    assert ran.code == 0 and "is copied" not in ran.err, ran


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_two_saves_in_one_folder_are_refused(tmp_path: Path) -> None:
    """A file of a rank that .metadata does not name is of another save; an empty one is of a rank without tensors."""
    dcp.save({"model": {"a": torch.ones(3)}}, checkpoint_id=tmp_path / "run", no_dist=True)
    more = tmp_path / "run/__7_0.distcp"
    more.touch()
    ran = run("dedup", tmp_path / "run", "-o", tmp_path / "out")
    assert ran.code == 0 and "file '__7_0.distcp': the .metadata beside it names no tensor in it" in ran.out, ran
    assert "--weights" not in ran.out
    more.write_bytes((tmp_path / "run/__0_0.distcp").read_bytes())
    ran = run("dedup", tmp_path / "run", "-o", tmp_path / "again")
    assert ran.code == 3 and "1 file of another save: .metadata names no tensor in '__7_0.distcp'" in ran.err, ran
    assert not (tmp_path / "again").exists()
    assert run("inspect", tmp_path / "run").code == 0


@pytest.mark.parametrize("state", ["optimizer.pt", "optimizer_0/.metadata"])
def test_a_file_of_other_parameters_is_refused(state: str, tmp_path: Path) -> None:
    """The state fits the old parameters alone, and would be lost with them."""
    (tmp_path / "run").mkdir()
    save_file({f"attn.{k}_proj.weight": torch.ones(4, 4) for k in "qkv"}, tmp_path / "run/model.safetensors")
    (tmp_path / "run" / state).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / state).write_bytes(b"x")
    words = ("fuse", tmp_path / "run", "--layout", "qkv", "-o", tmp_path / "out.safetensors")
    ran = run(*words)
    assert ran.code == 6 and "--optimizer-state drop" in ran.err and "-o FOLDER" in ran.err, ran
    assert not (tmp_path / "out.safetensors").exists()
    ran = run(*words, "--optimizer-state", "drop")
    assert ran.code == 0 and repr(state.partition("/")[0]) in ran.out, ran


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """Two folders in one, each with a model and its optimizer."""
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        model = nn.ModuleDict({"attn": nn.ModuleDict({f"{k}_proj": nn.Linear(4, 4) for k in "qkv"})})
        optimizer = torch.optim.Adam([*model.named_parameters()])
        sum(one.square().sum() for one in model.parameters()).backward()  # type: ignore[union-attr]
        optimizer.step()
        (tmp_path / "run" / name).mkdir(parents=True)
        save_file(model.state_dict(), tmp_path / "run" / name / "model.safetensors")
        torch.save(optimizer.state_dict(), tmp_path / "run" / name / "optimizer.pt")
    return tmp_path / "run"


def test_each_state_follows_its_model(several: Path, tmp_path: Path) -> None:
    """With --each the state of every folder with one set of weights follows; exchanged files are differences."""
    out = tmp_path / "out"
    assert run("fuse", several, "--each", "--layout", "qkv", "-o", out).code == 0
    assert run("verify", out, "--against", several, "--each").code == 0
    for name in "ab":
        old, new = (torch.load(folder / name / "optimizer.pt")["state"] for folder in (several, out))
        expected = torch.cat([old[k]["exp_avg"] for k in (0, 2, 4)])
        assert any(torch.equal(expected, one["exp_avg"]) for one in new.values())
    (out / "a/optimizer.pt").write_bytes((out / "b/optimizer.pt").read_bytes())
    ran = run("verify", out, "--against", several, "--each")
    assert ran.code == 1 and "a: file 'optimizer.pt': 'state.0.exp_avg': its bytes differ" in ran.out, ran


def test_with_each_the_state_of_several_sets_in_one_folder_is_refused(several: Path, tmp_path: Path) -> None:
    """Nothing says of which of them it is."""
    (several / "a/model.fp16.safetensors").write_bytes((several / "b/model.safetensors").read_bytes())
    ran = run("fuse", several, "--each", "--layout", "qkv", "-o", tmp_path / "out")
    assert ran.code == 6 and "which of several sets of weights it is of is not known with --each" in ran.err, ran
    assert not (tmp_path / "out").exists()
