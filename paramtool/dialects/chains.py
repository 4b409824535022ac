"""The operations of one rule, one after the other: forwards on places, backwards on shapes alone.

Backwards gives the shapes that the file has; which elements go where is always told by going forwards from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

from paramtool.dialects.renaming import NameRule, Operation
from paramtool.model.view import Shape
from paramtool.parts import operations
from paramtool.parts.families import Config
from paramtool.parts.operations import Misfit
from paramtool.parts.pieces import Stored

# --- Sizes that neither the names nor the shapes of fused tensors give: of parts that a rule of transformers joins ---
#
# transformers turns a join into equal parts when it saves, so what it writes of unequal ones is wrong.  Here each join
# is either of equal parts by the equations of its model, or its sizes are numbers of config.json.  The facts are those
# of transformers 5.23.0, of Lara-Mini and GLM-4-MoE of 5.24.0; each has its file and line.


PAIRS = (("gate_proj", "up_proj"), ("w1", "w3"), ("fc1", "fc3"))
"""Sources that are gate and up of one gated MLP: act(gate x) * (up x) needs equal rows."""
EQUAL = {
    ("self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight", "self_attn.v_conv1d.weight"):
        "kimi_linear/modeling_kimi_linear.py 589, glm5_next/modeling_glm5_next.py 643: conv_dim = qkv_dim * 3",
    ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"):
        "bailing_hybrid/modeling_bailing_hybrid.py 669: conv_dim = qkv_dim * 3",
}  # fmt: skip
"""{sources: where the model says that they have equal rows}."""


class NoFact(Exception):
    """A number that decides and that the config does not say."""


def number(config: Config | None, *keys: str) -> int:
    """The first of the keys that the config says a positive number under; NoFact where it says none."""
    for key in keys:
        value = (config or {}).get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    raise NoFact(" or ".join(repr(key) for key in keys))


def _olmo_hybrid(config: Config) -> tuple[int, ...]:
    """key_dim, key_dim, value_dim (olmo_hybrid/modeling_olmo_hybrid.py 583-586, 606)."""
    key = number(config, "linear_num_key_heads") * number(config, "linear_key_head_dim")
    value = number(config, "linear_num_value_heads") * number(config, "linear_value_head_dim")
    return key, key, value


def _molmo2_words(config: Config) -> tuple[int, ...]:
    """vocab_size and additional_vocab_size (molmo2/modeling_molmo2.py 652)."""
    return number(config, "vocab_size"), number(config, "additional_vocab_size")


def _lara_mini(config: Config) -> tuple[int, ...]:
    """q, k and v; z; b; a (lara_mini/modeling_lara_mini.py 574-575, 606-609)."""
    key, _, value = _olmo_hybrid(config)
    heads = number(config, "linear_num_value_heads")
    return 2 * key + value, value, heads, heads


def _attention(config: Config) -> tuple[int, ...]:
    """Heads of q, and of k and v (molmo2/modeling_molmo2.py 250-264, glm4_moe/modeling_glm4_moe.py 181-194)."""
    heads = number(config, "num_attention_heads")
    try:
        dim = number(config, "head_dim")
    except NoFact:
        dim = number(config, "hidden_size") // max(heads, 1)
    groups = number(config, "num_key_value_heads")
    return heads * dim, groups * dim, groups * dim


SIZES: Mapping[tuple[str, ...], Callable[[Config], tuple[int, ...]]] = {
    ("linear_attn.q_conv1d.weight", "linear_attn.k_conv1d.weight", "linear_attn.v_conv1d.weight"): _olmo_hybrid,
    ("wte.embedding", "wte.new_embedding"): _molmo2_words,
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): _attention,
    ("q_proj", "k_proj", "v_proj"): _attention,
    tuple(f"linear_attn.in_proj_{part}" for part in ("qkv", "z", "b", "a")): _lara_mini,
}
"""{names of the parts: their sizes by the config of the module}."""


def is_pair(sources: Sequence[str]) -> bool:
    """Whether sources are gate and up of one MLP."""
    ends = tuple(re.sub(r"\.?(weight|bias)$", "", source).rpartition(".")[2] for source in sources)
    return ends in PAIRS


def is_known(rule: NameRule) -> bool:
    """Whether the sizes of every join of a rule are known, so that it can be undone."""
    for name, *parameters in rule.operations:
        if name == "Concatenate" and not (parameters[1] or is_pair(rule.sources)):
            return rule.sources in EQUAL or rule.sources in SIZES
        if name == "Split":
            return rule.targets in SIZES
    return True


def sizes(rule: NameRule, total: int, root: Config, shards: str | None) -> tuple[int, ...]:
    """The sizes of what a `Concatenate` of a rule joins.

    NoFact where nothing says them, Misfit where the config says others.
    """
    if shards is not None:
        return _equal(total, number(text_config(rule.config or root), shards))
    if is_pair(rule.sources) or rule.sources in EQUAL:
        return _equal(total, len(rule.sources))
    return _of_config(rule, rule.sources, total)


def split_sizes(rule: NameRule, total: int) -> tuple[int, ...]:
    """The sizes of what a `Split` of a rule gives; errors as of `sizes`."""
    return _of_config(rule, rule.targets, total)


def _of_config(rule: NameRule, names: tuple[str, ...], total: int) -> tuple[int, ...]:
    if names not in SIZES:
        raise NoFact(f"the sizes of {', '.join(names)}")
    found = SIZES[names](rule.config or {})
    if sum(found) != total:
        raise Misfit(f"has {total} where the config says {' + '.join(map(str, found))} = {sum(found)}")
    return found


def _equal(total: int, count: int) -> tuple[int, ...]:
    if not count or total % count:
        raise Misfit(f"has {total}, which is not {count} equal parts")
    return (total // count,) * count


def text_config(config: Config) -> Config:
    """The part of a config that is of text (PreTrainedConfig.get_text_config, configuration_utils.py 1519)."""
    for key in ("text_encoder", "decoder", "generator", "text_config"):
        if isinstance(config.get(key), Mapping):
            found: Config = config[key]
            return found
    return config


HEADS = ("num_attention_heads", "heads")
"""The number of heads; `heads` where transformers did not write the config (step3p7/configuration_step3p7.py 71)."""


def rope_heads(root: Config, subconfig: str | None) -> int:
    """The heads that a rotary permutation goes by, of the whole model's config (core_model_loading.py 480)."""
    config = root.get(subconfig, root) if subconfig else root
    return number(config, *HEADS)


