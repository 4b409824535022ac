"""paramtool reads model checkpoints, shows which parameters are shared, and writes each byte once under every name.

    import paramtool
    arrays = paramtool.load_file("model.dedup.safetensors")     # {name: numpy array}, aliases share memory
    checkpoint = paramtool.read("model.pt")                     # what is in the file, without its tensor bytes
    graph = paramtool.alias_graph(checkpoint)                   # which names share which bytes
    paramtool.dedup("model.pt", "small.safetensors")            # every byte once, every name recorded
    paramtool.inspect("model.pt", fail_on=["unsafe"]).findings  # rules for CI, as objects

`paramtool.torch` has the functions for people with torch: load_model, save_model and others.  Every function, with its
keywords and the flags that they correspond to, is in docs/python.md.

Everything is imported on first use, so that importing the package costs nothing.
"""

import sys

# `python -m paramtool`: nothing is imported from the current folder, which may hold a stranger's numpy.py, not even
# `__future__`.
if getattr(sys, "argv", [])[:1] == ["-m"] and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paramtool.commands.progress import Path, Progress
    from paramtool.commands.variants import Variant
    from paramtool.passes.compat.wanted import Wanted

__version__ = "0.1.0"
__all__ = [
    "Alias", "AliasGraph", "BaseFound", "Checked", "CheckedFile", "Checkpoint", "Considered", "Converted",
    "DedupOptions", "Deduped", "Defects", "Diffed", "Each", "Entry", "ExportOptions", "Exported", "Family",
    "FamilyMember", "Finding", "Form", "FormatError", "Guess", "Guessed", "Inspection", "Layout", "LayoutError",
    "LockError", "Locked", "MissingFileError", "ModelError", "NoSuchFileError", "OutputError", "PageReport",
    "ParamtoolError", "Plan", "PlanError", "RelayoutOptions", "Relayouted", "Shard", "TensorRule", "TieError",
    "UnknownSizesError", "UnreadableError", "UnsafeError", "UsageError", "Variant", "Verified", "View", "__version__",
    "alias_graph",
    "check", "convert", "dedup", "dedup_each", "dedup_family", "diff", "export", "export_each", "find_base", "fuse",
    "guess", "inspect", "load_file", "lock", "read", "register_layout", "report", "unfuse", "variants", "verify",
    "verify_each",
]  # fmt: skip
_PLACES = {
    "commands.check.check": "check",
    "commands.check.report": "Checked CheckedFile",
    "commands.dedup": "DedupOptions Deduped dedup dedup_each",
    "commands.dedup_many": "Family FamilyMember Shard dedup_family",
    "commands.diff.diff": "Diffed diff",
    "commands.export": "ExportOptions Exported export export_each",
    "commands.diff.find_base": "BaseFound find_base",
    "commands.guess": "Considered Guessed guess",
    "commands.inspect": "Inspection alias_graph inspect",
    "commands.load": "load_file",
    "commands.lock": "Locked lock",
    "commands.opening": "Each",
    "commands.relayout": "convert fuse unfuse",
    "commands.relayout_options": "RelayoutOptions",
    "commands.relayouted": "Relayouted",
    "commands.report.write": "PageReport report",
    "commands.variants": "Variant",
    "commands.verify": "Verified verify verify_each",
    "errors": "Defects FormatError LayoutError LockError MissingFileError ModelError NoSuchFileError "
    "OutputError ParamtoolError PlanError TieError UnknownSizesError UnreadableError UnsafeError UsageError",
    "formats": "read",
    "guessing.candidates": "Guess",
    "layouts.layout": "Form Layout TensorRule",
    "layouts.own": "register_layout",
    "model.alias": "Alias AliasGraph",
    "model.checkpoint": "Checkpoint Entry",
    "model.finding": "Finding",
    "model.plan": "Plan",
    "model.view": "View",
    "passes.rnn.convert": "Converted",
}  # fmt: skip
"""{module: the public names that it has}; `__init__.pyi` says them to editors and type checkers."""
_MODULES = {
    "errors": "",
    "torch": "'paramtool[torch]'",
    "keras": "'paramtool[keras]' keras",
    "mxnet": "mxnet",
    "flax": "",
}
"""{public module, an attribute without being imported by name: what pip installs for it}"""

_LEADS = {
    "load": "paramtool.load_file(path) gives {name: array}, and paramtool.torch.load_model(model, path) fills a model",
    "load_model": "paramtool.torch.load_model(model, path) fills a model",
    "open": "paramtool.read(path) describes a file, and paramtool.load_file(path) gives {name: array}",
    "save": "paramtool.torch.save_file(tensors, path) writes tensors, and paramtool.torch.save_model a model",
}
"""{what people try: where it is}."""


def __dir__() -> list[str]:
    """Everything public, imported or not: for completion and help."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *_MODULES})


if not TYPE_CHECKING:  # type checkers read the names in __init__.pyi, and know no others

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used."""
        from importlib import import_module

        for module, names in _PLACES.items():
            if name in names.split():
                found = globals()[name] = getattr(import_module(f"paramtool.{module}"), name)
                return found
        if name in _MODULES:
            try:
                return import_module(f"paramtool.{name}")
            except ModuleNotFoundError as error:
                text = f"paramtool.{name} needs {error.name}, which is not installed: pip install {_MODULES[name]}"
                raise AttributeError(text) from None
        lead = f"; {_LEADS[name]}" if name in _LEADS else ""
        text = f"module 'paramtool' has no attribute {name!r}{lead}"
        raise AttributeError(text, name=name, obj=import_module("paramtool"))


def variants(
    path: "Path",
    against: "Sequence[Path]",
    *,
    only: "str | None" = None,
    allow_class: "Sequence[str]" = (),
    allow_unknown: "bool" = False,
    config: "Path | None" = None,
    max_inflated: "int | None" = None,
    progress: "Progress | None" = None,
) -> "tuple[Variant, ...]":
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
        config=config,
        max_inflated=max_inflated,
        progress=progress or silent,
    )


def _wanted_from_config(path: str) -> "tuple[Mapping[str, Wanted], Mapping[str, Wanted]]":
    from paramtool.commands.models_of_transformers import wanted

    return wanted(path)
