"""The sizes that transformers' models have, read off modules that are built on the meta device.

A model is built from a config without any numbers; the shapes of its projections and the attributes of its modules say
how many heads each attention really has.  paramtool reads the same sizes from the JSON that the config is saved as.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from tests.oracles.zoo_models import SETTINGS, architectures, on_meta

APART = (
    ("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q", "k", "v"), ("to_q", "to_k", "to_v"),
    ("linear_q", "linear_k", "linear_v"), ("query_proj", "key_proj", "value_proj"), ("q_lin", "k_lin", "v_lin"),
    ("project_q", "project_k", "project_v"), ("Wq", "Wk", "Wv"),
    ("query_projection", "key_projection", "value_projection"),
)  # fmt: skip
"""Names of projections that are apart."""
FUSED = ("qkv", "query_key_value", "Wqkv", "qkv_proj", "c_attn", "att_proj", "in_proj")
"""Names of projections of q, k and v in one."""
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
GROUPS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
HEAD_DIM = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size", "dim_head", "attention_head_dim")
STATE = {
    "linear_key_heads": "num_k_heads", "linear_value_heads": "num_v_heads", "linear_key_dim": "head_k_dim",
    "linear_value_dim": "head_v_dim",
}  # fmt: skip
MAMBA = {"state_heads": "num_heads", "state_dim": "head_dim", "groups": "n_groups", "state": "ssm_state_size"}
LATENT = {"heads": "num_heads", "nope": "qk_nope_head_dim", "rope": "qk_rope_head_dim", "value_dim": "v_head_dim"}


class Seen(NamedTuple):
    """Sizes of one module."""

    model_type: str
    """Of the nearest config."""
    side: str
    """`encoder` or `decoder` where a name below the config's module says so."""
    name: str
    config: str
    """The config as it is saved."""
    sizes: Mapping[str, int]
    owner: int
    """`id` of that config."""


