"""What today's savers do with models that share memory: each cell is really run, and judged bit for bit.

    python docs/examples/savers_table.py                     prints the table
    python docs/examples/savers_table.py --write docs/savers.md   replaces the text between its two markers

The cases are those of mxnet issue 18717 in torch: a decoder tied to the embedding, loaded with it, without it and
untied; weights flattened by a GPU; a transposed tie; layers that are equal and not tied; and a file that must not be
loaded.  Needs torch, safetensors, huggingface_hub and accelerate.
"""

from __future__ import annotations

import argparse
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import accelerate
import huggingface_hub
import safetensors.torch
import torch
from torch import nn

import paramtool
import paramtool.torch

BEGIN, END = "<!-- savers table -->", "<!-- /savers table -->"
WIDTH, VOCABULARY = 8, 20
VERDICTS = ("loads", "refuses to save: ", "refuses to load: ", "leaves unset: ", "wrong values: ",
            "ties what was not tied: ", "unties: ")  # fmt: skip
"""Every cell begins with one of these."""


# --- the models ------------------------------------------------------------------------------------------------------


def model(*tied: str, decoder: bool = True) -> nn.Module:
    """A small language model; `tied` names what follows the embedding: `decoder`, `reduce` (the transpose)."""
    parts = nn.ModuleDict({"emb": nn.Embedding(VOCABULARY, WIDTH), "mix": nn.Linear(WIDTH, WIDTH)})
    if decoder:
        parts["decoder"] = nn.Linear(WIDTH, VOCABULARY, bias=False)
    if "decoder" in tied:
        parts["decoder"].weight = parts["emb"].weight
    if "reduce" in tied:
        parts["reduce"] = nn.Linear(VOCABULARY, WIDTH, bias=False)
        parts["reduce"].weight = nn.Parameter(parts["emb"].weight.detach().t())
    return parts


def lstm(flat: bool) -> nn.Module:
    """An LSTM; `flat` puts its weights into one buffer, as flatten_parameters() does on a GPU."""
    parts = nn.ModuleDict({"lstm": nn.LSTM(WIDTH, WIDTH)})
    if flat:
        weights = list(parts.parameters())
        buffer = torch.cat([weight.detach().flatten() for weight in weights])
        for weight, view in zip(weights, buffer.split([weight.numel() for weight in weights]), strict=True):
            weight.data = view.view(weight.shape)
    return parts


def layers(equal: bool) -> nn.Module:
    """Two layers of the same initial values, each a parameter of its own."""
    parts = nn.ModuleDict({"first": nn.Linear(64, 64), "second": nn.Linear(64, 64)})
    if equal:
        parts["second"].load_state_dict(parts["first"].state_dict())
    return parts


@dataclass(frozen=True)
class Case:
    """A model that is saved, and the model that the file is loaded into."""

    what: str
    saved: Callable[[], nn.Module]
    wanted: Callable[[], nn.Module]
    good: str = "loads"
    """How the right verdict begins."""


CASES = (
    Case("decoder tied to the embedding", lambda: model("decoder"), lambda: model("decoder")),
    Case("the same file, a model without the decoder", lambda: model("decoder"), lambda: model(decoder=False)),
    Case("the same file, a model with an untied decoder", lambda: model("decoder"), lambda: model()),
    Case("LSTM with views of one buffer, as flattening on a GPU leaves it", lambda: lstm(True), lambda: lstm(False)),
    Case("tie to the transpose", lambda: model("reduce"), lambda: model("reduce")),
    Case("two equal layers, not tied", lambda: layers(True), lambda: layers(False)),
    Case("untied file, a model that ties", lambda: model(), lambda: model("decoder"), "refuses to load: "),
)


# --- the savers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saver:
    """How people save and load with one tool, with its defaults."""

    name: str
    save: Callable[[nn.Module, Path], object]
    load: Callable[[nn.Module, Path], object]


def _dedup(source: nn.Module, folder: Path) -> None:
    torch.save(source.state_dict(), folder / "m.pt")
    paramtool.dedup(folder / "m.pt", folder / "m.safetensors")


SAVERS = (
    Saver(
        "safetensors `save_file`",
        lambda source, folder: safetensors.torch.save_file(source.state_dict(), folder / "m.safetensors"),
        lambda target, folder: target.load_state_dict(safetensors.torch.load_file(folder / "m.safetensors")),
    ),
    Saver(
        "safetensors `save_model`",
        lambda source, folder: safetensors.torch.save_model(source, str(folder / "m.safetensors")),
        lambda target, folder: safetensors.torch.load_model(target, folder / "m.safetensors"),
    ),
    Saver(
        "huggingface_hub `save_torch_model`",
        lambda source, folder: huggingface_hub.save_torch_model(source, str(folder)),
        lambda target, folder: huggingface_hub.load_torch_model(target, folder),
    ),
    Saver(
        "accelerate `save_model`",
        lambda source, folder: accelerate.Accelerator(cpu=True).save_model(source, str(folder)),
        lambda target, folder: accelerate.load_checkpoint_in_model(target, str(folder)),
    ),
    Saver(
        "**paramtool**",
        _dedup,
        lambda target, folder: paramtool.torch.load_model(target, folder / "m.safetensors"),
    ),
)


