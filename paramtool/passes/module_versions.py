"""What a state dict of torch says beside tensors: it is an OrderedDict with the versions of its modules.

Programs that make a plain dict of it, or rename its keys, lose the versions or keep those of other names.  Source:
`torch.nn.Module.state_dict`, whose dict has an attribute `_metadata` of {module: {"version": number}}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from paramtool.errors import some
from paramtool.model.objects import Mapping, Node, Pairs, Swaps, map_children, swap, tensor_names, walk, word
from paramtool.passes.objects_text import canonical

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


def moved_versions(
    versions: Mapping, names: Iterable[tuple[str, str]], stay: bool = False
) -> tuple[Mapping, list[str]]:
    """The versions of modules under new names, and the modules whose tensors did not move together.

    These have none, or with `stay` those that they had, also where one becomes several.  `names` are (new name, old
    name).  A module without tensors of its own goes where most of those below it go; one without any follows the module
    that it is in.

    >>> held = Mapping("dict", (("", 1), ("bn", 2), ("bn.act", 1), ("fc", 1)))
    >>> names = [("net.norm.weight", "bn.weight"), ("net.norm.bias", "bn.bias"), ("fc.weight", "fc.weight")]
    >>> moved, lost = moved_versions(held, [*names, ("b", "fc.bias")])
    >>> [key for key, _ in moved.items], lost
    (['', 'net.norm', 'net.norm.act'], ['fc'])
    """
    below: dict[str, dict[str, list[str]]] = {}
    """{module: {the rest of an old name below it: its new names}}"""
    for new, old in names:
        words = old.split(".")
        for k in range(len(words)):
            below.setdefault(".".join(words[:k]), {}).setdefault(".".join(words[k:]), []).append(new)
    found: dict[str, set[str]] = {}
    """{module with tensors: where it goes}"""
    for key, _ in versions.items:
        if not (every := below.get(at := f"{key!s}")):
            continue
        own = {rest: new for rest, new in every.items() if "." not in rest}
        fit = [
            {f".{name}".removesuffix(f".{rest}")[1:] for name in new if f".{name}".endswith(f".{rest}")}
            for rest, new in (own or every).items()
        ]
        most = Counter(place for those in fit for place in those).most_common(1)
        there = set.intersection(*fit) if own else {one for one, _ in most}
        found[at] = {at} if at in there else set() if stay and len(there) > 1 else there
    several = {place for place, count in Counter(one for those in found.values() for one in those).items() if count > 1}
    places: dict[str, list[str]] = {}
    for key, _ in versions.items:
        up, _, word = (at := f"{key!s}").rpartition(".")
        there = found.get(at, {f"{one}.{word}".lstrip(".") for one in places.get(up, ())}) - several
        places[at] = sorted(there) or [at] * stay
    lost = [at for at, those in found.items() if not those - several]
    moved = {new: one for key, one in versions.items for new in places[f"{key!s}"]}
    return replace(versions, items=tuple(moved.items())), lost


def exchanged(tree: Node, swaps: Swaps, made: dict[str, list[str]]) -> Node:
    """`objects.swap` of a tree; modules whose tensors move together have their versions where these are.

    `made` is {old name: the new tensors that are made of it, with others}, which `swaps` does not say.
    """

    def moved(node: Node, at: str) -> Node:
        if not isinstance(node, Mapping):
            return node
        node = replace(node, items=tuple((key, moved(child, f"{at}{word(key)}.")) for key, child in node.items))
        if not isinstance(versions := next(_versions(replace(node, items=())), None), Mapping):
            return node
        pairs = ((new, old) for old in tensor_names(node) for new in made.get(old) or swaps.get(old, (old,)))
        new, _ = moved_versions(versions, ((new.removeprefix(at), old.removeprefix(at)) for new, old in pairs), True)
        attributes = node.attributes and map_children(node.attributes, lambda one: new if one is versions else one)
        return replace(node, attributes=attributes)

    return swap(moved(tree, ""), swaps)


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
    """That one of two files alone has versions, or those of other modules, as a difference of metadata.

    `found` is the output, as elsewhere.
    """
    mine, theirs = (tuple(_versions(node)) for node in (found, expected))
    if mine != theirs:
        if mine and theirs:
            said = "has other modules or versions than that of the source"
        else:
            said = f"is in the {'output' if mine else 'source'} only"
        yield f"metadata {ATTRIBUTE!r} of the state dict: {said}"


def by_module(tree: Node, at: str = "") -> Mapping:
    """The versions of all state dicts in a tree, by the names of modules that begin as those of their tensors do."""
    found: Pairs = ()
    if isinstance(tree, Mapping):
        if isinstance(said := versions_of(tree), Mapping):
            found = tuple((f"{at}.{key!s}".strip("."), one) for key, one in said.items)
        for key, child in tree.items:
            found += by_module(child, f"{at}.{word(key)}".strip(".")).items
    return Mapping("dict", found)


def other_versions(old: Node, new: Node, names: Iterable[tuple[str, str]]) -> list[str]:
    """Modules that both trees give a version and not the same, by which `load_state_dict` may read tensors otherwise.

    `names` are (new name, old name) of tensors.  A file without versions, or without those of a module, says nothing.
    """
    before, after = by_module(old), dict(by_module(new).items)
    if not before.items or not after:
        return []
    moved, _ = moved_versions(before, names)
    return [f"{name!s}" for name, said in moved.items if name in after and canonical(said) != canonical(after[name])]


def _versions(node: Node) -> Iterator[Node]:
    for one in walk(node):
        if isinstance(one, Mapping) and one.kind in DICTS and isinstance(one.attributes, Mapping):
            yield from (value for key, value in one.attributes.items if key == ATTRIBUTE)
