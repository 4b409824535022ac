"""Files of the field that `load_model` said to have loaded, and had not, or refused: each as torch loads it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.nn.utils import parametrizations

import paramtool
import paramtool.torch
from paramtool.errors import ModelError, PlanError, TieError
from tests.laws import protocols

FIELD = Path(__file__).parents[2].parent / "shared/findings/field"


def found(name: str) -> Path:
    if not (path := FIELD / name).exists():
        pytest.skip(f"no ../shared/findings/field/{name}")
    return path


class Copies(nn.Module):
    """A state dict of copies, as many trainers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))
        self.register_state_dict_post_hook(Copies.copies)

    @staticmethod
    def copies(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        state.update({name: one.detach().clone() for name, one in state.items()})


@pytest.mark.parametrize("options", [{}, {"assign": True}, {"strict": False}, {"assign": True, "dtype": torch.float64}])
def test_a_state_dict_of_copies(options: dict[str, Any]) -> None:
    path = found("load-hooks/cw.pt")
    paramtool.torch.load_model(model := Copies(), path, **options)
    assert model.w.tolist() == [1, 1, 1] and model.w.dtype == options.get("dtype", torch.float32)


@pytest.mark.filterwarnings("ignore")
def test_weights_of_torchtune() -> None:
    """NF4 weights in the model, bfloat16 in the file."""
    path = found("load-hooks/tune.pt")
    model = nn.Module()
    model.w, model.lora = protocols.torchtune().base, nn.Linear(4, 4)
    paramtool.torch.load_model(model, path)
    saved = torch.load(path)["w"].to(torch.float32)
    assert (model.w.to(torch.float32) - saved).abs().max() < 0.1  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["wn", "bn"])
def test_names_of_older_versions(kind: str, tmp_path: Path) -> None:
    """`variants` with the model says that it loads; with a list of names, that modules may take more."""
    path = found(f"load-protocol/{kind}_old.pt")
    state = torch.load(path)
    names = found(f"load-protocol/{kind}_names.txt")
    (by_names,) = paramtool.variants(path, [names])
    assert not by_names.loads and "modules may take more" in by_names.advice
    theirs, mine = _fit(kind, state), _fit(kind, state)
    theirs.load_state_dict(state)
    (variant,) = paramtool.torch.variants([mine], path)
    assert variant.loads
    paramtool.torch.load_model(mine, path)
    assert all(torch.equal(one, mine.state_dict()[name]) for name, one in theirs.state_dict().items())


def _fit(kind: str, state: dict[str, torch.Tensor]) -> nn.Module:
    """A model of the shapes of a state dict."""
    if kind == "wn":
        out, inside, size = state["conv.weight_v"].shape
        heads = state["head.weight"].shape
        dim = next(k for k, length in enumerate(state["conv.weight_g"].shape) if length > 1)
        conv = parametrizations.weight_norm(nn.Conv1d(inside, out, size), dim=dim)
        return nn.ModuleDict({"conv": conv, "head": nn.Linear(heads[1], heads[0])})
    out, inside, *size = state["0.weight"].shape
    first = nn.Conv2d(inside, out, tuple(size)) if size else nn.Linear(inside, out)  # type: ignore[arg-type]
    return nn.Sequential(first, (nn.BatchNorm2d if size else nn.BatchNorm1d)(out))


def test_the_state_of_transformer_engine() -> None:
    """A BytesIO with scales, which `set_extra_state` reads."""

    class Layer(nn.Linear):
        scales: Any = None

        def get_extra_state(self) -> Any:
            raise NotImplementedError

        def set_extra_state(self, state: Any) -> None:
            state.seek(0)
            self.scales = torch.load(state)

    path = found("load-protocol/te.pt")
    shapes = {name: one.shape for name, one in paramtool.torch.load_file(path).items()}
    (rows, width), (high, low), (top, bottom) = (shapes[f"{name}.weight"] for name in ("emb", "lin", "out"))
    emb, lin = nn.Embedding(rows, width), Layer(low, high, bias=False)
    model = nn.ModuleDict({"emb": emb, "lin": lin, "out": nn.Linear(bottom, top, bias=False)})
    assert paramtool.torch.load_model(model, path).unexpected == ()
    assert lin.scales["scale_fwd"].tolist() == [1, 1, 2] or lin.scales["scale_fwd"].numel() == 3
    plain = nn.ModuleDict({"emb": emb, "lin": nn.Linear(low, high, bias=False), "out": model["out"]})
    assert paramtool.torch.load_model(plain, path).unexpected == ("lin._extra_state",)