def expected(rule: NameRule, root: Config) -> tuple[int, int]:
    """The last two axes that a stack of experts has in the model (qwen3_vl_moe/modeling_qwen3_vl_moe.py 93-94)."""
    config = text_config(rule.config or root)
    hidden, inner = number(config, "hidden_size"), number(config, "moe_intermediate_size")
    return (2 * inner, hidden) if rule.targets[0].endswith("gate_up_proj") else (hidden, inner)


Lists = list[list[Stored]]
"""For each pattern, the tensors that match it."""


def made(rule: NameRule, sources: Lists, root: Config) -> list[Stored]:
    """The tensors of a rule's targets, made of those of its sources.

    `root` is the whole config.json.  operations.Misfit where the tensors do not fit the rule, facts.NoFact where a
    number is missing.
    """
    lists = sources
    for operation in rule.operations:
        lists = _step(rule, operation, lists, root)
    return [one for each in lists for one in each]


def has_scales(rule: NameRule) -> bool:
    """Whether all sources but the first are scales of it, which only quantised files have."""
    return any(name == "Inkling2LoopDequantizeExperts" for name, *_ in rule.operations)


def _step(rule: NameRule, operation: Operation, lists: Lists, root: Config) -> Lists:
    name, *parameters = operation
    if name == "MergeModulelist":
        return [[operations.stacked(each, parameters[0])] for each in lists]
    if name == "Concatenate":
        return [[_side_by_side(rule, [one for each in lists for one in each], parameters, root)]]
    if name == "ErnieFuseAndSplitTextVisionExperts":
        return _towers(lists, len(rule.targets), *parameters)
    if name == "Inkling2LoopMergeMessageQueries":
        return [[_queries(*(one for each in lists for one in each))]]
    if any(len(each) != 1 for each in lists):
        raise Misfit(f"are several tensors where {name} takes one")
    if name in ("Chunk", "Split"):
        return [[one] for one in _windows(rule, name, lists[0][0], parameters[0])]
    names = rule.targets if len(lists) == len(rule.targets) else rule.sources
    return [[_alone(rule, operation, each[0], (names[k], root))] for k, each in enumerate(lists)]


