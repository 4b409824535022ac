"""The names that the config of a model adds to a file: those that its class ties, and that its saver left out.

    model.safetensors   transformer.wte.weight, ...
    config.json         GPT2LMHeadModel, tie_word_embeddings is true
    checkpoint          transformer.wte.weight, ..., lm_head.weight = transformer.wte.weight, declared by config.json

Every checkpoint that is read goes through `with_config`, so every command knows these names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from paramtool.errors import some
from paramtool.formats import hf_config, object_tree
from paramtool.model import alias, objects
from paramtool.model.checkpoint import BY_CONFIG, Checkpoint
from paramtool.model.config import WORDS, Config, version
from paramtool.model.view import View

HEADS = ("head.weight", "decoder.weight", "output.weight", "embed_out.weight")
"""The ends of names of output heads."""
SHARD = r"-of-(?!00001)\d{5}\."
"""The name of a file that holds a part of a model: what it lacks is in the others."""


def with_config(checkpoint: Checkpoint) -> tuple[Checkpoint, list[str]]:
    """A checkpoint with the names that the config beside it ties to some of its own, where one tensor has them all.

    And notes: what the config says and the file does not show, or that it is damaged; FormatError if it was given.
    """
    path = checkpoint.path
    if checkpoint.uses or (len(checkpoint.files) == 1 and re.search(SHARD, path)):
        return checkpoint, []
    config, unread = hf_config.read_beside(path, hf_config.read)
    if config is None:
        return checkpoint, [unread] * bool(unread)
    entries = checkpoint.entries
    names: dict[str, str] = {}
    for group in config.class_ties(entries):
        held = {name: entries[name].value for name in group if name in entries}
        first = next(iter(held))
        if isinstance(held[first], View) and (first == group[0] or len({*held.values()}) == 1):
            names |= {name: first for name in group if name not in held}
    views = (one.value for one in entries.values() if one.role == "model")
    is_model = any(not isinstance(view, View) or "int" not in view.dtype.name for view in views)
    notes = [f"{config.path}: {text}" for text in _notes(config, entries)] if is_model else []
    return with_names(checkpoint, names, BY_CONFIG) or checkpoint, notes


def _notes(config: Config, names: Collection[str]) -> Iterator[str]:
    """What a config says of ties that the names of a file do not show."""
    says, because = config.says("", "")
    if says is None or "" not in config.model_types:
        return
    if not config.is_known:
        if says and config.architecture:
            yield (
                f"the ties of {config.architecture} are not in the table (of transformers {version()}); names that its "
                "saver left out stay unknown"
            )
        elif not config.architecture and because.startswith(WORDS) and not any(name.endswith(HEADS) for name in names):
            yield f"{because}, and no class is named (`architectures`): which names the model ties is not known"
        return
    denied = config.class_ties(names, says=False)
    for group in denied:
        if lacks := [name for name in group if name not in names]:
            yield f"{because}, and the file lacks {some(lacks, 3)}: a model that has it begins it with random numbers"
    if says and config.rows() and not config.class_ties(names):
        ties = config.rows()[0]
        tails = tuple(one.partition(".")[2] if one.count(".") > 1 else one for one in (*ties, *ties.values()))
        if not any(name.endswith(tails) for name in names):
            first = next(iter(ties.values()))
            yield f"{config.architecture} ties {first!r}, which the file lacks: it is of another model, or renamed"


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
