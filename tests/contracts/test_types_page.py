"""docs/types.md: its file of rules does what the page says of it; tests/site runs its commands."""

from __future__ import annotations

from pathlib import Path

import paramtool
from tests.site import setups
from tests.site.blocks import DOCS, blocks


def test_one_block_for_cudnn_and_batchnorm_in_float32(tmp_path: Path) -> None:
    """The block is that of the layout `cudnn`, rounded; the statistics are as they were."""
    setups.speech(tmp_path)
    (rules,) = (block.text for block in blocks(DOCS / "types.md") if block.language == "toml")
    (tmp_path / "ours.toml").write_text(rules)
    found = paramtool.convert(tmp_path / "speech.pt", tmp_path / "o.safetensors", target="ours.block",
                              layout_file=[tmp_path / "ours.toml"])  # fmt: skip
    paramtool.fuse(tmp_path / "speech.pt", tmp_path / "c.safetensors", layout="cudnn")
    mine, theirs = (paramtool.load_file(tmp_path / name) for name in ("o.safetensors", "c.safetensors"))
    assert mine["lstm.block"].tobytes() == theirs["lstm.flat_weights"].astype("f2").tobytes()
    assert mine["bn.running_var"].tobytes() == theirs["bn.running_var"].tobytes() and found.verified
    assert mine["head.bias"].dtype.name == "bfloat16"
