"""Writes skills/paramtool/SKILL.md, which tells coding agents when and how to use paramtool.

Run it as `python docs/make_skill.py`.  The commands come from the help of paramtool, the exit codes from their page.
"""

from __future__ import annotations

import os
import re

import click

from paramtool.cli.main import COMMANDS, cli

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "skills", "paramtool", "SKILL.md")
HEAD = """\
---
name: paramtool
description: Inspect, deduplicate, convert, compare, lock and check model checkpoints (.pt, .safetensors, .bin, .h5,
  .onnx, .npz, .params, .msgpack, sharded and training folders) without loading them and without running pickles.  Use
  it to see which parameters share memory, why a key is missing, whether two checkpoints are the same weights, or to
  move weights between transformers, vLLM, Megatron, PyTorch, Keras, MXNet and ONNX.
---

# paramtool

Install: `pip install .` in a checkout; there is no release yet.  No torch is needed, except to load a model.

Ground rules:

- It never unpickles a file.  To look into a checkpoint of a stranger, run `paramtool inspect`, and not `torch.load`.
- Every command prints one JSON document with `--json`.  Parse that, and not the text for people.
- An existing output needs `--force`.  An input is never changed.
- Every output is read back and compared with its source before it appears, unless `--no-verify` is given.
- Exit code 0 means that nothing was lost and nothing was assumed in silence.  Read warnings on standard error all the
  same, and pass them on.
- Equal bytes are not a tie: names share memory in an output only if they did in the source, or if a config declares it.

## Commands
"""


def document() -> str:
    """The whole file."""
    context = click.Context(cli)
    parts = [HEAD]
    for want in dict.fromkeys(want for want, *_ in COMMANDS.values()):
        parts.append(f"\n### {want.capitalize()}\n")
        for name in (name for name, said in COMMANDS.items() if said[0] == want):
            what = COMMANDS[name][1]
            command = cli.get_command(context, name)
            assert command is not None and command.help is not None
            lines = [line.strip() for line in command.help.split("\n") if line.strip().startswith("$ ")]
            examples = "\n".join(line.removeprefix("$ ") for line in lines)
            parts.append(f"\n`{name}`: {what}.\n\n```\n{examples}\n```\n")
    parts.append("\n`paramtool help COMMAND --all` lists every flag.\n\n## Exit codes\n\n")
    parts += (f"- {code}: {_short(meaning)}\n" for code, meaning in _exit_codes())
    return "".join(parts)


def _exit_codes() -> list[tuple[str, str]]:
    with open(os.path.join(ROOT, "docs", "exit-codes.md"), encoding="utf-8") as file:
        return re.findall(r"^\| ([0-9, ]+) \| (.*) \|$", file.read(), re.MULTILINE)


def _short(meaning: str) -> str:
    """The first sentence, without links."""
    return re.sub(r" ?\(?\[[^\]]*\]\([^)]*\)\)?", "", re.split(r"\.  |: please", meaning)[0])


if __name__ == "__main__":
    os.makedirs(os.path.dirname(PAGE), exist_ok=True)
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(document())
