"""Which files a folder of DeepSpeed has, by their names.

    mp_rank_00_model_states.pt                            the model of stages 1 and 2
    zero_pp_rank_0_mp_rank_00_model_states.pt             the model of stage 3, one for each rank
    [bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt      the optimizer, one for each rank
    zero/NAME/{fp32,exp_avg,exp_avg_sq,step}.pt           a universal checkpoint
    latest                                                beside the folders of several steps: which is the latest

Source: `_get_ckpt_name`, `_get_rank_zero_ckpt_name`, `_get_expert_ckpt_name` in deepspeed/runtime/engine.py of 0.19,
and deepspeed/checkpoint/ds_to_universal.py.
"""

from __future__ import annotations

import os
import re

from paramtool.errors import FormatError, some
from paramtool.formats.files import names_in
from paramtool.lazy_dataclass import frozen
from paramtool.model.paths import named_beside

MODEL = r"mp_rank_(?P<model>\d+)_model_states\.pt"
SLICED = r"zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<model>\d+)_model_states\.pt"
OPTIMIZER = r"(bf16_|fp16_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<model>\d+)_optim_states\.pt"
OTHER = r"(layer_\d+|expert_\d+|expp_rank_\d+).*_states\.pt"
"""The layers of a pipeline, and experts that ranks share among themselves."""
UNIVERSAL = "zero"
LATEST = ("latest", "latest_universal")
MAX_TAG = 256
_SHOWN = 3


@frozen
class RankFiles:
    """The files of one folder."""

    folder: str
    model: str
    """`mp_rank_00_model_states.pt`, or empty."""
    sliced: dict[int, str]
    """{rank: its model states}, of stage 3."""
    optimizers: dict[int, tuple[str, ...]]
    """{rank: its optimizer states}: more than one where two runs saved into the folder."""

    def path(self, name: str) -> str:
        """The path of one of them."""
        return os.path.join(self.folder, name)


def files_of(folder: str) -> RankFiles:
    """The files of a folder; FormatError if tensor parallelism, a pipeline or experts split the model."""
    names = names_in(folder)
    model: dict[int, str] = {}
    sliced: dict[int, str] = {}
    optimizers: dict[int, tuple[str, ...]] = {}
    parallel = []
    for name in names:
        found = next((m for p in (MODEL, SLICED, OPTIMIZER) if (m := re.fullmatch(p, name))), None)
        if found is None:
            continue
        if int(found["model"]):
            parallel.append(name)
        elif found.re.pattern == MODEL:
            model[0] = name
        elif found.re.pattern == SLICED:
            sliced[int(found["rank"])] = name
        else:
            optimizers[int(found["rank"])] = (*optimizers.get(int(found["rank"]), ()), name)
    if parallel:
        raise _split(folder, f"tensor parallelism split its tensors: {some(parallel, _SHOWN)}")
    if others := [name for name in names if re.fullmatch(OTHER, name)]:
        raise _split(folder, f"a pipeline or experts split its model: {some(others, _SHOWN)}")
    return RankFiles(folder, model.get(0, ""), sliced, dict(sorted(optimizers.items())))


def _split(folder: str, what: str) -> FormatError:
    return FormatError(
        f"{folder}: {what}; expected the files of mp_rank_00 alone, with the whole model",
        hint="save the model in one piece with the program that trained it (DeepSpeed's save_16bit_model)",
    )


def latest(folder: str, kept: str = LATEST[0]) -> str:
    """The folder beside it that the file `latest` names; empty if there is no such file of text.

    FormatError and UnsafeError for what names nothing beside it.
    """
    path = os.path.join(folder, kept)
    try:
        with open(path, encoding="utf-8") as file:
            tag = file.read(MAX_TAG).strip()
    except (OSError, ValueError):
        return ""
    return named_beside(path, tag, portable=False)
