"""Which sets of weights a folder holds, what their output is called, and what is done about several of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.commands import dedup_many
from paramtool.commands import export as export_command
from paramtool.commands import relayout as relayout_command
from paramtool.commands.output.sidecar_checks import ONE_FILE
from paramtool.errors import PlanError, UsageError
from paramtool.formats.folder.weight_names import WeightsName, of_file
from tests.cli.test_documents import validate
from tests.hostile.command import contents, quick
from tests.versions import needs

State = dict[str, torch.Tensor]


def state(seed: int = 0, size: int = 64) -> State:
    """A few weights."""
    torch.manual_seed(seed)
    return {"a.weight": torch.randn(size, size), "b.weight": torch.randn(3)}


def put(folder: Path, name: str, tensors: State) -> Path:
    """Weights under a name, in the form that it says, and a config beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    path = folder / name
    save_file(tensors, path, {"format": "pt"}) if name.endswith(".safetensors") else torch.save(tensors, path)
    return path


NAMES = {
    "model.safetensors": "model", "pytorch_model.bin": "model", "pytorch_model.fp16.bin": "model.fp16",
    "model.fp16.safetensors": "model.fp16", "pytorch_model_1.bin": "model_1", "model_1.safetensors": "model_1",
    "diffusion_pytorch_model.bin": "diffusion_pytorch_model",
    "diffusion_pytorch_model.fp16.safetensors": "diffusion_pytorch_model.fp16",
    "adapter_model.bin": "adapter_model", "adapter_model.safetensors": "adapter_model",
    "open_clip_pytorch_model.bin": "open_clip_model", "open_clip_model.safetensors": "open_clip_model",
    "consolidated.00.pth": "consolidated", "consolidated.safetensors": "consolidated",
    "pytorch_lora_weights.bin": "pytorch_lora_weights", "my model.pt": "my model", "ünlü.ckpt": "ünlü",
    "model-00001-of-00001.safetensors": "model", "a\\b.pt": "model", "\udcff.pt": "model", f"{'x' * 200}.pt": "model",
}  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NAMES)
def test_what_the_output_is_called(name: str, tmp_path: Path) -> None:
    """One file, shards, and what export and a family make of a folder; each is found again."""
    stem = NAMES[name]
    put(tmp_path / "in", name, state())
    expected = state()
    dedup_command.dedup(tmp_path / "in", tmp_path / "one")
    export_command.export(tmp_path / "one", tmp_path / "alone", all_names=True)
    put(tmp_path / "other", name, state(1))
    if stem in ONE_FILE:
        source, many = tmp_path / "in", tmp_path / "many"
        for run in (
            lambda: dedup_command.dedup(source, many, max_shard_size=1000),
            lambda: dedup_command.dedup_each(source, many, max_shard_size=1000),
            lambda: export_command.export(source, many, all_names=True, max_shard_size=1000),
            lambda: dedup_many.dedup_family([source, tmp_path / "other"], tmp_path / "both"),
        ):
            with pytest.raises(PlanError, match="alone, and no shards of it"):
                run()
    else:
        dedup_command.dedup(tmp_path / "in", tmp_path / "many", max_shard_size=1000)
        export_command.export(tmp_path / "many", tmp_path / "plain", all_names=True)
        dedup_many.dedup_family([tmp_path / "in", tmp_path / "other"], tmp_path / "both")
    assert (
        contents(tmp_path / "one").keys()
        == {"config.json", f"{stem}.safetensors"}
        == contents(tmp_path / "alone").keys()
    )
    many = [] if stem in ONE_FILE else ["many", "plain", "both/in"]
    for place in many:
        files = contents(tmp_path / place).keys()
        assert of_file(name).index in files and {n for n in files if n.startswith(f"{stem}-0000")}, files
    for place in ("one", "alone", *many):
        found = paramtool.load_file(tmp_path / place)
        assert all(torch.equal(torch.from_numpy(found[n]), t) for n, t in expected.items())
        assert quick("inspect", place, cwd=tmp_path).code == 0
        assert quick("verify", place, "--against", "in", cwd=tmp_path).code == 0
    for place in ("one", *many[:1]):  # both are earlier outputs
        dedup_command.dedup(tmp_path / "in", tmp_path / place, force=True)


