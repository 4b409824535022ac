"""What every writing command makes of every fixture and sample, as digests: the same before and after a refactoring.

    python -m tests.golden.outputs before.json      in a checkout of one commit
    python -m tests.golden.outputs after.json       in a checkout of the other
    python -m tests.golden.outputs --compare before.json after.json

Exit code, standard output and standard error (with the temporary folder, times and sizes of files left out) and
the SHA-256 of each output file are recorded.  Exit status 1 where two records differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.hostile.command import quick

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT.parent / "shared" / "samples"
COMMANDS = {
    "dedup": ("dedup", "{input}", "-o", "out.safetensors"),
    "dedup to torch": ("dedup", "{input}", "-o", "out.pt", "--skip-unsupported"),
    "dedup derived": ("dedup", "{input}", "-o", "out.safetensors", "--derive-casts", "--fold-constants"),
    "dedup to shards": ("dedup", "{input}", "-o", "out", "--max-shard-size", "20kB", "--min-equal-bytes", "1"),
    "dedup last": ("dedup", "{input}", "-o", "out.safetensors", "--keep", "last", "--across-roles"),
    "family": ("dedup", "{input}", "{other}", "-o", "out", "--share-renamed"),
    "export": ("export", "{input}", "--all-names", "-o", "out.safetensors"),
    "convert to torch": ("convert", "{input}", "-o", "out.safetensors", "--to", "torch"),
    "convert to keras": ("convert", "{input}", "-o", "out.safetensors", "--to", "keras", "--keep-split"),
    "fuse": ("fuse", "{input}", "--layout", "cudnn", "-o", "out.safetensors"),
    "fuse and keep": ("fuse", "{input}", "--layout", "mxnet", "-o", "out.pt", "--keep-names"),
    "unfuse": ("unfuse", "{input}", "-o", "out.safetensors"),
    "inspect": ("inspect", "{input}", "--json", "--tensors", "--digest"),
}
CHANGING = re.compile(r"\b\d+(\.\d+)? s\b|\"seconds\": [0-9.]+|\"mtime[a-z_]*\": \d+|[0-9a-f]{8}\.tmp")


def inputs() -> Iterator[Path]:
    """Every file of the fixtures and samples that is no script or description, and every folder of them."""
    for root in (ROOT / "fixtures", SAMPLES):
        for path in sorted(root.rglob("*")) if root.is_dir() else ():
            if path.suffix not in (".py", ".md", ".json", ".txt", ".pyc") and "__pycache__" not in path.parts:
                yield path


def record(path: Path) -> dict[str, object]:
    """What each command makes of one input."""
    found: dict[str, object] = {}
    other = ROOT / "fixtures" / "torch" / "tied_flattened" / "tied_flattened.pt"
    for name, words in COMMANDS.items():
        with tempfile.TemporaryDirectory() as folder:
            ran = quick(*(word.format(input=path, other=other) for word in words), cwd=Path(folder))
            texts = [
                CHANGING.sub("*", text.replace(folder, "*").replace(str(ROOT), "*")) for text in (ran.out, ran.err)
            ]
            files = {
                os.path.relpath(os.path.join(place, one), folder): hashlib.sha256(
                    Path(place, one).read_bytes()
                ).hexdigest()
                for place, _, names in os.walk(folder)
                for one in sorted(names)
            }
            found[name] = {"code": ran.code, "out": texts[0], "err": texts[1], "files": files}
    return found


def main() -> int:
    """Record, or compare two records and print what differs."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--compare", action="store_true")
    arguments.add_argument("files", nargs="+", metavar="JSON")
    asked = arguments.parse_args()
    if not asked.compare:
        found = {os.path.relpath(path, ROOT): record(path) for path in inputs()}
        Path(asked.files[0]).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(f"{len(found)} inputs, {len(COMMANDS)} commands")
        return 0
    before, after = (json.loads(Path(one).read_text()) for one in asked.files)
    wrong = 0
    for path in sorted(before.keys() | after.keys()):
        for name in COMMANDS:
            one, two = (record.get(path, {}).get(name, {}) for record in (before, after))
            for key in sorted(one.keys() | two.keys()):
                if one.get(key) != two.get(key):
                    wrong += 1
                    print(f"{path}: {name}: {key}\n  {one.get(key)!r:.400}\n  {two.get(key)!r:.400}")
    print(f"{wrong} differences")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
