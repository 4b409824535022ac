"""The page that tells what was run: docs/proofs-dialects.md, written from what prove.py found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
  {far}; the column has their number and the smallest error.
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
    smallest = f"{min(wrong.values()):.2f}" if wrong else "-"
    return [
        line["family"], line["what"], line["source"], line["bytes"], line["judge"], f"{line['error']:.1e}",
        str(len(wrong)), smallest, line["refused"],
    ]  # fmt: skip


def key(line: Mapping[str, Any]) -> list[str]:
    """A line of the table of forms."""
    experts = "yes" if line["experts"] else ""
    verdicts = line["verdicts"]
    return [f"`{line['key']}`", line["class"], experts, str(line["changed"]), *(verdicts[one] for one in KEY[4:])]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |\n" for row in cells]
