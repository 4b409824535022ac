"""`load_model` is `load_state_dict(torch.load(FILE))` for trees of modules with any code that torch lets them have.

Both leave the same parameters, buffers, extra states, ties and gradients, bit for bit, or both raise: paramtool before
the model changed, unless the module's own code raised, and then it names what changed.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import nn

import paramtool.torch
from paramtool.errors import ModelError, TieError
from tests.examples import examples
from tests.laws.modules import Node, build, trees
from tests.laws.sharing import partition, raw
from tests.laws.test_load_protocol import everything, words

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated parts of torch
CHANGES = (
    "as it is", "as it is", "as it is", "a name less", "a name more", "another shape", "another type", "a plain dict",
    "older", "without versions", "apart",
)  # fmt: skip


def changed(data: st.DataObject, state: Any) -> Any:
    """A state dict, or what else could be in a file of it."""
    change = data.draw(st.sampled_from(CHANGES), "change")
    found = OrderedDict(state)
    found._metadata = OrderedDict(state._metadata)  # type: ignore[attr-defined]
    names = [name for name, one in state.items() if isinstance(one, torch.Tensor)]
    name = data.draw(st.sampled_from(names or [""]), "name")
    if change == "a name more":
        found["more"] = torch.ones(2)
    elif change == "a plain dict":
        return dict(state)
    elif change in ("older", "without versions"):
        older = {at: {"version": 1} if change == "older" else {} for at in state._metadata}
        found._metadata = OrderedDict(older)  # type: ignore[attr-defined]
    elif change == "apart":
        for at in names:
            found[at] = state[at].clone()
    elif name and change == "a name less":
        del found[name]
    elif name and change == "another shape":
        found[name] = torch.ones(7, 3, 2)
    elif name and change == "another type" and state[name].is_floating_point():
        found[name] = state[name].to(torch.float16)
    return found


def named(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by all of their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def values(model: nn.Module) -> dict[str, Any]:
    """The bytes of all parameters and buffers that have some."""
    return {name: None if one.is_meta else raw(one) for name, one in named(model).items()}


@contextmanager
def garbage() -> Iterator[None]:
    """New memory is full of ones and NaN, so that nobody takes it for values."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def made(tree: tuple[Node, ...], closures: bool, seed: int, device: str = "cpu") -> nn.Module:
    torch.manual_seed(seed)
    with torch.device(device):
        return build(tree, closures)


@settings(max_examples=examples(240), deadline=None)
@given(st.data())
def test_any_tree_of_modules(data: st.DataObject) -> None:
    tree: tuple[Node, ...] = data.draw(trees(), "tree")
    closures, strict = data.draw(st.integers(0, 3), "closures") == 0, data.draw(st.booleans(), "strict")
    how = data.draw(st.sampled_from(["copy", "copy", "assign", "meta"]), "how")
    dtype = data.draw(st.sampled_from([None, torch.float64]), "dtype") if how != "copy" else None
    state = changed(data, made(tree, closures, 0).state_dict())
    within = (
        any(isinstance(one, torch.Tensor) for one in state.values()) and data.draw(st.integers(0, 3), "within") == 0
    )
    theirs, mine = made(tree, closures, 1), made(tree, closures, 1)
    if how == "meta":
        mine = made(tree, closures, 1, "meta")
    before, ties = values(mine), partition(named(theirs))
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, path := Path(folder, "m.pt"))
        refused = reported = ""
        missing: list[str] = []
        unexpected: list[str] = []
        given = torch.load(path, weights_only=False)
        try:
            missing, unexpected = theirs.load_state_dict(given, strict=False)
        except Exception as error:
            refused = str(error)
        if within:
            whole = OrderedDict({f"net.part.{name}": one for name, one in state.items()}, other=torch.ones(1))
            if hasattr(state, "_metadata"):
                versions = {f"net.part.{at}".removesuffix("."): one for at, one in state._metadata.items()}
                whole._metadata = OrderedDict({"": {"version": 1}, "net": {"version": 1}, **versions})  # type: ignore[attr-defined]
            torch.save(whole, path)
        try:
            with garbage():
                loaded = paramtool.torch.load_model(
                    mine, path, strict, prefix="net.part" if within else "", assign=how == "assign", dtype=dtype
                )
        except ModelError as error:
            reported = f"{error}\n{error.hint}"
            note(f"{type(error).__name__}: {reported}")
            own = "while it was loaded" in str(error)
            is_told = "it changed before that:" in reported
            assert values(mine) == before or (own and is_told)
            assert refused or isinstance(error, TieError) or (strict and (missing or unexpected)), "torch loads it"
            return
    note(f"torch: {refused or (missing, unexpected)}")
    note(f"paramtool: {loaded}")
    assert not refused
    assert {*loaded.missing} <= {*missing}
    if strict:
        assert not loaded.missing
    for at, module in theirs.named_modules(remove_duplicate=False):
        if hasattr(module, "get_extra_state") and f"{at}._extra_state".removeprefix(".") in given:
            assert words(mine.get_submodule(at).state) == words(module.state), at
    tensors = named(mine)
    for name, one in named(theirs).items():
        tensor = tensors[name]
        assert tensor.requires_grad == one.requires_grad, name
        if tensor.is_meta:
            assert name in loaded.on_meta, name
            continue
        is_given = name not in loaded.missing and not name.endswith("positions")  # a buffer that is not saved
        kept = dtype if dtype is not None and one.is_floating_point() and is_given else one.dtype
        types = (kept, torch.float16, torch.bfloat16) if how == "assign" and dtype is None else (kept,)
        assert tensor.dtype in types, name  # with assign, that of the file
        if how == "copy" or name not in loaded.missing:  # a hook's arithmetic on what no file filled is not followed
            assert raw(one.to(tensor.dtype)) == raw(tensor), name
    if how == "copy":
        assert everything(mine) == everything(theirs)
    same_types = all(tensors[name].dtype == one.dtype for name, one in named(theirs).items())
    if how != "meta" and same_types:
        assert partition(tensors) == ties


@pytest.mark.parametrize("closures", [False, True])
@pytest.mark.parametrize("how", ["assign", "meta"])
def test_what_a_hook_forgives_stays_as_it_was(how: str, closures: bool, tmp_path: Path) -> None:
    """A hook that calls a missing name found does not make new memory a value."""
    tree = (Node(0, "part", ("forgiving",)), Node(0, "Linear", ("left_out",)))
    torch.save(made(tree, closures, 0).state_dict(), path := tmp_path / "m.pt")
    model = made(tree, closures, 1, "meta" if how == "meta" else "cpu")
    before = named(model)["m1.bias"].detach().clone()
    with garbage():
        loaded = paramtool.torch.load_model(model, path, assign=how == "assign")
    after = named(model)["m1.bias"]
    assert after.is_meta if how == "meta" else torch.equal(after, before)
    assert loaded.on_meta == (("m1.bias",) if how == "meta" else ())
