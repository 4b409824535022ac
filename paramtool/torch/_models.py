"""Files into models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import nn

from paramtool import formats
from paramtool.engine.source import Source
from paramtool.engine.verify import as_target
from paramtool.errors import PlanError, TieError, listed
from paramtool.jobs._progress import Path
from paramtool.jobs.loading import refuse_dataless
from paramtool.model import alias
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View
from paramtool.passes import select
from paramtool.torch._live import described, tensors_of
from paramtool.torch._tensors import batches


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load_model` did not find, and what it did not need."""

    missing: tuple[str, ...]
    """Names of the model that the file lacks and that no tied partner filled."""
    unexpected: tuple[str, ...]
    """Names of the file that the model lacks, and whose memory no other name brought in."""
    section: str
    """The section that was loaded; empty for the whole file."""


def load_model(model: nn.Module, path: Path, strict: bool = True, *, section: str | None = None) -> Loaded:
    """Fill a model from any readable checkpoint, in place.

    Every alias name of the file resolves.  A name that the file lacks is fine where a partner that the model ties it to
    was loaded; a name that the model lacks is fine where it shares the memory of one that was loaded.  Anything else
    is a PlanError when `strict`, and is reported otherwise.
    TieError where the model ties names that the file holds with different bytes; PlanError where shapes differ.
    Nothing is copied before everything was checked.
    """
    wanted = tensors_of(model)
    whole = formats.read(path)
    where = whole.files[0].path
    if unfit := [f"{name!r}: {why}" for name, tensor in wanted.items() if (why := _unfit(tensor))]:
        raise PlanError(listed(f"{where}: {len(unfit)} tensors of the model cannot be filled:", unfit))
    chosen_section = select.section_for(whole, wanted) if section is None else section
    checkpoint = whole if chosen_section is None else select.section(whole, chosen_section)
    present = {n: e for n, e in checkpoint.entries.items() if n in wanted}
    _check_shapes(where, present, wanted)
    refuse_dataless(replace(checkpoint, entries=present))
    ties = _model_graph(wanted)
    result = Loaded(
        missing=tuple(_missing(wanted, present, ties)),
        unexpected=tuple(_unexpected(checkpoint, present)),
        section=chosen_section or "",
    )
    if strict and (result.missing or result.unexpected):
        raise PlanError(f"{where}: {_explain(result, len(wanted))}", hint=_advice(wanted, checkpoint))
    chosen = replace(checkpoint, entries=present)
    with Source(checkpoint) as source, torch.no_grad():
        for storage in {int(view.storage) for _, view in chosen.windows()}:
            source.prove_later(storage)
        source.settle()
        _check_ties(where, source, chosen, wanted, ties)
        for batch in batches(source, chosen, "cpu"):
            for name, tensor in batch.items():
                wanted[name].copy_(tensor)
    return result


def _advice(wanted: Mapping[str, torch.Tensor], checkpoint: Checkpoint) -> str:
    """What to do where names do not meet: often all of them have one prefix, as DistributedDataParallel gives them."""
    first = next(iter(wanted), "")
    for name in checkpoint.entries:
        prefix = name.removesuffix(first)
        if prefix != name and prefix.endswith(".") and all(prefix + n in checkpoint.entries for n in wanted):
            return f"every name has the prefix {prefix!r} in the file: load it into the part of a model called so"
    return "strict=False loads what fits"


def _explain(result: Loaded, count: int) -> str:
    texts = []
    for names, what in (
        (result.missing, "lacks"),
        (result.unexpected, "holds, and the model does not want,"),
    ):
        if names:
            shown = ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            texts.append(f"{what} {len(names)} names ({shown})")
    return f"of {count} names of the model, the file " + "; it ".join(texts)


# --- models ----------------------------------------------------------------------------------------------------------


def _model_graph(tensors: Mapping[str, torch.Tensor]) -> alias.AliasGraph:
    """The alias graph of a model in memory: the same mathematics, on live storages."""
    return alias.build(described(tensors))


def _unfit(tensor: torch.Tensor) -> str:
    """Why a model's tensor cannot be filled in place, or nothing."""
    if nn.parameter.is_lazy(tensor):
        return "is lazy and has no shape yet; run the model once"
    if tensor.is_meta:
        return 'is on the meta device; model.to_empty(device="cpu") gives it memory'
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"is {'quantised' if tensor.is_quantized else tensor.layout}; only plain tensors are filled"
    if not View(0, DTYPES["uint8"], 0, tuple(tensor.shape), tuple(tensor.stride())).is_injective:
        return "is expanded: several of its elements are one; make it .contiguous() first"
    return ""


