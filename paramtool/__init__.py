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
    "commands.variants": "Variant variants",
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
                found = globals()[name] = _led(getattr(import_module(f"paramtool.{module}"), name))
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


def _led(found):
    """A public object; a function answers what it does not take, an argument or a value, with what it does."""
    from inspect import isfunction, signature

    if not isfunction(found):
        return found
    from functools import wraps

    @wraps(found)
    def call(*args, **kwargs):
        from paramtool.errors import misled, refuse_other

        known = signature(found)
        try:
            given = known.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise misled(found.__name__, known.parameters, kwargs, error) from None
        for name, value in given.items():
            refuse_other(name, known.parameters[name].annotation, value)
        return found(*args, **kwargs)

    return call
