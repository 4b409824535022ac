"""Julia's BSON: what files hold, what their references share, and what is refused; other people's files by pymongo."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bson
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import paramtool
from paramtool.errors import FormatError, UnsafeError
from paramtool.formats.bson import _types
from paramtool.model.objects import Again, Leaf, Opaque, Sequence, TensorRef
from paramtool.model.objects import Mapping as MappingNode
from paramtool.model.view import View
from tests.contracts.julia import Dict, Document, Struct, Symbol, Type, array, lowered, named_tuple, save
from tests.examples import examples
from tests.laws.sharing import described, raw

FLUX = "FluxML__Flux.jl__"
SAMPLES = {
    "docs_mymodel": {
        "model.layers.1.weight": [5, 10], "model.layers.1.bias": [5],
        "model.layers.2.weight": [2, 5], "model.layers.2.bias": [2],
    },
    "docs_checkpoint": {
        "model_state.layers.1.weight": [2, 1], "model_state.layers.1.bias": [2],
        "model_state.layers.2.weight": [1, 2], "model_state.layers.2.bias": [1],
    },
    "modelcnn-0.964-0.001": {
        **{f"model2dcnn.layers.{k + 1}.{own}": size for k, (i, o) in enumerate([(1, 3), (3, 3), (3, 3), (3, 3), (3, 1)])
           for own, size in (("weight", [3, 3, i, o]), ("bias", [o]))},
        "model2dcnn.layers.7.weight": [8, 16], "model2dcnn.layers.7.bias": [8],
        "model2dcnn.layers.8.weight": [2, 8], "model2dcnn.layers.8.bias": [2],
    },
}  # fmt: skip


def arrays(value: Any) -> list[np.ndarray[Any, Any]]:
    """Every array of a document that pymongo read, in order, without its back-references."""
    if isinstance(value, list):
        return [found for item in value for found in arrays(item)]
    if not isinstance(value, dict):
        return []
    if value.get("tag") == "array" and isinstance(value["data"], bytes):
        return [array(value)]
    return [found for key, item in value.items() if key != "_backrefs" for found in arrays(item)]


def views(path: Path) -> dict[str, View]:
    """The windows of a file."""
    return paramtool.read(path).views()


def saved(folder: Path, **variables: Any) -> Path:
    """A file of some variables."""
    return save(folder / "m.bson", **variables)


def raw_file(folder: Path, document: Mapping[str, Any]) -> Path:
    """A file with a document as it is."""
    (folder / "m.bson").write_bytes(bson.encode(document))
    return folder / "m.bson"


def f4(*shape: int, start: int = 0) -> np.ndarray[Any, Any]:
    """Different numbers."""
    return np.arange(start, start + int(np.prod(shape)), dtype="f4").reshape(shape)


class TestSamples:
    """Files that Julia wrote."""

    @pytest.mark.parametrize("name", SAMPLES)
    def test_names_and_values(self, samples: Path, name: str) -> None:
        """Names by Flux's fields, Julia's shapes, and the values that pymongo's bytes have column by column."""
        path = samples / f"{FLUX}{name}.bson"
        found = paramtool.load_file(path)
        assert {own: list(tensor.shape) for own, tensor in found.items()} == SAMPLES[name]
        expected = arrays(bson.decode(path.read_bytes()))
        assert [raw(tensor) for tensor in found.values()] == [raw(each) for each in expected]

    @pytest.mark.parametrize("name", SAMPLES)
    def test_the_first_axis_is_the_fastest(self, samples: Path, name: str) -> None:
        """Nothing is turned round: strides say how Julia stores an array."""
        for view in views(samples / f"{FLUX}{name}.bson").values():
            assert view.offset == 0
            steps = [int(np.prod(view.shape[:k])) for k in range(len(view.shape))]
            assert all(n == 1 or a == b for n, a, b in zip(view.shape, view.strides, steps, strict=True))

    def test_a_dense_layer_computes_what_its_columns_say(self, samples: Path) -> None:
        """W x + b of the CNN's last layers, by a loop over the file's own order of numbers."""
        path = samples / f"{FLUX}modelcnn-0.964-0.001.bson"
        found = paramtool.load_file(path)
        top = bson.decode(path.read_bytes())
        layers = top["model2dcnn"]["data"][0]["data"]
        for number, x in ((7, np.linspace(-1, 1, 16)), (8, np.linspace(-2, 2, 8))):
            weight, bias, _ = layers[number - 1]["data"]
            rows, columns = weight["size"]
            flat = struct.unpack(f"<{rows * columns}f", weight["data"])
            expected = list(struct.unpack(f"<{rows}f", bias["data"]))
            for column in range(columns):
                for row in range(rows):
                    expected[row] += flat[column * rows + row] * x[column]
            w, b = (found[f"model2dcnn.layers.{number}.{own}"].astype("f8") for own in ("weight", "bias"))
            assert np.abs(w @ x + b - expected).max() < 1e-6

    @pytest.mark.parametrize("name", SAMPLES)
    def test_our_writer_has_the_form_of_julias(self, samples: Path, name: str) -> None:
        """What the other tests are made by: each document of a real file has the members that ours have."""
        known = forms(lowered({"a": Struct(Type("A", (Type("B"),)), [f4(2), (1,), Symbol("s"), named_tuple(x=1)])}))
        found = forms(bson.decode((samples / f"{FLUX}{name}.bson").read_bytes()))
        assert found <= {*known, ("backref", ("ref", "tag"))}

    def test_the_tree_keeps_types(self, samples: Path) -> None:
        """A struct is the name of its type and its fields; nothing was looked up."""
        tree = paramtool.read(samples / f"{FLUX}docs_mymodel.bson").objects
        assert isinstance(tree, MappingNode)
        ((key, chain),) = tree.items
        assert isinstance(chain, Opaque) and (key, chain.path) == ("model", "Flux.Chain")
        layers = chain.parts[0][1]
        assert isinstance(layers, Sequence)
        assert layers.items[0] == Opaque(
            "Flux.Dense",
            (("weight", TensorRef("model.layers.1.weight")), ("bias", TensorRef("model.layers.1.bias")),
             ("\u03c3", Opaque("NNlib.#relu", ()))),
        )  # fmt: skip
        assert layers.items[2] == Opaque("NNlib.#softmax", ())