def test_an_extra_state_of_another_type_is_no_cast(tmp_path: Path) -> None:
    """torch gives it to the module as it is, where it casts a parameter."""

    class Counting(nn.Linear):
        state = torch.arange(3)

        def get_extra_state(self) -> torch.Tensor:
            return self.state

        def set_extra_state(self, state: torch.Tensor) -> None:
            self.state = state

    model, other = Counting(2, 2), Counting(2, 2)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    model.state = model.state.to(torch.int32)
    torch.save(model.state_dict(), tmp_path / "b.pt")
    found = paramtool.diff(tmp_path / "a.pt", tmp_path / "b.pt")
    assert not found.is_same and found.counts() == {"same": 2, "changed": 1}
    paramtool.torch.load_model(other, tmp_path / "b.pt")
    assert other.state.dtype == torch.int32


@pytest.mark.filterwarnings("ignore")
def test_layers_of_hqq() -> None:
    path = found("hqq/hqn.pt")
    built = protocols.hqq()
    theirs, mine = (nn.ModuleDict(dict(zip("aqz", made, strict=True))) for made in (built, protocols.hqq()))
    theirs.load_state_dict(torch.load(path, weights_only=False))
    assert paramtool.torch.load_model(mine, path).missing == ()
    assert torch.equal(mine["q"](x := torch.ones(2, 64)), theirs["q"](x))
    assert torch.equal(mine["z"].weight, theirs["z"].weight)


def test_blocks_that_were_compiled_alone(tmp_path: Path) -> None:
    path = shutil.copy(found("compiled-blocks/blk.pt"), tmp_path / "blk.pt")
    names = found("compiled-blocks/blk_names.txt")
    (variant,) = paramtool.variants(path, [names])
    assert "export --all-names --rename '*._orig_mod.*=*.*'" in variant.advice
    paramtool.export(path, tmp_path / "plain.safetensors", rename=["*._orig_mod.*=*.*"], all_names=True)
    assert paramtool.variants(tmp_path / "plain.safetensors", [names])[0].loads

    def block() -> nn.Module:
        return nn.ModuleDict({"attn": nn.Linear(2, 2), "mlp": nn.Linear(2, 2)})

    torch.save({f"a._orig_mod.{n}": one for n, one in block().state_dict().items()}, tmp_path / "small.pt")
    paramtool.torch.load_model(nn.ModuleDict({"a": block()}), tmp_path / "small.pt")
    torch.save({f"a.{n}": one for n, one in block().state_dict().items()}, tmp_path / "other.pt")
    paramtool.torch.load_model(nn.ModuleDict({"a": nn.ModuleDict({"_orig_mod": block()})}), tmp_path / "other.pt")
    torch.save(
        {"net": {f"a._orig_mod.{n}": one for n, one in block().state_dict().items()}, "epoch": 1}, tmp_path / "s.pt"
    )
    assert paramtool.torch.load_model(nn.ModuleDict({"a": block()}), tmp_path / "s.pt").section == "net"


def test_an_object_that_only_code_makes_is_refused(tmp_path: Path) -> None:
    class Setting(nn.Linear):
        def get_extra_state(self) -> Any:
            return re.compile("x")  # which only a call makes

        def set_extra_state(self, state: Any) -> None:
            raise AssertionError

    torch.save(Setting(2, 2).state_dict(), tmp_path / "m.pt")
    model = Setting(2, 2)
    before = model.weight.clone()
    with pytest.raises(ModelError, match=r"'_extra_state' is an object of re"):
        paramtool.torch.load_model(model, tmp_path / "m.pt", allow_unknown=True)
    assert torch.equal(model.weight, before)


