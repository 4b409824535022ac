"""Whether the names of a model contradict each other: forms that are mixed, and modules that lack a part.

Modules of one place are compared, such as all of `model.layers.*.self_attn`.  Nothing here knows a model; where a layer
of a class of transformers 5.23 really lacks a part, its config.json says so.  A test runs the rules over every class.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from paramtool.errors import LayoutError, listed, plural
from paramtool.grouping import grouped
from paramtool.model.view import Shapes
from paramtool.parts.config_facts import config_of, tower_of
from paramtool.parts.families import Config
from paramtool.parts.words import APART, BASE, FUSED, NUMBER, OUTPUTS, STACKS, TORCH_MHA, WEIGHTS, Names, place

_SUFFIXES = {*WEIGHTS, "bias"}
_FORMS = {name: kind for name, kind in FUSED.items() if name != TORCH_MHA}
"""{layer that holds several parts: their kind}"""
PARTS = frozenset(
    [
        *(name for variants in APART.values() for names in variants for name in names),
        *FUSED,
        *OUTPUTS,
        *(name for names in STACKS for name in names),
        "down_proj",
        "w2",
    ]
) - {"gate", "up", "down", "linear", "proj", "dense"}
"""What a layer cannot lack if another of its place has it; without names that other things have, too."""


_Modules = dict[frozenset[str], list[str]]
"""The modules of one place, by the tensors that they have themselves: {names in a module, `q_proj.weight`: modules}"""


def _placed(names: Iterable[str]) -> dict[str, _Modules]:
    """{place: its modules}, `*` for the numbers in their names."""
    found: dict[str, _Modules] = {}
    for module, own in grouped(map(_module_and_own, names)).items():
        found.setdefault(place(module), {}).setdefault(frozenset(own), []).append(module)
    return found


def check(names: Collection[str], config: Config, among: Container[str] | None = None) -> None:
    """LayoutError for forms that are mixed, and for layers that lack a part; all problems of one kind at once.

    Only places `among` those that are given are looked at.
    """
    placed = {at: modules for at, modules in _placed(names).items() if among is None or at in among}
    if lines := list(_mixed(placed)):
        raise LayoutError(
            listed(f"{plural(len(lines), 'place mixes', 'places mix')} two forms:", lines),
            hint="the file was converted in part: `fuse` or `unfuse` one of the forms with --at MODULE",
        )
    if lines := list(_extra(placed)):
        raise LayoutError(
            listed(f"{plural(len(lines), 'expert has', 'experts have')} more than the others:", lines),
            hint="`export --names` writes the names of a list alone; or config.json is of another model",
        )
    if lines := list(_lacking(placed, config)):
        raise LayoutError(
            listed(f"{plural(len(lines), 'module lacks', 'modules lack')} what others of the same place have:", lines),
            hint="the file lacks tensors; if the model is so, its config.json does not say it",
        )


def module_of(name: str) -> str:
    """The module that a tensor, or the layer of a weight or bias, is in."""
    module, _, own = name.rpartition(".")
    return module.removesuffix(f".{BASE}").rpartition(".")[0] if own in _SUFFIXES else module


# --- mixed forms -----------------------------------------------------------------------------------------------------


class _PartForm(NamedTuple):
    """A way in which a place has parts of a kind."""

    kind: str
    names: Names
    """Of the parts, or of the tensors that hold them."""
    of: Names
    """The same with those that are not there."""
    is_fused: bool
    example: str
    rest: frozenset[str]
    """What else the module has."""
    module: str

    def __str__(self) -> str:
        return f"{', '.join(self.names)} {'fused' if self.is_fused else 'apart'} ({self.example!r})"


def _mixed(placed: Mapping[str, _Modules]) -> Iterator[str]:
    """A line for each place and kind of which some modules have another form than others."""
    places = grouped(
        ((at.removesuffix(".*") if form.kind == "experts" else at, form.kind), form)
        for at, modules in placed.items()
        for tensors, same in modules.items()
        for form in _forms(tensors, same[0])
    )
    for (where, _), forms in places.items():
        pairs = [
            (a, b)
            for a, b in combinations(forms, 2)
            # MiniMax and Nemotron-H have layers of two sorts under one name
            if a.of != b.of and (a.module == b.module or not (a.rest and b.rest) or a.rest & b.rest)
        ]
        if pairs:
            first, other = min(pairs, key=lambda pair: pair[0].module != pair[1].module)
            yield f"{where}: {first} and {other}"


def _forms(tensors: frozenset[str], module: str) -> Iterator[_PartForm]:
    children: dict[str, str] = {}
    for own in sorted(tensors):
        child, dot, _ = own.rpartition(".")
        children.setdefault(child if dot else own, own)
    layers = {child for child, own in children.items() if child != own}
    if NUMBER.fullmatch(module.rpartition(".")[2]) and "expert" in module.rpartition(".")[0].rpartition(".")[2]:
        for names in APART["experts"]:
            if layers.issuperset(names):
                yield _form("experts", names, names, children, module=module)
        return
    for kind in ("qkv", "gate-up"):
        for names in APART[kind]:
            there = tuple(name for name in names if name in layers)
            if len(there) > 1:
                yield _form(kind, there, names, children, module=module)
    for child in sorted(layers & _FORMS.keys()):
        yield _form(_FORMS[child], (child,), (), children, module=module)
    for names in STACKS:
        if children.keys() >= {*names} and layers.isdisjoint(names):
            yield _form("experts", names, (), children, module=module)


def _form(kind: str, names: Names, variant: Names, children: Mapping[str, str], *, module: str) -> _PartForm:
    """A form with an example; `variant` are all names of parts that are apart."""
    example = ".".join(word for word in (module, children[names[0]]) if word)
    parts = {name for variants in APART.get(kind, ()) for one in variants for name in one} | {*names} | _FORMS.keys()
    return _PartForm(kind, names, variant or names, not variant, example, frozenset(children.keys() - parts), module)


# --- missing parts ---------------------------------------------------------------------------------------------------


def _extra(placed: Mapping[str, _Modules]) -> Iterator[str]:
    """A line for each expert of a list with a tensor that most experts of its place lack."""
    for at, modules in placed.items():
        if len(modules) < 2 or not _LISTED.search(at):
            continue
        usual = max(modules, key=lambda one: len(modules[one]))
        for tensors, same in modules.items():
            if tensors > usual and not all(map(_is_part, tensors - usual)):
                yield from (f"{module!r} has {', '.join(sorted(tensors - usual))}" for module in same)


_LISTED = re.compile(r"expert[^.]*\.\*$")
"""One of the experts of a list."""


def check_biases(shapes: Shapes, scaled: Container[str] = ()) -> None:
    """LayoutError for biases that have no length in common with the outputs of their weights.

    `scaled` are weights with scales beside them, whose shapes may be those of packed codes.  A weight may be
    [outputs, inputs] or [inputs, outputs].
    """
    lines = []
    for name, shape in shapes.items():
        weight = f"{name[: -len('bias')]}weight" if name.endswith(".bias") else name.removesuffix("_bias")
        known = shapes.get(weight, ())
        if weight == name or weight in scaled or len(known) < 2 or len(shape) != len(known) - 1:
            continue
        if len(known) > 3 or (shape[-1] in known[-2:] and shape[:-1] == known[:-2]):
            continue
        if name.endswith(".bias") and (len(known) > 2 or not _is_part(_module_and_own(name)[1])):
            continue
        lines.append(f"{name!r} has shape {list(shape)}; {weight!r} has {list(known)}")
    if lines:
        raise LayoutError(
            listed(f"{plural(len(lines), 'bias does', 'biases do')} not fit the weight:", lines),
            hint="the file is damaged, or tensors of another model are in it",
        )


def _module_and_own(name: str) -> tuple[str, str]:
    """The module that a tensor's layer is in, and the name in it: `h.0.attn` and `q_proj.bias`."""
    module = module_of(name)
    return module, name[len(module) :].removeprefix(".")


