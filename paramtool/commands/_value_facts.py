"""What the values of tensors depend on and their bytes do not show: it is compared and digested as the bytes are.

    a compound tensor     its kind, its scale or shape, and what a subclass of tensors was saved with (`block_size`)
    an entry of a header  one that names tensors or modules of its file: what they are made into by the library that
                          wrote it, as torchao does for each quantised weight and ComfyUI for each layer
    config.json           beside codes, how they are read, but for settings of the program that calculates with them;
                          and what norms add to variances, as the configuration of Keras and graphs have it, too
    adapter_config.json   all that it says of an adapter, but for what it was trained with and for
    objects beside codes  of their module, such as the number of bits and the axis of a layer of HQQ

Other entries, such as a title or the configuration of a model of Keras, are metadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from paramtool.commands import adapter_config
from paramtool.commands.progress import Path
from paramtool.commands.rearrangement import config_beside
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.formats.hdf5.keras_config import KerasConfig
from paramtool.formats.record.moved import TENSORS, of_torchao
from paramtool.formats.table import holds
from paramtool.model import quantised
from paramtool.model.checkpoint import PENDING, Checkpoint, Compound
from paramtool.model.diff import SAME_BYTES
from paramtool.model.objects import Leaf, Node, Sequence, objects_in
from paramtool.model.objects import Mapping as MappingNode
from paramtool.passes.objects_text import canonical, in_short

RUNTIME = {"backend", "max_input_length", "activation_scale_ub", "dequantize", "use_optimized_inference"}
RUNTIME |= {"llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload"}
RUNTIME |= {"bnb_4bit_compute_dtype", "use_exllama", "exllama_config", "use_cuda_fp16", "do_fuse"}
RUNTIME |= {"dataset", "tokenizer", "batch_size", "pad_token_id", "model_seqlen", "damp_percent", "true_sequential"}
RUNTIME |= {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"}
RUNTIME |= {"lora_dropout", "module_dropout", "rank_dropout", "megatron_config", "megatron_core", "qalora_group_size"}
"""Settings that change how a program calculates with weights, and not the weights: those that loading may replace
(`get_loading_attributes` in transformers/utils/quantization_config.py), of bitsandbytes, kernels and calibrations; and
of adapters, what they were trained with, or for, and a size that their shapes show."""
EPSILON = re.compile(r"(^|[._])(eps|epsilon)$")
"""How settings end that norms add to variances."""
NOT_SAID = {"null", "false", "{}", "[]"}
"""Settings of an adapter as they are where its config, of an earlier PEFT, does not have them."""
HEADER = " (header)"
"""Behind the key of an entry, as a label."""
MAX_WORDS = 40
"""Characters of a fact that are shown."""
OF_ADAPTERS = "lora_adapter_metadata"
"""The entry with the ranks and the scales of adapters (diffusers/loaders/lora_base.py)."""
OF_KERAS = ("config.json", "model_config")
"""Entries with the configuration of a model of Keras, which names its layers."""


class Fact(NamedTuple):
    """One fact."""

    text: str
    """The same text for equal facts alone."""
    words: str
    """For people."""


Facts = Mapping[str, Fact]


def of_compound(value: Compound) -> dict[str, Fact]:
    """What is known of a compound tensor beside its parts."""
    found = {key: _plain(dict(fact) if isinstance(fact, Mapping) else fact) for key, fact in value.facts.items()}
    return {"kind": Fact(value.kind, value.kind), **found, **of_state(value)}


def of_state(value: Compound) -> dict[str, Fact]:
    """What a subclass of tensors was saved with, attribute by attribute."""
    state = value.state
    if isinstance(state, Sequence) and len(state.items) == 2 and state.items[0] == Leaf(None):
        state = state.items[1]  # (None, {...}): an object with slots
    if not isinstance(state, MappingNode):
        return {"arguments": _of_node(state)}
    return {f"attribute {key if isinstance(key, str) else repr(key)}": _of_node(one) for key, one in state.items}


def _of_node(node: Node) -> Fact:
    return Fact(canonical(node), in_short(node))


def _plain(value: object) -> Fact:
    text = repr(value)
    return Fact(text, text)


def of_header(checkpoint: Checkpoint) -> dict[str, dict[str, Fact]]:
    """{key of an entry that names tensors or modules: what it says}."""
    if not holds(checkpoint.format).objects:  # the strings of other formats are no entries of a header
        return {}
    names = {name[:end] for name in checkpoint.entries for end in (*_dots(name), len(name))}
    listed = of_torchao(checkpoint.metadata)
    names |= {OF_ADAPTERS, *(name for name, parts in listed.items() if parts)}
    found = {key: said for key, text in checkpoint.metadata.items() if (said := _entry(key, text, names))}
    if listed:
        found[TENSORS] = {name: _plain("listed") for name in listed if name in names}
    keys = [key for key in checkpoint.metadata if key in quantised.IN_CONFIG and key not in found]
    if keys and quantised.codes(checkpoint.entries):  # such as nunchaku's, of all layers
        found |= {key: _settings(dict(json_leaves(checkpoint.metadata[key]))) for key in keys}
    return found


def of_objects(checkpoint: Checkpoint) -> dict[str, dict[str, Fact]]:
    """{module of codes: what it has beside tensors}"""
    tree = checkpoint.objects
    if tree is None or not (held := [*objects_in(tree)]):
        return {}
    packed = {name for name in checkpoint.entries if name.endswith(quantised.PACKED)}
    modules = {name.rpartition(".")[0] for name in (*packed, *quantised.groups(checkpoint.entries))} - {""}
    found: dict[str, dict[str, Fact]] = {}
    for name, node in held:
        if at := next((name[:end] for end in _dots(name) if name[:end] in modules), ""):
            found.setdefault(at, {})[name[len(at) + 1 :]] = _of_node(node)
    return found


def of_config(checkpoint: Checkpoint) -> dict[str, Fact]:
    """What config.json and ModelOpt's file beside a checkpoint say of how its codes are read, whatever has codes."""
    if not quantised.codes(checkpoint.entries):
        return {}
    found: dict[str, str] = {}
    for name in (hf_config.NAME, hf_config.QUANTISATION, *hf_config.ALONE):
        is_whole, said = name in hf_config.ALONE, _leaves(config_beside(checkpoint.path, name), "")
        found |= {at: one for at, one in said if at and (is_whole or {*at.split(".")} & quantised.IN_CONFIG)}
    return _settings(found)


