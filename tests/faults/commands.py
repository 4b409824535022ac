"""The commands whose calls fail: each small, and together with every way to read and to write."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from paramtool.formats import table
from tests.examples import IS_HARD
from tests.faults.serving import ROOT, Command, Server

FIXTURES = ROOT / "fixtures"
LSTM = {"weight_ih": (48, 8), "weight_hh": (48, 12), "bias_ih": (48,), "bias_hh": (48,)}
"""LSTM(8, 12)."""


def _numbers(shape: Sequence[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, "f4")


def _torch(folder: Path, server: Server) -> None:
    shutil.copyfile(FIXTURES / "torch/tied_flattened/tied_flattened.pt", folder / "model.pt")


def _other_torch(folder: Path) -> None:
    shutil.copyfile(FIXTURES / "torch/content_equal/content_equal.pt", folder / "other.pt")


def _done(server: Server, folder: Path, *words: str) -> None:
    """Run a command, so that the seed holds what it wrote."""
    ended = server.run(words, folder, watched=False)
    assert ended.code == 0, ended


def _old_file(folder: Path, server: Server) -> None:
    _torch(folder, server)
    _other_torch(folder)
    _done(server, folder, "dedup", "other.pt", "-o", "out.safetensors")
    (folder / "other.pt").unlink()
    (folder / "out.safetensors").chmod(0o640)


def _shards(folder: Path, seed: int) -> None:
    """A folder as transformers saves one: two shards, an index, a config and a tokenizer."""
    folder.mkdir()
    head = _numbers((64, 32), seed)
    shards = [{"emb.weight": head, "norm.weight": _numbers((32,), seed + 1)},
              {"layer.weight": _numbers((32, 32), seed + 2), "head.weight": head}]  # fmt: skip
    index: dict[str, str] = {}
    for k, tensors in enumerate(shards, 1):
        name = f"model-{k:05}-of-00002.safetensors"
        save_file(tensors, folder / name, {"format": "pt"})
        index |= dict.fromkeys(tensors, name)
    total = sum(tensor.nbytes for tensors in shards for tensor in tensors.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    (folder / "config.json").write_text('{"model_type": "none", "tie_word_embeddings": false}')
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')


def _folder(folder: Path, server: Server) -> None:
    _shards(folder / "model", 1)


def _old_folder(folder: Path, server: Server) -> None:
    _shards(folder / "model", 5)
    _done(server, folder, "dedup", "model", "-o", "out")
    shutil.rmtree(folder / "model")
    _folder(folder, server)
    (folder / "out").chmod(0o750)


def _two(folder: Path, seed: int) -> None:
    base = {"emb.weight": _numbers((64, 32), seed), "layer.weight": _numbers((32, 32), seed + 1)}
    for k, name in enumerate(("base", "tuned")):
        (folder / name).mkdir()
        tensors = base if not k else {**base, "layer.weight": _numbers((32, 32), seed + 2)}
        save_file(tensors, folder / name / "model.safetensors", {"format": "pt"})
        (folder / name / "config.json").write_text('{"model_type": "none"}')


def _family(folder: Path, server: Server) -> None:
    _two(folder, 1)


def _old_family(folder: Path, server: Server) -> None:
    _two(folder, 5)
    _done(server, folder, "dedup", "base", "tuned", "-o", "out")
    shutil.rmtree(folder / "base")
    shutil.rmtree(folder / "tuned")
    _two(folder, 1)


def _deduplicated(folder: Path, server: Server) -> None:
    _torch(folder, server)
    _done(server, folder, "dedup", "model.pt", "-o", "model.safetensors")
    (folder / "model.pt").unlink()
    (folder / "names.txt").write_text("emb.weight\ndecoder.weight\nlstm.weight_ih_l0\n")


def _lstm(folder: Path, server: Server) -> None:
    tensors = {f"rnn.{name}_l0": _numbers(shape, k) for k, (name, shape) in enumerate(LSTM.items())}
    save_file({**tensors, "out.weight": _numbers((6, 12), 9)}, folder / "lstm.safetensors")


def _fused(folder: Path, server: Server) -> None:
    _lstm(folder, server)
    _done(server, folder, "fuse", "lstm.safetensors", "--layout", "cudnn", "-o", "fused.safetensors")
    (folder / "lstm.safetensors").unlink()


def _deflated(folder: Path, server: Server) -> None:
    tensors = {"a.weight": _numbers((40, 40), 1), "b.weight": _numbers((20, 80), 2)}
    np.savez_compressed(folder / "model.npz", **{name: tensor.round(1) for name, tensor in tensors.items()})


def _verified(folder: Path, server: Server) -> None:
    _torch(folder, server)
    _done(server, folder, "dedup", "model.pt", "-o", "model.safetensors")


def _verified_folder(folder: Path, server: Server) -> None:
    _folder(folder, server)
    _done(server, folder, "dedup", "model", "-o", "small")


def _two_files(folder: Path, server: Server) -> None:
    """A file, and another with one tensor changed and one under another name."""
    tensors = {f"h.{k}.weight": _numbers((32, 32), k) for k in range(3)}
    save_file(tensors, folder / "a.safetensors")
    save_file(
        {"h.0.weight": tensors["h.0.weight"], "h.1.weight": tensors["h.1.weight"] + 1, "x": tensors["h.2.weight"]},
        folder / "b.safetensors",
    )


def _locked(folder: Path, server: Server) -> None:
    _torch(folder, server)
    (folder / "rules.toml").write_text("no-nan = true\nmax-duplicate = 0\nseverity = {duplicate-bytes = 'warning'}\n")
    _done(server, folder, "lock", "model.pt", "-o", "my.lock")


def _old_lock(folder: Path, server: Server) -> None:
    """A lock of another file, to be replaced."""
    _torch(folder, server)
    _other_torch(folder)
    _done(server, folder, "lock", "other.pt", "-o", "out.lock")
    (folder / "other.pt").unlink()
    (folder / "out.lock").chmod(0o640)


READ = {
    "torch": "model.pt", "safetensors": "model.safetensors", "mxnet": "model-0001.params", "npz": "model.npz",
    "keras": "model.h5", "jld2": "model.jld2", "onnx": "model.onnx", "bson": "model.bson",
    "tensorflow": "model.ckpt.index", "pickle": "model.pkl", "msgpack": "model.msgpack", "dcp": ".metadata",
    "sharded": "model.safetensors.index.json",
}  # fmt: skip
"""{format: what the first file that the contract tests make of it is called}"""


def _contract(format_: str) -> Callable[[Path, Server], None]:
    def make(folder: Path, server: Server) -> None:
        from tests.contracts.makers import CASES

        (folder / "in").mkdir()
        case = next(case for case in CASES if case.format == format_)
        assert case.make(folder / "in").name == READ[format_]

    return make


def _deepspeed(folder: Path, server: Server) -> None:
    shutil.copytree(FIXTURES / "deepspeed/stage1/stage1", folder / "in")


def _ranks(folder: Path, server: Server) -> None:
    import torch

    from tests.formats.test_rank_files import Ranks, tensor

    (folder / "in").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Ranks((2,)).save(folder / "in", {"w": (torch.arange(15.0).view(5, 3), [tensor.Shard(0)])})


READERS = (
    *(
        Command(f"read_{name}", ("convert", f"in/{path}", "-o", "out.safetensors"), "out.safetensors", _contract(name))
        for name, path in READ.items()
    ),
    Command("read_deepspeed", ("convert", "in", "-o", "out"), "out", _deepspeed),
    Command("read_ranks", ("convert", "in", "-o", "out"), "out", _ranks),
)
"""A command for each reader: it writes all that it reads."""


def _filled(model: str) -> Callable[[Path, Server], None]:
    """A model, and its weights alone."""

    def make(folder: Path, server: Server) -> None:
        shutil.copyfile(FIXTURES / model, folder / f"model.{model.partition('.')[2]}")
        _done(server, folder, "convert", f"model.{model.partition('.')[2]}", "-o", "in.safetensors")

    return make


def _guessed(folder: Path, server: Server) -> None:
    shutil.copyfile(FIXTURES / "guess/torch_flat.pt", folder / "flat.pt")


def _layouts(folder: Path, server: Server) -> None:
    from tests.fuzz.seeds import LAYOUT

    (folder / "my.toml").write_text(LAYOUT)


def one_word(command: Command) -> str:
    """The name of a command without dashes, so that a sample of several arguments has all commands."""
    return command.name.replace("-", "_")


FILE, FOLDER = "out.safetensors", "out"
SKIP = ("--skip-unsupported",)
COMMANDS = (
    Command("dedup", ("dedup", "model.pt", "-o", FILE), FILE, _torch),
    Command("dedup-force", ("dedup", "model.pt", "-o", FILE, "--force"), FILE, _old_file),
    Command("dedup-torch", ("dedup", "model.pt", "-o", "out.pt"), "out.pt", _torch),
    Command("dedup-npz", ("dedup", "model.npz", "-o", FILE), FILE, _deflated, spools=True),
    Command("dedup-folder", ("dedup", "model", "-o", FOLDER), FOLDER, _folder),
    Command("dedup-folder-force", ("dedup", "model", "-o", FOLDER, "--force"), FOLDER, _old_folder),
    Command("family", ("dedup", "base", "tuned", "-o", FOLDER), FOLDER, _family),
    Command("family-force", ("dedup", "base", "tuned", "-o", FOLDER, "--force"), FOLDER, _old_family),
    Command("export", ("export", "model.safetensors", "--names", "names.txt", "-o", FILE), FILE, _deduplicated),
    Command("convert", ("convert", "lstm.safetensors", "--from", "torch", "--to", "keras", "-o", FILE), FILE, _lstm),
    Command("fuse", ("fuse", "lstm.safetensors", "--layout", "cudnn", "-o", FILE), FILE, _lstm),
    Command("unfuse", ("unfuse", "fused.safetensors", "-o", FILE), FILE, _fused),
    Command("lock", ("lock", "model.pt", "-o", "out.lock"), "out.lock", _torch),
    Command("lock-force", ("lock", "model.pt", "-o", "out.lock", "--force"), "out.lock", _old_lock),
    Command("lock-folder", ("lock", "model", "-o", "out.lock"), "out.lock", _folder),
    Command("inspect", ("inspect", "model.pt"), "", _torch),
    Command("check", ("check", "model.pt", "--config", "rules.toml", "--lock", "my.lock"), "", _locked),
    Command(
        "check-report",
        ("check", "model.pt", "--config", "rules.toml", "--lock", "my.lock", "-o", "out.sarif"),
        "out.sarif",
        _locked,
    ),
    Command("diff", ("diff", "a.safetensors", "b.safetensors", "--rows"), "", _two_files),
    Command("find-base", ("diff", "--find-base", "a.safetensors", "b.safetensors"), "", _two_files),
    Command("verify", ("verify", "model.safetensors", "--against", "model.pt"), "", _verified),
    Command("verify-folder", ("verify", "small", "--against", "model"), "", _verified_folder),
    Command("report", ("report", "model.pt", "-o", "out.html"), "out.html", _torch),
    Command("report-two", ("report", "a.safetensors", "b.safetensors", "-o", "out.html"), "out.html", _two_files),
    Command("variants", ("variants", "model.safetensors", "--against", "names.txt"), "", _deduplicated),
    Command("guess", ("guess", "flat.pt"), "", _guessed),
    Command("layouts", ("layouts", "my.lstm", "--layout-file", "my.toml"), "", _layouts),
    *READERS,
    *(
        Command(f"write{suffix}", ("convert", "model.pt", "-o", f"out{suffix}"), f"out{suffix}", _torch)
        for suffix in table.WRITTEN
        if suffix != ".onnx"
    ),
    Command("write.onnx", ("convert", "lstm.safetensors", "-o", "out.onnx", *SKIP), "out.onnx", _lstm),
    Command("write_dcp", ("convert", "model.pt", "-o", FOLDER, "--format", "dcp"), FOLDER, _torch),
    *(
        Command(
            f"into.{end}",
            ("convert", "in.safetensors", "--into", f"model.{end}", "-o", f"out.{end}"),
            f"out.{end}",
            _filled(model),
        )
        for end, model in {
            "keras": "guess/keras_model.keras",
            "h5": "guess/tf_keras_gru.h5",
            "onnx": "onnx/exported_rnn/exported_rnn.onnx",
        }.items()
    ),
)
LIKE_CONVERT = ("fuse", "unfuse")
"""Commands that are `convert` with other defaults; `make hard` runs them, too."""
REPORT = "check-report"
"""A report of a checkpoint that cannot be read is written, too: it is neither the old nor the usual one."""
CALLED = tuple(
    command
    for command in COMMANDS
    if command.name != REPORT and (IS_HARD or command.name not in (*LIKE_CONVERT, "lock-folder"))
)
"""Commands of which each system call fails."""
WRITING = tuple(command for command in COMMANDS if command.output)
SIGNALLED = tuple(
    command for command in WRITING if IS_HARD or command.name not in (*LIKE_CONVERT, "dedup-folder", "family")
)
"""Commands that get signals; of those that write folders, the ones that replace an old folder as well."""
