"""The names that the config of a model adds to a file: those that its class ties, and that its saver left out.

    model.safetensors   transformer.wte.weight, ...
    config.json         GPT2LMHeadModel, tie_word_embeddings is true
    checkpoint          transformer.wte.weight, ..., lm_head.weight = transformer.wte.weight, declared by config.json

Every checkpoint that is read goes through `with_config`, so every command knows these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paramtool.errors import FormatError
from paramtool.formats import hf_config, object_tree
from paramtool.model import alias, objects
from paramtool.model.checkpoint import BY_CONFIG, Checkpoint
from paramtool.model.config import given, version
from paramtool.model.view import View


def with_config(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint with the names that the config beside it ties to some of its own, where one tensor has them all.

    A config that is damaged is a note; FormatError if it was given.
    """
    if checkpoint.uses or not (path := hf_config.beside(checkpoint.files[0].path)):
        return checkpoint
    try:
        config = hf_config.read(path)
    except FormatError as error:
        if given():
            raise
        return replace(checkpoint, notes=(*checkpoint.notes, f"{error.message}; it was not used"))
    if config.architecture and not config.is_known and config.says("", "")[0]:
        note = (
            f"{path}: the ties of {config.architecture} are not in the table (of transformers {version()}); names that "
            "its saver left out stay unknown"
        )
        checkpoint = replace(checkpoint, notes=(*checkpoint.notes, note))
    names: dict[str, str] = {}
    for first, *others in config.class_ties(checkpoint.entries):  # save_pretrained keeps the first
        if first in checkpoint.entries and isinstance(checkpoint.entries[first].value, View):
            names |= {name: first for name in others if name not in checkpoint.entries}
    return with_names(checkpoint, names, BY_CONFIG) or checkpoint


def with_names(checkpoint: Checkpoint, names: Mapping[str, str], evidence: str = "declared") -> Checkpoint | None:
    """A checkpoint with more names for some of its tensors; None if it holds more than the tensors of one model.

    Such a checkpoint has no place for them.
    """
    if not names:
        return checkpoint
    order, tree = tuple(checkpoint.entries), checkpoint.objects
    bare = replace(tree, attributes=None) if isinstance(tree, objects.Mapping) else tree  # `_metadata` of a state dict
    if not object_tree.is_flat(bare, order):
        return None
    if isinstance(tree, objects.Mapping) and tree.items:
        tree = replace(tree, items=(*tree.items, *((name, objects.TensorRef(name)) for name in names)))
    return replace(checkpoint, entries=alias.with_declared(checkpoint, names, order[-1], evidence), objects=tree)
