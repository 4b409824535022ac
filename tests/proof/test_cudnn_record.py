"""Records: verdicts as letters, what counts as a proof, for which table one speaks, and where people read of it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

from paramtool import layouts
from paramtool.commands import relayout as relayout_command
from paramtool.errors import FormatError
from paramtool.layouts import evidence as evidence_module
from paramtool.layouts.evidence import NOT_ON_A_GPU, Record, evidence, on_gpu, speaking, table_digest
from paramtool.layouts.layout import Layout, Option
from paramtool.layouts.spec import Spec
from proof.cudnn import record
from proof.cudnn.answers import Unsupported
from proof.cudnn.compare import Disagreement
from proof.cudnn.grid import ALGORITHMS, BIAS_MODES, DTYPES, Case
from proof.cudnn.record import MAX_FINDINGS, QuestionVerdicts
from proof.record_file import ASKED
from tests.hostile.command import quick
from tests.proof.fake_cudnn import Fake
from tests.recurrent import save, state

CUDNN = layouts.find("cudnn")
SPEC = Spec("lstm", 3, 5)
CASE = Case(SPEC, "double", "float32")
GPU = {"cudnn": "9.19.0", "device": "NVIDIA H100 80GB HBM3", "torch": "2.10.0+cu130", "driver": "580.1"}
ON_GPU = "verified on cuDNN 9.19.0, NVIDIA H100 80GB HBM3"
ALONE = {"cudnn": "9.28.0"}


def different(number: int = 1) -> list[Disagreement]:
    return [Disagreement("a case", f"cell {k}", "byte_start", "0", "4") for k in range(number)]


def part(*findings: Iterable[Disagreement]) -> QuestionVerdicts:
    """A part with a verdict for each argument."""
    made = record.built_part()
    for found in findings:
        made.judge(CASE, found)
    return made


KINDS = (
    Spec("rnn", 3, 5, activation="tanh"), Spec("rnn", 3, 5, activation="relu"), Spec("gru", 3, 5, reset="after"), SPEC,
    Spec("lstm", 3, 5, projection=2),
)  # fmt: skip


def whole(unsupported: Callable[[Case], bool] = lambda case: False, kinds: Iterable[Spec] = KINDS) -> QuestionVerdicts:
    """A part in which every kind of network agrees in every type, but for those that are unsupported."""
    made = record.built_part()
    for spec in kinds:
        for mode, dtype in product(("none", "double"), DTYPES):
            one = Case(replace(spec, bias=mode != "none"), mode, dtype)
            made.judge(one, Unsupported("never") if unsupported(one) else ())
    return made


def document(machine: dict[str, str] = GPU, quick: bool = False, **more: Any) -> dict[str, Any]:
    """A record in which everything agrees; one of a GPU has all three parts."""
    parts: dict[str, Any] = dict.fromkeys(("asked", "flattened", "ran") if "device" in machine else ("asked",), None)
    parts = {name: whole() for name in parts} | more
    if parts.get("ran") is not None:
        parts["ran"].more.setdefault(
            "errors", {"float32": dict(zip(evidence_module.ERRORS, (1e-4, 1e-6, 1e-6, 0.1), strict=True))}
        )
    return record.document(CUDNN, machine, quick, **parts)


def parsed(found: object) -> Record:
    return evidence_module.parse("r.json", json.dumps(found))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Puts a record among those that come with paramtool, where no other one is."""
    there = tmp_path / "records"
    there.mkdir()
    monkeypatch.setattr(evidence_module, "FOLDER", str(there))

    def put(found: object, name: str = "r.json") -> None:
        (there / name).write_text(json.dumps(found))
        evidence_module._read.cache_clear()

    evidence_module._read.cache_clear()
    yield put
    evidence_module._read.cache_clear()


# --- verdicts --------------------------------------------------------------------------------------------------------


def test_a_letter_for_each_way() -> None:
    """In the order of the columns, one text a network; a network without biases is the same network."""
    made = record.asked_part()
    for mode in ("none", "input"):
        spec = replace(SPEC, bias=mode != "none")
        for verdict in ((), Unsupported("never"), different()):
            made.judge(Case(spec, mode, "float16", "persist_static"), verdict)
    found = made.as_json()
    assert found["networks"] == {"audaud": ["lstm input=3 hidden=5"]}
    assert found["counts"] == {"agrees": 2, "unsupported": 2, "differs": 2}
    assert found["unsupported"] == {"never (float16, persist_static)": 2}


