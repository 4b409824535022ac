"""Files of save_pretrained, which transformers 5 writes under other names than its models have.

Some names are only renamed; some tensors are made of several of the file, or are parts of one:

    language_model.model.embed_tokens.weight          model.language_model.embed_tokens.weight     Gemma 3
    ...block_sparse_moe.experts.0.w2.weight, ...      ...mlp.experts.down_proj                     Mixtral

What becomes of which is a part of transformers (`conversion_mapping`, `core_model_loading`), and is asked there, name
by name, as from_pretrained does (`convert_and_load_state_dict_in_model`).  It is asked only of models of transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import field, replace
from typing import Any

import torch
from torch import nn

from paramtool.errors import plural
from paramtool.lazy_dataclass import dataclass, frozen
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.storage import ByteRange, Storage
from paramtool.model.view import Shapes, View
from paramtool.passes.compat.wanted import Wanted, plain_window, wanted_by
from paramtool.torch._live import Tensors, described, dtype_of, without_values
from paramtool.torch.tensors import torch_type


def as_saved(model: nn.Module, own: Tensors) -> tuple[Tensors, Tensors]:
    """Tensors of a state dict on the meta device, and what save_pretrained makes of these.

    A renamed tensor stays the same object.  Nothing of a model that is none of transformers.
    """
    if not is_of_transformers(model):
        return {}, {}
    mine = without_values(own)
    try:
        from transformers import core_model_loading as loading

        revert: Any = loading.revert_weight_conversion
        return mine, revert(model, dict(mine))
    except Exception:  # no such conversion, or one that needs values: the model's own names are all there is to say
        return mine, mine


def both_wanted(model: nn.Module, own: Tensors) -> tuple[Mapping[str, Wanted], Mapping[str, Wanted]]:
    """What a model has, and what files of save_pretrained hold of it; nothing where that is the same."""
    mine, saved = as_saved(model, own)
    return wanted_by(described(own)), wanted_by(described(saved)) if saved.keys() != mine.keys() else {}


def saved_names(model: nn.Module, own: Tensors) -> tuple[Mapping[str, str], Shapes]:
    """{name: the other name that files of save_pretrained have for the tensor}, and {name: shape} of what they hold in
    place of others."""
    mine, saved = as_saved(model, own)
    names = {id(tensor): name for name, tensor in saved.items() if name not in mine}
    renamed = {name: names[id(tensor)] for name, tensor in mine.items() if id(tensor) in names}
    known = {*renamed.values(), *mine}
    return renamed, {name: tuple(tensor.shape) for name, tensor in saved.items() if name not in known}


def is_of_transformers(model: nn.Module) -> bool:
    """Whether a model is one of transformers, told without importing it."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def config_of(model: nn.Module) -> Mapping[str, Any]:
    """The config of a model of transformers, as its config.json would be; empty if it has none."""
    try:
        config: dict[str, Any] = model.config.to_dict()  # type: ignore[union-attr, operator]
    except (AttributeError, TypeError):
        return {}
    return {**config, "architectures": [type(model).__name__]}


