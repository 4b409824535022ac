"""The record of rearranged parts: which tensors of a file were made of which parts, and by which pattern.

It is text under the metadata key `paramtool.parts`:

    {"version": 1,
     "dialect": "transformers-5",
     "from": "transformers-4",
     "order": [0, 2, 3, 1, 2, 1],
     "fused": [{"tensor": "h.0.qkv_proj.weight", "layout": "qkv-per-head", "along": 0,
                "pattern": "{heads: q[head_dim in] k[head_dim in] v[value_dim in]}",
                "sizes": {"heads": 12, "head_dim": 64, "in": 768},
                "parts": {"q": ["h.0.q_proj.weight"], "k": ["h.0.k_proj.weight"], "v": ["h.0.v_proj.weight"]},
                "positions": [4, 2, 5]}]}

`dialect` and `from` are there if the names of the file are those of a dialect; `from` is the first of several.  `order`
is the order that the tensors had there: of the names that transformers 4 gives them, sorted, the rank of each, written
as runs of consecutive ranks: the first rank, and how many there are.  `prefix` is there if the dialect has it in front
of all names, and `from` has not.  `bare` is there, and true, if the file that was rearranged first had no `format` in
its metadata.  `added` is there if the dialect's program wants a tensor twice:
{"lm_head.weight": "model.embed_tokens.weight"} of a tied model, which going back has once.  `unfused` has
the same members as `fused`, for tensors that were taken apart: fusing again restores them.  A part has one name, or one
for each expert.  The pattern, its sizes and the names are enough to take the tensor apart: no table of paramtool is
needed.  `positions` are those of the tensors that the file had instead: of the parts in their order, or of the tensor
that was taken apart.  They count the names of a file in which everything that is described is undone; going back
restores them.  `companion` is there for scales, packed codes and the like: `weight_scale_inv`; pattern and sizes are
then those of the weight.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from paramtool.formats.record.damage import HINT, reading, versioned
from paramtool.model.parts import FusedTensor, PartsRecord

KEY = "paramtool.parts"
VERSION = 1
MOST = 1 << 24
"""A record that speaks of the order of more tensors is damaged."""


def encode(record: PartsRecord) -> str:
    """A record as text; empty if it says nothing."""
    if not record.dialect and not record.fused and not record.unfused:
        return ""
    found: dict[str, Any] = {"version": VERSION}
    if record.dialect:
        found |= {"dialect": record.dialect, "from": record.source}
    if record.dialect and record.order:
        found["order"] = list(_runs(record.order))
    if record.dialect and record.prefix:
        found["prefix"] = record.prefix
    if record.is_bare:
        found["bare"] = True
    if record.dialect and record.added:
        found["added"] = dict(record.added)
    for key, tensors in (("fused", record.fused), ("unfused", record.unfused)):
        if tensors:
            found[key] = [
                {
                    "tensor": one.tensor,
                    "layout": one.layout,
                    "along": one.along,
                    "pattern": one.pattern,
                    "sizes": dict(one.sizes),
                    "parts": {term: list(names) for term, names in one.parts.items()},
                    "positions": list(one.positions),
                    **({"companion": one.companion} if one.companion else {}),
                }
                for one in tensors
            ]
    return json.dumps(found, separators=(",", ":"))


def _runs(order: Iterable[int]) -> Iterator[int]:
    """Ranks as runs of consecutive ones: the first of each, and their number.

    >>> list(_runs([0, 1, 5, 6, 7, 2]))
    [0, 2, 5, 3, 2, 1]
    """
    start = length = 0
    for rank in order:
        if length and rank == start + length:
            length += 1
            continue
        if length:
            yield from (start, length)
        start, length = rank, 1
    if length:
        yield from (start, length)


def _order(runs: object) -> tuple[int, ...]:
    """The ranks of runs; ValueError unless they are those of an order."""
    if not isinstance(runs, list) or len(runs) % 2 or not all(type(one) is int and one >= 0 for one in runs):
        raise ValueError("order is not made of runs")
    if sum(runs[1::2]) > MOST:
        raise ValueError(f"order speaks of more than {MOST} tensors")
    pairs = zip(runs[::2], runs[1::2], strict=True)
    found = tuple(chain.from_iterable(range(start, start + length) for start, length in pairs))
    if sorted(found) != list(range(len(found))):
        raise ValueError("order is no order of tensors")
    return found


def decode(where: str, metadata: Mapping[str, str]) -> PartsRecord:
    """The record in a file's metadata; an empty one if there is none, FormatError if it is damaged."""
    if KEY not in metadata:
        return PartsRecord()
    with reading(f"{where}: its record of parts ({KEY!r})", HINT):
        found = versioned(metadata[KEY], VERSION)
        fused, unfused = (tuple(_fused(item) for item in found.get(key, [])) for key in ("fused", "unfused"))
        added = {_text(name): _text(other) for name, other in found.get("added", {}).items()}
        bare = found.get("bare", False)
        if type(bare) is not bool:
            raise ValueError(f"bare is {bare!r:.60}, which is not true or false")
        return PartsRecord(
            dialect=_text(found.get("dialect", "")),
            source=_text(found.get("from", "")),
            fused=fused,
            unfused=unfused,
            added=added,
            order=_order(found.get("order", [])),
            prefix=_text(found.get("prefix", "")),
            is_bare=bare,
        )


def _fused(item: Mapping[str, Any]) -> FusedTensor:
    sizes = {_text(word): length for word, length in item["sizes"].items()}
    if not all(type(length) is int and 0 < length < 1 << 63 for length in sizes.values()):
        raise ValueError("sizes is not made of positive numbers")
    along = item["along"]
    if type(along) is not int or not 0 <= along < 8:
        raise ValueError(f"along is {along!r}, which is not an axis")
    parts = {_text(term): tuple(map(_text, names)) for term, names in item["parts"].items()}
    positions = tuple(item.get("positions", ()))
    if not all(type(place) is int and 0 <= place < 1 << 63 for place in positions):
        raise ValueError("positions is not made of numbers")
    if len(positions) not in (0, 1, sum(len(names) for names in parts.values())):
        raise ValueError("positions is not as long as parts")
    return FusedTensor(
        tensor=_text(item["tensor"]),
        layout=_text(item["layout"]),
        pattern=_text(item["pattern"]),
        along=along,
        sizes=sizes,
        parts=parts,
        positions=positions,
        companion=_text(item.get("companion", "")),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.60} is not a string")
    return value