def of_adapter(checkpoint: Checkpoint, is_renamed: bool = False) -> dict[str, Fact]:
    """What PEFT's config beside an adapter says of how its factors are scaled and added; lists of names are sets.

    Not which modules have factors, where these were renamed.
    """
    said = config_beside(checkpoint.path, adapter_config.NAME)
    found = {
        key: sorted(one) if isinstance(one, list) and all(isinstance(name, str) for name in one) else one
        for key, one in said.items()
        if key not in RUNTIME and not (is_renamed and key == adapter_config.MODULES)
    }
    return {at: Fact(one, one) for at, one in _leaves(found, "") if one not in NOT_SAID}


def of_norms(checkpoint: Checkpoint) -> dict[str, Fact]:
    """What the config of a model adds to variances, of Keras in the order of its layers; of a graph, by tensor."""
    layers = KerasConfig.of(checkpoint.metadata).by_path()
    added = [one.config["epsilon"] for one in layers.values() if "epsilon" in one.config]
    last = {one.layer: name for name, one in checkpoint.parts.items() if "epsilon" in one.settings}
    nodes = {f"epsilon of {name}": checkpoint.parts[name].settings["epsilon"] for name in last.values()}
    found = {at: one for at, one in _leaves(config_beside(checkpoint.path, hf_config.NAME), "") if EPSILON.search(at)}
    said = ({"epsilon": added} if added else {}) if layers else nodes
    return _settings(found | {at: json.dumps(one) for at, one in said.items()})


def _settings(said: Mapping[str, str]) -> dict[str, Fact]:
    """What settings say of how codes are read."""
    return {at or "it": Fact(one, one) for at, one in said.items() if not {*at.split(".")} & RUNTIME}


def of_codes(a: Checkpoint, b: Checkpoint, sides: tuple[str, str] = ("A", "B")) -> tuple[str, list[set[str]]]:
    """How the configs beside two checkpoints read codes differently, in words, and the names of these codes in each.

    Where nothing is beside one of the two, codes of which the file itself says how they are read are not among them.
    """
    old, new = of_config(a), of_config(b)
    codes = [quantised.codes(one.entries) for one in (a, b)]
    if old and new:
        return differences(old, new, sides), codes
    if not all(config_beside(one.path, hf_config.NAME) for one in (a, b)):
        codes = [names - quantised.said(one.entries) for names, one in zip(codes, (a, b), strict=True)]
    return f"{SAME_BYTES}: {hf_config.NAME}" if (old or new) and all(codes) else "", codes


