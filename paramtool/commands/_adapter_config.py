"""What adapter_config.json says of the modules that PEFT gives low-rank factors, after their tensors are rearranged."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from paramtool.errors import some
from paramtool.parts.schemes import module_of
from paramtool.passes.parts.rearranged import Rearranged

NAME = "adapter_config.json"


def warnings(where: str, change: Rearranged) -> Iterator[str]:
    """A warning if the config of an adapter beside the file names modules that the output no longer has."""
    old, new = ({_module(one.name) for one in side} - {""} for side in (change.read, change.made))
    if old != new and os.path.exists(os.path.join(os.path.dirname(where), NAME)):
        yield (
            f"{NAME} is copied unchanged: before PEFT opens the output, replace {_names(old - new)} by "
            f"{_names(new - old)} in target_modules, and in rank_pattern and alpha_pattern"
        )


def _module(name: str) -> str:
    """The last word of the module that a low-rank factor belongs to; empty for other tensors."""
    return module_of(name).rpartition(".")[2]


def _names(modules: Iterable[str]) -> str:
    return some(sorted(modules), 6) or "nothing"
