"""No line of a lock, and no word of one, goes unseen: sealed again with its digests, it is refused or reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from paramtool.errors import ParamtoolError
from paramtool.lockfile import read
from tests.commands.test_lock import Model, by_dedup, by_hub, by_torch
from tests.fuzz.mutators.lock_text import parts, sealed
from tests.hostile.command import quick

DCP = Path(__file__).parents[2] / "fixtures" / "dcp" / "one_process" / "one_process"
CONFIG = {"model_type": "gpt2", "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "n_layer": 1, "n_head": 2}


def nested(folder: Path) -> Path:
    """Dicts in dicts, views, a sparse tensor, objects, and the versions of modules."""
    model = Model().state_dict()
    whole = torch.arange(24.0)
    model |= {"whole": whole, "part": whole[4:16], "turned": whole.view(4, 6).T, "sparse": torch.eye(3).to_sparse()}
    torch.save({"model": model, "epoch": 3, "args": {"lr": 0.1, "name": "run"}}, folder / "m.pt")
    return folder / "m.pt"


def of_transformers(folder: Path) -> Path:
    """A GPT-2 of one layer with a config, whose head is tied by it."""
    names: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (9, 4), "transformer.wpe.weight": (5, 4)}
    for norm in ("ln_1", "ln_2"):
        names |= {f"transformer.h.0.{norm}.weight": (4,), f"transformer.h.0.{norm}.bias": (4,)}
    for part, shape in {
        "attn.c_attn": (4, 12),
        "attn.c_proj": (4, 4),
        "mlp.c_fc": (4, 16),
        "mlp.c_proj": (16, 4),
    }.items():
        names |= {f"transformer.h.0.{part}.weight": shape, f"transformer.h.0.{part}.bias": shape[1:]}
    names |= {"transformer.ln_f.weight": (4,), "transformer.ln_f.bias": (4,)}
    state = {name: torch.randn(shape) for name, shape in names.items()}
    torch.save(state | {"lm_head.weight": state["transformer.wte.weight"]}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"vocab_size": 9, "n_embd": 4, "n_positions": 5}))
    return folder


def by_dcp(folder: Path) -> Path:
    shutil.copytree(DCP, folder / "dcp")
    return folder / "dcp"


SAVED: dict[str, Callable[[Path], Path]] = {
    "nested": nested, "transformers": of_transformers, "dcp": by_dcp,
    "deduplicated": lambda folder: by_dedup(Model().state_dict(), folder),
    "shards": lambda folder: by_hub(Model().state_dict(), folder),
    "whole module": lambda folder: by_torch(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).state_dict(), folder),
}  # fmt: skip


def edited(lines: list[str]) -> Iterator[list[str]]:
    """The lines without one, and without one word of one."""
    for at, line in enumerate(lines):
        if not line or line.startswith("#"):
            continue
        yield [*lines[:at], *lines[at + 1 :]]
        said = parts(line)[::2]
        for k in range(1, len(said)):
            yield [*lines[:at], " ".join(said[:k] + said[k + 1 :]), *lines[at + 1 :]]
        if said[0] == "tied":
            yield [*lines[:at], " ".join([said[0], *said[3:]]), *lines[at + 1 :]]


@pytest.mark.parametrize("options", [(), ("--headers",)], ids=["full", "headers"])
@pytest.mark.parametrize("name", SAVED)
def test_no_line_is_lost_unseen(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    path = SAVED[name](tmp_path)
    lock = tmp_path.parent / f"{tmp_path.name}.lock"
    assert quick("lock", path, "-o", lock, *options, cwd=tmp_path).code == 0
    lines = lock.read_text().splitlines()
    same = quick("check", path, "--lock", lock, cwd=tmp_path)
    assert same.code == 0, same
    unseen = []
    for made in edited(lines):
        texts = [made]
        with suppress(ParamtoolError, ValueError):  # nobody can seal what has tensors that cannot be read
            texts.append(sealed(made))
        for text in texts:
            lock.write_text("".join(f"{line}\n" for line in text))
            try:
                read.read(str(lock))
            except ParamtoolError:  # it is refused
                continue
            ran = quick("check", path, "--lock", lock, cwd=tmp_path)
            if ran[:2] == same[:2] and text != lines:
                unseen.append({*lines} - {*text})
    assert unseen == []
