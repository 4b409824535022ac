"""paramtool reads model checkpoints, shows which parameters are shared, and writes each byte once under every name.

    import paramtool
    arrays = paramtool.load_file("model.dedup.safetensors")     # {name: numpy array}, aliases share memory
    checkpoint = paramtool.read("model.pt")                     # what is in the file, without its tensor bytes
    graph = paramtool.alias_graph(checkpoint)                   # which names share which bytes

The public functions are resolved on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paramtool.commands.dedup import dedup
    from paramtool.commands.dedup_many import dedup_family
    from paramtool.commands.export import export
    from paramtool.commands.guess import guess
    from paramtool.commands.inspect import alias_graph, inspect
    from paramtool.commands.load import load_file
    from paramtool.commands.progress import Path, Progress
    from paramtool.commands.relayout import convert, fuse, unfuse
    from paramtool.commands.variants import Variant
    from paramtool.commands.verify import verify
    from paramtool.formats import read
    from paramtool.layouts.own import register_layout
    from paramtool.passes.compat.wanted import Wanted

__version__ = "0.1.0"
__all__ = [
    "__version__", "alias_graph", "convert", "dedup", "dedup_family", "export", "fuse", "guess", "inspect", "load_file",
    "read", "register_layout", "unfuse", "variants", "verify",
]  # fmt: skip
PLACES = {
    "alias_graph": "commands.inspect", "convert": "commands.relayout", "dedup": "commands.dedup",
    "dedup_family": "commands.dedup_many", "export": "commands.export", "fuse": "commands.relayout",
    "guess": "commands.guess", "inspect": "commands.inspect", "load_file": "commands.load", "read": "formats",
    "register_layout": "layouts.own", "unfuse": "commands.relayout", "verify": "commands.verify",
}  # fmt: skip
"""{public function: the module that has it}."""


def __getattr__(name: str) -> object:
    """Import a public function when it is first asked for."""
    if module := PLACES.get(name):
        return getattr(import_module(f"paramtool.{module}"), name)
    raise AttributeError(f"module 'paramtool' has no attribute {name!r}")


def variants(
    path: Path,
    against: Sequence[Path],
    *,
    only: str | None = None,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    max_inflated: int | None = None,
    progress: Progress | None = None,
) -> tuple[Variant, ...]:
    """What variants of a model make of a checkpoint, before anyone loads it: loads, through aliases, or why not.

    Each of `against` is a list of names (a text file, one a line), any checkpoint that can be read, or a config.json of
    transformers, whose model is built on the meta device, without weights and without downloading anything; a folder is
    the checkpoint in it, or the config where it holds no weights.  `only` names the section of the checkpoint to load.
    `paramtool.torch.variants` takes models themselves.

    UsageError where nothing is asked, where a list holds no name, and where a config is asked for and transformers is
    not there; FormatError where a file or a config is damaged, contradicts itself or cannot be built.  UnsafeError,
    `allow_class` and `allow_unknown` as of `read`, for checkpoints among `against`, too.
    """
    from paramtool.commands import variants as variants_command
    from paramtool.commands.progress import silent

    return variants_command.variants(
        path,
        against,
        only=only,
        build=_wanted_from_config,
        allow_class=allow_class,
        allow_unknown=allow_unknown,
        max_inflated=max_inflated,
        progress=progress or silent,
    )


def _wanted_from_config(path: str) -> tuple[Mapping[str, Wanted], Mapping[str, Wanted]]:
    try:
        from paramtool.torch.transformers_models import wanted_from_config
    except ModuleNotFoundError as error:
        from paramtool.errors import UsageError

        raise UsageError(
            f"{path}: the model of a config is built with torch and transformers; {error.name} is not installed",
            hint="pip install 'paramtool[torch]' 'transformers>=5'",
        ) from None
    return wanted_from_config(path)
