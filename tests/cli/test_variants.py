"""`paramtool variants` as people and programs use it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import paramtool
from tests.cli.test_documents import run
from tests.hostile.command import Ran, command, quick, refused

W = torch.arange(48.0).view(6, 8)


def test_ties_that_differ_in_the_sign_of_zero(tmp_path: Path) -> None:
    """A largest difference of 0 says what it is about."""
    torch.save({"a": torch.zeros(3), "b": -torch.zeros(3)}, tmp_path / "apart.pt")
    tied = torch.zeros(3)
    torch.save({"a": tied, "b": tied}, tmp_path / "tied.pt")
    ran = quick("variants", "apart.pt", "--against", "tied.pt", cwd=tmp_path)
    assert ran.code == 1 and "largest difference 0: equal numbers with different bits, such as 0.0 and -0.0" in ran.out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A deduplicated file, and variants of every kind."""
    state = {"emb": W, "head": W, "turned": W.t(), "b": W[0] + 1, **{f"l{k:02}": W[1] * (k + 2) for k in range(12)}}
    torch.save(state, tmp_path / "m.pt")
    assert quick("dedup", "m.pt", "-o", "m.safetensors", cwd=tmp_path).code == 0
    torch.save({"emb": W, "b": W[0, :3], "l00": W[1].long(), "ghost": W + 1}, tmp_path / "other.pt")
    tied = torch.ones(8)
    torch.save({"b": tied, "l00": tied}, tmp_path / "tied.pt")
    (tmp_path / "names.txt").write_text("emb\nhead\nturned\n")
    (tmp_path / "plain.txt").write_text("emb\n" + "".join(f"l{k:02}\n" for k in range(12)) + "b\n")
    (tmp_path / "lacking.txt").write_text("".join(f"x{k:02}\n" for k in range(10)))
    return tmp_path


def lines(ran: Ran) -> list[list[str]]:
    return [line.split("  ") for line in ran.out.splitlines()]


def variants(folder: Path, *against: str, code: int = 0, flags: tuple[str, ...] = ()) -> Ran:
    ran = quick("variants", "m.safetensors", *(f"--against={one}" for one in against), *flags, cwd=folder)
    assert ran.code == code and not ran.err, ran
    return ran


def test_variants_that_load(folder: Path) -> None:
    """A row each, in the order that was asked; the aliases; and how to go on."""
    assert lines(variants(folder, "plain.txt", "names.txt")) == [
        ["variant", "plain.txt", "loads", "14 names"],
        ["variant", "names.txt", "loads through aliases", "3 names · 2 through aliases · leaves 13 unused"],
        ["alias", "names.txt", "head: the bytes of emb"],
        ["alias", "names.txt", "turned: the transpose of emb"],
        *([["unused", "names.txt", name] for name in ["b", *(f"l{k:02}" for k in range(7))]]),
        ["unused", "names.txt", "and 5 more"],
        ["load it", "paramtool.torch.load_model(model, 'm.safetensors', strict=False)"],
        ["next", "paramtool export m.safetensors --names names.txt",
         "for programs without paramtool"],
    ]  # fmt: skip


def test_variants_that_cannot(folder: Path) -> None:
    """Every reason, by name, with both sides; exit 1 although another variant loads."""
    ran = variants(folder, "plain.txt", "other.pt", "tied.pt", code=1)
    assert ["variant", "other.pt", "cannot load",
            "4 names · lacks 1 · 1 of another shape · 1 of another type · leaves 11 unused"] in lines(ran)  # fmt: skip
    assert ["lacks", "other.pt", "ghost"] in lines(ran)
    assert ["shape", "other.pt", "b: [8] in the file, [3] wanted"] in lines(ran)
    assert ["type", "other.pt", "l00: float32 in the file, int64 wanted"] in lines(ran)
    assert ["apart", "tied.pt", "b and l00: tied in the variant, largest difference 22"] in lines(ran)
    assert not any(line[0] in ("next", "load it") for line in lines(ran))


def test_at_most_eight_names(folder: Path) -> None:
    ran = variants(folder, "lacking.txt", code=1)
    assert [line[2] for line in lines(ran) if line[0] == "lacks"] == [*(f"x{k:02}" for k in range(8)), "and 2 more"]


def test_what_is_suggested_works(folder: Path) -> None:
    """The line of `next` can be typed, for a list, a checkpoint and a config."""
    torch.save({"head": W, "emb": W}, folder / "like it.pt")
    tied = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=8, n_layer=1, n_head=2, vocab_size=6, bos_token_id=0, eos_token_id=0,
        architectures=["GPT2LMHeadModel"],
    ))  # fmt: skip
    torch.save({**torch.load(folder / "m.pt"), **tied.state_dict()}, folder / "both.pt")
    tied.config.save_pretrained(folder / "model")
    assert quick("dedup", "both.pt", "-o", "m.safetensors", "--force", cwd=folder).code == 0
    for against in ("names.txt", "like it.pt", "model"):
        (line,) = [line for line in lines(variants(folder, against)) if line[0] == "next"]
        ran = quick(*shlex.split(line[1])[1:], "--force", cwd=folder)
        assert ran.code == 0, ran
        written = ran.out.split(" -> ")[1].split("  ")[0]
        ran = quick("variants", written, "--against", against, cwd=folder)
        assert "  loads  " in ran.out, ran