def test_indexes_of_variants() -> None:
    """As transformers and diffusers name them now; diffusers' older form is read."""
    modern, old = "model.safetensors.index.fp16.json", "model.safetensors.fp16.index.json"
    assert of_file(modern) == of_file(old) == WeightsName("model.fp16", "fp16")
    assert of_file(old).index == modern and of_file("x.pt").index == "x.safetensors.index.json"


def test_a_file_that_libraries_know_keeps_its_name_in_shards(tmp_path: Path) -> None:
    """Others are called as transformers calls its own."""
    for name, stem in (("diffusion_pytorch_model.bin", "diffusion_pytorch_model"), ("training.pt", "model")):
        dedup_command.dedup(put(tmp_path, name, state()), tmp_path / f"out-{stem}", max_shard_size=1000)
        assert (tmp_path / f"out-{stem}" / f"{stem}.safetensors.index.json").is_file()


def test_a_conversion_keeps_the_name(tmp_path: Path) -> None:
    """`convert`, `fuse` and `unfuse` of a folder."""
    lstm = {f"rnn.{name}": value for name, value in torch.nn.LSTM(3, 4).state_dict().items()}
    put(tmp_path / "in", "adapter_model.bin", lstm)
    relayout_command.fuse(tmp_path / "in", tmp_path / "fused", layout="cudnn")
    relayout_command.unfuse(tmp_path / "fused", tmp_path / "back")
    for name in ("fused", "back"):
        assert (tmp_path / name / "adapter_model.safetensors").is_file()
    assert load_file(tmp_path / "back" / "adapter_model.safetensors").keys() == lstm.keys()


def test_other_names_are_no_earlier_output(tmp_path: Path) -> None:
    """--force replaces weights of the output's own name: a base model beside an adapter's place is somebody's."""
    put(tmp_path / "in", "adapter_model.bin", state())
    put(tmp_path / "out", "model.safetensors", state(1))
    ran = quick("dedup", "in", "-o", "out", "--force", cwd=tmp_path)
    assert ran.code == 7 and "model.safetensors" in ran.err, ran


# --- copies ----------------------------------------------------------------------------------------------------------


def test_copies_are_read_once(tmp_path: Path) -> None:
    """The same tensors in another format; a tied name, a mask and a known buffer may be in one of them only."""
    more = {"tied.weight": state()["a.weight"], "h.0.attn.bias": torch.ones(2, 2).tril().to(torch.uint8),
            "position_ids": torch.arange(3)}  # fmt: skip
    put(tmp_path / "in", "model.safetensors", state())
    put(tmp_path / "in", "pytorch_model.bin", state() | more)
    (tmp_path / "in" / "flax_model.msgpack").write_bytes(b"x")
    (tmp_path / "in" / "optimizer.pt").write_bytes(b"x")
    found = dedup_command.dedup(tmp_path / "in", tmp_path / "out")
    assert [text.split("'")[1] for text in found.left_out if "optimizer" not in text] == [
        "flax_model.msgpack", "pytorch_model.bin"]  # fmt: skip
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == state().keys()
    assert quick("inspect", "in", cwd=tmp_path).code == 0


