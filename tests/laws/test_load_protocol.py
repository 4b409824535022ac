"""`load_model` is `load_state_dict(torch.load(FILE))`: the same parameters, buffers and extra state, or it raises.

It raises before the model changes, and only where torch raises, too, or where an object cannot be made without code.
"""

from __future__ import annotations

import contextlib
import io
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import date
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any

import pytest
import torch
from torch import nn

import paramtool.torch
from paramtool.errors import ModelError, TieError
from tests.examples import shared
from tests.laws import protocols
from tests.laws.protocols import NESTED, OF_LIBRARIES, OF_TORCH
from tests.laws.sharing import partition, raw

Maker = Callable[[], nn.Module]
EVERY = pytest.mark.parametrize("make", [*OF_TORCH.values(), *OF_LIBRARIES.values()], ids=[*OF_TORCH, *OF_LIBRARIES])
pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated parts of torch, and of libraries


PLAIN_TYPES = (
    int, float, str, bytes, type(None), range, date, Fraction, PurePath, torch.dtype, torch.Size,
)  # fmt: skip


def seeded(make: Maker, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def words(value: Any) -> Any:
    """A value as something that compares: tensors by class, type, shape and bytes."""
    if isinstance(value, torch.Tensor):
        if nn.parameter.is_lazy(value):
            return "lazy"
        if hasattr(value, "__tensor_flatten__"):
            return type(value).__name__, [words(getattr(value, name)) for name in value.__tensor_flatten__()[0]]
        if value.is_quantized:
            if value.qscheme() == torch.per_tensor_affine:
                return "quantised", words(value.int_repr()), value.q_scale(), value.q_zero_point()
            scales = [getattr(value, f"q_per_channel_{label}")() for label in ("scales", "zero_points", "axis")]
            return "quantised", words(value.int_repr()), words(scales)
        plain = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        return value.dtype, tuple(value.shape), value.requires_grad, raw(plain)
    if isinstance(value, io.BytesIO):
        return words(torch.load(io.BytesIO(value.getvalue())))
    if isinstance(value, dict):
        return type(value), {key: words(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [words(one) for one in value]
    return value if isinstance(value, PLAIN_TYPES) else type(value)


def everything(model: nn.Module) -> dict[str, Any]:
    """All that loading can change: parameters, buffers, extra states, and attributes that are tensors."""
    found: dict[str, Any] = {}
    for at, module in model.named_modules(remove_duplicate=False):
        held = {**module._parameters, **module._buffers}
        held |= {name: one for name, one in vars(module).items() if isinstance(one, (torch.Tensor, float))}
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            held["extra"] = module.get_extra_state()
        if type(module).__name__ == "LinearPackedParams":
            held["packed"] = module._weight_bias()  # type: ignore[operator]
        if type(module).__name__ == "HQQLinear":
            held["meta"] = module.meta
        found |= {f"{at}.{name}": words(one) for name, one in held.items()}
    return found


def changed(state: Any) -> Iterator[tuple[str, Any]]:
    """A state dict, and what else could be in a file: older, with a name less or more, of another shape."""
    yield "as it is", state
    first = next(iter(state))
    yield "a name less", without_versions({name: one for name, one in state.items() if name != first}, state)
    yield "a name more", with_versions({**state, "more": torch.ones(2)}, state)
    yield "another shape", with_versions({**state, first: torch.ones(77, 3)}, state)
    yield "without versions", dict(state)
    yield "older", with_versions(dict(state), state, 1)
    yield "older names", with_versions({f"old.{name}": one for name, one in state.items()}, state)
    yield "without counters", {n: one for n, one in state.items() if "num_batches" not in n}
    yield "with objects", with_versions({**state, "epoch": 3, "_extra_state": {"scale": 1.5}}, state)


def with_versions(new: dict[str, Any], state: Any, version: int = 0) -> Any:
    found = OrderedDict(new)
    if hasattr(state, "_metadata"):
        versions = {name: {**one, **({"version": version} if version else {})} for name, one in state._metadata.items()}
        found._metadata = OrderedDict(versions)  # type: ignore[attr-defined]
    return found


without_versions = with_versions


def in_torch(model: nn.Module, path: Path, **options: Any) -> str:
    """What torch says against a file; empty where it loads it."""
    try:
        model.load_state_dict(torch.load(path, weights_only=False), **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@EVERY
def test_load_model_is_load_state_dict(make: Maker, tmp_path: Path) -> None:
    source = seeded(make, 0)
    for what, state in changed(source.state_dict()):
        torch.save(state, path := tmp_path / f"{what}.pt")
        for strict in (True, False):
            theirs, mine = seeded(make, 1), seeded(make, 1)
            before = everything(mine)
            assert everything(theirs) == before, "the maker follows the seed"
            refused = in_torch(theirs, path, **({} if strict else {"strict": False}))
            try:
                paramtool.torch.load_model(mine, path, strict)
            except (ModelError, paramtool.errors.UnsafeError, paramtool.errors.FormatError) as error:
                if "while it was loaded" in str(error):  # the module's own code: what it wrote is named
                    is_named = "it changed before that:" in error.hint
                    assert (everything(mine) != before) == is_named, (what, error)
                else:
                    assert everything(mine) == before, (what, error)
                assert refused or "made by code" in str(error), (what, error)
                continue
            if not refused:
                assert everything(mine) == everything(theirs), what


@EVERY
def test_what_torch_loads_is_loaded(make: Maker, tmp_path: Path) -> None:
    """A model's own state, strictly: nothing is missing, and nothing left over."""
    torch.save(seeded(make, 0).state_dict(), path := tmp_path / "m.pt")
    theirs, mine = seeded(make, 1), seeded(make, 1)
    if in_torch(theirs, path):
        pytest.skip("torch does not load it strictly")
    loaded = paramtool.torch.load_model(mine, path)
    assert not loaded.missing and not loaded.unexpected
    (variant,) = paramtool.torch.variants([seeded(make, 2)], path)
    assert variant.loads


COMPILED = "_orig_mod."


@EVERY
def test_variants_says_what_load_model_does(make: Maker, tmp_path: Path) -> None:
    """Strictly and not, by copies and with `assign`; where only loading shows what code does, it says that."""
    state = seeded(make, 0).state_dict()
    wrapped = OrderedDict({COMPILED + name: one for name, one in state.items()})
    if hasattr(state, "_metadata"):
        versions = {(COMPILED + name).rstrip("."): one for name, one in state._metadata.items()}
        wrapped._metadata = OrderedDict(versions)  # type: ignore[attr-defined]
    for what, given in (*changed(state), ("compiled", wrapped)):
        torch.save(given, path := tmp_path / "m.pt")
        (said,) = paramtool.torch.variants([seeded(make, 1)], path)
        is_open = "only loading shows" in said.advice
        for strict in (True, False):
            expected = not (said.shapes or said.types or said.apart or (strict and (said.lacks or said.unused)))
            for assign in (False, True):
                try:
                    paramtool.torch.load_model(seeded(make, 1), path, strict, assign=assign)
                    loads = True
                except ModelError as error:
                    loads = is_open and "while it was loaded" in str(error)
                assert loads == expected or is_open, (what, strict, assign, said)


@pytest.mark.parametrize("how", ["copy", "assign", "meta"])
@pytest.mark.parametrize("make", NESTED)
def test_a_state_dict_of_others_is_given_as_it_is(make: Maker, how: str, tmp_path: Path) -> None:
    torch.save(seeded(make, 0).state_dict(), path := tmp_path / "m.pt")
    theirs, mine = seeded(make, 1), seeded(make, 1)
    assert not in_torch(theirs, path)
    if how == "meta":
        with torch.device("meta"):
            mine = seeded(make, 1)
        if make is protocols.NestedValued:
            pytest.skip("looks at values that are not there")
    loaded = paramtool.torch.load_model(mine, path, assign=how == "assign")
    assert not loaded.missing and not loaded.on_meta
    assert [name.rpartition(".")[0] for name in loaded.unexpected] == ["optimizer.state.0"] * (
        make is protocols.NestedNorms
    )
    assert everything(mine) == everything(theirs)
    assert vars(mine).get("steps") == vars(theirs).get("steps") and vars(mine).get("epoch") == vars(theirs).get("epoch")
    (variant,) = paramtool.torch.variants([seeded(make, 2)], path)
    assert variant.loads or make is protocols.NestedValued


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("change", ["less", "more", "another shape"])
@pytest.mark.parametrize("make", [protocols.Nested, protocols.NestedValued])
def test_a_state_dict_of_others_is_judged(make: Maker, change: str, strict: bool, tmp_path: Path) -> None:
    state = seeded(make, 0).state_dict()
    inner = state["model"]
    inner.pop("scale") if change == "less" else inner.update({"scale" if "shape" in change else "more": torch.ones(7)})
    torch.save(state, path := tmp_path / "m.pt")
    theirs, mine = seeded(make, 1), seeded(make, 1)
    before = everything(mine)
    refused = in_torch(theirs, path, **({} if strict else {"strict": False}))
    try:
        loaded = paramtool.torch.load_model(mine, path, strict)
    except ModelError as error:
        assert refused and "while it was loaded" in str(error)
        assert (everything(mine) != before) == ("it changed before that:" in error.hint)
        return
    assert not refused and everything(mine) == everything(theirs)
    assert loaded.missing == ("scale",) * (change == "less")
    assert set(loaded.unexpected) == ({"more", "model.more"} if change == "more" else set())


@pytest.mark.parametrize("make", [protocols.Versioned, OF_TORCH["BatchNorm"], OF_TORCH["MultiheadAttention"]])
@pytest.mark.parametrize("versions", ["none", "older", "current"])
def test_what_is_taken_for_older_is_said(versions: str, make: Maker, tmp_path: Path) -> None:
    """Only where the file has no versions, and the module's code would take a newer one otherwise."""
    state = seeded(make, 0).state_dict()
    given = dict(state) if versions == "none" else with_versions(dict(state), state, int(versions == "older"))
    torch.save(given, path := tmp_path / "m.pt")
    theirs, mine = seeded(make, 1), seeded(make, 1)
    theirs.load_state_dict(torch.load(path))
    loaded = paramtool.torch.load_model(mine, path)
    assert everything(mine) == everything(theirs)
    is_said = versions == "none" and make is protocols.Versioned
    assert bool(loaded.warnings) == is_said and all("'qkv'" in one for one in loaded.warnings)


def test_a_section_of_a_file_is_given_as_it_is(tmp_path: Path) -> None:
    torch.save({"net": seeded(protocols.Nested, 0).state_dict(), "epoch": 3}, path := tmp_path / "m.pt")
    theirs, mine = seeded(protocols.Nested, 1), seeded(protocols.Nested, 1)
    theirs.load_state_dict(torch.load(path)["net"])
    paramtool.torch.load_model(mine, path, only="net")
    assert everything(mine) == everything(theirs) and mine.steps == theirs.steps


def test_variants_runs_no_code_of_the_model(tmp_path: Path) -> None:
    """A hook that holds the model itself sees it once, when the model is loaded."""

    class Own(protocols.Base):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0.0
            part = self.scale[1:]

            def hook(*args: Any) -> None:
                self.calls += 1
                with contextlib.suppress(Exception), torch.no_grad():
                    part.mul_(2)

            self._register_load_state_dict_pre_hook(hook)

    torch.save(seeded(Own, 0).state_dict(), path := tmp_path / "m.pt")
    theirs, mine = seeded(Own, 1), seeded(Own, 1)
    before = everything(mine)
    theirs.load_state_dict(torch.load(path))
    paramtool.torch.variants([mine], path)
    assert everything(mine) == before
    paramtool.torch.load_model(mine, path)
    assert everything(mine) == everything(theirs)


@pytest.mark.parametrize("make", [lambda: nn.Linear(2, 2), lambda: nn.BatchNorm1d(2)], ids=["plain", "own code"])
def test_variants_names_objects_that_are_left_over(make: Maker, tmp_path: Path) -> None:
    torch.save({**seeded(make, 0).state_dict(), "epoch": 3}, path := tmp_path / "m.pt")
    (variant,) = paramtool.torch.variants([seeded(make, 1)], path)
    assert variant.unused == paramtool.torch.load_model(seeded(make, 1), path, False).unexpected == ("epoch",)


@EVERY
@pytest.mark.parametrize("strict", [False, True])
def test_under_a_prefix(make: Maker, strict: bool, tmp_path: Path) -> None:
    """A model that is a part of another, by its name there: tensors, versions and extra state, as torch loads it."""
    whole = nn.ModuleDict({"net": nn.ModuleDict({"encoder": seeded(make, 0)}), "other": nn.Linear(2, 2)})
    torch.save(whole.state_dict(), path := tmp_path / "whole.pt")
    torch.save(seeded(make, 0).state_dict(), alone := tmp_path / "alone.pt")
    theirs, mine = seeded(make, 1), seeded(make, 1)
    if in_torch(theirs, alone, **({} if strict else {"strict": False})):
        pytest.skip("torch does not load it")
    assert not paramtool.torch.load_model(mine, path, strict, prefix="net.encoder").missing
    assert everything(mine) == everything(theirs)


OWN = [make for make in OF_TORCH.values() if isinstance(make, type)]


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("make", OWN)
def test_a_tie_that_the_file_contradicts_is_refused_before_the_model_changes(
    make: Maker, assign: bool, tmp_path: Path
) -> None:
    """Whatever code the model has for loading."""
    mine, source = seeded(make, 1), seeded(make, 0)
    mine.head, source.head = (nn.Linear(4, 4, bias=False) for _ in range(2))
    mine.head.weight = mine.body.weight  # type: ignore[union-attr]
    torch.save(source.state_dict(), path := tmp_path / "m.pt")
    before = everything(mine)
    with pytest.raises(TieError, match=r"ties '(body|head).weight' and '(body|head).weight'"):
        paramtool.torch.load_model(mine, path, assign=assign)
    assert everything(mine) == before


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """What a model saves of its own, as it is."""
    both = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: one for name, one in both if name in model.state_dict()}


WITHOUT = ("quantised Linear", "QFunctional", "filled lazy", "Reaching", "Raising")
PLAIN = {name: make for name, make in OF_TORCH.items() if name not in WITHOUT}


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("how", ["assign", "meta"])
@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_into_new_tensors(make: Maker, how: str, dtype: torch.dtype | None, tmp_path: Path) -> None:
    """With assign and on meta: what torch copies into a model that was made in that type, tied as it is."""
    torch.save(seeded(make, 0).state_dict(), path := tmp_path / "m.pt")
    theirs = seeded(make, 1)
    if how == "assign" and make is protocols.PostHook:
        theirs = theirs.to(torch.bfloat16)  # what the file has
    theirs = theirs.to(dtype) if dtype is not None else theirs
    assert not in_torch(theirs, path)
    if how == "meta":
        try:
            with torch.device("meta"):
                mine = seeded(make, 1)
        except (NotImplementedError, RuntimeError):
            pytest.skip("is not made on the meta device")
    else:
        mine = seeded(make, 1)
    ties = partition(tensors(theirs))
    loaded = paramtool.torch.load_model(mine, path, assign=how == "assign", dtype=dtype)
    assert not loaded.missing
    expected, found = dict(theirs.named_parameters()), dict(mine.named_parameters())
    assert expected.keys() == found.keys()
    for name, one in expected.items():
        assert words(found[name]) == words(one), name
    for name, buffer in tensors(theirs).items():
        assert words(tensors(mine)[name]) == words(buffer) or name in expected, name
    assert partition(tensors(mine)) == ties


@pytest.mark.parametrize("how", [{}, {"assign": True}], ids=["copy", "assign"])
@pytest.mark.parametrize("other", ["i8_row", "i8_col"])
def test_tensors_of_classes_that_the_process_calls_safe(other: str, how: dict[str, bool], tmp_path: Path) -> None:
    """torchao says so of its own when it is imported: torch.load takes them with weights_only=True, and so do we."""
    pytest.importorskip("torchao.quantization", reason="tensors of torchao")
    path = shared("findings", "field", "diff-attributes", f"{other}.pt")
    given = torch.load(path, weights_only=True)["w"]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.load(path, weights_only=True)["w"], requires_grad=False)
            self.w.scale.mul_(2)  # type: ignore[attr-defined]

    mine = Model()
    assert not torch.equal(mine.w.dequantize(), given.dequantize())  # type: ignore[operator]
    paramtool.torch.load_model(mine, path, **how)  # type: ignore[arg-type]
    assert words(mine.w) == words(given)


def test_tensors_of_other_classes_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="tensors of torchao")
    path = shared("findings", "field", "diff-attributes", "i8_row.pt")
    model = nn.Module()
    model.w = nn.Parameter(torch.load(path, weights_only=True)["w"], requires_grad=False)
    safe = [one for one in torch.serialization.get_safe_globals() if one is not quantization.Int8Tensor]
    monkeypatch.setattr(torch.serialization, "get_safe_globals", lambda: safe)
    with pytest.raises(ModelError, match="made by code"):
        paramtool.torch.load_model(model, path)


# --- tensors that are made of others -----------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "strided": lambda one: one,
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda one: one.to_sparse_bsr((2, 2)),
}


