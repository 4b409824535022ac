"""What the reports say: their rows, their numbers, and commands that can be typed as they stand."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paramtool.commands import dedup as dedup_command
from paramtool.commands import export as export_command
from paramtool.commands import inspect as inspect_command
from paramtool.errors import UsageError
from paramtool.model.display import size
from tests.cli.test_commands import on_a_terminal
from tests.hostile.command import Ran, contents, quick, refused
from tests.hostile.makers_torch import DATA, call_of, number, state, storage, tensor, zipped


def save(folder: Path, path: str = "m.pt", **tensors: Any) -> Path:
    torch.save({key.replace("_", "."): value for key, value in tensors.items()}, folder / path)
    return folder / path


def rows(ran: Ran, label: str) -> list[str]:
    """The lines of one label, without it."""
    return [line.removeprefix(label).strip() for line in ran.out.splitlines() if line.startswith(label + "  ")]


def test_one_more_is_one_more(tmp_path: Path) -> None:
    """What a table leaves out is counted; one name is one name."""
    stack = torch.arange(9 * 8 * 160.0).view(9, 8, 160)
    save(tmp_path, stack=stack, **{f"e{k}": stack[k].clone() for k in range(9)})
    ran = quick("inspect", "m.pt", "--digest", cwd=tmp_path)
    assert ran.code == 0 and "  and 1 more  " in ran.out
    ran = quick("export", "m.pt", "--rename", "e0=e1", "--all-names", "-o", "x.pt", cwd=tmp_path)
    assert ran.code == 2 and "1 name would clash with another" in ran.err


def labels(ran: Ran) -> list[str]:
    return list(dict.fromkeys(line.split("  ")[0] for line in ran.out.splitlines()))


def training(folder: Path, path: str = "t.pt", **more: Any) -> Path:
    model = {"w": torch.arange(5000.0)}
    optimizer = {"state": {0: {"exp_avg": torch.ones(5000)}}, "param_groups": [{"params": [0]}]}
    torch.save({"model": model, "optimizer": optimizer, "ema": {"w": torch.zeros(5000)}, **more}, folder / path)
    return folder / path


# --- export --like ---------------------------------------------------------------------------------------------------


def export(folder: Path, *args: str) -> Ran:
    return quick("export", "m.pt", "-o", "plain.safetensors", "--force", *args, cwd=folder)


def test_like_a_training_checkpoint(tmp_path: Path) -> None:
    """The names of its one model section, and the report says so."""
    save(tmp_path, w=torch.arange(5000.0), v=torch.ones(3))
    training(tmp_path)
    ran = export(tmp_path, "--like", "t.pt")
    assert ran.code == 0 and "names of section model of t.pt" in ran.out, ran
    assert set(load_file(tmp_path / "plain.safetensors")) == {"w"}
    assert json.loads(export(tmp_path, "--like", "t.pt", "--json").out)["like_section"] == "model"


def test_like_what_is_no_training_checkpoint(tmp_path: Path) -> None:
    """All names, also of a model that is nested; one section only where it is asked for."""
    parts = {"enc": {"w": torch.ones(3)}, "dec": {"w": torch.ones(3)}}
    torch.save(parts, tmp_path / "like.pt")
    torch.save({**parts, "other": torch.ones(1)}, tmp_path / "m.pt")
    ran = export(tmp_path, "--like", "like.pt")
    assert ran.code == 0 and "section" not in ran.out, ran
    assert set(load_file(tmp_path / "plain.safetensors")) == {"enc.w", "dec.w"}
    save(tmp_path, w=torch.ones(3))
    ran = export(tmp_path, "--like", "like.pt")
    assert ran.code == 2 and "--like-only" in ran.err, ran
    ran = export(tmp_path, "--like", "like.pt", "--like-only", "dec")
    assert ran.code == 0 and "names of section dec of like.pt" in ran.out, ran


@pytest.mark.parametrize("more", [{"model2": {"w": torch.ones(3)}}, {"alone": torch.ones(3)}])
def test_like_refuses_to_guess(more: dict[str, Any], tmp_path: Path) -> None:
    """Model tensors outside the one model section: the sections are listed."""
    save(tmp_path, w=torch.arange(5000.0))
    training(tmp_path, **more)
    args = ("export", "m.pt", "-o", "plain.safetensors", "--like", "t.pt")
    refused(quick, *args, cwd=tmp_path, code=2, says=("t.pt", "'model' (model)", "'ema' (ema)", "--like-only"))
    assert export(tmp_path, "--like", "t.pt", "--like-only", "model").code == 0
    refused(quick, *args, "--like-only", "ghost", cwd=tmp_path, code=2, says=("t.pt", "'ghost'", "'ema'"))


def test_like_only_needs_like(tmp_path: Path) -> None:
    """Exit 2, with the names of the flags."""
    path = save(tmp_path, w=torch.ones(3))
    (tmp_path / "names").write_text("w\n")
    args = ("export", "m.pt", "-o", "plain.safetensors")
    refused(quick, *args, "--names", "names", "--like-only", "x", cwd=tmp_path, code=2, says=("--like-only", "--like "))
    with pytest.raises(UsageError):
        export_command.export(path, tmp_path / "x", names=["w"], like_only="x")


def test_names_from_other_systems(tmp_path: Path) -> None:
    """A byte order mark is no part of a name; what cannot be read is said in words."""
    save(tmp_path, w=torch.ones(3))
    (tmp_path / "names").write_bytes(b"\xef\xbb\xbfw\r\n")
    assert export(tmp_path, "--names", "names").code == 0
    assert "Errno" not in export(tmp_path, "--names", "ghost").err
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    ran = export(tmp_path, "--names", "binary")
    assert ran.code == 2 and "UTF-8" in ran.err and "codec" not in ran.err


# --- dedup -----------------------------------------------------------------------------------------------------------


def test_only_counts_its_section(tmp_path: Path) -> None:
    """What the others hold is no saving."""
    training(tmp_path)
    ran = quick("dedup", "t.pt", "--only", "model", "--dry-run", cwd=tmp_path)
    assert rows(ran, "left out") == ["sections optimizer, ema"]
    whole = size((tmp_path / "t.pt").stat().st_size)
    assert rows(ran, "size") == [f"{whole} -> 20.1 kB, section model alone"], ran


def test_unused_is_not_what_was_skipped(tmp_path: Path) -> None:
    """A tensor that is left out did use its bytes."""
    save(tmp_path, w=torch.ones(3), c=torch.ones(999, dtype=torch.complex128))
    ran = quick("dedup", "m.pt", "--skip-unsupported", cwd=tmp_path)
    assert ran.code == 0 and not rows(ran, "unused") and rows(ran, "left out"), ran


def test_expanded_tensors_count_for_what_they_hold(tmp_path: Path) -> None:
    """A window of stride 0 saves nothing that was ever stored."""
    w = torch.arange(1000.0)
    save(tmp_path, w=w, x=w[:1].expand(1_000_000))
    found = rows(quick("dedup", "m.pt", cwd=tmp_path), "shared")
    assert found == ["w  [1000] float32  4.00 kB", "x  [1000000] float32, another view, same memory"], found


def test_groups_by_memory(tmp_path: Path) -> None:
    """Tied names share memory, and others only bytes."""
    w = torch.arange(4096.0)
    c, e = w.clone(), w.clone()
    save(tmp_path, a=w, b=w, c=c, d=c, e=e)
    ran = quick("dedup", "m.pt", cwd=tmp_path)
    apart = "equal bytes, stored once; on load memory of"
    expected = ["a  [4096] float32  16.4 kB", "b  same memory"]
    expected += [f"c  {apart} its own", f"d  {apart} c", f"e  {apart} its own"]
    assert rows(ran, "equal") == expected
    assert quick("dedup", "m.dedup.safetensors", "-o", "again.safetensors", cwd=tmp_path).code == 0
    again = quick("dedup", "m.dedup.safetensors", "-o", "third.safetensors", cwd=tmp_path)
    assert rows(again, "equal") == expected and "->" in rows(again, "size")[0]


def test_many_groups(tmp_path: Path) -> None:
    """Eight, and how many more."""
    pairs = [torch.full((3,), float(k)) for k in range(11)]
    torch.save({f"{side}.{k}": t for k, t in enumerate(pairs) for side in "ab"}, tmp_path / "m.pt")
    found = rows(quick("dedup", "m.pt", cwd=tmp_path), "shared")
    assert len(found) == 17 and found[-1] == "and 3 more groups  --verbose and --json list them"


@pytest.mark.parametrize("output", ["", "x/", "ghost/x.safetensors", "m.pt"])
def test_a_dry_run_looks_at_the_place(output: str, tmp_path: Path) -> None:
    """The same error as the run that writes."""
    save(tmp_path, w=torch.ones(3))
    args = ("dedup", "m.pt", "-o", output)
    dry = refused(quick, *args, "--dry-run", cwd=tmp_path, code=7)
    assert dry == refused(quick, *args, cwd=tmp_path, code=7)


@pytest.mark.parametrize(
    "path, cwd", [(".", "in"), ("..", "in/sub"), ("in/sub/..", "."), ("sub/..", "in"), ("in/", ".")]
)
def test_a_folder_without_a_name(path: str, cwd: str, tmp_path: Path) -> None:
    """The output stands beside the folder, never in it."""
    (tmp_path / "in" / "sub").mkdir(parents=True)
    save(tmp_path, w=torch.ones(3))
    assert quick("dedup", "m.pt", "-o", "out", "--max-shard-size", "1MB", cwd=tmp_path).code == 0
    for file in (tmp_path / "out").iterdir():
        file.rename(tmp_path / "in" / file.name)
    before = contents(tmp_path / "in")
    ran = quick("dedup", path, cwd=tmp_path / cwd)
    assert ran.code == 0 and (tmp_path / "in.dedup").is_dir() and contents(tmp_path / "in") == before, ran


def test_one_file_of_shards(tmp_path: Path) -> None:
    """-o X.safetensors says what is wanted."""
    save(tmp_path, w=torch.ones(3))
    assert quick("dedup", "m.pt", "-o", "out", "--max-shard-size", "1MB", cwd=tmp_path).code == 0
    assert quick("dedup", "out", "-o", "one.safetensors", cwd=tmp_path).code == 0
    assert (tmp_path / "one.safetensors").is_file()


def test_keep_that_keeps_nothing(tmp_path: Path) -> None:
    """A warning; an empty pattern is exit 2."""
    w = torch.ones(3)
    save(tmp_path, a=w, b=w, c=torch.zeros(4))
    for keep, warns in (("b", False), ("last", False), ("c", True), ("x*", True)):
        ran = quick("dedup", "m.pt", "--dry-run", "--keep", keep, cwd=tmp_path)
        assert ran.code == 0 and ("warning: --keep" in ran.err) == warns, ran
    refused(quick, "dedup", "m.pt", "--keep", "", cwd=tmp_path, code=2, says=())
    with pytest.raises(UsageError):
        dedup_command.dedup(tmp_path / "m.pt", keep="")


def test_nothing_to_write(tmp_path: Path) -> None:
    """A checkpoint without any tensor."""
    torch.save({"epoch": 3}, tmp_path / "m.pt")
    refused(quick, "dedup", "m.pt", cwd=tmp_path, code=6, says=("m.pt: holds no tensor; there is nothing to write",))


# --- inspect ---------------------------------------------------------------------------------------------------------


def in_order(found: Iterable[str], expected: list[str]) -> bool:
    return [label for label in found if label in expected] == expected


def test_the_order_of_rows(tmp_path: Path) -> None:
    """From the file to what can be done about it."""
    w, block = torch.arange(4096.0), torch.arange(100.0)
    torch.save({"model": {"w": w, "tied": w, "copy": w.clone(), "s": torch.eye(3).to_sparse(),
                          "conj": torch.ones(2, dtype=torch.complex64).conj(), "p": torch.arange(999.0)[:9],
                          **{f"f{k}": part for k, part in enumerate(block.split(10))}}}, tmp_path / "m.pt")  # fmt: skip
    ran = quick("inspect", "m.pt", "--digest", cwd=tmp_path)
    expected = ["file", "written by", "section", "unsupported", "pending", "unused", "shared", "equal", "fused",
                "tensor", "next"]  # fmt: skip
    assert in_order(labels(ran), expected), ran
    assert rows(ran, "unsupported") == ["model.s  sparse_coo"] and rows(ran, "pending") == ["model.conj  conj"]


def test_many_fused_blocks(tmp_path: Path) -> None:
    """Four with their parts, and how many others there are."""
    torch.save({f"{k}.{j}": p for k in range(7) for j, p in enumerate(torch.ones(30).split(10))}, tmp_path / "m.pt")
    found = rows(quick("inspect", "m.pt", cwd=tmp_path), "fused")
    assert len(found) == 4 * 4 + 1 and found[-1] == "and 3 more blocks  --verbose and --json list them"


def suggested(folder: Path, path: str = "m.pt", *flags: str) -> str:
    (found,) = rows(quick("inspect", *flags, "--", path, cwd=folder), "next")
    return found


def test_next_promises_what_dedup_does(tmp_path: Path) -> None:
    """The flags that dedup asks for, and the names that remain."""
    save(tmp_path, w=torch.ones(9000)[:3], s=torch.eye(3).to_sparse(), c=torch.ones(2, dtype=torch.complex128),
         m=torch.empty(3, device="meta"), j=torch.ones(2, dtype=torch.complex64).conj())  # fmt: skip
    found = suggested(tmp_path)
    assert "dedup refuses 3 tensors: --skip-unsupported leaves them out" in found and "keep 2 names" in found
    typed = shlex.split(found.split("  ")[0])
    assert quick(*typed[1:], cwd=tmp_path).code == 0
    w = tensor(storage(numel=number(4000)))
    zipped(state(w=w, evil=call_of("lib", "make")), s0=DATA * 1000)(tmp_path)
    found = suggested(tmp_path, "model.pt", "--allow-class", "lib.make")
    assert "--allow-class lib.make" in found
    assert quick(*shlex.split(found.split("  ")[0])[1:], cwd=tmp_path).code == 0


def test_words_for_one(tmp_path: Path) -> None:
    """No `1 names`."""
    save(tmp_path, w=torch.ones(9000)[0])
    ran = quick("inspect", "m.pt", cwd=tmp_path)
    assert not re.search(r"\b1 \w+s\b", ran.out) and "1 parameter " in ran.out and "keep 1 name" in ran.out, ran


def test_digest_knows_better(tmp_path: Path) -> None:
    """Equal bytes are not counted twice, once they are known."""
    w = torch.arange(4096.0)
    save(tmp_path, a=w, b=w.clone())
    assert not rows(quick("inspect", "m.pt", cwd=tmp_path), "next")
    assert "16.4 kB" in suggested(tmp_path, "m.pt", "--digest")


def test_a_rule_counts_small_tensors(tmp_path: Path) -> None:
    """duplicate-bytes compares all; --digest leaves chance alone."""
    save(tmp_path, a=torch.arange(3.0), b=torch.arange(3.0))
    assert quick("inspect", "m.pt", "--fail-on", "duplicate-bytes>11", cwd=tmp_path).code == 1
    assert not rows(quick("inspect", "m.pt", "--digest", cwd=tmp_path), "equal")


@pytest.mark.parametrize("path", ["my model.pt", "-m.pt", "$(x).pt", "it's.pt"])
def test_commands_can_be_typed(path: str, tmp_path: Path) -> None:
    """As they stand, in a shell."""
    save(tmp_path, path, w=torch.ones(9000)[:3])
    typed = shlex.split(suggested(tmp_path, path).split("  ")[0])
    ran = quick(*typed[1:], cwd=tmp_path)
    assert ran.code == 0, ran
    assert quick(*shlex.split(rows(ran, "next")[0])[1:], cwd=tmp_path).code == 0


# --- terminals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [30, 70, 200])
def test_paths_do_not_fold(columns: int, tmp_path: Path) -> None:
    """However long, a path and a command stay on one line; a narrow terminal has the lines of a pipe."""
    path = f"{'long-' * 20}name.pt"
    save(tmp_path, path, w=torch.arange(3.0), v=torch.arange(99.0)[:3])
    ran = on_a_terminal("inspect", path, cwd=tmp_path, env={"NO_COLOR": "1"}, columns=columns)
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", ran.out).splitlines()]
    (file,) = (k for k, line in enumerate(lines) if line.startswith("file "))
    (following,) = (k for k, line in enumerate(lines) if line.startswith("next "))
    assert path in lines[file] and f"paramtool dedup {path}" in lines[following]
    assert "float32" in " ".join(lines[file : file + 4]) and "2 names" in " ".join(lines[following : following + 3])
    if columns < 40:
        assert lines == quick("inspect", path, cwd=tmp_path).out.splitlines()


def test_compare_says_how_much(tmp_path: Path) -> None:
    """The total of the candidates, so that short work shows no bar."""
    from collections.abc import Callable, Iterator
    from contextlib import contextmanager

    totals = {}

    @contextmanager
    def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
        totals[label] = total
        yield lambda nbytes: None

    inspect_command.inspect(
        save(tmp_path, a=torch.ones(2000), b=torch.ones(2000), c=torch.ones(7)), equal=True, progress=progress
    )
    assert totals == {"compare": 16_000}