def late(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with another last row."""
    changed = tensor.clone()
    changed[-1] = 0
    return changed


DIFFERENT = {
    "other bytes": ("pytorch_model.bin", state(1)),
    "other bytes far in": ("pytorch_model.bin", {**state(), "a.weight": late(state()["a.weight"])}),
    "another dtype": ("pytorch_model.bin", {name: tensor.half() for name, tensor in state().items()}),
    "another shape": ("pytorch_model.bin", {**state(), "b.weight": torch.zeros(4)}),
    "more weights": ("pytorch_model.bin", {**state(), "c.weight": torch.ones(7)}),
    "a variant": ("model.fp16.safetensors", state()),
    "another model": ("model_1.safetensors", state()),
}  # fmt: skip


@pytest.mark.parametrize("key", DIFFERENT)
def test_sets_that_differ(key: str, tmp_path: Path) -> None:
    """Refused with the choice; `--weights` takes one and names the other; `--each` writes both."""
    name, tensors = DIFFERENT[key]
    put(tmp_path / "in", "model.safetensors", state())
    put(tmp_path / "in", name, tensors)
    before = contents(tmp_path)
    commands = [
        ("dedup", "in"),
        ("export", "in", "--all-names", "-o", "out"),
        ("dedup", "in", "in/model.safetensors", "-o", "out"),
    ]
    if key != "other bytes far in":  # what only reads headers looks at the first bytes of each tensor
        commands += [("inspect", "in"), ("verify", "in", "--against", "in/model.safetensors"),
                     ("variants", "in", "--against", "in/model.safetensors")]  # fmt: skip
    for args in commands:
        ran = quick(*args, cwd=tmp_path)
        assert ran.code == 2 and ran.out == "", ran
        assert all(text in ran.err for text in (name, "model.safetensors", "--weights", "--each")), ran
    for args in (("lock", "in"), ("diff", "in", "in"), ("report", "in", "-o", "p.html")):  # without --weights
        if key != "other bytes far in" or args[0] == "lock":
            ran = quick(*args, cwd=tmp_path)
            found = re.search("^hint: name the file itself: (.+?);", ran.err, re.MULTILINE)
            assert ran.code == 2 and found and (tmp_path / found[1]).is_file(), ran
    assert contents(tmp_path) == before
    for choice, wanted, other in (("model.safetensors", state(), name), (name, tensors, "model.safetensors")):
        out = "first" if choice == "model.safetensors" else "second"
        ran = quick("dedup", "in", "--weights", choice, "-o", out, cwd=tmp_path)
        assert ran.code == 0 and f"left out  file '{other}'" in ran.out, ran
        same(load_file(tmp_path / out / of_file(choice).file), wanted)
        assert quick("inspect", "in", "--weights", choice, cwd=tmp_path).code == 0
        assert quick("inspect", f"in/{choice}", cwd=tmp_path).code == 0
    ran = quick("dedup", "in", "--each", "-o", "each", cwd=tmp_path)
    assert ran.code == 0 and "left out" not in ran.out, ran
    second = of_file(name).file if of_file(name).file != "model.safetensors" else "pytorch_model.safetensors"
    same(load_file(tmp_path / "each" / "model.safetensors"), state())
    same(load_file(tmp_path / "each" / second), tensors)
    assert contents(tmp_path / "each").keys() == {"config.json", "model.safetensors", second}
    assert quick("dedup", "in", "--each", "-o", "each", "--force", cwd=tmp_path).code == 0


def same(found: State, expected: State) -> None:
    """The same names and bytes."""
    assert found.keys() == expected.keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in expected.items()
    )


def test_shards_of_an_optimizers_state_alone(tmp_path: Path) -> None:
    """An index that lists nothing says nothing of them: neither stands for the other."""
    for k in (1, 2):
        torch.save({"state": {k: {"exp_avg": torch.rand(3)}}}, put(tmp_path, f"model-0000{k}-of-00002.bin", {}))
    (tmp_path / "model.bin.index.json").write_text('{"metadata": {}}')
    ran = quick("dedup", ".", "-o", "out", cwd=tmp_path)
    assert ran.code == 3 and "2 of 2 shards" in ran.err and "has no `weight_map`" in ran.err, ran
    assert not (tmp_path / "out").exists()


def test_shards_without_their_index(tmp_path: Path) -> None:
    """Their numbers say that they belong together, and which is missing; a shard alone is never taken for the whole."""
    paths = [put(tmp_path / "in", f"model-0000{k}-of-00003.safetensors", {f"w{k}": torch.ones(k)}) for k in (1, 2, 3)]
    ran = quick("inspect", "in", cwd=tmp_path)
    assert ran.code == 3 and "3 of 3 shards" in ran.err and "model.safetensors.index.json is missing" in ran.err, ran
    assert quick("inspect", "in", "--weights", paths[1].name, cwd=tmp_path).code == 0
    for k in (2, 1):
        paths[k].unlink()
        ran = quick("inspect", "in", cwd=tmp_path)
        assert ran.code == 3 and f"{k} of 3 shards" in ran.err and f"\n  {paths[k].name}\n" in ran.err, ran
    paths[0].rename(tmp_path / "in" / "model-00001-of-00001.safetensors")
    assert quick("inspect", "in", cwd=tmp_path).code == 0


def test_shards_of_two_saves(tmp_path: Path) -> None:
    """A tensor that is in two of them is named."""
    for k in (1, 2):
        put(tmp_path / "in", f"model-0000{k}-of-00002.safetensors", {"w": torch.ones(k), f"only{k}": torch.ones(3)})
    ran = quick("inspect", "in", cwd=tmp_path)
    assert ran.code == 3 and "1 tensor is in two of them: 'w'" in ran.err, ran


def test_two_files_of_names_that_nobody_looks_for(tmp_path: Path) -> None:
    """Neither is the one that a library would open."""
    put(tmp_path / "in", "a.pt", state())
    put(tmp_path / "in", "b.pt", {"x": torch.ones(7)})
    ran = quick("dedup", "in", cwd=tmp_path)
    assert ran.code == 2 and "b.pt: 1 tensor; no name in common with a.pt" in ran.err, ran


def test_a_choice_that_is_none(tmp_path: Path) -> None:
    """Files of other folders, files that are not there, a file that is given one, and both flags."""
    put(tmp_path / "in", "model.safetensors", state())
    put(tmp_path / "in" / "sub", "model.safetensors", state())
    for args in (("in", "--weights", "none.bin"), ("in", "--weights", "sub/model.safetensors"),
                 ("in/model.safetensors", "--weights", "model.safetensors"), ("in/model.safetensors", "--each"),
                 ("in", "--each", "--weights", "model.safetensors"), ("in", "in/sub", "-o", "out", "--each"),
                 ("in", "--each", "-o", "out.safetensors")):  # fmt: skip
        ran = quick("dedup", *args, cwd=tmp_path)
        assert ran.code == 2 and ran.out == "", ran
    assert quick("export", "in", "--each", "-o", "out", cwd=tmp_path).code == 2
    with pytest.raises(UsageError, match="has no file"):
        paramtool.read(tmp_path / "in", "none.bin")


@pytest.mark.filterwarnings("ignore:OMP_NUM_THREADS")
@needs("accelerate", "1.10", "saves two models")
def test_models_of_accelerate(tmp_path: Path) -> None:
    """Two models of one shape, saved by accelerate: both are written, and accelerate loads both."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    models = [accelerator.unwrap_model(accelerator.prepare(torch.nn.Linear(4, 4))) for _ in range(2)]
    saved = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in models]
    accelerator.save_state(str(tmp_path / "in"))
    assert quick("dedup", "in", cwd=tmp_path).code == 2
    assert quick("dedup", "in", "--each", "-o", "out", cwd=tmp_path).code == 0
    for path in (tmp_path / "in").iterdir():
        if not (tmp_path / "out" / path.name).exists():
            shutil.copy(path, tmp_path / "out")
    for model in models:
        torch.nn.init.zeros_(model.weight)
    accelerator.load_state(str(tmp_path / "out"))
    for model, expected in zip(models, saved, strict=True):
        same(model.state_dict(), expected)


