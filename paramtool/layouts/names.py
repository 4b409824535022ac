"""Templates of tensor names: rendered for a network, and matched against the names in a file.

    weight_ih_l{layer}{dir}             weight_ih_l0, weight_ih_l1_reverse
    {dir}{layer}_i2h{gate}_weight       l0_i2h_f_weight
    [layer{layer}/][{dir}/]kernel       kernel; layer1/forward/kernel
    {cell}/w{gate}                      5/w2: cell is layer * directions + direction

A part in angle brackets, `<lstm_cell/|gru_cell/>`, is a scope that is accepted in files and never written.

A part in square brackets is only present if the network has several layers (for a part with {layer}) or both directions
(for a part with {dir}).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import TYPE_CHECKING

from paramtool.layouts.pattern import Binding
from paramtool.layouts.spec import Spec, words

if TYPE_CHECKING:
    from paramtool.layouts.layout import Form, TensorRule

_PART = re.compile(r"\[([^\]]*)\]")
_SCOPES = re.compile(r"<([^>]*)>")
MAX_LAYERS = 999
"""Larger numbers in names are not layers."""


def labels(row: TensorRule, gates: str) -> dict[str, str]:
    """{gate: how the row's names write it}.

    >>> from paramtool.layouts.layout import TensorRule
    >>> labels(TensorRule("w{gate}", "W[hidden in]", labels="i=_i f=_f"), "ifgo")
    {'i': '_i', 'f': '_f'}
    """
    if row.labels:
        return {word[0]: word[2:] for word in row.labels.split()}
    return {gate: gate for gate in gates}


def bindings(row: TensorRule, form: Form, spec: Spec) -> Iterator[Binding]:
    """Every combination of layer, direction and gate for which the row has a tensor."""
    values: dict[str, tuple[int | str, ...]] = {}
    if "{layer}" in row.name or "{cell}" in row.name:
        values["layer"] = tuple(range(spec.layers))
    if "{dir}" in row.name or "{cell}" in row.name:
        values["dir"] = tuple(range(spec.directions))
    if "{gate}" in row.name:
        own = "".join(block.gates for block in row.blocks())
        values["gate"] = tuple(gate for gate in labels(row, form.gates) if not own or gate in own)
    for chosen in product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def render(row: TensorRule, directions: tuple[str, str], spec: Spec, binding: Binding) -> str:
    """The name of one tensor of a network."""
    layer, direction = int(binding.get("layer", 0)), int(binding.get("dir", 0))
    words = {"layer": layer, "dir": directions[direction], "cell": layer * spec.directions + direction}
    if "gate" in binding:
        words["gate"] = labels(row, str(binding["gate"]))[str(binding["gate"])]

    def part(found: re.Match[str]) -> str:
        wanted = ("{layer}" in found[1] and spec.layers > 1) or ("{dir}" in found[1] and spec.directions > 1)
        return found[1] if wanted else ""

    return _PART.sub(part, _SCOPES.sub("", row.name)).format(**words)


@cache
def recogniser(row: TensorRule, directions: tuple[str, str], gates: str, separators: str) -> re.Pattern[str]:
    """A pattern that matches a row's names in a file, with the groups at, layer, dir, gate and cell.

    It accepts slashes and dots between the parts of a name alike.
    """
    gate = "|".join(re.escape(label) for label in sorted(labels(row, gates).values(), key=len, reverse=True))
    direction = "|".join(re.escape(label) for label in sorted(set(directions), key=len, reverse=True))
    text = re.escape(row.name).replace("/", "[/.]")
    text = re.sub(r"<(.*?)>", lambda scope: f"(?:{scope[1].replace(chr(92) + '|', '|')})?", text)
    text = re.sub(r"\\\[(.*?)\\\]", r"(?:\1)?", text)
    for word, found in (("layer", r"\d{1,6}"), ("cell", r"\d{1,6}"), ("dir", direction), ("gate", gate)):
        text = text.replace(rf"\{{{word}\}}", f"(?P<{word}>{found})")
    between = "".join(re.escape(c) for c in ("./" if separators in "./" else separators))
    return re.compile(rf"(?:(?P<at>.+?)[{between}])??{text}(?::0)?", re.DOTALL)


def found(
    row: TensorRule, directions: tuple[str, str], gates: str, separator: str, *, name: str
) -> dict[str, str] | None:
    """The groups of a name (see `recogniser`), or None if the row has no such name."""
    match = recogniser(row, directions, gates, separator).fullmatch(name)
    return match.groupdict() if match else None


def front(row: TensorRule, said: Mapping[str, str | None], name: str) -> str:
    """The part of a name up to its layer, without the separator; empty if the name counts no layer.

    >>> from paramtool.layouts.layout import TensorRule
    >>> front(TensorRule("[{layer}.]bias", "b[hidden]"), {"at": "layers", "layer": "0"}, "layers.0.bias")
    'layers.0'
    """
    part = next((part for part in _PART.findall(row.name) if "{layer}" in part), "")
    if not part or said.get("layer") is None:
        return ""
    at = said.get("at")
    length = len(f"{at}." if at else "") + len(part.replace("{layer}", said["layer"] or ""))
    return name[: length - 1]


# --- Which layouts each file format usually holds: those that the format's own library writes -------------------------


HOMES = tuple((begin, tuple(layouts.split()), library) for begin, layouts, library in words()["homes"])
"""(prefix of the format's name, layouts that its library writes, library).  ONNX files of PyTorch's exporter also hold
PyTorch's own tensors.  Other formats (safetensors, npz, HDF5) may hold tensors of any library."""
FLAT = {"mxnet": "mxnet.flat"}
"""The layout of flat vectors with unknown names, for libraries whose order differs from cuDNN's."""


def homes(format: str) -> tuple[str, ...]:
    """The layouts that the library of a format writes, with their schemes; empty if any library may have written it.

    >>> homes("mxnet V2"), homes("npz")
    (('mxnet',), ())
    """
    return next((names for begin, names, _ in HOMES if format.startswith(begin)), ())


def foreign_names(layout: str, format: str) -> str:
    """The doubt about a layout that is not of the library that wrote the file; else an empty string.

    >>> foreign_names("keras", "torch zip")
    "the names are those of keras in a file of PyTorch: only the network's code says what they mean"
    """
    if is_at_home(layout, homes(format)):
        return ""
    library = next(title for begin, _, title in HOMES if format.startswith(begin))
    return f"the names are those of {layout} in a file of {library}: only the network's code says what they mean"


def flat_layout(format: str) -> str:
    """The layout to assume for a flat vector in a file of that format whose name matches no layout.

    >>> flat_layout("mxnet V2"), flat_layout("torch zip")
    ('mxnet.flat', 'cudnn')
    """
    return next((layout for begin, layout in FLAT.items() if format.startswith(begin)), "cudnn")


def is_at_home(layout: str, homes: Sequence[str]) -> bool:
    """Whether a layout, with or without options, is one of `homes` or a scheme of one; always true if `homes` is empty.

    >>> is_at_home("mxnet.flat", ["mxnet"]), is_at_home("miopen", ["torch", "cudnn"]), is_at_home("miopen", [])
    (True, False, True)
    """
    name = layout.partition(":")[0]
    return not homes or any(name == home or name.startswith(f"{home}.") for home in homes)


# --- Tensors that libraries store beside the weights of a recurrent network, or instead of them: one row for each -----
#
# A wrapper such as weight norm replaces `weight_hh_l0` by tensors that it is computed from.  A conversion that ignored
# them would keep the network's shapes and change its function.  So each such tensor is read as its library reads it
# (`taken`), recognised as not needed by the function (`harmless`), or refused with a hint.


TAKEN = "taken"
HARMLESS = "harmless"
REFUSED = "refused"


@dataclass(frozen=True)
class Extra:
    """Names of tensors that belong to a tensor `{own}` of a network, or to the whole network."""

    names: tuple[str, ...]
    """Templates: `{own}_g`.  `{n}` is a number and `{any}` anything, as in `seed_generator/{any}`."""
    what: str
    """What such a tensor is, for messages."""
    then: str
    """TAKEN, HARMLESS or REFUSED."""
    hint: str = ""
    """What to do if it is refused."""
    source: str = ""

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """Patterns of the full names, with the groups `at` (the module) and `own` (if it belongs to one tensor)."""
        return tuple(re.compile(_pattern(name), re.DOTALL) for name in self.names)

    def read(self, name: str) -> tuple[str, str] | None:
        """(module, name of the tensor it belongs to, or empty) if a name matches this row; else None.

        >>> EXTRAS[1].read("encoder.rnn.weight_hh_l0_g")
        ('encoder.rnn', 'weight_hh_l0')
        """
        for pattern in self.patterns:
            if found := pattern.fullmatch(name):
                return found["at"] or "", found.groupdict().get("own") or ""
        return None


def _pattern(template: str) -> str:
    text = re.escape(template).replace("/", "[./]")
    text = text.replace(r"\{own\}", "(?P<own>[^./]+)").replace(r"\{n\}", r"\d+").replace(r"\{any\}", ".+")
    return rf"(?:(?P<at>.+?)[./])??{text}"


EXTRAS = tuple(Extra(**{**row, "names": tuple(row["names"])}) for row in words()["extras"])
