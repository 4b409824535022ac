"""One tensor, two tensors: every count in a report agrees with its word."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.hostile.command import quick

ROOT = Path(__file__).parents[2] / "paramtool"
WORDS = (
    "activation", "alias", "argument", "array", "axis", "block", "cell", "checkpoint", "copy", "defect",
    "difference", "direction", "element", "entry", "file", "finding", "folder", "gap", "gate", "group", "index",
    "input", "key", "layer", "line", "member", "memory", "module", "name", "network", "object", "parameter", "part",
    "place", "section", "shard", "storage", "tensor", "time", "unit", "value", "variant", "vector", "view", "window",
)  # fmt: skip
IRREGULAR = {"axis": "axes", "alias": "aliases", "entry": "entries", "index": "indexes", "memory": "memories",
             "copy": "copies"}  # fmt: skip
MANY = {IRREGULAR.get(word, f"{word}s") for word in WORDS}
ONE_OF_MANY = re.compile(rf"(?<![\d.,:='\-])1 (?:(?:more|other|stored|lacking|weights) )?({'|'.join(MANY)})\b")
MANY_OF_ONE = re.compile(
    rf"(?<![\d.,:'\-])(?:0|[2-9]|\d\d+) (?:(?:more|other|stored|lacking) )?({'|'.join(WORDS)})\b(?! [a-z]+=)"
)
BEHIND_A_VALUE = re.compile(rf"""\}}(?:["']\s*f?["'])? (?:more )?(?:{"|".join(MANY)})\b""")
"""Source in which an f-string may have a plural behind a value, in the same literal or in the next line's."""
T = torch.arange(2999.0)
"""A prime number of elements: few networks have as many, so that `guess` is quick."""


def wrong(text: str) -> list[str]:
    """Counts that do not agree with their words."""
    return [found[0] for pattern in (ONE_OF_MANY, MANY_OF_ONE) for found in pattern.finditer(text)]


def test_what_is_looked_for_is_found() -> None:
    """The check can fail."""
    assert wrong("1 tensors, 2 name; 1 more groups") == ["1 tensors", "1 more groups", "2 name"]
    assert not wrong("1 tensor, 2 names, 0 files, 11 tensors, 1.1 names, 21 axes")


STATES = {
    "none": {},
    "one": {"a": torch.arange(3000.0)},
    "two": {"a": T, "b": T + 1},
    "one alias": {"a": T, "b": T},
    "two aliases": {"a": T, "b": T, "c": T},
    "one equal": {"a": T, "b": T.clone()},
    "two equal": {"a": T, "b": T.clone(), "c": T.clone()},
    "nine alone": {str(k): T + k for k in range(9)},
    "nine aliases": {str(k): T for k in range(10)},
    "nine groups": {f"{k}.{part}": tensor for k in range(9) for tensor in [T + k] for part in "ab"},
    "nine equal groups": {f"{k}.{part}": T + k for k in range(9) for part in "ab"},
    "one constant": {"a": T, "c": torch.zeros(2999)},
    "nine casts": {f"{k}.{part}": T.to(t) * k for k in range(1, 10) for part, t in (("a", T.dtype), ("b", torch.half))},
    "slices": {"a": T, **{f"s{k}": T[k : k + 1201].clone() for k in range(1, 10)}},
    "one refused": {"a": T, "b": torch.eye(3).to_sparse()},
    "refused alone": {"b": torch.eye(3).to_sparse()},
    "two refused": {"a": T, "b": torch.eye(3).to_sparse(), "c": torch.eye(2).to_sparse()},
    "unused": {"a": torch.arange(9000.0)[:2999], "b": torch.arange(9000.0)[:2999]},
    "sections": {"model": {"a": T}, "optimizer": {"state": {0: {"exp_avg": T + 1, "step": T + 2}}, "param_groups": []}},
    "span": {"a": T[:1999], "b": T[1000:]},
    "lstm": nn.LSTM(1, 1).state_dict(),
    "two layers": {f"r.{name}": value for name, value in nn.LSTM(1, 1, 2).state_dict().items()},
    "fused": dict(zip(["r.weight_ih_l0", "r.weight_hh_l0"], torch.arange(8.0).split(4), strict=True)),
}  # fmt: skip
COMMANDS = [
    ("inspect", "m.pt"),
    ("inspect", "m.pt", "--digest", "--fail-on", "missing:zz", "--fail-on", "unused-bytes>0"),
    ("dedup", "m.pt", "-o", "d.safetensors", "--force"),
    ("dedup", "m.pt", "-o", "d.pt", "--force"),
    ("dedup", "m.pt", "-o", "e.safetensors", "--force", "--skip-unsupported", "--derive-casts", "--fold-constants"),
    ("dedup", "m.pt", "one.pt", "-o", "family", "--force"),
    ("dedup", "m.pt", "-o", "shards", "--max-shard-size", "15kB", "--force"),
    ("dedup", "shards", "-o", "shards2", "--force"),
    ("inspect", "e.safetensors"),
    ("inspect", "e.safetensors", "--digest"),
    ("inspect", "shards"),
    ("export", "m.pt", "--all-names", "-o", "x.safetensors", "--force"),
    ("export", "m.pt", "--all-names", "--dry-run", "-o", "x.safetensors", "--force"),
    ("export", "m.pt", "--names", "one.txt", "-o", "x.safetensors", "--force"),
    ("export", "m.pt", "--names", "two.txt", "-o", "x.safetensors", "--force"),
    ("export", "m.pt", "--like", "one.pt", "-o", "x.safetensors", "--force"),
    ("variants", "m.pt", "--against", "one.pt", "--against", "one.txt", "--against", "two.txt"),
    ("verify", "d.safetensors", "--against", "m.pt"),
    ("verify", "one.pt", "--against", "m.pt"),
    ("verify", "m.pt", "--against", "one.pt"),
    ("convert", "m.pt", "--to", "keras", "--keep-split", "-o", "k.safetensors", "--force"),
    ("fuse", "m.pt", "--layout", "cudnn", "--keep-names", "-o", "f.safetensors", "--force"),
    ("unfuse", "f.safetensors", "-o", "u.safetensors", "--force"),
    ("unfuse", "m.pt", "--layout", "cudnn", "--at", "a", "--spec", "lstm hidden=1", "-o", "u.safetensors", "--force"),
    ("guess", "m.pt"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("key", STATES)
def test_reports(key: str, tmp_path: Path) -> None:
    """All that every command says of none, one and several, errors and warnings too."""
    torch.save(STATES[key], tmp_path / "m.pt")
    torch.save({"a": torch.ones(2), "zz": T}, tmp_path / "one.pt")
    (tmp_path / "one.txt").write_text("a\n")
    (tmp_path / "two.txt").write_text("zz\nyy\n")
    for args in COMMANDS:
        ran = quick(*args, cwd=tmp_path)
        assert not wrong(ran.out + ran.err), (args, ran)
    assert json.loads(quick("inspect", "m.pt", "--json", cwd=tmp_path).out)["tensors"] >= 0


def counted_by_hand() -> Iterator[str]:
    """F-strings of the program in which a number meets the plural of a word: `plural` knows better."""
    for path in sorted(ROOT.rglob("*.py")):
        if not BEHIND_A_VALUE.search(text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.JoinedStr):
                continue
            for value, text in zip(node.values, node.values[1:], strict=False):
                if not (isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)):
                    continue
                said = re.match(rf" (?:more )?({'|'.join(MANY)})\b", str(text.value))
                if not said:
                    continue
                is_constant = isinstance(value.value, (ast.Name, ast.Attribute)) and ast.unparse(
                    value.value
                ).rpartition(".")[2].lstrip("_").isupper()  # fmt: skip
                if not is_constant:
                    yield f"{path.relative_to(ROOT)}: {{{ast.unparse(value.value)}}}{said[0]}"


ALWAYS_SEVERAL = {
    "commands/diff/found.py: {len(runs) // period} times",
    "formats/pickle/numpy_values.py: {len(shape)} axes",
    "formats/bson/read.py: {len(view.shape)} axes",
    "formats/folder/weight_sets.py: {len(older) + 1} checkpoints",
    "formats/hdf5/write.py: {len(target.shape)} axes",
    "passes/into/networks.py: {len(models)} networks",
    "passes/into/networks.py: {len(pieces)} layers",
    "passes/into/networks.py: {whole.spec.layers} layers",
    "formats/mxnet/params.py: {count} arrays",
    "formats/mxnet/params.py: {many} times",
    "formats/mxnet/ndarray.py: {ndim} axes",
    "guessing/cells.py: {gates} blocks",
    "guessing/names.py: {specs} networks",
    "layouts/networks.py: {first + (layers - 1) * further} elements",  # of a network: 2 at the least
    "layouts/networks.py: {len(distinct)} networks",
    "layouts/own.py: {count} tensors",
    "passes/rnn/rewrite.py: {one.spec.layers} cells",
    "passes/select.py: {len(winners)} sections",
    "passes/rnn/find.py: {len(ats)} modules",
    "commands/report/compared.py: {len(one.bins)} parts",
    "formats/torch/globals.py: {parts} times",
    "formats/torch/globals.py: {lengths[k]} parts",
    "passes/types/dequantise.py: {' x '.join(map(str, packing.tile))} elements",
}
"""Counts that are above 1 where they are said."""
NO_COUNTS = {
    "formats/safetensors/index.py: {path} names",
    "commands/check/check.py: {lock.path} names",  # a verb
    "commands/check/check.py: {where} names",
    "commands/check/check.py: {self.lock.path} names",
    "commands/refuse_unlocked.py: {next(iter(known.models))} names",
    "commands/check/config.py: {shown(one)} names",
    "commands/dedup.py: {writer.name} files",
    "commands/output/write.py: {where.writer.name} files",
    "commands/output/writer.py: {self.name} files",
    "passes/into/networks.py: {whole.at} names",
    "parts/facts.py: {text} names",
    "formats/mxnet/ndarray.py: {list(stored)} values",  # a shape  # a verb
    "model/dtype.py: {numel} elements",  # of packed types, never 1 in a block
}


def test_no_count_is_written_by_hand() -> None:
    """Each new one goes through `plural`, or is above 1 and listed here."""
    assert set(counted_by_hand()) == ALWAYS_SEVERAL | NO_COUNTS