def masked(values: torch.Tensor, layout: str, is_parameter: bool) -> nn.Module:
    """A layer with one more tensor, which comes last: what is copied before it would be seen."""
    model = nn.Module()
    model.linear = nn.Linear(2, 2)
    model.last = nn.Module()
    mask = LAYOUTS[layout](values)
    if is_parameter:
        model.last.mask = nn.Parameter(mask)
    else:
        model.last.register_buffer("mask", mask)
    return model


@pytest.mark.parametrize("is_parameter", [False, True])
@pytest.mark.parametrize("stored", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", ["as many", "more"])
def test_sparse_tensors(count: str, layout: str, stored: str, is_parameter: bool, tmp_path: Path) -> None:
    """Copied, assigned and on meta: as torch does, or refused before anything changed."""
    torch.save(masked(torch.eye(4), stored, is_parameter).state_dict(), path := tmp_path / "m.pt")
    others = torch.ones(4, 4) if count == "more" else 2 * torch.eye(4)
    for assign in (False, True):
        for on_meta in (False, True):
            theirs, mine = (masked(others, layout, is_parameter) for _ in range(2))
            if on_meta:
                theirs, mine = theirs.to("meta"), mine.to("meta")
            before = mine.linear.weight.detach().clone()
            refused = in_torch(theirs, path, assign=assign)
            try:
                paramtool.torch.load_model(mine, path, assign=assign)
            except ModelError as error:
                assert "while it was loaded" not in str(error)
                assert refused or (on_meta and not assign), "torch leaves it there without values"
                assert on_meta or torch.equal(before, mine.linear.weight)
                continue
            mask = mine.last.mask
            assert isinstance(mask, nn.Parameter) == is_parameter
            assert torch.equal(mask.to_dense(), torch.eye(4))
            if not refused:
                assert mask.layout is theirs.last.mask.layout and mask.requires_grad == theirs.last.mask.requires_grad


CONFIGS = ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig")


@pytest.mark.parametrize("on_meta", [False, True])
@pytest.mark.parametrize("config", CONFIGS)
def test_tensors_of_torchao_are_assigned_to_plain_parameters(config: str, on_meta: bool, tmp_path: Path) -> None:
    """As torch does; without `assign` neither torch nor paramtool loads them, and nothing changes."""
    quantization = pytest.importorskip("torchao.quantization", reason="tensors of torchao")
    source, theirs, mine = (nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 16)) for _ in range(3))
    quantization.quantize_(source, getattr(quantization, config)(), lambda module, name: name == "1")
    torch.save(source.state_dict(), path := tmp_path / "m.pt")
    before = everything(mine)
    assert in_torch(theirs, path)
    with pytest.raises(ModelError, match=r"'1\.weight': is torchao"):
        paramtool.torch.load_model(mine, path)
    assert everything(mine) == before
    if on_meta:
        theirs, mine = theirs.to("meta"), mine.to("meta")
    assert not in_torch(theirs, path, assign=True)
    paramtool.torch.load_model(mine, path, assign=True)
    assert everything(mine) == everything(theirs)
    assert torch.equal(mine(x := torch.randn(3, 32)), theirs(x))


