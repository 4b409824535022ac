"""Checking: exit codes, what stops what, exceptions and severities, the lock, patterns and folders."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from datetime import date
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.cli.check import FORMS
from paramtool.errors import FormatError, UsageError
from tests.cli.test_documents import validate
from tests.examples import IS_WHOLE
from tests.hostile import makers_torch
from tests.hostile.command import quick
from tests.hostile.makers_torch import call_of, mapping, state, tensor

A = torch.arange(2000.0).reshape(40, 50)
TODAY = date(2027, 1, 31)


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory: tied.pt, whose two names share memory, and plain.safetensors."""
    monkeypatch.chdir(tmp_path)
    torch.save({"head": A, "wte": A}, "tied.pt")
    save_file({"w": A}, "plain.safetensors")
    return tmp_path


def ids(found: paramtool.Checked) -> list[tuple[str, str]]:
    return [(one.path, one.id) for one in found.findings]


def policy(at: Path, text: str) -> None:
    (at / "paramtool.toml").write_text(text)


def unsafe(at: Path) -> Path:
    """A file whose pickle calls os.system, and that can be described."""
    return makers_torch.zipped(state(w=tensor(), evil=call_of("os", "system"), args=mapping(lr=b"K\x01")))(at)


# --- without a configuration and a lock --------------------------------------------------------------------------


def test_a_good_file_has_no_finding(at: Path) -> None:
    found = paramtool.check(["tied.pt", "plain.safetensors"])
    assert found.findings == () and found.exit_code == 0 and not found.lock and not found.config
    ran = quick("check", "tied.pt", cwd=at)
    assert ran.code == 0 and ran.err == "" and ran.out.splitlines()[-1] == "next  paramtool lock tied.pt", ran


def test_what_is_looked_for_without_a_configuration(at: Path) -> None:
    """More than 1 % unused or duplicate, a config's ties, and unsafe pickles; the last is an error."""
    torch.save({"a": torch.zeros(1000)[:10], "b": A, "c": A.clone()}, "waste.pt")
    (at / "model").mkdir()
    torch.save({"transformer.wte.weight": A, "lm_head.weight": A + 1}, "model/pytorch_model.bin")
    (at / "model" / "config.json").write_text('{"tie_word_embeddings": true, "model_type": "gpt2"}')
    unsafe(at)
    found = paramtool.check(["waste.pt", "model", "model.pt"])
    wanted = [("model", "PT104"), ("model.pt", "PT301"), ("waste.pt", "PT204"), ("waste.pt", "PT205")]
    assert sorted(ids(found)) == wanted
    assert {one.id for one in found.findings if one.fails} == {"PT301"} and found.exit_code == 4
    small = {"a": torch.zeros(1010)[:1000], "b": A, "c": torch.ones(4), "d": torch.ones(4)}
    torch.save(small, "less.pt")
    assert paramtool.check(["less.pt"]).findings == ()


# --- codes ---------------------------------------------------------------------------------------------------------


BAD: dict[str, tuple[int, Callable[[Path], object]]] = {
    "fine": (0, lambda at: None),
    "finding": (1, lambda at: save_file({"x": A}, at / "file")),
    "gone": (3, lambda at: (at / "file").unlink()),
    "damaged": (3, lambda at: (at / "file").write_bytes(b"PK\x03\x04junk")),
    "no checkpoint": (3, lambda at: (at / "file").write_text("hello")),
    "unsafe and damaged": (4, lambda at: (at / "file").write_bytes(b"\x80\x02cos\nsystem\nX\x01\0\0\0x\x85R.")),
}


@pytest.mark.sample(18)
@pytest.mark.parametrize("first", BAD)
@pytest.mark.parametrize("second", BAD)
def test_the_highest_code_wins_and_nothing_stops_the_others(first: str, second: str, at: Path) -> None:
    """Each kind of path beside each other one: both are judged, in one document."""
    policy(at, 'has = ["w"]')
    codes = []
    for name, kind in (("one", first), ("two", second)):
        (at / name).mkdir()
        save_file({"w": A}, at / name / "file")
        code, change = BAD[kind]
        change(at / name)
        codes.append(code)
    ran = quick("check", "one/file", "two/file", "--format", "json", cwd=at)
    document = validate("check", ran.out)
    assert ran.code == document["exit_code"] == max(codes)
    assert [file["exit_code"] for file in document["files"]] == codes
    assert [file["error"] is None for file in document["files"]] == [code < 2 for code in codes]
    assert all(f"error: {name}/file" in ran.err for name, code in zip(("one", "two"), codes, strict=True) if code > 1)


def test_no_path_at_all(at: Path) -> None:
    with pytest.raises(UsageError, match="no path is given"):
        paramtool.check()
    ran = quick("check", "--json", cwd=at)
    assert ran.code == 2 and json.loads(ran.out)["exit_code"] == 2


