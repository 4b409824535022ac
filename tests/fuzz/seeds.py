"""What is mutated: small files of every form: fixtures, those of the contract tests, and what paramtool writes."""

from __future__ import annotations

import collections
import datetime
import json
import pickle
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from paramtool.commands import dedup as dedup_command
from paramtool.commands import dedup_many
from paramtool.commands import lock as lock_command
from paramtool.commands import relayout as relayout_command
from paramtool.formats import table
from tests.contracts.makers import CASES, state

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
MAX_NBYTES = 48_000
"""Larger fixtures are left out: small ones are mutated more often where it matters."""


@dataclass(frozen=True)
class Seed:
    """Files of one checkpoint."""

    format: str
    name: str
    main: str
    """The file, or `.` for the folder, that is named on the command line."""
    files: dict[str, bytes]
    kinds: dict[str, str]
    """{file: row of `mutators.KINDS`}; others are never mutated."""
    network: bool = False
    """Whether there is something to convert."""


def _read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


FORMS = {"zip": "torch", "zip without CRC": "torch", "stacked": "stacked", "tar": "tar", "bare npy": "npy"}


def contracts() -> Iterator[Seed]:
    """One small file of every form that the contract tests know."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as place:
            path = case.make(Path(place))
            files = _read(Path(place))
            kind = {
                "keras": "keras" if path.suffix == ".keras" else "hdf5",
                "jld2": "hdf5",
                "sharded": "json",
                "dcp": "pickle",
            }
            kinds = {path.name: FORMS.get(case.name, kind.get(case.format, case.format))}
            beside = {"sharded": "safetensors", "tensorflow": "raw", "dcp": "raw"}.get(case.format)
            if beside:
                kinds |= {name: beside for name in files if name != path.name}
            yield Seed(
                case.format, f"contract {case.name}", path.name, files, kinds, "keras" in (path.suffix, case.format)
            )


def _kind(path: Path) -> str | None:
    """What a fixture is, from its name and first bytes."""
    head = path.read_bytes()[:8]
    ends = {
        ".npy": "npy",
        ".onnx": "onnx",
        ".bson": "bson",
        ".h5": "hdf5",
        ".jld2": "hdf5",
        ".keras": "keras",
        ".safetensors": "safetensors",
        ".msgpack": "msgpack",
        ".pkl": "pickle",
        ".pdparams": "pickle",
        ".index": "tensorflow",
    }
    if path.suffix in ends:
        return ends[path.suffix]
    if path.suffix in (".npz", ".params") and head[:2] == b"PK":
        return "npz"
    if path.suffix == ".params":
        return "mxnet"
    return "torch" if path.suffix in (".pt", ".ckpt") and head[:2] == b"PK" else None


def _fixtures() -> Iterator[Seed]:
    """The files of other libraries, each alone with what has to stand beside it."""
    for path in sorted(FIXTURES.rglob("*")):
        if not path.is_file() or path.stat().st_size > MAX_NBYTES or (kind := _kind(path)) is None:
            continue
        beside = [
            one
            for one in sorted(path.parent.iterdir())
            if one.name.endswith("-symbol.json") or one.name == "weights.bin" or ".data-" in one.name
        ]
        if path.parent.name == "guess":
            beside = []
        files = {one.name: one.read_bytes() for one in (path, *beside)}
        kinds = {path.name: kind} | {one.name: "json" for one in beside if one.suffix == ".json"}
        format_ = {"hdf5": "jld2" if path.suffix == ".jld2" else "keras", "npy": "npz"}.get(kind, kind)
        yield Seed(format_, str(path.relative_to(FIXTURES)), path.name, files, kinds, network=True)


def _saved(name: str, value: object, **options: bool) -> Seed:
    """A file of torch.save."""
    with tempfile.TemporaryDirectory() as place:
        torch.save(value, Path(place) / "model.pt", **options)
        return Seed("torch", f"torch {name}", "model.pt", _read(Path(place)), {"model.pt": "torch"})


def training() -> dict[str, object]:
    """A training checkpoint: a model, its optimizer, a schedule, objects of a few classes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    slots = {k: {"step": torch.tensor(1.0), "exp_avg": p.detach() / 8, "exp_avg_sq": p.detach() ** 2}
             for k, p in enumerate(model.parameters())}  # fmt: skip
    optimizer = {"state": slots, "param_groups": [{"lr": 0.001, "betas": (0.9, 0.999), "params": list(slots)}]}
    return {"state_dict": model.state_dict(), "optimizer": optimizer, "epoch": 3, "args": Namespace(lr=0.1),
            "when": datetime.datetime(2020, 1, 2)}  # fmt: skip


