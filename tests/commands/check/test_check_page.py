"""docs/check.md: its tables are those of the code, and its configurations are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paramtool.commands.check import config
from paramtool.commands.check.config import KEYS
from paramtool.commands.rules import KINDS
from paramtool.model.finding import RULE_IDS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "check.md"
POLICIES = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S)


def table(word: str) -> list[str]:
    """The rows between two marks."""
    return PAGE.read_text().split(f"<!-- {word} -->\n")[1].split(f"<!-- /{word} -->")[0].splitlines()[2:]


def test_the_tables_are_those_of_the_code() -> None:
    assert table("keys") == [
        f"| `{key}` | {one.words} | {one.expected.replace('|', '/')} |" for key, one in KEYS.items()
    ]
    assert table("ids") == [
        f"| `{one.id}` | `{one.name}` | {one.severity} | {one.words} | {fail_on(one.id)} |" for one in RULE_IDS
    ]
    assert {kind.rule_id for kind in KINDS} <= {one.id for one in RULE_IDS}


def fail_on(number: str) -> str:
    """The rules of `inspect --fail-on` with an id of `check`."""
    return ", ".join(f"`{kind.id}{kind.form}`" for kind in KINDS if kind.rule_id == number)


@pytest.mark.parametrize("text", POLICIES)
def test_every_configuration_is_valid(text: str, tmp_path: Path) -> None:
    """As a file of its own, and as a table of a pyproject.toml; with another key it is not."""
    (tmp_path / "paramtool.toml").write_text(text)
    found = config.read(str(tmp_path / "paramtool.toml"))
    assert found.settings.said and (found.files or found.lock)
    inside = re.sub(r"^\[(\[?)(?=\w)", r"[\1tool.paramtool.", text, flags=re.M)
    (tmp_path / "pyproject.toml").write_text(f"[tool.paramtool]\n{inside}")
    again = config.read(str(tmp_path / "pyproject.toml"))
    assert {key: one.value for key, one in again.settings.said.items()} == {
        key: one.value for key, one in found.settings.said.items()
    }
    assert len(POLICIES) == 4
