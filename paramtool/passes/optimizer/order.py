"""The parameters that an optimizer may have been made with, and what is known of their order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, prefix_of
from paramtool.model.objects import Mapping as TreeMapping
from paramtool.model.objects import subtree, tensor_names
from paramtool.model.optimizer import Move, Order, Parameter
from paramtool.model.view import Shape, Shapes
from paramtool.passes.compat.wanted import kind_of, wanted_by

# --- The two groups that the Trainer of transformers makes: parameters with weight decay, and those without ----------
#
# The rule is that of transformers 5.23 (trainer.py, `create_optimizer` and `get_decay_parameter_names`;
# trainer_pt_utils.py, `get_parameter_names`): both groups are in the order of `named_parameters()`, and leave out what
# is frozen.  Older releases decided otherwise for normalisations that are not torch's LayerNorm, never for biases.


_WITHOUT_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def decays(name: str, is_in_layer_norm: bool) -> bool:
    """Whether the Trainer applies weight decay to a parameter; those of torch's LayerNorm are known by the class.

    >>> decays("h.0.attn.c_attn.weight", False), decays("h.0.ln_1.weight", True), decays("h.0.q_norm.weight", False)
    (True, False, False)
    """
    return not is_in_layer_norm and not _WITHOUT_DECAY.search(name.lower())


def may_decay(name: str) -> bool | None:
    """The same where the class is not known: False, or None.

    >>> may_decay("h.0.attn.c_attn.bias"), may_decay("h.0.ln_1.weight")
    (False, None)
    """
    return None if decays(name, False) else False


def allowed(order: Order, counts: Sequence[int]) -> tuple[Callable[[Parameter], bool], ...]:
    """Which parameters each of the two groups may have; none where there are not two groups.

    Where the numbers are those of the rule, the rule decides.  Where they are not, some parameters are frozen, or
    another release made the groups: it is only sure that biases are not in the first.
    """
    if len(counts) != 2:
        return ()
    said = [parameter.decays for parameter in order.parameters]
    if None not in said and (said.count(True), said.count(False)) == tuple(counts):
        return (lambda parameter: parameter.decays is True), (lambda parameter: parameter.decays is False)
    return (lambda parameter: "bias" not in parameter.name.lower()), (lambda parameter: True)


def misplaced(
    old: Mapping[str, bool | None], new: Mapping[str, bool | None], moves: Iterable[Move], renamed: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """(old parameter, new parameter) that the Trainer has in different groups.

    `old` and `new` say which decay, or None where that is not known.

    >>> list(misplaced({"a.weight": True}, {"norm.weight": False}, (), {"a.weight": "norm.weight"}))
    [('a.weight', 'norm.weight')]
    """
    pairs = [*renamed.items(), *((name, made) for move in moves for made in move.new for name in move.old)]
    for name, made in pairs:
        said = old.get(name), new.get(made)
        if None not in said and said[0] is not said[1]:
            yield name, made


@frozen
class ClassParameter:
    """A parameter of a model, as its class has it."""

    names: tuple[str, ...]
    """All of its names; the first is that of `named_parameters()`, and the last can be one that only its files have."""
    shape: Shape
    is_in_layer_norm: bool
    """Whether it is part of one of torch's LayerNorm modules."""


@frozen
class ClassParameters:
    """The parameters of a model in the order of its class, which is the order of `named_parameters()`."""

    source: str
    """For people: `the class GPT2LMHeadModel`."""
    parameters: tuple[ClassParameter, ...]
    buffers: frozenset[str]
    """The names of all else that is in its state dict."""
    saved: Shapes = field(default_factory=dict)
    """{name: shape} of what its files hold in place of parameters: a Mixtral has the experts of a layer in one tensor,
    and its files have them one by one."""


_MODEL = ("model", "ema")
"""Roles of tensors of a model: a name such as `teacher` says that a part follows another one, and such a part may well
be among the parameters."""


def of_checkpoint(checkpoint: Checkpoint, section: str | None, source: str = "") -> Order:
    """The tensors of a model in a checkpoint that may be parameters, in the order of the file.

    `section` is the section of the model; None where the whole checkpoint is the model.  `source` says where their
    order comes from, where it is the order of a state dict; empty where the order of the file says nothing.  Names of
    one alias set with one view are one parameter, whose name is the first.
    """
    prefix = prefix_of(checkpoint, section)
    others = () if section else tuple(one.prefix for one in checkpoint.sections)
    return _listed(checkpoint, [prefix], source, section or "", cut=len(prefix), others=others)


def of_sections(checkpoint: Checkpoint, sections: Sequence[str], source: str = "") -> Order:
    """The same of several sections, one after the other, whose names keep their prefixes."""
    return _listed(checkpoint, [prefix_of(checkpoint, name) for name in sections], source, "")