def test_the_error_of_a_configuration_is_a_document_too(at: Path) -> None:
    policy(at, "tide = 1")
    for flags in (("--json",), ("--format", "json"), ("--format=json",)):
        ran = quick("check", "tied.pt", *flags, cwd=at)
        assert ran.code == 2 and json.loads(ran.out)["message"].startswith("paramtool.toml:1:1: unknown key"), ran


# --- severities and exceptions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("severity", "code"), [("error", 1), ("warning", 0), ("note", 0), ("off", 0)])
def test_only_errors_fail(severity: str, code: int, at: Path) -> None:
    policy(at, f'size = 1\nseverity = {{PT206 = "{severity}"}}')
    found = paramtool.check(["tied.pt"])
    assert found.exit_code == code and [one.severity for one in found.findings] == [severity] * (severity != "off")


def test_an_exception_and_the_day_after(at: Path) -> None:
    """Until its last day; then the finding fails again, and the exception is a finding of its own, with its line."""
    policy(at, 'size = 1\n[[allow]]\nrule = "size"\npath = "tied.*"\nreason = "old exporter"\nuntil = 2027-01-31')
    found = paramtool.check(["tied.pt"], today=TODAY)
    assert found.exit_code == 0 and found.findings[0].allowed == 'until 2027-01-31: "old exporter"'
    assert found.summary == "1 file, 0 findings, 1 allowed"
    assert paramtool.check(["plain.safetensors"], today=TODAY).exit_code == 1
    found = paramtool.check(["tied.pt"], today=date(2027, 2, 1))
    assert [(one.id, one.fails) for one in found.findings] == [("PT501", False), ("PT206", True)]
    assert "no finding needs it" not in found.general[0].message
    assert found.general[0].place is not None and found.general[0].place[1:] == (2, 1)
    policy(at, (at / "paramtool.toml").read_text() + '\n[severity]\nexpired = "error"')
    assert paramtool.check(["plain.safetensors"], today=date(2027, 2, 1)).general[0].fails


def test_tensors_of_an_exception(at: Path) -> None:
    torch.save({"mask": torch.tensor([float("-inf")]), "w": torch.tensor([float("nan")])}, "m.pt")
    policy(at, 'no-nan = true\n[[allow]]\nrule = "nan"\ntensors = "mask"\nreason = "masks"')
    found = paramtool.check(["m.pt"])
    assert {one.names: bool(one.allowed) for one in found.findings} == {("mask",): True, ("w",): False}


def test_a_place_for_some_paths(at: Path) -> None:
    policy(at, 'files = ["*.pt", "*.safetensors"]\nsize = 1\n[[paths]]\nmatch = ["*.pt"]\nsize = "1MB"')
    assert ids(paramtool.check()) == [("plain.safetensors", "PT206")]


RULES = {
    'tied = [["head", "wte"]]': (),
    'tied = [["head", "other"]]': ("PT103",),
    'dtype = {"*" = "float32"}': (),
    'dtype = {"h*" = "float16", "x" = "float32"}': ("PT208", "PT208"),
    'has = ["head", "x"]': ("PT202",),
    "max-unused = 0": ("PT204",),
    'max-unused = "1%"': ("PT204",),
    'max-unused = "99%"': (),
    "max-duplicate = 8000": (),
    "max-duplicate = 7999": ("PT205",),
    "no-nan = true": ("PT209",),
    'no-nan = ["h*"]': (),
    'size = "1MB"': (),
    "size = 1": ("PT206",),
    "parameters = 1": ("PT207",),
    'parameters = "4001..4100"': (),
    "unknown-class = true": (),
}


@pytest.mark.parametrize(
    ("text", "code"),
    [("max-unused = 0", 1), ("max-duplicate = 7999", 1), ("max-unused = 0\nseverity = {unused-bytes = 'warning'}", 0),
     ("", 0)],
)  # fmt: skip
def test_a_limit_that_was_written_fails(text: str, code: int, at: Path) -> None:
    """As `inspect --fail-on` does, unless its severity says otherwise; the limits of no configuration are warnings."""
    waste = {"a": torch.zeros(1100)[:1000], "b": torch.ones(2000), "c": torch.ones(2000)}
    torch.save(waste, "waste.pt")
    if text:
        (at / "paramtool.toml").write_text(text)
    found = paramtool.check(["waste.pt"])
    assert found.findings and found.exit_code == code


@pytest.mark.parametrize("text", RULES)
def test_each_rule(text: str, at: Path) -> None:
    """A file with two names of one tensor, its copy, a NaN, and a storage that is mostly unused."""
    torch.save(
        {"head": A, "wte": A, "other": A.clone(), "part": torch.zeros(3000)[:4], "nan": torch.tensor([float("nan")])},
        "m.pt",
    )
    policy(at, text)
    found = paramtool.check(["m.pt"])
    assert tuple(one.id for one in found.findings) == RULES[text], found
    assert all(one.place is not None and one.place.path == "paramtool.toml" for one in found.findings)


