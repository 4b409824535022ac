"""Laws of the text of a lock file: what is written is what is read, and no line can be edited unseen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import paramtool
from paramtool.errors import FormatError, ParamtoolError
from paramtool.lockfile import digests, read, write
from paramtool.lockfile.lock import (
    CONFIG,
    MEMORY,
    NO_DATA,
    TIES,
    UNTIED,
    LockedFile,
    LockedModel,
    LockedObject,
    LockedTensor,
    LockedTie,
    LockedView,
)
from paramtool.model.paths import named_beside
from paramtool.passes.lock.compare import findings
from tests.hostile.command import quick

FIXTURE = Path(__file__).parents[2] / "fixtures" / "lightning" / "run"


def is_path(name: str) -> bool:
    """Whether a lock may call a file of a model so."""
    try:
        named_beside("", name, folders=True, portable=False)
    except ParamtoolError:
        return False
    return True


NAMES = st.text(max_size=12) | st.sampled_from(
    ["a b", '"', "#", "\x1b[31m", "a\nb", "\udc80", "-", "a=b", "=", "::set-env"]
)
FILES = NAMES.filter(lambda name: is_path(name) and named_beside("", name, folders=True, portable=False) == name)
DTYPES = st.sampled_from(["float32", "bfloat16"])
HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
SHAPES = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)


@st.composite
def models(draw: st.DrawFn) -> LockedModel:
    """A model with any names."""
    names = draw(st.lists(NAMES, unique=True, max_size=6))
    tensors = {
        name: LockedTensor(
            name, draw(st.sampled_from(["float32", "bfloat16"])), draw(SHAPES), draw(HEX | st.just(NO_DATA))
        )
        for name in sorted(names)
    }
    files = draw(st.dictionaries(FILES, st.tuples(st.integers(0, 2**60), HEX), min_size=1, max_size=3))
    ties: set[LockedTie] = set()
    if len(names) > 1:
        kinds = draw(st.sets(st.sampled_from(TIES), max_size=2))
        assume(not kinds >= {*MEMORY})  # a name is in one alias set
        ties = {LockedTie(tuple(sorted(names)), kind) for kind in kinds}
    if names and draw(st.booleans()):
        ties.add(LockedTie((names[0],), draw(st.sampled_from([CONFIG, UNTIED]))))
    views = {
        name: LockedView(name, draw(st.integers(0, 2**40)), draw(st.tuples(*[st.integers(0, 9)] * len(one.shape))))
        for name, one in tensors.items()
        if any(tie.kind in MEMORY for tie in ties) and draw(st.booleans())
    }
    objects = draw(
        st.dictionaries(NAMES, st.tuples(HEX, NAMES.filter(lambda words: {*words}.isdisjoint("'\""))), max_size=2)
    )
    return LockedModel(
        draw(FILES), tuple(LockedFile(name, *rest) for name, rest in sorted(files.items())),
        digests.content(tensors.values()), digests.unnamed(tensors.values()), tensors, tuple(sorted(ties)),
        {key: LockedObject(key, *rest) for key, rest in sorted(objects.items())}, draw(st.sampled_from(["", "vllm"])),
        views,
    )  # fmt: skip


@given(st.lists(models(), min_size=1, max_size=3, unique_by=lambda one: one.path))
def test_what_is_written_is_what_is_read(made: list[LockedModel]) -> None:
    text = write.text(made)
    lock = read.parse(text)
    assert text.isascii()
    assert all(line.isprintable() for line in text.split("\n"))
    assert read.parse(text.replace("\n", "\r\n")) == lock  # git's autocrlf
    assert write.text(lock.models.values()) == text
    assert {path: _values(model) for path, model in lock.models.items()} == {one.path: _values(one) for one in made}


def _values(one: LockedModel) -> tuple[object, ...]:
    """A model without its lines."""
    tensors = {name: tensor[:4] for name, tensor in one.tensors.items()}
    objects = {key: value[:3] for key, value in one.objects.items()}
    files = [file[:3] for file in one.files]
    ties, views = [tie[:2] for tie in one.ties], {name: view[:3] for name, view in one.views.items()}
    return files, one.content, one.unnamed, tensors, ties, views, objects, one.dialect


@given(models(), st.data())
def test_no_character_of_a_lock_changes_unseen(model: LockedModel, data: st.DataObject) -> None:
    """A changed character is refused, or is found when the model is compared with the lock."""
    text = write.text([model])
    start = text.index("\nmodel ") + len("\nmodel ")  # what follows the path is about the model
    start = text.index("\n", start) + 1
    assume(start < len(text))
    at = data.draw(st.integers(start, len(text) - 1))
    edited = text[:at] + data.draw(st.characters(codec="ascii")) + text[at + 1 :]
    assume(edited != text)
    try:
        lock = read.parse(edited)
    except FormatError:
        return
    assert list(findings(lock.models[model.path], model, "paramtool.lock"))


TIED = "tied a = b storage\nview b 4 [1]\n"


@pytest.mark.parametrize(
    ("tied", "message"),
    [
        (TIED, ""),
        (TIED.replace("storage", "declared"), ""),
        (TIED.replace("storage", "config"), r":8: a view of 'b', which no line `tied` has with storage or declared"),
        (TIED.replace("[1]", "[1,2]"), r":8: a view of 'b', which has the shape \[2\]"),
        (TIED.replace("b", "c"), r":8: a view of 'c', which has no line `tensor`"),
        (TIED.replace("4", "-4"), r":8: -4 is not a number of bytes"),
        (TIED + "view b 4 [1]\n", r":9: view 'b' is there twice, or not sorted"),
        (TIED + "view a 4 [1]\n", r":9: view 'a' is there twice, or not sorted"),
        ("tied a = b declared\n" + TIED, r":8: 'a' is in the alias set of line 7, too"),
        ("view b 4 [1]\ntied a = b storage\n", r":7: a view of 'b', which no line `tied`"),
    ],
)
def test_lines_of_alias_sets(tied: str, message: str) -> None:
    """Each is refused with its line before the digest of the lines is looked at."""
    tensors = {name: LockedTensor(name, "float32", (2,), "0" * 64) for name in "ab"}
    model = LockedModel(
        "m.pt", (LockedFile("m.pt", 9, "1" * 64),), digests.content(tensors.values()),
        digests.unnamed(tensors.values()), tensors,
    )  # fmt: skip
    first, second = write.text([model]).split("tensor a", 1)
    text = first + tied + "tensor a" + second
    lines = text[text.index("model") : text.index("lines ")]
    text = text[: text.index("lines ")] + f"lines b3:{digests.blake3_of(lines[:-1])}\n"
    if not message:
        assert read.parse(text).models["m.pt"].views["b"] == LockedView("b", 4, (1,), 8)
        return
    with pytest.raises(FormatError, match=message):
        read.parse(text)


@pytest.mark.parametrize(
    ("digest", "sha256", "message"),
    [
        ("0" * 64, ("1" * 64, ""), r":5: file 'n.pt' has no sha256; expected one for each file"),
        ("0" * 64, ("", ""), r":4: file 'm.pt' has no sha256"),
        ("-", ("1" * 64, "1" * 64), r":4: file 'm.pt' has a sha256"),
        ("-", ("", ""), ""),
        ("no-data", ("", ""), ""),
        ("no-data", ("1" * 64, "1" * 64), ""),
        ("no-data", ("", "1" * 64), r":5: file 'n.pt' has a sha256"),
    ],
)
def test_a_hash_that_was_taken_away(digest: str, sha256: tuple[str, str], message: str) -> None:
    """Files without a hash would not be compared: every file has one where tensors were read, and none with headers."""
    tensors = {"a": LockedTensor("a", "float32", (2,), digest)}
    files = tuple(LockedFile(f"{name}.pt", 9, one) for name, one in zip("mn", sha256, strict=True))
    model = LockedModel("m", files, digests.content(tensors.values()), digests.unnamed(tensors.values()), tensors)
    if not message:
        assert read.parse(write.text([model])).models
        return
    with pytest.raises(FormatError, match=message):
        read.parse(write.text([model]))


def twice(text: str, start: str) -> str:
    """A text with one of its lines twice."""
    line = next(one for one in text.split("\n") if one.startswith(start))
    return text.replace(line, f"{line}\n{line}")


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    (tmp_path / "paramtool.lock").write_text("\ufeff# paramtool.lock, version 1: ...\n", "utf-8")
    with pytest.raises(FormatError, match=r"paramtool.lock:1: begins with a byte order mark"):
        read.read(str(tmp_path / "paramtool.lock"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("version 2", "version 3"), r"paramtool.lock:1: a lock of version 3"),
        (lambda text: "hello\n" + text, r":1: not a lock of paramtool"),
        (
            lambda text: text[text.index("\n") + 1 :],
            r":1: its first line is lost: found '', expected '# paramtool.lock, v",
        ),
        (lambda text: "<<<<<<< HEAD\n" + text, r":1: an unresolved merge of git: found '<<<<<<< HEAD'"),
        (
            lambda text: text.replace("tensor b", "=======\ntensor b"),
            r":\d+: an unresolved merge of git: found '======='",
        ),
        (lambda text: text[:-1], r"truncated"),
        (lambda text: twice(text, "tensor b"), r":\d+: tensor 'b' a second time; the first is line \d+"),
        (lambda text: twice(text, "lines"), r":\d+: .* was edited|were edited|a second line `lines`"),
        (lambda text: text.replace("[2]", "[3]"), r"some were edited, added or lost"),
        (lambda text: text.replace("file ", "fill "), r":4: found 'fill', expected one of model, file"),
        (lambda text: text + "\n" + text[text.index("model") :], r"locked twice"),
        (lambda text: text[: text.index("content")], r"no line `content`"),
        (lambda text: text[: text.index("\n") + 1], r"locks no model"),
    ],
)
def test_a_damaged_lock_is_refused(change: object, message: str) -> None:
    tensors = {name: LockedTensor(name, "float32", (2,), "0" * 64) for name in "ab"}
    model = LockedModel(
        "m.pt", (LockedFile("m.pt", 9, "1" * 64),), digests.content(tensors.values()),
        digests.unnamed(tensors.values()), tensors,
    )  # fmt: skip
    text = write.text([model])
    assert read.parse(text).models
    with pytest.raises(FormatError, match=message):
        read.parse(change(text))  # type: ignore[operator]


def test_a_lock_of_version_1_is_read_and_updated(tmp_path: Path) -> None:
    """The committed file is what paramtool wrote before version 2; its strings do not come into the new one."""
    old = Path(__file__).parent / "data" / "version-1.lock"
    ran = quick("check", FIXTURE, "--lock", old, cwd=tmp_path)
    assert ran.code == 0 and "0 findings" in ran.out, ran
    assert "'2.6.6'" in old.read_text()
    model = read.read(str(old)).models["../../../fixtures/lightning/run"]
    assert "'" not in "".join(line for line in write.text([model]).splitlines() if line.startswith("object "))
    moved = tmp_path / "paramtool.lock"
    (tmp_path / "run").symlink_to(FIXTURE)
    moved.write_text(write.text([replace(model, path="run"), replace(model, path="kept")]).replace("2:", "1:", 1))
    assert quick("lock", "run", "--force", cwd=tmp_path).code == 0
    text = moved.read_text()
    assert text.startswith("# paramtool.lock, version 2:") and [*read.parse(text).models] == ["kept", "run"]
    assert quick("check", "run", cwd=tmp_path).code == 0


SECRET = "sk-live-0123456789"


@given(st.recursive(
    st.just(SECRET) | st.just(SECRET.encode()) | st.integers() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=5,
))  # fmt: skip
def test_no_string_of_a_checkpoint_is_in_a_lock(value: object) -> None:
    with TemporaryDirectory() as folder:
        torch.save({"w": torch.ones(1), "api_key": SECRET, "args": value}, f"{folder}/a.pt")
        torch.save({"w": torch.ones(1), "api_key": f"{SECRET}0", "args": value}, f"{folder}/b.pt")
        text = paramtool.lock([f"{folder}/a.pt"], f"{folder}/a.lock").text
        assert SECRET not in text and SECRET.encode().hex() not in text and "object api_key b3:" in text
        checked = paramtool.check([f"{folder}/b.pt"], lock=f"{folder}/a.lock")
        (said,) = [one.message for one in checked.findings if one.id == "PT402"]
        assert said == "object 'api_key' has another value: was another string"
