"""What a result of gpu_fused.py says: a table, where fusing does not pay, and what was not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gpu_fused_grid import VARIANTS
from measure import print_table

from paramtool.errors import MAX_LISTED

SCHEMA = "paramtool.gpu-fused/1"
PAYS = 1.05
"""Fusing pays where torch's packing at each call takes at least this many times as long."""
MODES = {"forward": "forward", "forward_backward": "forward+backward"}
ON_A_CPU = "measured on a CPU, to try the script: these figures say nothing about cuDNN"
HEADER = (
    "kind", "dtype", "hidden", "layers", "sequence",
    "forward: fused, ms (quartiles)", "separate / fused", "concatenated / fused",
    "forward+backward: fused, ms (quartiles)", "separate / fused", "concatenated / fused",
    "peak memory of forward: fused, separate, concatenated, MB", "of forward+backward, MB",
)  # fmt: skip
Result = dict[str, Any]


def ratio(cell: Result, variant: str, mode: str) -> float:
    """How many times as long as fused."""
    median: float = cell["variants"][variant][mode]["median_seconds"]
    return median / cell["variants"]["fused"][mode]["median_seconds"]


def where_it_does_not_pay(result: Result) -> Iterator[str]:
    """A sentence for each kind, type and mode."""
    settings = result["settings"]
    for kind in settings["kinds"]:
        for dtype in settings["dtypes"]:
            cells = [cell for cell in result["cells"] if (cell["kind"], cell["dtype"]) == (kind, dtype)]
            for mode, words in MODES.items():
                yield f"{kind} {dtype}, {words}: {_sentence(cells, mode)}"


def _sentence(cells: Sequence[Result], mode: str) -> str:
    if not cells:
        return "not measured"
    ratios = [ratio(cell, "separate", mode) for cell in cells]
    poor = [cell for cell, found in zip(cells, ratios, strict=True) if found < PAYS]
    if not poor:
        return f"fusing pays in all of {len(cells)}: packing takes at least {min(ratios):.3f} times as long"
    grouped: dict[tuple[int, int], list[str]] = {}
    for cell in poor:
        part = f"{cell['sequence']} ({ratio(cell, 'separate', mode):.3f})"
        grouped.setdefault((cell["hidden"], cell["layers"]), []).append(part)
    where = "; ".join(
        f"hidden {hidden}, layers {layers}, sequence {', '.join(parts)}"
        for (hidden, layers), parts in sorted(grouped.items())
    )
    return f"fusing does not pay in {len(poor)} of {len(cells)} (packing takes less than {PAYS} times as long): {where}"


def rows(result: Result) -> Iterator[tuple[str, ...]]:
    """A row for each configuration."""
    for cell in result["cells"]:
        times = [text for mode in MODES for text in _times(cell, mode)]
        where = (str(cell[key]) for key in ("kind", "dtype", "hidden", "layers", "sequence"))
        yield (*where, *times, *(_memory(cell, mode) for mode in MODES))


def _times(cell: Result, mode: str) -> tuple[str, ...]:
    fused = cell["variants"]["fused"][mode]
    first, third = (_ms(seconds) for seconds in fused["quartiles_seconds"])
    ratios = (f"{ratio(cell, variant, mode):.2f}" for variant in ("separate", "concatenated"))
    return f"{_ms(fused['median_seconds'])} ({first} - {third})", *ratios


def _ms(seconds: float) -> str:
    """
    >>> _ms(0.00123456), _ms(0.123456)
    ('1.235', '123.5')
    """
    return f"{seconds * 1e3:.4g}"


def _memory(cell: Result, mode: str) -> str:
    sizes = (cell["variants"][name][mode]["peak_nbytes"] for name in VARIANTS)
    return ", ".join("-" if size is None else f"{size / 1e6:.1f}" for size in sizes)


def machine_row(machine: dict[str, str]) -> str:
    """What it was measured on, in a line.

    >>> machine_row({"device": "D", "torch": "2", "cuda": "", "python": "3"})
    'D, torch 2, python 3'
    """
    return ", ".join(f"{key} {value}" if key != "device" else value for key, value in machine.items() if value)


def print_report(result: Result) -> None:
    """All of it, to stdout."""
    settings = result["settings"]
    notes = [
        f"{result['date']}: {machine_row(result['machine'])}",
        f"batch {settings['batch']}, input as wide as the hidden state, TF32 off",
        "medians of calls that each start on an idle device; forward is inference, forward+backward is training with "
        "gradients of the input and of every parameter",
        "peak memory: of that variant alone, with its parameters, without its input",
        *([ON_A_CPU] if result["device"] == "cpu" else []),
    ]
    where = " (on a CPU)" if result["device"] == "cpu" else ""
    title = "an RNN with one fused buffer, with separate parameters that torch packs at each call, with concatenation"
    print_table(f"{title}{where}", HEADER, list(rows(result)), notes)
    _print_list(f"where fusing does not pay{where}", list(where_it_does_not_pay(result)))
    missing = sorted(result["not_measured"], key=lambda cell: not cell["failed"])
    _print_list(f"not measured: {len(missing)}", list(_first(missing)))


def _first(missing: Sequence[Result]) -> Iterator[str]:
    """A line for each of the first, failures before others, and one that counts the rest."""
    for cell in missing[:MAX_LISTED]:
        yield f"{_named(cell)}: {cell['reason']}"
    if (more := len(missing) - MAX_LISTED) > 0:
        yield f"and {more} more; a result that -o writes has all of them"


def _named(cell: Result) -> str:
    return (
        f"{cell['kind']} {cell['dtype']}, hidden {cell['hidden']}, layers {cell['layers']}, sequence {cell['sequence']}"
    )


def _print_list(title: str, lines: Sequence[str]) -> None:
    print(f"\n**{title}**\n")
    for line in lines:
        print(f"- {line}", flush=True)
