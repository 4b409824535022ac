"""Configurations: what is read, where it is looked for, and what each mistake says, with its place."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paramtool
from paramtool.commands.check import config
from paramtool.commands.check.config import ALWAYS, KEYS, Allowance, Policy, Setting, Settings, asked_rules
from paramtool.errors import ParamtoolError, UsageError
from paramtool.model.finding import RULE_IDS, SEVERITIES, FileLine

TOML = """
files = ["m/*.pt"]
lock = "my.lock"
tied = [["a", "b", "c"]]
dtype = {"*.weight" = "bfloat16"}
has = ["a"]
max-unused = 4096
max-duplicate = "1%"
no-nan = ["a*"]
unsafe = false
unknown-class = true
allow-class = ["mylib.*"]
config-ties = true
size = "1kB"
parameters = "5..7"
changed = false
content-only = true

[severity]
tie-lost = "off"
PT204 = "note"

[[paths]]
match = ["small/*", "*.bin"]
size = "1MB"
severity = {size = "warning"}

[[allow]]
rule = "PT204"
path = "m/a.pt"
tensors = ["x.*"]
reason = "old"
until = 2027-01-31
"""


def read(tmp_path: Path, text: str, name: str = "paramtool.toml") -> Policy:
    (tmp_path / name).write_text(text)
    return config.read(str(tmp_path / name))


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    """Each key of the table is in the text above; the rules have the ids and places of their keys."""
    found = read(tmp_path, TOML)
    assert found.settings.said.keys() == KEYS.keys()
    assert found.files == ("m/*.pt",) and found.lock == "my.lock"
    rules = [(one.rule.text, one.place and (one.place.line, one.place.column)) for one in asked_rules(found.settings)]
    assert rules == [
        ("untied:a=b", (4, 1)), ("untied:a=c", (4, 1)), ("wrong-dtype:*.weight=bfloat16", (5, 1)),
        ("missing:a", (6, 1)), ("unused-bytes>4096", (7, 1)), ("duplicate-bytes>1%", (8, 1)), ("nan", (9, 1)),
        ("unknown-class", (11, 1)), ("config-ties", (13, 1)), ("size>1kB", (14, 1)), ("parameters=5..7", (15, 1)),
    ]  # fmt: skip
    assert found.settings.severities == {"PT101": "off", "PT204": "note"}
    (allowed,) = found.allowances
    place = FileLine(found.path, 28, 1)
    assert allowed == Allowance("PT204", "old", ("m/a.pt",), ("x.*",), date(2027, 1, 31), place)


def test_a_table_for_some_paths_counts_more(tmp_path: Path) -> None:
    found = read(tmp_path, TOML)
    for path, size in (("small/x.pt", "1MB"), ("y/z.bin", "1MB"), ("other/small.pt", "1kB")):
        one = found.of(str(tmp_path / path))
        assert one.get("size")[0].text == f"size>{size}"
        assert one.severity("PT206") == ("warning" if size == "1MB" else "error") and one.severity("PT204") == "note"


def test_an_empty_value_overrides_for_some_paths(tmp_path: Path) -> None:
    """In `[[paths]]`, an empty `tied`, `has` or `dtype` asks for nothing where a table before it does."""
    text = 'tied = [["a", "b"]]\nhas = ["a"]\ndtype = {"*" = "int8"}\nallow-class = []\n'
    found = read(tmp_path, text + '[[paths]]\nmatch = ["x"]\ntied = []\nhas = []\ndtype = {}\n')
    asked = {path: [one.rule.kind.id for one in asked_rules(found.of(str(tmp_path / path)))] for path in ("x", "y")}
    assert asked == {"x": ["unsafe"], "y": ["untied", "wrong-dtype", "missing", "unsafe"]}


WRONG = {
    "an unknown key": ("tide = 1", "1:1: unknown key 'tide'; expected one of tied, dtype,", "did you mean tied?"),
    "the table of a pyproject.toml": (
        "[tool.paramtool]\nunsafe = true", "1:2: unknown key 'tool'", "its keys stand at the top",
    ),
    "a date for a flag": ("unsafe = [2027-01-31]", "1:1: unsafe is [2027-01-31]; expected", ""),
    "an unknown key of a table": ("[[allow]]\nrul = 1", "2:1: unknown key 'rul'; expected one of rule,", "rule"),
    "a string for a flag": ('a = 1\nunsafe = "yes"', "1:1: unknown key 'a'", ""),
    "a flag": ('\n  unsafe = "yes"', "2:3: unsafe is 'yes'; expected true or false", ""),
    "a number for a list": ("has = 1", "1:1: has is 1; expected a list of names", ""),
    "a number in a list": ('has = ["a",\n  2]', "2:3: has: 2 is no string; expected a list of names", ""),
    "an empty name": ('has = [""]', "1:8: has: '' is empty", ""),
    "a tie of one": ('tied = [["a", "b"], ["c"]]', "1:21: tied: ['c'] names fewer than two tensors", ""),
    "a flat tie": ('tied = ["a", "b"]', "1:9: tied: 'a' is not a list of names; expected lists of names, as in [[", ""),
    "a dtype": ('dtype = {"*" = "f32"}', "1:10: dtype: 'f32' is an unknown dtype (did you mean float32?)", ""),
    "no dtype": ('dtype = {"*" = 3}', "1:10: dtype: 3 is an unknown dtype", ""),
    "a size": ('size = "5 parsecs"', "1:1: size: '5 parsecs' is an invalid size", ""),
    "a share of nothing": ('size = "1%"', "1:1: size: '1%' is an invalid size", ""),
    "a share of more": ('max-unused = "101%"', "1:1: max-unused: '101%' is an invalid size", ""),
    "a negative size": ("max-unused = -1", "1:1: max-unused is -1: '-1' is an invalid size", ""),
    "a flag for a size": ("size = true", "1:1: size is true; expected a number of bytes", ""),
    "an empty range": ('parameters = "7..5"', "1:1: parameters: '7..5' is an empty range", ""),
    "a class that never": ('allow-class = ["a.B",\n  "os.*"]', "2:3: allow-class: --allow-class 'os.*': can", ""),
    "a number in a tie": ('tied = [["a", "b"], ["c",\n  5]]', "2:3: tied: ['c', 5] is not a list of names: 5;", ""),
    "a severity": ('[severity]\nsize = "fatal"', "2:1: severity.size is 'fatal'; expected one of error, warning", ""),
    "a rule": ('severity = {"PT999" = "off"}', "1:13: 'PT999' is no kind of finding; expected an id", "did you mean"),
    "a rule of allow": ('[[allow]]\nrule = 1\nreason = "x"', "2:1: 1 is no kind of finding", "docs/check.md"),
    "no reason": ('[[allow]]\nrule = "size"', "1:1: reason is missing; expected reason = ", ""),
    "an empty reason": ('[[allow]]\nrule = "size"\nreason = " "', "3:1: allow.reason is ' ': it is empty", ""),
    "a NUL in a path": ('lock = "a\\u0000b"', "1:1: lock is", ""),
    "no path": ('[[allow]]\nrule = "size"\nreason = "x"\npath = []', "4:1: allow.path is []: at least one is", ""),
    "no tensors": (
        '[[allow]]\nrule = "size"\nreason = "x"\ntensors = []', "4:1: allow.tensors is []: at least one is needed", "",
    ),
    "an empty match": ("[[paths]]\nmatch = []", "2:1: paths.match is []: at least one is needed; expected a list", ""),
    "no patterns": ("unsafe = true\nno-nan = []", "2:1: no-nan is []: at least one is needed; expected true", ""),
    "no ties": ("tied = []", "1:1: tied is []: at least one is needed; expected lists of names", ""),
    "no names": ("has = []", "1:1: has is []: at least one is needed; expected a list of names", ""),
    "no dtypes": ("dtype = {}", "1:1: dtype is {}: at least one is needed; expected a table", ""),
    "no files": ("files = []", "1:1: files is []: at least one is needed; expected a list of paths", ""),
    "an empty list over nothing": (
        '[[paths]]\nmatch = ["a"]\nhas = []', "3:1: paths.has is []: at least one is needed", "",
    ),
    "digits of another script": ('size = "\u0661MB"', "1:1: size: '\u0661MB' is an invalid size; write 4096", ""),
    "a share in another script": ('max-unused = "\u0661%"', "1:1: max-unused: '\u0661%' is an invalid size", ""),
    "a number in another script": ('parameters = "\u0661"', "1:1: parameters: '\u0661' is not a range of", ""),
    "a day": ('[[allow]]\nrule = "size"\nreason = "x"\nuntil = "soon"', "4:1: allow.until is 'soon'", ""),
    "a time": ('[[allow]]\nrule = "size"\nreason = "x"\nuntil = 2027-01-31T00:00:00', "4:1: allow.until is ", ""),
    "a table for tables": ("[allow]", "1:2: allow is {}; expected tables, [[allow]]", ""),
    "no table": ("allow = [1]", "1:10: allow is 1; expected a table, [[allow]]", ""),
    "no match": ("[[paths]]", "1:1: match is missing", ""),
    "files in paths": ('[[paths]]\nmatch = ["a"]\nfiles = ["b"]', "3:1: unknown key 'files'", ""),
    "a lock": ("lock = 1", "1:1: lock is 1; expected a path", ""),
    "a severity twice": ('[severity]\nnan = "error"\nPT209 = "off"', "3:1: 'PT209' is 'nan' once more; write", ""),
    "a byte order mark": ("\ufeffsize = 1", "1: begins with a byte order mark, which TOML does not have", ""),
    "no TOML": ("a = ]", "1:5: is not valid TOML: ", ""),
    "a key twice": ("size = 1\nsize = 2", "2:9: is not valid TOML: ", ""),
    "terminal codes": ('"\\u001b[31m" = 1', "1:1: unknown key '\\x1b[31m'", ""),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_has_a_line_and_a_column(what: str, tmp_path: Path) -> None:
    text, message, hint = WRONG[what]
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path / 'paramtool.toml'}:{message}"), caught.value
    assert hint in caught.value.hint and caught.value.exit_code == 2


def test_what_is_no_file_of_text(tmp_path: Path) -> None:
    """A folder, a fifo, other bytes, nothing: no error is another one, and none waits."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "latin").write_bytes(b"a = 1\n# \xff")
    (tmp_path / "long").write_text("#" * (config.MAX_TEXT + 1))
    says = {"folder": "is not a file", "fifo": "is not a file", "latin": ":2: is not UTF-8", "ghost": "No such file",
            "long": "has 1048577 characters"}  # fmt: skip
    for name, message in says.items():
        with pytest.raises(UsageError, match=message):
            config.read(str(tmp_path / name))
    (tmp_path / "pyproject.toml").write_text("[tool.ruff]\n")
    with pytest.raises(UsageError, match=r"has no table \[tool.paramtool\]"):
        config.read(str(tmp_path / "pyproject.toml"))


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    """Its own file before a pyproject.toml, which has to have the table."""
    assert config.found(str(tmp_path)) == ""
    project = tmp_path / "pyproject.toml"
    for text, is_ours in (("[tool.ruff]\n", False), ("tool = 1", False), ("[tool.paramtool]\n", True)):
        project.write_text(text)
        assert config.found(str(tmp_path)) == (str(project) if is_ours else "")
    (tmp_path / "paramtool.toml").write_text("a = ")
    assert config.found(str(tmp_path)) == str(tmp_path / "paramtool.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.paramtool]\nunsafe = true\n[project\n", ":3:9: is not valid TOML: "),
        ("[tool.paramtool\nunsafe = true\n", ":1:16: is not valid TOML: "),
        ("\ufeff[tool.paramtool]\n", ":1: begins with a byte order mark"),
    ],
)
def test_a_broken_pyproject_switches_no_rule_off(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error with its place, with `--config` or without; a paramtool.toml beside it is read in its place."""
    project = tmp_path / "pyproject.toml"
    project.write_text(text, encoding="utf-8")
    for look in (config.found, lambda folder: config.read(str(project))):
        with pytest.raises(UsageError) as caught:
            look(str(tmp_path))
        assert caught.value.message.startswith(f"{project}{message}") and caught.value.exit_code == 2
        assert caught.value.place is not None and caught.value.place[0] == str(project)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        paramtool.check(["x.pt"])
    (tmp_path / "paramtool.toml").write_text("unsafe = true")
    assert config.found() == "paramtool.toml"


def test_a_pyproject_has_places_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pyproject.toml:3:1: unknown key 'siz'"):
        read(tmp_path, "[project]\n[tool.paramtool]\nsiz = 1\n", "pyproject.toml")
    found = read(tmp_path, '[tool.paramtool]\nsize = 5\n[[tool.paramtool.paths]]\nmatch = ["x"]\n', "pyproject.toml")
    assert found.settings.said["size"].place == FileLine(found.path, 2, 1) and found.settings.get("unsafe") is not False


VALUES = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "1%", "float32", "2027-01-01", "*", "size"])
    | st.dates() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*KEYS, "rule", "until"]), inner),
    max_leaves=4,
)  # fmt: skip


@given(st.sampled_from([*KEYS, *config.TOP]), VALUES)
def test_any_value_is_taken_or_refused(key: str, value: object) -> None:
    """Law: what the table of a file says is a policy or a UsageError, never another error."""
    reader = config._PolicyReader("f.toml", {})
    try:
        found = reader.policy({key: value}, ())
    except ParamtoolError as error:
        assert isinstance(error, UsageError) and error.message.startswith("f.toml:1:1: ")
    else:
        list(asked_rules(found.settings))


RULE = st.sampled_from(RULE_IDS).map(lambda one: one.id)
LAYERS = st.builds(
    Settings,
    st.dictionaries(st.sampled_from(["size", "unsafe"]), st.builds(Setting, st.integers(0, 3)), max_size=2),
    st.dictionaries(RULE, st.sampled_from(SEVERITIES), max_size=2),
)


@given(st.lists(LAYERS, max_size=3))
def test_the_last_that_says_something_counts(layers: list[Settings]) -> None:
    joined = ALWAYS
    for one in layers:
        joined = joined.joined(one)
    for key in ("size", "unsafe"):
        said = [one.said[key].value for one in (ALWAYS, *layers) if key in one.said]
        assert joined.get(key) == (said[-1] if said else None)
    for rule in RULE_IDS:
        said = [one.severities[rule.id] for one in layers if rule.id in one.severities]
        assert joined.severity(rule.id) == (said[-1] if said else rule.severity)


def test_an_exception_holds_on_its_last_day_and_not_on_the_next() -> None:
    last = date(2027, 1, 31)
    allowance = Allowance("PT209", "why", (), ("a.*",), last)
    policy = Policy(allowances=(allowance,))
    assert not allowance.is_expired(last) and not allowance.is_expired(date(2020, 1, 1))
    assert allowance.is_expired(date(2027, 2, 1))
    for names, matches in ((("a.x",), True), (("a.x", "a.y"), True), (("a.x", "b"), False), ((), False)):
        assert list(policy.matching("PT209", "m.pt", names)) == [allowance] * matches
    assert not list(policy.matching("PT204", "m.pt", ("a.x",)))
