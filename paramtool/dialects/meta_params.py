"""params.json of Meta's Llama folders, made from a config.json, and a config.json made from it.

Meta's code reads it as `ModelArgs` (llama_models 0.3.0, llama3/args.py); `Transformer` takes the rest from there
(llama3/model.py): a head has dim / n_heads elements (107), there are no biases, the activation is SiLU (196), and the
width of the gated MLP follows from three numbers (FeedForward.__init__, 175-185):

    width = int(8 dim / 3), times ffn_dim_multiplier if there is one, rounded up to a multiple of multiple_of

Rotary frequencies are scaled by constants of the code (`apply_scaling`, 44-48) if `use_scaled_rope` says so.  Its
factor is 8; models of Llama 3.2 have 32 in transformers and nothing in Meta's own params.json, which is why
`rope_scaling_factor` is written beside it: ModelArgs leaves out keys that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Any

from paramtool.errors import LayoutError
from paramtool.model.view import Shape, Shapes
from paramtool.parts.families import Config

NAME = "params.json"
EMBEDDING = "tok_embeddings.weight"
GATE = "layers.0.feed_forward.w1.weight"
FACTOR = "rope_scaling_factor"
MULTIPLE = 256
"""The default of `multiple_of` (args.py 47)."""
DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
"""Those of transformers' LlamaConfig (models/llama/configuration_llama.py of 5.23)."""
FIXED: Mapping[str, Any] = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
"""What Meta's code has no setting for."""
SCALING: Mapping[str, Any] = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
"""The constants of `apply_scaling`, under the names of transformers."""
NOT_SAID = "max_position_embeddings, bos_token_id and eos_token_id"
"""Settings of a config that Meta's params.json does not have."""
_MAX_DIGITS = 17
_LIMIT = 1 << 40
_FROM = f"{NAME} and config.json of a Llama are calculated from each other"
_LARGER = (512, 1024, 2048, 4096)
"""Other values of `multiple_of` in Meta's own files."""