def test_the_same_judges_as_inspect(at: Path) -> None:
    """`inspect --fail-on` finds the same, in the same words."""
    policy(at, 'size = 1\nhas = ["q"]\ntied = [["head", "q"]]\nparameters = 3')
    rules = ["untied:head=q", "missing:q", "size>1", "parameters=3"]
    said = paramtool.inspect("tied.pt", fail_on=rules).findings
    assert said is not None and [(one.rule, one.message, one.id) for one in said] == [
        (one.rule, one.message, one.id) for one in paramtool.check(["tied.pt"]).findings
    ]


# --- unsafe --------------------------------------------------------------------------------------------------------


def test_an_unsafe_file_is_a_finding(at: Path) -> None:
    """4, and 0 where somebody has allowed it by name or with a reason; a class that is not allowed never passes."""
    unsafe(at)
    assert quick("check", "model.pt", cwd=at).code == 4
    assert quick("check", "model.pt", "--allow-unknown", cwd=at).code == 0
    digest = sha256((at / "model.pt").read_bytes()).hexdigest()
    policy(at, f'[[allow]]\nrule = "unsafe"\nreason = "looked at"\nsha256 = "{digest}"')
    assert quick("check", "model.pt", cwd=at).code == 0
    policy(at, 'severity = {unsafe = "warning"}')
    assert quick("check", "model.pt", cwd=at).code == 0
    policy(at, "unsafe = false")
    assert paramtool.check(["model.pt"], config="paramtool.toml").findings == ()


LOWERED = {
    "unsafe = false": 1,
    'severity = {PT301 = "off"}': 1,
    '[severity]\nunsafe = "note"': 2,
    '[[paths]]\nmatch = ["*.pt"]\nunsafe = false': 3,
    'no-nan = false\nallow-class = ["recipes.*"]': 2,
    f'[[allow]]\nrule = "unsafe"\nreason = "looked at"\nsha256 = "{"0" * 64}"': 1,
    '[[allow]]\nrule = "unsafe"\nreason = "looked at"\nsha256 = "DIGEST"': 1,
}


@pytest.mark.parametrize("text", LOWERED)
def test_a_configuration_that_was_found_lowers_nothing_in_silence(text: str, at: Path) -> None:
    """That of a folder that was downloaded may be a stranger's."""
    unsafe(at)
    policy(at, text.replace("DIGEST", sha256((at / "model.pt").read_bytes()).hexdigest()))
    said, line = "lets unsafe files pass", LOWERED[text]
    found = paramtool.check(["model.pt", "plain.safetensors"])
    first, passes = found.findings[0], found.exit_code == 0
    assert passes == ("recipes" not in text and "000" not in text)
    (call,) = paramtool.inspect("model.pt").unsafe
    assert ("model.pt" in first.message and call.path in first.message) is passes, first.message
    assert "plain" not in first.message and ("none of these" in first.message) is not passes
    assert found.general[0] is first and first.message.startswith(said)
    assert (first.id, first.severity, first.place.line if first.place else 0) == ("PT504", "warning", line)
    forms = {form: quick("check", "model.pt", "--format", form, cwd=at).out for form in FORMS}
    assert forms["text"].startswith(f"warning  paramtool.toml:{line}  PT504 lowered"), forms
    assert forms["github"].startswith(f"::warning file=paramtool.toml,line={line}")
    assert json.loads(forms["sarif"])["runs"][0]["results"][0]["ruleId"] == "PT504"
    assert json.loads(forms["json"])["general"][0]["message"].startswith(said)
    assert said in forms["markdown"].split("|---|", 1)[1].splitlines()[1]
    assert said in forms["junit"].split("</testsuite>")[0]
    assert said not in quick("check", "model.pt", "--config", "paramtool.toml", cwd=at).out
    policy(at, "no-nan = true")
    assert said not in quick("check", "model.pt", cwd=at).out


def test_a_lock_that_a_found_configuration_names_is_no_link_out(at: Path) -> None:
    """The first line of what it leads to would be printed."""
    folder = at / "inner"
    folder.mkdir()
    torch.save({"w": torch.ones(2)}, folder / "model.pt")
    (at / "secret").write_text("a secret\n")
    (folder / "my.lock").symlink_to("../secret")
    policy(folder, 'lock = "my.lock"')
    ran = quick("check", "model.pt", cwd=folder)
    assert ran.code == 2 and "lock: is a link out of its folder" in ran.err and "a secret" not in ran.err, ran
    (folder / "my.lock").unlink()
    assert quick("lock", "model.pt", "-o", "its.lock", cwd=folder).code == 0
    (folder / "my.lock").symlink_to("its.lock")
    assert quick("check", "model.pt", cwd=folder).code == 0


