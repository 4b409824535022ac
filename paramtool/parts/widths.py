"""The widths of a model by its config.json, against the shapes of its attention and of its MLPs.

    q_proj.weight [heads * head_dim, hidden]     gate_proj.weight [ffn, hidden]     down_proj.weight [hidden, ffn]

An axis must have one of the lengths that the config says for its meaning: a model may have dense layers and experts.
Only modules of numbered layers are looked at, by names that mean the same in every model; stages of several widths,
cross attention and adapters are not.  A test runs the rules over every class of transformers 5.23.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, NoReturn

from paramtool.errors import LayoutError, listed, plural
from paramtool.grouping import grouped
from paramtool.model.view import Shape, Shapes
from paramtool.package_data import package_data
from paramtool.parts.config_facts import SIDES, config_of, from_config, is_known, tower_of
from paramtool.parts.facts import NONE, Facts
from paramtool.parts.families import Config
from paramtool.parts.pieces import Stored
from paramtool.parts.words import APART, FUSED, place

HIDDEN = re.compile(
    r"(hidden_size|d_model|n_embd|n_embed|embed_dim|dim|hidden_dim|emb_dim|d_embed|model_dim|embedding_dim)"
)
FFN = re.compile(
    r"\w*(intermediate_size|ffn_dim|d_ff|mlp_dim|n_inner|ffn_hidden_size|ffn_size|mlp_hidden_size|ff_dim)\w*"
    r"|\w*(feedforward|feedforward_dim)|hidden_dim|intermediate_dim"
)
"""Keys of a config that say a width."""
_Q, _K, _V = ({names[k] for names in APART["qkv"]} for k in range(3))
_GATED = {name for names in APART["gate-up"] for name in names} - {"gate", "up"}
"""Without a name that routers have, too."""
_ONE = {"fc1", "lin1", "linear1", "wi", "dense_h_to_4h", "c_fc", "fc_in", "linear_fc1", "intermediate_dense"}
_DOWN = {
    "down_proj",
    "w2",
    "wo",
    "fc2",
    "lin2",
    "linear2",
    "dense_4h_to_h",
    "fc_out",
    "linear_fc2",
    "output_dense",
    "Wo",
}
_OUTPUTS = {"o_proj", "out_proj", "out_lin", "wo", "o", "dense"}
ROLES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "attention": {
        **dict.fromkeys(_Q, ("q", "hidden")), **dict.fromkeys(_K, ("k", "hidden")),
        **dict.fromkeys(_V, ("v", "hidden")), **dict.fromkeys(_OUTPUTS, ("hidden", "o")),
        **{name: ("qkv", "hidden") for name, kind in FUSED.items() if kind == "qkv"},
        "output.dense": ("hidden", ""),
    },
    "mlp": {
        **dict.fromkeys(_GATED | _ONE, ("ffn", "hidden")), **dict.fromkeys(_DOWN, ("hidden", "ffn")),
        **{name: ("2 ffn", "hidden") for name, kind in FUSED.items() if kind == "gate-up"}, "Wi": ("2 ffn", "hidden"),
    },
    "layer": {
        "intermediate.dense": ("ffn", "hidden"), "output.dense": ("hidden", "ffn"),
        **dict.fromkeys(("fc1", "linear1", "lin1"), ("ffn", "hidden")),
        **dict.fromkeys(("fc2", "linear2", "lin2"), ("hidden", "ffn")),
    },
}  # fmt: skip
"""{kind of module: {name in it: the meanings of [outputs, inputs] of its weight}}"""
KINDS = (
    ("attention", re.compile(r"(self_?|temporal_)?(attn|attention|Attention)(\.(self|attention|output))?")),
    ("mlp", re.compile(r"(\w+\.)*(mlp|ffn|feed_forward|DenseReluDense|experts\.\*|experts|shared_experts?)")),
    ("layer", re.compile(r"(intermediate|output)?")),
)
"""What modules are called in a layer."""
IN_LAYER = re.compile(r"(?:[A-Za-z_]\w*\.)*(?:block\.\*\.layer|[A-Za-z_]\w*)\.\*\.((?:[^*]|experts\.\*)+?)(\.weight)?")
"""A place in a layer that is in no other; the place in it, and whether it is a module's weight."""
STACKS: Mapping[str, tuple[str, str]] = {
    "gate_up_proj": ("2 ffn", "hidden"), "w13_weight": ("2 ffn", "hidden"), "input_linear": ("2 ffn", "hidden"),
    "gate_proj": ("ffn", "hidden"), "up_proj": ("ffn", "hidden"),
    "down_proj": ("hidden", "ffn"), "w2_weight": ("hidden", "ffn"), "output_linear": ("hidden", "ffn"),
}  # fmt: skip
"""{stack of experts: the meanings of its last two axes, in this order or the other}"""


