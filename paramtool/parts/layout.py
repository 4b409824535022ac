"""A part layout: how the parts of an attention, a gated MLP or experts lie in fused tensors, as rows of patterns.

PartLayout  one way of storing a kind of group: `qkv-per-head`
  FusedRow    a tensor of it: its usual name, a pattern, the axis along which blocks follow each other
PartGroup   the parts of one kind of group, and what they are called in files

`layouts.json` has all of them, as the fields of these classes.  The axes of a part are those of a Linear for it
alone: q (heads head_dim) x in, k (kv_heads head_dim) x in, v (kv_heads value_dim) x in; of an expert gate and up
[width, inputs], down [outputs, width].

Sources, as its rows name them: transformers 5.23.0 (`NAME` is models/NAME/modeling_NAME.py, "map" is
conversion_mapping.py), vLLM 0.33.0, NVIDIA-NeMo/Megatron-Bridge 067f987df ("MB" is models/conversion/param_mapping.py),
llama.cpp conversion/, mlx-lm d78bf58e, torchtitan b5bcd76c6; of linear attention
models/olmo_hybrid/configuration_olmo_hybrid.py 139.

Known, and not there yet:
  value heads in turn (GGUF of Qwen3.5), which also moves vectors and columns: llama.cpp `_reorder_v_heads`
  joint inputs of KDA and BailingHybrid: vLLM `alice_ai.py` 587, `bailing_moe_v3.py` 1423
  groups of B and C that ranks repeat: vLLM `mamba_mixer2.py` 202
  pointwise and patch convolutions as Linears: transformers `core_model_loading.py` 399
Experts that are split between two towers (ERNIE-4.5-VL) are in the dialects of transformers and in no layout here:
they are two groups, and a layout describes one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache

from paramtool.errors import UsageError
from paramtool.lazy_dataclass import frozen
from paramtool.package_data import package_data
from paramtool.parts import patterns


@frozen
class FusedRow:
    """A row of a part layout: one fused tensor."""

    name: str
    """What it is called beside the names of its parts' group: `qkv_proj`."""
    content: str
    """A pattern, see `rows`, of its weight; its bias lacks the axis of inputs."""
    along: int = 0
    """The axis along which blocks follow each other."""
    is_bare: bool = False
    """Whether it is called so itself, `experts.gate_up_proj` and `experts.gate_up_proj_bias`, without `.weight`."""

    def terms(self) -> tuple[str, ...]:
        """The parts in it."""
        return patterns.terms(self.content)


@frozen
class PartGroup:
    """Parts that belong together."""

    kind: str
    """`qkv`, `kv`, `qk`, `gate-up`, `experts`, ..."""
    title: str
    parts: Mapping[str, str]
    """{term: what it is called beside the others, unless `--rename` says otherwise}"""
    others: tuple[tuple[str, ...], ...] = ()
    """What files of other models call the same parts, in the order of `parts`."""
    inside: str = ""
    """Where a group's parts are inside its module: `{experts}.` for experts."""

    @property
    def names(self) -> Iterator[tuple[str, ...]]:
        """The names of parts that are recognised, the usual ones first."""
        yield tuple(self.parts.values())
        yield from self.others


@frozen
class PartLayout:
    """One way of storing the parts of a group."""

    name: str
    group: str
    """The kind of its group."""
    title: str
    tensors: tuple[FusedRow, ...]
    models: str = ""
    """Who stores them so."""
    source: str = ""
    """Where the facts are from."""
    facts: tuple[str, ...] = ()
    """The sizes that unfusing needs and no shape of the fused tensors shows."""
    like: tuple[str, ...] = ()
    """Layouts whose tensors have the same shapes and other rows: no shape tells them apart."""
    _members = "name title group parts=part_names tensors(name content along) facts models source proof=evidence like"

    @property
    def part_names(self) -> Mapping[str, str]:
        """{part: what it is called}."""
        return group(self.group).parts

    @property
    def evidence(self) -> tuple[str, ...]:
        """Who ran tensors of it."""

        return proofs(self.name)


@cache
def _tables() -> tuple[tuple[PartGroup, ...], tuple[PartLayout, ...]]:
    found = json.loads(package_data("parts", "layouts.json"))
    return (
        tuple(PartGroup(**{**one, "others": tuple(map(tuple, one.get("others", ())))}) for one in found["groups"]),
        tuple(
            PartLayout(**{
                **one, "tensors": tuple(FusedRow(**row) for row in one["tensors"]), "like": tuple(one.get("like", ())),
                "facts": tuple(one.get("facts", ())),
            })
            for one in found["layouts"]
        ),
    )  # fmt: skip


def all_groups() -> tuple[PartGroup, ...]:
    """The parts of every kind of group."""
    return _tables()[0]


def group(kind: str) -> PartGroup:
    """The parts of a kind of group; UsageError if there is none."""
    for one in all_groups():
        if one.kind == kind:
            return one
    raise UsageError(f"no kind of group is called {kind!r}; expected one of: {', '.join(g.kind for g in all_groups())}")


def all_part_layouts() -> tuple[PartLayout, ...]:
    """Every part layout, in the order of the documents."""
    return _tables()[1]


def find_part_layout(name: str) -> PartLayout | None:
    """The part layout of that name, or None."""
    return next((one for one in all_part_layouts() if one.name == name), None)


# --- What was run of each part layout, as `tests/oracles/dialects/prove.py` found it; it writes `proofs.json` --------


FILE = "proofs.json"
NONE_RUN = "test: equal to array operations of its own, for sizes that hypothesis draws; no model of it was run"
"""The proof of a layout that no model that transformers has stores or gets."""


def proofs(layout: str) -> tuple[str, ...]:
    """Who ran tensors of a layout, how far off they were, and how far off other layouts were."""
    return tuple(_read().get(layout, (NONE_RUN,)))


@cache
def _read() -> Mapping[str, list[str]]:
    found: Mapping[str, list[str]] = json.loads(package_data("parts", FILE))
    return found
