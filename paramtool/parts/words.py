"""What files call the parts of attention, gated MLPs and experts, and the tensors that hold several of them.

No layout is made here, so that `inspect` looks at names before it needs one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from paramtool.package_data import package_data

Names = tuple[str, ...]
"""Names of parts, or of tensors that hold them, in the order of their group or layout."""
_TABLE = json.loads(package_data("parts", "layouts.json"))
APART: Mapping[str, tuple[Names, ...]] = {
    group["kind"]: (tuple(group["parts"].values()), *map(tuple, group["others"]))
    for group in _TABLE["groups"]
    if group["kind"] in ("qkv", "gate-up", "experts")
}
"""{kind of a group: the names of its parts, in each way that files have them}"""
_FUSED: list[tuple[str, str, str]] = _TABLE["fused"]
"""(kind of a group, when, what files call the tensor that holds it); docs/layouts.md says who.

A tensor of a name is fused `always`, in every model; `in families`, some model types; or `where said` by `--layout`.
Other models have other things under the names of the last two.
"""
FUSED_NAMES: Mapping[str, Names] = {
    kind: tuple(name for own, _, names in _FUSED if own == kind for name in names.split()) for kind, _, _ in _FUSED
}
"""{kind of a group: what files call the tensor that holds it}"""
TORCH_MHA = "in_proj_weight"
"""The tensor of torch.nn.MultiheadAttention (torch/nn/modules/activation.py): queries, then keys, then values."""


def _kinds(when: str) -> dict[str, str]:
    return {name: kind for kind, own, names in _FUSED if own == when for name in names.split()}


FUSED: Mapping[str, str] = {**_kinds("always"), TORCH_MHA: "qkv"}
"""{name of a fused tensor: the kind of its group}"""
OF_FAMILIES: Mapping[str, str] = _kinds("in families")
"""The same for names that are fused tensors in some families only."""
CROSS = "crossattention"
"""What a module of GPT-2 is called that takes queries from elsewhere (transformers 5.23.0 gpt2 95-106, 233)."""


def kind_in(module: str, name: str) -> str:
    """The kind of the group in a fused tensor of a module; "" for a name that is none in any family.

    >>> kind_in("h.0.attn", "c_attn"), kind_in("h.0.crossattention", "c_attn")
    ('qkv', 'kv')
    """
    if name == "c_attn" and module.rpartition(".")[2] == CROSS:
        return "kv"
    return FUSED.get(name) or OF_FAMILIES.get(name, "")


STACKS: tuple[Names, ...] = (
    ("gate_up_proj", "down_proj"), ("w13_weight", "w2_weight"), ("gate_proj", "up_proj", "down_proj"),
    ("w1", "v1", "w2"),
)  # fmt: skip
"""Names of the stacks in a module of experts, which are tensors themselves, without `.weight`."""
FLAT = STACKS[3]
"""Experts below each other in matrices."""
LAYER_STACKS = ("input_linear", "output_linear")
"""Layers whose weights are stacks (transformers 5.23.0 `jetmoe` 79, 252-254; `granitemoe` files)."""
CHILDREN = frozenset([*(name for ways in APART.values() for names in ways for name in names), *FUSED, *OF_FAMILIES,
                      *LAYER_STACKS])  # fmt: skip
"""What parts and fused tensors are called that are layers."""
STACK_NAMES: Mapping[Names, tuple[Names, ...]] = {
    STACKS[0]: (("w13", "w2"), LAYER_STACKS),
    ("k_b_proj", "v_b_proj"): (("embed_q", "unembed_out"), ("attn_k_b", "attn_v_b")),
}
"""{the stacks of a layout: what other files call them}"""
WEIGHTS = ("weight", "qweight", "weight_packed", "blocks", "base_layer.weight")
"""What the weight of a layer is called, quantised or not, or beside factors of PEFT."""
BASE = "base_layer"
"""PEFT puts the weight of a layer under this name, in memory."""
BLOCKS = "_blocks"
"""The codes of MXFP4 beside the name of a stack: `gate_up_proj_blocks`."""
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj", "proj", "wo", "Wo", "linear_proj", "output.dense", "out_lin")
"""What the output projection beside an attention is called: it has as many inputs as there are rows of queries."""
NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
"""A number between dots."""


def place(name: str) -> str:
    """A name with `*` for each number in it: the modules of one place are compared.

    >>> place("model.layers.10.mlp.experts.3")
    'model.layers.*.mlp.experts.*'
    """
    return NUMBER.sub("*", name)


def joined(*words: str) -> str:
    """Words of a name that are not empty, with dots."""
    return ".".join(word for word in words if word)
