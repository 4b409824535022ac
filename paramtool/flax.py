"""For people with flax: the weights of any readable checkpoint as a tree like that of a model.

    paramtool.flax.load(path, like=params)    the same plan as `paramtool convert --into`

Nothing here imports flax or JAX: a tree is nested dicts of arrays, or of anything with a shape and a dtype.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paramtool.commands import live
from paramtool.commands.progress import Path
from paramtool.errors import UsageError
from paramtool.model import conventions
from paramtool.model.checkpoint import LayerPart

if TYPE_CHECKING:
    import numpy as np

__all__ = ["load"]
COLLECTIONS = ("params", "batch_stats")
CONVOLUTION = re.compile(r"[Cc]onv_?\d*")
"""Names of convolutions, flax' own (`Conv_0`) and such as `conv1`.  Others (`conv_up`) may be transposed ones."""
NORM = {"scale", "bias"}


def load(
    path: Path, *, like: Mapping[str, Any], map: Sequence[str] = (), source: str | None = None, spec: str = "",
    strict: bool = True, only: str | None = None, weights: str | None = None, flatten: str = "", partial: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The weights of a checkpoint of any format as nested dicts of NumPy arrays, with the names and shapes of `like`.

    `like` is what `model.init` returns, or its `params`; with `strict=False` its own leaves stay where the file has
    nothing.  Names of tensors in `map` are paths, `params/Dense_0/kernel`.  The other keywords are those of
    `paramtool.convert`.  LayoutError if something does not fit or is ambiguous.
    """
    options = live.options(locals())
    leaves = dict(_leaves(like, ()))
    tensors = {name: (str(leaf.dtype), tuple(leaf.shape)) for name, leaf in leaves.items()}
    model = live.described(tensors, _parts(tensors))
    found: dict[str, np.ndarray[Any, Any]] = {}
    live.values(path, model, options, found.update, networks=live.networks_by_names(model, "flax.linen", "flax.nnx"))
    tree: dict[str, Any] = {}
    for name in leaves:
        *groups, last = name.split("/")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = found.get(name, leaves[name])
    return tree


def _leaves(tree: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """(path, leaf) of a tree of dicts; UsageError for keys that no path has."""
    for key, value in tree.items():
        if not isinstance(key, str) or "/" in key:
            raise UsageError(f"like: found the key {key!r:.100}; expected names without '/'")
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, key))
        else:
            yield "/".join((*above, key)), value


def _parts(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, LayerPart]:
    """What the names of flax say of each tensor."""
    groups: dict[str, dict[str, str]] = {}
    for name in tensors:
        path, _, own = name.rpartition("/")
        first, _, rest = path.partition("/")
        groups.setdefault(rest if first in COLLECTIONS else path, {})[own] = name
    found: dict[str, LayerPart] = {}
    for layer, names in groups.items():
        kind = _kind(layer.rpartition("/")[2], names.keys(), max(len(tensors[name][1]) for name in names.values()))
        rows = conventions.of_kind(kind, "flax")
        for own, name in names.items():
            said = rows[0].tensors.get(own) if rows else None
            found[name] = LayerPart(layer, kind, *said) if said else LayerPart(layer, "", own)
    return found


def _kind(word: str, own: Any, rank: int) -> str:
    """The kind of a layer by the names of its tensors; of a convolution by its own, as a transposed one is mirrored."""
    if "kernel" in own and own <= {"kernel", "bias"}:
        is_conv = rank > 2 and CONVOLUTION.fullmatch(word)
        return "dense" if rank == 2 else "conv" if is_conv else ""
    if own == {"embedding"}:
        return "embedding"
    if {"mean", "var"} <= own:
        return "batchnorm"
    return "layernorm" if own <= NORM and "scale" in own else ""
