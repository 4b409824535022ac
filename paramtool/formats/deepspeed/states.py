"""What the files of one rank say: model states and optimizer states, out of their trees.

    {"module": {"emb.weight": T}, "param_shapes": [{"emb.weight": Size}], "frozen_param_shapes": {...},
     "frozen_param_fragments": {...}, "shared_params": {"head.weight": "emb.weight"}, "global_steps": 2, ...}

    {"optimizer_state_dict": {"base_optimizer_state": {"state": {0: {"step": T, "exp_avg": T}}, "param_groups": [...]},
                              "single_partition_of_fp32_groups": [T], "partition_count": [2], "zero_stage": 1, ...}}

Stage 3 calls the two in the middle `optimizer_state_dict` and `fp32_flat_groups`.

Sources: `_common_checkpoint_state` in deepspeed/runtime/engine.py; `state_dict` in runtime/zero/stage_1_and_2.py,
runtime/bf16_optimizer.py (which has no `zero_stage`), and `_rigid_state_dict` in runtime/zero/stage3.py, of 0.19.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Map
from math import prod

from paramtool.errors import Defects, FormatError
from paramtool.formats.torch import read as torch_read
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, Unknown
from paramtool.model.objects import Key, Leaf, Mapping, Node, Opaque, Sequence, TensorRef, part, under, word
from paramtool.model.view import MAX_AXES, Shape, Shapes, View, Views

OPTIMIZER = "optimizer_state_dict"
BASES = ("base_optimizer_state", OPTIMIZER)
MASTERS = ("single_partition_of_fp32_groups", "fp32_flat_groups")
LAYOUT = (
    *BASES, *MASTERS, "zero_stage", "group_paddings", "param_alignment_paddings", "partition_count",
    "param_slice_mappings", "ds_zero_partition_groups", "ds_version",
)  # fmt: skip
"""What says how ranks share the state, and nothing of the state itself; and the version, as in the model states."""


@frozen
class ModelStates:
    """The model states of a rank."""

    file: Checkpoint
    module: Map[str, str]
    """{name in the module: its tensor's name in the file}, in the order of the file."""
    shapes: tuple[Shapes, ...]
    """`param_shapes`: of each group, in the order in which they are in the flat group."""
    frozen: Shapes
    fragments: Map[str, str]
    """{frozen parameter: the tensor with its slice}, of stages 2 and 3."""
    shared: Map[str, str]
    """{name that the file does not store: the name that holds its data}."""


@frozen
class OptimizerStates:
    """The optimizer states of a rank."""

    file: Checkpoint
    base: str
    """The path of the mapping with `state` and `param_groups`."""
    stage: int
    counts: tuple[int, ...]
    """How many ranks share each group; one number for all groups in stage 3."""
    masters: tuple[View | None, ...]
    """The float32 parameters of each flat group; None where it is no plain vector."""
    states: tuple[Map[str, Node], ...]
    """{slot: what is kept} of each flat group."""
    groups: Node | None
    """`param_groups`."""
    aligned: tuple[tuple[int, ...], ...]
    """The padding after each parameter of a group, empty where there is none."""
    mappings: tuple[Map[str, tuple[int, int]], ...]
    """{parameter: first element and number of elements} of each group; empty where the file has none."""
    rest: tuple[tuple[Key, Node], ...]
    """What else is kept: the loss scaler, the limit of gradients."""


def read_file(path: str, findings: Findings) -> Checkpoint | None:
    """Describe one file; None, with a line, where that is impossible."""
    try:
        found = torch_read.read(path)
    except FormatError as error:
        findings.add(f"{file_name(path)}: {error.message.replace(f'{path}: ', '')}")
        return None
    findings.asked += found.unknown
    return found


def file_name(path: str) -> str:
    """The name of a file."""
    return path.replace("\\", "/").rpartition("/")[2]


def model_states(path: str, findings: Findings) -> ModelStates | None:
    """The model states in a file; None, with lines, where it has something else."""
    file = read_file(path, findings)
    if file is None:
        return None
    top, name = file.objects, file_name(file.path)
    module = under(top, "module")
    if not isinstance(module, Mapping):
        findings.add(f"{name}: has no `module`; expected the tensors of a model")
        return None
    shapes = [_shapes(one) for one in items(under(top, "param_shapes"))]
    frozen = _shapes(under(top, "frozen_param_shapes"))
    if None in shapes or frozen is None:
        findings.add(f"{name}: its `param_shapes` or `frozen_param_shapes` are not names with shapes")
        return None
    shared = {key: value.value for key, value in pairs(under(top, "shared_params")) if isinstance(value, Leaf)}
    return ModelStates(
        file=file,
        module={key: found for key, value in pairs(module) if (found := tensor(value))},
        shapes=tuple(one for one in shapes if one is not None),
        frozen=frozen,
        fragments={
            key: found for key, value in pairs(under(top, "frozen_param_fragments")) if (found := tensor(value))
        },
        shared={key: value for key, value in shared.items() if isinstance(value, str)},
    )


def _shapes(node: Node | None) -> dict[str, Shape] | None:
    """{name: shape}; empty for None, and None for something else."""
    if is_none(node):
        return {}
    found = {key: wholes(value) for key, value in pairs(node)}
    shapes = {
        key: shape
        for key, shape in found.items()
        if shape is not None and len(shape) <= MAX_AXES and prod(size or 1 for size in shape) < MAX_NUMEL
    }
    return shapes if isinstance(node, Mapping) and len(shapes) == len(found) else None


def optimizer_states(path: str, findings: Findings) -> OptimizerStates | None:
    """The optimizer states in a file; None, with a line, where it has something else."""
    file = read_file(path, findings)
    if file is None:
        return None
    name = file_name(file.path)
    top = under(file.objects, OPTIMIZER)
    held = dict(pairs(top))
    key = next((key for key in BASES if key in held), "")
    base = held.get(key)
    masters = next((held[key] for key in MASTERS if key in held), None)
    count = held.get("partition_count")
    counts = wholes(count) or tuple(one for one in [whole(count)] if one is not None)
    experts = [whole(under(one, "partition_count")) for one in items(held.get("ds_zero_partition_groups"))]
    stage = whole(held["zero_stage"]) if "zero_stage" in held else 1
    if base is None or masters is None or not counts or stage not in (1, 2, 3):
        findings.add(f"{name}: does not have the state of ZeRO, stage 1, 2 or 3, in `{OPTIMIZER}`")
        return None
    views = file.views()
    return OptimizerStates(
        file=file,
        base=f"{OPTIMIZER}.{key}",
        stage=stage,
        counts=(*counts, *(one for one in experts if one is not None)),
        masters=tuple(vector(views, item) for item in items(masters)),
        states=_states(base, len(items(masters))),
        groups=under(base, "param_groups"),
        aligned=tuple(wholes(one) or () for one in items(held.get("param_alignment_paddings"))),
        mappings=tuple(_addresses(one) for one in items(held.get("param_slice_mappings"))),
        rest=tuple((key, held[key]) for key in held if key not in LAYOUT),
    )


def _states(base: Node, count: int) -> tuple[Map[str, Node], ...]:
    """{slot: what is kept} of each of `count` flat groups, in order, and one more if there is state for no group.

    A list is that of an elastic checkpoint.
    """
    state = under(base, "state")
    if isinstance(state, Mapping):
        by_number = {key: dict(pairs(value)) for key, value in state.items}
        known = tuple(by_number.pop(k, {}) for k in range(count))
        return (*known, *list(by_number.values())[:1])
    return tuple(dict(pairs(one)) for one in items(base))


def vector(views: Views, node: Node | None) -> View | None:
    """The view of a vector without gaps; None for anything else."""
    view = views.get(tensor(node))
    return view if view is not None and len(view.shape) == 1 and view.is_contiguous else None


def _addresses(node: Node) -> dict[str, tuple[int, int]]:
    """{parameter: (first element, number of elements)}, from `fragment_address`."""
    found = {}
    for key, value in pairs(node):
        state = part(value, "state")
        start, numel = whole(under(state, "start")), whole(under(state, "numel"))
        if start is not None and numel is not None:
            found[key] = start, numel
    return found


# --- Plain values in the tree of a file of DeepSpeed, and the defects of a folder, gathered ---------------------------


MAX_NUMEL = 1 << 60
"""More elements than any file has."""


class Findings:
    """What is wrong with a folder, a line each, and the unknown names in its files."""

    def __init__(self, folder: str, hint: str) -> None:
        self.folder, self.hint = folder, hint
        self.lines: list[str] = []
        self.asked: list[Unknown] = []

    def add(self, line: str) -> None:
        """One more, once."""
        if line not in self.lines:
            self.lines.append(line)

    def refuse(self) -> None:
        """Defects if there is any."""
        if self.lines:
            raise Defects(self.folder, self.lines, self.hint)


def items(node: Node | None) -> tuple[Node, ...]:
    """The items of a list or tuple; of anything else none."""
    return node.items if isinstance(node, Sequence) else ()


def pairs(node: Node | None) -> Iterator[tuple[str, Node]]:
    """The items of a mapping, with their keys as strings."""
    if isinstance(node, Mapping):
        yield from ((word(key), value) for key, value in node.items)


def is_none(node: Node | None) -> bool:
    """Whether there is nothing, or None."""
    return node is None or node == Leaf(None)


def whole(node: Node | None) -> int | None:
    """A whole number, also of an enum; None for anything else."""
    if isinstance(node, Opaque):
        found = items(part(node, "args"))
        node = found[0] if len(found) == 1 else None
    value = node.value if isinstance(node, Leaf) else None
    return value if type(value) is int and 0 <= value < MAX_NUMEL else None


def wholes(node: Node | None) -> tuple[int, ...] | None:
    """A list of whole numbers; None for anything else."""
    found = [whole(item) for item in items(node)]
    if not isinstance(node, Sequence) or None in found:
        return None
    return tuple(number for number in found if number is not None)


def tensor(node: Node | None) -> str:
    """The name of a tensor, also of one with attributes; empty for anything else."""
    if isinstance(node, Opaque):
        node = part(node, "data")
    return node.name if isinstance(node, TensorRef) else ""
