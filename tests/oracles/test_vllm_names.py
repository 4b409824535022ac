"""The table of vLLM's names is what the script makes of vLLM's wheel, where that is at hand.

`pip download vllm==0.33.0 --no-deps -d build/vllm` gets it (336 MB).
"""

from __future__ import annotations

import json
import re
import runpy
import zipfile
from pathlib import Path

import pytest

from paramtool.dialects import file_of
from paramtool.dialects.template import table
from paramtool.formats.folder.weight_names import of_file
from paramtool.package_data import package_data

ROOT = Path(__file__).parents[2]


def wheel() -> Path:
    """The wheel of vLLM."""
    wheels = sorted((ROOT / "build/vllm").glob(f"vllm-{table('vllm').version}-*.whl"))
    if not wheels:
        pytest.skip("no wheel of vLLM in build/vllm")
    return wheels[0]


def test_the_name_that_sharded_state_looks_for() -> None:
    with zipfile.ZipFile(wheel()) as archive:
        text = archive.read("vllm/model_executor/model_loader/sharded_state_loader.py").decode()
    (pattern,) = re.findall(r'TP_ONLY_PATTERN = "(.*)"', text)
    assert file_of("vllm") == pattern.format(rank=0, part=0)
    assert of_file(file_of("vllm")).shard(3, 4) == pattern.format(rank=0, part=3)


def test_the_table_is_that_of_the_wheel() -> None:
    made = json.loads(runpy.run_path(str(ROOT / "docs/make_vllm_names.py"))["text"](str(wheel())))
    assert made == json.loads(package_data("dialects", "tables", "vllm_0_33.json"))
