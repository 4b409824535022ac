"""The page that tells what was run: docs/proofs.md, written from what prove.py found."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from paramtool import layouts
from paramtool.layouts import evidence
from paramtool.layouts.evidence import PARTS, Record
from paramtool.layouts.layout import Layout

TESTS = Path(__file__).parents[2]
HEAD = """\
# What was run

Written by `tests/oracles/frameworks/prove.py` on {date}; `make oracles` writes it again. Do not edit.

In every row below, a framework ran what paramtool wrote, with random inputs and random initial states, in float32.

- **to**: random weights are saved in another layout (PyTorch's, if PyTorch has such a network), `paramtool convert`
  converts the file, and the framework runs the result. It is compared with PyTorch, or with the equations in float64 if
  PyTorch has no such network; if it has, the two agree.
- **from**: the framework runs random weights in its own layout. It is compared with PyTorch, or the equations, on the
  output of `paramtool convert`.
- The error is max |a - b| / max(1, max |b|) over the outputs of all steps and the last states. It must be under
  {bound}.
- **controls**: conversions that are wrong on purpose. Two gates exchanged, b_hn dropped, a forget bias not subtracted,
  an update gate not inverted, kernels transposed and not reshaped, a GRU run with its reset gate on the other side
  of the product. Each must be off by more than {far}; the column has their number and the smallest error.

The networks have one or two layers, one or two directions, biases or none, and inputs of the hidden size or of
another.
"""


def page(result: Mapping[str, Any]) -> str:
    """The page, in Markdown."""
    runs = result["runs"]
    parts = [
        HEAD.format(date=result["date"], bound=result["bound"], far=result["far"]),
        "## Frameworks that ran\n\n" + table(RAN, [row(one) for one in runs if one["to"]["cases"]]),
        "## What was called\n\n" + table(CALLED, [called(one) for one in runs if one["to"]["cases"]]),
        "## What is refused\n\n" + REFUSED + table(LACKS, [refusals(one) for one in runs]),
        "## Not run\n\n" + EQUATIONS + table(OWN_WORDS, list(unproved())),
        on_gpus(),
        "## Real files\n\n" + FILES + "\n".join(f"- `{name}`: {what}" for name, what in with_samples()) + "\n",
    ]
    return "\n".join(parts)


GPUS = """\
## On GPUs

Records of `python -m proof` (`paramtool/layouts/records`); [GPU](gpu.md) says how they are made.  A library
that was asked without a GPU reports where it keeps weights and computes nothing: its answer is not a proof on a GPU.

"""
RECORDED = ("layout", "cuDNN", "GPU", "torch, CUDA, driver", "asked", "flattened", "run", "date")


def on_gpus() -> str:
    """The section on GPUs: every record, and whether there is one that was made on a GPU."""
    every = layouts.built_in().values()
    rows = [recorded(record, why) for layout in every for record, why in evidence.judged(layout)]
    of_gpus = [f"`{one.name}`: {evidence.on_gpu(one)}." for one in every if one.gpu]
    return GPUS + table(RECORDED, rows) + "\n" + "  \n".join(of_gpus) + "\n"


def recorded(record: Record, why: str) -> list[str]:
    """A record; where it does not speak for its layout, why."""
    stale = f", does not count: {why}" if why else ""
    machine, versions = record.machine, [record.machine[key] for key in ("torch", "cuda", "driver")]
    device = machine["device"] or "none"
    return [
        f"`{record.layout}`{stale}",
        machine["cudnn"],
        device,
        ", ".join(filter(None, versions)) or "none",
        *(verdicts(record.data[part]) for part in PARTS),
        record.data["date"],
    ]


def verdicts(part: Mapping[str, Any] | None) -> str:
    """`4480 agree, 0 differ`, and how many the library does not have."""
    if part is None:
        return "not done"
    counts = part["counts"]
    return f"{counts['agrees']} agree, {counts['differs']} differ, {counts['unsupported']} not supported"


def with_records(text: str) -> str:
    """A page with its section on GPUs as the records are now."""
    before, _, rest = text.partition(GPUS.splitlines()[0] + "\n")
    return before + on_gpus() + "\n## " + rest.partition("\n## ")[2]


RAN = ("layout", "run by", "networks", "to: cases", "error", "from: cases", "error", "controls", "smallest")
CALLED = ("layout", "in the library's words", "versions")
LACKS = ("layout", "run by", "paramtool refuses", "written, but not run here")
REFUSED = """\
What paramtool refuses to write in a layout, because the library has no such network or the layout no place for a part
of it; and what it writes although the framework of this row cannot run it.

"""
OWN_WORDS = ("layout", "what it is", "how it is known")
EQUATIONS = """\
The systems of these layouts, or of these parts of them, were not run. `tests/oracles/test_equations.py` compares
those that say "equations" with the equations of their sources; "source only" was read and not computed.

"""
FILES = """\
Real checkpoints are not part of the repository. If they are available, these tests read them:

"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n" for cells in lines)


