"""Ties that files declare: DeepSpeed's `shared_params`, MXNet's texts, flat pairs in safetensors and in indexes."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model

import paramtool
import paramtool.torch
from paramtool.model.checkpoint import Compound
from tests.hostile.command import quick
from tests.laws.sharing import partition, same_values

ROOT = Path(__file__).parents[2] / "fixtures"


def weight(seed: int = 0) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))


def declared(path: Path) -> list[str]:
    """Names that are where they are by declaration."""
    return [m.name for m in paramtool.inspect(path).graph.names.values() if m.set_evidence == "declared"]


@pytest.mark.parametrize("case", ["torch/deepspeed_shared", "npz/shared_names"])
def test_the_evidence_is_the_declaration(case: str, tmp_path: Path) -> None:
    """Only the names that are not stored; and so it is recorded in the deduplicated file."""
    folder = ROOT / case
    (path,) = (p for p in folder.iterdir() if p.stem == folder.name)
    expected = json.loads((folder / "expected.json").read_text())["declared"]
    assert declared(path) == expected
    paramtool.dedup(path, tmp_path / "out.safetensors")
    assert declared(tmp_path / "out.safetensors") == expected


# --- DeepSpeed -------------------------------------------------------------------------------------------------------


def test_what_the_engine_saves() -> None:
    """Model states that DeepSpeed itself wrote: `shared_params` agrees with the storages, nothing is to be said."""
    path = ROOT / "deepspeed/zero1/zero1.pt"
    state = torch.load(path, weights_only=True)
    assert state["shared_params"] == {"head.weight": "emb.weight"}
    found = paramtool.read(path)
    assert found.notes == () and declared(path) == []
    assert paramtool.alias_graph(found).names["module.head.weight"].alias_set == "module.emb.weight"


def test_parts_that_stand_elsewhere_are_told(tmp_path: Path) -> None:
    """Of ZeRO stage 3 the engine writes empty tensors: a person has to know where the values are."""
    path = ROOT / "deepspeed/zero1/zero3.pt"
    state = torch.load(path, weights_only=True)
    assert {tuple(tensor.shape) for tensor in state["module"].values()} == {(0,)}
    (note,) = paramtool.read(path).notes
    assert "3 of its tensors are empty" in note and "name the folder to read them joined" in note
    assert f"warning: {note}" in quick("dedup", path, "-o", "out.safetensors", cwd=tmp_path).err


def states(path: Path, module: Any, shared: Any, **save: Any) -> Path:
    """A file as the engine writes it."""
    torch.save({"module": module, "optimizer": None, "shared_params": shared, "global_steps": 3}, path, **save)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_it_loads_as_zero_to_fp32_puts_it_together(zipped: bool, tmp_path: Path) -> None:
    """`state_dict[unstored] = state_dict[stored]`, as DeepSpeed's own script does: one tensor under two names."""
    module = OrderedDict({"emb.weight": weight(), "norm.weight": weight(1)})
    shared = {"head.weight": "emb.weight"}
    path = states(tmp_path / "mp_rank_00_model_states.pt", module, shared, _use_new_zipfile_serialization=zipped)
    expected = torch.load(path, weights_only=True)["module"]
    expected |= {name: expected[stored] for name, stored in shared.items()}
    loaded = paramtool.torch.load_file(path, only="module")
    assert same_values(loaded, expected)
    assert partition(loaded) == partition(expected)
    assert list(loaded) == list(expected)


def test_the_section_alone_and_the_model(tmp_path: Path) -> None:
    """`--only module` keeps the tie, and a model that has it loads strictly."""
    path = states(tmp_path / "states.pt", {"0.weight": weight()}, {"1.weight": "0.weight"})
    paramtool.dedup(path, tmp_path / "out.safetensors", only="module")
    model = torch.nn.Sequential(torch.nn.Linear(4, 6, bias=False), torch.nn.Linear(4, 6, bias=False))
    model[1].weight = model[0].weight
    for one in (path, tmp_path / "out.safetensors"):
        with torch.no_grad():
            model[0].weight.zero_()
        assert paramtool.torch.load_model(model, one).missing == ()
        assert torch.equal(model[1].weight, weight())
        assert model[1].weight is model[0].weight