def of_models(a: Checkpoint, b: Checkpoint, sides: tuple[str, str] = ("A", "B")) -> str:
    """How the configs of two models add other epsilons to variances, in words, of those that both say."""
    old, new = of_norms(a), of_norms(b)
    how = differences({key: old[key] for key in old if key in new}, {key: new[key] for key in new if key in old}, sides)
    return how and f"{how}: the weights are the same, and what norms compute with them is not"


def of_adapters(
    a: Checkpoint, b: Checkpoint, paths: tuple[Path, Path], is_renamed: bool, sides: tuple[str, str] = ("A", "B")
) -> str:
    """How the configs beside two adapters scale and add their factors differently, in words.

    A folder is an adapter with its config, and a file that is given without its folder is its factors.
    """
    old, new = of_adapter(a, is_renamed), of_adapter(b, is_renamed)
    how = f"is beside {sides[not old]} alone" if bool(old) != bool(new) and is_folder(paths[not old]) else ""
    how = differences(old, new, sides) if old and new else how
    return (
        how and f"{adapter_config.NAME}: {how}; the factors are the same, and what they add to the weights may not be"
    )


def of_file(checkpoint: Checkpoint) -> dict[str, Facts]:
    """{a label of what an entry of the header says, or config.json: its facts}"""
    found: dict[str, Facts] = {f"{key}{HEADER}": said for key, said in of_header(checkpoint).items()}
    found |= {f"{at} (objects)": said for at, said in of_objects(checkpoint).items()}
    return found | of_folder(checkpoint)


def of_folder(checkpoint: Checkpoint) -> dict[str, Facts]:
    """{a config beside it: its facts}"""
    found = {hf_config.NAME: of_config(checkpoint), adapter_config.NAME: of_adapter(checkpoint)}
    return {name: facts for name, facts in found.items() if facts}


def _dots(name: str) -> Iterator[int]:
    return (at for at, letter in enumerate(name) if letter in "./")


def _entry(key: str, text: str, names: set[str]) -> dict[str, Fact]:
    """What an entry says; nothing where it names none of the names."""
    if key.startswith("paramtool.") or key in OF_KERAS:
        return {}
    try:
        value = json.loads(text)
        found = dict(_leaves(value, ""))
        said = set(strings_in(value))
    except (ValueError, RecursionError):
        value, found, said = text, {"": text}, set()
    is_of_module = key in names or key.rpartition(".")[0] in names - {""}
    if (is_of_module and (isinstance(value, (dict, list)) or "." in key)) or not names.isdisjoint(said):
        return {at or "it": Fact(one, one) for at, one in found.items()}
    return {}


def json_leaves(text: str) -> Iterator[tuple[str, str]]:
    """(place, text) of what is in an object of JSON; a text that is none as it is."""
    try:
        yield from _leaves(json.loads(text), "")
    except (ValueError, RecursionError):
        yield "", text


def _leaves(value: Any, at: str) -> Iterator[tuple[str, str]]:
    """(place, text) of what is in an object of JSON, and in objects in its lists."""
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        value = dict(enumerate(value))
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from _leaves(one, f"{at}.{key}" if at else str(key))
    else:
        yield at, json.dumps(value, sort_keys=True)


def strings_in(value: Any) -> Iterator[str]:
    """The keys and the strings inside a container of JSON."""
    for one in [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(one, str):
            yield one
        yield from strings_in(one)


def known(checkpoint: Checkpoint) -> dict[str, Facts]:
    """{compound tensor: its facts}, but for those that a sign is pending for."""
    return {
        name: of_compound(entry.value)
        for name, entry in checkpoint.entries.items()
        if isinstance(entry.value, Compound) and entry.value.kind not in PENDING
    }


def text(facts: Facts) -> str:
    """Facts as one text in ASCII, for their digest."""
    return json.dumps({key: one.text for key, one in facts.items()}, sort_keys=True)


def differences(old: Facts, new: Facts, sides: tuple[str, str] = ("A", "B")) -> str:
    """What differs, in words; "" where nothing does."""
    found = []
    for key in dict.fromkeys([*old, *new]):
        one, other = old.get(key), new.get(key)
        if one is None or other is None or one.text != other.text:
            words = [_short(fact) for fact in (one, other)]
            told = f"{key} is {words[0]} in {sides[0]} and {words[1]} in {sides[1]}"
            found.append(told if words[0] != words[1] else f"another {key}")
    return ", ".join(found)


def _short(fact: Fact | None) -> str:
    if fact is None:
        return "not said"
    return fact.words if len(fact.words) <= MAX_WORDS else f"{fact.words[:MAX_WORDS]}..."