@pytest.mark.parametrize("file_tied", [True, False])
def test_a_tie_and_tensors_of_torchao(file_tied: bool, tmp_path: Path) -> None:
    """A tie of the model stays; where the file has two tensors for it, it is named."""
    quantization = pytest.importorskip("torchao.quantization", reason="tensors of torchao")
    source, mine = (nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)) for _ in range(2))
    quantization.quantize_(source, quantization.Int8WeightOnlyConfig(), lambda module, name: name == "1")
    mine[0].weight = mine[1].weight
    if file_tied:
        source[0].weight = source[1].weight
    torch.save(source.state_dict(), path := tmp_path / "m.pt")
    before = everything(mine)
    if file_tied:
        paramtool.torch.load_model(mine, path, assign=True)
        assert mine[0].weight is mine[1].weight and words(mine[0].weight) == words(source[0].weight)
        return
    with pytest.raises(TieError, match=r"ties '\d.weight' and '\d.weight'"):
        paramtool.torch.load_model(mine, path, assign=True)
    assert everything(mine) == before


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("assign", [False, True])
def test_nested_tensors_are_refused_where_torch_raises(assign: bool, layout: torch.layout, tmp_path: Path) -> None:
    def made() -> nn.Module:
        model = nn.Linear(2, 2)
        model.register_buffer("rows", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout))
        return model

    torch.save(made().state_dict(), path := tmp_path / "m.pt")
    theirs, mine = made(), made()
    before = mine.weight.detach().clone()  # type: ignore[operator]
    assert in_torch(theirs, path, assign=assign)
    with pytest.raises(ModelError, match="'rows': is nested"):
        paramtool.torch.load_model(mine, path, assign=assign)
    assert torch.equal(before, mine.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"assign": True}, {"assign": True, "dtype": torch.float64}])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_names_with_dots(options: dict[str, Any], device: str, tmp_path: Path) -> None:
    """Which some libraries write past `register_parameter`: torch fills them, and calls them left over when strict."""

    class Dotted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._parameters["a.b"], self._buffers["c.d"] = nn.Parameter(torch.randn(2)), torch.randn(2)

    source, theirs = Dotted(), Dotted()
    torch.save(source.state_dict(), path := tmp_path / "m.pt")
    assert not in_torch(theirs, path, strict=False) and everything(theirs) == everything(source)
    with torch.device(device):
        mine = Dotted()
    paramtool.torch.load_model(mine, path, **options)
    assert everything(mine) == everything(source.to(options.get("dtype")))