@cache
def exceptions() -> Mapping[str, Any]:
    """Model types of which something that is usual is not true, under the name of it: `exceptions.json`."""
    found: Mapping[str, Any] = json.loads(package_data("parts", "exceptions.json"))
    return found


OTHERWISE = frozenset(exceptions()["other_widths"].split())
"""Model types with other widths than these, or with other tensors under these names."""
CONV1D = exceptions()["conv1d"].split()
"""Model types whose weights are [inputs, outputs] (`Conv1D`, transformers 5.23 pytorch_utils.py 97)."""


class _ConfigWidth(NamedTuple):
    """What a config says of the length of an axis."""

    lengths: Mapping[int, str]
    """{length: who says it}"""
    is_multiple: bool = False
    """Whether a multiple is as good: some experts side by side."""

    def __str__(self) -> str:
        return " or ".join(f"{length} ({said})" for length, said in self.lengths.items())

    def fits(self, length: int) -> bool:
        return length in self.lengths or (self.is_multiple and any(length % one == 0 for one in self.lengths))


_Tower = Mapping[str, _ConfigWidth]
"""{meaning of an axis: its width}"""


class Contradiction(NamedTuple):
    """Tensors of one place and shape that are not as the config says."""

    name: str
    """The first of them."""
    shape: Shape
    more: int
    expected: str
    holder: str = ""
    """The tensor of the file that it is a part of."""

    def __str__(self) -> str:
        more = f" (and {plural(self.more, 'tensor')} like it)" if self.more else ""
        name = f"{self.name!r} in {self.holder!r}" if self.holder else repr(self.name)
        return f"{name} has shape {list(self.shape)}{more}; expected {self.expected}"


def check(shapes: Shapes, config: Config) -> None:
    """LayoutError for shapes that contradict the config."""
    if lines := contradictions(shapes, config):
        refuse(lines)


def refuse(found: Iterable[Contradiction], holders: Mapping[str, Stored] | None = None) -> NoReturn:
    """Raises the LayoutError that lists contradictions; `holders` are the tensors of the file for each part."""
    lines = []
    for one in found:
        holder = holders[one.name] if holders is not None else None
        if holder is not None and holder.name != one.name:  # under the name that the file has
            is_same = holder.shape == one.shape
            one = one._replace(name=holder.name) if is_same else one._replace(holder=holder.name)
        lines.append(str(one))
    raise LayoutError(
        listed(f"{plural(len(lines), 'shape contradicts', 'shapes contradict')} config.json:", lines),
        hint="config.json is of another model, or the tensors are; correct the one that is wrong",
    )


