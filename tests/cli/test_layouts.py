"""`paramtool layouts`: layouts of networks and of parts, dialects, and what the shell offers."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from paramtool import dialects
from paramtool.cli import _completion
from paramtool.cli.relayout import convert, fuse
from paramtool.parts import layout
from paramtool.parts.layout import all_part_layouts
from tests.hostile.command import quick


def test_every_layout_and_every_dialect_is_listed(tmp_path: Path) -> None:
    """By name alone with --quiet, and in the document."""
    names = quick("layouts", "--quiet", cwd=tmp_path).out.split()
    document = json.loads(quick("layouts", "--json", cwd=tmp_path).out)
    mine = [one.name for one in all_part_layouts()]
    assert [one["name"] for one in document["parts"]] == mine
    assert [one["name"] for one in document["dialects"]] == list(dialects.NAMES)
    assert names == [one["name"] for key in ("layouts", "parts", "dialects") for one in document[key]]
    assert len(set(names)) == len(names), "a name says which is meant"


@pytest.mark.parametrize("layout", all_part_layouts(), ids=lambda one: one.name)
def test_a_layout_of_parts_shows_what_is_known_of_it(layout: object, tmp_path: Path) -> None:
    """Its patterns, the facts that it needs, who has it, and what it is mistaken for."""
    ran = quick("layouts", layout.name, cwd=tmp_path)  # type: ignore[attr-defined]
    assert ran.code == 0, ran
    for row in layout.tensors:  # type: ignore[attr-defined]
        assert row.content in ran.out
    assert all(f"fact  {fact}" in ran.out for fact in layout.facts)  # type: ignore[attr-defined]
    assert all(name in ran.out for name in layout.like)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", dialects.NAMES)
def test_a_dialect_shows_its_version_and_models(name: str, tmp_path: Path) -> None:
    """And what is refused; --json has all models."""
    ran = quick("layouts", name, cwd=tmp_path)
    one = dialects.table(name)
    assert ran.code == 0 and one.version in ran.out and one.title in ran.out
    assert all(text in ran.out for text in one.notes)
    document = json.loads(quick("layouts", name, "--json", cwd=tmp_path).out)
    assert document["layouts"] == document["parts"] == []
    assert document["dialects"][0]["models"] == list(one.models)
    assert document["dialects"][0]["refused"] == dict(one.refused or {})


def test_a_layout_of_parts_says_what_was_run_of_it(tmp_path: Path) -> None:
    """By whom, how far off it was, and how far off other layouts were; or that no model ran."""
    ran = quick("layouts", "qkv-per-head", "--verbose", cwd=tmp_path)
    assert "proof" in ran.out and "GPT-NeoX" in ran.out and "other layouts by" in ran.out
    assert "no model of it was run" in quick("layouts", "qkvz-per-head", "--verbose", cwd=tmp_path).out


def test_proofs_are_of_layouts_that_there_are() -> None:
    """`proofs.json` is written by a script, and its names are those of the tables."""
    with open(Path(layout.__file__).with_name(layout.FILE), encoding="utf-8") as file:
        written = json.load(file)
    assert written.keys() <= {one.name for one in all_part_layouts()} and len(written) > 10


def test_a_change_of_values_is_no_layout(tmp_path: Path) -> None:
    """It is refused under that name, as `convert` does."""
    ran = quick("layouts", "norm-plus-one", cwd=tmp_path)
    assert ran.code == 2 and "it changes values (weights of norms plus 1)" in ran.err


def test_no_such_layout(tmp_path: Path) -> None:
    """Exit 2."""
    assert quick("layouts", "qkv-per-moon", cwd=tmp_path).code == 2


def offered(command: click.Command, option: str, typed: str) -> list[str]:
    (parameter,) = (one for one in command.params if one.name == option)
    return _completion.layouts(click.Context(command, info_name=command.name), parameter, typed)


def test_the_shell_offers_dialects_where_an_option_takes_them() -> None:
    """`convert --to` takes layouts and dialects, `fuse --layout` layouts."""
    assert offered(convert, "target", "transformers") == ["transformers-4", "transformers-5"]
    assert "qkv-per-head" in offered(fuse, "layout", "qkv")
    assert offered(fuse, "layout", "vllm") == []