def _check_shapes(where: str, present: Mapping[str, Entry], wanted: Mapping[str, torch.Tensor]) -> None:
    wrong = []
    for name, entry in present.items():
        target = as_target(name, entry)
        shape = tuple(wanted[name].shape)
        if target is None:
            wrong.append(f"{name!r}: is a compound tensor in the file; the model wants a plain one")
        elif target.shape != shape and not (target.dtype.name == "float4_e2m1fn" and target.shape[:-1] == shape[:-1]):
            wrong.append(f"{name!r}: has shape {list(target.shape)} in the file; the model wants {list(shape)}")
        elif not _can_cast(target.dtype.name, wanted[name].dtype):
            wrong.append(f"{name!r}: is {target.dtype.name} in the file, which {wanted[name].dtype} cannot hold")
    if wrong:
        raise PlanError(listed(f"{where}: {len(wrong)} tensors do not fit the model:", wrong))


def _can_cast(name: str, dtype: torch.dtype) -> bool:
    """Whether numbers of one type keep their kind in another: float32 in bfloat16 yes, float32 in int64 no."""
    return not hasattr(torch, name) or torch.can_cast(getattr(torch, name), dtype)


def _missing(wanted: Mapping[str, torch.Tensor], present: Mapping[str, Entry], ties: alias.AliasGraph) -> Iterator[str]:
    """Names that the file lacks and that no loaded partner fills completely."""
    for name in wanted:
        if name in present or not wanted[name].numel():
            continue
        mine = ties.members[name]
        partners = (ties.members[n] for n in present if ties.members[n].memory == mine.memory)
        if not any(_covers(partner.source, mine.source) for partner in partners):
            yield name


def _covers(outer: View, inner: View) -> bool:
    """Whether filling `outer` fills all of `inner`."""
    if outer == inner:
        return True
    dense = outer.is_injective and outer.nbytes == outer.byte_stop - outer.byte_start
    return dense and outer.byte_start <= inner.byte_start and inner.byte_stop <= outer.byte_stop


def _unexpected(checkpoint: Checkpoint, present: Mapping[str, Entry]) -> Iterator[str]:
    """Names that the model lacks and that share no memory with one that is loaded."""
    graph = alias.build(checkpoint, parts=False)
    loaded = {graph.members[name].memory for name in present if name in graph.members}
    for name in checkpoint.entries:
        if name not in present and (name not in graph.members or graph.members[name].memory not in loaded):
            yield name


def _check_ties(
    where: str, source: Source, chosen: Checkpoint, wanted: Mapping[str, torch.Tensor], ties: alias.AliasGraph
) -> None:
    """Fill a copy of each memory that the model shares between loaded names; all of them must read back."""
    groups: dict[str, list[str]] = {}
    for name in chosen.entries:
        groups.setdefault(ties.members[name].memory, []).append(name)
    for names in groups.values():
        if len({(chosen.entries[n].value, ties.members[n].source) for n in names if _is_view(chosen, n)}) > 1:
            part = replace(chosen, entries={n: chosen.entries[n] for n in names})
            loaded = {n: t for batch in batches(source, part, "cpu") for n, t in batch.items()}
            _check_group(where, loaded, {n: wanted[n] for n in names})


def _is_view(chosen: Checkpoint, name: str) -> bool:
    return isinstance(chosen.entries[name].value, View)


def _check_group(where: str, loaded: Mapping[str, torch.Tensor], model: Mapping[str, torch.Tensor]) -> None:
    first = next(iter(model.values()))
    scratch = torch.zeros(first.untyped_storage().nbytes(), dtype=torch.uint8).untyped_storage()
    windows = {
        name: torch.empty(0, dtype=t.dtype).set_(scratch, t.storage_offset(), t.shape, t.stride())
        for name, t in model.items()
    }
    for name, tensor in loaded.items():
        windows[name].copy_(tensor)
    names = list(loaded)
    for k, name in enumerate(names):
        expected = loaded[name].to(windows[name].dtype)
        if _bytes(windows[name]) != _bytes(expected):
            other = next((n for n in reversed(names[k + 1 :]) if _touches(model[n], model[name])), names[-1])
            raise TieError(
                f"{where}: the model ties {name!r} and {other!r}, and the file holds them with different bytes"
                f"{_largest(loaded[name], loaded[other])}",
                hint="load into a model without this tie, or leave one of them out: paramtool export --names",
            )


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _touches(a: torch.Tensor, b: torch.Tensor) -> bool:
    graph = _model_graph({"a": a, "b": b})
    return graph.members["a"].memory == graph.members["b"].memory


def _largest(a: torch.Tensor, b: torch.Tensor) -> str:
    """The largest difference of two tensors of one shape, for the message."""
    if a.shape != b.shape or a.dtype.is_complex or b.dtype.is_complex:
        return ""
    return f" (largest difference {(a.double() - b.double()).abs().max().item():.3g})"
