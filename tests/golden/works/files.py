"""What the commands make of every fixture and sample: exit codes, and digests of values that other libraries read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tests.golden.outputs import ROOT, SAMPLES
from tests.golden.works import Facts, Jobs
from tests.hostile.command import quick
from tests.laws.sharing import raw

FINDINGS = SAMPLES.parent / "findings"
TRUTH = json.loads((ROOT / "fixtures" / "guess" / "truth.json").read_text(encoding="utf-8"))
WRONG = (
    "cast-of-codes", "check-folder", "compiled-blocks", "gates", "haste", "keras-lambda", "mlx", "numpy-to-dcp",
    "object-arrays", "rank-files", "stride0", "truncated-exec", "hang1.h5", "hang2.h5", "places.pt", "nan_keys.pt",
    "constant.safetensors",
)  # fmt: skip
"""Findings whose every answer was wrong, or that take long."""
NOT = (".py", ".md", ".json", ".txt", ".toml", ".pyc", ".states", ".distcp", ".index")
LAYOUTS = ("torch", "cudnn", "keras", "onnx", "mxnet")


def digest(path: Path) -> str:
    """Of names, types, shapes and bytes, as safetensors or torch reads them."""
    found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=False)
    made = hashlib.sha256()
    for name, tensor in sorted(flat("", found)):
        made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode() + raw(tensor))
    return made.hexdigest()[:12]


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of what is nested."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield name, value
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(f"{name}.{key}", item)


def done(*words: object, cwd: Path, codes: tuple[int, ...] = (0,)) -> int:
    """The exit status of a command, which is one of `codes`."""
    ran = quick(*words, cwd=cwd)
    assert ran.code in codes, f"exit {ran.code}: {ran.err}"
    return ran.code


def written(*words: object, output: str, source: Path, folder: Path, verify: tuple[str, ...] = ()) -> str | None:
    """A command writes a file, which `verify` proves; its digest, where it is a file of tensors."""
    done(*words, "-o", output, "--force", cwd=folder)
    done("verify", output, "--against", source, *verify, cwd=folder)
    path = folder / output
    return digest(path) if path.suffix in (".safetensors", ".pt") and path.is_file() else None


def of(path: Path) -> Callable[[Path], Facts]:
    """The job of a file or a folder."""

    def job(folder: Path) -> Facts:
        yield "inspect", lambda: done("inspect", path, cwd=folder)
        yield "inspect --digest", lambda: done("inspect", path, "--digest", "--tensors", cwd=folder)
        yield "inspect --json", lambda: done("inspect", path, "--json", cwd=folder)
        yield "dedup --dry-run", lambda: done("dedup", path, "--dry-run", cwd=folder)
        write: Any = partial(written, source=path, folder=folder)
        for output in ("a.safetensors", "a.pt"):
            yield f"dedup to {output[1:]}", partial(write, "dedup", path, output=output)
        yield "dedup to shards", partial(write, "dedup", path, "--max-shard-size", "2kB", output="shards")
        yield "dedup to dcp", partial(write, "dedup", path, "--format", "dcp", output="dcp")
        yield "export", partial(write, "export", path, "--all-names", output="e.safetensors", verify=("--subset",))
        for suffix in (".npz", ".params", ".msgpack", ".h5"):
            yield f"convert to {suffix}", partial(write, "convert", path, output=f"c{suffix}")
        yield "diff with its dedup", lambda: done("diff", path, "a.safetensors", "--exit-code", cwd=folder)
        yield "diff of its dedup", lambda: done("diff", "a.safetensors", path, "--exit-code", cwd=folder)
        yield "lock", lambda: done("lock", path, "-o", "lock", cwd=folder)
        yield "check against it", lambda: done("check", path, "--lock", "lock", cwd=folder)
        for dtype in ("bfloat16", "float16", "float64"):
            yield (
                f"convert --dtype {dtype}",
                partial(write, "convert", path, "--dtype", dtype, output=f"{dtype}.safetensors"),
            )
        networks = TRUTH.get(path.name, {}).get("networks", ()) if path.parent.name == "guess" else ()
        said = ["--from", networks[0]["layout"], "--spec", networks[0]["spec"]] if len(networks) == 1 else []
        if "lock" in path.name:
            return
        for layout in LAYOUTS:
            words = ["convert", path, "--to", layout]
            yield f"to {layout}", partial(write, *words, output=f"{layout}.safetensors")
            if said:
                yield f"to {layout}, as it is known", partial(write, *words, *said, output=f"s.{layout}.safetensors")

    return job


def inputs() -> Iterator[tuple[str, Path]]:
    """(name, path) of every file and every folder of one checkpoint."""
    for root in (ROOT / "fixtures", SAMPLES, FINDINGS):
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            parts = path.relative_to(root).parts
            is_whole = any((path / name).exists() for name in (".metadata", "latest", "config.json"))
            is_part = any((folder / ".metadata").exists() or (folder / "latest").exists() for folder in path.parents)
            is_file = path.is_file() and path.suffix not in NOT and not path.name.startswith(".")
            if (is_file or is_whole) and not is_part and not {*parts} & {*WRONG} and "__pycache__" not in parts:
                name = "/".join((root.name, *parts))
                yield name, path


JOBS: Jobs = {name: of(path) for name, path in inputs()}