def test_an_exception_for_an_unsafe_file_has_its_digest(at: Path) -> None:
    unsafe(at)
    allow = '[[allow]]\nrule = "unsafe"\nreason = "looked at"\n'
    policy(at, allow)
    ran = quick("check", "model.pt", cwd=at)
    assert ran.code == 2 and "paramtool.toml:1:1: an exception for an unsafe file needs its digest" in ran.err, ran
    assert quick("check", "model.pt", "--config", "paramtool.toml", cwd=at).code == 0
    policy(at, f'{allow}sha256 = "{"0" * 64}"')
    for more in ((), ("--config", "paramtool.toml")):
        ran = quick("check", "model.pt", *more, cwd=at)
        assert ran.code == 4 and "unused-exception" in ran.out, ran


def test_an_unknown_class_and_its_list(at: Path) -> None:
    space = makers_torch.name("recipes", "Recipe") + b")\x81" + mapping(lr=b"K\x01") + b"b"
    makers_torch.zipped(state(w=tensor(), args=space))(at)
    policy(at, "unknown-class = true")
    assert ids(paramtool.check(["model.pt"])) == [("model.pt", "PT302")]
    policy(at, 'unknown-class = true\nallow-class = ["recipes.*"]')
    assert paramtool.check(["model.pt"], config="paramtool.toml").findings == ()


# --- paths ---------------------------------------------------------------------------------------------------------


def test_patterns_that_the_shell_did_not_expand(at: Path) -> None:
    (at / "a" / "b").mkdir(parents=True)
    save_file({"w": A}, "a/b/x.safetensors")
    save_file({"w": A}, "[odd].safetensors")
    seen = [file.path for file in paramtool.check(["*.pt", "**/*.safetensors", "tied.pt", "[odd].safetensors"]).files]
    assert seen == ["tied.pt", "[odd].safetensors", "a/b/x.safetensors", "plain.safetensors"]
    (file,) = paramtool.check(["*.nothing"]).files
    assert isinstance(file.error, UsageError) and "no file matches" in file.error.message


@pytest.mark.parametrize("command", ["check", "lock"])
def test_what_is_no_path(command: str, at: Path) -> None:
    """A path that does not exist is 3, as for every command; a pattern, a URL, a model of a hub or `-` is 2."""
    for path, code, words in (
        ("gone.pt", 3, "error: gone.pt: "), ("*.gone", 2, "no file matches this pattern"),
        ("https://a.org/m.pt", 2, "is a URL"), ("acme/tiny", 2, "hf download acme/tiny"), ("-", 2, "standard input"),
    ):  # fmt: skip
        ran = quick(command, "--", path, cwd=at)
        assert ran.code == code and words in ran.err, ran
    assert not (at / "paramtool.lock").exists()


def test_a_folder_of_several_models(at: Path) -> None:
    """Each of them; a folder that is one model is one path."""
    (at / "many" / "sub").mkdir(parents=True)
    for name, shift in (("a", 1), ("b", 2), ("sub/c", 3)):
        save_file({"w": A + shift}, f"many/{name}.safetensors")
    seen = [file.path for file in paramtool.check(["many", "many/sub"]).files]
    assert seen == ["many/a.safetensors", "many/b.safetensors", "many/sub", "many/sub"]
    (at / "many" / "bad.safetensors").write_bytes(b"junkjunkjunkjunk")
    found = paramtool.check(["many"])
    assert [(file.path, file.exit_code) for file in found.files][-1] == ("many/bad.safetensors", 3)
    assert found.exit_code == 3 and len(found.files) == 4
    (at / "many" / "evil.pkl").write_bytes(b"\x80\x02cos\nsystem\nX\x01\0\0\0x\x85R.")
    assert paramtool.check(["many"]).exit_code == 4
    (at / "mixed" / "hub").mkdir(parents=True)
    save_file({"w": A}, "mixed/hub/model.safetensors")
    torch.save({"w": A + 1}, "mixed/other.pt")
    assert {file.path for file in paramtool.check(["mixed"]).files} >= {"mixed/hub", "mixed/other.pt"}
    assert len(paramtool.check(["tied.pt", "./tied.pt"]).files) == 1
    (at / "empty").mkdir()
    (file,) = paramtool.check(["empty"]).files
    assert isinstance(file.error, FormatError) and file.exit_code == 3


def test_paths_of_a_configuration_elsewhere(at: Path) -> None:
    """Relative to its folder, as are its patterns and its lock."""
    (at / "conf").mkdir()
    save_file({"w": A}, "conf/x.safetensors")
    paramtool.lock(["conf/x.safetensors"], "conf/my.lock")
    (at / "conf" / "c.toml").write_text(
        'files = ["*.safetensors"]\nlock = "my.lock"\n[[paths]]\nmatch = ["x.*"]\nsize = 1'
    )
    found = paramtool.check(config="conf/c.toml")
    assert ids(found) == [("conf/x.safetensors", "PT206")] and found.files[0].locked == "x.safetensors"