class Hooked(nn.Module):
    """Two layers, beside code that drops a name or raises."""

    def __init__(self, drops: bool, raises: bool) -> None:
        super().__init__()
        self.a, self.b, self.drops, self.raises = nn.Linear(32, 32), nn.Linear(32, 32), drops, raises
        self.register_load_state_dict_pre_hook(Hooked.before)
        self.register_load_state_dict_post_hook(Hooked.after)

    @staticmethod
    def before(module: Any, state: dict[str, Any], *rest: Any) -> None:
        if module.drops:
            state.pop("a.weight")

    @staticmethod
    def after(module: Any, keys: Any) -> None:
        if module.raises:
            raise KeyError("no")


@pytest.mark.parametrize("on_meta", [False, True])
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("raises", [False, True])
def test_hooks_beside_tensors_of_torchao(raises: bool, drops: bool, on_meta: bool, tmp_path: Path) -> None:
    """What a hook leaves out keeps the very tensor that it was, and so does all where it raises."""
    quantization = pytest.importorskip("torchao.quantization", reason="tensors of torchao")
    quantization.quantize_(source := Hooked(False, False), quantization.Int8WeightOnlyConfig())
    torch.save(source.state_dict(), path := tmp_path / "m.pt")
    theirs, mine = Hooked(drops, raises), Hooked(drops, raises)
    mine = mine.to("meta") if on_meta else mine
    before = dict(mine.named_parameters())
    refused = in_torch(theirs, path, assign=True, strict=False)
    if raises:
        assert refused
        with pytest.raises(ModelError, match="KeyError while it was loaded"):
            paramtool.torch.load_model(mine, path, strict=False, assign=True)
        assert all(one is before[name] for name, one in mine.named_parameters())
        return
    loaded = paramtool.torch.load_model(mine, path, strict=False, assign=True)
    assert loaded.missing == ("a.weight",) * drops and loaded.on_meta == ("a.weight",) * (drops and on_meta)
    assert (mine.a.weight is before["a.weight"]) == drops
    for name, one in theirs.named_parameters():
        if not (drops and name == "a.weight"):
            assert words(mine.get_parameter(name)) == words(one), name


def test_tensors_of_torchao_under_a_prefix_and_in_another_type(tmp_path: Path) -> None:
    """`dtype=` is what `.to` of the library makes of it."""
    quantization = pytest.importorskip("torchao.quantization", reason="tensors of torchao")
    source, mine, theirs = (nn.Sequential(nn.Linear(32, 32)) for _ in range(3))
    quantization.quantize_(source, quantization.Int8WeightOnlyConfig())
    torch.save(nn.ModuleDict({"net": source}).state_dict(), path := tmp_path / "m.pt")
    paramtool.torch.load_model(mine, path, prefix="net", assign=True, dtype=torch.bfloat16)
    theirs.load_state_dict(source.state_dict(), assign=True)
    assert everything(mine) == everything(theirs.to(torch.bfloat16))