def params_of(config: Config) -> dict[str, Any]:
    """The content of params.json for a model of transformers; LayoutError names a setting that it has no place for."""
    heads, dim = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    head_dim = _size(config, "head_dim", dim // heads)
    for key, expected in FIXED.items():
        if (found := config.get(key, expected)) != expected:
            raise _no_place(f"{key}={found!r}", f"Meta's code has {expected!r}")
    if dim % heads or head_dim != dim // heads:
        raise _no_place(f"head_dim={head_dim}", f"Meta's code has hidden_size / num_attention_heads = {dim / heads:g}")
    multiple, multiplier = ffn_factors(dim, _size(config, "intermediate_size"))
    found = {
        "dim": dim,
        "n_layers": _size(config, "num_hidden_layers"),
        "n_heads": heads,
        "n_kv_heads": _size(config, "num_key_value_heads", heads),
        "vocab_size": _size(config, "vocab_size"),
        "multiple_of": multiple,
        **({"ffn_dim_multiplier": multiplier} if multiplier else {}),
        "norm_eps": _number(config, "rms_norm_eps", DEFAULTS["rms_norm_eps"]),
    }
    return found | _rope(config)


def ffn_width(dim: int, multiple_of: int, multiplier: float | None) -> int:
    """The width of the gated MLP, as Meta's code calculates it.

    >>> ffn_width(4096, 256, None), ffn_width(4096, 1024, 1.3), ffn_width(8192, 4096, 1.3)
    (11008, 14336, 28672)
    """
    width = int(2 * 4 * dim / 3)
    width = width if multiplier is None else int(multiplier * width)
    return multiple_of * -(-width // multiple_of)


def ffn_factors(dim: int, width: int) -> tuple[int, float | None]:
    """`multiple_of` and `ffn_dim_multiplier` that give a width exactly; the multiplier has as few digits as possible.

    >>> ffn_factors(4096, 11008), ffn_factors(4096, 14336), ffn_factors(2048, 8192), ffn_factors(16, 5)
    ((256, None), (256, 1.3), (4096, None), (1, 0.12))
    """
    multiples = [gcd(width, MULTIPLE), *(one for one in _LARGER if width % one == 0)]
    for multiple in multiples:
        if ffn_width(dim, multiple, None) == width:
            return multiple, None
    exact = width / int(8 * dim / 3)
    for digits in range(1, _MAX_DIGITS):
        step = 10.0**-digits
        for multiple in multiples:
            for one in (round(exact, digits), round(exact - step, digits), round(exact + step, digits)):
                if one > 0 and ffn_width(dim, multiple, one) == width:
                    return multiple, one
    raise _no_place(f"intermediate_size={width}", f"no ffn_dim_multiplier gives this width for dim={dim}")


def _rope(config: Config) -> dict[str, Any]:
    """The base of the rotary frequencies and how they are scaled; transformers 5 has both in `rope_parameters`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise LayoutError(f"config.json: its RoPE is {rope!r:.60}; expected an object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    theta = _number({**config, **rope}, "rope_theta", DEFAULTS["rope_theta"])
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise _no_place("partial_rotary_factor", "Meta's code rotates whole heads")
    if kind == "default":
        return {"rope_theta": theta}
    if kind != "llama3" or any(rope.get(key) != value for key, value in SCALING.items()):
        raise _no_place(
            f"RoPE of type {kind!r} with {dict(rope)}", f"Meta's code scales by {dict(SCALING)} or not at all"
        )
    return {"rope_theta": theta, "use_scaled_rope": True, FACTOR: _number(rope, "factor")}


def config_of(params: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    """The config.json of transformers for a folder of Meta's; LayoutError if params.json and tensors do not fit.

    `shapes` are those of the file, whose embedding says the size of the vocabulary where params.json has -1.
    """
    params = _inner(params)
    if "hidden_dim" in params:
        raise LayoutError(f"{NAME} has 'hidden_dim', as Mistral's files do; the table of meta is that of Llama")
    dim, heads = _size(params, "dim"), _size(params, "n_heads")
    width = _width(params)
    _check_shape(shapes, GATE, (width, dim), why=f"by dim, multiple_of and ffn_dim_multiplier of {NAME}")
    rows = shapes[EMBEDDING][0] if shapes.get(EMBEDDING) else None
    if params.get("vocab_size", -1) != -1:
        rows = _size(params, "vocab_size")
    vocabulary = _size({"vocab_size": rows}, "vocab_size")
    _check_shape(shapes, EMBEDDING, (vocabulary, dim), why=f"by vocab_size and dim of {NAME}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": dim,
        "intermediate_size": width,
        "num_hidden_layers": _size(params, "n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": _size(params, "n_kv_heads", heads),
        "vocab_size": vocabulary,
        "rms_norm_eps": _number(params, "norm_eps"),
        "rope_theta": _number(params, "rope_theta", DEFAULTS["rope_theta"]),
        **_scaling(params),
        **FIXED,
        "tie_word_embeddings": False,
    }


def _scaling(params: Mapping[str, Any]) -> dict[str, Any]:
    if not params.get("use_scaled_rope"):
        return {}
    if params.get(FACTOR) is None:
        raise LayoutError(
            f"{NAME} says use_scaled_rope, and not by which factor",
            hint=f"add {FACTOR}, which is 8 for Llama 3.1 and 3.3, 32 for Llama 3.2; or put config.json beside it",
        )
    return {"rope_scaling": {"rope_type": "llama3", "factor": _number(params, FACTOR), **SCALING}}


def check(config: Config, shapes: Shapes) -> None:
    """LayoutError if there is no params.json for a config.json, or if tensors under Meta's names do not fit it."""
    params_of(config)
    dim = _size(config, "hidden_size")
    for name, key in ((GATE, "intermediate_size"), (EMBEDDING, "vocab_size")):
        _check_shape(shapes, name, (_size(config, key), dim), why=f"by {key} and hidden_size of config.json")


def _check_shape(shapes: Shapes, name: str, expected: Shape, *, why: str) -> None:
    if name in shapes and shapes[name] != expected:
        ranks = "a model of several ranks (consolidated.00.pth, consolidated.01.pth, ...) has to be joined first"
        raise LayoutError(
            f"{name!r} has shape {list(shapes[name])}; expected {list(expected)} {why}",
            hint=ranks if why.endswith(NAME) else "config.json is of another model",
        )


def contradictions(params: Mapping[str, Any], config: Config) -> Iterator[str]:
    """Where a params.json differs from the one that would be made from a config, for people."""
    mine, theirs = (_comparable(one) for one in (_inner(params), params_of(config)))
    for key, expected in theirs.items():
        if mine[key] != expected:
            yield f"{key} is {mine[key]}; config.json gives {expected}"


def _comparable(params: Mapping[str, Any]) -> dict[str, Any]:
    """What a params.json means: the width of the MLP in place of its factors, and what is left out."""
    return {
        **{key: _size(params, key) for key in ("dim", "n_layers", "n_heads")},
        "n_kv_heads": _size(params, "n_kv_heads", _size(params, "n_heads")),
        "norm_eps": _number(params, "norm_eps"),
        "rope_theta": _number(params, "rope_theta", DEFAULTS["rope_theta"]),
        "use_scaled_rope": bool(params.get("use_scaled_rope")),
        "width of the MLP": _width(params),
    }


def _inner(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the model, which some files have under `model`."""
    inner = params.get("model")
    return inner if isinstance(inner, Mapping) else params


def _width(params: Mapping[str, Any]) -> int:
    """The width of the gated MLP that a params.json gives."""
    multiplier = _number(params, "ffn_dim_multiplier", 0)
    return ffn_width(_size(params, "dim"), _size(params, "multiple_of", MULTIPLE), multiplier or None)


def _size(settings: Mapping[str, Any], key: str, default: int = 0) -> int:
    """A setting that is a positive whole number; LayoutError if it is anything else, or missing without a default."""
    found = default if settings.get(key) is None else settings[key]
    if type(found) is not int or not 0 < found < _LIMIT:
        raise LayoutError(f"{key} is {settings.get(key)!r:.60}; expected a positive whole number", hint=_FROM)
    return found


def _number(settings: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A setting that is a positive number; LayoutError if it is anything else, or is missing without a default."""
    found = settings.get(key)
    if found is None and default is not None:
        return default
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < _LIMIT:
        raise LayoutError(f"{key} is {found!r:.60}; expected a positive number", hint=_FROM)
    return found


def _no_place(what: str, why: str) -> LayoutError:
    return LayoutError(
        f"Meta's {NAME} has no place for {what}: {why}",
        hint="Meta's code would compute something else with these weights; the folder is not written",
    )