def test_columns() -> None:
    """What the letters stand for: as many as there are points of the grid for a network."""
    asked, built = record.asked_part().as_json()["columns"], record.built_part().as_json()["columns"]
    assert list(asked) == ["bias_mode", "dtype", "algorithm"] and [len(axis) for axis in asked.values()] == [4, 4, 4]
    assert built == {"bias_mode": ["none", "double"], "dtype": ["float16", "bfloat16", "float32", "float64"]}


def test_an_answer_is_judged() -> None:
    """One that agrees, one that differs, and none."""
    made = record.asked_part()
    record.compare(made, CUDNN, CASE, Fake().library().answer(CASE))
    record.compare(made, CUDNN, CASE, Fake().library().answer(replace(CASE, dtype="float64")))
    record.compare(made, CUDNN, CASE, Unsupported("never"))
    assert made.letters == {"lstm input=3 hidden=5": "adu"}
    assert made.findings_count == len(made.findings) > 0


def test_many_findings() -> None:
    """All are counted, the first ones of all parts are written out."""
    made = part(different(150), (), different(150))
    assert (len(made.findings), made.findings_count, made.counts["differs"]) == (MAX_FINDINGS, 300, 2)
    found = document(flattened=made, ran=part(different(7)))
    assert found["findings_count"] == 307 and len(found["findings"]) == MAX_FINDINGS
    assert found["findings"][0] == {
        "case": "a case", "cell": "cell 0", "what": "byte_start", "expected": "0", "found": "4"
    }  # fmt: skip


def test_a_document() -> None:
    """Everything that a record has to say, also where it is nothing."""
    found = document(ALONE, quick=True)
    assert (found["schema"], found["layout"], found["grid"]) == ("paramtool.layout-record/2", "cudnn", "quick")
    assert found["table"] == table_digest(CUDNN) and found["verdicts"].keys() == set("aud")
    assert found["machine"]["cudnn"] == "9.28.0" and found["machine"]["driver"] == ""
    assert found["flattened"] is found["ran"] is None and found["asked"]["networks"] == {"a" * 8: [*map(str, KINDS)]}


# --- what counts as a proof ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"a"', "[" * 100_000, b"\xff\xfe", "{}"])
def test_no_record(text: str | bytes) -> None:
    """The file is named, whatever stands in it."""
    with pytest.raises(FormatError, match=r"^r\.json: is not a record of a layout: "):
        evidence_module.parse("r.json", text)


@pytest.mark.parametrize("schema", ["paramtool.layout-record/1", "paramtool.relayout/1", None, 1])
def test_a_document_of_another_schema(schema: object) -> None:
    """What was found and what was expected."""
    with pytest.raises(FormatError, match=f"schema is {schema!r}, expected 'paramtool.layout-record/2'"):
        parsed({**document(), "schema": schema})


@pytest.mark.parametrize("name", ["layout", "table", "machine", "grid", "findings_count", "asked", "flattened", "ran"])
def test_a_record_that_lacks_something(name: str) -> None:
    """Which member it is."""
    with pytest.raises(FormatError, match=f"is not a record of a layout: {name} is missing"):
        parsed({key: value for key, value in document().items() if key != name})


@pytest.mark.parametrize("name, value", [
    ("machine", []), ("machine", {}), ("machine", {"device": "x"}), ("asked", {}), ("asked", 5), ("ran", {"counts": 3}),
])  # fmt: skip
def test_a_record_with_something_else(name: str, value: object) -> None:
    """What is read later is read at once."""
    with pytest.raises(FormatError, match="is not a record of a layout"):
        parsed({**document(), name: value})


def test_a_record_that_agrees() -> None:
    """Its words say what was there."""
    assert parsed(document()).agrees and parsed(document()).words() == ON_GPU and parsed(document()).is_of_a_gpu
    assert parsed(document(ALONE)).agrees and not parsed(document(ALONE)).is_of_a_gpu
    assert parsed(document(ALONE)).words() == "asked cuDNN 9.28.0 without a GPU"


@pytest.mark.parametrize("missing", ["asked", "flattened", "ran"])
def test_a_gpu_has_to_be_asked_everything(missing: str) -> None:
    """A record of a GPU that lacks one of the three questions is none of a GPU."""
    found = parsed(document(**{missing: None}))
    assert not found.is_of_a_gpu and "verified" not in found.words()