def test_documents(folder: Path) -> None:
    """Each kind and each finding against the schema; everything is listed, however long."""
    args: Any = [part for one in ("plain.txt", "names.txt", "other.pt", "tied.pt") for part in ("--against", one)]
    found = run("variants", "m.safetensors", *args, cwd=folder, code=1)
    assert [one["verdict"] for one in found["variants"]] == [
        "loads", "loads through aliases", "cannot load", "cannot load",
    ]  # fmt: skip
    assert found["variants"][1]["through"][1] == {"name": "turned", "owner": "emb", "relation": "transpose"}
    assert len(found["variants"][1]["unused"]) == 13
    assert found["variants"][2]["shapes"] == [{"name": "b", "found": [8], "wanted": [3]}]
    assert found["variants"][2]["types"] == [{"name": "l00", "found": "float32", "wanted": "int64"}]
    assert found["variants"][3]["apart"] == [{"name": "b", "other": "l00", "difference": 22.0}]
    torch.save({"a": torch.tensor([1.0]), "b": torch.tensor([float("inf")])}, folder / "inf.pt")
    one = torch.ones(1)
    torch.save({"a": one, "b": one, "c": one}, folder / "one.pt")
    found = run("variants", "inf.pt", "--against", "one.pt", cwd=folder, code=1)
    assert found["variants"][0]["apart"] == [{"name": "a", "other": "b", "difference": "infinity"}]
    assert found["variants"][0]["filled"] == [{"name": "c", "by": "a"}]


def test_sections(tmp_path: Path) -> None:
    """`--only` names the one to load."""
    torch.save({"model": {"w": W}, "ema": {"w": W + 1, "v": W}}, tmp_path / "t.pt")
    (tmp_path / "names.txt").write_text("w\n")
    args = ("variants", "t.pt", "--against", "names.txt")
    refused(quick, *args, cwd=tmp_path, code=2, says=("t.pt", "'model', 'ema'"))
    ran = quick(*args, "--only", "ema", cwd=tmp_path)
    assert ran.code == 0 and "1 name · section ema · leaves 1 unused" in ran.out, ran
    refused(quick, *args, "--only", "nets", cwd=tmp_path, code=2, says=("'nets'",))


def test_names_on_standard_input(folder: Path) -> None:
    ran = command("variants", "m.safetensors", "--against", "-", cwd=folder, stdin="emb\nghost\n")
    assert ran.code == 1 and ["lacks", "-", "ghost"] in lines(ran), ran


def test_wrong_ways_to_ask(folder: Path) -> None:
    """Nothing asked, an empty list, a file that is not there, one that is damaged: one line and the right code."""
    refused(quick, "variants", "m.safetensors", cwd=folder, code=2, says=("--against",))
    (folder / "empty.txt").write_text("\n\n")
    (folder / "bad.safetensors").write_bytes((folder / "m.safetensors").read_bytes()[:50])
    for against, code, says in (
        ("empty.txt", 2, "holds no name"), ("ghost.txt", 3, "ghost.txt"), ("bad.safetensors", 3, "bad.safetensors"),
    ):  # fmt: skip
        refused(quick, "variants", "m.safetensors", "--against", against, cwd=folder, code=code, says=(says,))
    refused(quick, "variants", "ghost.pt", "--against", "names.txt", cwd=folder, code=3, says=("ghost.pt",))


def test_an_empty_checkpoint_is_no_variant(tmp_path: Path) -> None:
    """Nothing is wanted, so that anything would do; export takes no names from it, and names that file."""
    torch.save({}, tmp_path / "empty.pt")
    torch.save({"a": torch.ones(3)}, tmp_path / "one.pt")
    ran = quick("variants", "one.pt", "--against", "empty.pt", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, "") and "empty.pt: lists no tensor names" in ran.err
    ran = quick("export", "one.pt", "--like", "empty.pt", "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 2 and "empty.pt: holds no tensor" in ran.err
    ran = quick("dedup", "one.pt", "--memory", "0", "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 2 and "expected 1 or more" in ran.err and not (tmp_path / "out.safetensors").exists()


def test_a_terminal_cannot_be_tricked(tmp_path: Path) -> None:
    """Escapes in names are shown."""
    torch.save({"w": W}, tmp_path / "m.pt")
    (tmp_path / "names.txt").write_bytes("w\u009b31m\n".encode())
    ran = quick("variants", "m.pt", "--against", "names.txt", cwd=tmp_path)
    assert ran.code == 1 and "w\\x9b31m" in ran.out and "\x9b" not in ran.out, ran


def test_one_bad_file_hides_no_other(folder: Path) -> None:
    """Each that can be read has its verdict, each other its error, and the exit code is the one that counts."""
    (folder / "bad.pt").write_bytes(b"PK\3\4" + bytes(99))
    (folder / "evil.pt").write_bytes(b"\x80\x02cos\nsystem\nU\x01x\x85R.")
    words = [
        "variants",
        "m.safetensors",
        *(f"--against={one}" for one in ("bad.pt", "names.txt", "evil.pt", "gone.pt")),
    ]
    ran = quick(*words, cwd=folder)
    assert ran.code == 4 and ran.err.count("error: ") == 3, ran
    assert all(f"error: {name}: " in ran.err for name in ("bad.pt", "evil.pt", "gone.pt")), ran
    verdicts = [line.split("  ")[1:3] for line in ran.out.splitlines() if line.startswith("variant")]
    assert verdicts == [["bad.pt", "not judged"], ["names.txt", "loads through aliases"],
                        ["evil.pt", "not judged"], ["gone.pt", "not judged"]]  # fmt: skip
    found = json.loads(quick(*words, "--json", cwd=folder).out)
    assert [one.get("error", {}).get("exit_code") for one in found["variants"]] == [3, None, 4, 3]
    assert [
        one.loads for one in paramtool.variants(folder / "m.safetensors", [folder / "bad.pt", folder / "names.txt"])
    ] == [False, True]