def forms(value: Any) -> set[tuple[str, tuple[str, ...]]]:
    """(tag, members) of every document."""
    if isinstance(value, list):
        return {form for item in value for form in forms(item)}
    if not isinstance(value, dict):
        return set()
    own = {(value["tag"], tuple(sorted(value)))} if "tag" in value else set()
    return own.union(*(forms(item) for item in value.values()))


class TestValues:
    """Each kind of value."""

    @pytest.mark.parametrize("dtype", [*sorted(_types.CODES), "complex64", "complex128"])
    def test_arrays_of_numbers(self, tmp_path: Path, dtype: str) -> None:
        """Every type of Julia's numbers, in up to three axes, none and empty ones."""
        shapes: list[tuple[int, ...]] = [(), (0,), (3,), (2, 3), (2, 0, 4), (2, 3, 4)]
        held = {
            f"a{k}": np.arange(1, 1 + np.prod(shape)).reshape(shape).astype(dtype) for k, shape in enumerate(shapes)
        }
        if dtype == "uint8":
            held["a2"] = np.arange(3, dtype="u1")  # a vector of bytes is binary data by itself
        found = paramtool.load_file(saved(tmp_path, **held))
        assert {name: (*described(t), raw(t)) for name, t in found.items()} == {
            name: (dtype, each.shape, raw(each)) for name, each in held.items()
        }

    def test_older_julias_call_core_a_part_of_main(self, tmp_path: Path) -> None:
        """BSON.jl's own test files do, which Julia 0.6 and 0.7 wrote; a module of the user's keeps its whole name."""
        document = Document({"tag": "array", "type": Type("Main.Core.Float32"), "size": [1], "data": b"\0\0\x80\x3f"})
        path = saved(tmp_path, a=document, b=Struct(Type("Main.Mine.S"), []))
        assert paramtool.load_file(path)["a"].tolist() == [1.0]
        tree = paramtool.read(path).objects
        assert isinstance(tree, MappingNode) and dict(tree.items)["b"] == Opaque("Main.Mine.S", ())

    def test_bfloat16_has_two_names(self, tmp_path: Path) -> None:
        """Of the package, and of Core."""
        for name in ("BFloat16s.BFloat16", "Core.BFloat16"):
            document = Document({"tag": "array", "type": Type(name), "size": [2], "data": b"\x80\x3f\x00\x40"})
            assert paramtool.load_file(saved(tmp_path, a=document))["a"].tolist() == [1.0, 2.0]

    @settings(max_examples=examples(60))
    @given(st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("abcxyz", min_size=1, max_size=4).filter(lambda k: k != "tag"), inner, max_size=3),
        max_leaves=12,
    ))  # fmt: skip
    def test_plain_values_come_back(self, tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
        """Numbers, strings, nothing, vectors, tuples and dicts of symbols."""
        tree = paramtool.read(saved(tmp_path_factory.mktemp("v"), x=value)).objects
        assert isinstance(tree, MappingNode)
        assert plain(dict(tree.items)["x"]) == value

    def test_small_numbers_are_numbers(self, tmp_path: Path) -> None:
        """Numbers for which BSON has no element are primitive structs."""
        held = {"a": np.float32(1.5), "b": np.uint64(2**63), "c": np.int8(-1), "d": np.float16(0.5)}
        tree = paramtool.read(saved(tmp_path, **held)).objects
        assert isinstance(tree, MappingNode)
        assert {key: node.value for key, node in tree.items if isinstance(node, Leaf)} == held

    def test_other_tags(self, tmp_path: Path) -> None:
        """Symbols, types, modules, simple vectors, the bottom type and other primitives are values, shown by name."""
        path = saved(
            tmp_path,
            a=Symbol("sym"), b=Type("Main.Base.Complex", (Type("Core.Int64"),)),
            c=Document({"tag": "ref", "path": ["Main", "Base", "Math"]}),
            d=Document({"tag": "svec", "data": [1]}), e=Document({"tag": "jl_bottom_type"}),
            f=Document({"tag": "unionall", "body": Type("Core.Array"), "var": 1}),
            g=Document({"tag": "struct", "type": Type("Core.Char"), "data": b"\0\0\0a"}),
        )  # fmt: skip
        tree = paramtool.read(path).objects
        assert isinstance(tree, MappingNode)
        assert [node for _, node in tree.items] == [
            Opaque("Core.Symbol", (("name", Leaf("sym")),)),
            Opaque("Core.DataType", (("name", Leaf("Base.Complex")),)),
            Opaque("Core.Module", (("name", Leaf("Base.Math")),)),
            Sequence("Core.SimpleVector", (Leaf(1),)),
            Opaque("Core.DataType", (("name", Leaf("Union{}")),)),
            Opaque("Core.DataType", (("name", Leaf("Core.Array")),)),
            Opaque("Core.Char", (("data", Leaf(b"\0\0\0a")),)),
        ]

    def test_anonymous_functions_are_not_defined(self, tmp_path: Path) -> None:
        """Their code is in the file; a note says that BSON.jl would define them."""
        function = Document({"tag": "jl_anonymous", "typename": Struct(Type("Core.TypeName"), []), "params": []})
        checkpoint = paramtool.read(saved(tmp_path, f=Struct(function, [f4(2)]), w=f4(3)))
        assert list(checkpoint.entries) == ["f.1", "w"]
        assert "anonymous function" in checkpoint.notes[0] and "nothing was run" in checkpoint.notes[0]

    def test_arrays_of_something_else_are_left_out(self, tmp_path: Path) -> None:
        """Elements that are no numbers of ours: the name and the size are said."""
        chars = Document({"tag": "array", "type": Type("Core.Char"), "size": [2], "data": b"\0\0\0a\0\0\0b"})
        words = Document({"tag": "array", "type": Type("Core.Any"), "size": [2, 1], "data": ["a", f4(3)]})
        checkpoint = paramtool.read(saved(tmp_path, chars=chars, words=words))
        assert list(checkpoint.entries) == ["words.2"]
        (left,) = checkpoint.left_out
        assert left == "1 array left out, whose elements are not numbers that paramtool knows: 'chars'"

    def test_unknown_tags_are_dicts(self, tmp_path: Path) -> None:
        """As for BSON.jl; a note names them."""
        checkpoint = paramtool.read(saved(tmp_path, a=Document({"tag": "quux", "data": [f4(2)]})))
        assert list(checkpoint.entries) == ["a.data.1"]
        assert "'quux'" in checkpoint.notes[0]


def plain(node: Any) -> Any:
    """The value of a node of plain values."""
    match node:
        case Leaf(value):
            return value
        case Sequence(kind, items):
            found = [plain(item) for item in items]
            return tuple(found) if kind == "tuple" else found
        case MappingNode(_, pairs):
            return {key: plain(child) for key, child in pairs}
    raise AssertionError(node)


class TestReferences:
    """Objects in several places."""

    def test_one_array_in_several_places(self, tmp_path: Path) -> None:
        """One storage, and one alias set."""
        w = f4(2, 3)
        report = paramtool.inspect(saved(tmp_path, a=w, b=Struct(Type("M"), [w]), c=[w], d=w.copy("F")))
        assert [(owner, [m.name for m in members]) for owner, members in report.graph.groups()] == [
            ("a", ["a", "b.1", "c.1"])
        ]

    def test_a_shared_object_is_one_object(self, tmp_path: Path) -> None:
        """A struct in two places is expanded at both, with one mark."""
        layer = Struct(Type("Flux.BatchNorm"), [f4(2)], mutable=True)
        checkpoint = paramtool.read(saved(tmp_path, a=layer, b=(layer,)))
        assert list(checkpoint.entries) == ["a.1", "b.1.1"]
        assert len(checkpoint.storages) == 1
        tree = checkpoint.objects
        assert isinstance(tree, MappingNode)
        (_, first), (_, pair) = tree.items
        assert isinstance(pair, Sequence) and isinstance(first, Opaque) and isinstance(pair.items[0], Opaque)
        assert first.mark == pair.items[0].mark > 0

    def test_a_cycle_ends_where_it_began(self, tmp_path: Path) -> None:
        """A struct that holds itself, and a vector that does."""
        node = Struct(Type("Main.Node"), [f4(2), None], mutable=True)
        node.fields = [f4(2), node]
        row: list[Any] = [1]
        row.append(row)
        checkpoint = paramtool.read(saved(tmp_path, node=node, row=row))
        assert list(checkpoint.entries) == ["node.1"]
        tree = checkpoint.objects
        assert isinstance(tree, MappingNode)
        found = dict(tree.items)
        assert isinstance(found["node"], Opaque) and found["node"].parts[1][1] == Again("node")
        assert isinstance(found["row"], Sequence) and found["row"].items[1] == Again("row")

    def test_a_transpose_is_a_view_of_its_matrix(self, tmp_path: Path) -> None:
        """Tied, with its axes exchanged; nothing is copied."""
        w = f4(2, 3)
        row = Struct(Type("LinearAlgebra.Adjoint"), [f4(3)])
        path = saved(tmp_path, a=w, b=Struct(Type("LinearAlgebra.Transpose"), [w]), c=row)
        found = paramtool.load_file(path)
        assert found["b"].tolist() == w.T.tolist() and found["c"].tolist() == [[0, 1, 2]]
        assert np.shares_memory(found["a"], found["b"])

    def test_an_adjoint_of_complex_numbers_is_a_struct(self, tmp_path: Path) -> None:
        """Its values are not those of the matrix, so the matrix is called by its position."""
        checkpoint = paramtool.read(saved(tmp_path, a=Struct(Type("LinearAlgebra.Adjoint"), [np.ones((2, 3), "c8")])))
        assert list(checkpoint.entries) == ["a.1"]

    def test_a_bomb_of_references_is_refused(self, tmp_path: Path) -> None:
        """Lists that hold the next one ten times would be 10^30 values."""
        refs = [[{"tag": "backref", "ref": k + 2}] * 10 for k in range(30)] + [[1]]
        with pytest.raises(UnsafeError, match="unfold to more than"):
            paramtool.read(raw_file(tmp_path, {"a": {"tag": "backref", "ref": 1}, "_backrefs": refs}))

    @pytest.mark.parametrize("number", [0, -1, 3, 2**40])
    def test_a_reference_to_nothing_is_refused(self, tmp_path: Path, number: int) -> None:
        """The place is named."""
        path = raw_file(tmp_path, {"a": {"tag": "backref", "ref": bson.Int64(number)}, "_backrefs": [1, 2]})
        with pytest.raises(FormatError, match=f"document at byte 7: found the back-reference {number}; expected 1 to"):
            paramtool.read(path)

    def test_references_in_a_circle(self, tmp_path: Path) -> None:
        """As a value they are a cycle, as a type an error."""
        refs = [{"tag": "backref", "ref": 2}, {"tag": "backref", "ref": 1}]
        path = raw_file(tmp_path, {"a": {"tag": "backref", "ref": 1}, "_backrefs": refs})
        assert not paramtool.read(path).entries
        kind = {"tag": "struct", "type": {"tag": "backref", "ref": 1}, "data": []}
        with pytest.raises(FormatError, match="back-reference to itself"):
            paramtool.read(raw_file(tmp_path, {"a": kind, "_backrefs": refs}))


class TestOptimizers:
    """State that Flux keeps for each array, by the array itself."""

    def optimizer(self, *keys: np.ndarray[Any, Any]) -> Struct:
        """Adam, as Flux 0.13 has it."""
        state = Dict([(key, (key + 1, key + 2, np.array([0.9, 0.999]))) for key in keys])
        return Struct(Type("Flux.Optimise.Adam"), [1e-3, (0.9, 0.999), 1e-8, state], mutable=True)

    @pytest.mark.parametrize("order", ["model first", "optimizer first"])
    def test_state_is_called_after_its_array(self, tmp_path: Path, order: str) -> None:
        """Wherever the array comes; its role is the optimizer's."""
        w, b = f4(2, 3), f4(2)
        both = {"model": Struct(Type("Flux.Dense"), [w, b, True]), "opt": self.optimizer(b, w)}
        checkpoint = paramtool.read(saved(tmp_path, **(both if order[0] == "m" else dict(reversed(both.items())))))
        names = [f"opt.state.model.{own}.{k}" for own in ("bias", "weight") for k in (1, 2, 3)]
        assert [name for name, entry in checkpoint.entries.items() if entry.role == "optimizer"] == names
        assert [section.name for section in checkpoint.sections] == list(both if order[0] == "m" else reversed(both))

    def test_an_array_that_stands_nowhere_else(self, tmp_path: Path) -> None:
        """It is a tensor of its own, called by its position."""
        entries = paramtool.read(saved(tmp_path, opt=self.optimizer(f4(2)))).entries
        assert list(entries) == ["opt.state.@1", "opt.state.@1.1", "opt.state.@1.2", "opt.state.@1.3"]

    def test_leaves_of_optimisers(self, tmp_path: Path) -> None:
        """Optimisers.jl keeps a tree of the model's shape."""
        rule = Struct(Type("Optimisers.Adam"), [1, 2, 3])
        leaf = Struct(Type("Optimisers.Leaf"), [rule, (f4(2), f4(2)), False], True)
        entries = paramtool.read(saved(tmp_path, tree=named_tuple(weight=leaf))).entries
        assert {name: entry.role for name, entry in entries.items()} == {
            "tree.weight.state.1": "optimizer", "tree.weight.state.2": "optimizer",
        }  # fmt: skip

    def test_dicts_of_other_keys(self, tmp_path: Path) -> None:
        """Strings, symbols, numbers, structs; keys and values that Julia stores as arrays of numbers."""
        numbers = {"type": Type("Main.Base.Dict"), "data": [np.array([5, 6]), np.array([0.5, 1])]}
        path = saved(
            tmp_path,
            a=Dict([("x", f4(1)), (Symbol("y"), f4(2)), (3, f4(3)), ((1, 2), f4(4))], "Main.Base.Dict"),
            b=Document({"tag": "struct", **numbers}),
        )
        checkpoint = paramtool.read(path)
        assert list(checkpoint.entries) == ["a.x", "a.y", "a.3", "a.(1, 2)"]
        tree = checkpoint.objects
        assert isinstance(tree, MappingNode)
        found = dict(tree.items)["b"]
        assert isinstance(found, MappingNode) and found.items == ((5, Leaf(0.5)), (6, Leaf(1.0)))

    def test_names_that_collide_are_escaped(self, tmp_path: Path) -> None:
        """A key with a dot beside a path with that name; state follows its array's final name."""
        w = f4(2)
        path = saved(tmp_path, **{"a.b": w, "a": {"b": f4(3)}, "opt": self.optimizer(w)})
        names = list(paramtool.read(path).entries)
        assert names[:2] == ["a\\.b", "a.b"] and names[2].startswith("opt.state.a\\.b.1".replace("\\", ""))


class TestDamaged:
    """What is wrong is named by its place."""

    @pytest.mark.parametrize(
        ("kind", "words"),
        [(0x07, "ObjectId"), (0x09, "date"), (0x0B, "regular expression"), (0x13, "decimal128"), (0x06, "undefined")],
    )
    def test_elements_that_julia_does_not_write(self, tmp_path: Path, kind: int, words: str) -> None:
        """MongoDB's own types are named."""
        body = b"\x10a\0\1\0\0\0" + bytes([kind]) + b"b\0" + bytes(16) + b"\0"
        (tmp_path / "m.bson").write_bytes(struct.pack("<i", len(body) + 4) + body)
        with pytest.raises(FormatError, match=rf"byte 11: found an element of type 0x{kind:02x} \({words}\)"):
            paramtool.read(tmp_path / "m.bson")

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"size": [2, 3]}, "found 16 bytes of data; expected 24 for Core.Float32"),
            ({"size": [-4]}, r"found the size \[-4\]"),
            ({"size": [1] * 70 + [4]}, "expected up to 64 lengths"),
            ({"size": [2**40, 2**40]}, "found the size"),
            ({"size": 4}, "found 4 as 'size' of a 'array'; expected a row"),
            ({"size": ["4"]}, "found the size"),
            ({"data": "text"}, "as the data of an array of Core.Float32; expected binary data"),
            ({"data": [1.0] * 4}, "as the data of an array of Core.Float32"),
            ({"type": "Float32"}, "found 'Float32' as 'type'"),
            ({"type": {"tag": "datatype", "name": [], "params": []}}, "as a name; expected names"),
            ({"type": {"tag": "datatype", "name": ["Core", 1], "params": []}}, "as a name; expected names"),
            ({"type": {"tag": "symbol", "name": "x"}}, "as a type; expected a datatype"),
        ],
    )
    def test_arrays_that_contradict_themselves(self, tmp_path: Path, change: dict[str, Any], words: str) -> None:
        """Sizes that lie, types that are none."""
        good = {"tag": "array", "type": {"tag": "datatype", "name": ["Core", "Float32"], "params": []}, "size": [4],
                "data": bytes(16)}  # fmt: skip
        document = {"a": {**good, **change}}
        with pytest.raises(FormatError, match=words) as caught:
            paramtool.read(raw_file(tmp_path, document))
        assert "byte" in str(caught.value)

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ({"tag": "struct", "type": {"tag": "datatype", "name": ["A"], "params": []}}, "as the data of a struct A"),
            ({"tag": "tuple"}, "found nothing as 'data' of a 'tuple'"),
            ({"tag": "symbol", "name": 1}, "found 1 as 'name' of a 'symbol'; expected a string"),
            ({"tag": "backref"}, "found nothing as 'ref' of a 'backref'; expected a whole number"),
            ({"tag": "struct", "data": [1], "type": {"tag": "datatype", "name": ["Core", "NamedTuple"], "params": []}},
             "a named tuple of 1 value without their names"),
            ({"tag": "struct", "data": [[1], [1, 2]],
              "type": {"tag": "datatype", "name": ["Main", "Base", "Dict"], "params": []}},
             "a Base.Dict of 1 key and 2 values"),
            ({"tag": "struct", "data": [[1]],
              "type": {"tag": "datatype", "name": ["Main", "Base", "IdDict"], "params": []}},
             "expected its keys and its values"),
        ],
    )  # fmt: skip
    def test_objects_without_their_parts(self, tmp_path: Path, value: dict[str, Any], words: str) -> None:
        """The document is named by its place, what was found and what was expected."""
        with pytest.raises(FormatError, match=words) as caught:
            paramtool.read(raw_file(tmp_path, {"a": value}))
        assert "document at byte 7" in str(caught.value)

    @pytest.mark.parametrize("at", [0, 1, 2, 3])
    @pytest.mark.parametrize("value", [0x7F, 0xFF, 0x00])
    def test_lengths_that_lie(self, tmp_path: Path, at: int, value: int) -> None:
        """Each length of a small file, changed in each byte: an error with its place, and never an allocation."""
        path = saved(tmp_path, w=f4(2), s="text", t=("a", [1]))
        data = path.read_bytes()
        places = [k for k in range(4, len(data) - 4) if 4 <= struct.unpack_from("<i", data, k)[0] <= len(data)]
        assert len(places) > 10
        for place in (0, *places):
            changed = bytearray(data)
            changed[place + at] = value
            path.write_bytes(changed)
            try:
                found = paramtool.read(path).storages.values()
            except FormatError as error:
                assert "byte" in str(error)
                continue
            assert all(storage.nbytes <= len(data) for storage in found)

    def test_nesting_is_bounded(self, tmp_path: Path) -> None:
        """Deep documents are refused before Python's own stack ends."""
        body = b""
        for _ in range(300):
            body = b"\x04a\0" + struct.pack("<i", len(body) + 5) + body + b"\0"
        (tmp_path / "m.bson").write_bytes(struct.pack("<i", len(body) + 5) + body + b"\0")
        with pytest.raises(UnsafeError, match="nested deeper than 200 levels"):
            paramtool.read(tmp_path / "m.bson")
        for _ in range(2000):
            body = b"\x04a\0" + struct.pack("<i", len(body) + 5) + body + b"\0"
        (tmp_path / "m.bson").write_bytes(struct.pack("<i", len(body) + 5) + body + b"\0")
        with pytest.raises(UnsafeError, match="nested deeper than 2000 levels"):
            paramtool.read(tmp_path / "m.bson")

    def test_an_empty_document(self, tmp_path: Path) -> None:
        """Five bytes, and no tensor."""
        (tmp_path / "m.bson").write_bytes(b"\5\0\0\0\0")
        assert paramtool.read(tmp_path / "m.bson").entries == {}

    def test_describing_reads_no_data(self, tmp_path: Path) -> None:
        """A file of 400 MB, most of it a hole: the description needs its headers alone."""
        import tracemalloc

        path = saved(tmp_path, w=f4(3), v=f4(2))
        data = path.read_bytes()
        count = 100_000_000
        at = data.index(f4(3).tobytes())
        size = data.index(b"\x04size\0")
        grown = bytearray(data[:at])
        for place, step in ((0, 4 * count - 12), (4 + len(b"\x03w\0"), 4 * count - 12), (at - 5, 4 * count - 12)):
            struct.pack_into("<i", grown, place, struct.unpack_from("<i", grown, place)[0] + step)
        number = grown.index(struct.pack("<q", 3), size)
        struct.pack_into("<q", grown, number, count)
        with path.open("wb") as file:
            file.write(grown)
            file.seek(at + 4 * count)
            file.write(data[at + 12 :])
        tracemalloc.start()
        entries = paramtool.read(path).entries
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert entries["w"].value.shape == (count,) and list(entries) == ["w", "v"]  # type: ignore[union-attr]
        assert peak < 4 << 20