def _lacking(placed: Mapping[str, _Modules], config: Config) -> Iterator[str]:
    """A line for each module that has nothing of its own, and lacks a part that others of its place have."""
    for modules in placed.values():
        most = sorted(modules, key=lambda one: (-len(one), -len(modules[one])))
        for tensors, same in modules.items():
            fuller = next((one for one in most if _lacks(tensors, one)), tensors)
            missing = sorted(filter(_is_part, fuller - tensors))
            for module in same if missing else ():
                if not is_so(module, missing, config):
                    yield f"{module!r} has no {', '.join(missing)}; {modules[fuller][0]!r} has"


def _lacks(tensors: frozenset[str], other: frozenset[str]) -> bool:
    """Whether a module has less than another; a bias of a part that it has alone does not make up for a weight."""
    more = tensors - other
    if not all(own.endswith(".bias") and _is_part(own) for own in more):
        return False
    return tensors - more < other


def _is_part(own: str) -> bool:
    child, dot, _ = own.rpartition(".")
    return (child.removesuffix(f".{BASE}") if dot else own.removesuffix("_bias")) in PARTS


def is_so(module: str, missing: Iterable[str], config: Config) -> bool:
    """Whether the config says that this module lacks these parts."""
    parts = {own.partition(".")[0] for own in missing}
    numbers = [int(number) for number in NUMBER.findall(module)]
    tower = tower_of(module, config)
    if tower is not None:
        return _says(*config_of(config, tower), parts, numbers)
    inner = (one for one in config.values() if isinstance(one, dict))
    return any(_says(str(one.get("model_type")), one, parts, numbers) for one in (config, *inner))


def _says(model_type: str, config: Config, parts: Collection[str], numbers: Sequence[int]) -> bool:
    def number(key: str) -> int:
        value = config.get(key)
        return value if type(value) is int else 0

    if {*parts} == {"v_proj"}:  # the values are the keys
        layers = config.get("layer_types")
        is_full = isinstance(layers, list) and len(numbers) == 1 and layers[numbers[0] :][:1] == ["full_attention"]
        return is_full and (config.get("attention_k_eq_v") is True or model_type == "diffusion_gemma_text")
    if {*parts} <= {"k_proj", "v_proj", "k_norm", "v_norm"}:  # those of an earlier layer
        shared = number("num_kv_shared_layers")
        return shared > 0 and len(numbers) == 1 and numbers[0] >= number("num_hidden_layers") - shared
    if {*parts} == {"down_proj"}:  # experts that return what they get
        return number("zero_expert_num") > 0 and len(numbers) == 2 and numbers[1] >= number("n_routed_experts") > 0
    return False
