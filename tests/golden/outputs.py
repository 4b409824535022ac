"""What every command makes of every fixture, sample and finding, as digests: the same before and after a refactoring.

    python -m tests.golden.outputs before.json      in a checkout of one commit
    python -m tests.golden.outputs after.json       in a checkout of the other
    python -m tests.golden.outputs --compare before.json after.json

Exit code, standard output and standard error of each command line (with the temporary folder, times and sizes of files
left out) and the SHA-256 of each output file are recorded.  Beside the files, small models of transformers are saved as
folders; they need the libraries of `make test`.  `--only WORD` takes the inputs whose names have the word,
`--processes` records in several.  Exit status 1 where two records differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT.parent / "shared" / "samples"
OTHER = ROOT / "fixtures" / "torch" / "tied_flattened" / "tied_flattened.pt"
INTO = {
    "keras": ROOT / "fixtures" / "guess" / "keras_model.keras",
    "onnx": ROOT / "fixtures" / "onnx" / "exported_rnn" / "exported_rnn.onnx",
}
SUFFIXES = (".safetensors", ".pt", ".npz", ".params", ".msgpack", ".h5")
DIALECTS = ("vllm", "transformers-5", "transformers-4", "meta", "megatron", "timm")
MODELS = ("GPT-2 tied", "BERT with its MLM head", "T5", "BART encoder", "ALBERT", "Llama tied", "Mixtral")
COMMANDS = {
    "dedup": "dedup {input} -o out.safetensors; verify out.safetensors --against {input}; inspect out.safetensors; "
    "diff {input} out.safetensors --exit-code; diff out.safetensors {input} --exit-code; "
    "export out.safetensors --like {input} -o plain.safetensors",
    "dedup as typed": "dedup {input} --dry-run --json; dedup {input} -o out.safetensors --force; "
    "dedup {input} -o out.safetensors",
    "dedup to torch": "dedup {input} -o out.pt --skip-unsupported; verify out.pt --against {input}",
    "dedup derived": "dedup {input} -o out.safetensors --derive-casts --fold-constants",
    "dedup to shards": "dedup {input} -o out --max-shard-size 20kB --min-equal-bytes 1; verify out --against {input}",
    "dedup last": "dedup {input} -o out.safetensors --keep last --across-roles",
    "family": "dedup {input} {other} -o out --share-renamed; inspect out",
    "export": "export {input} --all-names -o out.safetensors; verify out.safetensors --against {input} --subset",
    "convert to torch": "convert {input} -o out.safetensors --to torch; verify out.safetensors --against {input}",
    "convert to keras": "convert {input} -o out.safetensors --to keras --keep-split; diff {input} out.safetensors",
    "convert to onnx": "convert {input} -o out.safetensors --to onnx",
    "convert --dtype": "convert {input} -o out.safetensors --dtype bfloat16; verify out.safetensors --against {input}",
    "fuse": "fuse {input} --layout cudnn -o out.safetensors; verify out.safetensors --against {input}; "
    "unfuse out.safetensors -o back.safetensors; diff {input} back.safetensors --exit-code",
    "fuse and keep": "fuse {input} --layout mxnet -o out.pt --keep-names",
    "fuse qkv": "fuse {input} --layout qkv -o out.safetensors; verify out.safetensors --against {input}",
    "unfuse": "unfuse {input} -o out.safetensors; verify out.safetensors --against {input}",
    "inspect": "inspect {input}; inspect {input} --json --tensors --digest; inspect {input} --optimizer",
    "guess": "guess {input}; guess {input} --json",
    "diff": "diff {input} {other} --exit-code; diff {other} {input} --json",
    "lock": "lock {input} -o lock; check {input} --lock lock; check {input} --lock lock --format json",
    "check": "check {input}; check {input} --format sarif; check {input} --format junit",
    "variants": "variants {input} --against {other}; variants {other} --against {input} --json",
    "report": "report {input} -o out.html",
    "to dcp": "convert {input} --format dcp -o out; verify out --against {input}",
    **{f"write {one}": f"convert {{input}} -o out{one}; verify out{one} --against {{input}}" for one in SUFFIXES},
    **{f"to {one}": f"convert {{input}} --to {one} -o o{{suffix}}; verify o{{suffix}} --against {{input}}"
       for one in DIALECTS},
    **{f"--into {one}": f"convert {{input}} --into {{{one}}} -o out.{one}; "
       f"verify out.{one} --against {{input}} --into {{{one}}}" for one in INTO},
}  # fmt: skip
"""{name: lines, typed one after the other in one folder until one fails}"""
CHANGING = re.compile(
    r"\b\d+(\.\d+)? m?s\b|\"seconds\": [0-9.]+|\"mtime[a-z_]*\": \d+|[0-9a-f]{8}\.tmp|time=\"[0-9.]+\""
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?Z?"
)


def saved(folder: Path) -> Iterator[tuple[str, Path]]:
    """(name, path) of folders that transformers saves."""
    import torch

    from tests.oracles.real_models import examples

    for name in MODELS:
        torch.manual_seed(0)
        path = folder / name.lower().replace(" ", "-")
        examples.MODELS[name].build().save_pretrained(path)
        yield f"transformers/{path.name}", path


def record(path: Path) -> dict[str, object]:
    """What each command makes of one input."""
    from tests.hostile.command import quick

    found: dict[str, object] = {}
    suffix = "" if path.is_dir() else ".safetensors"
    for name, lines in COMMANDS.items():
        with tempfile.TemporaryDirectory() as folder:
            ran = []
            for line in lines.split("; "):
                words = [word.format(suffix=suffix, input=path, other=OTHER, **INTO) for word in line.split(" ")]
                code, *texts = quick(*words, cwd=Path(folder))
                for place, what in ((folder, "*"), (str(path.parent), ".."), (str(ROOT), "*")):
                    texts = [text.replace(place, what) for text in texts]
                ran.append([line, code, *(CHANGING.sub("*", text) for text in texts)])
                if code not in (0, 1):
                    break
            files = {
                str(one.relative_to(folder)): hashlib.sha256(one.read_bytes()).hexdigest()
                for one in sorted(Path(folder).rglob("*"))
                if one.is_file()
            }
            found[name] = {"ran": ran, "files": files}
    return found


def main() -> int:
    """Record, or compare two records and print what differs."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--compare", action="store_true")
    arguments.add_argument("--only", default="")
    arguments.add_argument("--processes", type=int, default=1)
    arguments.add_argument("files", nargs="+", metavar="JSON")
    asked = arguments.parse_args()
    if not asked.compare:
        from tests.golden.works.files import inputs

        made = Path(tempfile.mkdtemp())
        every = {name: path for name, path in (*inputs(), *saved(made)) if asked.only in name}
        with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
            found = dict(zip(every, pool.map(record, every.values()), strict=True))
        shutil.rmtree(made)
        Path(asked.files[0]).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{len(found)} inputs, {len(COMMANDS)} sequences of commands")
        return 0
    before, after = (json.loads(Path(one).read_text(encoding="utf-8")) for one in asked.files)
    wrong = 0
    for path in sorted(before.keys() | after.keys()):
        for name in sorted({*before.get(path, ()), *after.get(path, ())}):
            one, two = (record.get(path, {}).get(name, {"ran": [], "files": {}}) for record in (before, after))
            lines = max(len(one["ran"]), len(two["ran"]))
            names = {**one["files"], **two["files"]}
            pairs = [(file, one["files"].get(file), two["files"].get(file)) for file in names]
            pairs += [(f"line {k + 1}", one["ran"][k : k + 1], two["ran"][k : k + 1]) for k in range(lines)]
            for key, first, second in pairs:
                if first != second:
                    wrong += 1
                    print(f"{path}: {name}: {key}\n  {first!r:.600}\n  {second!r:.600}")
    print(f"{wrong} differences")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
