"""`passes/select.py`: one section of a checkpoint, or the names that a model wants, with all that belongs to them."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping as Names
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.errors import UsageError
from paramtool.model.checkpoint import Checkpoint, Compound, Entry, Module, NoData, Section, Unknown, Unreadable
from paramtool.model.dtype import DTYPES
from paramtool.model.objects import (
    EMPTY,
    LEFT_OUT,
    Again,
    Leaf,
    Mapping,
    Node,
    Opaque,
    Sequence,
    TensorRef,
    tensor_names,
)
from paramtool.model.storage import Cast, Storage
from paramtool.passes import select
from tests.examples import examples
from tests.passes.made import Tensors, checkpoint, view


def tree(names: Iterable[str]) -> Mapping:
    """A dict of state dicts: one for each first word, with the rest of its names as keys."""
    items: dict[str, list[tuple[str, Node]]] = {}
    for name in names:
        top, _, rest = name.partition(".")
        items.setdefault(top, []).append((rest, TensorRef(name)))
    return Mapping("dict", tuple((top, Mapping("dict", tuple(pairs))) for top, pairs in items.items()))


def nested(tensors: Tensors, **roles: str) -> Checkpoint:
    """A checkpoint of such names, with a section for each first word that has a role, which its tensors have, too."""
    sections = [Section(name, f"{name}.", role) for name, role in roles.items()]
    made = checkpoint(tensors, objects=tree(tensors), sections=sections)
    by_role = {
        name: one._replace(role=roles.get(name.partition(".")[0], one.role)) for name, one in made.entries.items()
    }
    return replace(made, entries=by_role)


TRAINED = nested(
    {"model.w": (2, 3), "model.a.b": (3,), "ema.w": (2, 3), "optim.0.m": (2,)},
    model="model", ema="ema", optim="optimizer",
)  # fmt: skip


@pytest.mark.parametrize(
    "names, expect",
    [
        (["module.a", "module.b.c"], "module."), (["module.a", "b"], ""), ([], ""), (["modules.a"], ""),
        (["_orig_mod.module.a", "_orig_mod.module.b"], "_orig_mod.module."), (["n_averaged", "module.a"], "module."),
        (["module.module.a", "module.b"], "module."), (["n_averaged"], ""), (["model.a"], ""),
        (["module.n_averaged", "module.module.a"], "module."),
    ],
)  # fmt: skip
def test_wrappers(names: list[str], expect: str) -> None:
    """Whatever stands around all names, as often as it does; AveragedModel's counter stands outside."""
    assert select.wrapper(names) == expect


def test_a_section_has_its_own_alone() -> None:
    """Names without the prefix, roles, storages that are looked at, the tree below it; no sections any more."""
    found = select.section(TRAINED, "model")
    assert found.entries == {"w": TRAINED.entries["model.w"], "a.b": TRAINED.entries["model.a.b"]}
    assert found.storages == {0: TRAINED.storages[0], 1: TRAINED.storages[1]} and found.sections == ()
    assert found.objects == Mapping("dict", (("w", TensorRef("w")), ("a.b", TensorRef("a.b"))))
    assert [entry.role for entry in select.section(TRAINED, "optim").entries.values()] == ["optimizer"]
    with pytest.raises(UsageError, match=r"no section 'net'; its sections: 'model', 'ema', 'optim'"):
        select.section(TRAINED, "net")
    with pytest.raises(UsageError, match="its sections: none"):
        select.section(checkpoint({"w": (1,)}), "w")


def test_a_section_inside_another() -> None:
    """Its name has dots, and what begins alike belongs to somebody else."""
    tensors: Tensors = {"a.net.w": (2,), "a.net2.w": (3,), "b.net.w": (4,)}
    pairs = (("net", Mapping("dict", (("w", TensorRef("a.net.w")),))), ("net2.w", TensorRef("a.net2.w")))
    objects = Mapping("dict", (("a", Mapping("dict", pairs)), ("b", Mapping("dict", (("net", EMPTY),)))))
    file = checkpoint(tensors, objects=objects, sections=[Section("a.net", "a.net.", "model")])
    assert list(select.section(file, "a.net").entries) == ["w"]
    assert select.section(file, "a.net").storages.keys() == {0}


