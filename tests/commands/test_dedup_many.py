"""Several checkpoints at once: names of folders, what may be replaced, what an interruption leaves, how it is told."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import dedup_many
from paramtool.engine.compare import equal
from paramtool.engine.write import hardlinks
from paramtool.errors import FormatError, OutputError, UsageError
from paramtool.formats.safetensors import index as index_module
from tests.cli.test_documents import DOCS, validate
from tests.hostile.command import quick

INDEX = "model.safetensors.index.json"
BIG = 2048
"""Elements: more than is compared by default."""


def state(**more: torch.Tensor) -> dict[str, torch.Tensor]:
    """A large and a tiny tensor, and what is asked for."""
    return {"w": torch.arange(float(BIG)), "b": torch.ones(3), **more}


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """A base and its fine-tune."""
    save_file(state(head=torch.zeros(BIG)), tmp_path / "base.safetensors", metadata={"format": "pt", "who": "me"})
    torch.save(state(head=torch.full((BIG,), 2.0)), tmp_path / "tuned.pt")
    return [tmp_path / "base.safetensors", tmp_path / "tuned.pt"]


def inode(path: Path, name: str) -> int:
    """The file that a name of a folder stands in."""
    return os.stat(path / json.loads((path / INDEX).read_text())["weight_map"][name]).st_ino


def test_a_family(two: list[Path], tmp_path: Path) -> None:
    """One shard for both (the tiny tensor comes with the large one), one for each; texts of the user come back."""
    found = dedup_many.dedup_family(two, tmp_path / "out")
    base, tuned = tmp_path / "out" / "base", tmp_path / "out" / "tuned"
    assert [len(shard.files) for shard in found.shards] == [2, 1, 1]
    assert inode(base, "w") == inode(tuned, "w") == inode(base, "b") != inode(base, "head") != inode(tuned, "head")
    assert (found.members[0].shared_by_all, found.members[0].own) == (4 * BIG + 12, 4 * BIG)
    assert paramtool.read(base).metadata == {"format": "pt", "who": "me"}
    shard = next(path for path in found.shards[0].files)
    assert load_file(shard).keys() == {"w", "b"}
    assert found.linked and found.verified and found.written


def test_tiny_tensors_are_not_worth_a_shard(tmp_path: Path) -> None:
    """What is equal in two of three inputs and tiny is stored in each; `min_equal_bytes` says what is tiny."""
    for k in range(3):
        save_file({"w": torch.ones(BIG), "b": torch.full((3,), float(k // 2))}, tmp_path / f"{k}.safetensors")
    paths = [tmp_path / f"{k}.safetensors" for k in range(3)]
    assert len(dedup_many.dedup_family(paths, tmp_path / "1").shards) == 4
    assert len(dedup_many.dedup_family(paths, tmp_path / "2", min_equal_bytes=1).shards) == 3


def test_the_owner_is_the_name_that_most_inputs_have(tmp_path: Path) -> None:
    """A tied tensor is stored under the name that another input has alone, whichever stands first."""
    weight = torch.arange(float(BIG))
    torch.save({"a": weight, "z": weight}, tmp_path / "tied.pt")
    save_file({"z": weight}, tmp_path / "alone.safetensors")
    found = dedup_many.dedup_family([tmp_path / "tied.pt", tmp_path / "alone.safetensors"], tmp_path / "out")
    assert len(found.shards) == 1
    loaded = paramtool.load_file(tmp_path / "out" / "tied")
    assert loaded["a"].ctypes.data == loaded["z"].ctypes.data
    found = dedup_many.dedup_family([tmp_path / "tied.pt", tmp_path / "alone.safetensors"], tmp_path / "kept", keep="a")
    assert len(found.shards) == 2 and found.renamed_nbytes == 4 * BIG


def test_formats_are_kept_apart(tmp_path: Path) -> None:
    """A shard says one `format`; inputs that say different ones share none."""
    save_file(state(), tmp_path / "a.safetensors", metadata={"format": "pt"})
    save_file(state(), tmp_path / "b.safetensors", metadata={"format": "mlx"})
    found = dedup_many.dedup_family([tmp_path / "a.safetensors", tmp_path / "b.safetensors"], tmp_path / "out")
    assert len(found.shards) == 2
    assert paramtool.read(tmp_path / "out" / "b").metadata == {"format": "mlx"}


def test_one_section_of_training_checkpoints(tmp_path: Path) -> None:
    """`only` takes the section of those that have sections; a plain checkpoint is taken whole, and that is said."""
    torch.save({"model": state(), "optimizer": {"state": {0: {"exp_avg": torch.ones(BIG)}}}}, tmp_path / "run.pt")
    save_file(state(), tmp_path / "base.safetensors")
    found = dedup_many.dedup_family(
        [tmp_path / "run.pt", tmp_path / "base.safetensors"], tmp_path / "out", only="model"
    )
    assert len(found.shards) == 1 and "no sections" in found.warnings[0]
    assert paramtool.load_file(tmp_path / "out" / "run").keys() == state().keys()
    assert found.members[0].left_out == ("section optimizer",)


def test_weights_and_an_ema_copy_are_not_joined(tmp_path: Path) -> None:
    """The role of a tensor has to agree, too."""
    torch.save({"model": state(), "ema": state(), "step": 1}, tmp_path / "run.pt")
    save_file(state(), tmp_path / "base.safetensors")
    paths = [tmp_path / "run.pt", tmp_path / "base.safetensors"]
    assert len(dedup_many.dedup_family(paths, tmp_path / "1", only="ema").shards) == 2
    assert len(dedup_many.dedup_family(paths, tmp_path / "2", only="model").shards) == 1
    assert len(dedup_many.dedup_family(paths, tmp_path / "3", only="ema", across_roles=True).shards) == 1


def test_what_an_input_derives_is_stored(tmp_path: Path) -> None:
    """A folder holds every name for programs that cannot calculate any."""
    whole = {"w": torch.arange(float(BIG)), "ones": torch.ones(BIG), "half": torch.arange(BIG).to(torch.bfloat16)}
    whole["w"] = whole["half"].float()
    save_file(whole, tmp_path / "plain.safetensors")
    dedup_command.dedup(
        tmp_path / "plain.safetensors", tmp_path / "d.safetensors", derive_casts=True, fold_constants=True
    )
    assert len(load_file(tmp_path / "d.safetensors")) == 1
    found = dedup_many.dedup_family([tmp_path / "plain.safetensors", tmp_path / "d.safetensors"], tmp_path / "out")
    assert [len(shard.files) for shard in found.shards] == [2]
    assert load_file(found.shards[0].files[1]).keys() == whole.keys()


@pytest.mark.parametrize("renamed", [False, True])
def test_equal_under_other_names(renamed: bool, tmp_path: Path) -> None:
    """The report says what `share_renamed` would save; with it, a linked file is looked into and loads as it was."""
    save_file({"x": torch.ones(BIG)}, tmp_path / "a.safetensors")
    save_file({"y": torch.ones(BIG), "z": torch.arange(3.0)}, tmp_path / "b.safetensors")
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    found = dedup_many.dedup_family(paths, tmp_path / "out", share_renamed=renamed)
    assert found.renamed_nbytes == 4 * BIG
    assert (tmp_path / "out" / "b" / "paramtool.linked-00001.safetensors").exists() == renamed
    index = json.loads((tmp_path / "out" / "b" / INDEX).read_text())
    assert ("y" in index["weight_map"]) != renamed
    if renamed:
        schema = json.loads((DOCS / "schema" / "alias-record-1.json").read_text())
        Draft202012Validator(schema).validate(json.loads(index["metadata"]["paramtool.aliases"]))
    assert paramtool.read(tmp_path / "out" / "b").entries.keys() == {"y", "z"}
    dedup_command.dedup(tmp_path / "out" / "b", tmp_path / "again.safetensors")
    assert {n: t.tolist() for n, t in load_file(tmp_path / "again.safetensors").items()} == {
        "y": [1.0] * BIG,
        "z": [0.0, 1.0, 2.0],
    }


@pytest.mark.parametrize("keep", ["first", "last", "b"])
def test_a_second_run_keeps_what_other_programs_find(keep: str, tmp_path: Path) -> None:
    """`b` stands on `a` of both, and given in again it still does: its name is not made the owner of them."""
    weight = torch.arange(float(BIG))
    torch.save({"a": weight, "b": weight.clone()}, tmp_path / "0.pt")
    torch.save({"a": weight}, tmp_path / "1.pt")
    paths = [tmp_path / "0.pt", tmp_path / "1.pt"]
    for out in ("once", "twice"):
        dedup_many.dedup_family(paths, tmp_path / out, share_renamed=True, keep=keep, min_equal_bytes=64)
        paths = [tmp_path / out / name for name in "01"]
        indexes = [json.loads((path / INDEX).read_text())["weight_map"] for path in paths]
        assert [[*index] for index in indexes] == [["a"], ["a"]]
    dedup_many.dedup_family(paths, tmp_path / "plain")
    assert [*json.loads((tmp_path / "plain" / "0" / INDEX).read_text())["weight_map"]] == ["a", "b"]


def test_a_record_that_is_too_large_stands_beside_the_index(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub refuses a large index; the index then names the file that has the record."""
    monkeypatch.setattr(index_module, "MAX_INDEX_NBYTES", 100)
    dedup_many.dedup_family(two, tmp_path / "out")
    base = tmp_path / "out" / "base"
    schema = Draft202012Validator(json.loads((DOCS / "schema" / "alias-record-1.json").read_text()))
    schema.validate(json.loads((base / "paramtool.aliases.json").read_text()))
    said = json.loads(json.loads((base / INDEX).read_text())["metadata"]["paramtool.aliases"])
    assert said == {"version": 1, "in": "paramtool.aliases.json"}
    schema.validate(said)
    assert paramtool.read(base).metadata["who"] == "me"
    assert str(base / "paramtool.aliases.json") in [file.path for file in paramtool.read(base).files]
    assert not (tmp_path / "out" / "tuned" / "paramtool.aliases.json").exists()  # it has nothing to say


