"""For people with MXNet Gluon, 1.x or 2: the weights of any readable checkpoint in a block.

    paramtool.mxnet.load_into(block, path)    the same plan as `paramtool convert --into`

The only module that imports MXNet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mxnet

from paramtool.commands import live
from paramtool.commands.live import LoadedInto
from paramtool.commands.progress import Path
from paramtool.errors import UsageError
from paramtool.layouts import find
from paramtool.layouts.networks import Network, network
from paramtool.model import conventions
from paramtool.model.checkpoint import LayerPart
from paramtool.model.view import Shapes

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LoadedInto", "load_into"]
KINDS = {
    "Dense": "dense",
    "Embedding": "embedding",
    "BatchNorm": "batchnorm",
    "LayerNorm": "layernorm",
    "GroupNorm": "groupnorm",
    **{f"Conv{k}D": "conv" for k in (1, 2, 3)},
    **{f"Conv{k}DTranspose": "conv_transposed" for k in (1, 2, 3)},
}
"""{class of a block: its kind in `model.conventions`}; convolutions have one form, whatever their groups."""
RECURRENT = ("LSTM", "GRU", "RNN")
FLAT = "rnn_param"
"""The one parameter of a recurrent layer of MXNet 2."""


def load_into(
    block: mxnet.gluon.Block, path: Path, *, map: Sequence[str] = (), source: str | None = None, spec: str = "",
    strict: bool = False, only: str | None = None, weights: str | None = None, flatten: str = "", partial: bool = False,
) -> LoadedInto:  # fmt: skip
    """Fill an initialized Gluon block from a checkpoint of any format, in MXNet's layouts.

    The keywords are those of `paramtool.convert`: `map` says what goes where if names and shapes do not, `source` and
    `spec` what the file does not say of its networks; `strict` refuses to leave a weight of the block as it was.
    LayoutError if something does not fit or is ambiguous; the block is unchanged then.  UsageError for a block with a
    parameter of unknown shape: run it once first.
    """
    options = live.options(locals())
    parameters = getattr(block, "_collect_params_with_prefix", block.collect_params)()
    if unknown := [name for name, one in parameters.items() if one.shape is None or min(one.shape, default=1) < 1]:
        raise UsageError(f"{unknown[0]!r} has no shape yet", hint="initialize the block and run it once")
    tensors = {name: (_dtype(one), tuple(one.shape)) for name, one in parameters.items()}
    blocks = dict(_blocks(block, ""))
    parts: dict[str, LayerPart] = {}
    for at, inside in blocks.items():
        rows = conventions.of_kind(KINDS.get(type(inside).__name__, ""), "mxnet")
        for row in rows:
            for own, said in row.tensors.items():
                is_fixed = own == "gamma" and getattr(inside, "_kwargs", {}).get("fix_gamma", False)
                parts[f"{at}.{own}".lstrip(".")] = LayerPart(at, row.kind, *said, is_state=is_fixed)
    model = live.described(tensors, parts)
    flat = list(_flat(blocks, {name: shape for name, (_, shape) in tensors.items()}))
    named = flat or live.networks_by_names(model, "mxnet.unfused", "mxnet.cell")

    def put(arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        for name, array in arrays.items():
            parameters[name].set_data(array)

    return live.values(path, model, options, put, networks=named)


def _dtype(parameter: Any) -> str:
    """The name of a parameter's dtype, which may be NumPy's class."""
    return str(getattr(parameter.dtype, "__name__", parameter.dtype))


def _blocks(block: Any, at: str) -> Iterator[tuple[str, Any]]:
    """(path, block) of a block and of all inside it."""
    yield at, block
    for name, child in block._children.items():
        inside = (
            child() if callable(child) and not isinstance(child, mxnet.gluon.Block) else child
        )  # 2: weak references
        yield from _blocks(inside, f"{at}.{name}".lstrip("."))


def _flat(blocks: Mapping[str, Any], shapes: Shapes) -> Iterator[Network]:
    """The recurrent layers of MXNet 2, of which only the block knows the sizes."""
    for at, inside in blocks.items():
        name = f"{at}.{FLAT}".lstrip(".")
        if type(inside).__name__ not in RECURRENT or name not in shapes:
            continue
        mode = inside._mode
        facts = {
            "kind": mode.partition("_")[0],
            "hidden": inside._hidden_size,
            "input": inside._input_size,
            "layers": inside._num_layers,
            "bidirectional": inside._dir == 2,
        }
        if mode.startswith("rnn"):
            facts["activation"] = mode.partition("_")[2]
        if getattr(inside, "_projection_size", None):
            facts["projection"] = inside._projection_size
        layout = find("mxnet.v2")
        yield network(layout, {}, at, shapes, facts=facts, tensors={layout.forms[0].tensors[0].name: name})
