"""Large outputs are sent to the disk while they are proved: before they are in their place, and no error is missed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import paramtool
from paramtool.engine.read.threads import Threads
from paramtool.engine.write import staging
from paramtool.errors import OutputError


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint; every output counts as large."""
    monkeypatch.setattr(staging, "MEANWHILE_NBYTES", 0)
    torch.save({f"{k}": torch.arange(100.0) for k in range(3)}, tmp_path / "m.pt")
    return tmp_path / "m.pt"


def flushing(monkeypatch: pytest.MonkeyPatch, work: Callable[[int], None]) -> None:
    """Do something for each regular file that is sent to the disk."""

    def fsync(descriptor: int) -> None:
        if os.path.isfile(f"/proc/self/fd/{descriptor}"):
            work(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_an_output_is_on_the_disk_before_it_is_in_its_place(
    source: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, verify: bool
) -> None:
    out, seen = source.with_name(f"out.{suffix}"), list[tuple[bool, int, bool]]()

    def work(descriptor: int) -> None:
        is_other = threading.current_thread() is not threading.main_thread()
        threading.Event().wait(0.05)  # whoever does not wait for it goes on meanwhile
        seen.append((out.exists(), os.fstat(descriptor).st_size, is_other))

    flushing(monkeypatch, work)
    paramtool.dedup(source, out, verify=verify)
    assert seen == [(False, out.stat().st_size, True)]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize("verify", [True, False])
def test_a_disk_that_fails_then_is_an_error_of_the_output(
    source: Path, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    def work(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    flushing(monkeypatch, work)
    with pytest.raises(OutputError, match=r"out\.safetensors: cannot be written: Input/output error"):
        paramtool.dedup(source, source.with_name("out.safetensors"), verify=verify)
    assert [path.name for path in source.parent.iterdir()] == ["m.pt"]
    assert not [one for one in threading.enumerate() if getattr(one, "_target", None) == Threads._run]
