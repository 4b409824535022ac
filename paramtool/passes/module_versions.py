"""What a state dict of torch says beside tensors: it is an OrderedDict with the versions of its modules.

Programs that make a plain dict of it, or rename its keys, lose the versions or keep those of other names.  Source:
`torch.nn.Module.state_dict`, whose dict has an attribute `_metadata` of {module: {"version": number}}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from paramtool.errors import some
from paramtool.model.objects import Mapping, Node, map_children, walk

ATTRIBUTE = "_metadata"
MANY = 5
DICTS = ("dict", "collections.OrderedDict")


def versions_of(tree: Node, prefix: str = "", short: Callable[[str], str] = str) -> Node | None:
    """The versions of modules in a state dict, by the names of those under a prefix, which `short` makes shorter.

    None where it has none.
    """
    found = next(_versions(replace(tree, items=())), None) if isinstance(tree, Mapping) else None
    if not isinstance(found, Mapping):
        return found
    names = ((f"{key!s}." if key else "", child) for key, child in found.items if f"{key!s}.".startswith(prefix))
    return replace(found, items=tuple((short(name.removeprefix(prefix)).removesuffix("."), one) for name, one in names))


def lost_versions(tree: Node) -> Iterator[str]:
    """What an output without objects does not say of modules, for people."""
    if any(_versions(tree)):
        yield f"the versions of modules ({ATTRIBUTE!r}), by which load_state_dict knows older tensors"


def renamed_versions(tree: Node, old: Iterable[str], new: Iterable[str]) -> Iterator[str]:
    """What an output says only of modules that its tensors are no more in, for people."""
    before, after = (" ".join(f".{name}" for name in names) for names in (old, new))
    keys = (f"{key!s}" for found in _versions(tree) if isinstance(found, Mapping) for key, _ in found.items)
    if gone := [key for key in keys if key and f".{key}." in before and f".{key}." not in after]:
        yield f"the versions of modules that were renamed: {ATTRIBUTE!r} has {some(gone, MANY)}"


def without_versions(node: Node) -> Node:
    """A tree without the versions of modules, in which the two classes of dicts are one."""
    changed = map_children(node, without_versions)
    if not isinstance(changed, Mapping) or changed.kind not in DICTS:
        return changed
    attributes = changed.attributes
    if isinstance(attributes, Mapping):
        left = tuple(pair for pair in attributes.items if pair[0] != ATTRIBUTE)
        attributes = replace(attributes, items=left) if left else None
    return replace(changed, kind=DICTS[0], attributes=attributes)


def version_differences(found: Node, expected: Node) -> Iterator[str]:
    """That the versions of modules differ, as a difference of metadata; `found` is the output, as elsewhere."""
    mine, theirs = (tuple(_versions(node)) for node in (found, expected))
    if mine != theirs:
        if mine and theirs:
            said = "has other modules or versions than that of the source"
        else:
            said = f"is in the {'output' if mine else 'source'} only"
        yield f"metadata {ATTRIBUTE!r} of the state dict: {said}"


def _versions(node: Node) -> Iterator[Node]:
    for one in walk(node):
        if isinstance(one, Mapping) and one.kind in DICTS and isinstance(one.attributes, Mapping):
            yield from (value for key, value in one.attributes.items if key == ATTRIBUTE)
