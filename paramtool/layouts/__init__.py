"""Where each library keeps the cells of a recurrent network.

`layouts.json` has a table for each way of storing one, by library; `find` looks a layout up by name.  Custom layouts
are added with `register_layout`, through an entry point of the group `paramtool.layouts`, or from a TOML file (`own`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from paramtool.errors import UsageError, nearest
from paramtool.layouts.layout import Layout, built_in, registered

__all__ = ["all_layouts", "built_in", "family", "find", "parse", "registered", "words"]


def all_layouts() -> Iterator[Layout]:
    """Every layout: built in, then registered, then those of installed packages, which this imports."""
    from paramtool.layouts.own import installed

    known = {layout.name: layout for layout in _at_hand()}
    yield from known.values()
    yield from (layout for name, layout in installed().layouts.items() if name not in known)


def _at_hand() -> Iterator[Layout]:
    """The layouts that need no import of another package."""
    yield from built_in().values()
    yield from registered.values()


def find(name: str, others: Iterable[str] = ()) -> Layout:
    """The layout of that name.

    UsageError, with the nearest names, if no layout has that name; LayoutError if a package declares it and is broken.
    `others` are names of other things that the caller takes.
    """
    if found := built_in().get(name) or registered.get(name):
        return found
    from paramtool.layouts.own import installed

    known = {layout.name: layout for layout in all_layouts()}
    if name in known:
        return known[name]
    for declared, error in installed().broken:
        if declared in (name, name.split(".")[0]):
            raise error
    taken = [*known, *others]
    models = {model: names.split() for model, names in OF_MODELS.items() if {*names.split()} <= {*taken}}
    meant = [name.lower()] if name.lower() in models else nearest(name.lower(), [*taken, *models])
    near = list(dict.fromkeys(n for one in meant for n in models.get(one, [one]))) or [
        n for n in known if n.startswith(name.split(".")[0])
    ]
    hint = f"did you mean {', '.join(near)}?" if near else "`paramtool layouts` lists them"
    if of_kind := [n for n, layout in known.items() if any(form.kind == name.lower() for form in layout.forms)]:
        hint = f"layouts of a {name.lower()}: {', '.join(of_kind)}"
    raise UsageError(f"there is no layout {name!r}", hint="; ".join([*installed().warnings, hint]))


OF_MODELS = {
    "llama": "meta",
    **dict.fromkeys(("hf", "huggingface", "transformers", "qwen"), "transformers-4 transformers-5"),
    **dict.fromkeys(("mcore", "megatron-core", "megatron-lm", "nemo"), "megatron"),
    **dict.fromkeys(("tensorflow", "tf"), "keras tf1.basic"),
    **dict.fromkeys(("jax", "flax"), "flax.linen flax.nnx haiku equinox"),
}
"""{name of a model or of a library: the dialects of its makers' files, or the layouts of its networks}"""


def family(name: str) -> list[Layout]:
    """The layout of that name and its schemes: `mxnet` includes `mxnet.unfused`, `mxnet.flat` and so on."""
    first = find(name)
    others = _at_hand() if name in built_in() else all_layouts()
    return [first, *(layout for layout in others if layout.name.startswith(f"{name}."))]


def parse(text: str) -> tuple[str, dict[str, str]]:
    """The name and the options of `tf1.basic:forget_bias=0`; UsageError if the text is malformed.

    >>> parse("cudnn:bias_mode=input,tail=no")
    ('cudnn', {'bias_mode': 'input', 'tail': 'no'})
    """
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    for word in filter(None, rest.split(",")):
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise UsageError(f"{word!r} is not an option of a layout; expected KEY=VALUE", hint=f"{name}:key=value")
        options[key.strip()] = value.strip()
    return name, options


def words(name: str, options: Mapping[str, str]) -> str:
    """What `parse` reads as a layout and its options."""
    return ":".join(filter(None, [name, ",".join(f"{key}={value}" for key, value in options.items())]))