def test_no_page_of_the_file_stays(tmp_path: Path) -> None:
    """What a module keeps of a state dict is memory of its own: the file can be written to."""
    torch.manual_seed(0)
    source, target = protocols.Keeping(), protocols.Keeping()
    torch.save(source.state_dict(), path := tmp_path / "m.pt")
    paramtool.torch.load_model(target, path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert torch.equal(target.table, source.table) and torch.equal(target.scale, source.scale)


class OfRanks(nn.Module):
    """The model of rank-files, with code of its own for loading or without."""

    def __init__(self, has_hook: bool) -> None:
        super().__init__()
        self.emb, self.l1, self.l2 = nn.Embedding(11, 8), nn.Linear(8, 7), nn.Linear(7, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.emb.weight
        if has_hook:
            self.register_load_state_dict_post_hook(lambda *rest: None)


@pytest.mark.parametrize("has_hook", [False, True])
@pytest.mark.parametrize("name", ["verl/model", "sharded"])
def test_the_file_of_one_rank(name: str, has_hook: bool, tmp_path: Path) -> None:
    """It is told as a part, with the folder to name, in the words of `convert`; the folder loads."""
    path = found(f"rank-files/{name}_world_size_2_rank_0.pt")
    with pytest.raises(ModelError, match=r"'l1.weight'.* is one rank's part of it") as loading:
        paramtool.torch.load_model(OfRanks(has_hook), path)
    for command in (paramtool.convert, partial(paramtool.export, all_names=True)):
        with pytest.raises(PlanError, match=r"'l1.weight': one rank's part of it") as writing:
            command(path, tmp_path / "m.safetensors")
        assert writing.value.hint == loading.value.hint == f"name the folder with the files of all ranks: {path.parent}"
    for rank in (0, 1):
        shutil.copy(str(path).replace("rank_0", f"rank_{rank}"), tmp_path)
    paramtool.torch.load_model(model := OfRanks(has_hook), tmp_path)
    truth = torch.load(found("rank-files/verl/full_truth.pt"))
    assert all(torch.equal(one, truth[name]) for name, one in model.state_dict().items())


class Dropped(nn.Module):
    """A parameter that the state dict leaves out, and that nobody calls missing."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.dropped = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.full((2,), 9.0))
        self._register_state_dict_hook(lambda module, state, prefix, local: (state.pop(prefix + "dropped"), None)[1])
        self.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.clear())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_new_tensors_that_nobody_fills_keep_their_values(dtype: torch.dtype | None, tmp_path: Path) -> None:
    """As with torch: the counter of an old batch norm, and what a hook leaves out; on meta it stays there."""
    norm = nn.Sequential(nn.BatchNorm1d(3))
    torch.save({k: v for k, v in norm.state_dict().items() if "num_batches" not in k}, tmp_path / "norm.pt")
    norm[0].num_batches_tracked.fill_(7)
    paramtool.torch.load_model(norm, tmp_path / "norm.pt", assign=True, dtype=dtype)
    assert norm[0].num_batches_tracked == 7
    torch.save(Dropped().state_dict(), tmp_path / "dropped.pt")
    model = Dropped()
    paramtool.torch.load_model(model, tmp_path / "dropped.pt", assign=True, dtype=dtype)
    assert model.dropped.tolist() == [9, 9]
    with torch.device("meta"):
        model = Dropped()
    loaded = paramtool.torch.load_model(model, tmp_path / "dropped.pt", dtype=dtype)
    assert model.dropped.is_meta and not model.kept.is_meta and loaded.on_meta == ("dropped",)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("assign", [False, True])
def test_a_sparse_buffer(assign: bool, tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    model.register_buffer("mask", torch.eye(3).to_sparse())
    other.register_buffer("mask", torch.ones(3, 3).to_sparse())
    torch.save(model.state_dict(), tmp_path / "m.pt")
    paramtool.torch.load_model(other, tmp_path / "m.pt", assign=assign)
    assert torch.equal(other.mask.to_dense(), torch.eye(3)) and torch.equal(other.weight, model.weight)


class Renaming(protocols.TiedHook):
    """Names with a prefix that a hook takes off."""

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(Renaming.bare)

    @staticmethod
    def bare(module: nn.Module, state: dict[str, Any], *rest: Any) -> None:
        for name in list(state):
            state[name.removeprefix("model.")] = state.pop(name)


def test_a_tie_behind_a_hook_that_renames(tmp_path: Path) -> None:
    """Each of the copies into one tensor has its name, so that values that differ are seen."""
    model = Renaming()
    state = {f"model.{name}": one.clone() for name, one in model.state_dict().items()}
    torch.save(state, tmp_path / "same.pt")
    assert paramtool.torch.load_model(model, tmp_path / "same.pt").unexpected == ()
    state["model.head.weight"] += 1
    torch.save(state, tmp_path / "apart.pt")
    with pytest.raises(TieError, match=r"ties 'body.weight' and 'head.weight'.*only while it was loaded"):
        paramtool.torch.load_model(model, tmp_path / "apart.pt")


class Once:
    """What negates a weight the first time that it is called, and keeps that in itself."""

    is_done = False

    def __call__(self, module: Any, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        if not self.is_done:
            self.is_done = True
            state["weight"] = -state["weight"]


def _hook(model: nn.Module, once: Any) -> None:
    model.register_load_state_dict_pre_hook(once)


def _cell(model: nn.Module) -> None:
    once = Once()
    _hook(model, lambda *given: once(*given))


def _nonlocal(model: nn.Module) -> None:
    is_done = False

    def hook(module: Any, state: dict[str, Any], *rest: Any) -> None:
        nonlocal is_done
        state["weight"] = state["weight"] * (1 if is_done else -1)
        is_done = True

    _hook(model, hook)


def _attribute(model: nn.Module) -> None:
    def hook(module: Any, state: dict[str, Any], *rest: Any) -> None:
        state["weight"] = state["weight"] * (1 if hasattr(hook, "is_done") else -1)
        hook.is_done = True  # type: ignore[attr-defined]

    _hook(model, hook)


def _default(model: nn.Module) -> None:
    def hook(*given: Any, once: Any = Once()) -> None:  # noqa: B008  # the state of this test
        once(*given)

    _hook(model, hook)


def _iterator(model: nn.Module) -> None:
    signs = iter([-1, 1, 1])
    _hook(model, lambda module, state, *rest: state.update(weight=state["weight"] * next(signs)))


def _removed(model: nn.Module) -> None:
    def hook(module: Any, state: dict[str, Any], *rest: Any) -> None:
        state["weight"] = -state["weight"]
        handle.remove()

    handle = model.register_load_state_dict_pre_hook(hook)


def _after(model: nn.Module) -> None:
    def hook(module: Any, keys: Any) -> None:
        model.weight.data.neg_()  # type: ignore[operator, union-attr]
        handle.remove()

    handle = model.register_load_state_dict_post_hook(hook)


def _setter(model: nn.Module) -> None:
    class Own(nn.Linear):
        migrated: set[str] = set()  # noqa: RUF012  # the state of this test

        def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
            if "once" not in self.migrated:
                self.migrated.add("once")
                state["weight"] = -state["weight"]
            super()._load_from_state_dict(state, prefix, *rest)

    model.__class__ = Own


WAYS: dict[str, Callable[[nn.Module], None]] = {
    "an object": lambda model: _hook(model, Once()), "arguments": lambda model: _hook(model, partial(Once())),
    "a cell": _cell, "nonlocal": _nonlocal, "an attribute of a function": _attribute, "a default": _default,
    "an iterator": _iterator, "a hook that removes itself": _removed, "the same afterwards": _after,
    "an attribute of a class": _setter,
}  # fmt: skip


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_code_with_state_runs_once(way: str, assign: bool, tmp_path: Path) -> None:
    """Wherever it keeps that it ran: `variants` does not run it, and `load_model` leaves what torch leaves."""
    torch.save(nn.Linear(2, 2).state_dict(), path := tmp_path / "m.pt")
    theirs, mine = nn.Linear(2, 2), nn.Linear(2, 2)
    for model in (theirs, mine):
        WAYS[way](model)
    paramtool.torch.variants([mine], path)
    theirs.load_state_dict(torch.load(path))
    paramtool.torch.load_model(mine, path, assign=assign)
    assert torch.equal(mine.weight, theirs.weight)
    theirs.load_state_dict(torch.load(path))
    paramtool.torch.load_model(mine, path, assign=assign)
    assert torch.equal(mine.weight, theirs.weight)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_is_refused_ran_code_as_torch_does(way: str, tmp_path: Path) -> None:
    torch.save({**nn.Linear(2, 2).state_dict(), "more": torch.ones(1)}, path := tmp_path / "m.pt")
    theirs, mine = nn.Linear(2, 2), nn.Linear(2, 2)
    for model in (theirs, mine):
        WAYS[way](model)
    with pytest.raises(RuntimeError, match="more"):
        theirs.load_state_dict(torch.load(path))
    with pytest.raises(ModelError, match="'more'") as error:
        paramtool.torch.load_model(mine, path)
    assert torch.equal(mine.weight, theirs.weight)
    assert error.value.hint.startswith("it changed before that: 'weight', 'bias'")


def test_what_changed_before_an_error_is_named(tmp_path: Path) -> None:
    model = protocols.Raising()
    torch.save(model.state_dict(), path := tmp_path / "m.pt")
    with pytest.raises(ModelError, match="KeyError while it was loaded") as error:
        paramtool.torch.load_model(model, path)
    assert error.value.hint == "it changed before that: 'scale'"


@pytest.mark.parametrize("kind", [nn.Linear, protocols.Reaching, protocols.LoadPreHook])
def test_an_object_that_the_model_does_not_want(kind: Any, tmp_path: Path) -> None:
    """It is left over as torch says it, beside tensors; what stands outside a section is not of it."""
    model = kind(2, 2) if kind is nn.Linear else kind()
    torch.save({**model.state_dict(), "note": "hi"}, path := tmp_path / "m.pt")
    with pytest.raises(ModelError, match="'note'"):
        paramtool.torch.load_model(model, path)
    assert paramtool.torch.load_model(model, path, strict=False).unexpected == ("note",)
    torch.save({"net": model.state_dict(), "note": "hi"}, path)
    assert paramtool.torch.load_model(model, path).unexpected == ()


class Masked(nn.Module):
    """A layer beside a mask, an index and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.eye(3).bool())
        self.register_buffer("index", torch.arange(3, dtype=torch.int32))


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("on_meta", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.uint8, torch.int64, torch.complex64])
def test_whole_numbers_of_another_type(dtype: torch.dtype, on_meta: bool, tmp_path: Path) -> None:
    """As torch copies them: a counter in half precision, a mask of bytes."""
    source, theirs, mine = Masked(), Masked(), Masked()
    source.norm.num_batches_tracked.fill_(7)  # type: ignore[operator, union-attr]
    source.index += 2
    torch.save({name: one.to(dtype) for name, one in source.state_dict().items()}, path := tmp_path / "m.pt")
    theirs.load_state_dict(torch.load(path))
    paramtool.torch.load_model(mine.to("meta") if on_meta else mine, path)
    for name, one in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[name], one) and mine.state_dict()[name].dtype == one.dtype
    assert paramtool.torch.variants([Masked()], path)[0].loads
    plain = nn.Module()
    plain.register_buffer("mask", torch.zeros(3, 3, dtype=torch.bool))
    torch.save({"mask": torch.eye(3).to(dtype)}, path)
    paramtool.torch.load_model(plain, path)
    assert torch.equal(plain.mask, torch.eye(3).bool())  # type: ignore[arg-type]


