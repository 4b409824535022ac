"""The models that transformers builds from a config.json, on the meta device: names, shapes and ties, and no weights.

Nothing is downloaded, and nothing that a config names is imported unless it is a model of transformers itself.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paramtool.commands.progress import Path
from paramtool.errors import FormatError, LayoutError, UnsafeError, UsageError
from paramtool.formats import hf_config
from paramtool.grouping import grouped
from paramtool.parts import config_types
from paramtool.passes.compat.wanted import Wanted
from paramtool.passes.optimizer.order import ClassParameter, ClassParameters
from paramtool.torch._live import tensors_of
from paramtool.torch._saved_names import both_wanted, saved_names

if TYPE_CHECKING:
    from types import ModuleType

MAX_LAYERS = 20_000
"""More layers or experts than this are no model, and would take for ever to build; Doge has 16,384 experts."""
LAYERS = re.compile(r"(^|_)(layers|experts|blocks)$|(^|_)(n|num)_(\w+_)?(layer|expert|block)$")
"""Keys of numbers of layers, as the configs of transformers call them: num_hidden_layers, n_layer, num_experts.

`vision_feature_layer` is the index of one, -2 the last but one.
"""
FLOAT = "__float__"
FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
"""`{"__float__": "Infinity"}` is how transformers 5 writes numbers that JSON has no word for
(PreTrainedConfig._encode_special_floats)."""
IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")
"""Keys, with underscores before and behind, that change no tensor, and that can name kernels which are downloaded."""


def names_from_config(path: Path, *, saved: bool = False) -> Mapping[str, tuple[tuple[int, ...], str]]:
    """{name: (shape, tie)} of the tensors that the model of a config.json has in its state dict, in its order.

    `path` is a config.json of transformers, or a folder that holds one.  `tie` is the first name of the alias set of
    the name: names with one `tie` are one parameter in the model, and every name with a `tie` of its own stands
    alone.  The model is `architectures[0]`, built on the meta device by transformers, which has to be installed;
    nothing is downloaded.  With `saved` the names are those that save_pretrained writes, where these are others: a
    Mixtral has the experts of a layer in one tensor, and its files have them one by one.

    UsageError where transformers is not installed, or where the config does not say which model it is of; UnsafeError
    where the model's code is not a part of transformers; FormatError where the file is no config, contradicts itself,
    or is one that transformers cannot build a model of.
    """
    own, others = wanted_from_config(path)
    wanted = others or own if saved else own
    return {name: (one.view.shape, one.alias_set) for name, one in wanted.items() if one.view is not None}


def wanted_from_config(path: Path) -> tuple[Mapping[str, Wanted], Mapping[str, Wanted]]:
    """What the model of a config.json wants, and what files of it hold where transformers calls that otherwise.

    The second is empty where both are the same.  Errors as of `names_from_config`.
    """
    model = model_from_config(path)
    return both_wanted(model, tensors_of(model))


def parameters_from_config(path: Path) -> ClassParameters:
    """The parameters of the model of a config.json, in the order of its `named_parameters()`.

    Errors as of `names_from_config`.
    """
    model = model_from_config(path)
    names = grouped((id(one), name) for name, one in model.named_parameters(remove_duplicate=False))
    normed = {
        f"{at}.{name}"
        for at, module in model.named_modules(remove_duplicate=False)
        if at and isinstance(module, nn.LayerNorm)
        for name, _ in module.named_parameters(remove_duplicate=False)
    }
    renamed, saved = saved_names(model, tensors_of(model))
    parameters = [
        ClassParameter(
            (*names[id(parameter)], *(renamed[one] for one in names[id(parameter)] if one in renamed)),
            tuple(parameter.shape), name in normed,
        )
        for name, parameter in model.named_parameters()
    ]  # fmt: skip
    own = {name for each in names.values() for name in each}
    buffers = [name for name in model.state_dict(keep_vars=True) if name not in own]
    more = (renamed[name] for name in buffers if name in renamed)
    return ClassParameters(f"the class {type(model).__name__}", tuple(parameters), frozenset((*buffers, *more)), saved)


def model_from_config(path: Path) -> nn.Module:
    """The model of a config.json on the meta device; errors as of `names_from_config`."""
    where = os.fspath(path)
    where = os.path.join(where, hf_config.NAME) if os.path.isdir(where) else where
    config = hf_config.whole(where)
    transformers = _transformers(where)
    architecture = _architecture(where, config, transformers)
    _check(where, config)
    config_class, of_class = _of_class(where, config, architecture, transformers)
    try:
        with _alone(), torch.device("meta"):
            model = architecture(config_class.from_dict(_values(of_class)))
            model.tie_weights()
    except Exception as error:  # whatever a model's code makes of numbers that do not fit
        try:
            config_types.check(config, where)
        except LayoutError as found:
            raise FormatError(found.message, found.hint) from None
        text = " ".join(str(error).split())[:300]
        raise FormatError(
            f"{where}: transformers cannot build {architecture.__name__} from it: {type(error).__name__}: {text}",
            hint="a number or a name in the config is wrong, or this transformers is older than the model",
        ) from None
    assert isinstance(model, nn.Module)
    return model


def _transformers(where: str) -> ModuleType:
    try:
        with _quiet():
            import transformers
    except ImportError as error:
        raise UsageError(
            f"{where}: the model of a config is built by transformers, which is not installed ({error})",
            hint="pip install 'transformers>=5'",
        ) from None
    found: ModuleType = transformers
    return found


def _architecture(where: str, config: Mapping[str, Any], transformers: ModuleType) -> Any:
    """The class that `architectures` names first, of transformers itself."""
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        is_there = "architectures" in config
        said = f"{json.dumps(names)[:80]}; expected a list of strings" if is_there else "missing"
        raise UsageError(
            f"{where}: does not say which model it is of: `architectures` is {said}",
            hint=f'{"write" if is_there else "add"} "architectures": ["GPT2LMHeadModel"], with the name of the class, '
            f"{'into' if is_there else 'to'} a copy of it",
        )
    with _quiet():
        found: Any = getattr(transformers, names[0], None) if names[0].isidentifier() else None
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    if is_model and getattr(found, "config_class", None) is not None:
        return found
    if "auto_map" in config:
        raise UnsafeError(
            f"{where}: {names[0]!r} is code beside the config (`auto_map`), which is never run",
            hint="in Python, build the model yourself: paramtool.torch.variants(model, FILE)",
        )
    raise FormatError(
        f"{where}: {names[0]!r} is not a model of transformers {transformers.__version__}",
        hint="a newer transformers may have it; in Python: paramtool.torch.variants(model, FILE)",
    )


def _of_class(
    where: str, config: Mapping[str, Any], architecture: Any, transformers: ModuleType
) -> tuple[Any, Mapping[str, Any]]:
    """The class of config that a model is built with, and what it is made of; FormatError where two are meant.

    A model of one part takes that part of a composite config (PreTrainedConfig.from_pretrained); beside a `model_type`
    that transformers' own tables pair with the model, the config is of that type (its Auto classes).
    """
    own = architecture.config_class
    part = config.get(getattr(own, "base_config_key", ""))
    config = part if isinstance(part, dict) else config
    said, built = config.get("model_type"), own.model_type
    if said is None or not built or said == built:
        return own, config
    for part in config.values():
        if isinstance(part, dict) and part.get("model_type") == built:
            return own, part
    auto = transformers.models.auto
    tables = (table for name, table in vars(auto.modeling_auto).items() if name.endswith("_MAPPING_NAMES"))
    paired = (classes for table in tables if (classes := table.get(said)))
    if any(architecture.__name__ in ([one] if isinstance(one, str) else one) for one in paired):
        return auto.configuration_auto.CONFIG_MAPPING[said], config
    raise FormatError(
        f"{where}: contradicts itself: `model_type` is {said!r}, and `architectures` names "
        f"{architecture.__name__}, which is {built!r}",
        hint="one of the two is of another model",
    )


def _check(where: str, config: Mapping[str, Any]) -> None:
    """FormatError where a config asks for what would never end, or is not of the model alone."""
    if config.get("quantization_config"):
        raise FormatError(
            f"{where}: is of a quantised model, whose tensors the quantiser makes and the config does not show",
            hint="a list of names can be compared: paramtool variants FILE --against names.txt",
        )
    for key, number in _numbers(config):
        if LAYERS.search(key) and not 0 <= number <= MAX_LAYERS:
            raise FormatError(f"{where}: {key!r} is {number}; expected 0 to {MAX_LAYERS}")


def _numbers(value: object, key: str = "") -> Iterator[tuple[str, int]]:
    """Every integer of a config with the key that it is under."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(item, name)
    elif isinstance(value, int):
        yield key, value


def _values(value: Any) -> Any:
    """The values of a config, without what names code or weights of others: they change no name and no shape."""
    if isinstance(value, list):
        return [_values(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {FLOAT} and isinstance(value[FLOAT], str):
        return FLOATS.get(value[FLOAT], value)
    kept = {key: _values(item) for key, item in value.items() if key.strip("_") not in IMPLEMENTATIONS}
    kept.pop("auto_map", None)
    return kept | {key: False for key in kept if key == "use_pretrained_backbone"}


@contextmanager
def _alone() -> Iterator[None]:
    """As if there were no network, and quietly."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        with _quiet():
            yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Without advice on values of a config, which is not ours to give, and on extensions that do not load here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