# --- folders inside --------------------------------------------------------------------------------------------------


ROOTS = {
    "a pipeline": ({"unet": "diffusion_pytorch_model.bin", "text_encoder": "model.safetensors"}, "model_index.json"),
    "DeepSpeed": ({"global_step10": "mp_rank_00_model_states.pt"}, "latest"),
    "Trainer": ({"checkpoint-5": "model.safetensors", "checkpoint-10": "pytorch_model.bin"}, "trainer_state.json"),
}  # fmt: skip


@pytest.mark.parametrize("key", ROOTS)
def test_roots(key: str, tmp_path: Path) -> None:
    """Refused with the folders; `--each` writes every one, and what is beside them."""
    places, beside = ROOTS[key]
    for k, (place, name) in enumerate(places.items()):
        put(tmp_path / "in" / place, name, state(k))
    (tmp_path / "in" / beside).write_text("{}")
    for args in (("dedup", "in"), ("inspect", "in"), ("export", "in", "--all-names", "-o", "out")):
        ran = quick(*args, cwd=tmp_path)
        assert ran.code == 2 and all(f"{place}/" in ran.err for place in places) and "--each" in ran.err, ran
    for more in ((), ("--force",)):
        ran = quick("dedup", "in", "--each", "-o", "out", *more, cwd=tmp_path)
        assert ran.code == 0, ran
    expected = {*places, beside}
    for k, (place, name) in enumerate(places.items()):
        expected |= {f"{place}/config.json", f"{place}/{of_file(name).file}"}
        same(load_file(tmp_path / "out" / place / of_file(name).file), state(k))
        assert quick("verify", f"out/{place}", "--against", f"in/{place}", cwd=tmp_path).code == 0
    assert contents(tmp_path / "out").keys() == expected
    assert quick("dedup", "out", "--each", "-o", "again", cwd=tmp_path).code == 0


