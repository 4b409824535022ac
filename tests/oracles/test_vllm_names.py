"""The table of vLLM's names is what the script makes of vLLM's wheel, where that is at hand.

`pip download vllm==0.33.0 --no-deps -d build/vllm` gets it (336 MB).
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from paramtool.dialects.tables import vllm_0_33

ROOT = Path(__file__).parents[2]


def test_the_table_is_that_of_the_wheel() -> None:
    wheels = sorted((ROOT / "build/vllm").glob(f"vllm-{vllm_0_33.VERSION}-*.whl"))
    if not wheels:
        pytest.skip("no wheel of vLLM in build/vllm")
    made: dict[str, Any] = {}
    exec(runpy.run_path(str(ROOT / "docs/make_vllm_names.py"))["text"](str(wheels[0])), made)
    assert made["DIGEST"] == vllm_0_33.DIGEST
    assert made["COMPUTED"] == vllm_0_33.COMPUTED
    words = [
        [tuple(text.split()) if isinstance(text, str) else text for text in group]
        for group in (*made["GROUPS"], *vllm_0_33.GROUPS)
    ]
    half = len(words) // 2
    assert words[:half] == words[half:]
