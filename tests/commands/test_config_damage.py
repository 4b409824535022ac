"""A config.json that cannot be read: `inspect` says so, and commands that need it refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

import paramtool
from paramtool.errors import FormatError
from tests.hostile.makers_safetensors import build, item

DAMAGED = {"a list": "[]", "null": "null", "is empty": "", "not valid JSON": '{"a": ', "twice": '{"a": 1, "a": 2}'}


@pytest.mark.parametrize("what", DAMAGED)
def test_inspect_notes_it(what: str, tmp_path: Path) -> None:
    (folder := tmp_path / "in").mkdir()
    (folder / "model.safetensors").write_bytes(build({"w": item()}))
    (folder / "config.json").write_text(DAMAGED[what])
    (note,) = paramtool.inspect(folder).checkpoint.notes
    assert "config.json" in note and what in note
    assert paramtool.inspect(folder / "model.safetensors").checkpoint.notes == (note,)
    with pytest.raises(FormatError, match=what) as raised:
        paramtool.convert(folder, tmp_path / "out", target="vllm")
    assert "again" in raised.value.hint and not (tmp_path / "out").exists()


def test_a_config_that_can_be_read_has_no_note(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(build({"w": item()}))
    assert not paramtool.inspect(tmp_path).checkpoint.notes
    (tmp_path / "config.json").write_text("{}")
    assert not paramtool.inspect(tmp_path).checkpoint.notes