def test_what_a_cast_is_made_of_goes_along() -> None:
    """The storage that a calculated one needs is kept, though no name of the section looks at it."""
    file = nested({"e.half": view(0, 6, dtype="bfloat16"), "m.w": view(1, 6), "m.x": view(2, 6)}, e="ema", m="model")
    storages = {k: Storage(k, one.nbytes, one.backing) for k, one in file.storages.items()}
    storages[0] = storages[0]._replace(backing=Cast(view(1, 6), DTYPES["bfloat16"]))
    assert select.section(replace(file, storages=storages), "e").storages.keys() == {0, 1}
    assert select.section(replace(file, storages=storages), "m").storages.keys() == {1, 2}


def test_the_objects_of_a_section() -> None:
    """Values stay, tensors lose the prefix, and a place that is referred to is counted from the section."""
    odd, lost = Opaque("lib.Thing", (("args", Leaf(1)),)), Opaque("lib.Lost", ())
    inside = Mapping("dict", (("w", TensorRef("m.w")), ("n", Leaf(3)), ("self", Again("m")), ("odd", odd),
                              ("l", Sequence("list", (TensorRef("m.l.0"), Again("m.l"))))))  # fmt: skip
    objects = Mapping("dict", (("m", inside), ("epoch", Leaf(7)), ("lost", lost)))
    unknown = (
        Unknown("lib.Thing", False), Unknown("lib.Lost", False), Unknown("f", True, needed_by=("m.w", "x.w")),
        Unknown("g", True, needed_by=("x.w",)),
    )  # fmt: skip
    file = checkpoint(
        {"m.w": (2,), "m.l.0": (2,), "x.w": (2,)}, objects=objects, sections=[Section("m", "m.", "model")]
    )
    found = select.section(replace(file, unknown=unknown), "m")
    assert found.objects == Mapping("dict", (
        ("w", TensorRef("w")), ("n", Leaf(3)), ("self", Again("")), ("odd", odd),
        ("l", Sequence("list", (TensorRef("l.0"), Again("l")))),
    ))  # fmt: skip
    assert list(found.entries) == ["w", "l.0"]
    assert found.unknown == (Unknown("lib.Thing", False), Unknown("f", True, needed_by=("w",)))


def test_the_networks_of_a_section() -> None:
    """They lose the prefix, or all of their place; those of other sections, and across two, do not come along."""
    modules = (
        Module("m.rnn", "torch", "lstm", {"weight": "m.rnn.W"}), Module("m", "torch"), Module("x.rnn", "torch"),
        Module("mm", "torch"), Module("m.two", "torch", "", {"weight": "x.W"}),
    )  # fmt: skip
    file = replace(nested({"m.rnn.W": (2,), "x.W": (2,)}, m="model", x="ema"), modules=modules)
    assert select.section(file, "m").modules == (
        Module("rnn", "torch", "lstm", {"weight": "rnn.W"}), Module("", "torch"),
    )  # fmt: skip


def test_the_section_that_holds_most() -> None:
    """Of what is wanted; the whole where it holds as much; a draw is an error that lists those alone."""
    assert select.section_for(TRAINED, ["w", "a.b", "0.m"]) == "model"
    assert select.section_for(TRAINED, ["0.m"]) == "optim"
    for whole in (["model.w", "w"], ["other"], [], ["model.w", "ema.w"]):
        assert select.section_for(TRAINED, whole) is None
    with pytest.raises(UsageError, match=r"2 sections hold the wanted names: 'model', 'ema'\n"):
        select.section_for(TRAINED, ["w"])
    assert select.section_for(checkpoint({"w": (1,)}), ["v"]) is None


NAMES = st.lists(st.sampled_from(["w", "b", "x.w", "x.b", "y"]), unique=True, max_size=5)