@dataclass(slots=True)
class Made:
    """Tensors of a model that are made of tensors of a file, all at once."""

    name: str
    """The first of them."""
    converter: Any
    model: nn.Module
    sources: dict[str, str] = field(default_factory=dict)
    """{name in the file: what the converter knows it as}, in the order in which it takes them."""

    def of(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """{name in the model: its tensor}, made of all sources."""
        converter = deepcopy(self.converter)
        for name, pattern in self.sources.items():
            converter.add_tensor(self.name, name, pattern, tensors[name])
        made = converter.convert(self.name, model=self.model, config=self.model.config)
        return {name: one[0] if isinstance(one, list) else one for name, one in made.items()}


@frozen
class RenamedCheckpoint:
    """A checkpoint with the names that a model has for what is in it."""

    part: Checkpoint
    """Names of the model; those that are made have a place on a storage without bytes."""
    made: Mapping[str, Made]
    """{name of the model: what makes it}."""
    sources: Checkpoint
    """The tensors of the file that others are made of."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """{name of the model: name in the file} of tensors that only get another name."""

    def in_file(self, name: str) -> str:
        """What of the file a tensor of the model is, for people; "" where it has the same name there."""
        if name in self.made:
            first, *more = self.made[name].sources
            return f" (made of {first!r}" + (f" and {plural(len(more), 'tensor')} more)" if more else ")")
        return f" ({self.renamed[name]!r} in the file)" if self.renamed.get(name, name) != name else ""

    def sources_of(self) -> Iterator[tuple[Made, Checkpoint]]:
        """What makes tensors, each with those that it takes."""
        for made in {id(made): made for made in self.made.values()}.values():
            entries = {name: self.sources.entries[name] for name in made.sources}
            yield made, replace(self.sources, entries=entries)


def unchanged(part: Checkpoint) -> RenamedCheckpoint:
    """A checkpoint whose names are those of the model."""
    return RenamedCheckpoint(part, {}, replace(part, entries={}))


def renamed(model: nn.Module, part: Checkpoint, own: Collection[str]) -> RenamedCheckpoint | None:
    """A checkpoint with its tensors under a model's own names, as from_pretrained gives them.

    None where the model is none of transformers, or where the names stay what they are.
    """
    if not is_of_transformers(model):
        return None
    try:
        from transformers import conversion_mapping
        from transformers import core_model_loading as loading

        mapping: Any = conversion_mapping.get_model_conversion_mapping
        rules = mapping(model)
        renamings = [rule for rule in rules if isinstance(rule, loading.WeightRenaming)]
        converters: list[Any] = [rule for rule in rules if isinstance(rule, loading.WeightConverter)]
    except (ImportError, AttributeError):  # this version has none
        return None
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    names: dict[str, str] = {}
    groups: dict[str, Made] = {}
    for name in sorted(part.entries, key=loading.dot_natural_key):
        new, pattern = loading.rename_source_key(name, renamings, converters)
        if new not in own:
            names[name] = name
        elif pattern is None:
            names[name] = new
        else:
            groups.setdefault(new, Made(new, by_pattern[pattern], model)).sources[name] = pattern
    taken: dict[str, str] = {}
    for name, new in names.items():  # two names of the file for one of the model: the first keeps it
        names[name] = new if taken.setdefault(new, name) == name else name
    entries: dict[str, Entry] = {}
    storages = dict(part.storages)
    number = max(storages, default=-1)
    makers: dict[str, Made] = {}
    for group in groups.values():
        try:
            views = ((name, plain_window(part.entries[name].value)) for name in group.sources)
            plain = {name: view for name, view in views if view is not None}
            made = group.of({n: torch.empty(v.shape, dtype=torch_type(v), device="meta") for n, v in plain.items()})
        except Exception:  # sources are lacking, or are of shapes that do not fit: they stay under their names
            names |= {name: name for name in group.sources}
            continue
        for name, tensor in made.items():
            number += 1
            dtype = dtype_of(tensor.dtype)
            nbytes = tensor.numel() * dtype.block_bytes
            storages[number] = Storage(number, nbytes, ByteRange("", 0, nbytes))
            entries[name] = Entry(View(number, dtype, 0, tuple(tensor.shape), tuple(tensor.contiguous().stride())))
            makers[name] = group
    entries |= {names[name]: entry for name, entry in part.entries.items() if name in names}
    if not makers and all(name == new for name, new in names.items()):
        return None
    sources = {name: part.entries[name] for group in makers.values() for name in group.sources}
    part_of_model = replace(part, entries=entries, storages=storages)
    in_file = {new: name for name, new in names.items() if name in part.entries}
    return RenamedCheckpoint(part_of_model, makers, replace(part, entries=sources), in_file)
