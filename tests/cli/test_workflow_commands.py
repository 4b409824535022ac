"""Names that the runner of GitHub's workflows would take for commands.

It reads a line as one if the line begins with `::`, blanks aside, or has `##[name]` anywhere (ActionCommand.cs of
actions/runner).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.hostile.command import command

NAMES = ["##[add-mask]x", "::set-env name=a::b", " ::stop-commands::t", "a\n::error::b", "w##[group]"]


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--tensors"), ("inspect", "--tensors", "--json"), ("inspect", "--fail-on", "missing:##[x]"),
        ("lock", "-o", "-"), ("lock", "-o", "-", "--json"), ("diff", "m.safetensors"), ("export",), ("guess",),
    ],
)  # fmt: skip
def test_no_name_is_a_command_of_a_workflow(words: tuple[str, ...], tmp_path: Path) -> None:
    save_file({name: np.arange(k + 3, dtype="f4") for k, name in enumerate(NAMES)}, tmp_path / "m.safetensors")
    name, *more = words
    ran = command(name, "m.safetensors", *more, cwd=tmp_path, env={"GITHUB_ACTIONS": "true"})
    for line in (ran.out + ran.err).splitlines():
        assert "##[" not in line and not line.lstrip().startswith("::"), line
    if "--json" in words and name == "inspect":
        assert {one["name"] for one in json.loads(ran.out)["tensor_list"]} == set(NAMES)