def saved(config: PreTrainedConfig) -> dict[str, Any]:
    """A config as save_pretrained writes it."""
    found: dict[str, Any] = json.loads(config.to_json_string())
    return {key: _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    """A value with infinity as transformers takes it back: it writes {"__float__": "Infinity"}."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return float(value["__float__"]) if isinstance(value, dict) and "__float__" in value else value


def built(model_type: str, config: Mapping[str, Any] | None = None) -> nn.Module | None:
    """A model on the meta device, of a config or of the default one; None if transformers cannot build it."""
    names = [MODEL_MAPPING_NAMES.get(model_type, ()), architectures()[model_type]]
    for name in dict.fromkeys(one for some in names for one in ([some] if isinstance(some, str) else some)):
        cls = getattr(transformers, name, None)
        if cls is None:
            continue
        try:
            kind = CONFIG_MAPPING[model_type]
            made = kind() if config is None else kind.from_dict(dict(config))
            return on_meta(cls, made)
        except Exception:
            continue
    return None


def seen(model: nn.Module) -> Iterator[Seen]:
    """The sizes of each attention, state space and set of experts of a model, each kind of module once."""
    owners: dict[str, tuple[str, PreTrainedConfig]] = {}
    found = set()
    for name, module in model.named_modules():
        own = getattr(module, "config", None)
        above = owners.get(name.rpartition(".")[0])
        if isinstance(own, PreTrainedConfig) and (above is None or above[1] is not own):
            owners[name] = (name, own)
        elif above is not None:
            owners[name] = above
        if name not in owners:
            continue
        place, config = owners[name]
        for sizes in sizes_of(module, name):
            inside = name.removeprefix(place)
            one = Seen(
                config.model_type,
                side(name if own is config else inside),
                name,
                json.dumps(saved(config)),
                sizes,
                id(config),
            )
            key = (one.owner, one.side, type(module).__name__, json.dumps(sizes, sort_keys=True))
            if key not in found:
                found.add(key)
                yield one


def side(name: str) -> str:
    """`encoder` or `decoder`, by the first of the two words in a name."""
    for word in name.split("."):
        for one in ("encoder", "decoder"):
            if word == one or word.endswith(f"_{one}"):
                return one
    return ""


def sizes_of(module: nn.Module, name: str) -> Iterator[dict[str, int]]:
    """What a module says of its sizes; nothing if it is no attention, state space or stack of experts."""
    kids = {key: getattr(child, "weight", None) for key, child in module.named_children()}
    rows = {
        key: _rows(getattr(module, key))
        for key, weight in kids.items()
        if isinstance(weight, torch.Tensor) and weight.ndim == 2
    }
    if hasattr(module, "num_k_heads") and hasattr(module, "head_v_dim"):
        yield _attributes(module, STATE)
    elif hasattr(module, "ssm_state_size") and hasattr(module, "n_groups"):
        yield _attributes(module, MAMBA)
    elif "kv_b_proj" in kids:
        yield _attributes(module, LATENT)
    elif hasattr(module, "inv_freq") and isinstance(module.inv_freq, torch.Tensor) and module.inv_freq.ndim == 1:
        yield {"rotary": 2 * module.inv_freq.numel()}
    elif (found := _attention(module, rows)) is not None:
        yield found
    if "expert" in name.rpartition(".")[2]:
        if isinstance(module, nn.ModuleList) and len(module):
            yield {"experts": len(module)}
        stacks = {p.shape[0] for _, p in module.named_parameters(recurse=False) if p.ndim == 3}
        if len(stacks) == 1:
            yield {"experts": stacks.pop()}


def _attention(module: nn.Module, rows: Mapping[str, int]) -> dict[str, int] | None:
    heads, groups, head_dim = (_first(module, words) for words in (HEADS, GROUPS, HEAD_DIM))
    each = _first(module, ("num_key_value_groups",))
    for q, k, v in APART:
        if k in rows and v in rows and (q in rows or heads):
            return _apart(module, (rows.get(q, 0), rows[k], rows[v]), heads, head_dim, each)
    for one in FUSED:
        if one in rows and not heads and head_dim and each in (0, 1) and rows[one] % (3 * head_dim) == 0:
            heads = rows[one] // (3 * head_dim)
        if one in rows and heads:
            head_dim = head_dim or (
                rows[one] // heads // 3 if rows[one] == 3 * (rows[one] // heads // 3) * heads else 0
            )
            if not head_dim:
                return None
            total = rows[one] // head_dim
            if total == 3 * heads:
                return {"heads": heads, "kv_heads": heads, "head_dim": head_dim}
            if rows[one] % head_dim == 0 and total > heads and (total - heads) % 2 == 0:
                return {"heads": heads, "kv_heads": (total - heads) // 2, "head_dim": head_dim}
            return {"heads": heads, "kv_heads": groups, "head_dim": head_dim} if groups else None
    return None


def _apart(
    module: nn.Module, rows: tuple[int, int, int], heads: int, head_dim: int, each: int
) -> dict[str, int] | None:
    q, k, v = rows
    if not head_dim and heads and q:
        head_dim = q // heads
    if not head_dim or k % head_dim:
        return None
    kv_heads = k // head_dim
    if not heads:
        heads = kv_heads * each if each else q // head_dim
    if heads % kv_heads or v % kv_heads or (q and q % (heads * head_dim)):
        return None
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": v // kv_heads}


def _rows(module: nn.Module) -> int:
    """Outputs of a projection; transformers' Conv1D has them in its columns."""
    weight = module.weight
    return int(weight.shape[1] if type(module).__name__ == "Conv1D" else weight.shape[0])  # type: ignore[union-attr,index]


def _first(module: nn.Module, names: tuple[str, ...]) -> int:
    for name in names:
        value = getattr(module, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _attributes(module: nn.Module, names: Mapping[str, str]) -> dict[str, int]:
    return {word: getattr(module, name) for word, name in names.items() if isinstance(getattr(module, name, None), int)}


class Observed(NamedTuple):
    """Sizes that a module has, and the config that it was built from, as it was given."""

    model_type: str
    side: str
    config: Mapping[str, Any]
    """Of the module's own tower."""
    sizes: Mapping[str, int]
    architecture: str
    """The model type that was built."""
    whole: Mapping[str, Any]
    """The config of the whole model."""
    tower: str | None
    """The path of the nested config in it; None if the module's config is none of them."""
    name: str
    change: str


HEADS_KEY = re.compile(r"(^|_)(n_heads?|heads|num_heads)$")
GROUPS_KEY = re.compile(r"(key_value_heads|kv_heads|kv_n_heads|key_value_attention_heads)$")
DIM_KEY = re.compile(
    r"(^|_)(head_dim|d_kv|attention_head_size|dim_head|attention_head_dim|kv_channels|d_head|head_size|d_head|headdim)$"
)
WIDTH_KEY = re.compile(r"^(hidden_size|d_model|n_embd|embed_dim|dim|hidden_dim|emb_dim|embedding_dim)$")
EXPERTS_KEY = re.compile(r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_moe_experts)$")
GROUP_COUNT = re.compile(r"(n_groups|ngroups)$")
STATE_KEY = re.compile(r"(d_state|state_size)$")


def _changed(config: Mapping[str, Any], change: str) -> dict[str, Any]:
    """A config with other numbers, with keys left out or null."""
    made: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            if not (change.startswith("rotary") and key == "rope_parameters"):
                made[key] = _changed(value, change)
            elif change == "rotary said":
                made[key] = _said(value, 0.75)
            continue
        new = _new(key, value, change)
        if new is not _GONE:
            made[key] = new
    if change in ("rotary said outside", "rotary_pct said outside") and "rope_parameters" in config:
        made["rotary_pct" if "pct" in change else "partial_rotary_factor"] = 0.75
    if change == "head_dim added" and "head_dim" not in config:
        heads = next((config[key] for key in HEADS if key in config), 0)
        width = next((config[key] for key in ("hidden_size", "n_embd", "d_model", "embed_dim") if key in config), 0)
        if isinstance(heads, int) and isinstance(width, int) and heads and width:
            made["head_dim"] = 2 * (width // heads)
    return made


def _said(rope: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Parameters of rotary positions with a factor, in each kind of layer if there are several."""
    if any(isinstance(value, dict) for value in rope.values()):
        return {key: _said(value, factor) if isinstance(value, dict) else value for key, value in rope.items()}
    return {**rope, "partial_rotary_factor": factor}


ROTARY_KEY = re.compile(r"partial_rotary_factor$|rotary_pct$|^rotary_dim$|^rope_parameters$")
_GONE = object()


def _new(key: str, value: Any, change: str) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool)
    groups, dim = bool(GROUPS_KEY.search(key)), bool(DIM_KEY.search(key))
    heads = bool(HEADS_KEY.search(key)) and not groups
    if change == "more heads" and whole and heads:
        return value * 2
    if change == "more heads, kv too" and whole and (heads or groups):
        return value * 2
    if change == "fewer kv heads" and whole and groups:
        return max(1, value // 2)
    if change == "more heads in the decoder" and whole and heads and "decoder" in key:
        return value * 2
    if change == "larger heads" and whole and dim:
        return value * 2
    if change == "larger heads of v" and whole and key in ("v_head_dim", "linear_value_head_dim", "qk_rope_head_dim"):
        return value * 2
    if change == "larger" and whole and (WIDTH_KEY.search(key) or GROUP_COUNT.search(key) or STATE_KEY.search(key)):
        return value * 2
    if change == "more experts" and whole and EXPERTS_KEY.search(key):
        return value + 2
    if change == "keys absent" and (groups or dim):
        return _GONE
    if change == "heads absent" and (heads or groups or dim):
        return _GONE
    if change == "keys absent, more heads":
        return _GONE if groups or dim else value * 2 if whole and heads else value
    if change == "keys null" and (groups or dim):
        return None
    if change == "half rotary" and key in ("partial_rotary_factor", "rotary_pct") and isinstance(value, (int, float)):
        return value / 2
    if change == "rotary absent" and ROTARY_KEY.search(key):
        return _GONE
    return value


CHANGES = (
    "", "more heads", "more heads, kv too", "fewer kv heads", "larger heads", "larger", "more experts",
    "keys absent", "head_dim added", "keys absent, more heads", "heads absent", "keys null", "half rotary",
    "rotary absent", "rotary said", "rotary said outside", "rotary_pct said outside", "more heads in the decoder",
    "larger heads of v",
)  # fmt: skip


def paths(config: Any, path: str = "") -> Iterator[tuple[str, PreTrainedConfig]]:
    """A config and those nested in it."""
    yield path, config
    for key, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from paths(value, f"{path}.{key}" if path else key)


def observations(
    types: Iterable[str] = (), changes: Iterable[str] = CHANGES, progress: bool = False
) -> Iterator[Observed]:
    """What the modules of each model have, for its default config and for changed ones that transformers builds."""
    for model_type in types or sorted(architectures()):
        try:
            default = default_config(model_type)
        except Exception:
            continue
        done = []
        for change in changes:
            config = _changed(default, change)
            if config in done:
                continue
            done.append(config)
            with contextlib.suppress(TooLong), few_seconds(40):
                yield from observed(model_type, config, change)
        if progress:
            print(model_type, len(done), file=sys.stderr, flush=True)


def observed(model_type: str, config: Mapping[str, Any], change: str = "") -> list[Observed]:
    """What the modules of one model have."""
    model = built(model_type, json.loads(json.dumps(config)))
    if model is None:
        return []
    places = {id(inner): path for path, inner in paths(model.config)}
    found = []
    for one in seen(model):
        tower = places.get(one.owner)
        inner: Any = config
        for step in (tower or "").split(".") if tower else ():
            inner = inner.get(step) if isinstance(inner, Mapping) else None
        if tower is None:
            inner = original(config, one.model_type)
        if not isinstance(inner, Mapping):
            inner = json.loads(one.config)
        found.append(Observed(one.model_type, one.side, inner, one.sizes, model_type, config, tower, one.name, change))
    return found


NEEDED = {**SETTINGS, "dbrx": {"attn_config.rope_theta": 10000.0}}
"""{model type: {path: value}}: what has to be said beside the defaults, so that a model can be built."""


def default_config(model_type: str) -> dict[str, Any]:
    """The config that a class has by default, with what it needs to be built."""
    needed = NEEDED.get(model_type, {})
    config = saved(CONFIG_MAPPING[model_type](**needed.get("", {})))
    for path, value in needed.items():
        *steps, last = path.split(".")
        place = config
        for step in steps:
            place = place.setdefault(step, {})
        if last:
            place[last] = value
    return config


def original(config: Mapping[str, Any], model_type: str) -> Mapping[str, Any] | None:
    """The only config of a model type among a config and those in it, of which a module has a copy."""
    found = []
    todo: list[Mapping[str, Any]] = [config]
    while todo:
        one = todo.pop()
        if one.get("model_type") == model_type:
            found.append(one)
        todo += [value for value in one.values() if isinstance(value, Mapping)]
    return found[0] if len(found) == 1 else None


class TooLong(Exception):
    """A model that takes too long to be built."""


@contextlib.contextmanager
def few_seconds(seconds: int) -> Iterator[None]:
    """Raises TooLong inside after some time."""

    def stop(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
