"""adapter_config.json of PEFT, after the tensors of an adapter are rearranged: it names the modules that have factors.

    target_modules  ["q_proj", "k_proj", "v_proj"]     after `fuse --layout qkv`: ["qkv_proj"]

PEFT gives low-rank factors to the modules that are named there, and looks for their tensors (peft 0.21, LoraConfig).
Patterns of names, and ranks of single modules, cannot be rewritten; they are refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from paramtool.errors import LayoutError, some
from paramtool.formats import hf_config, strict_json
from paramtool.parts.schemes import module_of

NAME = "adapter_config.json"
MODULES = "target_modules"
SAVED = "modules_to_save"
LAYERS = "layers_pattern"
EVERY = "all-linear"
"""PEFT's word for every linear layer, whatever it is called."""
OF_MODULES = ("rank_pattern", "alpha_pattern", "exclude_modules")
"""Settings of modules by their names."""


def rewritten(folder: str, old: Iterable[str], new: Iterable[str]) -> dict[str, bytes]:
    """{file: content} of the config of an adapter whose tensors were called `old` and are called `new`.

    Empty if there is none, or if it stays what it is.  LayoutError if it names modules in a way that cannot be
    rewritten, FormatError if it is damaged.
    """
    path = os.path.join(folder, NAME)
    old, new = list(old), list(new)
    before, after = ({_module(name) for name in names} - {""} for names in (old, new))
    if not os.path.isfile(path):
        return {}
    config, _ = strict_json.strict_file(path, "the settings of an adapter", hf_config.MAX_NBYTES)
    if not isinstance(config, dict):
        return {}
    patterns = config.get(LAYERS) or ()
    saved = [*(config.get(SAVED) or ()), *([patterns] if isinstance(patterns, str) else patterns)]
    saved = [one for one in saved if isinstance(one, str)]
    words = [{word for name in names for word in name.split(".")[:-1]} for names in (old, new)]
    if lost := [one for one in saved if {*one.split(".")} <= words[0] and not {*one.split(".")} <= words[1]]:
        key = LAYERS if lost[0] in patterns else SAVED
        raise LayoutError(
            f"{path}: {key} has {some(lost, 2)}, which are not in the output",
            hint="the file alone is written without this: name it instead of its folder, and write the config anew",
        )
    pattern = config.get(MODULES)
    if (
        before == after
        and isinstance(pattern, str)
        and pattern != EVERY
        and _matched(pattern, old) != _matched(pattern, new)
    ):
        raise LayoutError(
            f"{path}: {MODULES} is {pattern!r:.200}, which means other modules of the output",
            hint="the file alone is written without this: name it instead of its folder, and write the config anew",
        )
    if before == after or config.get(MODULES) == EVERY:
        return {}
    gone = before - after
    _refuse(path, config, gone)
    named = config[MODULES]
    kept = [name for name in named if name not in gone]
    place = next((k for k, name in enumerate(named) if name in gone), len(named))
    more = sorted(after - before - {*kept})
    made = {**config, MODULES: [*kept[:place], *more, *kept[place:]]}
    return {NAME: f"{json.dumps(made, indent=2)}\n".encode()}


def _matched(pattern: str, names: Iterable[str]) -> int:
    """How many tensors are below a module whose whole name matches, as PEFT asks (`check_target_module_exists`)."""
    try:
        matches = re.compile(pattern).fullmatch
    except re.error:
        return 0
    bare = (name.removeprefix("base_model.model.") for name in names)
    return sum(any(matches(name[: at.start()]) for at in re.finditer(r"\.", name)) for name in bare)


def _refuse(path: str, config: Mapping[str, Any], gone: Collection[str]) -> None:
    """LayoutError for settings that say something of modules that are gone, and that cannot be rewritten."""
    named = config.get(MODULES)
    if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
        raise LayoutError(
            f"{path}: {MODULES} is {named!r:.60}; expected a list of names, of which {_names(gone)} would be replaced",
            hint=f"write the names of the modules into {MODULES}, as PEFT does when it saves an adapter",
        )
    paths = [one for one in named if "." in one and one.rpartition(".")[2] in gone]
    others = [key for key in OF_MODULES if any(_speaks_of(key, config, one) for one in gone)]
    if paths or others:
        what = f"{MODULES} has {some(paths, 2)}" if paths else f"{' and '.join(others)} name modules"
        raise LayoutError(
            f"{path}: {what}, and {_names(gone)} are not in the output",
            hint="the file alone is rearranged without this: name it instead of its folder, and write the config anew",
        )


def _speaks_of(key: str, config: Mapping[str, Any], module: str) -> bool:
    value = config.get(key)
    names = value if isinstance(value, (dict, list)) else [value] if isinstance(value, str) else []
    return any(module in str(name) for name in names)


def _module(name: str) -> str:
    """The last word of the module that a low-rank factor belongs to; empty for other tensors."""
    return module_of(name).rpartition(".")[2]


def _names(modules: Iterable[str]) -> str:
    return some(sorted(modules), 6) or "nothing"
