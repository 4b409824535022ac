"""Looking at a file imports what looking needs: `inspect` starts in a tenth of a second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.hostile import makers_safetensors, makers_sharded, makers_torch
from tests.hostile.command import quick

HEAVY = {"torch", "numpy", "rich", "safetensors", "ml_dtypes", "blake3", "zipfile", "tarfile", "pickle", "asyncio",
         "paramtool.engine", "paramtool.passes", "paramtool.commands.dedup", "paramtool.model.images"}  # fmt: skip
"""None of these is needed to describe a file."""
SCRIPT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=open("modules.json", "w")))
from paramtool.cli.main import main
main()
"""


def modules(folder: Path, *args: object, code: int = 0) -> set[str]:
    """The modules of a process that ran a command into a pipe."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *map(str, args)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr, done
    return set(json.loads((folder / "modules.json").read_text()))


def zip_file(folder: Path) -> Path:
    return makers_torch.zipped()(folder)


def stacked(folder: Path) -> Path:
    return makers_torch.made(makers_torch.stacked)(folder)


def safetensors(folder: Path) -> Path:
    return makers_safetensors.made(makers_safetensors.HONEST)(folder)


def deduplicated(folder: Path) -> Path:
    path = makers_torch.overlapping_windows(folder)
    assert quick("dedup", path.name, "-o", "out.safetensors", cwd=folder).code == 0
    return folder / "out.safetensors"


def sharded(folder: Path) -> Path:
    return makers_sharded.index(folder, makers_sharded.MAP)


@pytest.mark.sample(4)
@pytest.mark.parametrize("make", [zip_file, stacked, safetensors, deduplicated, sharded])
@pytest.mark.parametrize("flags", [(), ("--json",), ("--tensors",), ("--fail-on", "unused-bytes>1GB")])
def test_inspect_imports_nothing_heavy(make: object, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever the format and the flags, as long as no tensor byte is asked for."""
    path = make(tmp_path)  # type: ignore[operator]
    found = modules(tmp_path, "inspect", path.name, *flags)
    assert not HEAVY & found, HEAVY & found
    assert "paramtool.cli.inspect" in found
    assert ("paramtool.commands.rules" in found) is ("--fail-on" in flags)


def test_a_refusal_imports_nothing_heavy(tmp_path: Path) -> None:
    """An error is as quick as an answer."""
    (tmp_path / "model.pt").write_bytes(b"junk")
    assert not HEAVY & modules(tmp_path, "inspect", "model.pt", code=3)


RULES = ("--fail-on", "untied:lm_head.weight=w", "--fail-on", "missing:w", "--fail-on", "wrong-dtype:w=float32",
         "--fail-on", "unsafe", "--fail-on", "unused-bytes>1GB")  # fmt: skip
"""All kinds that read no tensor; the first finds something, and looks for a config and for names like it."""


@pytest.mark.parametrize("flags", [("--quiet",), ("--json",), ("--only", "model")], ids=" ".join)
def test_rules_of_several_files_import_no_library(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Names and memories are compared without reading a tensor, also where one file cannot be read."""
    makers_torch.zipped(makers_torch.state(model=makers_torch.mapping(w=makers_torch.tensor())))(tmp_path)
    found = modules(tmp_path, "inspect", "model.pt", "ghost.pt", "model.pt", *RULES, *flags, code=3)
    assert not (HEAVY - {"paramtool.passes"}) & found, HEAVY & found
    assert not modules(tmp_path, "inspect", "ghost.pt", "--json", code=3) & HEAVY


@pytest.mark.parametrize("args", [("--help",), ("--version",)])
def test_help_imports_no_command(args: tuple[str, ...], tmp_path: Path) -> None:
    """The list of commands needs none of them."""
    found = modules(tmp_path, *args)
    below = ("paramtool.formats", "paramtool.commands", "paramtool.model")
    assert not {name for name in found if name.startswith(below)}
    assert not HEAVY & found


def test_dedup_imports_no_torch(tmp_path: Path) -> None:
    """Writing and proving a file needs NumPy and safetensors, never torch, and no pickle."""
    found = modules(tmp_path, "dedup", zip_file(tmp_path).name)
    assert not {"torch", "rich", "zipfile", "tarfile"} & found
    assert "safetensors" in found, "the reference reader opens what was written"


def test_variants_of_names_import_nothing_heavy(tmp_path: Path) -> None:
    """Names are compared without torch, transformers or NumPy: no tensor is read."""
    path = zip_file(tmp_path)
    (tmp_path / "names.txt").write_text("w\n")
    found = modules(tmp_path, "variants", path.name, "--against", "names.txt", "--against", path.name)
    assert not {"torch", "transformers", "numpy", "rich", "safetensors"} & found


def test_an_optimizer_with_names_is_bound_without_its_class(tmp_path: Path) -> None:
    """The names in `param_names` say which parameters they are: no transformers builds the class of the config."""
    module = nn.Linear(2, 3)
    optimizer = torch.optim.SGD([{"params": [*module.parameters()]}], momentum=0.9)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    said = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
    (tmp_path / "config.json").write_text(json.dumps(said), encoding="utf-8")
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    for names, is_needed in ((None, True), ([*module.state_dict()], False)):
        if names:
            state["param_groups"][0]["param_names"] = names
        torch.save(state, tmp_path / "optimizer.pt")
        found = modules(tmp_path, "inspect", ".", "--optimizer")
        assert ("transformers" in found) is is_needed


def test_the_library_imports_nothing_before_it_is_used(tmp_path: Path) -> None:
    """`import paramtool` is as good as free."""
    done = subprocess.run([sys.executable, "-c", "import paramtool, sys, json; print(json.dumps(sorted(sys.modules)))"],
                          capture_output=True, text=True, check=True, cwd=tmp_path)  # fmt: skip
    assert not (HEAVY | {"click", "paramtool.formats"}) & set(json.loads(done.stdout))


def test_a_model_that_fits_imports_nothing_that_a_refusal_needs(tmp_path: Path) -> None:
    """What a command would make of a file is asked where a model does not load it."""
    script = (
        "import sys, torch, paramtool.torch; model = torch.nn.Linear(2, 2); torch.save(model.state_dict(), 'm.pt')\n"
        "paramtool.torch.load_model(model, 'm.pt'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not {"paramtool.commands.loads_after", "paramtool.passes.parts.fuse"} & {*done.stdout.split()}
