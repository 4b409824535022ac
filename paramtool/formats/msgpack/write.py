"""Write flax's `.msgpack`: names are nested at `/`, and every tensor is an array of its own.

    {"params/Dense_0/kernel": ..., "step": ...}   ->   {"params": {"Dense_0": {"kernel": ARRAY}}, "step": ARRAY}

Numbers, strings, lists and empty dicts beside the arrays are written where the tree of the source is one of flax's:
every tensor is at the keys that its name says.  optax has an empty dict for each transformation without a state, and
flax refuses a file without it.

An array above 1 GiB is written in pieces, as flax does it (`_chunk`).  Source: flax/serialization.py (0.12.8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Mapping as DictOf
from dataclasses import replace
from math import prod

from paramtool.errors import PlanError
from paramtool.formats.msgpack import codes
from paramtool.formats.output import OutputFile, Segment, is_utf8, joined, tensor_above
from paramtool.model import objects
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.nested import SEPARATOR, leaves, nested
from paramtool.model.objects import EMPTY, Leaf, Mapping, Node, Path, Sequence, TensorRef, content_of, map_children
from paramtool.model.plan import Plan, Target
from paramtool.model.view import contiguous

NAME = "msgpack"
"""What the reader calls such a file."""
DTYPES = frozenset((
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu",
))  # fmt: skip
"""Those whose names NumPy and ml_dtypes know, with elements of whole bytes."""

Tree = dict[objects.Key, "Tree | Target | Leaf | Sequence"]
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
"""The whole numbers that msgpack can store."""


def refusals(dtypes: DictOf[str, str]) -> dict[str, str]:
    """{name: reason} for the names in {name: dtype} that a file of flax's cannot store."""
    refused = {name: f"NumPy and ml_dtypes have no {dtype}" for name, dtype in dtypes.items() if dtype not in DTYPES}
    for name in dtypes:
        parts = name.split(SEPARATOR)
        if (held := tensor_above(name, dtypes, SEPARATOR)) is not None:
            refused[name] = f"is inside {held!r:.200}, which is a tensor itself"
        elif codes.CHUNKED in parts:
            refused[name] = f"flax takes a dict with the key {codes.CHUNKED} for an array in pieces"
        elif not is_utf8(name):
            refused[name] = "is not UTF-8"
    return refused


def held(plan: Plan, source: Checkpoint) -> Node | None:
    """The tree of a plan as flax's files hold it; None where they do not.

    A dict that lost its last tensor is left out.  Names are nested at `/`, but for those of such a file itself.
    """
    own = {name for _, name in leaves(source.objects)} if source.format == NAME else ()
    tree = nested(plan.objects, own)
    if not isinstance(tree, Mapping) or tree == EMPTY or not _fits(tree, (), plan):
        return None
    there = {path[:k] for path, _ in leaves(source.objects) for k in range(len(path))}
    return _as_bytes(_cut(tree, (), plan, there))


def _as_bytes(node: Node) -> Node:
    """A tree with bytes in place of each `io.BytesIO`."""
    return content_of(node) or map_children(node, _as_bytes)


def _fits(node: Node, path: Path, plan: Plan) -> bool:
    """Whether flax's files can hold a node, and its tensors are where their names say."""
    match content_of(node) or node:
        case TensorRef(name):
            return name not in plan.names or name == SEPARATOR.join(path)
        case Mapping("dict", items, None, ()):
            keys = [key for key, _ in items]
            are_keys = all(type(key) is str and is_utf8(key) for key in keys) and codes.CHUNKED not in keys
            return are_keys and all(_fits(child, (*path, objects.word(key)), plan) for key, child in items)
        case Sequence("list", items, ()):
            return not any(objects.tensor_names(node)) and all(_fits(child, path, plan) for child in items)
        case Leaf(value):
            if isinstance(value, int):
                return _LEAST <= value <= _MOST
            return (
                value is None
                or isinstance(value, (float, complex, bytes))
                or (isinstance(value, str) and is_utf8(value))
            )
    return False


def _cut(node: Mapping, path: Path, plan: Plan, before: Collection[Path]) -> Mapping:
    """A tree without tensors that are not written, and without dicts that had some."""
    items: list[tuple[objects.Key, Node]] = []
    for key, child in node.items:
        place = (*path, objects.word(key))
        if isinstance(child, Mapping):
            child = _cut(child, place, plan, before)
            if not child.items and place in before:
                continue
        elif isinstance(child, TensorRef) and child.name not in plan.names:
            continue
        items.append((key, child))
    return replace(node, items=tuple(items))


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """One file; every name of the plan is a target."""
    targets = {target.name: target for target in plan.targets}
    tree = _tree(plan.objects, targets)
    assert isinstance(tree, dict)
    there = set(objects.tensor_names(plan.objects))
    for target in plan.targets:
        if target.name in there:
            continue
        *above, last = target.name.split(SEPARATOR)
        place = tree
        for key in above:
            inner = place.setdefault(key, {})
            assert isinstance(inner, dict)
            place = inner
        place[last] = target
    return (OutputFile("", joined(_packed(tree))),)


def _tree(node: Node, targets: DictOf[str, Target]) -> Tree | Target | Leaf | Sequence:
    """What is written for a node that `held` has."""
    if isinstance(node, Mapping):
        kept = ((key, child) for key, child in node.items if not isinstance(child, TensorRef) or child.name in targets)
        return {key: _tree(child, targets) for key, child in kept}
    if isinstance(node, TensorRef):
        return targets[node.name]
    assert isinstance(node, (Leaf, Sequence))
    return node