KINDS = (torch.bool, torch.int8, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("wanted", KINDS)
@pytest.mark.parametrize("found", KINDS)
def test_numbers_of_every_kind(
    found: torch.dtype, wanted: torch.dtype, assign: bool, trains: bool, tmp_path: Path
) -> None:
    """As torch has them; numbers that its cast changes are named."""

    def made() -> nn.Module:
        model, values = nn.Module(), torch.zeros(2, dtype=wanted)
        if trains and not (wanted.is_floating_point or wanted.is_complex):
            model.register_buffer("n", values)
        else:
            model.n = nn.Parameter(values, trains)
        return model

    for values in ([1, 0], [0.5, 3], [300.0, 2], [1 + 2j, 0]):
        torch.save({"n": (saved := torch.tensor(values).to(found))}, path := tmp_path / "m.pt")
        theirs, mine = made(), made()
        try:
            theirs.load_state_dict(torch.load(path), assign=assign)
        except RuntimeError as error:
            assert "require gradients" in str(error)
            continue
        said = paramtool.torch.load_model(mine, path, assign=assign)
        assert mine.n.dtype == theirs.n.dtype and torch.equal(mine.n, theirs.n)
        assert mine.n.requires_grad == theirs.n.requires_grad
        if saved.is_floating_point() <= theirs.n.is_floating_point():
            assert bool(said.warnings) != torch.equal(theirs.n.to(found), saved), "what the cast changed is named"
        assert paramtool.torch.variants(made(), path)[0].loads


def test_an_object_for_a_tensor_is_refused_before_anything_changes(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2, 3), "bias": 0.5}, path := tmp_path / "m.pt")
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=r"expected torch\.Tensor"):
            nn.Linear(3, 2).load_state_dict(torch.load(path), strict=strict)
        with pytest.raises(ModelError, match="'bias': is an object in the file; the model wants a tensor"):
            paramtool.torch.load_model(model, path, strict)
    assert torch.equal(model.weight, before)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_that_the_file_lacks_stays(layout: torch.layout, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    rows = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    model.register_buffer("rows", rows)
    torch.save({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, path := tmp_path / "m.pt")
    assert paramtool.torch.load_model(model, path, False).missing == ("rows",)
    assert model.rows is rows and torch.equal(model.weight, torch.ones(2, 3))


def test_an_expanded_parameter_is_assigned(tmp_path: Path) -> None:
    def made() -> nn.Module:
        model = nn.Linear(3, 2)
        model.weight = nn.Parameter(torch.zeros(1, 3).expand(2, 3))
        return model

    torch.save(nn.Linear(3, 2).state_dict(), path := tmp_path / "m.pt")
    theirs, mine = made(), made()
    theirs.load_state_dict(torch.load(path), assign=True)
    paramtool.torch.load_model(mine, path, assign=True)
    assert torch.equal(mine.weight, theirs.weight) and mine.weight.is_contiguous()
    with pytest.raises(ModelError, match="is expanded"):
        paramtool.torch.load_model(made(), path)


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_tensor_for_a_parameter_is_refused_as_by_torch(tmp_path: Path) -> None:
    weight = torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 0, torch.qint8)
    torch.save({"weight": weight, "bias": torch.ones(2)}, path := tmp_path / "m.pt")
    model = nn.Linear(3, 2)
    before = model.bias.detach().clone()
    with pytest.raises(RuntimeError, match="require gradients"):
        model.load_state_dict(torch.load(path), assign=True)
    model.bias.data.copy_(before)
    with pytest.raises(ModelError, match=r"'weight' is quantised there, and a parameter here: .*require gradients"):
        paramtool.torch.load_model(model, path, assign=True)
    assert torch.equal(model.bias, before)


@pytest.mark.filterwarnings("ignore")
def test_what_a_library_refuses_is_named(tmp_path: Path) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="quantised layers of bitsandbytes")

    def made() -> nn.Module:
        return nn.Sequential(bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.float32))

    torch.save(made().to("cpu").state_dict(), path := tmp_path / "m.pt")
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight"):
        made().load_state_dict(torch.load(path))
    with pytest.raises(ModelError, match=r"'0.weight': is refused by torch \(size mismatch for 0.weight"):
        paramtool.torch.load_model(made(), path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("assign", [False, True])
def test_what_cannot_be_made_is_told_by_variants(assign: bool, tmp_path: Path) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="quantised layers of bitsandbytes")
    torch.save(bitsandbytes.nn.Linear4bit(64, 64).to("cpu").state_dict(), path := tmp_path / "m.pt")
    with torch.device("meta"):
        model = bitsandbytes.nn.Linear4bit(64, 64)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict(torch.load(path), assign=assign)
    with pytest.raises(ModelError, match="'weight' is a Params4bit") as error:
        paramtool.torch.load_model(model, path, assign=assign)
    assert error.value.hint == "load into a model that has memory"
    with pytest.raises(ModelError, match="'weight' is a Params4bit"):
        paramtool.torch.variants([model], path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "IntxWeightOnlyConfig"])