def test_where_there_are_no_hard_links_files_are_copied(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the report says so."""

    def refuse(*places: str) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(hardlinks.os, "link", refuse)
    found = dedup_many.dedup_family(two, tmp_path / "out")
    assert not found.linked
    assert inode(tmp_path / "out" / "base", "w") != inode(tmp_path / "out" / "tuned", "w")


# --- requests that are refused -----------------------------------------------------------------------------------


def refused(paths: list[Path], output: Path, kind: type[Exception], *words: str, **more: Any) -> None:
    """The error says the words, and nothing is there that was not before."""
    before = sorted(output.parent.rglob("*"))
    with pytest.raises(kind) as caught:
        dedup_many.dedup_family(paths, output, **more)
    said = f"{caught.value} {getattr(caught.value, 'hint', '')}"
    assert all(word in said for word in words), said
    assert sorted(output.parent.rglob("*")) == before


def test_one_input_twice(two: list[Path], tmp_path: Path) -> None:
    """Also under another name."""
    refused([two[0], two[0]], tmp_path / "out", UsageError, "named twice")
    (tmp_path / "link.safetensors").symlink_to(two[0])
    refused([two[0], tmp_path / "link.safetensors"], tmp_path / "out", UsageError, "the same checkpoint")


@pytest.mark.parametrize("name", ["f.pt", "f.safetensors", "F.CKPT"])
def test_an_output_that_is_named_as_a_file(name: str, two: list[Path], tmp_path: Path) -> None:
    """A family is a folder."""
    refused(two, tmp_path / name, UsageError, name, "is the name of a file", f"-o {tmp_path}/")
    assert quick("dedup", *two, "-o", name, cwd=tmp_path).code == 2


def test_two_inputs_of_one_name(tmp_path: Path) -> None:
    """The hint names the folders, which differ."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_file(state(), tmp_path / name / "model.safetensors")
    paths = [tmp_path / name / "model.safetensors" for name in ("a", "b")]
    refused(paths, tmp_path / "out", UsageError, "'model'", str(tmp_path / "a"))
    found = dedup_many.dedup_family([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert [Path(member.folder).name for member in found.members] == ["a", "b"]


def test_outputs_and_inputs_are_apart(two: list[Path], tmp_path: Path) -> None:
    """An output over an input, around one, or inside one."""
    dedup_many.dedup_family(two, tmp_path / "out")
    inside = [tmp_path / "out" / "base", tmp_path / "out" / "tuned"]
    refused(inside, tmp_path / "out", OutputError, "an input", force=True)
    refused(inside, tmp_path / "out" / "base" / "new", OutputError, "inside")
    refused(inside, tmp_path / "out" / "base", OutputError, "an input", force=True)
    (tmp_path / "linked").symlink_to(tmp_path / "out")
    refused(inside, tmp_path / "linked" / "base" / "new", OutputError, "inside")


def test_only_an_earlier_output_is_replaced(two: list[Path], tmp_path: Path) -> None:
    """With `force`, and with nothing in it that came later or changed."""
    dedup_many.dedup_family(two, tmp_path / "out")
    refused(two, tmp_path / "out", OutputError, "exists")
    dedup_many.dedup_family(two, tmp_path / "out", force=True)
    (tmp_path / "out" / "base" / "notes.txt").write_text("mine")
    refused(two, tmp_path / "out", OutputError, "base/notes.txt", force=True)
    (tmp_path / "out" / "base" / "notes.txt").unlink()
    with (tmp_path / "out" / "tuned" / INDEX).open("a") as file:
        file.write(" ")
    refused(two, tmp_path / "out", OutputError, f"tuned/{INDEX}", force=True)
    (tmp_path / "models" / "a").mkdir(parents=True)
    save_file(state(), tmp_path / "models" / "a" / "model.safetensors")
    refused(two, tmp_path / "models", OutputError, "holds other files", force=True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"equal": False}, "nothing in common"),
        ({"derive_casts": True}, "derived"),
        ({"keep": ""}, "keep is empty"),
        ({"align": 100}, "power of two"),
    ],
)
def test_senseless_options(more: dict[str, Any], words: str, two: list[Path], tmp_path: Path) -> None:
    """Said before anything is read."""
    refused(two, tmp_path / "out", UsageError, words, **more)


