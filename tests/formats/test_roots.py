"""The kinds of folders that programs train with are told by the names in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paramtool.errors import FormatError, UnsafeError
from paramtool.formats.folder.roots import ROOTS, root_of, weights_of

FOLDERS = {
    "dcp": (".metadata", "__0_0.distcp", "__1_0.distcp"),
    "fsdp": ("pytorch_model_fsdp_0", "optimizer_0", "scheduler.bin", "random_states_0.pkl"),
    "trainer": ("config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "trainer_state.json"),
    "universal": ("zero", "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    "steps": ("latest", "global_step2/mp_rank_00_model_states.pt",
              "global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "zero_to_fp32.py"),
    "deepspeed": ("mp_rank_00_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    "": ("config.json", "model.safetensors", "optimizer.pt", "optimizer.bin", "random_states_0.pkl"),
}  # fmt: skip
"""Names as torch 2.13, accelerate 1.15, transformers 5.23 and DeepSpeed 0.19 write them."""


def test_every_kind_has_a_folder() -> None:
    assert {root.kind for root in ROOTS} == {kind for kind in FOLDERS if kind}


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_kind_of_a_folder(kind: str, tmp_path: Path) -> None:
    """Its names say it; the others do not."""
    put(tmp_path, FOLDERS[kind])
    found = root_of(str(tmp_path))
    assert (found.kind if found else "") == kind
    read = {"dcp": ".metadata", "fsdp": "pytorch_model_fsdp_0/.metadata", "deepspeed": "", "universal": "", "steps": ""}
    assert weights_of(str(tmp_path)) == (os.path.join(tmp_path, read[kind]) if kind in read else None)


def put(folder: Path, names: tuple[str, ...]) -> None:
    """Empty files with these names; `latest` names the step."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("global_step2\n" if name == "latest" else "")


@pytest.mark.parametrize(("text", "more"), [("global_step3", ()), ("global_step2", ("model.safetensors",))])
def test_the_folder_of_steps_only_where_it_names_one(text: str, more: tuple[str, ...], tmp_path: Path) -> None:
    """A name of no folder inside says nothing, and weights of the folder itself are read."""
    put(tmp_path, (*FOLDERS["steps"], *more))
    (tmp_path / "latest").write_text(text)
    assert root_of(str(tmp_path)) is None


@pytest.mark.parametrize(("text", "kind"), [("../global_step2", UnsafeError), ("", FormatError), (".", FormatError)])
def test_latest_names_a_folder_beside_it(text: str, kind: type[Exception], tmp_path: Path) -> None:
    put(tmp_path, FOLDERS["steps"])
    (tmp_path / "latest").write_text(text)
    with pytest.raises(kind, match="latest: names the file"):
        root_of(str(tmp_path))


def test_what_cannot_be_listed(tmp_path: Path) -> None:
    assert root_of(str(tmp_path / "none")) is None