@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.parametrize("assign", [True, False])
def test_tensors_of_torchao_in_safetensors(config: str, quantised: bool, assign: bool, tmp_path: Path) -> None:
    """What `unflatten_tensor_state_dict` and `load_state_dict` leave, from its own file and from one of `dedup`."""
    quantization = pytest.importorskip("torchao.quantization", reason="tensors of torchao")
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support", reason="files of torchao")

    def made(seed: int, is_quantised: bool = quantised) -> nn.Module:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 64, bias=False))
        if is_quantised:
            quantization.quantize_(model, getattr(quantization, config)())
        return model

    values = {n: one.data if type(one) is torch.Tensor else one for n, one in made(0, True).state_dict().items()}
    parts, header = support.flatten_tensor_state_dict(values)
    safetensors.torch.save_file(parts, path := tmp_path / "m.safetensors", metadata=header)
    paramtool.dedup(path, out := tmp_path / "out.safetensors", force=True)
    theirs, x, error = made(1), torch.randn(3, 64), ""
    state, left = support.unflatten_tensor_state_dict(safetensors.torch.load_file(path), header)
    assert not left
    try:
        theirs.load_state_dict(state, assign=assign)
    except RuntimeError as raised:  # torchao copies no blocks whose sizes are a list, as JSON has them
        error = str(raised)
    for file in (path, out):
        mine = made(1)
        said = paramtool.torch.variants(mine, file)
        if not (quantised or assign):
            assert error, "torch copies no codes into a plain parameter"
            with pytest.raises(ModelError, match=r"'0\.weight': is torchao in the file; the model wants float32"):
                paramtool.torch.load_model(mine, file)
        elif error:
            with pytest.raises(ModelError, match="metadata mismatch"):
                paramtool.torch.load_model(mine, file, assign=assign)
        else:
            assert paramtool.torch.load_model(mine, file, assign=assign).missing == ()
            assert torch.equal(mine(x), theirs(x)) and type(mine[0].weight) is type(theirs[0].weight)
            assert said[0].loads or not quantised


