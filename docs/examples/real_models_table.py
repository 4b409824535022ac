"""What today's savers and loaders make of real models and of their variants: each cell is run, and judged bit for bit.

    python docs/examples/real_models_table.py                                   prints the table
    python docs/examples/real_models_table.py --write docs/proofs-models.md     writes it between its two markers there

The models are those of `real_models.py`.  A cell compares every name of the model that was opened with the model that
was saved, who shares memory with what the model's class ties, and, where both are of one class, the logits.  Needs
transformers beside what `savers_table.py` needs.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import accelerate
import huggingface_hub
import safetensors.torch
import torch
import transformers
from real_models import MODELS, Model, Recurrent, outputs
from savers_table import VERDICTS, drawn, judge, versions, write
from torch import nn

import paramtool
import paramtool.torch

BEGIN, END = "<!-- real models -->", "<!-- /real models -->"
NOT_THEIRS = "no model of its own"
SAYS = (*VERDICTS, NOT_THEIRS, "other logits")
"""Every cell begins with one of these."""
LOOSE = {"flat": False, "tied": False}


@dataclass(frozen=True)
class Case:
    """A model that is saved, and the one that its file is opened as."""

    saved: str
    wanted: str = ""
    """Empty: the same."""
    what: str = ""
    """What is special about the saved one."""
    change: Callable[[nn.Module], None] = lambda model: None
    prefix: str = ""
    """What the saved model calls the one that is wanted."""
    outer: str = ""
    """What the one that is wanted calls the saved model."""
    strict: bool = True
    """False: what is wanted is a part under the same names, and loaders that are strict by default are told so."""
    good: str = "loads"
    """How the right verdict begins."""

    @property
    def label(self) -> str:
        """The text of the first column."""
        saved = f"{self.saved}, {self.what}," if self.what else self.saved
        return f"{saved} opened as {self.wanted}" if self.wanted else self.saved

    def build(self) -> tuple[nn.Module, nn.Module]:
        """Both models, with other values."""
        source, target = MODELS[self.saved].build(0), self.spec.build(1)
        self.change(source)
        return source, target

    @property
    def spec(self) -> Model:
        """The model that is wanted."""
        return {**MODELS, **VARIANTS}[self.wanted or self.saved]

    def called(self, name: str) -> str:
        """What a name of the saved model is in the other."""
        return self.outer + name.removeprefix(self.prefix)


VARIANTS = {
    f"an untied, plain {kind}": Model(Recurrent, sizes=MODELS[kind].sizes | LOOSE) for kind in ("LSTM", "GRU")
}  # fmt: skip


def copy_the_head(model: nn.Module) -> None:
    """Equal bytes in head and embedding, which are not tied."""
    with torch.no_grad():
        model.get_output_embeddings().weight.copy_(model.get_input_embeddings().weight)  # type: ignore[operator]


MLM, HEADLESS = "BERT with its MLM head", "BERT without a head"
EQUAL = "head and embedding equal"
CASES = (
    *(Case(name) for name in MODELS),
    Case("GPT-2 tied", "GPT-2 untied"),
    Case("GPT-2 untied", "GPT-2 tied", EQUAL, copy_the_head),
    Case("GPT-2 untied", "GPT-2 tied", "head and embedding diverged", good="refuses to load: "),
    Case("Llama tied", "Llama untied"),
    Case("Llama untied", "Llama tied", EQUAL, copy_the_head),
    Case("Llama untied", "Llama tied", "head and embedding diverged", good="refuses to load: "),
    Case(MLM, HEADLESS, prefix="bert."),
    Case(HEADLESS, MLM, outer="bert.", good="refuses to load: lacks "),
    Case("T5", "T5 encoder", strict=False),
    Case("BART", "BART encoder", prefix="model.encoder."),
    Case("LSTM", "an untied, plain LSTM"),
    Case("GRU", "an untied, plain GRU"),
)


# --- the savers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saver:
    """How people save and load with one tool."""

    name: str
    save: Callable[[nn.Module, Path], object]
    load: Callable[[nn.Module, Path, Case], object]
    opens: Callable[[nn.Module], bool] = lambda model: True


def _dedup(source: nn.Module, folder: Path) -> None:
    torch.save(source.state_dict(), folder / "m.pt")
    paramtool.dedup(folder / "m.pt", folder / "m.safetensors")


def _from_pretrained(target: nn.Module, folder: Path, case: Case) -> nn.Module:
    """What `from_pretrained` opens; what it had to make up is as in the target, by which the judge knows it."""
    opened, said = type(target).from_pretrained(  # type: ignore[attr-defined]
        folder, config=target.config, output_loading_info=True, **case.spec.more
    )
    own, made = target.state_dict(), opened.state_dict()
    for name in said["missing_keys"]:
        made[name].copy_(own[name])
    return opened  # type: ignore[no-any-return]


SAVERS = (
    Saver(
        "safetensors `save_file`",
        lambda source, folder: safetensors.torch.save_file(source.state_dict(), folder / "m.safetensors"),
        lambda target, folder, case: target.load_state_dict(
            safetensors.torch.load_file(folder / "m.safetensors"), strict=case.strict
        ),
    ),
    Saver(
        "safetensors `save_model`",
        lambda source, folder: safetensors.torch.save_model(source, str(folder / "m.safetensors")),
        lambda target, folder, case: safetensors.torch.load_model(target, folder / "m.safetensors", case.strict),
    ),
    Saver(
        "huggingface_hub `save_torch_model`",
        lambda source, folder: huggingface_hub.save_torch_model(source, str(folder)),
        lambda target, folder, case: huggingface_hub.load_torch_model(target, folder),
    ),
    Saver(
        "accelerate `save_model`",
        lambda source, folder: accelerate.Accelerator(cpu=True).save_model(source, str(folder)),
        lambda target, folder, case: accelerate.load_checkpoint_in_model(target, str(folder)),
    ),
    Saver(
        "transformers `save_pretrained`",
        lambda source, folder: source.save_pretrained(folder),  # type: ignore[operator]
        _from_pretrained,
        lambda model: isinstance(model, transformers.PreTrainedModel),
    ),
    Saver(
        "**paramtool**",
        _dedup,
        lambda target, folder, case: paramtool.torch.load_model(
            target, folder / "m.safetensors", case.strict, prefix=case.prefix
        ),
    ),
)


# --- the table -------------------------------------------------------------------------------------------------------


def verdict(case: Case, saver: Saver) -> str:
    """Save, open as what is wanted, and compare names, memory and, for one class, what the models compute."""
    source, target = case.build()
    if not saver.opens(source):
        return NOT_THEIRS
    opened = [target]

    def load(target: nn.Module, folder: Path) -> object:
        loaded = saver.load(target, folder, case)
        if isinstance(loaded, nn.Module):
            opened[0] = loaded
        return loaded

    found = judge(source, target, saver.save, load, case.called)
    if found == "loads" and type(source) is type(target) and not torch.equal(logits(source), logits(opened[0])):
        return "other logits"
    return found


def logits(model: nn.Module) -> torch.Tensor:
    """What a model computes, without gradients."""
    with torch.no_grad():
        return outputs(model)


def table() -> list[list[str]]:
    """One row a case; the first cell says what it is, the others what each saver does."""
    return [[case.label, *(verdict(case, saver) for saver in SAVERS)] for case in CASES]


def markdown() -> str:
    """The table, and with what it was made."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in one order
    try:
        with quiet():
            lines = [["saved, and opened as", *(saver.name for saver in SAVERS)], ["---"] * (len(SAVERS) + 1), *table()]
    finally:
        torch.set_num_threads(threads)
    made_with = versions(torch, transformers, safetensors, huggingface_hub, accelerate, paramtool)
    return f"{drawn(lines)}\n\nRun by `docs/examples/real_models_table.py` with {made_with}.\n"


@contextmanager
def quiet() -> Iterator[None]:
    """Without bars and hints, which would be printed between the lines."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(before)


def main() -> None:
    """Print the table, or write it into a file."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", type=Path, metavar="docs/proofs-models.md")
    asked = arguments.parse_args()
    text = markdown()
    if asked.write:
        write(asked.write, text, BEGIN, END)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
