"""The models of `docs/examples/real_models.py`, each saved and deduplicated once for all tests of a module."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from paramtool.commands import dedup as dedup_command

EXAMPLES = str(Path(__file__).parents[2] / "docs/examples")
if EXAMPLES not in sys.path:
    sys.path.append(EXAMPLES)
import real_models as examples  # noqa: E402 - the folder has to be on the path first
import real_models_table as table_script  # noqa: E402 - likewise

__all__ = ["EVERY", "OF_TRANSFORMERS", "Made", "complaints", "examples", "made", "results", "single_thread",
           "table_script"]  # fmt: skip
OF_TRANSFORMERS = [name for name, spec in examples.MODELS.items() if spec.config is not None]
EVERY = pytest.mark.parametrize("made", examples.MODELS, indirect=True)


@dataclass(frozen=True)
class Made:
    """A model and what was written of it.

    m.pt                 torch.save of its state dict
    small.safetensors    that, deduplicated;  small.pt: likewise;  tied.safetensors: what is only equal left apart
    hf                   save_pretrained;  small: that, deduplicated (of models of transformers)
    """

    name: str
    spec: examples.Model
    model: nn.Module
    results: torch.Tensor
    folder: Path


def results(model: nn.Module) -> torch.Tensor:
    """What a model makes of the tokens, without gradients."""
    with torch.no_grad():
        return examples.outputs(model)


def complaints(info: Mapping[str, object]) -> dict[str, object]:
    """What `from_pretrained` says of names, where it says anything."""
    return {key: names for key, names in info.items() if names}


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    """Sums in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One of the models, by its name; the smallest tensors are compared, too."""
    spec = examples.MODELS[request.param]
    model = spec.build()
    folder = tmp_path_factory.mktemp("made")
    torch.save(model.state_dict(), folder / "m.pt")
    for output in ("small.safetensors", "small.pt"):
        dedup_command.dedup(folder / "m.pt", folder / output, min_equal_bytes=1)
    dedup_command.dedup(folder / "m.pt", folder / "tied.safetensors", equal=False)
    if spec.config is not None:
        model.save_pretrained(folder / "hf")  # type: ignore[operator]
        dedup_command.dedup(folder / "hf", folder / "small", min_equal_bytes=1, share_renamed=True)
    return Made(request.param, spec, model, results(model), folder)
