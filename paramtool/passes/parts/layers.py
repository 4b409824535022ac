"""Whether a model has the layers that its config.json says, and whether each has what the others have.

    config.json says 32 layers (num_hidden_layers); model.layers has 31 of them: no 17
    'model.layers.5' has no self_attn.q_norm.weight; 'model.layers.0' has

Some classes of transformers 5.23 really have layers that differ; `DIFFERING` lists them.  A test runs the rules over
every class.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from paramtool.errors import LayoutError, listed, plural, some
from paramtool.parts.config_facts import SIDES, config_of, is_known, tower_of
from paramtool.parts.config_types import LAYERS, OF_SIDE
from paramtool.passes.parts import consistency

STACK = re.compile(r"((?:[A-Za-z_]\w*\.)*(?:layers|layer|h|blocks|block))\.([0-9]{1,9})\.(.*)")
"""The layers of a model, the number of one, and what is in it."""
ONE_LESS = ("mask2former",)
"""Model types whose layers are one less than a key says (transformers 5.23 modeling_mask2former.py)."""
BLOCKS = ("dory",)
"""Model types whose config counts attention and MLP apart: two of its layers are one of the model in memory
(transformers 5.24, dory/configuration_dory.py, `to_dict`)."""
STAGES = "depths"
"""A key of models whose layers are stages, which hold layers."""
PREDICTING = re.compile(r"nextn|mtp")
"""In keys that say how many layers follow the others, to predict further tokens."""
PREDICTS = frozenset(["eh_proj", "enorm", "hnorm", "shared_head"])
"""What such a layer has (transformers 5.23 does not load it: deepseek_v3/modeling_deepseek_v3.py,
`_keys_to_ignore_on_load_unexpected`)."""
SHOWN = 4
MOST = 1 << 16
"""A config that says more layers is not believed."""
DIFFERING: Mapping[str, tuple[str, ...]] = {
    "relative_attention_bias": ("t5", "mt5", "longt5", "pop2piano", "udop", "switch_transformers",
                                "pix2struct", "pix2struct_text_model"),
    "rel_attn_embed": ("wavlm",),
    "attn_norm": ("modernbert", "modernbert-decoder"),
    "crossattention": ("blip_2_qformer", "instructblip_qformer", "instructblipvideo_qformer"),
    "dense_bias": ("gpt_neox_japanese",),
    "attention_input": ("inkling2_text", "inkling2_loop_text"),
    "final_layernorm": ("fun_asr_nano_encoder",),
    "router_states_scale": ("zaya",),
    "indexer": ("dots3_note_text", "glm_moe_dsa", "deepseek_v32", "deepseek_v4", "hy_v4"),
    "adapter": ("evolla",),
    "experts": ("dots3_note_vision_encoder",),
    "proj": ("sam2_hiera_det_model",),
    "pre_ln": ("rwkv",),
    "msa_pair_weighted_averaging": ("esmfold2",),
    "msa_transition": ("esmfold2",),
    "downsample": ("swin", "swinv2", "donut-swin", "maskformer-swin", "clap_audio_model"),
    "blocks": ("swin", "swinv2", "donut-swin", "maskformer-swin", "clap_audio_model", "pvt_v2"),
    "layer": ("mobilevit", "mobilevitv2"),
}  # fmt: skip
"""{a word in names: the model types of which only some layers have it}"""
QUANTISED = ("quantization_config", "compression_config")


class _LayerStack(NamedTuple):
    """The layers of one tower of a model."""

    at: str
    model_type: str
    config: Mapping[str, Any]
    layers: Mapping[int, frozenset[str]]
    """{number: the names in the layer}"""
    expected: int
    """How many its config says; 0 where it does not."""
    said: str
    """The key that says it."""


def check(names: Iterable[str], config: Mapping[str, Any]) -> list[str]:
    """LayoutError for layers that are missing, too many, or lack what the others have.

    Of model types that paramtool does not know, the same are sentences for warnings.
    """
    wrong: list[str] = []
    unsure: list[str] = []
    for stack in _stacks(names, config):
        lines = wrong if is_known(stack.model_type) else unsure
        lines += [line for line in (_missing(stack), _more(stack)) if line]
        lines += _uneven(stack, config)
    if wrong:
        raise LayoutError(
            listed(f"{plural(len(wrong), 'contradiction')} between layers, or with config.json:", wrong),
            hint="the file lacks tensors, is one stage of a pipeline, or config.json is of another model; nothing is "
            "converted in part",
        )
    return unsure


def _stacks(names: Iterable[str], config: Mapping[str, Any]) -> Iterator[_LayerStack]:
    """The stacks of layers of which some have parts."""
    found: dict[str, dict[int, set[str]]] = {}
    for name in names:
        if (match := STACK.match(name)) and "lora_" not in name:
            found.setdefault(match[1], {}).setdefault(int(match[2]), set()).add(match[3])
    with_parts = {at for at, layers in found.items() if any(map(_has_parts, layers.values()))}
    counts = dict(_counts(found, config))
    for at in with_parts:
        tower = tower_of(f"{at}.0.", config)
        model_type, inner = config_of(config, tower) if tower is not None else ("", {})
        layers = {number: frozenset(own) for number, own in found[at].items()}
        expected, said = counts.get(at, (0, ""))
        if inner.get("model_type") in BLOCKS and any("self_attn" in name.split(".") for name in layers[min(layers)]):
            expected //= 2
        yield _LayerStack(at, model_type, inner, layers, expected, said)


def _has_parts(names: Iterable[str]) -> bool:
    return any(not consistency.PARTS.isdisjoint(name.split(".")) for name in names)


# --- how many --------------------------------------------------------------------------------------------------------


def _counts(stacks: Iterable[str], config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, str]]]:
    """(the only stack of layers that a key of the config speaks of, (the number, the key))"""
    towers: dict[tuple[str, str], list[str]] = {}
    for stack in stacks:
        if (tower := tower_of(f"{stack}.0.", config)) is not None:
            path, _, side = tower.rpartition(".") if tower.endswith(SIDES) else (tower, "", "")
            named = next((one for one in SIDES if one in stack.split(".") and (not side or one == side)), "")
            towers.setdefault((path, named if _side_key(config, path, named) else ""), []).append(stack)
    for (path, side), own in towers.items():
        if len(own) == 1 and (said := _said(path, side, config)):
            yield own[0], said


def _side_key(config: Mapping[str, Any], path: str, side: str) -> str:
    inner = config_of(config, path)[1]
    keys = (key.format(side) for key in OF_SIDE) if side else ()
    return next((key for key in keys if type(inner.get(key)) is int), "")


def _said(path: str, side: str, config: Mapping[str, Any]) -> tuple[int, str] | None:
    """How many layers a config says, and its key; None where it does not, or is not believed."""
    inner = config_of(config, path)[1]
    keys = [_side_key(config, path, side)] if side else [key for key in LAYERS if type(inner.get(key)) is int]
    if len({inner[key] for key in keys}) != 1 or inner[keys[0]] > MOST or inner.get("model_type") in ONE_LESS:
        return None
    return inner[keys[0]], f"{path}.{keys[0]}" if path else keys[0]


def _missing(stack: _LayerStack) -> str:
    """A sentence if layers are missing."""
    missing = [k for k in range(stack.expected) if k not in stack.layers]
    if not missing:
        return ""
    there = stack.expected - len(missing)
    return f"{_by_config(stack)}; {stack.at} has {there} of them: no {_numbers(missing)}"


def _more(stack: _LayerStack) -> str:
    """A sentence if there are more layers, which do not predict further tokens."""
    more = sorted(k for k in stack.layers if k >= stack.expected)
    if not stack.said or not more or STAGES in stack.config or _predicting(stack):
        return ""
    return f"{_by_config(stack)}; {stack.at} has {len(more)} more: {_numbers(more)}"


def _by_config(stack: _LayerStack) -> str:
    return f"config.json says {plural(stack.expected, 'layer')} ({stack.said})"


def _numbers(numbers: Collection[int]) -> str:
    more = len(numbers) - SHOWN
    return ", ".join(map(str, islice(numbers, SHOWN))) + (f" and {more} more" if more > 0 else "")


def _predicting(stack: _LayerStack) -> bool:
    """Whether the layers behind the others predict further tokens."""
    said = any(PREDICTING.search(key) and type(value) is int and value > 0 for key, value in stack.config.items())
    return said or all(_predicts(names) for k, names in stack.layers.items() if k >= stack.expected)


def _predicts(names: Iterable[str]) -> bool:
    return any(not PREDICTS.isdisjoint(name.split(".")) for name in names)


# --- what each has ---------------------------------------------------------------------------------------------------


def _uneven(stack: _LayerStack, config: Mapping[str, Any]) -> Iterator[str]:
    """A line for each set of names that layers lack, and that others have which have all the rest of them."""
    lines: dict[tuple[str, ...], list[int]] = {}
    others: dict[tuple[str, ...], int] = {}
    for kinds in _alike(stack, config):
        by_number = sorted(kinds, key=lambda one: (-len(kinds[one]), -len(one)))
        for names, layers in kinds.items():
            fuller = next((one for one in by_number if names < one), None)
            if fuller is None:
                continue
            for number in layers:
                if lacking := _lacking(stack, number, sorted(fuller - names), config):
                    lines.setdefault(lacking, []).append(number)
                    others[lacking] = min(kinds[fuller])
    for lacking, numbers in lines.items():
        like = f" (and {plural(len(numbers) - 1, 'layer')} like it)" if numbers[1:] else ""
        yield f"'{stack.at}.{min(numbers)}' has no {some(lacking, SHOWN)}{like}; '{stack.at}.{others[lacking]}' has"


def _alike(stack: _LayerStack, config: Mapping[str, Any]) -> Iterable[dict[frozenset[str], list[int]]]:
    """{names in a layer: the layers that have them}, for each sort of layers that lists of the config say."""
    lists = [
        value
        for value in stack.config.values()
        if stack.said
        and (
            isinstance(value, list)
            and len(value) == stack.expected
            and all(isinstance(one, (str, int)) for one in value)
        )
    ]
    found: dict[tuple[object, ...], dict[frozenset[str], list[int]]] = {}
    for number, names in sorted(stack.layers.items()):
        if not (stack.said and number >= stack.expected) and not _predicts(names):
            sort = tuple(values[number] for values in lists)
            found.setdefault(sort, {}).setdefault(_looked_at(names, config), []).append(number)
    return found.values()


def _looked_at(names: Collection[str], config: Mapping[str, Any]) -> frozenset[str]:
    """The names that are compared: not those of layers in stages, which differ; of a quantised model only norms, as
    layers may be left as they are."""
    is_quantised = any(key in config for key in QUANTISED)
    return frozenset(name for name in names if not name[0].isdecimal() and ("norm" in name or not is_quantised))


def _lacking(stack: _LayerStack, number: int, names: Iterable[str], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of the names which a layer lacks that one of this model type, or by this config, must have."""
    by_module: dict[str, list[str]] = {}
    model_type = stack.model_type or str(config.get("model_type"))  # of a stack that the config does not name
    for name in names:
        if not any(model_type in DIFFERING.get(word, ()) for word in name.split(".")):
            by_module.setdefault(consistency.module_of(f"{stack.at}.{number}.{name}"), []).append(name)
    found: list[str] = []
    for module, own in by_module.items():
        inside = module[len(f"{stack.at}.{number}.") :]
        if not consistency.is_so(module, [name.removeprefix(f"{inside}.") for name in own], config):
            found += own
    return tuple(sorted(found))