# --- the judge -------------------------------------------------------------------------------------------------------


def verdict(case: Case, saver: Saver) -> str:
    """Save, load into the model that is wanted, and compare every name, bit for bit, and who shares memory."""
    torch.manual_seed(0)
    source = case.saved()
    torch.manual_seed(1)
    return judge(source, case.wanted(), saver.save, saver.load)


def judge(
    source: nn.Module,
    target: nn.Module,
    save: Callable[[nn.Module, Path], object],
    load: Callable[[nn.Module, Path], object],
    called: Callable[[str], str] = str,
) -> str:
    """What comes of a model that is saved, and loaded into another; `load` may also return a model of its own.

    `called` says what the source's names are in the target.
    """
    values = {called(name): tensor.clone() for name, tensor in source.state_dict().items()}
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    ties = ties_of(target)
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            save(source, Path(place))
        except Exception as error:
            return f"refuses to save: {reason(error)}"
        try:
            loaded = load(target, Path(place))
        except Exception as error:
            return f"refuses to load: {reason(error)}"
    target = loaded if isinstance(loaded, nn.Module) else target
    return compared(values, before, target.state_dict()) or shared(ties, ties_of(target)) or "loads"


def compared(values: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor],
             after: Mapping[str, torch.Tensor]) -> str:  # fmt: skip
    """Names whose values are not those that were saved, or nothing."""
    wrong = [name for name in after if name not in values or not same(after[name], values[name])]
    unset = [name for name in wrong if same(after[name], before[name])]
    if unset:
        return f"leaves unset: {named(unset)}"
    return f"wrong values: {named(wrong)}" if wrong else ""


def shared(before: set[tuple[str, str]], after: set[tuple[str, str]]) -> str:
    """A pair that shares memory and did not, or the other way round, or nothing."""
    if after - before:
        return f"ties what was not tied: {named(sorted(after - before)[0])}"
    if before - after:
        return f"unties: {named(sorted(before - after)[0])}"
    return ""


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit."""
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def ties_of(target: nn.Module) -> set[tuple[str, str]]:
    """Pairs of names that share an element: an edit of one is seen in the other."""
    spans = {n: (t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for n, t in target.state_dict().items()}
    return {(a, b) for a in spans for b in spans if a < b and spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1]}


REASONS = (
    (r"Some tensors share memory", "tensors share memory"),
    (r"[Mm]issing key\(s\)[^\"]*\"([\w.]+)\"", r"misses `\1`"),
    (r"[Uu]nexpected key\(s\)[^\"]*\"([\w.]+)\"", r"does not expect `\1`"),
    (r"find names to remove .* found no suitable", "finds no name to keep"),
    (r"^view size is not compatible", "its `view` fails on a transposed tensor"),
    (r"non.contiguous tensor[^`]*`([\w.]+)`", r"`\1` is not contiguous"),
    (r"ties '([\w.]+)' and '([\w.]+)', and the file holds them with different bytes",
     r"the model ties `\1` and `\2`, the file has different bytes"),
    (r"the file lacks (\d+ names) \('([\w.]+)'", r"lacks \1 (`\2`, ...)"),
    (r"Error\(s\) in loading state_dict .*? size mismatch for ([\w.]+)", r"`\1` has another shape"),
)  # fmt: skip
"""What the tools say, in short; anything else is cut."""


def reason(error: Exception) -> str:
    """What an error says, in short."""
    text = " ".join(str(error).split())
    for pattern, short in REASONS:
        if found := re.search(pattern, text):
            return found.expand(short)
    return f"{type(error).__name__}: {text[:80]}".replace("|", "/")


def named(names: list[str] | tuple[str, ...]) -> str:
    """The first names of some."""
    return ", ".join(f"`{name}`" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# --- the table -------------------------------------------------------------------------------------------------------


def table() -> list[list[str]]:
    """One row a case; the first cell says what it is, the others what each saver does."""
    return [[case.what, *(verdict(case, saver) for saver in SAVERS)] for case in CASES]


def markdown() -> str:
    """The table, and with what it was made."""
    lines = [["saved, and loaded into", *(saver.name for saver in SAVERS)], ["---"] * (len(SAVERS) + 1), *table()]
    made_with = versions(torch, safetensors, huggingface_hub, accelerate, paramtool)
    return f"{drawn(lines)}\n\nRun by `docs/examples/savers_table.py` with {made_with}; each tool with its defaults.\n"


def drawn(lines: list[list[str]]) -> str:
    """Lines of cells as Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def versions(*modules: ModuleType) -> str:
    """Names and versions, for people."""
    return ", ".join(f"{module.__name__} {module.__version__.split('+')[0]}" for module in modules)


def write(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace the text between the markers of a file."""
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{path}: lacks {begin} and {end}")
    path.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")


def main() -> None:
    """Print the table, or write it into a file."""
    logging.disable(logging.WARNING)  # log messages of the tools would be printed between the lines
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", type=Path, metavar="docs/savers.md")
    asked = arguments.parse_args()
    text = markdown()
    if asked.write:
        write(asked.write, text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