def test_a_folder_for_a_lock(at: Path) -> None:
    """The configuration that says so is named."""
    (at / "paramtool.toml").write_text('lock = "."')
    with pytest.raises(UsageError, match=r"paramtool\.toml: lock is '\.', a folder"):
        paramtool.check(["tied.pt"])


# --- a lock --------------------------------------------------------------------------------------------------------


def test_the_models_of_a_lock(at: Path) -> None:
    """All of them without a path; a path that it does not name is compared with its only one; several are named."""
    paramtool.lock(["tied.pt"], "one.lock")
    save_file({"head": A, "wte": A + 1}, "other.safetensors")
    found = paramtool.check(["other.safetensors"], lock="one.lock")
    assert {one.id for one in found.findings} >= {"PT101", "PT201"} and found.exit_code == 1
    assert found.files[0].locked == "tied.pt" and found.lock == "one.lock"
    assert all(one.place is not None and one.place.path == "one.lock" for one in found.findings)
    paramtool.lock(["tied.pt", "plain.safetensors"])
    assert [file.path for file in paramtool.check().files] == ["plain.safetensors", "tied.pt"]
    assert paramtool.check().exit_code == 0 and paramtool.check().lock == "paramtool.lock"
    (file,) = paramtool.check(["other.safetensors"]).files
    assert file.exit_code == 2 and file.error is not None and "'plain.safetensors', 'tied.pt'" in file.error.message
    policy(at, '[[paths]]\nmatch = ["other*"]\nchanged = false')
    assert paramtool.check(["other.safetensors"]).exit_code == 0


@pytest.mark.parametrize("form", ["text", "github", "sarif", "junit", "markdown", "json"])
@pytest.mark.parametrize("path", ["another.safetensors", "another"])
def test_a_lock_of_another_model_is_one_error(path: str, form: str, at: Path) -> None:
    """Neither a name nor all numbers are those of the lock: no finding for each tensor, and other paths are checked."""
    paramtool.lock(["plain.safetensors"])
    (at / "another").mkdir()
    for place in ("another.safetensors", "another/model.safetensors"):
        save_file({f"layer.{k}": A + k for k in range(30)}, place)
    ran = quick("check", path, "plain.safetensors", "--format", form, cwd=at)
    assert ran.code == 2 and "PT202" not in ran.out.replace('"id": "PT202"', "").partition('"invocations"')[2], ran
    assert "paramtool.lock has another model" in ran.err and "30 tensors ('layer.0'" in ran.err, ran
    assert "'plain.safetensors'" in ran.err and "hint: --lock FILE" in ran.err, ran
    found = paramtool.check([path, "plain.safetensors"])
    assert [(file.path, file.exit_code) for file in found.files] == [(path, 2), ("plain.safetensors", 0)]
    assert found.findings == ()


def test_other_names_of_the_same_tensors_are_no_other_model(at: Path) -> None:
    """The same bytes under other names are PT210; one name in common is compared by name."""
    paramtool.lock(["plain.safetensors"])
    old = load_file("plain.safetensors")
    save_file({f"new.{name}": one for name, one in old.items()}, "renamed.safetensors")
    assert {one.id for one in paramtool.check(["renamed.safetensors"]).findings} >= {"PT210"}
    save_file({next(iter(old)): A + 5, "more": A}, "some.safetensors")
    found = paramtool.check(["some.safetensors"])
    assert found.exit_code == 1 and {one.id for one in found.findings} >= {"PT201", "PT203"}


def test_what_a_lock_names_and_nobody_gave(at: Path) -> None:
    paramtool.lock(["tied.pt", "plain.safetensors"])
    ran = quick("check", "tied.pt", cwd=at)
    assert ran.code == 0 and "names 1 other model, for which no path was given: 'plain.safetensors'" in ran.err, ran
    (at / "tied.pt").unlink()
    ran = quick("check", cwd=at)
    assert ran.code == 3 and "error: tied.pt: no such file or folder; paramtool.lock:" in ran.err, ran


def test_content_only(at: Path) -> None:
    """Two copies in place of a tie: a lost tie, unless only tensors count."""
    paramtool.lock(["tied.pt"])
    torch.save({"head": A.clone(), "wte": A.clone()}, "tied.pt")
    assert {one.id for one in paramtool.check(["tied.pt"]).findings} == {"PT101", "PT401"}
    assert paramtool.check(["tied.pt"], content_only=True).findings == ()
    policy(at, "content-only = true")
    assert paramtool.check(["tied.pt"]).findings == ()


def test_a_lock_of_headers_says_what_it_does_not(at: Path) -> None:
    paramtool.lock(["plain.safetensors"], headers=True)
    save_file({"w": A + 1}, "plain.safetensors")
    found = paramtool.check()
    assert ids(found) == [("plain.safetensors", "PT405")] and found.exit_code == 0