@pytest.mark.filterwarnings("ignore")
def test_what_torchao_cannot_make_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torchao.prototype.safetensors.safetensors_support", reason="files of torchao")
    header = {"0.weight": json.dumps({"_type": "Nobody", "_data": {}, "_tensor_data_names": ["qdata"]})}
    header["tensor_names"] = json.dumps([*header])
    safetensors.torch.save_file({"0._weight_qdata": torch.ones(2, 3)}, path := tmp_path / "m.safetensors", header)
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    with pytest.raises(
        ModelError, match=r"'0\.weight' is a tensor that torchao has to make: Failed to find class"
    ) as error:
        paramtool.torch.load_model(model, path, assign=True)
    assert not error.value.hint


@pytest.mark.filterwarnings("ignore")
def test_without_torchao_its_tensors_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.prototype.safetensors.safetensors_utils", None)
    header = {"0.weight": json.dumps({"_type": "Int8Tensor", "_data": {}, "_tensor_data_names": ["qdata"]})}
    header["tensor_names"] = json.dumps([*header])
    safetensors.torch.save_file({"0._weight_qdata": torch.ones(2, 3)}, path := tmp_path / "m.safetensors", header)
    with pytest.raises(ModelError, match="a tensor that torchao has to make: import of torchao"):
        paramtool.torch.load_model(nn.Sequential(nn.Linear(3, 2, bias=False)), path, assign=True)


