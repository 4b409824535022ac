"""Patterns and exceptions of a configuration that do nothing are said: a warning each, or one note for a part."""

from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path

import pytest
import torch

import paramtool
from paramtool.model.finding import NOTE, WARNING
from tests.cli.test_documents import validate
from tests.hostile.command import quick

NAN = float("nan")
TODAY = date(2027, 1, 31)
Seen = list[tuple[str, str, int]]


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two checkpoints; the first holds a NaN."""
    monkeypatch.chdir(tmp_path)
    torch.save({"mask": torch.tensor([NAN]), "w": torch.ones(3)}, "a.pt")
    torch.save({"w": torch.ones(3)}, "b.pt")
    return tmp_path


def policy(text: str) -> None:
    Path("paramtool.toml").write_text('files = ["*.pt"]\n' + text)


def general(found: paramtool.Checked) -> Seen:
    """(id, severity, line) of the findings about the configuration."""
    return [(one.id, one.severity, one.place.line if one.place else 0) for one in found.general]


UNMATCHED = '[[paths]]\nmatch = ["a.*", "tide.*"]\nsize = "1MB"\n[[allow]]\nrule = "size"\npath = "x"\nreason = "y"'
UNNEEDED = 'no-nan = true\n[[allow]]\nrule = "nan"\ntensors = ["mask", "old.*"]\nreason = "masks"\n'
UNNEEDED += '[[allow]]\nrule = "size"\nreason = "y"\n'
CASES: dict[str, Seen] = {
    UNMATCHED: [("PT502", WARNING, 2), ("PT502", WARNING, 5)],
    UNNEEDED: [("PT503", WARNING, 3), ("PT503", WARNING, 7)],
    'no-nan = ["w", "mask", "encoder.*"]\n[severity]\nnan = "note"': [("PT502", WARNING, 2)],
    'no-nan = ["w"]\n[[paths]]\nmatch = ["a.*"]\nno-nan = ["x"]': [("PT502", WARNING, 5)],
    '[[paths]]\nmatch = ["a.*"]\n[[allow]]\nrule = "size"\npath = "a.pt"\nreason = "y"\nuntil = 2020-01-01': [
        ("PT501", WARNING, 4)
    ],
    '[[paths]]\nmatch = ["?.pt"]\nno-nan = ["w"]': [],
}


@pytest.mark.parametrize("text", CASES)
def test_what_does_nothing_is_a_warning_each(text: str, at: Path) -> None:
    """Where everything was checked, at the line of the table or key."""
    policy(text)
    found = paramtool.check(today=TODAY)
    assert general(found) == CASES[text], found
    assert found.exit_code == 0


@pytest.mark.parametrize("text", CASES)
def test_and_one_note_of_each_kind_where_paths_are_given(text: str, at: Path) -> None:
    """Which is the same for one path and for all: nobody said that these are all."""
    policy(text)
    wanted: dict[str, int] = {}
    for rule, _, line in CASES[text]:
        wanted.setdefault(rule, line)
    for paths in (["a.pt", "b.pt"], ["?.pt"]):
        found = paramtool.check(paths, today=TODAY)
        assert general(found) == [(rule, WARNING if rule == "PT501" else NOTE, line) for rule, line in wanted.items()]
    assert found.exit_code == 0


def test_what_the_messages_say(at: Path) -> None:
    policy(UNMATCHED)
    assert [one.message for one in paramtool.check().general] == [
        "no checkpoint matches 'tide.*' in match of this [[paths]]",
        "no checkpoint matches 'x' in path of this [[allow]]",
    ]
    (note,) = paramtool.check(["b.pt"]).general
    assert note.message == "2 tables or rules match nothing that was checked: lines 2, 5"
    policy(UNNEEDED)
    assert [one.message for one in paramtool.check().general] == [
        "no finding needs 'old.*' in tensors of the exception for PT209 nan",
        'no finding needs the exception for PT206 size: "y"',
    ]
    policy(UNNEEDED.replace('"y"', '"y"\nuntil = 2020-01-01'))
    expired = paramtool.check().general[0]
    assert expired.message == 'PT206 size was allowed until 2020-01-01: "y", and no finding needs it'


def test_a_file_in_which_no_nan_judges_nothing(at: Path) -> None:
    """A note for that file, as for every rule that holds by more than the file shows."""
    policy('no-nan = ["mask"]\n[severity]\nnan = "note"')
    found = paramtool.check()
    assert [file.notes for file in found.files] == [(), ("nan holds: no tensor matches 'mask', so none was judged",)]
    assert found.general == ()


def test_severities_of_what_does_nothing(at: Path) -> None:
    """An error fails where everything was checked, and never where only a part was; `off` says nothing."""
    policy(UNMATCHED + '\n[severity]\nunmatched = "error"')
    assert paramtool.check().exit_code == 1 and paramtool.check(["a.pt"]).exit_code == 0
    policy(UNMATCHED + '\n[severity]\nPT502 = "off"')
    assert paramtool.check().general == () == paramtool.check(["a.pt"]).general


def test_an_exception_for_what_was_not_judged_may_be_needed(at: Path) -> None:
    """A checkpoint that cannot be read, and a pointer that no rule judges: nobody knows."""
    policy("".join(f'[[allow]]\nrule = "size"\npath = "{name}.pt"\nreason = "y"\n' for name in "ab"))
    data = Path("a.pt").read_bytes()
    Path("a.pt").write_bytes(data[:100])
    assert general(paramtool.check()) == [("PT503", WARNING, 6)]
    Path("a.pt").write_bytes(data)
    paramtool.lock(["a.pt", "b.pt"])
    digest = hashlib.sha256(data).hexdigest()
    Path("a.pt").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n")
    assert general(paramtool.check()) == [("PT503", WARNING, 6)]


def test_a_second_exception_for_the_same_is_not_needed(at: Path) -> None:
    policy('no-nan = true\n[[allow]]\nrule = "nan"\nreason = "x"\n[[allow]]\nrule = "PT209"\nreason = "y"')
    assert general(paramtool.check()) == [("PT503", WARNING, 6)]


def test_it_is_seen_on_a_terminal_and_in_the_document(at: Path) -> None:
    policy(UNMATCHED)
    ran = quick("check", cwd=at)
    assert "warning  paramtool.toml:2  PT502 unmatched: no checkpoint matches 'tide.*'" in ran.out, ran
    assert ran.code == 0
    document = validate("check", quick("check", "--json", cwd=at).out)
    assert [one["id"] for one in document["general"]] == ["PT502", "PT502"]
    ran = quick("check", "a.pt", cwd=at)
    assert "note  paramtool.toml:2  PT502 unmatched: " in ran.out, ran
