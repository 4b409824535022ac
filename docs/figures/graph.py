"""The alias graph: names, their views, and the storages; shared, declared and equal told apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from figures.canvas import LEFT, RIGHT, box, curve, line, picture, text
from paramtool.drawing.markup import Markup, joined
from paramtool.model.alias import Alias, AliasGraph, build
from paramtool.model.checkpoint import Checkpoint, Entry, Link
from paramtool.model.dtype import DTYPES
from paramtool.model.storage import ByteRange, Storage
from paramtool.model.view import View, contiguous

FLOAT = DTYPES["float32"]
WHOLE = contiguous(0, FLOAT, (8, 4))
TURNED = View(0, FLOAT, 0, (4, 8), (1, 4))
BIAS = contiguous(1, FLOAT, (4,))
ENTRIES = {
    "wte.weight": Entry(WHOLE, link=Link("wte.weight", "storage")),
    "unembed.weight": Entry(TURNED, link=Link("wte.weight", "storage", owner="wte.weight")),
    "lm_head.weight": Entry(WHOLE, link=Link("wte.weight", "declared", owner="wte.weight")),
    "ln_1.bias": Entry(BIAS, link=Link("ln_1.bias", "storage")),
    "ln_2.bias": Entry(BIAS, link=Link("ln_2.bias", "storage", owner="ln_1.bias", by_content=True)),
}
"""What a deduplicated file says of five names."""
WORDS = {"storage": "shared", "declared": "declared", "content": "equal"}
STYLES = {"storage": "", "declared": "d", "content": "o"}
MEANINGS = {
    "storage": "Views of one storage in the source.",
    "declared": "A file or a config.json ties them.",
    "content": "Bytes were compared.  They are not tied.",
}
TINTS = {"wte.weight": "blue", "ln_1.bias": "green", "ln_2.bias": "purple"}
"""Of each alias set."""
NAMES, VIEWS, STORAGES = LEFT + 8, 206, 374
TOP, STEP, HIGH = 78, 48, 34


def graph() -> AliasGraph:
    """The graph of these names, as the program builds it."""
    storages = {0: Storage(0, 128, ByteRange("f", 0, 128)), 1: Storage(1, 16, ByteRange("f", 128, 144))}
    return build(Checkpoint("safetensors", (), storages, ENTRIES))


def alias_graph() -> str:
    """The picture."""
    found = graph()
    aliases = list(found.names.values())
    rows = {one.name: TOP + STEP * k + 14 * _gaps(aliases, k) for k, one in enumerate(aliases)}
    middle = {
        owner: sum(rows[one.name] for one in aliases if one.owner == owner) / sum(one.owner == owner for one in aliases)
        for owner in found.owners
    }
    parts = [
        text(NAMES, 34, "names", "h"), text(VIEWS, 34, "views", "h"), text(STORAGES, 34, "storages", "h"),
        joined(_sets(aliases, rows)),
        *(joined(_name(one, found, rows[one.name], middle[one.owner])) for one in aliases),
        *(joined(_storage(k, owner, found, middle[owner])) for k, owner in enumerate(found.owners)),
        joined(_key(388)),
    ]  # fmt: skip
    return picture(
        "The alias graph",
        "Five names, the view that each has, and two storages.  wte.weight, its transpose unembed.weight and the "
        "declared lm_head.weight are one alias set on storage 0.  ln_1.bias and ln_2.bias have equal bytes: stored "
        "once, on storage 1, and two alias sets.",
        466,
        parts,
    )


def _gaps(aliases: list[Alias], k: int) -> int:
    """How many alias sets end before a name."""
    return sum(a.alias_set != b.alias_set for a, b in pairwise(aliases[: k + 1]))


def _sets(aliases: list[Alias], rows: dict[str, float]) -> Iterator[Markup]:
    """A frame around the names of each alias set."""
    for first in dict.fromkeys(one.alias_set for one in aliases):
        inside = [rows[one.name] for one in aliases if one.alias_set == first]
        top, bottom = min(inside) - 7, max(inside) + HIGH + 7
        yield box(NAMES - 8, top, 160, bottom - top, "panel", "strong", 8, "d")
        words = "one alias set" if len(inside) > 1 else ""
        if words:
            yield text(NAMES, top - 6, words, "t f-soft")


def _name(one: Alias, found: AliasGraph, y: float, to: float) -> Iterator[Markup]:
    """A name, its view, and the line to its storage."""
    tint = TINTS[one.alias_set]
    relation = found.relation(one)
    yield line(NAMES + 144, y + HIGH / 2, VIEWS, y + HIGH / 2)
    yield curve(VIEWS + 116, y + HIGH / 2, STORAGES, to + HIGH / 2, STYLES[one.evidence])
    yield box(NAMES, y, 144, HIGH, tint)
    yield text(NAMES + 10, y + 22, one.name, "m b")
    yield box(VIEWS, y, 116, HIGH, "paper")
    shape = str(list(one.window.shape))
    yield text(VIEWS + 10, y + 14.5, shape, "m t")
    yield text(VIEWS + 10, y + 28.5, "the whole" if relation == "same" else "transposed", "t f-soft")


def _storage(k: int, owner: str, found: AliasGraph, y: float) -> Iterator[Markup]:
    """A storage."""
    yield box(STORAGES, y - 4, RIGHT - STORAGES, HIGH + 8, "paper", "strong", 4)
    yield text(STORAGES + 10, y + 13, f"storage {k}", "b")
    yield text(STORAGES + 10, y + 29, f"{found.owners[owner].nbytes} bytes", "t f-soft")


def _key(y: float) -> Iterator[Markup]:
    """What the lines mean."""
    yield line(LEFT, y - 20, RIGHT, y - 20, "n k-line")
    for k, (evidence, words) in enumerate(MEANINGS.items()):
        at = y + 26 * k + 8
        yield line(LEFT, at - 4, LEFT + 40, at - 4, f"n k-strong {STYLES[evidence]}".strip(), 1.8)
        yield text(LEFT + 52, at, WORDS[evidence], "b")
        yield text(LEFT + 134, at, words, "f-soft")
