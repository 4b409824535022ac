"""In Python an error speaks of keywords, in the terminal of flags, whatever the function and the keyword are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import paramtool
from paramtool.errors import ParamtoolError, UsageError
from tests.hostile.command import quick

FUNCTIONS = sorted(
    name for name in paramtool.__all__ if inspect.isfunction(getattr(paramtool, name)) and name != "register_layout"
)
CALLS: dict[str, tuple[Any, ...]] = {
    "dedup_family": (["a.safetensors", "b.safetensors"], "family"),
    "diff": ("a.safetensors", "b.safetensors"),
    "find_base": ("a.safetensors", ["b.safetensors"]),
    "verify": ("a.safetensors", "b.safetensors"),
    "verify_each": (".", "."),
    "variants": ("a.safetensors", ["names.txt"]),
}
"""{function: what it is called with beside keywords}; the others take one path."""
NEEDED = {"fuse": {"layout": "cudnn"}, "convert": {"target": "cudnn"}}
BAD = {
    "bool": [True, False],
    "int": [-1, 0, 3, "5GB"],
    "float": [-1.0, float("nan")],
    "str": ["", "no-such-thing", "vllm", "lstm hidden=3"],
    "Path": ["no-such-file", "a.safetensors", ""],
    "Sequence": ["text", ["no-such-thing"], ["a=b"], ["posix.system"]],
    "Mapping": [{"no": "such"}, {"w": "v"}],
}
"""{how an annotation begins, or what is in it: values that some function refuses}."""
TYPED = re.compile(r"`paramtool [^`]*`|paramtool [a-z].*")
"""Lines for a terminal, which have flags."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    arrays = {"w": np.ones((4, 4), "f4"), "v": np.ones((4, 4), "f4")}
    save_file(arrays, "a.safetensors")
    save_file({**arrays, "w": np.zeros((4, 4), "f4")}, "b.safetensors")
    Path("names.txt").write_text("w\nv\n", encoding="utf-8")
    return tmp_path