def contradictions(shapes: Shapes, config: Config) -> list[Contradiction]:
    """One for each kind of tensor whose shape is not what the config says."""
    matrices = ((name, shape) for name, shape in shapes.items() if len(shape) in (2, 3))
    places = grouped(((place(name), tuple(shape)), name) for name, shape in matrices)
    towers: dict[str, _Tower] = {}
    found = []
    for (at, shape), names in places.items():
        meanings = _meanings(at, len(shape))
        tower = tower_of(names[0], config) if meanings else None
        if tower is None:
            continue
        if tower not in towers:
            towers[tower] = _tower(config, tower)
        if meanings and (line := _wrong(shape, meanings, towers[tower], "shared" in at)):
            found.append(Contradiction(names[0], shape, len(names) - 1, line))
    return found


def is_ungated(name: str, shape: Shape, config: Config) -> bool:
    """Whether a tensor is called as the first matrix of an MLP without a gate, and is as wide by the config."""
    meanings = _meanings(place(name), len(shape))
    tower = tower_of(name, config) if meanings is not None and meanings[0] == "ffn" else None
    if meanings is None or tower is None:
        return False
    widths = _tower(config, tower)
    return "ffn" in widths and not _wrong(shape, meanings, widths, is_shared=False)


def _meanings(at: str, rank: int) -> tuple[str, str] | None:
    """What the last two axes of a tensor are, as the outputs and inputs of a layer; None where names do not say it."""
    match = IN_LAYER.fullmatch(at)
    if match is None or "norm" in match[1] or (rank == 3 and "attention" in match[1]):
        return None
    *module, last = match[1].split(".")
    if rank == 3:
        return STACKS.get(last) if module and (module[-1] == "experts" or match[2]) else None
    if not match[2]:
        return None
    inside = ".".join(module)
    kind = next((kind for kind, pattern in KINDS if pattern.fullmatch(inside)), "")
    named = ROLES.get(kind, {})
    return named.get(f"{module[-1]}.{last}" if module else last) or named.get(last)


def _wrong(shape: Shape, meanings: tuple[str, str], tower: _Tower, is_shared: bool) -> str:
    """What a shape should be; empty if it can be what it is."""
    widths = [tower.get(meaning) for meaning in meanings]
    if is_shared:
        widths = [width and width._replace(is_multiple=meaning in ("ffn", "2 ffn"))
                  for width, meaning in zip(widths, meanings, strict=True)]  # fmt: skip
    orders = [widths, widths[::-1]] if len(shape) == 3 else [widths[::-1]] if "conv1d" in tower else [widths]
    for order in orders:
        if all(width is None or width.fits(length) for width, length in zip(order, shape[-2:], strict=True)):
            return ""
    wrong = [
        f"{width} along axis {len(shape) - 2 + k}"
        for k, (width, length) in enumerate(zip(orders[0], shape[-2:], strict=True))
        if width is not None and not width.fits(length)
    ]
    return " and ".join(wrong)


def _tower(config: Config, tower: str) -> _Tower:
    """The widths of one tower of a model."""
    model_type, inner = config_of(config, tower)
    if not is_known(model_type) or not OTHERWISE.isdisjoint((model_type, config.get("model_type"))):
        return {}
    where = f"config.json: {tower}." if tower and tower not in SIDES else "config.json: "
    side = tower.rpartition(".")[2]
    if side in SIDES:  # the other half has keys of its own
        (other,) = {*SIDES} - {side}
        inner = {key: value for key, value in inner.items() if not key.startswith(other)}
    found: dict[str, dict[int, str]] = {"hidden": _said(inner, HIDDEN, where), "ffn": _said(inner, FFN, where)}
    found["2 ffn"] = {2 * length: f"2 * {said}" for length, said in found["ffn"].items()}
    try:
        facts = from_config(config, tower)
    except LayoutError:  # about sizes that no rule here needs
        facts = NONE
    found |= dict(_attention(facts))
    if "q" in found:
        found["q"] |= {2 * length: "twice that with a gate" for length in found["q"]}
    widths = {meaning: _ConfigWidth(lengths) for meaning, lengths in found.items() if lengths}
    return {**widths, "conv1d": _ConfigWidth({})} if model_type in CONV1D else widths


