"""What a folder in a dialect has that others do not: the name of its weights file, and settings that its program reads.

vllm             model-rank-0-part-0.safetensors    (`file_of` of dialects says the names)
meta             consolidated.00.pth, params.json   params.json is calculated from config.json
all others       model.safetensors, config.json     config.json is calculated from Meta's params.json if it lacks
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from paramtool import dialects
from paramtool.dialects import meta_params
from paramtool.errors import FormatError, LayoutError, UsageError
from paramtool.formats import hf_config, strict_json
from paramtool.formats.files import holds
from paramtool.formats.folder.weight_names import Weights, WeightsName, of_file
from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shapes

ADAPTER = "adapter_model"
"""What PEFT calls the weights of an adapter."""


@frozen
class DialectFolder:
    """The names and the settings of a folder in a dialect."""

    name: WeightsName
    made: Mapping[str, bytes] = field(default_factory=dict)
    """{name: content} of files that are calculated."""
    notes: tuple[str, ...] = ()
    """What these files do not say."""
    gone: frozenset[str] = frozenset()
    """Files of the input that stay behind: they were calculated, and another dialect's programs read none."""


def dialect_folder(target: str | None, source: Weights, folder: str) -> DialectFolder | None:
    """What a folder in the dialect `target` has; None if that is not a dialect.

    `folder` is the input folder, if one was given: only then are settings made.  LayoutError if they cannot be.
    """
    if target not in dialects.NAMES:
        return None
    name = _name(target, source.name)
    if not folder:
        return DialectFolder(name)
    if target == "meta":
        return DialectFolder(name, _params(folder))
    made = _config(folder, source)
    notes = (
        f"{hf_config.NAME} was made of {meta_params.NAME}, which does not say {meta_params.NOT_SAID}: "
        "transformers takes its defaults, so set them",
    )
    return DialectFolder(name, made, notes if made else (), frozenset(_calculated_params(folder)))


def made_of(folder: str, source: Weights) -> dict[str, bytes]:
    """The files that are calculated when a folder is converted, whichever its new dialect is."""
    found: dict[str, bytes] = {}
    for target in dialects.NAMES:
        try:
            form = dialect_folder(target, source, folder)
        except (FormatError, LayoutError):
            continue
        found |= form.made if form is not None else {}
    return found


def _name(target: str, source: WeightsName) -> WeightsName:
    """The weights file of a dialect's own name; else that of the source, unless it is the name of another dialect.

    PEFT opens an adapter by its name alone, whatever its modules are called.
    """
    if source.stem.rpartition("/")[2] == ADAPTER:
        return source
    if file := dialects.file_of(target):
        stem, suffix = os.path.splitext(file)
        return WeightsName(stem, suffix=suffix)
    others = {of_file(file) for name in dialects.TABLES if (file := dialects.file_of(name))}
    return WeightsName() if source in others else source


def params_beside(folder: str) -> Mapping[str, Any]:
    """Meta's params.json in a folder; empty if there is none, FormatError if it is damaged."""
    path = os.path.join(folder, meta_params.NAME)
    if not os.path.isfile(path):
        return {}
    found, _ = strict_json.strict_file(path, "the settings of a model", hf_config.MAX_NBYTES)
    return found if isinstance(found, dict) else {}


def config_of_params(folder: str, shapes: Shapes) -> Mapping[str, Any]:
    """The config of a folder of Meta's without config.json; empty if it has no params.json, either.

    LayoutError if params.json does not say everything, or does not fit the tensors.
    """
    params = params_beside(folder)
    if not params:
        return {}
    try:
        return meta_params.config_of(params, shapes)
    except LayoutError as error:
        raise error.located(os.path.join(folder, meta_params.NAME)) from None


def _config(folder: str, source: Weights) -> Mapping[str, bytes]:
    if os.path.exists(os.path.join(folder, hf_config.NAME)):
        return {}
    shapes = source.checkpoint.shapes()
    config = config_of_params(folder, shapes)
    return {hf_config.NAME: _text(config)} if config else {}


def _params(folder: str) -> Mapping[str, bytes]:
    path = os.path.join(folder, hf_config.NAME)
    config = hf_config.whole(path) if os.path.exists(path) else {}
    if dialects.architecture(config) not in dialects.architectures_of("meta"):
        return {}  # the conversion says that there is no table for it
    check_params(folder, config)
    try:
        return {} if params_beside(folder) else {meta_params.NAME: _text(meta_params.params_of(config))}
    except LayoutError as error:
        raise error.located(path) from None


def _calculated_params(folder: str) -> list[str]:
    """Meta's params.json if it is, to the byte, what is calculated from the config beside it."""
    path = os.path.join(folder, hf_config.NAME)
    params = os.path.join(folder, meta_params.NAME)
    if not os.path.isfile(params) or not os.path.exists(path):
        return []
    config = hf_config.whole(path)
    if dialects.architecture(config) not in dialects.architectures_of("meta"):
        return []
    try:
        return [meta_params.NAME] if holds(params, _text(meta_params.params_of(config))) else []
    except LayoutError:
        return []


def check_params(folder: str, config: Mapping[str, Any]) -> None:
    """LayoutError if a folder has a params.json that contradicts its config."""
    known = params_beside(folder)
    try:
        wrong = list(meta_params.contradictions(known, config)) if known else []
    except LayoutError as error:
        raise error.located(os.path.join(folder, hf_config.NAME)) from None
    if wrong:
        raise LayoutError(
            f"{os.path.join(folder, meta_params.NAME)}: contradicts {hf_config.NAME}: {'; '.join(wrong)}",
            hint="remove the one that is wrong",
        )


def _text(settings: Mapping[str, Any]) -> bytes:
    return f"{json.dumps(settings, indent=2)}\n".encode()


def refuse_shards(form: DialectFolder | None, is_asked: bool) -> None:
    """UsageError if shards are asked of a dialect whose program opens one file."""
    if form is not None and is_asked and not form.name.has_shards:
        raise UsageError(
            f"the weights are one file, {form.name.file}, and no shards of it", hint="leave out --max-shard-size"
        )