class Stateful(nn.Linear):
    """A layer with an extra state."""

    def __init__(self, state: Any) -> None:
        super().__init__(3, 2)
        self.state = state

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("wants", [{}, {"a": 1}])
def test_an_empty_dict_that_dcp_does_not_store(wants: Any, nested: bool, tmp_path: Path) -> None:
    """It is what the model has, as in the state dict that `dcp.load` fills; anything else is missing there, too."""
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    state = Stateful({}).state_dict()
    dcp.save({"model": state} if nested else state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    mine = Stateful(wants)
    into = mine.state_dict()
    if wants:
        with pytest.raises(dcp.api.CheckpointException, match="Missing key"):
            dcp.load({"model": into} if nested else into, checkpoint_id=tmp_path / "dcp", no_dist=True)
        with pytest.raises(ModelError, match="_extra_state"):
            paramtool.torch.load_model(mine, tmp_path / "dcp")
    else:
        assert paramtool.torch.load_model(mine, tmp_path / "dcp").missing == ()
        assert torch.equal(mine.weight, state["weight"])
    assert mine.state == wants


def _marked(model: nn.Module, mark: str) -> dict[str, Any]:
    """A state dict whose tensors carry attributes in Python, as Megatron marks its weights."""
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    if mark == "tensor":
        state = {name: one.detach().clone() for name, one in state.items()}
    if mark == "buffer":
        state = {name: nn.Buffer(one.detach().clone()) for name, one in state.items()}
    for one in state.values():
        one.tensor_model_parallel = torch.ones(5) if mark == "of tensors" else True
    return {"model": state, "epoch": 1} if mark == "section" else state


@pytest.mark.parametrize("made", ["file", "dedup.safetensors", "dedup.pt"])
@pytest.mark.parametrize("kind", ["linear", "norm", "tied"])
@pytest.mark.parametrize("mark", ["parameter", "tensor", "buffer", "of tensors", "section"])
def test_tensors_with_attributes_in_python(mark: str, kind: str, made: str, tmp_path: Path) -> None:
    """torch's load_state_dict does not look at these; on the CPU, with `assign` and on the meta device."""

    def model() -> nn.Module:
        if kind == "norm":  # which has loading code of torch's own
            return nn.BatchNorm1d(3)
        found = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        if kind == "tied":
            found[1].weight = found[0].weight
        return found

    source = model()
    with torch.no_grad():
        for one in source.parameters():
            one.normal_()
    torch.save(_marked(source, mark), path := tmp_path / "in.pt")
    if made != "file":
        paramtool.dedup(path, path := tmp_path / made)
    for device, assign in (("cpu", False), ("cpu", True), ("meta", False)):
        with torch.device(device):
            target = model()
        found = paramtool.torch.load_model(target, path, assign=assign)
        assert not found.missing and not found.unexpected, (device, assign, found)
        for name, one in source.state_dict().items():
            assert torch.equal(target.state_dict()[name], one), (device, assign, name)
        if kind == "tied":
            assert target[1].weight is target[0].weight  # type: ignore[index]
