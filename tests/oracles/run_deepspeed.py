"""Runs in an environment with DeepSpeed: trains, saves, and reads the folder with DeepSpeed's own scripts.

    python run_deepspeed.py FOLDER '{"stage": 1, "world": 2, "zero": {}, "config": {}}'

FOLDER gets `saved/` (what the engine saves), `zero_to_fp32.pt`, and `universal/`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fixtures" / "deepspeed"))

import torch
import zero_saving
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

OPTIONS = "RUN_DEEPSPEED"
"""The environment variable with the options, for the ranks."""


def main() -> None:
    """Run as a rank, or start the ranks and read what they saved."""
    if sys.argv[1] == "--rank":
        asked = json.loads(os.environ[OPTIONS])
        zero_saving.saved(asked["stage"], sys.argv[2], asked["zero"], asked["config"])
        return
    place, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    os.environ[OPTIONS] = sys.argv[2]
    zero_saving.on_ranks(__file__, str(place / "saved"), asked["world"])
    if asked["reads"]:
        found = get_fp32_state_dict_from_zero_checkpoint(str(place / "saved"))
        torch.save({name: value.clone() for name, value in found.items()}, place / "zero_to_fp32.pt")
    if asked["converts"]:
        zero_saving.universal(place / "saved" / zero_saving.TAG, place / "universal")


if __name__ == "__main__":
    main()