def odd() -> dict[str, object]:
    """Tensors that are not plain: parameters, conjugated, sparse, quantised, of eight bits, without memory."""
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    return {
        "parameter": weight, "again": weight, "conj": torch.tensor([1 + 2j, 3j]).conj(),
        "sparse": torch.eye(3).to_sparse(), "fp8": torch.ones(4).to(torch.float8_e4m3fn),
        "meta": torch.empty(3, device="meta"), "flags": torch.tensor([True, False]),
        "history": collections.deque([0.5, 0.25], 3), "expanded": torch.ones(1).expand(2, 3),
        "size": torch.Size([1, 2]),
        "nested": [(torch.zeros(2), {"x": torch.ones(2)}), None, 1.5, "text", b"bytes", 2**70],
    }  # fmt: skip


def _recorded() -> Iterator[Seed]:
    """What paramtool writes: records of aliases in three versions, of layouts, in a torch file, in an index."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        torch.save(state(), folder / "state.pt")
        torch.save(training(), folder / "training.pt")
        wide = torch.arange(6.0).view(2, 3)
        torch.save({"w": wide, "half": wide.bfloat16(), "ones": torch.ones(64), "tied": wide.t()}, folder / "casts.pt")
        every = dedup_command.DedupOptions(min_equal_bytes=1, derive_casts=True, fold_constants=True, across_roles=True)
        made: dict[str, Callable[[str], object]] = {
            "v1.safetensors": lambda out: dedup_command.dedup(
                folder / "state.pt", out, dedup_command.DedupOptions(min_equal_bytes=1)
            ),
            "v2.safetensors": lambda out: dedup_command.dedup(folder / "casts.pt", out, every),
            "v3.safetensors": lambda out: dedup_command.dedup(folder / "training.pt", out),
            "again.pt": lambda out: dedup_command.dedup(folder / "v2.safetensors", out),
            "layouts.safetensors": lambda out: relayout_command.convert(
                FIXTURES / "guess/torch_lstm.pt", out, target="cudnn", keep_names=True
            ),
        }
        for name, make in made.items():
            make(str(folder / name))
            main = f"model.{name.rpartition('.')[2]}"
            kind = "record" if main.endswith("s") else "torch"
            yield Seed(
                "record", name, main, {main: (folder / name).read_bytes()}, {main: kind}, name == "layouts.safetensors"
            )
        dedup_command.dedup(
            folder / "training.pt", str(folder / "shards"), dedup_command.DedupOptions(max_shard_size=200)
        )
        dedup_many.dedup_family([folder / "state.pt", folder / "casts.pt"], str(folder / "family"))
        for name, inside in (("shards", folder / "shards"), ("family", folder / "family" / "state")):
            files = _read(inside)
            kinds = {file: "json" if file.endswith(".json") else "safetensors" for file in files}
            yield Seed("sharded", name, ".", files, kinds)


CONFIG = {"model_type": "fuzzed", "tie_word_embeddings": False, "text_config": {"tie_word_embeddings": False}}


def _folders() -> Iterator[Seed]:
    """A folder with a config, a tokenizer's file and two sets of weights."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        torch.save(state(), folder / "pytorch_model.bin")
        dedup_command.dedup(
            folder / "pytorch_model.bin", folder / "model.safetensors", dedup_command.DedupOptions(min_equal_bytes=1)
        )
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "vocab.json").write_text('{"a": 0}')
        kinds = {"config.json": "json", "pytorch_model.bin": "torch", "model.safetensors": "record"}
        yield Seed("folder", "two sets", ".", _read(folder), kinds)


def _dcp() -> Iterator[Seed]:
    """Folders of torch.distributed.checkpoint."""
    folder = FIXTURES / "dcp" / "one_process" / "one_process"
    yield Seed("dcp", "one process", ".", _read(folder), {".metadata": "pickle", "__0_0.distcp": "raw"})


def _ranks() -> Iterator[Seed]:
    """Files of DeepSpeed, and of the ranks of a training."""
    for latest in sorted((FIXTURES / "deepspeed").glob("*/*/latest*")):
        files = _read(latest.parent)
        kinds = {name: "torch" for name in files if name.endswith(".pt")}
        yield Seed("deepspeed", latest.parent.name, ".", files, kinds)
    from tests.formats.test_rank_files import Ranks, tensor

    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = [tensor.Shard(0)]
        Ranks((2,)).save(Path(place), {"w": (torch.arange(15.0).view(5, 3), rows), "step": (torch.tensor(3), [])})
        files = _read(Path(place))
        yield Seed("ranks", "two ranks", min(files), files, dict.fromkeys(files, "torch"))


def _suffixed(seeds: list[Seed]) -> Iterator[Seed]:
    """For each suffix of a format that no seed has, the format's smallest seed under such a name."""
    known = [(row.name, suffix) for row in table.FORMATS for suffix in row.suffixes]
    for name, suffix in [*known, *(("torch", suffix) for suffix in table.NEVER_WRITTEN)]:
        ours = [seed for seed in seeds if seed.format == name]
        if all(Path(seed.main).suffix != suffix for seed in ours):
            least = min(ours, key=lambda seed: sum(map(len, seed.files.values())))
            (kind,) = (kind for file, kind in least.kinds.items() if file == least.main)
            main = f"model{suffix}"
            rest = {file: data for file, data in least.files.items() if file != least.main}
            yield Seed(name, f"{least.name} as {suffix}", main, {main: least.files[least.main], **rest}, {main: kind})