@pytest.mark.parametrize("name, found", [
    ("quick", document(quick=True)), ("findings", document(ran=part((), different()))),
    ("nothing asked", document(asked=None, flattened=None, ran=None)), ("empty part", document(ran=part())),
    ("nothing supported", document(flattened=whole(lambda case: True))),
    ("no relu", document(ran=whole(kinds=[KINDS[0], *KINDS[2:]]))),
    ("no projection", document(asked=whole(kinds=KINDS[:4]))),
    ("no float16", document(ran=whole(lambda case: case.dtype == "float16"))),
    ("no gru in float64", document(flattened=whole(lambda case: case.spec.kind == "gru" and case.dtype == "float64"))),
])  # fmt: skip
def test_a_record_that_proves_nothing(name: str, found: dict[str, Any]) -> None:
    """A small grid, a difference, a question to which nothing agreed, or no network of a kind or of a plain type."""
    assert parsed(found).agrees is False


def test_bfloat16_and_one_mode_may_lack() -> None:
    """torch does not flatten bfloat16; and not every mode has every type."""
    for lacks in (lambda case: case.dtype == "bfloat16", lambda case: case.bias_mode == "none"):
        assert parsed(document(flattened=whole(lacks), ran=whole(lacks))).agrees


def test_only_the_standard_algorithm_counts() -> None:
    """A library that has no other than persistent ones has said too little."""

    def asked(lacks: str) -> QuestionVerdicts:
        made = record.asked_part()
        for spec, mode, dtype, algorithm in product(KINDS, BIAS_MODES, DTYPES, ALGORITHMS):
            one = Case(replace(spec, bias=mode != "none"), mode, dtype, algorithm)
            made.judge(one, Unsupported("never") if algorithm == lacks else ())
        return made

    assert parsed(document(ALONE, asked=asked("persist_static"))).agrees
    assert not parsed(document(ALONE, asked=asked("standard"))).agrees


def test_counted_findings_count() -> None:
    """A number without its findings is enough, and a letter that differs without a finding as well."""
    assert not parsed({**document(), "findings_count": 1}).agrees
    found = document()
    letters, names = next(iter(found["ran"]["networks"].items()))
    found["ran"]["networks"]["d" + letters[1:]] = [names.pop()]
    with pytest.raises(FormatError, match=r"ran\.counts do not match the letters of ran\.networks"):
        parsed(found)
    found["ran"]["counts"] |= {"agrees": found["ran"]["counts"]["agrees"] - 1, "differs": 1}
    assert not parsed(found).agrees


def test_a_gpu_that_was_asked_in_part() -> None:
    """What was written before a run ended: neither of a GPU, nor without one."""
    found = parsed(document(ran=None))
    assert found.words() == "asked cuDNN 9.19.0, NVIDIA H100 80GB HBM3"
    assert found.against == "of a proof that was not ended"


# --- for which table -------------------------------------------------------------------------------------------------


def changed(**more: Any) -> Layout:
    """The layout with a change in its first form."""
    return replace(CUDNN, forms=(replace(CUDNN.forms[0], **more), *CUDNN.forms[1:]))


ROW = CUDNN.forms[0].tensors[0]


@pytest.mark.parametrize("other", [
    changed(gates="fico"), changed(tensors=(replace(ROW, content=ROW.content.replace("W[", "R[")),)),
    changed(tensors=(replace(ROW, name="weights"),)), changed(when={"bias_mode": "input"}), changed(kind="rnn"),
    replace(CUDNN, forms=CUDNN.forms[1:]), replace(CUDNN, options=CUDNN.options[1:]), replace(CUDNN, name="other"),
    replace(CUDNN, options=(replace(CUDNN.options[0], default="input"), CUDNN.options[1])),
    replace(CUDNN, separator="/"), replace(CUDNN, max_directions=1), replace(CUDNN, directions=("", "_back")),
])  # fmt: skip
def test_what_changes_the_digest(other: Layout) -> None:
    """All that decides where a cell stands."""
    assert table_digest(other) != table_digest(CUDNN)


@pytest.mark.parametrize("other", [
    replace(CUDNN, title="t"), replace(CUDNN, source="s"), replace(CUDNN, proof=()), replace(CUDNN, caveats={"P": "p"}),
    replace(CUDNN, note="n"), replace(CUDNN, options=tuple(replace(option, what="w") for option in CUDNN.options)),
])  # fmt: skip
def test_what_does_not_change_the_digest(other: Layout) -> None:
    """Prose."""
    assert other != CUDNN and table_digest(other) == table_digest(CUDNN)


def test_digests_tell_all_layouts_apart() -> None:
    """No two tables are one."""
    every = list(layouts.built_in().values())
    assert len({table_digest(one) for one in every}) == len(every)


MAKE_ONE = {
    True: "on a machine with a CUDA GPU: python -m proof {layout} -o paramtool/layouts/records/NAME.json",
    False: "make {layout}, then put build/{layout}/*-no-gpu.json into paramtool/layouts/records",
}
"""How to make a record: {whether it needs a GPU: the command}."""


