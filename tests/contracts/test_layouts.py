"""What every layout promises: its places tile its tensors, and its names and shapes say what the network is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import product
from math import prod
from pathlib import Path

import pytest

from paramtool import layouts
from paramtool.errors import LayoutError
from paramtool.layouts.layout import Form, Layout, TensorRule, check_tiling, stored
from paramtool.layouts.networks import modules, network
from paramtool.layouts.spec import Spec

DOCS = Path(__file__).resolve().parents[2] / "docs"

HELD = {
    "torch": "lstm/projection gru/after rnn",
    "torch.cell": "lstm gru/after rnn one-way",
    "cudnn": "lstm/projection gru/after rnn",
    "mxnet": "lstm/projection gru/after rnn",
    "mxnet.unfused": "lstm/projection gru/after rnn",
    "mxnet.gates": "lstm gru/after rnn",
    "mxnet.cell": "lstm/projection gru/after rnn one-way",
    "mxnet.flat": "lstm/projection gru/after rnn",
    "mxnet.v2": "lstm/projection gru/after rnn",
    "keras": "lstm gru/after gru/before rnn",
    "keras.vars": "lstm gru/after gru/before rnn",
    "keras.cudnn": "lstm gru/after",
    "keras.gates": "lstm gru/before",
    "tf1.basic": "lstm/projection/peephole gru/before rnn",
    "tf1.block": "lstm/peephole gru/before",
    "tf1.opaque": "lstm/projection gru/after rnn",
    "tf1.canonical": "lstm gru/after",
    "flax.linen": "lstm gru/after rnn",
    "flax.nnx": "lstm gru/after rnn",
    "flax.nnx.optimized": "lstm",
    "haiku": "lstm gru/before rnn/relu",
    "equinox": "lstm gru/after",
    "flux": "lstm gru/after gru/before rnn",
    "flux.old": "lstm/initial_state gru/after/initial_state gru/before/initial_state rnn/initial_state",
    "flux.packed": "lstm rnn",
    "onnx": "lstm/peephole gru/after gru/before rnn",
    "onednn": "lstm/projection/peephole gru/after gru/before rnn",
    "miopen": "lstm gru/after rnn",
    "paddle": "lstm/projection gru/after rnn",
    "chainer": "lstm gru/after rnn",
    "coreml": "lstm/peephole gru/after rnn",
    "coreml.proto": "lstm/peephole",
    "tensorrt": "lstm gru/after rnn",
    "cntk": "lstm gru/after rnn",
    "cntk.lstm": "lstm",
    "lasagne": "lstm/peephole/initial_state gru/after/initial_state",
    "tf1.elmo": "lstm/projection one-way",
    "allennlp.elmo": "lstm/projection one-way",
}
"""What each library has, as its own documentation says: kinds of cells and, after a slash, what they may have."""
FLAT = {
    "cudnn": ("flat_weights",), "miopen": ("flat_weights",), "mxnet.flat": ("parameters",), "mxnet.v2": ("rnn_param",),
    "tf1.opaque": ("opaque_kernel",), "cntk": ("W",), "tensorrt": ("weights", "biases"),
}  # fmt: skip
"""Layouts that keep a whole network in vectors, and the names of these."""
CHOICES: tuple[tuple[str, dict[str, str]], ...] = (
    *((name, {}) for name in HELD),
    ("cudnn", {"tail": "no"}),
    ("cudnn", {"tail": "unseen"}),
    ("cudnn", {"bias_mode": "input"}),
    ("cudnn", {"bias_mode": "recurrent"}),
    ("miopen", {"tail": "yes"}),
    ("haiku", {"double_bias": "no"}),
    ("lasagne", {"peepholes": "no"}),
    ("tf1.basic", {"forget_bias": "0"}),
)
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
every_choice = pytest.mark.parametrize(
    ("name", "options"), CHOICES, ids=[" ".join([name, *map("=".join, options.items())]) for name, options in CHOICES]
)


def kinds(name: str) -> Iterator[tuple[str, frozenset[str]]]:
    """(kind, what its cells may have) of a layout."""
    for words in HELD[name].split():
        kind, *may = words.split("/")
        if kind in GATES:
            yield kind, frozenset(may)


def variants(kind: str, may: frozenset[str]) -> Iterator[dict[str, object]]:
    """What networks of a kind may differ in beside their sizes, as keywords of a Spec."""
    if kind == "gru":
        yield {"reset": "after" if "after" in may else "before"}
    elif kind == "rnn":
        yield from ({"activation": word} for word in ("tanh", "relu") if word == "relu" or "relu" not in may)
    else:
        yield {}
        if "projection" in may:
            yield {"projection": 2}
        if "peephole" in may:
            yield {"peephole": True}
        if {"projection", "peephole"} <= may:
            yield {"projection": 2, "peephole": True}


def networks(name: str, layers: tuple[int, ...] = (1, 2, 3)) -> Iterator[Spec]:
    """Every network of the grid that a layout should hold."""
    ways = (False,) if "one-way" in HELD[name] else (False, True)
    for kind, may in kinds(name):
        states = (False, True) if "initial_state" in may else (False,)
        for said, count, both, bias, width, state in product(
            variants(kind, may), layers, ways, (True, False), (3, 4), states
        ):
            yield Spec(kind, width, 4, count, both, bias=bias, initial_state=state, **said)  # type: ignore[arg-type]


def unseen(layout: Layout, spec: Spec) -> dict[str, object]:
    """What neither names nor shapes can say of a network in this layout."""
    said: dict[str, object] = {"activation": spec.activation} if spec.kind == "rnn" else {}
    if layout.name in FLAT:
        said |= {name: getattr(spec, name) for name in ("kind", "input", "hidden", "layers", "bidirectional", "bias")}
        said |= {"projection": spec.projection}
    if spec.kind == "gru" and (layout.name == "onnx" or (layout.name in ("keras", "keras.vars") and not spec.bias)):
        said["reset"] = spec.reset
    said |= {fact: getattr(spec, fact) for fact in layout.required if spec.has(fact)}
    if layout.name == "chainer":
        said["bidirectional"] = spec.bidirectional
    if layout.name in ("tf1.basic", "flux.packed"):  # the joined matrix of an RNN can be that of a narrower LSTM
        said["kind"] = spec.kind
    # What is always stored, zeros perhaps, is taken for real unless somebody says that it is not.
    said |= {name: False for name in ("bias", "initial_state") if not getattr(spec, name)}
    return said | ({"peephole": False} if spec.kind == "lstm" and not spec.peephole else {})


def shapes_of(layout: Layout, spec: Spec, options: Mapping[str, str], at: str = "enc") -> dict[str, tuple[int, ...]]:
    """{name in a checkpoint: shape} of a network."""
    found = stored(layout, layout.form(spec, options), spec, options)
    return {f"{at}{layout.separator}{tensor.name}" if at else tensor.name: tensor.shape for tensor in found}


def test_every_layout_is_here() -> None:
    """A new layout needs a line in HELD, and so inherits all of these tests."""
    assert [layout.name for layout in layouts.all_layouts()] == sorted(HELD, key=list(layouts.built_in()).index)


def test_every_layout_has_a_line_in_the_documentation() -> None:
    """docs/layouts.md names each of them in backticks."""
    text = (DOCS / "layouts.md").read_text(encoding="utf-8")
    assert [name for name in layouts.built_in() if f"`{name}`" not in text] == []


@every_choice
class TestLayout:
    """The contract of one layout under one choice of its options."""

    def test_says_where_it_is_from(self, name: str, options: dict[str, str]) -> None:
        """A title, a source, and what was run to prove it."""
        layout = layouts.find(name)
        assert layout.title and layout.source
        assert isinstance(layout.proof, tuple) and layout.proof and all(layout.proof)
        assert all(option.what and option.default for option in layout.options)

    @pytest.mark.sample(10)
    def test_tiles(self, name: str, options: dict[str, str]) -> None:
        """Each element of each tensor belongs to one place, and no cell is lost, for every network of the grid."""
        layout = layouts.find(name)
        chosen = layout.chosen(options)
        for spec in networks(name, (2,) if options else (1, 2, 3)):
            check_tiling(layout, layout.form(spec, chosen), spec, chosen)

    @pytest.mark.sample(17)
    def test_names_differ(self, name: str, options: dict[str, str]) -> None:
        """No two tensors of a network have one name."""
        layout = layouts.find(name)
        chosen = layout.chosen(options)
        for spec in networks(name, (2,)):
            found = [tensor.name for tensor in stored(layout, layout.form(spec, chosen), spec, chosen)]
            assert sorted(set(found)) == sorted(found), spec

    @pytest.mark.sample(5)
    @pytest.mark.parametrize("at", ["enc", ""])
    def test_reads_back(self, name: str, options: dict[str, str], at: str) -> None:
        """Names, shapes and what these cannot say give the network again, with each tensor in its place."""
        layout = layouts.find(name)
        chosen = layout.chosen(options)
        for spec in networks(name, (1, 2) if at and not options else (3,)):
            shapes = shapes_of(layout, spec, chosen, at)
            found = network(layout, options, at, shapes, facts=unseen(layout, spec))
            assert (found.spec, set(found.tensors.values())) == (spec, shapes.keys())

    @pytest.mark.sample(8)
    def test_never_guesses(self, name: str, options: dict[str, str]) -> None:
        """With nothing said, a network is found as it is or with biases of zeros, or --spec is asked for."""
        layout = layouts.find(name)
        chosen = layout.chosen(options)
        for spec in networks(name, (1,) if options else (1, 2)):
            try:
                found = network(layout, options, "enc", shapes_of(layout, spec, chosen), facts={}).spec
            except LayoutError as error:
                assert "--spec" in error.message + error.hint, f"{spec}: {error}"
                continue
            more = [n for n in ("bias", "peephole", "initial_state") if getattr(found, n) and not getattr(spec, n)]
            assert not more or layout.always_biases or name == "flux.old", spec
            assert found.activation in ("", *layout.form(spec, chosen).activations[:1])
            assert replace(spec, activation=found.activation, **dict.fromkeys(more, True)) == found

    def test_module_is_found(self, name: str, options: dict[str, str]) -> None:
        """Among other tensors, the names of a network lead to its module, and to no other."""
        layout = layouts.find(name)
        chosen = layout.chosen(options)
        spec = next(networks(name, (2,)))
        shapes = {"head/weight": (4, 4), **shapes_of(layout, spec, chosen, "my.enc"), "zz.w": (3,)}
        assert modules(layout, chosen, shapes) == ["my.enc"]

    def test_foreign_options_are_refused(self, name: str, options: dict[str, str]) -> None:
        """An option that a layout does not have is named."""
        with pytest.raises(Exception, match="no option 'nonsense'"):
            layouts.find(name).chosen({**options, "nonsense": "1"})


def flat_length(spec: Spec, biases: int) -> int:
    """The sum over (layer, direction) of G*H*(in + R + biases) + P*H."""
    rows, state = GATES[spec.kind] * spec.hidden, spec.projection or spec.hidden
    length = 0
    for layer in range(spec.layers):
        width = spec.input if layer == 0 else state * (1 + spec.bidirectional)
        length += (1 + spec.bidirectional) * (rows * (width + state + biases) + spec.projection * spec.hidden)
    return length


def biases_of(name: str, options: Mapping[str, str], spec: Spec) -> int:
    """How many bias vectors a flat layout has for each cell."""
    if options.get("bias_mode") in ("input", "recurrent"):
        return int(spec.bias)
    has_room = options.get("tail") in ("yes", "unseen") if name in ("cudnn", "miopen") else True
    return 2 if spec.bias or has_room else 0


@pytest.mark.parametrize(("name", "options"), [choice for choice in CHOICES if choice[0] in FLAT])
def test_flat_layouts_have_the_length_of_the_formula(name: str, options: dict[str, str]) -> None:
    """G*H*(in + R + 2) + P*H for each cell, less what a network without biases leaves out."""
    layout = layouts.find(name)
    chosen = layout.chosen(options)
    for spec in networks(name):
        found = shapes_of(layout, spec, chosen, "")
        assert tuple(found) == FLAT[name]
        assert sum(prod(shape) for shape in found.values()) == flat_length(spec, biases_of(name, chosen, spec)), spec
        assert all(len(shape) == 1 for shape in found.values())


@pytest.mark.parametrize("name", sorted(set(HELD) - {"onednn", "tf1.basic", "lasagne"}))
def test_what_a_library_lacks_is_refused(name: str) -> None:
    """Kinds, projections, a side of the reset gate and directions that HELD does not list have no form."""
    layout = layouts.find(name)
    has = dict.fromkeys(kind for kind, _ in kinds(name))
    may = frozenset().union(*(words for _, words in kinds(name)))
    lacking = [Spec(kind, 3, 4, reset="after" if kind == "gru" else "") for kind in GATES if kind not in has]
    if "projection" not in may:
        lacking.append(Spec("lstm", 3, 4, projection=2))
    lacking += [Spec("gru", 3, 4, reset=side) for side in ("after", "before") if side not in may]
    lacking += [Spec("gru", 3, 4)]
    if "one-way" in HELD[name]:
        lacking.append(Spec("lstm", 3, 4, bidirectional=True))
    for spec in lacking:
        with pytest.raises(LayoutError, match=f"layout {name} cannot hold it"):
            layout.form(spec, layout.chosen({}))


def test_facts_that_change_the_function_are_held_by_few() -> None:
    """Hard sigmoids, clips and coupled gates go to the libraries that have a word for them, and nowhere else."""
    plain = Spec("lstm", 3, 4)
    wide = ("keras", "keras.vars", "keras.gates")
    holders = {
        "cell_clip": ({"cell_clip": 3.0}, {"tf1.basic", "tf1.block"}),
        "clip": ({"clip": 2.0}, {"onnx"}),
        "coupled": ({"coupled": True}, {"onnx", "coreml.proto"}),
        "backward": ({"backward": True}, {"onnx", *wide, "keras.cudnn", "coreml", "coreml.proto", "lasagne"}),
        "merge": ({"merge": "sum", "bidirectional": True, "layers": 2}, {*wide, "keras.cudnn"}),
        "gate_activation": ({"gate_activation": "hard_sigmoid(0.2,0.5)"}, {"onnx", *wide}),
    }
    assert set(holders) <= {field.name for field in fields(Spec)}
    for word, (said, expected) in holders.items():
        spec = replace(plain, **said)  # type: ignore[arg-type]
        found = set()
        for layout in layouts.all_layouts():
            try:
                layout.form(spec, layout.chosen({}))
                found.add(layout.name)
            except LayoutError as error:
                assert word in str(error) or "it has no lstm" in str(error)
        assert found == expected, word


def wrong(*rows: TensorRule, gates: str) -> tuple[Layout, Form]:
    """A layout of LSTMs with one form."""
    form = Form("lstm", gates, rows)
    return Layout("wrong", "a wrong one", (form,)), form


W = TensorRule("w", "W[(gate hidden) in]")
R = TensorRule("r", "R[(gate hidden) rec]")


@pytest.mark.parametrize(
    ("rows", "gates", "message"),
    [
        ((W,), "ifgo", r"recurrent weights of gate i \(layer 0\) has no place"),
        ((TensorRule("w", "W[(gate hidden) in] W[(gate hidden) in]"),), "ifgo", "is stored twice in 'w'"),
        ((W, R), "ifo", "gate g.* has no place"),
        ((W, R), "iffo", "doubled"),
        ((W, TensorRule("r", "R.ifg[(gate hidden) rec]")), "ifgo", "gate o.* has no place"),
        ((TensorRule("w", "W[(gate hidden) in] R[(gate hidden) rec]"),), "ifgo", "do not fit together"),
        ((TensorRule("w", "W[(gate hidden) in 2]"), R), "ifgo", "'w' is (doubled|missing)"),
    ],
)
def test_a_table_that_does_not_tile_is_found_out(rows: tuple[TensorRule, ...], gates: str, message: str) -> None:
    """The proof that every layout passes fails for tables with a cell too many or too few."""
    layout, form = wrong(*rows, gates=gates)
    with pytest.raises(LayoutError, match=message):
        check_tiling(layout, form, Spec("lstm", 3, 2, bias=False), {})