@given(NAMES, NAMES, NAMES)
@settings(max_examples=examples(50))
def test_sections_are_parts_that_lose_nothing(a: list[str], b: list[str], wanted: list[str]) -> None:
    """Each name is in its own section, each tensor of a tree is a name, and the best section is the best."""
    names = [f"a.{name}" for name in a] + [f"b.{name}" for name in b]
    file = nested(dict.fromkeys(names, (2,)), a="model", b="ema")
    parts = {one.name: select.section(file, one.name) for one in file.sections}
    assert [f"{part}.{name}" for part, found in parts.items() for name in found.entries] == names
    for found in parts.values():
        assert list(tensor_names(found.objects)) == list(found.entries)
        assert set(found.storages) == {view.storage for view in found.views().values()}
    counts = {part: len(set(wanted) & set(found.entries)) for part, found in parts.items()}
    if counts["a"] == counts["b"] > 0:
        with pytest.raises(UsageError):
            select.section_for(file, wanted)
    else:
        best = max(counts, key=counts.__getitem__) if any(counts.values()) else None
        assert select.section_for(file, wanted) == best


def test_the_model_of_a_training() -> None:
    """Beside an optimizer or an average the one model section; a file of models is all of it one."""
    assert select.model_section(TRAINED, "?") == "model"
    assert select.model_section(nested({"a.w": (1,), "b.w": (1,)}, a="model", b="model"), "?") is None
    assert select.model_section(checkpoint({"w": (1,)}), "?") is None
    two = nested({"a.w": (1,), "b.w": (1,), "o.m": (1,)}, a="model", b="model", o="optimizer")
    outside = nested({"a.w": (1,), "w": (1,), "o.m": (1,)}, a="model", o="ema")
    none = nested({"o.m": (1,)}, o="optimizer")
    for file in (two, outside, none):
        with pytest.raises(UsageError, match=r"'o' \((optimizer|ema)\)") as error:
            select.model_section(file, "say which")
        assert error.value.hint == "say which"
    beside = nested({"a.w": (1,), "x": Entry(view(1, 1), "other"), "o.m": view(2, 1)}, a="model", o="ema")
    assert select.model_section(beside, "?") == "a"


def test_names_under_a_prefix() -> None:
    """Without it, whatever it ends with, and no objects; the prefix itself is no name under it."""
    file = nested({"bert.w": (1,), "bert.x.b": (1,), "bert": (2,), "head.w": (1,)}, head="model")
    found = select.under(replace(file, modules=(Module("bert", "torch"),)), "bert.")
    assert found.entries == {"w": file.entries["bert.w"], "x.b": file.entries["bert.x.b"]}
    assert (found.objects, found.sections, found.modules) == (EMPTY, (), ())
    assert list(select.under(file, "bert").entries) == [".w", ".x.b"]
    assert list(select.under(file, "").entries) == list(file.entries)
    for prefix in ("net.", "head.w"):
        with pytest.raises(UsageError, match=f"no name begins with '{prefix}'; its names begin with 'bert', 'head'$"):
            select.under(file, prefix)


def test_what_can_be_stored() -> None:
    """Plain windows and those with a pending sign, but for what the format refuses by name and dtype."""
    conj = Entry(Compound("conj", {"data": view(1, 2, dtype="complex64")}))
    file = checkpoint({
        "w": (2,), "z": conj, "half": view(2, 2, dtype="float16"), "meta": Entry(NoData(DTYPES["int8"], (1,))),
        "odd": Entry(Unreadable("f")), "sparse": Entry(Compound("sparse_coo", {"values": view(2, 2)})),
    })  # fmt: skip
    asked: list[Names[str, str]] = []

    def refusals(dtypes: Names[str, str]) -> Names[str, str]:
        asked.append(dtypes)
        return {"half": "no float16"}

    assert list(select.storable(file, refusals).entries) == ["w", "z"]
    assert asked == [{"w": "float32", "z": "complex64", "half": "float16"}]


@pytest.mark.parametrize("path", ["", "other"])
def test_what_is_around_a_section_is_left_out(path: str) -> None:
    """An object that holds the section, or is elsewhere, is not in it."""
    inside = Mapping("dict", (("w", TensorRef("m.w")), ("x", Again(path)), ("self", Again("m"))))
    objects = Mapping("dict", (("m", inside), ("other", EMPTY)))
    made = checkpoint({"m.w": (2,)}, objects=objects, sections=[Section("m", "m.", "model")])
    found = select.section(made, "m").objects
    assert isinstance(found, Mapping)
    (_, out), (_, own) = found.items[1:]
    assert isinstance(out, Opaque) and out.path == LEFT_OUT and own == Again("")