def stale(records: Iterable[Record]) -> list[str]:
    """Records that speak for no table as it is, layouts for which none speaks; and how to make new ones."""
    there = list(records)
    lines = [
        f"the table of layout {one.layout} has changed since {one.name} was made; remove that record, and make a new "
        f"one, {MAKE_ONE[bool(one.machine['device'])].format(layout=one.layout)}"
        for one in there
        if one.table != table_digest(layouts.find(one.layout))
    ]
    speak = {one.layout for one in there if one.agrees and one.table == table_digest(layouts.find(one.layout))}
    lines += [
        f"no record speaks for layout {name}; make one, {MAKE_ONE[False].format(layout=name)}"
        for name in ASKED
        if name not in speak
    ]
    return lines


def test_a_changed_table_needs_a_new_record() -> None:
    """Each record that comes with paramtool speaks for the table as it is, and there is one."""
    found = stale(evidence_module.records())
    assert not found, "\n".join(found)


def test_a_stale_record_is_seen() -> None:
    """The message names the layout, the record and the command that makes another one, as it was made."""
    old, new = {**document(), "table": "0" * 64}, parsed(document(ALONE))
    (said,) = stale([new, parsed(old)])
    assert "the table of layout cudnn has changed since r.json was made" in said
    assert "python -m proof cudnn -o paramtool/layouts/records/NAME.json" in said
    (said,) = stale([new, parsed({**document(ALONE), "table": "0" * 64})])
    assert "make cudnn, then put build/cudnn/*-no-gpu.json into paramtool/layouts/records" in said
    assert stale([new]) == []
    (said,) = stale([])
    assert "no record speaks for layout cudnn" in said and "make cudnn" in said


def test_records_that_come_along_prove_something() -> None:
    """Whatever stands among them agrees, and is of a layout that may have one."""
    for one in evidence_module.records():
        assert one.agrees and layouts.find(one.layout).gpu, one.name


# --- where people read of it -----------------------------------------------------------------------------------------


def test_stale_records_are_silent(folder: Callable[..., None]) -> None:
    """So are those of quick grids, of differences and of other layouts."""
    folder({**document(), "table": "0" * 64}, "a.json")
    folder(document(quick=True), "b.json")
    folder(document(ran=part(different())), "c.json")
    folder({**document(), "layout": "miopen"}, "d.json")
    folder({"not": "read"}, "e.txt")
    assert [one.name for one in evidence_module.records()] == ["a.json", "b.json", "c.json", "d.json"]
    assert list(speaking(CUDNN)) == [] and on_gpu(CUDNN) == NOT_ON_A_GPU


def test_a_broken_record_stops_nothing(folder: Callable[..., None], tmp_path: Path) -> None:
    """It is named with its folder where layouts are listed; every other record speaks as before."""
    folder({"schema": "paramtool.layout-record/2"}, "broken.json")
    folder({}, ".hidden.json")
    folder(document(), "good.json")
    (tmp_path / "records" / "folder.json").mkdir()
    (tmp_path / "records" / "link.json").symlink_to("nowhere")
    evidence_module._read.cache_clear()
    assert on_gpu(CUDNN) == ON_GPU
    (said,) = evidence_module.broken()
    broken = tmp_path / "records" / "broken.json"
    assert said == f"{broken}: is not a record of a layout: layout is missing; the file is ignored"
    ran = quick("layouts", "cudnn", cwd=tmp_path)
    assert ran.code == 0 and ran.err == f"warning: {said}\n" and ON_GPU in ran.out


@pytest.mark.parametrize("path, value", [
    (("machine", "device"), "a\x1b[31mGPU"), (("machine", "device"), "two\nlines"), (("machine", "cudnn"), ""),
    (("machine", "cudnn"), "nine"), (("table",), "abc"), (("date",), "yesterday"), (("grid",), "foo"),
    (("asked", "networks", "zzzzzzzz"), ["lstm input=3 hidden=5"]), (("asked", "counts", "agrees"), 17920),
    (("asked", "counts", "agrees"), float("nan")), (("ran", "errors"), None), (("asked", "columns"), {}),
    (("asked", "columns", "dtype"), "float32"), (("findings_count",), True), (("asked", "unsupported"), {"x": -1}),
])  # fmt: skip
def test_a_member_that_cannot_be(path: tuple[str, ...], value: object) -> None:
    """It is named."""
    found = json.loads(json.dumps(document()))
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(FormatError, match=f"is not a record of a layout: {path[0]}"):
        parsed(found)