def test_a_damaged_input(two: list[Path], tmp_path: Path) -> None:
    """A zip whose bytes are not those of its CRC is found, also where another input's equal bytes are written."""
    data = two[1].read_bytes()
    place = data.index(torch.full((BIG,), 2.0).numpy().tobytes())
    two[1].write_bytes(data[:place] + b"\1" + data[place + 1 :])
    refused(two, tmp_path / "out", FormatError, "CRC")


def test_an_interruption_leaves_nothing(two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between writing and linking."""

    def interrupted(*places: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(hardlinks, "link", interrupted)
    refused(two, tmp_path / "out", KeyboardInterrupt)


def test_a_wrong_link_is_noticed(two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read back is each folder against its own source, so that a shared shard is compared with every user."""

    def wrong(windows: list[Any], advance: object) -> list[list[int]]:
        return [list(range(len(windows)))]

    monkeypatch.setattr("paramtool.commands.dedup_many.partition", wrong)
    refused(two, tmp_path / "out", OutputError, "tuned: 'head': its bytes differ from the source")


def test_each_window_is_read_once(tmp_path: Path) -> None:
    """Ten checkpoints, one of them apart in its last element: everything once, and the samples."""
    from contextlib import ExitStack

    from paramtool.engine.read.source import Source
    from paramtool.formats import read

    count = 3 << 20
    for k in range(10):
        weight = torch.zeros(count, dtype=torch.uint8)
        weight[-700] = k == 9
        save_file({"w": weight}, tmp_path / f"{k}.safetensors")
    with ExitStack() as stack:
        sources = [stack.enter_context(Source(read(tmp_path / f"{k}.safetensors"))) for k in range(10)]
        views = [source.checkpoint.views()["w"] for source in sources]
        windows = [equal.Window(*pair) for pair in zip(sources, views, strict=True)]
        assert equal.partition(windows) == [list(range(9))]
        assert all(source.nbytes_read <= count + 3 * 512 for source in sources)


# --- the command -------------------------------------------------------------------------------------------------


def test_the_command(two: list[Path], tmp_path: Path) -> None:
    """Table and document, dry and done."""
    dry = quick("dedup", *two, "-o", "out", "--dry-run", "--json", cwd=tmp_path)
    assert validate("dedup-family", dry.out)["written"] is False and not (tmp_path / "out").exists()
    ran = quick("dedup", *two, "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and "8.20 kB shared by all, 0 B by some, 8.19 kB own" in ran.out, ran
    assert "1 of several inputs" in ran.out and "hard links" in ran.out
    done = validate("dedup-family", quick("dedup", *two, "-o", "out", "--force", "--json", cwd=tmp_path).out)
    assert {**done, "seconds": 0} == {**json.loads(dry.out), "seconds": 0, "written": True, "verified": True}
    assert quick("verify", "out/tuned", "--against", two[1], cwd=tmp_path).code == 0


def test_the_command_refuses(two: list[Path], tmp_path: Path) -> None:
    """Several inputs need a folder that is named; flags of several inputs need them."""
    assert quick("dedup", *two, cwd=tmp_path).code == 2
    assert quick("dedup", two[0], "--share-renamed", "-o", "x.safetensors", cwd=tmp_path).code == 2
    assert quick("dedup", "-o", "x", cwd=tmp_path).code == 2
