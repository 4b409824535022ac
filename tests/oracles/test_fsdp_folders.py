"""Folders that accelerate writes with FSDP on two ranks, rewritten, and loaded by accelerate's own functions.

`dedup` gives the run that was not interrupted, to the last bit; after q, k and v, and gate and up, were fused, a Phi-3
goes on where a Llama stopped.  Two processes import transformers twice: only `make oracles` runs this.

accelerate makes FSDP only on accelerators, so that its functions for saving and loading are called without it.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import paramtool
from tests.examples import IS_EVERY_MODEL
from tests.hostile.command import quick

WORLD = 2
STEPS = 3
NEAR = 1e-9
SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "tie_word_embeddings": False, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "rms_norm_eps": 1e-6,
}  # fmt: skip

pytestmark = pytest.mark.skipif(not IS_EVERY_MODEL, reason="two processes; make oracles")


class Run:
    """A model that is sharded on two ranks, its optimizer, and what accelerate's functions ask of an Accelerator."""

    def __init__(self, kind: str, seed: int) -> None:
        import transformers
        from accelerate import FullyShardedDataParallelPlugin, PartialState

        PartialState(cpu=True)
        torch.manual_seed(seed)
        config = getattr(transformers, f"{kind}Config")(**SIZES, architectures=[f"{kind}ForCausalLM"])
        self.model = getattr(transformers, f"{kind}ForCausalLM")(config).double()
        mesh = init_device_mesh("cpu", (WORLD,))
        for layer in self.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
        self.accelerator = SimpleNamespace(
            process_index=dist.get_rank(), num_processes=WORLD, is_main_process=dist.get_rank() == 0, is_fsdp2=True,
            wait_for_everyone=dist.barrier, device=torch.device("cpu"),
        )  # fmt: skip

    def train(self) -> list[float]:
        """A few steps; the losses."""
        losses = []
        for step in range(STEPS):
            words = (torch.arange(8)[None] + 3 * step) % 40
            loss = self.model(input_ids=words, labels=words).loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    def load(self, folder: str) -> None:
        """What accelerate's `load_state` does with FSDP."""
        from accelerate.utils import fsdp_utils

        fsdp_utils.load_fsdp_model(self.plugin, self.accelerator, self.model, folder)
        fsdp_utils.load_fsdp_optimizer(self.plugin, self.accelerator, self.optimizer, self.model, folder)


def saves(place: str) -> None:
    """Train, save as accelerate's `save_state` does, and keep what goes on without a stop."""
    from accelerate.utils import fsdp_utils

    run = Run("Llama", 1)
    run.train()
    fsdp_utils.save_fsdp_model(run.plugin, run.accelerator, run.model, f"{place}/saved", 0)
    fsdp_utils.save_fsdp_optimizer(run.plugin, run.accelerator, run.optimizer, run.model, f"{place}/saved", 0)
    Path(place, "saved", f"random_states_{dist.get_rank()}.pkl").write_bytes(pickle.dumps({"step": STEPS}))
    losses = run.train()
    if dist.get_rank() == 0:
        run.model.config.save_pretrained(f"{place}/saved")
        Path(place, "losses").write_bytes(pickle.dumps(losses))


def loads(place: str) -> None:
    """Go on from what paramtool wrote: to the last bit with the same model, and nearly so with the other."""
    losses = pickle.loads(Path(place, "losses").read_bytes())
    same = Run("Llama", 2)
    same.load(f"{place}/deduped")
    assert same.train() == losses
    other = Run("Phi3", 3)
    other.load(f"{place}/fused")
    assert other.train() == pytest.approx(losses, rel=NEAR)
    lost = Run("Phi3", 3)
    lost.load(f"{place}/fused")
    lost.optimizer = torch.optim.AdamW(lost.model.parameters(), lr=1e-2, foreach=False)
    assert lost.train() != pytest.approx(losses, rel=1e-4)


def _rank(rank: int, work: Callable[[str], None], place: str, store: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1",
        "ACCELERATE_USE_CPU": "1",
    }
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    try:
        work(place)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def on_two_ranks(work: Callable[[str], None], place: Path) -> None:
    """Run a function in two processes; what one of them raises is raised here."""
    store = place / f"store-{work.__name__}"
    torch.multiprocessing.spawn(_rank, (work, os.fspath(place), os.fspath(store)), nprocs=WORLD)


def test_accelerate_goes_on(tmp_path: Path) -> None:
    """With the same model from `dedup`, and with the other from `fuse`; `export` gives what transformers opens."""
    from transformers import AutoModelForCausalLM

    on_two_ranks(saves, tmp_path)
    for words in (
        ("dedup", "saved", "-o", "deduped"),
        ("fuse", "saved", "--layout", "qkv", "-o", "half"),
        ("fuse", "half", "--layout", "gate-up", "-o", "fused"),
        ("export", "saved", "--only", "model", "-o", "model"),
    ):
        ran = quick(*words, cwd=tmp_path)
        assert ran.code == 0, ran
    for output, source in (("deduped", "saved"), ("half", "saved"), ("fused", "half")):
        assert quick("verify", output, "--against", source, cwd=tmp_path).code == 0
    names = {path.relative_to(tmp_path / "fused").as_posix() for path in (tmp_path / "fused").rglob("*.metadata")}
    assert names == {"optimizer_0/.metadata", "pytorch_model_fsdp_0/.metadata"}
    found, told = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(told.values()) and found.dtype == torch.float64
    read = paramtool.read(tmp_path / "saved")
    assert {f"model.{name}" for name in found.state_dict()} == read.entries.keys()
    on_two_ranks(loads, tmp_path)