def _foreign() -> Iterator[Seed]:
    """Files that no reader takes, and that are looked through for what they would call."""
    plain = pickle.dumps({"a": [1, 2.5, "x"], "b": collections.OrderedDict(c=datetime.date(2020, 1, 2))}, 4)
    with tempfile.TemporaryDirectory() as place:
        torch.save({"w": torch.ones(2)}, Path(place) / "a")
        one = (Path(place) / "a").read_bytes()
    yield Seed("foreign", "pickle", "model.pkl", {"model.pkl": plain}, {"model.pkl": "pickle"})
    yield Seed(
        "foreign", "old pickle", "model.pkl", {"model.pkl": pickle.dumps([1, {"a": "b"}], 0)}, {"model.pkl": "pickle"}
    )
    yield Seed("foreign", "distributed", "__0_0.distcp", {"__0_0.distcp": one + one}, {"__0_0.distcp": "raw"})
    yield Seed("foreign", "metadata", ".metadata", {".metadata": plain}, {".metadata": "pickle"})


POLICY = """# paramtool.toml
files = ["*.pt"]
lock = "my.lock"
tied = [["head", "wte"]]
dtype = {"w*" = "float32"}
has = ["head"]
max-unused = "1%"
max-duplicate = 4096
no-nan = ["w*", "head"]
unknown-class = true
allow-class = ["mylib.*"]
size = "1MB"
parameters = "1..1000"

[severity]
unused-bytes = "error"
PT401 = "note"

[[paths]]
match = ["model.*"]
size = "2MB"

[[allow]]
rule = "unused-bytes"
path = "model.pt"
tensors = ["w*"]
reason = "old exporter"
until = 2030-01-31
"""


def _checked() -> Iterator[Seed]:
    """A lock of a model with ties, overlaps and objects, and a configuration beside it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wide, long = torch.arange(6.0).view(2, 3), torch.arange(12.0)
        weights = {"head": wide, "wte": wide, "turned": wide.t(), "w 0": long[:8], "w#1": long[4:], "empty": wide[:0]}
        torch.save({**weights, "epoch": 3, "args": Namespace(lr=0.1)}, folder / "model.pt")
        lock_command.lock([folder / "model.pt"], folder / "my.lock")
        (folder / "paramtool.toml").write_text(POLICY)
        files = _read(folder)
        locked = {name: files[name] for name in ("model.pt", "my.lock")}
        yield Seed("lock", "lock", "model.pt", locked, {"my.lock": "lock"})
        yield Seed("policy", "policy", "model.pt", files, {"paramtool.toml": "toml"})


LAYOUT = """# my.toml
[[layout]]
name = "my.lstm"
title = "our cells"
separator = "/"
directions = ["", "_back"]

[[layout.option]]
name = "forget_bias"
default = "1.0"

[[layout.form]]
kind = "lstm"
gates = "iofg"
tensors = [
  {name = "l{layer}{dir}_kernel", content = "W[in (gate hidden)] R[rec (gate hidden)]"},
  {name = "l{layer}{dir}_bias", content = "bW+bR[(gate hidden)]"},
]

[[layout.form]]
kind = "gru"
gates = "zrn"
reset = "after"
tensors = [
  {name = "l{layer}{dir}_kernel", content = "W[in (gate hidden)] R[rec (gate hidden)]"},
  {name = "l{layer}{dir}_bias", content = "bW+bR.zr[(gate hidden)] bW.n[(gate hidden)] bR.n[(gate hidden)]"},
]
"""


def _layouts() -> Iterator[Seed]:
    """A file of somebody's own layouts, as docs/add-a-layout.md has one."""
    yield Seed("layouts", "layouts", "my.toml", {"my.toml": LAYOUT.encode()}, {"my.toml": "toml"})


def _torch() -> Iterator[Seed]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield _saved("training", training())
        yield _saved("odd", odd())
        yield _saved("bare", torch.arange(4.0))
        yield _saved("stacked training", training(), _use_new_zipfile_serialization=False)
        yield _saved("module", torch.nn.LSTM(2, 2))


def every() -> list[Seed]:
    """All seeds, in an order that is always the same."""
    found = [
        *contracts(), *_fixtures(), *_torch(), *_recorded(), *_folders(), *_dcp(), *_ranks(), *_foreign(), *_checked(),
        *_layouts(),
    ]  # fmt: skip
    return [
        Seed(s.format, s.name, s.main, s.files, {"model.pt": "stacked"}) if s.name == "torch stacked training" else s
        for s in (*found, *_suffixed(found))
    ]
