"""The page that tells what was run: docs/proofs-dialects.md, written from what prove.py found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.oracles.dialects.converting import WORDS
from tests.oracles.dialects.proofs import BOUND, FAR

HEAD = """\
# What was run of dialects

Written by `tests/oracles/dialects/prove.py`; `make oracles` writes it again. Do not edit.

Run with {versions}{mxnet}. Models have random values in every parameter, and odd sizes: heads that are no power of two,
fewer KV heads than heads, no width that is twice another. All is float32, on one thread, and nothing is downloaded.

## Attention, gated MLPs and experts

- **bytes**: what paramtool wrote is what our own equations say (`tests/oracles/dialects/equations.py`, which knows
  nothing of paramtool's tables), byte for byte; the way back gives the bytes of the file that there was; and the same
  class opens that with every parameter as it was, so its logits are the same bits.
- **run by**: another implementation ran what paramtool wrote, in the place of the model's own. The error is the
  largest difference of a logit, in parts of the largest logit, and must be under {bound}. "our equations" are those of
  `tests/oracles/dialects/reference.py`, or of vLLM's and Megatron's merges, as their sources have them.
- **wrong layouts**: every other known layout whose tensor has the same shape ran, too. Each must be off by more than
  {far}; the column has their number and the smallest error. paramtool refuses a layout that config.json contradicts
  unless `--at` insists, as it does here; the number of those that it refuses even so follows. It has no layout for
  orders that no program writes (qvk, vkq), so the lines of the equations have more of them; where its own line has
  none, all its layouts of such a tensor are one order, as with one KV head, or it has one only, as for GPT-2.
- **refused**: without config.json, nothing says which of them it is, and paramtool refuses and writes nothing.
- Where the column **of** says "equations", our equations ran, and not paramtool's output: these lines show that the
  judge and the wrong layouts work.

"""
FORMS = """
## transformers-4 and transformers-5

Every key of `conversion_mapping` of transformers that converts values ({experts} of {every} are of experts), as a small
model of its default config, saved by transformers itself in its two forms. `paramtool convert --to transformers-5` of
the one is the other, byte for byte and name for name; `--to transformers-4` of that is the first again; and so it is
the other way round. transformers opens what was written as the same model, without complaints.

- **odd**: five experts, widths of which none is twice another.
- **square**: gate and up stacked are as wide as the model, so that no shape tells which axis is which.
- **changed**: how many tensors of the one form are no tensor of the other.

Two forms are not taken as transformers writes them, because what it writes there is not what people have: the three
convolutions of OLMo-Hybrid, which it cuts into equal thirds, and the experts of Qwen3-VL-MoE, which it does not turn
back (`tests/oracles/dialects/forms.py`). For paramtool, `transformers-4` is what people have: a stack of Qwen3-VL-MoE
is [experts, in, out] there and [experts, out, in] in `transformers-5`, there and back is the same file, and a square
stack, which does not show what it is, is refused.

"""


def page(result: Mapping[str, Any]) -> str:
    """The page, in Markdown."""
    keys = result["keys"]
    built = [line for line in keys if not line.get("why")]
    missing = [[f"`{line['key']}`", line["why"]] for line in keys if line.get("why")]
    mxnet = ", MXNet 1.9.1" if result["mxnet"] else ""
    parts = [
        HEAD.format(versions=result["versions"], mxnet=mxnet, bound=BOUND, far=FAR),
        *table(FAMILY, (family(line) for line in result["families"])),
        FORMS.format(experts=sum(line["experts"] for line in keys), every=len(keys)),
        *table(KEY, (key(line) for line in built)),
        f"\n{len(built)} of {len(keys)} were built, {sum(one['experts'] for one in built)} of them with experts.\n",
    ]
    if missing:
        parts += ["\nNot built:\n\n", *table(("key", "why"), missing)]
    return "".join(parts)


FAMILY = ("family", "conversion", "of", "bytes", "run by", "error", "wrong layouts", "smallest", "refused")
KEY = ("key", "class", "experts", "changed", "odd", "square")


def family(line: Mapping[str, Any]) -> list[str]:
    """A line of the table of families."""
    wrong = line["wrong"]
    count = f"{len(wrong)}, {len(line['refuses'])} refused" if line.get("refuses") else str(len(wrong))
    smallest = f"{min(wrong.values()):.2f}" if wrong else "-"
    return [
        line["family"], line["what"], line["source"], line["bytes"], line["judge"], f"{line['error']:.1e}",
        count, smallest, line["refused"],
    ]  # fmt: skip


def key(line: Mapping[str, Any]) -> list[str]:
    """A line of the table of forms."""
    experts = "yes" if line["experts"] else ""
    verdicts = line["verdicts"]
    return [f"`{line['key']}`", line["class"], experts, str(line["changed"]), *(verdicts[one] for one in KEY[4:])]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |\n" for row in cells]


def evidence(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """{part layout: what was run of it}, a line for each judge: `paramtool/parts/proofs.json`."""
    found: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for line in result["families"]:
        if line["source"] == "paramtool" and line["holds"]:
            for layout in layouts(line["what"]):
                found.setdefault(layout, {}).setdefault(line["judge"], []).append(line)
    versions = dict(one.split() for one in result["versions"].split(", "))
    about = f"transformers {versions['transformers']}"
    return {
        layout: [_said(judge, lines, about) for judge, lines in judges.items()]
        for layout, judges in sorted(found.items())
    }


def _said(judge: str, lines: Sequence[Mapping[str, Any]], about: str) -> str:
    models = ", ".join(dict.fromkeys(line["family"] for line in lines))
    wrong = [error for line in lines for error in line["wrong"].values()]
    far = f", other layouts by {min(wrong):.2f} and more" if wrong else ""
    error = max(line["error"] for line in lines)
    return f"oracle: {models} of {about}, run by {judge}: off by {error:.0e} of the largest logit at most{far}"


def layouts(what: str) -> list[str]:
    """The part layouts of a conversion that a line is of.

    >>> layouts("fuse qkv-per-group"), layouts("experts, gate-up, flat"), layouts("convert --to vllm (qkv, gate-up)")
    (['qkv-per-group'], ['experts-flat'], ['qkv', 'gate-up'])
    """
    if what.startswith("experts, "):
        _, order, orientation = what.split(", ")
        return [WORDS[f"{order} {orientation}"].layout]
    inside = what.partition("(")[2].rstrip(")")
    if inside:
        return ["rope-pairs" if one == "rotary pairs" else one for one in inside.split(", ")]
    name = what.partition(" ")[2]
    return [name] if what.startswith(("fuse ", "unfuse ")) else []