def test_severities_and_exceptions_of_what_a_lock_finds(at: Path) -> None:
    paramtool.lock(["plain.safetensors"])
    save_file({"w": A + 1, "x": A}, "plain.safetensors")
    policy(at, 'severity = {added = "off", PT401 = "off"}\n[[allow]]\nrule = "PT201"\ntensors = "w"\nreason = "tuned"')
    (one,) = paramtool.check().findings
    assert one.id == "PT201" and one.allowed == '"tuned"'


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("version 2", "version 9"), lambda text: text[:-20], lambda text: "",
        lambda text: text + text.splitlines()[-1] + "\n", lambda text: text.replace("float32", "\x1b[31m"),
    ],
)  # fmt: skip
def test_a_damaged_lock(change: Callable[[str], str], at: Path) -> None:
    """Exit 3 with its line, before any checkpoint is read."""
    paramtool.lock(["plain.safetensors"])
    (at / "paramtool.lock").write_text(change((at / "paramtool.lock").read_text()))
    ran = quick("check", "plain.safetensors", cwd=at)
    assert ran.code == 3 and "paramtool.lock" in ran.err and "\x1b" not in ran.err and ran.out == "", ran


def test_a_lock_that_is_not_there(at: Path) -> None:
    ran = quick("check", "plain.safetensors", "--lock", "ghost.lock", cwd=at)
    assert ran.code == 2 and "ghost.lock" in ran.err, ran


def test_config_ties_without_a_config(at: Path) -> None:
    """The hint is about the configuration of check: its --config is no config.json."""
    policy(at, "config-ties = true")
    (file,) = paramtool.check(["tied.pt"]).files
    assert file.exit_code == 2 and file.error is not None and "config.json: no such file" in file.error.message
    assert "--config" not in file.error.hint and "config-ties = false in [[paths]]" in file.error.hint
    policy(at, 'config-ties = true\n[[paths]]\nmatch = ["*.pt"]\nconfig-ties = false\n')
    assert paramtool.check(["tied.pt"]).exit_code == 0


# --- what is printed -----------------------------------------------------------------------------------------------


def test_a_file_of_weights_as_a_lock(at: Path) -> None:
    """It is said to be no lock, and not to be a lock with a wrong byte."""
    save_file({"w": A}, at / "w.safetensors")
    ran = quick("check", "tied.pt", "--lock", "w.safetensors", cwd=at)
    assert ran.code == 3 and "w.safetensors:1: not a lock of paramtool: found " in ran.err, ran


@pytest.mark.parametrize("path", ["x\n::set-env name=A::b.pt", "\x1b[31mx.pt", "y\n::error::*.pt"])
def test_a_path_that_is_not_there_is_named_once_on_one_line(path: str, at: Path) -> None:
    for command in ("check", "inspect"):
        ran = quick(command, "tied.pt", path, cwd=at)
        text = ran.out + ran.err
        first = next(line for line in text.splitlines() if line.startswith("error"))
        assert ran.code in (2, 3) and "\x1b" not in text and first.count(repr(path)[1:-1]) == 1, ran
        assert not any(line.startswith("::") for line in text.splitlines()), ran


@pytest.mark.slow
def test_ten_thousand_findings(at: Path) -> None:
    """The text is bounded for each rule and file and counts the others; the document has all; exit 1 as with one."""
    count = 10_000 if IS_WHOLE else 2_000
    save_file({f"t{k}": torch.zeros(1) for k in range(count)}, "many.safetensors")
    policy(at, 'dtype = {"t*" = "int8"}\nhas = ["a", "b"]')
    ran = quick("check", "many.safetensors", cwd=at)
    of_types = (
        f"PT208 wrong-dtype: {count} tensors, each is float32, not int8: 't0', 't1', 't10', 't100' and {count - 4} more"
    )
    assert ran.code == 1 and len(ran.out.splitlines()) == 6 and of_types in ran.out, ran.out
    assert f"1 file, {count + 2} findings, exit code 1" in ran.out
    assert len(quick("check", "many.safetensors", "-v", cwd=at).out.splitlines()) > count
    document = json.loads(quick("check", "many.safetensors", "--json", cwd=at).out)
    found = document["files"][0]["findings"]
    assert len(found) == document["counts"]["error"] == count + 2
    document["files"][0]["findings"] = found[:10] + found[-10:]  # all are alike
    validate("check", json.dumps(document))


