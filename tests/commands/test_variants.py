"""paramtool.variants: each verdict, from lists of names, checkpoints and models, and every way to ask wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

import paramtool
import paramtool.torch
from paramtool.commands.variants import Variant
from paramtool.errors import FormatError, UsageError
from paramtool.model.dtype import DTYPES, can_hold
from paramtool.passes.compat.check import Apart, Filled, ShapeClash, Through, TypeClash

W = torch.arange(48, dtype=torch.float32).view(6, 8)


def saved(state: Any, folder: Path, name: str = "m.pt") -> Path:
    torch.save(state, folder / name)
    return folder / name


def names(folder: Path, *lines: str) -> Path:
    (folder / "names.txt").write_text("\n".join(lines) + "\n")
    return folder / "names.txt"


def deduped(state: Any, folder: Path) -> Path:
    output = folder / "m.dedup.safetensors"
    paramtool.dedup(saved(state, folder), output, min_equal_bytes=1)
    return output


def one(path: Path, against: Path | nn.Module, **more: Any) -> Variant:
    (found,) = paramtool.torch.variants([against], path, **more)
    return found


def test_a_list_of_names(tmp_path: Path) -> None:
    """All there; some through the record; one lacking; the rest left unused, but for what shares memory."""
    path = deduped({"emb": W, "head": W, "turned": W.t(), "rows": W[1:3], "twin": W.clone(), "b": W[0] + 9}, tmp_path)
    found = one(path, names(tmp_path, "emb"))
    assert (found.verdict, found.names, found.unused) == ("loads", 1, ("twin", "b"))
    found = one(path, names(tmp_path, "head", "turned", "rows", "twin"))
    assert found.verdict == "loads through aliases"
    assert found.through == (
        Through("head", "emb", "same"), Through("turned", "emb", "transpose"), Through("rows", "emb", "slice"),
        Through("twin", "emb", "same"),
    )  # fmt: skip
    found = one(path, names(tmp_path, "emb", "ghost", "b", "twin"))
    assert (found.verdict, found.lacks, found.loads) == ("cannot load", ("ghost",), False)
    plain = saved({"emb": W, "head": W}, tmp_path, "plain.pt")
    assert one(plain, names(tmp_path, "emb", "head")).through == ()  # both stand in the file itself


def test_the_owner_is_the_stored_name_even_where_it_comes_later(tmp_path: Path) -> None:
    """A slice that comes first is the alias; windows on spans say so."""
    path = deduped({"rows": W[1:3], "w": W}, tmp_path)
    assert one(path, names(tmp_path, "w", "rows")).through == (Through("rows", "w", "slice"),)
    base = torch.arange(20.0)
    path = tmp_path / "span.safetensors"
    paramtool.dedup(saved({"a": base[:10], "b": base[5:15]}, tmp_path), path)
    found = one(path, names(tmp_path, "a", "b"))
    assert found.through == (Through("a", "paramtool.span/0", "overlap"), Through("b", "paramtool.span/0", "overlap"))


def test_what_is_calculated_comes_through_the_record(tmp_path: Path) -> None:
    """A cast names the tensor that it is made from; a constant has none."""
    fine = W / 3
    state = {"w": fine, "half": fine.bfloat16(), "zeros": torch.zeros(300)}
    path = tmp_path / "m.safetensors"
    paramtool.dedup(saved(state, tmp_path), path, min_equal_bytes=1, derive_casts=True, fold_constants=True)
    found = one(path, names(tmp_path, "w", "half", "zeros"))
    assert found.through == (Through("half", "w", "cast"), Through("zeros", "", "constant"))
    assert one(path, saved(state, tmp_path)).verdict == "loads through aliases"
    found = one(path, saved({"half": W, "w": W}, tmp_path, "tied.pt"))  # of one type, which half's values are not
    expected = (fine - fine.bfloat16().float()).abs().max().item()
    (apart,) = found.apart
    assert ({apart.name, apart.other}, apart.difference) == ({"half", "w"}, expected)
    half = W.bfloat16()
    assert one(path, saved({"half": half, "w": half}, tmp_path, "tied.pt")).loads  # in bfloat16 they are equal


def test_flat_pairs_of_other_tools_are_a_record(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    save_model(model, str(tmp_path / "m.safetensors"))
    found = one(tmp_path / "m.safetensors", names(tmp_path, *model.state_dict()))
    assert found.through == (Through("b.weight", "a.weight", "same"),)


def test_another_checkpoint(tmp_path: Path) -> None:
    """Shapes and kinds of numbers are compared; a cast that keeps the kind is fine."""
    path = saved({"a": W, "b": W, "c": W.long(), "d": W, "e": W}, tmp_path)
    like = saved({"a": W.bfloat16(), "b": W.view(8, 6), "c": W, "d": W.long(), "e": W.to_sparse()}, tmp_path, "like.pt")
    found = one(path, like)
    assert (found.kind, found.verdict) == ("checkpoint", "cannot load")
    assert found.shapes == (ShapeClash("b", (6, 8), (8, 6)),)
    assert found.types == (TypeClash("d", "float32", "int64"), TypeClash("e", "float32", "sparse_coo"))
    found = one(like, path)
    assert TypeClash("e", "sparse_coo", "float32") in found.types


def test_a_tie_that_fills(tmp_path: Path) -> None:
    """A lacking name is filled by one that the variant ties it to and that covers it; not the other way round."""
    tied = saved({"w": W, "head": W, "turned": W.t(), "rows": W[2:4]}, tmp_path, "tied.pt")
    found = one(saved({"w": W}, tmp_path), tied)
    assert found.filled == (Filled("head", "w"), Filled("turned", "w"), Filled("rows", "w"))
    assert found.verdict == "loads"
    found = one(saved({"rows": W[2:4].clone()}, tmp_path), tied)
    assert (found.filled, found.lacks) == ((), ("w", "head", "turned"))


def test_a_tie_that_the_file_holds_apart(tmp_path: Path) -> None:
    """Both names there with other bytes: both are named, with the largest difference; equal bytes load."""
    tied = saved({"w": W, "head": W, "turned": W.t(), "rows": W[2:4]}, tmp_path, "tied.pt")
    equal = {"w": W.clone(), "head": W.clone(), "turned": W.t().clone(), "rows": W[2:4].clone()}
    assert one(saved(equal, tmp_path), tied).verdict == "loads"
    apart = {**equal, "head": W + 0.25, "turned": W.t() * 2, "rows": W[2:4] - 3}
    found = one(saved(apart, tmp_path), tied)
    assert found.apart == (Apart("w", "head", 0.25), Apart("w", "turned", 47.0), Apart("w", "rows", 3.0))
    assert found.verdict == "cannot load" and found.lacks == ()
    zero = {**equal, "head": W.clone()}
    zero["head"][0, 0] = -0.0
    assert one(saved(zero, tmp_path), tied).apart == (Apart("w", "head", 0.0),)


def test_ties_of_windows_that_repeat_themselves(tmp_path: Path) -> None:
    """Ten million million elements of one value, in two types: compared as the few that they are."""
    big = torch.ones(1, 1).expand(10**6, 10**7)
    tied = saved({"a": big, "b": big}, tmp_path, "tied.pt")
    path = saved({"a": big, "b": torch.ones(1, 1).double().expand(10**6, 10**7)}, tmp_path)
    assert one(path, tied).loads
    path = saved({"a": big, "b": torch.zeros(1, 1).double().expand(10**6, 10**7)}, tmp_path)
    assert one(path, tied).apart == (Apart("a", "b", 1.0),)


def test_windows_that_only_overlap(tmp_path: Path) -> None:
    """Ties of any geometry: a row in common, and no difference is measured."""
    tied = saved({"top": W[:4], "bottom": W[3:]}, tmp_path, "tied.pt")
    assert one(saved({"top": W[:4].clone(), "bottom": W[3:].clone()}, tmp_path), tied).loads
    found = one(saved({"top": W[:4].clone(), "bottom": W[3:] + 1}, tmp_path), tied)
    assert found.apart == (Apart("top", "bottom", None),)


def test_equal_names_of_a_record_are_not_tied(tmp_path: Path) -> None:
    """Content decides where bytes stand and not what is one memory: an untied file may follow."""
    like = deduped({"a": W, "b": W.clone()}, tmp_path)
    assert one(saved({"a": W, "b": W + 1}, tmp_path), like).verdict == "loads"


def test_a_pending_sign_is_not_compared_as_bytes(tmp_path: Path) -> None:
    """A conjugate that the variant ties to the tensor itself has the same bytes and other values."""
    z = torch.complex(W, W)
    tied = saved({"z": z, "c": z}, tmp_path, "tied.pt")
    found = one(saved({"z": z, "c": z.conj()}, tmp_path), tied)
    assert found.types == (TypeClash("c", "conj", "the same as 'z', to which it is tied"),)
    assert one(saved({"z": z.conj(), "c": z.conj()}, tmp_path), tied).loads


def test_tensors_without_data(tmp_path: Path) -> None:
    """A name that the file has no bytes for is no name that loads."""
    path = saved({"w": torch.empty(3, device="meta")}, tmp_path)
    assert one(path, names(tmp_path, "w")).types == (TypeClash("w", "without data (meta)", "a plain tensor"),)
    assert one(saved({"w": W[0, :3]}, tmp_path, "n.pt"), path).loads


def test_sections(tmp_path: Path) -> None:
    """Each variant takes the section that has its names; `only` says which; a training checkpoint means its model."""
    state = {"model": {"w": W, "b": W}, "ema": {"w": W, "x": W + 1}, "optimizer": {"state": {0: {"m": W}}}}
    path = saved(state, tmp_path)
    assert one(path, names(tmp_path, "w", "b")).section == "model"
    assert one(path, names(tmp_path, "w", "x")).section == "ema"
    assert one(path, names(tmp_path, "model.w", "optimizer.state.0.m")).section is None
    assert one(path, names(tmp_path, "w"), only="ema").unused == ("x",)
    with pytest.raises(UsageError, match="'model', 'ema'"):
        one(path, names(tmp_path, "w"))
    del state["ema"]
    found = one(saved({"w": W}, tmp_path, "plain.pt"), saved(state, tmp_path))
    assert (found.names, found.filled, found.lacks) == (2, (Filled("b", "w"),), ())


def test_a_prefix_is_advice(tmp_path: Path) -> None:
    """A headless variant of a whole model, and a whole variant of a headless file."""
    state = {"emb.weight": W, "norm.weight": W[0]}
    longer = {f"model.{name}": tensor for name, tensor in state.items()} | {"head.weight": W + 1}
    path, whole = saved(state, tmp_path), saved(longer, tmp_path, "whole.pt")
    assert "load_model(..., prefix='model.')" in one(whole, path).advice
    assert "'model.' only in the model" in one(path, whole).advice
    assert one(path, path).advice == ""


def test_models(tmp_path: Path) -> None:
    """Live ones and ones on the meta device; nothing in them changes."""
    model = nn.Linear(8, 6)
    path = saved({"weight": W, "bias": W[:, 0]}, tmp_path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.device("meta"):
        empty = nn.Linear(8, 6)
    for target in (model, empty):
        found = one(path, target)
        assert (found.against, found.kind, found.verdict) == ("Linear", "model", "loads")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert len(paramtool.torch.variants([model, names(tmp_path, "weight")], path)) == 2
    assert len(paramtool.torch.variants(model, path)) == 1
    lazy = nn.LazyLinear(6)
    assert one(path, lazy).loads and nn.parameter.is_lazy(lazy.weight)


def test_folders_and_plain_files(tmp_path: Path) -> None:
    """A sharded folder on either side; a plain file of somebody else."""
    state = {f"w{k}": torch.randn(100) for k in range(9)}
    folder = paramtool.dedup(saved(state, tmp_path), tmp_path / "shards", max_shard_size=1000).output
    save_file(state, tmp_path / "plain.safetensors")
    for path, against in ((folder, "plain.safetensors"), ("plain.safetensors", "shards")):
        (found,) = paramtool.variants(tmp_path / path, [tmp_path / against])
        assert (found.kind, found.verdict, found.names) == ("checkpoint", "loads", 9)


def test_the_public_function_takes_lists(tmp_path: Path) -> None:
    """Without torch in the way: the same answers, one for each, in order."""
    path = saved({"w": W}, tmp_path)
    found = paramtool.variants(path, [names(tmp_path, "w"), path])
    assert [variant.kind for variant in found] == ["names", "checkpoint"]
    with pytest.raises(UsageError, match="against"):
        paramtool.variants(path, [])


@pytest.mark.parametrize("text", ["", "\n", " \n\r\n"])
def test_an_empty_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "names.txt").write_text(text)
    with pytest.raises(UsageError, match=r"names\.txt: holds no name"):
        paramtool.variants(saved({"w": W}, tmp_path), [tmp_path / "names.txt"])


def test_a_name_twice_counts_once(tmp_path: Path) -> None:
    assert one(saved({"w": W}, tmp_path), names(tmp_path, "w", "w", "", "w")).names == 1


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"caf\xe9\n", UsageError, "not UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\n", FormatError, "git-LFS"),
        (b"<!DOCTYPE html><p>", FormatError, "HTML"),
        (b"\x00\x01\x02", FormatError, "not in a format"),
        (b'{"weight_map": 3}', FormatError, "against"),
    ],
)
def test_what_is_neither(tmp_path: Path, data: bytes, error: type[Exception], says: str) -> None:
    """Text is a list of names unless it is known to be something else."""
    (tmp_path / "against").write_bytes(data)
    with pytest.raises(error, match=says):
        paramtool.variants(saved({"w": W}, tmp_path), [tmp_path / "against"])


def test_what_is_not_there(tmp_path: Path) -> None:
    path = saved({"w": W}, tmp_path)
    (tmp_path / "empty").mkdir()
    for against in ("ghost", "empty"):
        with pytest.raises(FormatError, match=against):
            paramtool.variants(path, [tmp_path / against])


def test_kinds_of_numbers_are_those_of_torch() -> None:
    """can_hold agrees with torch.can_cast, but for integers that would lose their highest bits."""
    known = [name for name in DTYPES if hasattr(torch, name) and not name.startswith(("q", "bits"))]
    plain = [name for name in known if not (name.startswith(("int", "uint")) and int(name.lstrip("uint")) < 8)]
    for wanted in plain:
        for found in plain:
            source, target = getattr(torch, found), getattr(torch, wanted)
            integers = {source, target}.isdisjoint({torch.bool}) and not (source.is_complex or target.is_complex)
            integers = integers and not (source.is_floating_point or target.is_floating_point)
            expected = torch.can_cast(source, target) and not (integers and source.itemsize > target.itemsize)
            assert can_hold(DTYPES[wanted], DTYPES[found]) == expected, (found, wanted)


def test_packed_weights_beside_their_scales_are_no_weights(tmp_path: Path) -> None:
    """int8 numbers would be copied into a float weight as they are: a clash, where scales show what they mean."""
    packed = {"lin.weight": torch.ones(4, 4, dtype=torch.int8), "lin.weight_scale": torch.full((4,), 0.1)}
    path = saved(packed, tmp_path, "packed.pt")
    found = one(path, saved({"lin.weight": torch.ones(4, 4)}, tmp_path, "plain.pt"))
    assert not found.loads and found.types[0].found == "int8, quantised, with scales beside it"
    assert one(path, saved(packed, tmp_path, "same.pt")).loads
    del packed["lin.weight_scale"]
    assert one(saved(packed, tmp_path, "bare.pt"), tmp_path / "plain.pt").loads
    wide = {"ids": torch.tensor([1, 70_000])}
    narrow = saved({"ids": torch.tensor([1, 2], dtype=torch.int8)}, tmp_path, "narrow.pt")
    assert one(saved(wide, tmp_path, "wide.pt"), narrow).types[0].name == "ids"
