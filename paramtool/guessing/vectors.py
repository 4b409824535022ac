"""Which vectors of a checkpoint could be whole networks, and what their names and neighbours show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from paramtool import layouts
from paramtool.guessing.candidates import Hints, Width
from paramtool.layouts import names
from paramtool.model.view import Shapes

MIN_FLAT = 48
"""Shorter vectors are biases, scales and counters."""
NO_VECTOR = re.compile(
    r"(?:bias\w*|\w*bias|gamma|beta|alpha|scale|shift|running_\w+|moving_\w+|mean|var|std|b|g|\w*norm\w*|"
    r"num_batches_tracked|weight_g|token_type_ids|position_ids|inv_freq)",
    re.IGNORECASE,
)
"""Last words of names that are never flat networks."""
NORM = re.compile(r"\w*norm\w*|bn\w*|\w*_bn|ln\w*", re.IGNORECASE)
"""Modules whose vectors are never flat networks."""
EMBEDDING = re.compile(r"embed|emb\b|wte|lut|lookup", re.IGNORECASE)
NEAR = 2
"""How many matrices before and after a vector are used for its widths."""


def home_of(name: str) -> str:
    """The module of a tensor: its name up to the last dot or slash.

    >>> home_of("enc.rnn.weight"), home_of("w")
    ('enc.rnn', '')
    """
    return name[: max(name.rfind("."), name.rfind("/"), 0)]


def flat_layout(name: str) -> tuple[str, str] | None:
    """(layout, module) if a name is that of the single tensor of a flat layout; else None.

    >>> flat_layout("arg:enc_parameters"), flat_layout("a.b")
    (('mxnet.flat', 'arg:enc'), None)
    """
    for layout in map(layouts.find, ORDER_P):
        row = layout.forms[0].tensors[0]
        if not name.endswith(row.name):
            continue
        said = names.found(row, layout.directions, "", layout.separator, name=name)
        if said is not None and (row.name != "W" or not said.get("at")):
            return layout.name, said.get("at") or ""
    return None


ORDER_P = ("cudnn", "mxnet.flat", "mxnet.v2", "tf1.opaque", "cntk")
"""Layouts that store a network as one vector in order P, with torch's order of gates."""


def vectors(shapes: Shapes, everything: Shapes, asked: bool = False) -> list[str]:
    """Tensors of one axis that could be whole networks.

    Vectors with the name or length of a bias or a norm (as long as an axis of another tensor) are left out, unless the
    user asks for them.
    """
    axes = {size for shape in everything.values() if len(shape) > 1 for size in shape}
    found = []
    for name, shape in shapes.items():
        if len(shape) != 1 or (shape[0] < MIN_FLAT and not asked):
            continue
        *homes, word = re.split(r"[./:]", name)
        plain = not any(NO_VECTOR.fullmatch(one) for one in (word, word.rsplit("_", 1)[-1]))
        plain = plain and not any(NORM.fullmatch(home) for home in homes[-1:])
        if asked or (plain and shape[0] not in axes) or flat_layout(name):
            found.append(name)
    return found


def hints(name: str, shapes: Shapes, own: str = "") -> Hints:
    """What the name of a vector, and the tensors around it, show about it; `shapes` are in the order of the file.

    `own` is the layout of vectors whose names belong to no layout: that of the file's library, or the given layout.
    """
    layout, at = flat_layout(name) or (own if own in ORDER_P else "cudnn", name)
    order = list(shapes)
    here = order.index(name)
    before = [n for n in order[:here] if len(shapes[n]) == 2]
    behind = [n for n in order[here + 1 :] if len(shapes[n]) == 2]
    outputs = tuple(_outputs(behind[:NEAR] or before[-NEAR:], shapes))
    wide = {width.size for width in outputs}
    projected = re.search(r"proj|lstmp", name, re.IGNORECASE)
    biases = _biases_beside(name, shapes)
    found = re.search(r"(?<!\d)([1-8])[-_]?layers?", name, re.IGNORECASE)
    return Hints(
        kind=kind_in(name),
        bidirectional=bool(re.search(r"bi(?=[-_]?(?:lstm|gru|rnn|dir))", name, re.IGNORECASE)),
        layers=int(found[1]) if found else 0,
        inputs=tuple(_inputs([*before[::-1], *behind], before[-NEAR:], shapes)),
        outputs=outputs,
        projections=tuple(sorted(wide | {size // 2 for size in wide if size % 2 == 0})) if projected else (),
        layout="tensorrt" if biases else layout,
        at=name.removesuffix("weights").rstrip(".") if biases else at,
        biases=biases,
    )


def kind_in(name: str) -> str:
    """The kind of network in a name; `rnn` can mean any kind.

    >>> kind_in("encoder.biLSTM.w"), kind_in("rnn_param")
    ('lstm', '')
    """
    word = name.lower()
    return "lstm" if "lstm" in word else "gru" if "gru" in word else "rnn" if "elman" in word else ""


def _biases_beside(name: str, shapes: Shapes) -> int | None:
    """The length of TensorRT's second vector, if the names are those of its two vectors."""
    if name != "weights" and not name.endswith(".weights"):
        return None
    other = shapes.get(f"{name.removesuffix('weights')}biases", ())
    return other[0] if len(other) == 1 else None


def _inputs(all_matrices: Iterable[str], near: Iterable[str], shapes: Shapes) -> Iterator[Width]:
    """Widths of embeddings anywhere, and of the matrices just before a vector."""
    for name in all_matrices:
        if EMBEDDING.search(name):
            yield Width(shapes[name][1], f"embedding {name} {list(shapes[name])} gives {shapes[name][1]}")
    for name in near:
        if not EMBEDDING.search(name):
            yield Width(shapes[name][0], f"{name} {list(shapes[name])} before it gives {shapes[name][0]}")


def _outputs(near: Iterable[str], shapes: Shapes) -> Iterator[Width]:
    """The input widths of the matrices after a vector: `[out, in]` as torch and MXNet store a dense layer."""
    for name in near:
        if not EMBEDDING.search(name):
            yield Width(shapes[name][1], f"{name} {list(shapes[name])} takes {shapes[name][1]}")
