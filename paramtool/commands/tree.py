"""The modules of a checkpoint, each with the tensors, parameters and bytes below it; what is shared counts once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING

from paramtool.commands.inspect import parameter
from paramtool.lazy_dataclass import dataclass
from paramtool.model.view import Views

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection


@dataclass(slots=True)
class TreeNode:
    """A module, with everything below it."""

    path: str
    """The names of its tensors begin with it; empty for the whole."""
    name: str
    """The part of the path behind that of the module above; several parts where those between have nothing else."""
    tensors: int = 0
    parameters: int = 0
    nbytes: int = 0
    """Of tensors that no earlier module shares."""
    shared: dict[str, str] = field(default_factory=dict)
    """{a tensor below it: the tensor counted elsewhere, earlier, that it shares memory with}."""
    children: dict[str, TreeNode] = field(default_factory=dict)

    def walk(self, depth: int | None = None, level: int = 0) -> Iterator[tuple[int, TreeNode]]:
        """(level, module) of this module and those below it, down to a depth."""
        yield level, self
        if depth is None or level < depth:
            for child in self.children.values():
                yield from child.walk(depth, level + 1)


def tree(found: Inspection) -> TreeNode:
    """The modules of what `inspect` found, in the order of the file."""
    names = found.checkpoint.entries
    separator = "." if any("." in name for name in names) else "/"
    root = TreeNode("", "")
    first: dict[str, str] = {}
    weights = found.quantised
    for name, entry in names.items():
        counted, nbytes = _bytes(found, name)
        owner = first.setdefault(counted, name)
        view = parameter(name, entry)
        elements = weights.get(name, view.numel if view is not None else 0)
        above = _modules(root, name.split(separator)[:-1], separator)
        for module in above:
            module.tensors += 1
            if owner == name:
                module.nbytes += nbytes
                module.parameters += elements or 0
            elif not owner.startswith(f"{module.path}{separator}" if module.path else ""):
                module.shared[name] = owner
    # One line for modules of which each has nothing but the next; children after it.
    stack = [root]
    while stack:
        one = stack.pop()
        for key, child in one.children.items():
            joined = child
            while (
                len(joined.children) == 1 and (only := next(iter(joined.children.values()))).tensors == joined.tensors
            ):
                only.name = f"{joined.name}{separator}{only.name}"
                joined = only
            one.children[key] = joined
            stack.append(joined)
    return root


def _bytes(found: Inspection, name: str) -> tuple[str, int]:
    """What a tensor counts as, and its bytes: those of its owner, which every name on it has in common."""
    graph = found.graph
    alias = graph.names.get(name)
    if alias is None:
        views = found.checkpoint.entries[name].value
        parts: Views = getattr(views, "parts", {})
        return name, sum(view.nbytes for view in parts.values())
    return alias.owner, graph.owners[alias.owner].nbytes


def _modules(root: TreeNode, parts: list[str], separator: str) -> list[TreeNode]:
    """The modules on the way to a tensor, the root first."""
    found = [root]
    for part in parts:
        above = found[-1]
        path = f"{above.path}{separator}{part}" if above.path else part
        found.append(above.children.setdefault(part, TreeNode(path, part)))
    return found