@pytest.mark.slow
def test_many_changed_tensors_are_readable(at: Path) -> None:
    """One row for what is the same of many, also with an exception; other rows are bounded for each kind."""
    state = {f"t{k:04}": torch.full((1 + k % 2,), float(k)) for k in range(1000)} | {"tied.a": A, "tied.b": A, "wt": A}
    torch.save(state, "m.pt")
    paramtool.lock(["m.pt"])
    new = {name: tensor + 1 for name, tensor in state.items() if name != "t0000"}
    torch.save(new, "m.pt")
    policy(at, '[[allow]]\nrule = "changed"\ntensors = ["t000?"]\nreason = "tuned"')
    lines = quick("check", "m.pt", cwd=at).out.splitlines()
    said = [line.partition("m.pt  ")[2] for line in lines[1:-2]]
    assert said == [
        "PT202 missing: 't0000' is not there",
        "PT201 changed: 9 tensors, each has other numbers: 't0001', 't0002', 't0003', 't0004' and 5 more; "
        '--verbose and --json list them  allowed "tuned"',
        "PT201 changed: 993 tensors, each has other numbers: 't0010', 't0011', 't0012', 't0013' and 989 more; "
        "--verbose and --json list them",
        "PT101 tie-lost: 2 tensors, each shared memory with 'tied.a', and does not any more (equal numbers): "
        "'tied.b', 'wt'",
        "PT401 file-changed: 'm.pt': not the bytes of the lock",
    ], lines
    assert lines[-2] == "verdict  1 file, 996 findings, 1 warning, 9 allowed, exit code 1"
    (at / "paramtool.toml").unlink()
    torch.save({name: torch.zeros(2 + k) for k, name in enumerate(state)}, "m.pt")
    lines = quick("check", "m.pt", cwd=at).out.splitlines()
    assert sum("PT201" in line for line in lines) == 21 and "PT201 changed: and 983 more; --verbose" in lines[21], lines
    assert len(quick("check", "m.pt", "-v", cwd=at).out.splitlines()) > 1000


NAMES = ["\x1b[31mred", "a\nb", "::set-env name=x::y", "<script>", "`x`|y", "\u202egnp", "::error file=x::y\n"]


@pytest.mark.parametrize("name", NAMES)
def test_names_from_files_are_escaped(name: str, at: Path) -> None:
    """A tensor's name and a file's; no line of ours begins with a stranger's word."""
    torch.save({name: torch.tensor([float("nan")])}, "m.pt")
    path = name.replace("/", "_")
    (at / path).write_bytes((at / "m.pt").read_bytes())
    policy(at, 'no-nan = true\nhas = ["q"]')
    for target in ("m.pt", path):
        ran = quick("check", target, cwd=at)
        assert ran.code == 1, ran
        assert all(line.isprintable() for line in (ran.out + ran.err).split("\n")), ran
        words = ("checked by", "finding", "verdict", "next")
        assert all(line.startswith(words) for line in ran.out.splitlines()), ran


def test_quiet_prints_what_fails(at: Path) -> None:
    policy(at, 'size = 1\nparameters = 1\nseverity = {size = "warning"}')
    ran = quick("check", "tied.pt", "--quiet", cwd=at)
    assert ran.code == 1 and len(ran.out.splitlines()) == 1 and ran.out.startswith("finding  tied.pt  PT207"), ran


def test_the_document(at: Path) -> None:
    paramtool.lock(["tied.pt"])
    policy(at, "size = 1")
    unsafe(at)
    ran = quick("check", "tied.pt", "model.pt", "ghost.pt", "--json", cwd=at)
    document = validate("check", ran.out)
    assert document["lock"] == "paramtool.lock" and document["config"] == "paramtool.toml"
    assert [file["locked"] for file in document["files"]] == ["tied.pt", "tied.pt", None]
    assert document["files"][2]["error"]["exit_code"] == 3 and ran.code == 4


def test_what_cannot_be_described(at: Path) -> None:
    (at / "evil.pkl").write_bytes(b"\x80\x02cos\nsystem\nX\x01\0\0\0x\x85R.")
    (file,) = paramtool.check(["evil.pkl"]).files
    assert (
        isinstance(file.error, FormatError) and file.exit_code == 4 and [one.id for one in file.findings] == ["PT301"]
    )
    policy(at, '[[allow]]\nrule = "unsafe"\nreason = "looked at"')
    assert (
        quick("check", "evil.pkl", "--config", "paramtool.toml", cwd=at).code == 3
    )  # it is not unsafe any more, and still no checkpoint


def test_every_unsafe_file_is_a_result(at: Path) -> None:
    """In every form, also one without arrays, one that is damaged and one beyond the limits."""
    (at / "evil.pkl").write_bytes(b"\x80\x02cos\nsystem\nX\x01\0\0\0x\x85R.")
    (at / "cut.pt").write_bytes(b"\x80\x02cos\nsystem\nX\x01\0\0\0x\x85R}")
    unsafe(at)
    paths = ["evil.pkl", "cut.pt", "model.pt"]
    sarif = json.loads(quick("check", *paths, "--format", "sarif", cwd=at).out)["runs"][0]["results"]
    assert [one["ruleId"] for one in sarif] == ["PT301"] * 3 and {one["level"] for one in sarif} == {"error"}
    assert quick("check", *paths, "--format", "junit", cwd=at).out.count("<failure type=") == 3
    lines = quick("check", *paths, "--format", "github", cwd=at).out.splitlines()
    assert all(any(line.startswith(f"::error file={path}") and "PT301" in line for line in lines) for path in paths)


