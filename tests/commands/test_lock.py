"""`paramtool lock`: one digest for a model, whoever saved it; and everything else on a line of its own."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file
from torch import nn

import paramtool
from paramtool.commands.locked_model import LockReading, locked_model
from paramtool.errors import FormatError, MissingFileError, OutputError, UsageError
from paramtool.lockfile import read
from paramtool.lockfile.lock import LockedModel
from paramtool.passes.lock.compare import findings
from tests.hostile.command import quick


class Model(nn.Module):
    """An embedding with a head that is tied to it, an LSTM, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 8)
        self.rnn = nn.LSTM(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.emb.weight


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    """The state of a model with values of its own."""
    torch.manual_seed(seed)
    return Model().state_dict()


def apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every name with memory of its own, as safetensors wants it."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def by_torch(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    torch.save(tensors, folder / "m.pt")
    return folder / "m.pt"


def by_old_torch(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    torch.save(dict(tensors), folder / "m.bin", _use_new_zipfile_serialization=False)
    return folder / "m.bin"


def by_safetensors(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    save_file(apart(tensors), folder / "m.safetensors")
    return folder / "m.safetensors"


def by_hub(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    save_torch_state_dict(apart(tensors), folder, max_shard_size=800)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def by_hub_as_pickles(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    save_torch_state_dict(apart(tensors), folder, max_shard_size=800, safe_serialization=False)
    return folder


def by_dedup(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    paramtool.dedup(by_torch(tensors, folder), folder / "d.safetensors", min_equal_bytes=1)
    return folder / "d.safetensors"


def by_dedup_into_shards(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    paramtool.dedup(by_torch(tensors, folder), folder / "d", min_equal_bytes=1, max_shard_size=800)
    return folder / "d"


def by_dedup_as_pickle(tensors: dict[str, torch.Tensor], folder: Path) -> Path:
    paramtool.dedup(by_torch(tensors, folder), folder / "d.pt", min_equal_bytes=1)
    return folder / "d.pt"


SAVERS = [
    by_torch, by_old_torch, by_safetensors, by_hub, by_hub_as_pickles, by_dedup, by_dedup_into_shards,
    by_dedup_as_pickle,
]  # fmt: skip
Saver = Callable[[dict[str, torch.Tensor], Path], Path]


def locked(path: Path, headers: bool = False) -> LockedModel:
    """What a lock says of a checkpoint."""
    return locked_model(path, path.name, LockReading(headers))


@pytest.mark.parametrize("save", SAVERS[1:], ids=lambda save: save.__name__)
def test_one_model_has_one_digest(save: Saver, tmp_path: Path) -> None:
    """Whoever saved it; and another one where one number is another."""
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    was, now = locked(by_torch(state(), folders[0])), locked(save(state(), folders[1]))
    assert (now.content, now.unnamed) == (was.content, was.unnamed)
    assert not list(findings(was, now, "l", content_only=True))
    tensors = apart(state())
    tensors["norm.running_mean"][3] += 1
    other = locked(save(tensors, folders[2]))
    assert other.content != was.content
    assert [one.names for one in findings(was, other, "l", content_only=True)] == [("norm.running_mean",)]


def test_ties_are_not_in_the_digest(tmp_path: Path) -> None:
    """What shares memory has a line of its own; a saver that stores each name loses it."""
    tied, untied = locked(by_torch(state(), tmp_path)), locked(by_safetensors(state(), tmp_path))
    again = locked(by_dedup(state(), tmp_path))
    assert [(tie.names, tie.kind) for tie in tied.ties] == [(("emb.weight", "head.weight"), "storage")]
    assert [(tie.names, tie.kind) for tie in again.ties] == [(("emb.weight", "head.weight"), "storage")]
    assert [one.id for one in findings(tied, untied, "l")] == ["PT101", "PT401"]
    assert [one.id for one in findings(tied, again, "l")] == ["PT401"]


def test_a_saver_that_drops_a_tied_name(tmp_path: Path) -> None:
    """transformers stores one name of a tie: the config says the other, and the lock says so."""
    pytest.importorskip("transformers")
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 16, "n_positions": 8}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    model.save_pretrained(tmp_path / "saved")
    torch.save(model.state_dict(), tmp_path / "m.pt")
    whole, saved = locked(tmp_path / "m.pt"), locked(tmp_path / "saved")
    assert whole.tensors.keys() - saved.tensors.keys() == {"lm_head.weight"}
    assert [(tie.names, tie.kind) for tie in saved.ties] == [(("lm_head.weight", "transformer.wte.weight"), "config")]
    assert read.parse(paramtool.lock([tmp_path / "saved"], "-").text).models
    found = {(one.id, one.severity): one for one in findings(whole, saved, "l")}
    assert "config.json ties it to 'transformer.wte.weight'" in found["PT202", "warning"].message
    assert found["PT105", "warning"].message == (
        "'transformer.wte.weight': no config.json said anything of it when it was locked, and config.json ties it now"
    )
    again = {(one.id, one.severity): one.message for one in findings(saved, whole, "l")}
    assert again.keys() == {("PT203", "warning"), ("PT105", "warning"), ("PT401", "warning")}
    assert again["PT203", "warning"] == (
        "'lm_head.weight' is not in the lock; config.json tied it to 'transformer.wte.weight', with which it shares "
        "memory"
    )
    assert again["PT105", "warning"] == (
        "'transformer.wte.weight': config.json tied it when it was locked, and no config.json says anything of it now; "
        "the file has it tied all the same"
    )
    names = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert locked(by_safetensors(names, tmp_path)).content == saved.content


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("of", ["GPT2LMHeadModel", "T5ForConditionalGeneration", "BertForMaskedLM"])
def test_folders_of_transformers(of: str, tied: bool, tmp_path: Path) -> None:
    """What save_pretrained writes is locked, and finds nothing against itself; the other half of a pair is found."""
    transformers = pytest.importorskip("transformers")

    sizes: dict[str, Any] = {
        "GPT2LMHeadModel": {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 16, "n_positions": 8},
        "T5ForConditionalGeneration": {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2,
                                       "vocab_size": 16},
        "BertForMaskedLM": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16,
                            "intermediate_size": 8},
    }[of]  # fmt: skip
    kind = getattr(transformers, of)
    texts = []
    for says in (tied, not tied):
        torch.manual_seed(0)
        model = kind(kind.config_class(**sizes, tie_word_embeddings=says))
        model.save_pretrained(tmp_path / str(says))
        made = paramtool.lock([tmp_path / str(says)], "-")
        texts.append(read.parse(made.text).models[str(tmp_path / str(says))])
        assert not list(findings(texts[-1], made.models[0], "l"))
    is_always_tied = of == "T5ForConditionalGeneration"  # transformers 5 ties it, whatever its config says
    assert is_always_tied or list(findings(*texts, "l"))


def test_a_renamed_model(tmp_path: Path) -> None:
    one = locked(by_torch(state(), tmp_path))
    other = locked(by_safetensors({f"model.{name}": tensor for name, tensor in state().items()}, tmp_path))
    assert one.content != other.content and one.unnamed == other.unnamed
    assert [found.id for found in findings(one, other, "l", content_only=True)] == ["PT210"]


def test_objects(tmp_path: Path) -> None:
    """A training checkpoint: what is no tensor is a line; of what holds only tensors one line has the places."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    made = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "args": {"b": 1, "a": 2}}
    torch.save(made, tmp_path / "a.pt")
    torch.save(made | {"args": {"a": 2, "b": 1}}, tmp_path / "b.pt")  # the order of keys says nothing
    torch.save(made | {"epoch": 4}, tmp_path / "c.pt")
    paramtool.dedup(tmp_path / "a.pt", tmp_path / "d.safetensors")
    a, b, c, d = (locked(tmp_path / name) for name in ("a.pt", "b.pt", "c.pt", "d.safetensors"))
    assert sorted(a.objects) == ["(nesting)", "_metadata (attributes)", "args", "epoch", "optimizer"]
    assert a.objects["epoch"].words == "3"
    assert a.objects == b.objects == d.objects
    assert a.content == b.content == c.content == d.content
    assert [one.message for one in findings(a, c, "l") if one.id == "PT402"] == [
        "object 'epoch' has another value: was 3, is 4"
    ]


def test_pending_signs_are_carried_out(tmp_path: Path) -> None:
    """A conjugate that torch did not carry out has the digest of the one that dedup did."""
    value = torch.randn(3, 4, dtype=torch.complex64)
    torch.save({"w": value.conj(), "p": value}, tmp_path / "a.pt")
    torch.save({"w": value.conj().resolve_conj(), "p": value}, tmp_path / "b.pt")
    torch.save({"w": value, "p": value}, tmp_path / "c.pt")
    a, b, c = (locked(tmp_path / name) for name in ("a.pt", "b.pt", "c.pt"))
    assert a.content == b.content != c.content


def test_headers_read_no_tensor(tmp_path: Path) -> None:
    """Such a digest is never that of a lock with bytes, and says nothing of numbers."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    a, b = (locked(by_torch(state(seed), folder), True) for seed, folder in enumerate(folders))
    assert a.content == b.content and a.content.startswith("b3-headers:")
    assert not any(file.sha256 for file in a.files)
    assert [one.id for one in findings(a, b, "l")] == ["PT405"]
    full = locked(folders[0] / "m.pt")
    assert [one.id for one in findings(full, a, "l", content_only=True)] == ["PT405"]


def test_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are as seen from the lock; a model is added once, or updated with force; the text is the same each time."""
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    by_torch(state(), Path("models"))
    by_safetensors(state(), Path("models"))
    assert paramtool.lock("models/m.pt").count == 1
    made = paramtool.lock(["models/m.safetensors"])
    assert made.count == 2 and not made.updated
    assert made.text == Path("paramtool.lock").read_text()
    assert [*read.read("paramtool.lock").models] == ["models/m.pt", "models/m.safetensors"]
    with pytest.raises(OutputError, match=r"paramtool\.lock: has 'models/m\.pt' already"):
        paramtool.lock(["models/m.pt"])
    assert len(paramtool.lock(["models/m.safetensors", "models/m.pt"], force=True).updated) == 2
    assert made.text == Path("paramtool.lock").read_text()
    Path("locks").mkdir()
    paramtool.lock(["models/m.pt"], "locks/m.lock")
    assert [*read.read("locks/m.lock").models] == ["../models/m.pt"]
    printed = paramtool.lock([tmp_path / "models" / "m.pt"], "-")
    assert [one.path for one in printed.models] == [str(tmp_path / "models" / "m.pt")]
    with pytest.raises(UsageError, match="given twice"):
        paramtool.lock(["models/m.pt", "./models/m.pt"], "-")
    with pytest.raises(UsageError, match="at least one"):
        paramtool.lock([], "-")
    with pytest.raises(MissingFileError):
        paramtool.lock(["models/m.pt", "gone.pt"], "other.lock")
    assert not Path("other.lock").exists()


def test_a_folder_with_several_sets_or_none(tmp_path: Path) -> None:
    """A set that has to be chosen is named as its file is."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="an empty folder"):
        paramtool.lock([tmp_path / "empty"], "-")
    by_torch(state(0), tmp_path)
    by_safetensors(state(1), tmp_path)
    with pytest.raises(UsageError):
        paramtool.lock([tmp_path], "-")
    assert paramtool.lock([tmp_path / "m.pt"], "-").models


def test_threads_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads, as for large files; and an error of the one that hashes files is no other."""
    path = by_torch(state(), tmp_path)
    alone = paramtool.lock([path], "-").text
    monkeypatch.setattr("paramtool.engine.read.digests.THREADS_NBYTES", 0)
    assert paramtool.lock([path], "-").text == alone
    data = bytearray(path.read_bytes())
    data[data.find(state()["rnn.bias_ih_l0"].numpy().tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="CRC"):
        paramtool.lock([path], "-")


def test_a_damaged_config_is_not_passed_over(tmp_path: Path) -> None:
    by_safetensors(state(), tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert any("it was not used" in text for text in paramtool.lock([tmp_path], "-").warnings)
    with pytest.raises(FormatError, match=r"config\.json"):
        paramtool.lock([tmp_path], "-", config=tmp_path)


def test_a_wrong_crc_is_not_locked(tmp_path: Path) -> None:
    path = by_torch(state(), tmp_path)
    data = bytearray(path.read_bytes())
    at = data.find(state()["rnn.bias_ih_l0"].numpy().tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="CRC"):
        paramtool.lock([path], "-")
    assert paramtool.lock([path], "-", headers=True).models


def test_hostile_names_survive(tmp_path: Path) -> None:
    names = ["a b", "#", '"', "\x1b[31mred", "line\nbreak", "tab\t", "-", "=", "::set-env name=x::y", "<b>", "é", ""]
    path = by_safetensors({name: torch.zeros(2) for name in names}, tmp_path)
    made = paramtool.lock([path], tmp_path / "l")
    assert [*read.read(str(tmp_path / "l")).models["m.safetensors"].tensors] == sorted(names)
    assert made.text.isascii() and "\x1b" not in made.text
    assert len(made.text.split("\n")) == len(names) + 8


def test_git_shows_the_tensors_that_changed(tmp_path: Path) -> None:
    """As docs/lock.md has it, with git itself."""

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        ran = subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return ran.stdout

    git("init", "-q")
    words = (sys.executable, "-m", "paramtool", "lock", "-o", "-")
    git("config", "diff.paramtool.textconv", " ".join(map(shlex.quote, words)))
    (tmp_path / ".gitattributes").write_text("*.safetensors diff=paramtool\n")
    for number in (1, 2):
        save_file({"a": torch.zeros(3), "b": torch.full((2,), float(number))}, tmp_path / "m.safetensors")
        git("add", "-A")
        git("commit", "-qm", "weights")
    lines = git("diff", "HEAD~1", "HEAD", "--", "m.safetensors").split("\n")
    assert [line.split()[1] for line in lines if line.startswith(("-tensor", "+tensor"))] == ["b", "b"]
    assert any(line.startswith(" tensor a float32 [3] b3:") for line in lines)


@pytest.mark.parametrize("headers", [False, True])
def test_json(headers: bool, tmp_path: Path) -> None:
    """The document is as its schema says, with what was not read and with hostile names."""
    from jsonschema import Draft202012Validator

    from paramtool.cli._json_text import document, pieces

    torch.save({"a\x1b": torch.zeros(2), "m": torch.zeros(2, device="meta"), "epoch": 1}, tmp_path / "m.pt")
    made = paramtool.lock([tmp_path / "m.pt"], "-", headers=headers)
    found = json.loads("".join(pieces(document(made))))
    schema = Path(__file__).parents[2] / "docs/schema/lock-1.json"
    Draft202012Validator(json.loads(schema.read_text())).validate(found)
    data = {one["name"]: one["data"] for one in found["models"][0]["tensors"]}
    assert data == {"a\x1b": "unread" if headers else "read", "m": "none"}


def test_printed_is_written(tmp_path: Path) -> None:
    path = by_torch(state(), tmp_path)
    made = paramtool.lock([path], tmp_path / "l")
    ran = quick("lock", "m.pt", "-o", "-", cwd=tmp_path)
    assert ran.code == 0 and ran.out == made.text == (tmp_path / "l").read_text()


def test_the_digests_are_blake3_of_what_the_page_says(tmp_path: Path) -> None:
    """Made again with the blake3 package and NumPy alone, as docs/lock.md defines them."""
    from blake3 import blake3

    arrays = {"b.w": np.arange(6, dtype="f4").reshape(2, 3), "a": np.arange(4, dtype="i8")}
    save_numpy(arrays, tmp_path / "m.safetensors")
    found = paramtool.lock([tmp_path / "m.safetensors"], "-").text.splitlines()
    rows = sorted(
        f"{one.dtype} [{','.join(map(str, one.shape))}] {blake3(one.tobytes()).hexdigest()}" for one in arrays.values()
    )
    named = sorted(
        f"{name} {one.dtype} [{','.join(map(str, one.shape))}] {blake3(one.tobytes()).hexdigest()}"
        for name, one in arrays.items()
    )
    assert f"unnamed b3:{blake3(chr(10).join(rows).encode()).hexdigest()}" in found
    assert f"content b3:{blake3(chr(10).join(named).encode()).hexdigest()}" in found
    own = found[found.index(next(line for line in found if line.startswith("model "))) : -1]
    assert found[-1] == f"lines b3:{blake3(chr(10).join(own).encode()).hexdigest()}"


def test_what_a_lock_says_little_of_is_a_warning(tmp_path: Path) -> None:
    """A checkpoint without tensors, and tensors without numbers."""
    torch.save({"epoch": 1}, tmp_path / "none.pt")
    torch.save({"w": torch.empty(3, device="meta"), "v": torch.ones(2)}, tmp_path / "meta.pt")
    for headers in (False, True):
        made = paramtool.lock([tmp_path / "none.pt", tmp_path / "meta.pt"], tmp_path / "l", headers=headers, force=True)
        assert made.warnings == (
            "none.pt: holds no tensors, so no weights are locked",
            "meta.pt: not locked: the numbers of 'w', which the checkpoint does not have",
        )