def row(one: Mapping[str, Any]) -> list[str]:
    """A framework that ran."""
    smallest = min(one["controls"].values(), default=None)
    ways = [cell for way in ("to", "from") for cell in (str(one[way]["cases"]), f"{one[way]['error']:.1e}")]
    controls = [str(len(one["controls"])), "" if smallest is None else f"{smallest:.2f}"]
    return [f"`{one['layout']}`", one["run by"], in_short(one["kinds"]), *ways, *controls]


def called(one: Mapping[str, Any]) -> list[str]:
    """What a script says that it ran, and the versions that it found."""
    versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
    parts = [part.split() for part in sorted({part for ran in one["ran"] for part in ran.split("; ")})]
    same = len(list(takewhile(lambda words: len(set(words)) == 1, zip(*parts, strict=False)))) % len(parts[0])
    words = "; ".join(" ".join(part[same:]) for part in parts)
    return [f"`{one['layout']}`", f"{' '.join(parts[0][:same])}: {words}" if same else words, versions]


def refusals(one: Mapping[str, Any]) -> list[str]:
    """What is not in a row of `row`."""
    cannot = "; ".join(f"{in_short(kinds)}: {why}" for why, kinds in one["cannot"].items())
    return [f"`{one['layout']}`", one["run by"], in_short(list(one["refused"])), cannot]


def in_short(kinds: Sequence[str]) -> str:
    """Kinds of networks, put together.

    >>> in_short(["lstm", "lstm, projection", "gru, after", "gru, after, hard_sigmoid 1/5"])
    'lstm, lstm with projection; gru reset after; hard_sigmoid gates'
    """
    found: dict[str, list[str]] = {}
    hard = ""
    for kind in kinds:
        name, _, rest = kind.partition(", ")
        if "hard_sigmoid" in rest:
            hard = "hard_sigmoid gates"
            continue
        words = {"gru": f"gru reset {rest}", "rnn": f"rnn {rest}"}.get(name, f"{name} with {rest}" if rest else name)
        if rest == "after, b_hn zero" and "gru reset after" in found.get(name, []):
            found[name].remove("gru reset after")  # which ran without biases
        if not (rest == "peephole and projection" and any(w in " ".join(found.get(name, [])) for w in rest.split())):
            found.setdefault(name, []).append(words)
    return "; ".join([*(", ".join(words) for words in found.values()), *([hard] if hard else [])])


def unproved() -> Iterator[list[str]]:
    """Layouts, or parts of them, that nothing ran."""
    for layout in sorted(layouts.built_in().values(), key=lambda one: one.name):
        words = remarks(layout)
        if words:
            yield [f"`{layout.name}`", layout.title, "; ".join(words)]


def remarks(layout: Layout) -> list[str]:
    """What a layout says of its proof, but for the frameworks that ran it."""
    return [words for words in evidence.evidence(layout) if not words.startswith("oracle:")]


def with_samples() -> Iterator[tuple[str, str]]:
    """Modules of tests that read real checkpoints, each with the first line of its docstring."""
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        if any(argument.arg == "samples" for function in functions for argument in function.args.args):
            yield path.relative_to(TESTS.parent).as_posix(), (ast.get_docstring(tree) or "").splitlines()[0]