def _said(config: Config, keys: re.Pattern[str], where: str) -> dict[int, str]:
    said = ((key, value) for key, value in config.items() if keys.fullmatch(key))
    found = grouped(
        (length, key)
        for key, value in said
        for length in (value if isinstance(value, list) else (value,))
        if type(length) is int and length > 0
    )
    return {length: f"{where}{', '.join(names)}" for length, names in found.items()}


def _attention(facts: Facts) -> Iterator[tuple[str, dict[int, str]]]:
    """The rows of queries, keys and values, where the facts say them."""
    words = {"q": ("heads", "head_dim"), "k": ("kv_heads", "head_dim"), "v": ("kv_heads", "value_dim")}
    rows = {
        part: facts.sizes[heads] * facts.sizes[dim]
        for part, (heads, dim) in words.items()
        if heads in facts.sizes and dim in facts.sizes
    }
    for part, length in rows.items():
        heads, dim = words[part]
        said = " and ".join(dict.fromkeys(facts.said[word].removeprefix("config.json: ") for word in words[part]))
        yield part, {length: f"{heads} x {dim} = {facts.sizes[heads]} x {facts.sizes[dim]}, config.json: {said}"}
    if len(rows) == len(words):
        yield "qkv", {sum(rows.values()): f"q, k and v of {', '.join(map(str, rows.values()))} rows by config.json"}
    if {"heads", "value_dim"} <= facts.sizes.keys():
        length = facts.sizes["heads"] * facts.sizes["value_dim"]
        yield "o", {length: f"heads x value_dim = {facts.sizes['heads']} x {facts.sizes['value_dim']}, by config.json"}


# --- The rows of embeddings and output heads against `vocab_size` of config.json -------------------------------------
#
# They are equal in every program that reads the model: `from_pretrained` refuses another number, and vLLM asserts it
# where it loads an original file (vLLM 0.33 layers/vocab_parallel_embedding.py, `weight_loader`).  vLLM and Megatron
# pad the rows that they hold in memory; a file of theirs with padded rows is read if `vocab_size` is the padded number,
# or after its rows are cut, and the error says so.  A test runs the rule over every class of transformers 5.23.


EMBEDDINGS = re.compile(
    r"(?:.*\.)?(embed_tokens|word_embeddings|wte|embed_in|tok_embeddings|tokens_embed|shared|lm_head|embed_out)\.weight"
)
"""Names that mean a row for each token in every model type that has them, but for these."""
OTHER_ROWS = exceptions()["other_rows"].split()
"""Model types with other numbers of rows (transformers 5.23: codebooks; mllama 8 more; molmo2 additional_vocab_size;
imagegpt a head without the first token; esm a head of residues)."""

UNPADDED = exceptions()["unpadded"].split()
"""Model types whose head lacks the padded rows, which their embedding has (transformers 5.24,
inkling2/modeling_inkling2.py 1458)."""


def row_contradictions(shapes: Shapes, config: Config) -> Iterator[Contradiction]:
    """Embeddings and heads with another number of rows than the config of their tower says."""
    for name, shape in shapes.items():
        if len(shape) != 2 or not EMBEDDINGS.fullmatch(name):
            continue
        tower = tower_of(name, config)
        if tower is None:
            continue
        model_type, inner = config_of(config, tower)
        size = inner.get("vocab_size")
        if type(size) is not int or not is_known(model_type) or model_type in OTHER_ROWS or size == shape[0]:
            continue
        if model_type in UNPADDED and name.endswith("lm_head.weight") and shape[0] == inner.get("unpadded_vocab_size"):
            continue
        where = f"config.json: {f'{tower}.' if inner is not config else ''}vocab_size"
        padded = "; if the file is padded, cut the rows that are no token's" if shape[0] > size else ""
        yield Contradiction(name, shape, 0, f"{size} ({where}) along axis 0{padded}")
