"""The rule `untied`, where transformers decides what is tied and writes the files.

A handful of models that `save_pretrained` writes; under `make oracles` (PARAMTOOL_EVERY_MODEL=1) all classes of
test_tied_names.py, whose names are written beside their configs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import paramtool
from paramtool.commands import rules
from paramtool.commands.inspect import Inspection
from tests.examples import IS_EVERY_MODEL
from tests.hostile.command import quick
from tests.oracles.real_models import OF_TRANSFORMERS, examples
from tests.oracles.test_tied_names import CLASSES, built


def groups(model: Any) -> list[list[str]]:
    """The names of each parameter and buffer of a model that has several."""
    names: dict[int, list[str]] = {}
    every = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    for name, tensor in every:
        names.setdefault(id(tensor), []).append(name)
    return [group for group in names.values() if len(group) > 1]


def holds(seen: Inspection, a: str, b: str) -> bool:
    return not list(rules.parse(f"untied:{a}={b}").findings(seen))


def pairs(group: list[str]) -> Iterator[tuple[str, str]]:
    return ((a, b) for a in group for b in group if a != b)


@pytest.fixture(scope="module", params=OF_TRANSFORMERS)
def model(request: pytest.FixtureRequest) -> Any:
    return examples.MODELS[request.param].build()


@pytest.mark.sample(2)
@pytest.mark.parametrize("size", ["5GB", "10KB"])
def test_what_save_pretrained_writes(size: str, model: Any, tmp_path: Path) -> None:
    """Each tie of the model holds, in one file and in shards; nothing else does."""
    model.save_pretrained(tmp_path, max_shard_size=size)
    seen = paramtool.inspect(tmp_path)
    there = set(seen.checkpoint.entries)
    tied = groups(model)
    known = [group for group in tied if there & set(group)]
    for group in known:
        for a, b in pairs(group):
            assert holds(seen, a, b), (a, b)
    lacking = [name for group in known for name in group if name not in there]
    for name in lacking:
        others = [other for other in there if not any({name, other} <= set(group) for group in tied)]
        assert not [other for other in others if holds(seen, name, other)], name


def test_what_a_training_saves(tmp_path: Path) -> None:
    """torch.save of everything, beside the config: both names in one memory, and the tied name alone, in sections."""
    for wanted, is_tied in (("GPT-2 tied", True), ("GPT-2 untied", False)):
        model: Any = examples.MODELS[wanted].build()
        model.config.save_pretrained(tmp_path)
        state = model.state_dict()
        run = {"model": state, "optimizer": torch.optim.AdamW(model.parameters()).state_dict(), "epoch": 3}
        torch.save(run, tmp_path / "both.pt")
        run["model"] = {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}
        torch.save(run, tmp_path / "one.pt")
        head, wte = "lm_head.weight", "transformer.wte.weight"
        for file in ("both.pt", "one.pt"):
            section, whole = paramtool.inspect(tmp_path / file, only="model"), paramtool.inspect(tmp_path / file)
            assert holds(section, head, wte) is is_tied, (wanted, file)
            assert holds(whole, f"model.{head}", f"model.{wte}") is is_tied, (wanted, file)
            rule = ("--quiet", "--fail-on", f"not-tied:{head}={wte}")
            ran = quick("inspect", file, "--only", "model", *rule, cwd=tmp_path)
            assert ran.code == (not is_tied) and bool(ran.out) is not is_tied, ran


@pytest.mark.skipif(not IS_EVERY_MODEL, reason="make oracles builds every class")
@pytest.mark.parametrize("tie", [None, True, False])
@pytest.mark.parametrize("name", CLASSES)
def test_the_names_of_every_class(name: str, tie: bool | None, tmp_path: Path) -> None:
    """The names that transformers leaves out, with its config: each tie holds, and no other with an embedding."""
    model = built(name, **({} if tie is None else {"tie_word_embeddings": tie}))
    tied = groups(model)
    lacking = {name for group in tied for name in group if name in model.all_tied_weights_keys}
    tensors = {name: torch.zeros(1) for name in model.state_dict() if name not in lacking}
    save_file(tensors, tmp_path / "model.safetensors")
    model.config.save_pretrained(tmp_path)
    seen = paramtool.inspect(tmp_path)
    for group in tied:
        for a, b in pairs(group):
            assert not {a, b} & lacking or holds(seen, a, b), (a, b)
    likely = [name for name in tensors if any(word in name for word in ("embed", "head", "wte", "shared"))][:30]
    for missing in lacking:
        others = [other for other in likely if not any({missing, other} <= set(group) for group in tied)]
        assert not [other for other in others if holds(seen, missing, other)], missing
