"""Which models can load a checkpoint, asked with the models themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from paramtool.commands import variants as variants_command
from paramtool.commands.progress import Path
from paramtool.commands.variants import Asked, Variant
from paramtool.engine.read.source import Source
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import reading
from paramtool.passes.compat.check import TieQuestion, TypeClash, Verdict
from paramtool.torch._asking import ask, judged
from paramtool.torch._live import refuse_opaque, tensors_of
from paramtool.torch._protocol import held_of
from paramtool.torch._saved_names import both_wanted, config_of, is_of_transformers, unchanged

Against = nn.Module | Path


@reading
def variants(
    models: Against | Sequence[Against],
    path: Path,
    *,
    only: str | None = None,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
) -> tuple[Variant, ...]:
    """What each model makes of a checkpoint, before it is loaded; nothing in the models changes.

    A model is an nn.Module, which may be on the meta device, or whatever `paramtool.variants` takes: a list of names, a
    checkpoint, a config.json of transformers.  ModelError where a model has tensors that `load_model` cannot fill;
    other errors as of `paramtool.variants`.
    """
    given = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    asked = [_asked(one) if isinstance(one, nn.Module) else one for one in given]
    return variants_command.variants(path, asked, only=only, allow_class=allow_class, allow_unknown=allow_unknown)


def _asked(model: nn.Module) -> Asked:
    label = type(model).__name__
    tensors = tensors_of(model)
    own, saved = both_wanted(model, tensors)

    def judge(part: Checkpoint, whole: Checkpoint) -> tuple[Verdict, tuple[TieQuestion, ...]]:
        held = held_of(model, tensors, part, None, "")
        held = replace(held, named=unchanged(held.as_it_is))
        with Source(held.part) as source:
            asked = ask(model, tensors, held, source)
            refuse_opaque(tensors, asked.types)
            verdict, questions = judged(own, held, whole, asked)
        if asked.is_unknown:
            why = f"only loading shows what the code of {label} makes of these names"
            verdict = replace(verdict, lacks=(), unused=(), advice=why)
        strange = (TypeClash(name, what, "what is made without code") for name, what in asked.strange.items())
        return replace(verdict, types=(*verdict.types, *strange)), questions

    if not is_of_transformers(model):
        return Asked(label, "model", own, saved, judge=judge)
    return Asked(label, "model", own, saved, rows={}, config=config_of(model), judge=judge)