def _packed(node: Tree | Target | Leaf | Sequence) -> Iterator[Segment]:
    """A dict, an array, or something beside them."""
    if isinstance(node, Leaf):
        yield _plain(node.value)
        return
    if isinstance(node, Sequence):
        yield _sized(len(node.items), 0x90, 16, (0xDC, 0xDD))
        for item in node.items:
            yield from _packed(_tree(item, {}))
        return
    if isinstance(node, Target):
        pieces = list(_pieces(node)) if node.nbytes > codes.CHUNK_NBYTES else []
        yield from _in_pieces(node, pieces) if pieces else _array(node)
        return
    yield _sized(len(node), 0x80, 16, (0xDE, 0xDF))
    for key, child in node.items():
        yield _text(str(key))
        yield from _packed(child)


def _in_pieces(target: Target, pieces: list[Target]) -> Iterator[Segment]:
    yield _sized(3, 0x80, 16, (0xDE, 0xDF)) + _text(codes.CHUNKED) + b"\xc3" + _text("shape")
    yield _sized(len(target.shape), 0x80, 16, (0xDE, 0xDF))
    yield b"".join(_text(str(k)) + _whole(size) for k, size in enumerate(target.shape))
    yield _text("chunks") + _sized(len(pieces), 0x80, 16, (0xDE, 0xDF))
    for k, piece in enumerate(pieces):
        yield _text(str(k))
        yield from _array(piece)


def _pieces(target: Target) -> Iterator[Target]:
    """Runs of a large tensor: of its elements, or of its rows where they do not follow each other in the source.

    PlanError for a tensor that is calculated from several others.
    """
    copy = target.copies[0]
    if len(target.copies) > 1 or copy.destination != target.view:
        raise PlanError(
            f"{target.name!r}: has {target.nbytes} bytes and is put together from several tensors; "
            f"a msgpack file can only store such a tensor up to {codes.CHUNK_NBYTES} bytes"
        )
    terms, shape = copy.terms, target.shape
    if all(view.is_contiguous for _, view in terms):
        shape = (prod(shape),)
        terms = tuple((sign, contiguous(v.storage, v.dtype, shape, v.offset)) for sign, v in terms)
    step = max(1, codes.CHUNK_NBYTES // target.dtype.nbytes(prod(shape[1:])))
    for start in range(0, shape[0], step):
        part = (min(step, shape[0] - start), *shape[1:])
        cut = tuple(
            (sign, replace(view, offset=view.offset + start * view.strides[0], shape=part)) for sign, view in terms
        )
        destination = contiguous(target.name, target.dtype, part)
        yield Target(target.name, target.dtype, part, (replace(copy, destination=destination, terms=cut),))


def _array(target: Target) -> Iterator[Segment]:
    """An extension with shape, element type and bytes."""
    head = b"\x93" + _sized(len(target.shape), 0x90, 16, (0xDC, 0xDD)) + b"".join(map(_whole, target.shape))
    head += _text(target.dtype.name) + _sized(target.nbytes, None, 0, (0xC4, 0xC5, 0xC6))
    yield _extension(len(head) + target.nbytes) + head
    if target.nbytes:
        yield target


def _extension(nbytes: int) -> bytes:
    """The first bytes of an array of `nbytes` bytes: as short as msgpack has it."""
    fixed = next((first for first, length in codes.FIXED_EXT.items() if length == nbytes), None)
    head = bytes((fixed,)) if fixed is not None else _sized(nbytes, None, 0, (0xC7, 0xC8, 0xC9))
    return head + bytes((codes.NDARRAY,))


def _sized(count: int, fixed: int | None, few: int, longer: tuple[int, ...]) -> bytes:
    """The first bytes of a value with a length; `longer` has two or three codes, of which the last takes 32 bits."""
    if fixed is not None and count < few:
        return bytes((fixed + count,))
    forms = (codes.U8, codes.U16, codes.U32)[-len(longer) :]
    for code, form in zip(longer, forms, strict=True):
        if count < 1 << 8 * form.size:
            return bytes((code,)) + form.pack(count)
    raise PlanError(f"a msgpack file can store values of up to {(1 << 32) - 1} bytes; found {count}")


def _text(text: str) -> bytes:
    raw = text.encode()
    return _sized(len(raw), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + raw


def _plain(value: objects.Scalar) -> bytes:
    """A value beside the arrays, as msgpack's own writer has it."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return _whole(value) if value >= 0 else _negative(value)
        case float():
            return b"\xcb" + codes.NUMBERS[0xCB].pack(value)
        case complex():
            parts = b"\x92" + _plain(value.real) + _plain(value.imag)
            return _sized(len(parts), None, 0, (0xC7, 0xC8, 0xC9)) + bytes((codes.COMPLEX,)) + parts
        case str():
            return _text(value)
    assert isinstance(value, bytes)
    return _sized(len(value), None, 0, (0xC4, 0xC5, 0xC6)) + value


def _negative(number: int) -> bytes:
    """A whole number below 0, as short as msgpack has it."""
    if number >= -32:
        return bytes((256 + number,))
    code = next(code for code in (0xD0, 0xD1, 0xD2, 0xD3) if number >= -(1 << 8 * codes.NUMBERS[code].size - 1))
    return bytes((code,)) + codes.NUMBERS[code].pack(number)


def _whole(number: int) -> bytes:
    """A whole number from 0 on, as short as msgpack has it."""
    if number < 0x80:
        return bytes((number,))
    for code in (0xCC, 0xCD, 0xCE, 0xCF):
        form = codes.NUMBERS[code]
        if number < 1 << 8 * form.size:
            return bytes((code,)) + form.pack(number)
    raise PlanError(f"a size of {number} has no form")