def values(annotation: str) -> list[Any]:
    """Values for a keyword that are mostly wrong."""
    found = [value for kind, bad in BAD.items() if re.search(rf"\b{kind}\b", annotation) for value in bad]
    return found or ["no-such-thing"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_error_of_a_function_has_no_flag(name: str, folder: Path) -> None:
    """Each keyword alone, and each two of them that are on or text: what they refuse is said of keywords."""
    function = getattr(paramtool, name)
    signature = inspect.signature(function)
    signature.bind(*CALLS.get(name, ("a.safetensors",)), **NEEDED.get(name, {}))
    known = signature.parameters
    keywords = [
        one for one in known.values() if one.kind is one.KEYWORD_ONLY and one.name not in ("progress", "options")
    ]
    calls = [{one.name: value} for one in keywords for value in values(str(one.annotation))]
    texts = {one.name: values(str(one.annotation))[-1] for one in keywords}
    calls += [{a: texts[a], b: texts[b]} for a in texts for b in texts if a < b]
    calls += [{**one, "dry_run": True} for one in calls if "dry_run" in texts] or [{}]
    refused = set()
    for given in calls:
        try:
            function(*CALLS.get(name, ("a.safetensors",)), **{**NEEDED.get(name, {}), **given})
        except ParamtoolError as error:
            refused.add(str(error))
    assert refused or not keywords, f"{name} refuses nothing"
    flags = {text for text in refused if "--" in TYPED.sub("", text) or re.search(r"(?<!\S)-o\b", TYPED.sub("", text))}
    assert not flags, "\n\n".join(sorted(flags))
    unnamed = {text for text in refused if re.search(rf"`({'|'.join(FUNCTIONS)}) [^`]*`", text)}
    assert not unnamed, "\n\n".join(sorted(unnamed))


OTHER = {
    "None": None, "bool": True, "int": 3, "float": 0.5, "str": "text", "Path": Path("a"), "os.PathLike": Path("a"),
    "Sequence": ["a=b"], "Collection": ["a=b"], "Mapping": {"w": "v"}, "Sequence[": [5],
}  # fmt: skip
"""{the name of a type in an annotation: a value of it}."""
ALSO = {"float": {"int", "bool"}, "bool": {"int", "float"}, "int": {"bool"}, "Path": {"str", "os.PathLike"},
        "Sequence": {"Collection", "Mapping"}, "Collection": {"Sequence", "Mapping"},
        "os.PathLike": {"Path"}}  # fmt: skip
"""{the name of a type: others whose values Python takes for it}."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_value_of_another_type_is_refused_by_its_keyword(name: str, folder: Path) -> None:
    """Before anything is read: the keyword, what was found and what is expected."""
    function = getattr(paramtool, name)
    usual = {**inspect.signature(function).bind(*CALLS.get(name, ("none",)), **NEEDED.get(name, {})).arguments}
    checked = 0
    for one in inspect.signature(function).parameters.values():
        kinds = re.sub(r"\[[^]]*\]", "", str(one.annotation)).split(" | ")
        if not OTHER.keys() >= set(kinds):
            continue  # a class of ours, or a function
        fits = {*kinds, *(also for kind in kinds for also in ALSO.get(kind, ()))}
        fits |= set() if re.search(r"\[(str|Path)[],]", str(one.annotation)) else {"Sequence["}
        for value in [value for kind, value in OTHER.items() if kind not in fits]:
            shown = repr(value[0] if value == [5] and {"Sequence", "Collection"} & fits else value)
            with pytest.raises(ValueError, match=rf"\b{one.name} is {re.escape(shown)}; expected ") as error:
                function(**{**usual, one.name: value})
            assert isinstance(error.value, UsageError)
            checked += 1
    assert checked


def test_a_command_to_type_keeps_its_flags(folder: Path) -> None:
    """In quotes it is the whole line of a terminal; a flag alone is a keyword."""
    with pytest.raises(ValueError, match="`paramtool inspect --tensors` lists what it has"):
        paramtool.export("a.safetensors", "out.pt", names=["absent"])


def test_the_same_error_has_flags_in_a_terminal(folder: Path) -> None:
    """One text is both."""
    with pytest.raises(ValueError, match=r"max_shard_size is 0: a shard needs at least one byte"):
        paramtool.dedup("a.safetensors", "out", max_shard_size=0)
    ran = quick("dedup", "a.safetensors", "-o", "out", "--max-shard-size", "0", cwd=folder)
    assert ran.code == 2 and ran.err.startswith("error: --max-shard-size is 0: a shard needs at least one byte"), ran


@pytest.mark.parametrize(
    ("call", "leads"),
    [
        (lambda: paramtool.convert("a.safetensors", to="keras"), r"did you mean target=\.\.\.\?"),  # type: ignore[call-arg]
        (lambda: paramtool.dedup("a.safetensors", kep="last"), r"did you mean keep=\.\.\.\?"),  # type: ignore[call-arg]
        (lambda: paramtool.fuse("a.safetensors"), r"as paramtool\.fuse\(path, output, layout"),  # type: ignore[call-arg]
        (lambda: paramtool.inspect(), r"as paramtool\.inspect\(path"),  # type: ignore[call-arg]
    ],
)
def test_a_call_that_does_not_fit_leads_on(call: Any, leads: str, folder: Path) -> None:
    """A flag of the command line, a word that is nearly right, and what is missing."""
    with pytest.raises(TypeError, match=leads):
        call()


def test_what_is_missing_or_was_removed_leads_on(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing says which variants: .*\nhint: against=OTHER"):
        paramtool.variants("a.safetensors")
    with pytest.raises(ValueError, match="max_bytes is replaced: max_inflated=SIZE"):
        paramtool.inspect("a.safetensors", max_bytes=3)  # type: ignore[call-arg]
