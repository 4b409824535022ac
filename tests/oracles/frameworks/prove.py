"""Proves conversions by running their results in the frameworks themselves, and writes down how far off they are.

    python prove.py --environments DIR [--only mxnet1,jax] [-o docs/proofs.md] [--json build/proofs.json]
    python prove.py --records -o docs/proofs.md

DIR has one environment a `requirements-<name>.txt` beside this file, with that name; `make oracles` makes them. The
scripts `run_<name>.py` are run by the Python there, and cases.py makes what they run. Exit status 1 where an error is
over the bound, where a script breaks, or where a negative control goes unnoticed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from _controls import controls
from _neutral import error
from _proofs_page import page, with_records
from cases import Made, Proof, prove_layout

HERE = Path(__file__).parent
BOUND = 1e-5
"""Of the error of a right conversion."""
FAR = 0.05
"""A wrong one has more."""
MAIN = "main"
"""The environment that runs this script."""
SECONDS = 3600
"""For one script."""


@dataclass(frozen=True)
class Runner:
    """A script, where it runs, and what it runs."""

    environment: str
    script: str
    layouts: tuple[str, ...]
    """With options; those of one layout are proved one after another."""
    title: str
    """What it is called, with {names} of versions that the script writes down."""
    variables: Mapping[str, str] = field(default_factory=dict)


KERAS = ("keras", "keras.vars")
TF1 = ("tf1.basic", "tf1.basic:forget_bias=0", "tf1.block", "tf1.block:forget_bias=0", "tf1.canonical", "tf1.opaque")
MXNET1 = ("mxnet", "mxnet.unfused", "mxnet.gates", "mxnet.flat")
RUNNERS = (
    Runner(MAIN, "run_torch.py", ("torch", "torch.cell"), "PyTorch {torch}"),
    Runner(MAIN, "run_onnxruntime.py", ("onnx",), "ONNX Runtime {onnxruntime}"),
    Runner("keras", "run_keras.py", KERAS, "Keras {keras} on {keras backend}", {"KERAS_BACKEND": "torch"}),
    Runner("tf", "run_keras.py", KERAS, "Keras {keras} on {keras backend}", {"KERAS_BACKEND": "tensorflow"}),
    Runner("tf", "run_tf_keras.py", (*KERAS, "keras.cudnn"), "tf_keras {tf_keras}"),
    Runner("tf", "run_tf1.py", TF1, "TensorFlow {tensorflow}"),
    Runner("jax", "run_flax.py", ("flax.linen", "flax.nnx", "flax.nnx.optimized"), "Flax {flax}"),
    Runner("jax", "run_haiku.py", ("haiku", "haiku:double_bias=no"), "Haiku {dm-haiku}"),
    Runner("jax", "run_equinox.py", ("equinox",), "Equinox {equinox}"),
    Runner("jax", "run_jax_rnn.py", ("cudnn", "miopen"), "JAX {jax}'s own reader of such vectors, on a CPU"),
    Runner("mxnet1", "run_mxnet1.py", MXNET1, "MXNet {mxnet1}"),
    Runner("mxnet1", "run_mxnet_cells.py", ("mxnet.cell",), "MXNet {mxnet1}"),
    Runner("mxnet2", "run_mxnet2.py", ("mxnet.v2",), "MXNet {mxnet2}"),
    Runner("paddle", "run_paddle.py", ("paddle",), "Paddle {paddlepaddle}"),
    Runner("paddle", "run_onednn.py", ("onednn",), "oneDNN {onednn}"),
    Runner("chainer", "run_chainer.py", ("chainer",), "Chainer {chainer}"),
    Runner("coreml", "run_coreml.py", ("coreml",), "constants of coremltools {coremltools}'s converter"),
)
ENVIRONMENTS = tuple(dict.fromkeys(runner.environment for runner in RUNNERS))


@dataclass(frozen=True)
class Outcome:
    """What came of one case; one of the last three is there."""

    made: Made
    error: float | None = None
    ran: str = ""
    cannot: str = ""
    """Why the framework has no such network."""
    broken: str = ""
    """A traceback."""

    @property
    def failure(self) -> str:
        """What is wrong with it, if anything."""
        if self.broken:
            return f"{self.made.name}: {self.broken.strip().splitlines()[-1]}"
        if self.error is None:
            return ""
        if self.is_control and not self.error > FAR:
            return f"{self.made.name}: the error is {self.error:.2g}, of a wrong conversion it must be over {FAR}"
        if not self.is_control and not self.error < BOUND:
            return f"{self.made.name}: the error is {self.error:.2g}, the bound is {BOUND}"
        return ""

    @property
    def is_control(self) -> bool:
        """Whether it is wrong on purpose."""
        return self.made.way not in ("to", "from")


@dataclass(frozen=True)
class Run:
    """What came of one layout in one framework."""

    runner: Runner
    proof: Proof
    outcomes: tuple[Outcome, ...]
    versions: Mapping[str, str]

    def errors(self, way: str) -> list[float]:
        """Of all cases of a way that ran."""
        return [one.error for one in self.outcomes if one.made.way == way and one.error is not None]

    def kinds(self) -> list[str]:
        """What ran, in order."""
        ran = [one.made.kind for one in self.outcomes if one.error is not None and not one.is_control]
        return list(dict.fromkeys(ran))

    def told(self) -> dict[str, Any]:
        """All that is written down of it."""
        cannot: dict[str, list[str]] = {}
        for one in self.outcomes:
            if one.cannot and not one.is_control and one.made.kind not in cannot.setdefault(one.cannot, []):
                cannot[one.cannot].append(one.made.kind)
        return {
            "layout": self.proof.layout,
            "run by": self.runner.title.format(**self.versions),
            "versions": self.versions,
            "ran": sorted({one.ran for one in self.outcomes if one.ran}),
            "kinds": self.kinds(),
            **{way: {"cases": len(found), "error": max(found, default=None)} for way in ("to", "from")
               if (found := self.errors(way)) is not None},
            "controls": {one.made.way: one.error for one in self.outcomes if one.is_control and one.error is not None},
            "refused": self.proof.refused,
            "cannot": cannot,
            "failures": [one.failure for one in self.outcomes if one.failure],
        }  # fmt: skip


def interpreter(environment: str, folder: Path) -> str:
    """The Python of an environment."""
    return sys.executable if environment == MAIN else str(folder / environment / "bin" / "python")


@cache
def proof_of(layout: str, few: bool) -> tuple[Proof, tuple[Made, ...]]:
    """A layout's cases and negative controls; layouts with options have the controls of the one without."""
    return prove_layout(layout, few), () if ":" in layout else controls(layout, few)


