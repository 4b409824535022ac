"""The tests follow the tables: whatever a registry has is fuzzed, meets faults and is killed.

A row of the formats, a writer, a suffix or a command without its seed, mutator, weight and fault fails here.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from paramtool.cli.main import COMMANDS
from paramtool.commands.output.writers import named_form
from paramtool.formats import table
from tests.faults import commands as faults
from tests.fuzz import cases, judges, mutators
from tests.fuzz.mutators import raw
from tests.fuzz.seeds import Seed, every
from tests.written import WRITERS

READERS = (*(row.name for row in table.FORMATS), "sharded", "deepspeed", "ranks")
"""The rows of the formats, and what is read from several of their files: `SHARDED`, `DEEPSPEED`, `RANK_FILES`."""
SOME_HUNDRED = 400


@pytest.fixture(scope="module")
def seeds() -> list[Seed]:
    """All that is mutated."""
    return every()


def test_readers_have_seeds_with_a_structural_mutator(seeds: list[Seed]) -> None:
    for name in READERS:
        kinds = {kind for seed in seeds if seed.format == name for kind in seed.kinds.values()}
        made = {mutator for kind in kinds for _, mutator in mutators.KINDS[kind]}
        assert made - {raw.mutate}, name
    used = {kind for seed in seeds for kind in seed.kinds.values()}
    assert used == set(mutators.KINDS), "a kind of file without a seed"


def test_suffixes_have_seeds(seeds: list[Seed]) -> None:
    there = {(seed.format, Path(seed.main).suffix) for seed in seeds}
    expected = {(row.name, suffix) for row in table.FORMATS for suffix in row.suffixes}
    expected |= {("torch", suffix) for suffix in table.NEVER_WRITTEN}
    assert expected <= there


def test_weights_are_those_of_rows_with_seeds(seeds: list[Seed]) -> None:
    assert set(READERS) <= set(cases.WEIGHTS) == {seed.format for seed in seeds}
    assert all(weight > 0 for weight in (*cases.WEIGHTS.values(), *cases.PLANS.values()))


@pytest.mark.parametrize("start", ["0", "short", "2026-11-28"])
def test_some_hundred_cases_have_every_row(seeds: list[Seed], start: str) -> None:
    """Every format, every command, every writer and, of each format with fewer seeds than draws, every seed."""
    formats, commands, outputs, drawn = set(), set(), set(), set()
    for number in range(SOME_HUNDRED):
        seed = cases.seed_of(seeds, start, number)
        formats.add(seed.format)
        drawn.add((seed.format, seed.name))
        planned = cases.plan(seed, *cases.drawn(cases.PLANS, f"{start}/plan", number), Random(f"{start}{number}"))
        commands |= {command[0] for command in planned}
        outputs |= {"dcp" if "dcp" in words else words[words.index("-o") + 1] for words in planned if "-o" in words}
    assert formats == set(cases.WEIGHTS)
    assert commands == set(COMMANDS) == set(judges.CODES)
    written = {writer.name for writer in WRITERS for output in outputs if named_form(output) is writer.form}
    assert written | ({"dcp"} if "dcp" in outputs else set()) == {writer.name for writer in WRITERS}
    turns = SOME_HUNDRED // sum(cases.WEIGHTS.values())
    for name, weight in cases.WEIGHTS.items():
        there = {(seed.format, seed.name) for seed in seeds if seed.format == name}
        assert len(there & drawn) >= min(len(there), weight * turns)


def test_commands_meet_faults() -> None:
    """Each command of the command line, each reader, and each suffix that is written: all their calls fail once."""
    assert {one.words[0] for one in faults.COMMANDS} == set(COMMANDS)
    assert {one.name.removeprefix("read_") for one in faults.READERS} == set(READERS)
    assert set(faults.READERS) < set(faults.COMMANDS)
    written = [one for one in faults.WRITING if "--into" not in one.words]
    assert {suffix for one in written if (suffix := Path(one.output).suffix) in table.WRITTEN} == set(table.WRITTEN)
    for writer in WRITERS:
        ours = [
            one
            for one in written
            if named_form(one.output) is writer.form or (writer.name == "dcp" and "dcp" in one.words)
        ]
        assert ours, f"{writer.name} is written in no command of tests/faults/commands.py"


def test_all_of_them_are_killed() -> None:
    """But for what `make test` leaves to `make hard`."""
    assert set(faults.WRITING) == {one for one in faults.COMMANDS if one.output}
    spared = {one.name for one in faults.COMMANDS} - {one.name for one in faults.CALLED}
    assert spared <= {faults.REPORT, *faults.LIKE_CONVERT, "lock-folder"}
    spared = {one.name for one in faults.WRITING} - {one.name for one in faults.SIGNALLED}
    assert spared <= {*faults.LIKE_CONVERT, "dedup-folder", "family"}