def _listed(
    checkpoint: Checkpoint, prefixes: Iterable[str], source: str, section: str, *, cut: int = 0,
    others: tuple[str, ...] = (),
) -> Order:  # fmt: skip
    """The tensors that may be parameters, under each prefix and under none of `others`; it says nothing if sorted.

    `cut` characters are stripped from their names.
    """
    known = wanted_by(checkpoint)
    # In the order of the tree, which a state dict has; old files list their tensors by storage
    names = dict.fromkeys([*tensor_names(checkpoint.objects), *checkpoint.entries])
    parameters: dict[str, Parameter] = {}
    aliases: dict[str, str] = {}
    firsts: dict[tuple[object, ...], str] = {}
    missing = ""
    for full in (name for prefix in prefixes for name in names if name.startswith(prefix)):
        entry = checkpoint.entries.get(full)
        if entry is None or entry.role not in _MODEL or full.startswith(others):
            continue
        name, one = full[cut:], known[full]
        view = one.view
        if view is None:
            missing = missing or f"{full!r} is {kind_of(entry.value)}"
        elif view.dtype.is_inexact:
            identity = one.alias_set, view.storage, view.dtype.name, view.offset, view.shape, view.strides
            first = firsts.setdefault(identity, name)
            if first != name:
                aliases[name] = first
            else:
                parameters[name] = Parameter(name, view.shape, may_decay(name))
    is_known = bool(source) and not _is_sorted([*parameters])
    unsure = "its names are in alphabetical order" if source else f"{checkpoint.format} does not keep it"
    listed = tuple(parameters.values())
    return Order(listed, source if is_known else unsure, is_known, section, aliases, missing)


def is_ordered(checkpoint: Checkpoint, section: str | None) -> bool:
    """Whether a file of torch has the names of a section in the order in which they were put there.

    Python before 3.6 pickled a dict in any order, and torch before 1.6 ran there; an OrderedDict is always in order.
    torch.distributed.checkpoint lists the places of nested values in that order (`planner_data` of default_planner.py).
    """
    node = subtree(checkpoint.objects, section) if section else checkpoint.objects
    if checkpoint.format == "dcp":
        return bool(section) and isinstance(node, TreeMapping) and bool(node.items)
    is_dict = isinstance(node, TreeMapping) and node.kind == "dict"
    return checkpoint.format == "torch zip" or (checkpoint.format.startswith("torch") and not is_dict)


def _is_sorted(names: Sequence[str]) -> bool:
    """Whether names were put in alphabetical order: then the bias of a module is before its weight.

    Modules of torch register the weight first.

    >>> _is_sorted(["a.bias", "a.weight", "b.weight"]), _is_sorted(["a.weight", "b.weight"])
    (True, False)
    """
    if sorted(names) != list(names):
        return False
    there = set(names)
    return any(name.endswith("bias") and f"{name.removesuffix('bias')}weight" in there for name in names)


def sections_of_models(checkpoint: Checkpoint) -> tuple[str | None, ...]:
    """The sections that may be the model of an optimizer; None is what is in no section."""
    prefixes = tuple(one.prefix for one in checkpoint.sections)
    inner = {one for one in prefixes if not any(other != one and other.startswith(one) for other in prefixes)}
    named = tuple(one.name for one in checkpoint.sections if one.role == "model" and one.prefix in inner)
    outside = any(e.role in _MODEL and not name.startswith(prefixes) for name, e in checkpoint.entries.items())
    return (*named, *((None,) if outside else ()))


def of_class(found: ClassParameters, file: Order, where: str = "the file") -> Order:
    """The parameters of a model's class, in its order, under the names that the file has for them.

    `file` has the tensors of the file.  They are not all of the model's where the class has a parameter that is not in
    the file, or the file a tensor that is not the class's: then the class is another one.  What files of the class hold
    in another form has the names of the class.  `where` is what messages call the file.
    """
    shapes = {parameter.name: parameter.shape for parameter in file.parameters}
    parameters: list[Parameter] = []
    aliases = dict(file.aliases)
    missing = file.missing
    own = {name for one in found.parameters for name in one.names} | found.buffers
    strange = [name for name in shapes if name not in own and found.saved.get(name) != shapes[name]]
    is_saved = not strange and {name for name in found.saved if name not in own} <= shapes.keys() | aliases.keys()
    for one in found.parameters:
        there = dict.fromkeys(name for own in one.names if (name := file.aliases.get(own, own)) in shapes)
        name = next(iter(there), "")
        called = name or one.names[0]
        if not name and not (found.saved and is_saved):
            missing = missing or f"{called!r} of {found.source} is not in {where}"
        elif name and shapes[name] != one.shape:
            missing = missing or f"{name!r} is {list(shapes[name])}, and {list(one.shape)} in {found.source}"
        parameters.append(Parameter(called, one.shape, decays(one.names[0], one.is_in_layer_norm)))
        aliases |= {other: called for other in (*one.names, *there) if other != called}
    if strange:
        missing = missing or f"{strange[0]!r} is not in {found.source}"
    return Order(tuple(parameters), found.source, True, file.section, aliases, missing)
