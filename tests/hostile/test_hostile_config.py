"""Damaged and contradictory configs, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import paramtool
from paramtool.errors import FormatError
from tests.hostile.command import command, quick, refused
from tests.hostile.makers_config import CONFIGS, HONEST_CONFIGS, config


@pytest.mark.parametrize("key", CONFIGS)
def test_a_hostile_config_is_refused(key: str, tmp_path: Path) -> None:
    """`inspect --config` exits with 3 and names the config; the library raises the same."""
    make, says = CONFIGS[key]
    path = make(tmp_path)
    refused(quick, "inspect", path.name, "--config", path.name, cwd=tmp_path, code=3, says=("config.json", *says))
    with pytest.raises(FormatError, match=r"config\.json"):
        paramtool.inspect(path, config="")


@pytest.mark.parametrize("key", ["deep", "a_fifo", "a_device", "sides_contradict", "huge"])
def test_so_it_is_in_a_process_of_its_own(key: str, tmp_path: Path) -> None:
    """A FIFO is not waited for, a device is not read without end."""
    make, says = CONFIGS[key]
    name = make(tmp_path).name
    refused(command, "inspect", name, "--config", name, cwd=tmp_path, code=3, says=("config.json", *says))


@pytest.mark.parametrize("key", CONFIGS)
def test_without_config_nobody_reads_it(key: str, tmp_path: Path) -> None:
    """`inspect` alone does not look, and `dedup` of the folder goes on with a warning at most, or two of no file."""
    make, _ = CONFIGS[key]
    path = make(tmp_path)
    assert quick("inspect", path.name, cwd=tmp_path).code == 0
    ran = quick("dedup", path.name, "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    assert ran.err.count("warning: ") <= 1 + ("no regular file" in ran.err), ran


@pytest.mark.parametrize("key", HONEST_CONFIGS)
def test_what_is_no_contradiction(key: str, tmp_path: Path) -> None:
    """Settings of different models may differ, and so may those of the parts of one."""
    path = config(HONEST_CONFIGS[key])(tmp_path)
    ran = quick("inspect", path.name, "--config", path.name, "--json", cwd=tmp_path)
    assert ran.code == 0, ran
    assert "config" in json.loads(ran.out)