def test_errors_over_the_tolerance() -> None:
    """A record that counts no difference, and whose errors are too large, is no proof."""
    found = document()
    found["ran"]["errors"]["float32"]["outputs"] = 5.0
    assert parsed(found).against == "errors in float32 over the tolerance"


def test_no_records(folder: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With an empty folder, or none, nothing is claimed."""
    assert evidence(CUDNN) == (*CUDNN.proof, NOT_ON_A_GPU)
    monkeypatch.setattr(evidence_module, "FOLDER", str(tmp_path / "none"))
    evidence_module._read.cache_clear()
    assert evidence_module.records() == () and evidence(CUDNN) == (*CUDNN.proof, NOT_ON_A_GPU)


def test_a_library_that_was_asked_is_no_gpu(folder: Callable[..., None]) -> None:
    """Both are said, each in its own words."""
    folder(document(ALONE))
    assert evidence(CUDNN) == (*CUDNN.proof, "asked: cuDNN 9.28.0, without a GPU", NOT_ON_A_GPU)


def test_a_gpu_and_libraries(folder: Callable[..., None]) -> None:
    """Several records of each."""
    folder(document(), "a.json")
    folder(document({**GPU, "device": "another"}), "b.json")
    for version in ("9.28.0", "9.2.1", "8.9.7", "9.2.1"):
        folder(document({"cudnn": version}), f"{version}-{len(evidence_module.records())}.json")
    assert evidence(CUDNN)[len(CUDNN.proof) :] == (
        "asked: cuDNN 8.9.7 to 9.28.0 (3 versions), without a GPU", f"{ON_GPU}; verified on cuDNN 9.19.0, another"
    )  # fmt: skip


def test_only_layouts_of_gpus_are_asked_for_one(folder: Callable[..., None]) -> None:
    """A layout that has nothing to do with GPUs is not said to lack one."""
    for layout in layouts.built_in().values():
        assert (NOT_ON_A_GPU in evidence(layout)) is layout.gpu
    assert {layout.name for layout in layouts.built_in().values() if layout.gpu} >= {"cudnn", "miopen"}


@pytest.mark.parametrize("words", [ON_GPU, NOT_ON_A_GPU])
def test_what_the_commands_say(words: str, folder: Callable[..., None], tmp_path: Path) -> None:
    """`layouts`, and the record in the output of `fuse`; with a record, and without one."""
    if words == ON_GPU:
        folder(document())
    assert words in " ".join(quick("layouts", "cudnn", cwd=tmp_path).out.split())
    found = json.loads(quick("layouts", "cudnn", "--json", cwd=tmp_path).out)["layouts"][0]
    assert found["gpu"]["verified"] == words == found["proof"][-1]
    assert [one["name"] for one in found["gpu"]["records"]] == (["r.json"] if words == ON_GPU else [])
    torch.manual_seed(0)
    save(tmp_path, state(nn.LSTM(3, 4), "rnn"))
    ran = quick("fuse", "m.pt", "--layout", "cudnn", "-o", "a.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    with safe_open(tmp_path / "a.safetensors", "numpy") as file:
        (module,) = json.loads(file.metadata()["paramtool.layouts"])["modules"]
    assert module["evidence"] == words
    relayout_command.unfuse(tmp_path / "a.safetensors", tmp_path / "b.safetensors")


def test_the_records_of_a_layout(folder: Callable[..., None], tmp_path: Path) -> None:
    """`layouts cudnn` names those that speak for it, with their dates, and the others with the reason."""
    folder(document(), "gpu.json")
    folder(document(ALONE), "alone.json")
    folder(document(quick=True), "quick.json")
    out = [line.split() for line in quick("layouts", "cudnn", cwd=tmp_path).out.splitlines()]
    found = {line[1]: " ".join(line) for line in out if line[0] == "record"}
    assert found.keys() == {"gpu.json", "alone.json", "quick.json"}
    assert found["gpu.json"].endswith(document()["date"])
    assert found["quick.json"].endswith("does not count: of the quick grid")


def test_an_option_is_a_part_of_the_table() -> None:
    """A new one changes what may be where."""
    assert table_digest(replace(CUDNN, options=(*CUDNN.options, Option("a", "b", "c")))) != table_digest(CUDNN)


def test_the_digest_is_sha256() -> None:
    """Whichever module computes it; OpenSSL is not loaded for it."""
    for data in (b"", b"x" * 1000):
        assert evidence_module._sha256(data) == hashlib.sha256(data).hexdigest()
    script = "import sys\nfrom paramtool import layouts\nfrom paramtool.layouts.evidence import table_digest\n"
    script += "table_digest(layouts.find('cudnn'))\nprint('_hashlib' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )
