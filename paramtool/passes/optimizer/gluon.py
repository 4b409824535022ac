"""The states of a Trainer of MXNet's Gluon: {index: arrays}, and the optimizer.

The index is the place of a parameter in the names of all, sorted, also of those that are not trained and have no state
(MXNet 1.9.1, gluon/trainer.py, `__init__`).  The names are those of `collect_params`; `save_parameters` writes others,
of which the order says nothing.  A Module keeps names in the optimizer (`idx2name`), or has them as keys.

With `multi_precision`, float16 parameters have float32 copies: a pair of the copy and the state, or, in the classes of
`_STATE_FIRST`, of the state and the copy (optimizer/optimizer.py, `create_state_multi_precision`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as Map

from paramtool.errors import some
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Leaf, Mapping, Node, Opaque, TensorRef, pairs_of, part, tensor_names
from paramtool.model.objects import Sequence as Listed
from paramtool.model.optimizer import Group, OptimizerState, Order, Parameter, Slot, SlotKind, StateEntry
from paramtool.model.view import Shapes
from paramtool.passes.optimizer.tree import texts

FORM = "gluon"
NAME, OPTIMIZERS = "mxnet states", "mxnet.optimizer.optimizer"
"""What the reader calls such a file, and the module of the optimizers."""
_SLOTS = {
    "SGD": "mom", "ccSGD": "mom", "NAG": "mom", "LARS": "mom", "LBSGD": "mom", "Signum": "mom", "FTML": "d v z",
    "LAMB": "mean var", "DCASGD": "mom previous_weight", "Adam": "mean var", "AdaGrad": "history",
    "RMSProp": "n g delta", "AdaDelta": "acc_g acc_delta", "Ftrl": "z n", "Adamax": "m_t u_t", "Nadam": "m_t v_t",
    "SGLD": "", "Test": "state",
}  # fmt: skip
"""{class: what its state is, in order}: `create_state` in optimizer/optimizer.py of MXNet 1.9.1; RMSProp has all three
where it is centered."""
_KINDS: Map[str, SlotKind] = {
    "mom": "first", "mean": "first", "var": "second", "history": "second", "n": "second", "g": "first",
    "delta": "first", "acc_g": "second", "acc_delta": "second", "m_t": "first", "v_t": "second", "u_t": "magnitude",
    "v": "second", "previous_weight": "weight",
}  # fmt: skip
"""{slot: its kind}; `d` and `z` of FTML, `z` of Ftrl and the state of Test are none of these."""
_STATE_FIRST = frozenset({"SGD", "ccSGD", "NAG", "LARS", "LBSGD"})
_NOT_TRAINED = re.compile(r".*(?:running|moving)_(?:mean|var)")
_PREFIXES = ("arg:", "aux:")


def states(checkpoint: Checkpoint, shapes: Shapes) -> Iterator[OptimizerState]:
    """The optimizer of a file of states; `shapes` are those of its tensors."""
    if checkpoint.format != NAME:
        return
    node, optimizer = checkpoint.objects, None
    if isinstance(node, Listed) and node.kind == "tuple" and len(node.items) == 2:
        node, optimizer = node.items
    if not isinstance(node, Mapping):
        return
    path = optimizer.path if isinstance(optimizer, Opaque) else ""
    name = path.partition(f"{OPTIMIZERS}.")[2]
    said = part(optimizer, "state")
    settings = {str(key): child for key, child in said.items} if isinstance(said, Mapping) else {}
    is_mixed = settings.get("multi_precision") == Leaf(True)
    entries, masters, strange = [], {}, []
    for key, child in node.items:
        if not isinstance(key, (int, str)):
            strange.append(str(key))
            continue
        state, master = _master(child, name) if is_mixed else (child, "")
        if master:
            masters[key] = master
        slots = _slots(state, name)
        strange += [str(key)] if slots is None else []
        entries.append(StateEntry(key, 0, slots or ()))
    refused = f"what it keeps for {some(strange, 4)} is not known" if strange else ""
    keys = tuple(entry.key for entry in entries)
    plain = tuple((_WORDS.get(key, key), child) for key, child in settings.items() if isinstance(child, Leaf))
    # The names that a Module gave the optimizer, where they are those of all entries
    said = settings.get("idx2name")
    named = dict(pairs_of(said))
    group = Group(keys, Mapping("dict", plain), texts(map(named.get, keys)))
    yield OptimizerState("", FORM, name, tuple(entries), (group,), masters=masters, refused=refused)


_WORDS = {"wd": "weight_decay"}


def _master(node: Node, name: str) -> tuple[Node, str]:
    """The state of an entry without the float32 copy, and that copy; empty where it has none."""
    if not isinstance(node, Listed) or len(node.items) != 2:
        return node, ""
    expected = _SLOTS.get(name, "").split()
    if len(expected) == 2 and all(isinstance(item, TensorRef) for item in node.items):
        return node, ""  # two slots of a parameter that is float32
    first, last = node.items
    state, master = (first, last) if name in _STATE_FIRST else (last, first)
    return (state, master.name) if isinstance(master, TensorRef) else (node, "")


def _slots(node: Node, name: str) -> tuple[Slot, ...] | None:
    """The slots of an entry; None where they are not those of its class."""
    items = node.items if isinstance(node, Listed) else (node,)
    words = _SLOTS[name].split() if name in _SLOTS else [str(k) for k in range(len(items))]
    if items == (Leaf(None),):
        return ()
    if len(items) > len(words) or (len(items) < len(words) and (name, len(items)) != ("RMSProp", 1)):
        return None
    slots = []
    for word, item in zip(words, items, strict=False):
        if isinstance(item, TensorRef):
            slots.append(Slot(word, _KINDS.get(word, "unknown"), item.name))
        elif item != Leaf(None) or any(tensor_names(item)):
            return None
    return tuple(slots)


def order(model: Checkpoint) -> Order | None:
    """The parameters of a file of MXNet in the order of a Trainer; None for other files, and other names."""
    if not model.format.startswith("mxnet"):
        return None
    views = model.views()
    own = {name: name.removeprefix(_PREFIXES[0]).removeprefix(_PREFIXES[1]) for name in views}
    if any("." in name for name in own.values()):
        return None
    trained = (n for n in views if not n.startswith(_PREFIXES[1]) and not _NOT_TRAINED.fullmatch(own[n]))
    ordered = sorted(trained, key=own.__getitem__)
    parameters = tuple(Parameter(name, views[name].shape) for name in ordered)
    aliases = {own[name]: name for name in ordered if own[name] != name}
    return Order(parameters, "the sorted names of collect_params", True, aliases=aliases)
