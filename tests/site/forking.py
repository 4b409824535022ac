"""A process that has imported torch and paramtool's command line, and forks for each program of a page.

Each program runs in a process of its own, in which only libraries and the command line were imported before: a page
that forgets an import of paramtool fails, and the seconds that torch takes are spent once.
"""

from __future__ import annotations

import gc
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from tests.patience import PATIENCE
from tests.site.environment import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
SLOW = ("torch", "safetensors", "transformers", "keras", "onnxruntime")
"""Libraries that take long to be imported."""


MODELS: list[tuple[str, list[str]]] = [
    ("transformers", ["GPT2LMHeadModel", "LlamaForCausalLM"]),
    ("transformers.core_model_loading", []),
    ("transformers.conversion_mapping", []),
]
"""What commands import of transformers."""


class Ran(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


class Forking:
    """The process, from the side of the tests."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.site.forking"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"},
        )  # fmt: skip

    def run(self, words: Sequence[str], folder: Path, env: dict[str, str]) -> Ran:
        """`python PROGRAM.py ...` or `paramtool ...`, in a folder, with more of an environment."""
        assert self.process.stdin and self.process.stdout
        program = (folder / words[1]).read_text(encoding="utf-8") if words[0] == "python" else ""
        needed = imports(program) if program or not asks_transformers(words) else MODELS
        asked = {"words": list(words), "folder": str(folder), "env": env, "imports": needed}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return Ran(code, *((folder / name).read_text(encoding="utf-8") for name in (".out", ".err")))

    def set_up(self, maker: str, above: Path, folder: Path) -> Ran:
        """Run a function of tests/site that makes files in `folder`; the program that calls it goes to `above`."""
        program = above / "set_up.py"
        lines = ("from transformers import LlamaForCausalLM", "from pathlib import Path",
                 f"from tests.site import {maker.partition('.')[0]}", f"{maker}(Path.cwd())")  # fmt: skip
        program.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return self.run(["python", str(program)], folder, ENVIRONMENT)

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def asks_transformers(words: Sequence[str]) -> bool:
    """Whether a command asks transformers which tensors a config ties, or which parameters an optimizer has."""
    return not {"--config", "config-ties"}.isdisjoint(words) or "phi3-500" in words or "run/checkpoint-500" in words


def imports(program: str) -> list[tuple[str, list[str]]]:
    """(module, names in it) that a program imports of slow libraries; torch's optimizers import its compiler."""
    found = []
    for line in re.findall(r"^(?:import|from) .*", program, re.M):
        words = re.split(r"[ ,]+", line)
        if words[1].partition(".")[0] in SLOW:
            found.append((words[1], words[3:]))
    return [*found, ("torch._dynamo", [])] if "torch.optim" in program else found


def child(asked: dict[str, Any]) -> int:
    """The forked process: runs one program, and returns its exit code."""
    signal.alarm(int(PATIENCE))
    os.chdir(asked["folder"])
    for number, name in enumerate((os.devnull, ".out", ".err")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(asked["env"])
    try:
        if asked["words"][0] == "paramtool":
            from paramtool.__main__ import run

            sys.argv = asked["words"]
            run()
        else:
            sys.argv = asked["words"][1:]
            sys.path.insert(0, asked["folder"])
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Reads what to run, line by line, and answers with its exit code."""
    for name in ("torch", "paramtool.cli.main"):
        import_module(name)
    assert "paramtool.torch" not in sys.modules, "a program that forgets to import it would run here"
    for line in sys.stdin:
        asked = json.loads(line)
        for name, inside in asked["imports"]:
            module = import_module(name)
            for one in inside:
                getattr(module, one, None)
        gc.freeze()  # a collection in a child would copy the pages of all modules
        process = os.fork()
        if process == 0:
            code = child(asked)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