def test_other_names_of_the_memory_stay_in_it(tmp_path: Path) -> None:
    """The owner shares a storage with a third name, and with a view: all are one memory, two by storage."""
    one = weight()
    module = {"a": one, "b": one, "row": one[2], "alone": weight(1)}
    members = paramtool.inspect(states(tmp_path / "s.pt", module, {"c": "b"})).graph.names
    assert {n: (m.alias_set, m.set_evidence) for n, m in members.items()} == {
        "module.a": ("module.a", "storage"), "module.b": ("module.a", "storage"), "module.row": ("module.a", "storage"),
        "module.alone": ("module.alone", "storage"), "module.c": ("module.a", "declared"),
    }  # fmt: skip


@pytest.mark.parametrize("shared", [None, {}, {"b": "a"}, "text", [["c", "a"]]])
def test_nothing_to_add_is_no_note(shared: Any, tmp_path: Path) -> None:
    """Absent, empty, of names that are stored and tied already, or something else altogether."""
    one = weight()
    found = paramtool.read(states(tmp_path / "s.pt", {"a": one, "b": one}, shared))
    assert list(found.entries) == ["module.a", "module.b"]
    assert not found.notes
    assert not any(entry.link for entry in found.entries.values())


@pytest.mark.parametrize(
    ("shared", "names", "says"),
    [
        ({"c": "ghost"}, [], ("'c'", "'ghost'", "not stored")),
        ({"c": "c"}, [], ("'c'", "cycle")),
        ({"c": "d", "d": "c"}, [], ("'c'", "'d'", "cycle")),
        ({"c": "d", "d": "a"}, ["c", "d"], ()),
        ({"b": "a"}, [], ("'b'", "'a'", "they are not tied")),
        ({"c": 5, "d": "a"}, ["d"], ("not made of names",)),
        ({5: "a", "d": "a"}, ["d"], ("not made of names",)),
        ({f"n{k}": "ghost" for k in range(9)}, [], ("6 more",)),
    ],
)
def test_a_damaged_map_is_noted_and_loses_nothing(shared: Any, names: list[str], says: tuple[str, ...], tmp_path: Path) -> None:  # fmt: skip  # noqa: E501
    """The tensors that are stored are all there; names that lead somewhere are added, the others told of."""
    path = states(tmp_path / "s.pt", {"a": weight(), "b": weight(1)}, shared)
    found = paramtool.read(path)
    assert list(found.entries) == ["module.a", "module.b", *(f"module.{name}" for name in names)]
    note = " ".join(found.notes)
    assert all(word in note for word in says), note
    assert bool(note) is bool(says)
    ran = quick("dedup", path.name, "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    assert same_values(paramtool.load_file(path), paramtool.load_file(tmp_path / "out.safetensors"))


def test_the_tree_survives(tmp_path: Path) -> None:
    """Everything else in the file is in the record of the output, `shared_params` itself too."""
    path = states(tmp_path / "s.pt", OrderedDict({"a": weight()}), {"b": "a"})
    paramtool.dedup(path, tmp_path / "out.safetensors")
    assert paramtool.read(tmp_path / "out.safetensors").objects == paramtool.read(path).objects
    assert paramtool.read(tmp_path / "out.safetensors").sections == paramtool.read(path).sections


# --- MXNet's texts in npz --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("text", ["<U6", ">U6", "|S6"])
def test_a_text_that_is_the_name_of_an_array(save: Any, text: str, tmp_path: Path) -> None:
    """Stored or deflated, whichever way the text is written."""
    save(tmp_path / "p.npz", weight=np.arange(3.0), other=np.array("weight", text))
    loaded = paramtool.load_file(tmp_path / "p.npz")
    assert loaded["other"].tolist() == [0, 1, 2]
    assert np.shares_memory(loaded["weight"], loaded["other"])
    assert any("by declaration: 1 array" in note for note in paramtool.read(tmp_path / "p.npz").notes)


@pytest.mark.parametrize(
    "texts",
    [
        {"t": "hello"}, {"t": "w", "u": "hello"}, {"t": "u", "u": "w"}, {"t": "t"}, {"t": ""}, {"t": "w" * 5000},
    ],
)  # fmt: skip
def test_other_texts_stay_texts(texts: dict[str, str], tmp_path: Path) -> None:
    """One text that is no array's name makes all of them somebody's texts; so do chains and a name of its own."""
    np.savez(tmp_path / "p.npz", w=np.arange(3.0), **{k: np.array(v) for k, v in texts.items()})
    found = paramtool.read(tmp_path / "p.npz")
    assert all(isinstance(found.entries[name].value, Compound) for name in texts)
    assert not any("declaration" in note for note in found.notes)


def test_texts_with_axes_and_the_words_of_sparse_arrays_are_no_names(tmp_path: Path) -> None:
    """A list of names is data, and `name/format` says how an array of MXNet is stored."""
    np.savez(tmp_path / "p.npz", **{"w": np.arange(3.0), "names": np.array(["w"]), "s/format": np.array("w")})
    found = paramtool.read(tmp_path / "p.npz")
    assert isinstance(found.entries["names"].value, Compound)
    assert isinstance(found.entries["s/format"].value, Compound)


# --- flat pairs ------------------------------------------------------------------------------------------------------


def paired(path: Path, metadata: dict[str, str]) -> Path:
    save_file({"w": weight(), "v": weight(1)}, path, metadata={"format": "pt", **metadata})
    return path


def test_what_save_model_leaves_out_is_declared(tmp_path: Path) -> None:
    """safetensors' own writer, and the names that it keeps in the metadata."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    save_model(model, str(tmp_path / "m.safetensors"))
    assert declared(tmp_path / "m.safetensors") == ["1.weight"]
    assert paramtool.read(tmp_path / "m.safetensors").metadata == {}


@pytest.mark.parametrize(
    ("metadata", "aliases", "left"),
    [
        ({"a": "w"}, ["a"], {}),
        ({"a": "w", "b": "w"}, ["a", "b"], {}),
        ({"a": "b", "b": "a"}, [], {"a": "b", "b": "a"}),
        ({"a": "b", "b": "w"}, ["b"], {"a": "b"}),
        ({"a": "a"}, [], {"a": "a"}),
        ({"a": "ghost"}, [], {"a": "ghost"}),
        ({"v": "w"}, [], {"v": "w"}),
        ({"best": "w"}, ["best"], {}),
    ],
    ids=["pair", "two", "round", "chain", "itself", "ghost", "stored", "user"],
)
def test_which_pairs_are_ties(metadata: dict[str, str], aliases: list[str], left: dict[str, str], tmp_path: Path) -> None:  # fmt: skip  # noqa: E501
    """One step from a name that is not stored to one that is; all else is the user's own text, and is kept as such."""
    path = paired(tmp_path / "m.safetensors", metadata)
    found = paramtool.read(path)
    added = [name for name in found.entries if name not in ("w", "v")]
    assert sorted(added) == sorted(declared(path)) == aliases, "safetensors writes metadata in no order"
    assert {k: v for k, v in found.metadata.items() if k != "format"} == left
    assert quick("dedup", path.name, "-o", "out.safetensors", cwd=tmp_path).code == 0
    assert same_values(paramtool.load_file(path), paramtool.load_file(tmp_path / "out.safetensors"))


@pytest.mark.parametrize(
    ("pairs", "aliases"),
    [
        ({"a": "w"}, ["a"]), ({"a": "b", "b": "a"}, []), ({"a": "b", "b": "w"}, ["b"]), ({"v": "w"}, []),
        ({"a": 5}, []), ({"a": ["w"]}, []), ({"a": None}, []),
    ],
)  # fmt: skip
def test_the_same_pairs_in_an_index(pairs: dict[str, Any], aliases: list[str], tmp_path: Path) -> None:
    """As huggingface_hub writes them beside the total size."""
    for name in ("w", "v"):
        save_file({name: weight()}, tmp_path / f"{name}.safetensors", metadata={"format": "pt"})
    index = {"metadata": {"total_size": 192, **pairs}, "weight_map": {n: f"{n}.safetensors" for n in ("w", "v")}}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    found = paramtool.read(path)
    assert [name for name in found.entries if name not in ("w", "v")] == aliases == declared(path)
    assert quick("dedup", path.name, "-o", "out", cwd=tmp_path).code == 0
    assert same_values(paramtool.load_file(path), paramtool.load_file(tmp_path / "out"))
