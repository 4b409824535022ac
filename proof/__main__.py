"""`python -m proof LAYOUT`: a layout's table beside what cuDNN, torch and a GPU say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from paramtool.cli import _completion, _render
from paramtool.cli._options import Command, displayed
from paramtool.cli._paths import FILE, OUTPUT_FILE
from paramtool.cli.main import main
from paramtool.errors import UsageError
from paramtool.layouts import evidence
from proof import record_file

if TYPE_CHECKING:
    from paramtool.layouts.layout import Layout

EPILOG = (
    "Exit codes: 0 all agree, 1 something differs or nothing agrees, 2 usage, or no GPU, "
    "3 the library cannot be asked without a GPU, 7 the record cannot be written."
)
MANY = 20
"""How many findings a report lists; the record and --json have more."""
WHAT = {
    "asked": "cuDNN's cudnnGetRNNWeightParams",
    "flattened": "torch's flatten_parameters",
    "ran": "fused buffers on the GPU, and back",
}


@click.command("python -m proof", cls=Command, epilog=EPILOG)
@click.argument("layout", metavar="LAYOUT", shell_complete=_completion.layouts)
@click.option("--quick", is_flag=True, help="Ask a small grid of networks; its record does not count as a proof.")
@click.option("--library", type=FILE, metavar="LIBCUDNN",
              help="Ask only this libcudnn.so.8 or .9; needs neither a GPU nor torch.")  # fmt: skip
@click.option("-o", "--output", type=OUTPUT_FILE, metavar="RECORD.json", help="Write the record to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the record (docs/schema has its schema).")
@click.option("--force", is_flag=True, help="Overwrite an existing record, and no other kind of file.")
@displayed
def command(layout: str, quick: bool, library: str | None, output: str | None, *, as_json: bool, force: bool) -> int:
    """Check the table of a layout: ask cuDNN, ask torch, and run networks on a CUDA GPU.

    Needs paramtool[torch] and a GPU (docs/gpu.md).  With --library, it asks only the library.

    \b
    $ python -m proof cudnn -o record.json
    $ python -m proof cudnn --library libcudnn.so.9
    """
    table = record_file.to_verify(layout)
    if output is not None:
        record_file.check_record_place(output, force=force, inputs=[library] if library else [])
    try:
        found = _record(layout, quick, library, output, force=force)
    except UsageError:
        if not as_json and library is None:
            _render.rows(_evidence(table))
        raise
    if as_json:
        _render.json_document(found)
    else:
        _render.rows(_rows(found, output, library))
    return 1 if found["findings_count"] or _empty(found) else 0


def _record(layout: str, quick: bool, library: str | None, output: str | None, *, force: bool) -> dict[str, Any]:
    """The record, by the library alone or on the GPU; written after each part, over an earlier one at the end."""
    written, earlier = False, output is not None and os.path.lexists(output)

    def keep(document: dict[str, Any], ended: bool = False) -> None:
        nonlocal written
        if output is not None and (ended or not earlier):
            record_file.write_record(document, output, force=force or written)
            written = True

    if library is not None:
        found = record_file.ask_library(library, layout, quick=quick, progress=_render.counted)
    else:
        found = _verify(layout, quick=quick, progress=_render.counted, keep=keep)
    keep(found, ended=True)
    return found


def _verify(layout: str, **how: Any) -> dict[str, Any]:
    try:
        verify = import_module("proof").verify_layout
    except (ImportError, OSError, RuntimeError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        hint = "pip install 'paramtool[torch]'" if missing else "python -c 'import torch' says the same"
        raise UsageError(f"a GPU is asked through torch, which cannot be loaded: {error}", hint=hint) from None
    found: dict[str, Any] = verify(layout, **how)
    return found


def _evidence(table: Layout) -> _render.Rows:
    """What is known of a layout where it cannot be verified now."""
    yield ("layout", table.name, table.title)
    yield from (("evidence", words) for words in evidence.evidence(table))
    for record, why in evidence.judged(table):
        counts = [_counted(part["counts"]) for part in record.parts.values()]
        yield ("record", record.words(), *counts, record.data["date"], f"does not count: {why}" if why else "")


def _rows(found: Mapping[str, Any], output: str | None, library: str | None) -> _render.Rows:
    machine = found["machine"]
    words = {"device": "", "driver": "driver ", "cuda": "CUDA ", "cudnn": "cuDNN ", "torch": "torch "}
    yield ("layout", found["layout"], f"table {found['table'][:12]}", f"{found['grid']} grid")
    yield ("machine", *(f"{word}{machine[key]}" for key, word in words.items() if machine[key]))
    yield from _parts(found)
    for one in found["findings"][:MANY]:
        where = ": ".join(filter(None, (one["case"], one["cell"])))
        yield ("difference", where, f"{one['what']}: expected {one['expected']}, found {one['found']}")
    if found["findings_count"] > MANY:
        yield ("difference", f"and {found['findings_count'] - MANY:,} more", "--json and -o list 200")
    yield ("verdict", _verdict(found, library))
    if output is not None:
        yield ("record", output)
    elif found["grid"] == "full":
        yield ("next", "-o RECORD.json writes this record to a file")
    else:
        yield ("next", "without --quick the full grid is asked; only that counts as a proof")


def _verdict(found: Mapping[str, Any], library: str | None) -> str:
    if found["findings_count"]:
        count = found["findings_count"]
        return f"{count:,} {'time' if count == 1 else 'times'} something else: the table does not hold here"
    if empty := _empty(found):
        return f"nothing of {' and '.join(empty)} is supported here: no proof"
    if library is not None:
        return f"the table is what cuDNN {found['machine']['cudnn']} says; without a GPU nothing was run"
    return "the table holds here"


def _empty(found: Mapping[str, Any]) -> list[str]:
    """The questions to which nothing agreed."""
    return [part for part in WHAT if found[part] is not None and not found[part]["counts"]["agrees"]]


def _parts(found: Mapping[str, Any]) -> _render.Rows:
    """What was asked, with the numbers of its verdicts, the reasons of what is not supported, and errors."""
    for part, what in WHAT.items():
        if found[part] is None:
            yield (part, what, "not done")
            continue
        yield (part, what, _counted(found[part]["counts"]))
        if found[part]["counts"]["agrees"] < sum(found[part]["counts"].values()):
            for word, counts in _by_last_axis(found[part], found["verdicts"]):
                yield ("", f"  {word}", _counted(counts))
        for dtype, errors in found[part].get("errors", {}).items():
            yield (
                "",
                f"  {dtype}: outputs off by at most {errors['outputs']:.1e}, gradients {errors['gradients']:.1e}",
                f"tolerance {errors['tolerance']:g}; a wrong order {errors['smallest_control']:.2g} and more",
            )
        for why in dict.fromkeys(reason.rsplit(" (", 1)[0] for reason in found[part]["unsupported"]):
            yield ("", f"  not supported: {why}", "--json and -o say for what")


def _counted(counts: Mapping[str, int]) -> str:
    words = (("agrees", "agree"), ("unsupported", "not supported"), ("differs", "differ"))
    return ", ".join(f"{counts[key]:,} {word}" for key, word in words)


def _by_last_axis(part: Mapping[str, Any], verdicts: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, int]]]:
    """The numbers of each algorithm, or of each type: the axis that changes fastest in the texts of letters."""
    values = list(part["columns"].values())[-1]
    letters = "".join(text * len(those) for text, those in part["networks"].items())
    for k, value in enumerate(values):
        own = letters[k :: len(values)]
        yield value, {word: own.count(letter) for letter, word in verdicts.items()}


if __name__ == "__main__":
    main(command)
