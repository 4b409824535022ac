"""torch and transformers that are installed and cannot be imported, as beside another CUDA or another NumPy."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.hostile.command import Ran, command

RAISES = {
    "torch": "OSError('libcudart.so.12: cannot open shared object file')",
    "transformers": "ValueError('numpy.dtype size changed')",
}
"""{library: what its import raises}; an ImportError is only one of the errors that people meet."""
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}


@pytest.fixture(params=sorted(RAISES))
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A library that cannot be imported, beside a folder `model` with a config.json."""
    package = tmp_path / "site" / request.param
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"raise {RAISES[request.param]}\n")
    (tmp_path / "model").mkdir()
    save_file({"model.embed_tokens.weight": np.ones((4, 4), "f4")}, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    return str(request.param)


def run(tmp_path: Path, *words: str) -> Ran:
    """One command, in a process that finds the damaged library first."""
    paths = os.pathsep.join((str(tmp_path / "site"), *sys.path))
    return command(*words, cwd=tmp_path, env={"PYTHONPATH": paths})


@pytest.mark.sample(2)
@pytest.mark.parametrize("words", [("check", "model"), ("inspect", "model", "--config", "model")])
def test_what_a_config_ties_needs_no_library(words: tuple[str, ...], damaged: str, tmp_path: Path) -> None:
    """The table of classes says it."""
    ran = run(tmp_path, *words)
    assert (ran.code, ran.err) == (0, ""), ran


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "words",
    [
        ("variants", "model", "--against", "model/config.json"),
        ("export", "model", "--config", "model", "-o", "out.safetensors"),
    ],
)
def test_what_needs_the_class_says_which_library_is_damaged(
    words: tuple[str, ...], damaged: str, tmp_path: Path
) -> None:
    """Exit code 2, with the library's own words, and how to see them."""
    ran = run(tmp_path, *words)
    assert ran.code == 2, ran
    assert f"{damaged} cannot be imported: {RAISES[damaged].split('(')[0]}: " in ran.err
    assert f"python -c 'import {damaged}'" in ran.err
    assert not (tmp_path / "out.safetensors").exists()