def _side_by_side(rule: NameRule, every: Sequence[Stored], parameters: Sequence[Any], root: Config) -> Stored:
    """Tensors as one; Misfit if the config says another number of them, or other sizes."""
    if parameters[1] and len(every) != (count := number(text_config(rule.config or root), parameters[1])):
        raise Misfit(f"are {len(every)}, and the config says {parameters[1]}={count}")
    if (rule.sources in SIZES) and parameters[0] == 0:
        for one in every:
            _need_axis(one.shape, 0)
        found = tuple(one.shape[0] for one in every)
        if found != (said := sizes(rule, sum(found), root, None)):
            raise Misfit(f"have {list(found)} rows, and the config says {list(said)}")
    return operations.side_by_side(every, parameters[0])


def _windows(rule: NameRule, name: str, tensor: Stored, axis: int) -> list[Stored]:
    """A tensor in one piece for each target."""
    _need_axis(tensor.shape, axis)
    total, count = tensor.shape[axis], len(rule.targets)
    if name == "Split":
        lengths = split_sizes(rule, total)
    elif total % count:
        raise Misfit(f"has shape {list(tensor.shape)}, and {total} is not {count} equal parts")
    else:
        lengths = (total // count,) * count
    return [operations.window(tensor, axis, sum(lengths[:k]), length) for k, length in enumerate(lengths)]


def _alone(rule: NameRule, operation: Operation, tensor: Stored, at: tuple[str, Mapping[str, Any]]) -> Stored:
    """An operation that makes one tensor of one."""
    name, *parameters = operation
    shape = tensor.shape
    if name == "Interleave":
        axis, inverse = parameters
        if axis >= len(shape) or shape[axis] % 2:
            raise Misfit(f"has shape {list(shape)}, without pairs along axis {axis}")
        half = shape[axis] // 2
        return operations.shuffled(tensor, axis, (2, half) if inverse else (half, 2), (1, 0))
    if name == "PermuteForRope":
        return _rotary(parameters, tensor, *at)
    if name == "Transpose":
        a, b, check = parameters
        if check and not _is_swapped(shape, expected(rule, at[1])):
            raise Misfit(f"has shape {list(shape)}, as in memory: it is of transformers-5 already")
        return operations.swapped(tensor, a, b)
    if name == "Conv3dToLinear":
        return operations.flattened(tensor)
    if name == "Inkling2UnpadVocab":
        # A head that has as many rows as the model; Misfit where it has rows that the model drops.
        root = at[1]
        rows = number(text_config(rule.config or root), "unpadded_vocab_size")
        _need_axis(tensor.shape, 0)
        if tensor.shape[0] > rows:
            raise Misfit(
                f"has {tensor.shape[0]} rows, of which the model keeps the first {rows} (config.json: "
                "unpadded_vocab_size); rows are neither dropped nor added: cut them first"
            )
        return tensor
    if name == "Inkling2LoopDequantizeExperts":
        return tensor  # experts that are not quantised
    raise NotImplementedError(name)


def _is_swapped(shape: Shape, wanted: tuple[int, int]) -> bool:
    """Whether a stack has its last two axes in the other order than the model; Misfit where that cannot be told."""
    last = shape[-2:]
    if last == wanted and wanted[0] == wanted[1]:
        raise Misfit(f"has shape {list(shape)}, and two axes of one length do not say whether they are exchanged")
    if last == wanted:
        return False
    if last == wanted[::-1]:
        return True
    raise Misfit(f"has shape {list(shape)}, and the config says {list(wanted)} or {list(wanted[::-1])} for its end")


def _queries(queries: Stored, others: Stored) -> Stored:
    """Rows (q, mlp) and rows (k, v) of each layer as [layers, (q, k, v, mlp), hidden]."""
    first, second = (operations.unflattened(one, 0, 2) for one in (queries, others))
    parts = [operations.window(first, 1, 0, 1), second, operations.window(first, 1, 1, 1)]
    return operations.side_by_side(parts, 1)


def _rotary(parameters: Sequence[Any], tensor: Stored, name: str, root: Config) -> Stored:
    """Rows of pairs (h d t) as rows of halves (h t d), for the names that are meant."""
    subconfig, only, inverse = parameters
    if (only is not None and not any(one in name for one in only)) or len(tensor.shape) > 2:
        return tensor
    heads = rope_heads(root, subconfig)
    rows = tensor.shape[0] if tensor.shape else 0
    if not heads or rows % (2 * heads):
        raise Misfit(f"has shape {list(tensor.shape)}: {rows} rows are not {heads} heads of pairs")
    half = rows // heads // 2
    return operations.shuffled(tensor, 0, (heads, 2, half) if inverse else (heads, half, 2), (0, 2, 1))


def _towers(lists: Lists, towers: int, stack: int, along: int) -> Lists:
    """Experts of two towers in one list: the first half is the first tower's."""
    if len({len(each) for each in lists}) > 1 or len(lists[0]) % towers:
        raise Misfit(f"are {', '.join(str(len(each)) for each in lists)} experts, expected {towers} equal towers")
    count = ceil(len(lists[0]) / towers)
    halves = ([each[k * count : (k + 1) * count] for each in lists] for k in range(towers))
    return [
        [operations.side_by_side([operations.stacked(each, stack) for each in half], along)] for half in halves
    ]  # fmt: skip


# --- Backwards -------------------------------------------------------------------------------------------------------


def sources_of(rule: NameRule, shapes: Sequence[Shape], root: Config) -> list[list[Shape]]:
    """For each source of a rule, the shapes that a file has, from those of all its targets; errors as of `made`."""
    found = [[shape] for shape in shapes]
    for operation in reversed(rule.operations):
        found = _back(rule, operation, found, root)
    return found


def _back(rule: NameRule, operation: Operation, shapes: list[list[Shape]], root: Config) -> list[list[Shape]]:
    name, *parameters = operation
    first = shapes[0][0]
    if name == "MergeModulelist":
        for (one,) in shapes:
            _need_axis(one, parameters[0])
        return [[(*one[: parameters[0]], *one[parameters[0] + 1 :])] * one[parameters[0]] for (one,) in shapes]
    if name == "Concatenate":
        axis, shards = parameters
        _need_axis(first, axis)
        lengths = sizes(rule, first[axis], root, shards)
        parts = [(*first[:axis], length, *first[axis + 1 :]) for length in lengths]
        return [parts] if shards else [[part] for part in parts]
    if name in ("Chunk", "Split"):
        return [[_together([one for each in shapes for one in each], parameters[0], equal=name == "Chunk")]]
    if name == "ErnieFuseAndSplitTextVisionExperts":
        return _towers_back([one for each in shapes for one in each], len(rule.sources), *parameters)
    if name == "Inkling2LoopMergeMessageQueries":
        if len(first) != 3 or first[1] != 4:
            raise Misfit(f"has shape {list(first)}, expected [layers, 4, hidden]")
        return [[(2 * first[0], first[2])]] * 2
    if name == "Transpose":
        a, b, check = parameters
        if check and _is_swapped(first, expected(rule, root)):
            raise Misfit(f"has shape {list(first)}, and the model has the last two axes exchanged")
        return [[_exchanged(one, a, b)] for (one,) in shapes]
    return shapes  # what only moves elements within a tensor


def _together(shapes: Sequence[Shape], axis: int, *, equal: bool) -> Shape:
    first = shapes[0]
    for other in shapes:
        same = len(other) == len(first) > axis and other[:axis] == first[:axis]
        if not same or other[axis + 1 :] != first[axis + 1 :] or (equal and other != first):
            raise Misfit(f"have shapes {', '.join(str(list(one)) for one in shapes)}, expected parts of one tensor")
    return (*first[:axis], sum(one[axis] for one in shapes), *first[axis + 1 :])


def _need_axis(shape: Shape, axis: int) -> None:
    if axis >= len(shape):
        raise Misfit(f"has shape {list(shape)}, without axis {axis}")


def _exchanged(shape: Shape, a: int, b: int) -> Shape:
    _need_axis(shape, max(a, b))
    swapped = list(shape)
    swapped[a], swapped[b] = shape[b], shape[a]
    return tuple(swapped)


def _towers_back(towers: Sequence[Shape], sources: int, stack: int, along: int) -> list[list[Shape]]:
    for one in towers:
        _need_axis(one, max(stack, along))
    if len({one[stack] for one in towers}) > 1:
        raise Misfit(f"have {', '.join(str(one[stack]) for one in towers)} experts, expected equal numbers")
    each: list[Shape] = []
    for one in towers:
        if one[along] % sources:
            raise Misfit(f"has shape {list(one)}, and {one[along]} is not {sources} equal parts")
        part = (*one[:along], one[along] // sources, *one[along + 1 :])
        each += [(*part[:stack], *part[stack + 1 :])] * one[stack]
    return [list(each) for _ in range(sources)]