def run(runner: Runner, python: str, few: bool = False) -> list[Run]:
    """Run every case of a runner's layouts; RuntimeError where the script itself breaks."""
    proofs = [proof_of(layout, few) for layout in runner.layouts]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for proof, wrong in proofs:
            for made in (*proof.made, *wrong):
                made.write(root)
        done = subprocess.run(
            [python, str(HERE / runner.script), str(root)],
            env={**os.environ, **runner.variables},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{runner.script} in {runner.environment} ended with {done.returncode}\n{done.stderr}")
        versions = json.loads((root / "versions.json").read_text(encoding="utf-8"))
        return [
            Run(runner, proof, tuple(judged(made, root / made.name) for made in (*proof.made, *wrong)), versions)
            for proof, wrong in proofs
        ]


def judged(made: Made, folder: Path) -> Outcome:
    """What the script answered, compared with what should come of it."""
    path = folder / "outputs.json"
    if not path.exists():
        return Outcome(made, broken="no answer: the script does not know the layout")
    said = json.loads(path.read_text(encoding="utf-8"))
    if "cannot" in said:
        return Outcome(made, cannot=said["cannot"])
    if "error" in said:
        return Outcome(made, broken=said["error"])
    with np.load(folder / "outputs.npz") as file:
        found = {name: file[name] for name in file.files}
    return Outcome(made, max(error(found, made.expected), said.get("constants", 0.0)), said["ran"])


# --- the command line ---------------------------------------------------------------------------------------------


def all_runs(runners: Iterable[Runner], folder: Path) -> Iterator[dict[str, Any]]:
    """What is written down of each run; a line for each is printed as it comes."""
    print(f"{'layout':26} {'run by':34} {'to':>14} {'from':>14} {'controls':>12}")
    for runner in runners:
        began = time.monotonic()
        try:
            found = [one.told() for one in run(runner, interpreter(runner.environment, folder))]
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as broken:
            print(f"{runner.script} in {runner.environment} broke: {broken}")
            yield {"layout": runner.layouts[0], "run by": runner.script, "failures": [str(broken)]}
            continue
        for one in found:
            print(line(one), flush=True)
            for failure in one["failures"]:
                print(f"  {failure}")
            yield one
        print(f"  {runner.script} in {runner.environment}: {time.monotonic() - began:.0f} s", flush=True)


def line(one: Mapping[str, Any]) -> str:
    """A run in the table that is printed."""
    ways = [f"{way['cases']:4d} {way['error'] or 0:9.1e}" for way in (one["to"], one["from"])]
    smallest = f"{len(one['controls']):4d} {min(one['controls'].values(), default=0):7.2f}"
    return f"{one['layout']:26} {one['run by'][:34]:34} {ways[0]} {ways[1]} {smallest}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; an exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--environments", type=Path, help="the folder that has them all")
    parser.add_argument(
        "--records", action="store_true", help="run nothing: only write the page's section on GPUs anew"
    )
    parser.add_argument("--only", default="", help=f"some of {','.join(ENVIRONMENTS)}; no page can be written then")
    parser.add_argument("-o", "--output", type=Path, help="the page, in Markdown")
    parser.add_argument("--json", type=Path, help="everything, as JSON")
    said = parser.parse_args(arguments)
    if said.records and said.output and said.output.is_file():
        said.output.write_text(with_records(said.output.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if said.environments is None:
        parser.error("--environments, or --records with -o and a page that is there")
    only = [name for name in said.only.split(",") if name]
    if unknown := set(only) - set(ENVIRONMENTS):
        parser.error(f"no environment {min(unknown)}; there are {', '.join(ENVIRONMENTS)}")
    if only and said.output:
        parser.error("the page tells of all environments: leave out --only or -o")
    runs = list(all_runs([one for one in RUNNERS if not only or one.environment in only], said.environments))
    result = {"date": date.today().isoformat(), "bound": BOUND, "far": FAR, "runs": runs}
    failures = [failure for one in runs for failure in one["failures"]]
    if said.json:
        said.json.parent.mkdir(parents=True, exist_ok=True)
        said.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if said.output and not failures:
        said.output.write_text(page(result), encoding="utf-8")
    print(f"{len(failures)} failures" + (f"; {said.output} is left as it was" if failures and said.output else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