def test_nothing_is_written_where_one_is_refused(tmp_path: Path) -> None:
    """One damaged part, and nothing of the others is left."""
    for place in ("a", "b"):
        put(tmp_path / "in" / place, "model.safetensors", state())
    (tmp_path / "in" / "b" / "model.safetensors").write_bytes(b"x" * 100)
    before = contents(tmp_path)
    assert quick("dedup", "in", "--each", "-o", "out", cwd=tmp_path).code == 3
    assert contents(tmp_path) == before


def test_the_document_of_each(tmp_path: Path) -> None:
    """One, with that of every set."""
    for place in ("a", "b"):
        put(tmp_path / "in" / place, "model.safetensors", state())
    (tmp_path / "in" / "README.md").write_text("x")
    ran = quick("dedup", "in", "--each", "--json", "--dry-run", cwd=tmp_path)
    found = validate("each", ran.out)
    assert found["schema"] == "paramtool.each/1" and not found["written"] and found["companions"] == ["README.md"]
    assert [one["output"] for one in found["members"]] == ["in.dedup/a", "in.dedup/b"]
    assert not (tmp_path / "in.dedup").exists()


def test_nothing_to_deduplicate(tmp_path: Path) -> None:
    """Said in these words, and only then."""
    put(tmp_path, "plain.pt", state())
    put(tmp_path, "tied.pt", state() | {"c": state()["b.weight"]})
    w = torch.ones(1000)
    put(tmp_path, "shared.pt", {"a": w, "b": w})
    put(tmp_path, "unused.pt", {"a": w[:10]})
    put(tmp_path, "equal.pt", {"a": torch.arange(9000.0), "b": torch.arange(9000.0)})
    ran = {name: quick("dedup", f"{name}.pt", cwd=tmp_path).out for name in ("plain", "shared", "unused", "equal")}
    said = {name: ": no two names share memory" in out for name, out in ran.items()}
    assert said == {"plain": True, "shared": False, "unused": False, "equal": False}
    leads = {name: "\nload it  " in out and "\nnext  " in out for name, out in ran.items()}
    assert leads == {"plain": False, "shared": True, "unused": True, "equal": True}


@pytest.mark.parametrize("numel", [4, 9000])
@pytest.mark.parametrize("config", [None, "none", "of-nobody"])
def test_what_is_said_of_equal_bytes_is_true(numel: int, config: str | None, tmp_path: Path) -> None:
    """In a folder they stay under each name, small ones are not compared: neither is said to share nothing equal."""
    folder = tmp_path / "model"
    folder.mkdir()
    both = {name: torch.arange(float(numel)) for name in ("lm_head.weight", "model.embed_tokens.weight")}
    put(folder, "model.safetensors", both)
    put(tmp_path, "alone.safetensors", both)
    said = {"architectures": ["OfNobodyForCausalLM"], "model_type": "of_nobody", "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(said if config == "of-nobody" else {}), encoding="utf-8")
    more = ["--config", "none"] if config == "none" else []
    for path in ("model", "alone.safetensors"):
        for line in (
            ["dedup", path, "--dry-run"],
            ["dedup", path, "--dry-run", "--no-equal"],
            ["inspect", path, "--digest"],
        ):
            out = quick(*line, *more, cwd=tmp_path).out
            assert "share bytes" not in out and "stored twice" not in out and "from_pretrained" not in out, out
    again = "equal bytes stay, each under its name" in quick("dedup", "model", "--dry-run", *more, cwd=tmp_path).out
    assert again is (numel == 9000 and config != "of-nobody")


def test_a_small_tie_of_a_sharded_folder(tmp_path: Path) -> None:
    """Smaller than what is compared, and stored once because config.json ties it: nothing is stored again."""
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=50, n_positions=8)
    model = GPT2LMHeadModel(config)
    config.save_pretrained(tmp_path / "in")
    names = dict(model.state_dict())
    names["lm_head.weight"] = names["lm_head.weight"].clone()
    shards = {
        "pytorch_model-00001-of-00002.bin": list(names)[:-1],
        "pytorch_model-00002-of-00002.bin": list(names)[-1:],
    }
    for file, held in shards.items():
        torch.save({name: names[name] for name in held}, tmp_path / "in" / file)
    index = {"metadata": {}, "weight_map": {name: file for file, held in shards.items() for name in held}}
    (tmp_path / "in" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    found = dedup_command.dedup(tmp_path / "in", tmp_path / "out")
    assert found.repeated_nbytes == 0 and found.tied and found.content.equal == ()
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in names.items())