def test_one_path_may_stand_alone(at: Path) -> None:
    assert paramtool.check("tied.pt").files == paramtool.check(["tied.pt"]).files
    assert paramtool.lock("tied.pt", "one.lock").text == paramtool.lock(["tied.pt"], "two.lock").text


# --- pointers ------------------------------------------------------------------------------------------------------


def pointer(path: Path, digest: str, nbytes: int) -> None:
    """A pointer of git-LFS in place of a file."""
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {nbytes}\n")


def test_a_pointer_among_files_is_counted(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    save_torch_state_dict({name: torch.randn(64, 8) for name in "abc"}, tmp_path / "m", max_shard_size=2048)
    paramtool.lock([tmp_path / "m"], output=tmp_path / "m.lock")
    shards = sorted((tmp_path / "m").glob("*.safetensors"))
    files = len(shards) + 1
    for k, shard in enumerate(shards, 1):
        data = shard.read_bytes()
        pointer(shard, hashlib.sha256(data).hexdigest(), len(data))
        (note,) = paramtool.check([tmp_path / "m"], lock=tmp_path / "m.lock").files[0].notes
        which = f"{k} of its {files} files {'is a pointer' if k == 1 else 'are pointers'}"
        assert note == f"{which}: all were compared with the lock, by no rule"


def test_a_copy_under_another_name_has_the_bytes_of_the_lock(tmp_path: Path) -> None:
    """A model of one file is compared by the sha256 of that file, whatever its name is."""
    save_file({"w": torch.arange(6.0)}, tmp_path / "a.safetensors")
    paramtool.lock([tmp_path / "a.safetensors"], output=tmp_path / "one.lock")
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes((tmp_path / "a.safetensors").read_bytes())
    found = paramtool.check([copy], lock=tmp_path / "one.lock")
    assert found.findings == () and found.exit_code == 0
    save_file({"w": torch.arange(6.0)}, copy, metadata={"a": "b"})
    (finding,) = paramtool.check([copy], lock=tmp_path / "one.lock").findings
    assert finding.id == "PT401" and "every tensor is the same" in finding.message and "copy" not in finding.message


def test_pointers_are_compared_without_the_file(at: Path) -> None:
    """The hash of the file; and 3 where nothing is known of the file, since no lock names it."""
    data = (at / "plain.safetensors").read_bytes()
    paramtool.lock(["plain.safetensors", "tied.pt"])
    pointer(at / "plain.safetensors", hashlib.sha256(data).hexdigest(), len(data))
    policy(at, "no-nan = true")
    found = paramtool.check()
    assert found.findings == () and found.exit_code == 0 and "only pointers" in found.files[0].notes[0]
    pointer(at / "plain.safetensors", "0" * 64, len(data))
    found = paramtool.check(["plain.safetensors"])
    assert ids(found) == [("plain.safetensors", "PT404")] and found.exit_code == 1
    (at / "paramtool.lock").unlink()
    assert paramtool.check(["plain.safetensors"]).exit_code == 3


def test_the_flag_counts_more_than_a_table(at: Path) -> None:
    paramtool.lock(["tied.pt"])
    torch.save({"head": A.clone(), "wte": A.clone()}, "tied.pt")
    policy(at, '[[paths]]\nmatch = ["*"]\ncontent-only = false')
    assert paramtool.check(["tied.pt"]).exit_code == 1
    assert paramtool.check(["tied.pt"], content_only=True).findings == ()


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_lock_and_a_path_that_are_no_files(kind: str, at: Path) -> None:
    """Nothing waits for the writer of a named pipe."""
    os.mkfifo("fifo")
    (at / "folder").mkdir()
    ran = quick("check", "plain.safetensors", "--lock", kind, cwd=at)
    assert ran.code == 3 and f"error: {kind}: is not a file" in ran.err, ran
    assert quick("check", kind, cwd=at).code == 3


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_a_found_configuration_that_lowers_is_said_first(quiet: tuple[str, ...], tmp_path: Path) -> None:
    """With --quiet, too, and before the warnings of a lock."""
    save_file({"w": torch.ones(3)}, tmp_path / "a.safetensors")
    (tmp_path / "paramtool.toml").write_text("unsafe = false\n")
    ran = quick(*quiet, "check", "a.safetensors", cwd=tmp_path)
    assert ran.code == 0 and ran.out.startswith("warning  paramtool.toml:1  PT504 lowered"), ran
    assert ran.out.count("PT504") == 1, ran
