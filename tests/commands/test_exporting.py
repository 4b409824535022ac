"""What `export` makes of names, rules and shapes, and what it says where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.commands import dedup as dedup_command
from paramtool.errors import OutputError, PlanError, UsageError
from paramtool.passes.renaming import RenamingRule
from tests.hostile.command import contents, quick, refused


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A deduplicated training checkpoint with old names: a tie, a transpose, a slice, equal layers, an optimizer."""
    torch.manual_seed(0)
    words = torch.randn(64, 32)
    layer = torch.randn(32, 32)
    model = {
        "bert.words.weight": words, "bert.ln.gamma": torch.ones(32), "bert.ln.beta": torch.zeros(32),
        "bert.layer.0.w": layer, "bert.layer.1.w": layer.clone(), "bert.row": words[3],
        "cls.decoder.weight": words, "cls.turned": words.t(),
    }  # fmt: skip
    torch.save({"model": model, "optimizer": {"state": {0: {"exp_avg": torch.randn(64, 32)}}}}, tmp_path / "t.pt")
    dedup_command.dedup(tmp_path / "t.pt", tmp_path / "bert.safetensors")
    return tmp_path / "bert.safetensors"


def saved(bert: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(bert.with_name("t.pt"), weights_only=True)["model"]
    return found


def same(path: Path, expected: dict[str, torch.Tensor]) -> bool:
    """Whether the safetensors library reads exactly these, and no other metadata than everybody's."""
    found = load_file(path)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_all_names(bert: Path, tmp_path: Path) -> None:
    """Every alias is a tensor of its own: ties, equal layers, slices and transposes; of one section with `only`."""
    found = paramtool.export(bert, tmp_path / "plain.safetensors", all_names=True, only="model")
    assert same(tmp_path / "plain.safetensors", saved(bert))
    assert (found.section, found.renamed, found.verified, found.written) == ("model", {}, True, True)
    assert found.nbytes == (tmp_path / "plain.safetensors").stat().st_size
    found = paramtool.export(bert, tmp_path / "all.safetensors", all_names=True)
    assert {"model.bert.row", "optimizer.state.0.exp_avg"} < set(found.names)


def test_section_then_prefix_then_rules_then_names(bert: Path, tmp_path: Path) -> None:
    """In this order, so that each sees what the one before it left."""
    found = paramtool.export(
        bert, tmp_path / "plain.safetensors", names=["ln.weight", "ln.bias", "words.weight"], only="model",
        prefix="bert.", rename=["*.gamma=*.weight", RenamingRule("*.beta", "*.bias")],
    )  # fmt: skip
    state = saved(bert)
    expected = {"ln.weight": "bert.ln.gamma", "ln.bias": "bert.ln.beta", "words.weight": "bert.words.weight"}
    assert same(tmp_path / "plain.safetensors", {new: state[old] for new, old in expected.items()})
    assert found.renamed == expected and list(found.names) == list(expected)


def test_shapes_come_with_names(bert: Path, tmp_path: Path) -> None:
    """A mapping to shapes, tensors or arrays: `names=model.state_dict()` checks both."""
    state = {name: tensor for name, tensor in saved(bert).items() if name.startswith("bert.layer")}
    paramtool.export(bert, tmp_path / "a.safetensors", names=state, only="model")
    paramtool.export(bert, tmp_path / "b.safetensors", names=dict.fromkeys(state, (32, 32)), only="model")
    paramtool.export(bert, tmp_path / "c.safetensors", names=dict.fromkeys(state), only="model")
    assert all(same(tmp_path / f"{name}.safetensors", state) for name in "abc")
    with pytest.raises(PlanError, match=r"'bert\.layer\.0\.w': has shape \[32, 32\]; wanted \[32, 33\]"):
        paramtool.export(bert, tmp_path / "d.safetensors", names={"bert.layer.0.w": (32, 33)}, only="model")
    assert not (tmp_path / "d.safetensors").exists()


def test_a_tied_name_that_is_missing_is_written_from_its_partner(bert: Path, tmp_path: Path) -> None:
    """As a loader would tie it; a name that has no partner in the file is missing."""
    names = {"head": (64, 32), "bert.words.weight": (64, 32)}
    ties = dict.fromkeys(names, "head")
    paramtool.export(bert, tmp_path / "plain.safetensors", names=names, ties=ties, only="model")
    words = saved(bert)["bert.words.weight"]
    assert same(tmp_path / "plain.safetensors", {"head": words, "bert.words.weight": words})
    with pytest.raises(UsageError, match="lacks 1 of 2 names"):
        paramtool.export(bert, tmp_path / "x.safetensors", names=names, ties={"head": "head"}, only="model")
    names = ["bert.words.weight", "cls.decoder.weight", "bert.layer.0.w", "bert.ln.gamma", "bert.ln.beta"]
    ties = {"cls.decoder.weight": "bert.words.weight", "bert.ln.beta": "bert.ln.gamma"}
    found = paramtool.export(bert, tmp_path / "x.safetensors", names=names, ties=ties, only="model")
    assert len(found.warnings) == 1 and "ties 'bert.ln.beta' to 'bert.ln.gamma'" in found.warnings[0]
    assert same(tmp_path / "x.safetensors", {name: saved(bert)[name] for name in names})
    names, ties = {"head": (64, 31), "bert.words.weight": (64, 32)}, {"bert.words.weight": "head"}
    with pytest.raises(PlanError, match="'head': has shape"):
        paramtool.export(bert, tmp_path / "y.safetensors", names=names, ties=ties, only="model")


def test_a_list_with_spaces_around_its_names(tmp_path: Path) -> None:
    """Names may have spaces, so that they count; the hint says where they are."""
    torch.save({"emb.weight": torch.ones(3)}, tmp_path / "m.pt")
    (tmp_path / "names.txt").write_bytes(b"  emb.weight \r\n")
    says = (
        "lacks 1 of 1 name:",
        "'  emb.weight ' has spaces around it, which are part of the name: write 'emb.weight'",
    )
    refused(quick, "export", "m.pt", "--names", "names.txt", "-o", "x.pt", cwd=tmp_path, code=2, says=says)


def test_shards(bert: Path, tmp_path: Path) -> None:
    """A folder with an index; a file with that size is refused."""
    found = paramtool.export(bert, tmp_path / "out", all_names=True, only="model", max_shard_size=5000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == saved(bert).keys() and index["metadata"].keys() == {"total_size"}
    assert len(set(index["weight_map"].values())) > 3 and len(found.files) == len(contents(tmp_path / "out"))
    with pytest.raises(UsageError, match="shards need a folder"):
        paramtool.export(bert, tmp_path / "x.safetensors", all_names=True, only="model", max_shard_size=5000)


def test_metadata_comes_along(tmp_path: Path) -> None:
    """The user's own texts, and of an index what still holds of other names."""
    from safetensors.torch import save_file

    (tmp_path / "in").mkdir()
    save_file({"a": torch.ones(3)}, tmp_path / "in" / "m.safetensors", {"format": "pt", "who": "me"})
    index = {"metadata": {"total_size": 12, "total_parameters": 3, "note": "n"}, "weight_map": {"a": "m.safetensors"}}
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps(index))
    paramtool.export(tmp_path / "in", tmp_path / "out", all_names=True)
    found = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert found["metadata"] == {"note": "n", "total_size": 12}
    with safe_open(tmp_path / "out" / "model-00001-of-00001.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "who": "me"}


def test_a_wrong_byte_is_found(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is read back, renamed or not; nothing wrong is kept."""
    from paramtool.engine.write import writer

    real = writer.write

    def spoil(staged: writer.Staged, *rest: object, **more: object) -> None:
        real(staged, *rest, **more)  # type: ignore[arg-type]
        path = Path(staged.file(""))
        path.write_bytes(path.read_bytes()[:-1] + b"\x55")

    monkeypatch.setattr("paramtool.commands.output.write.write", spoil)
    options = {"all_names": True, "only": "model", "rename": ["*=x.*"]}
    with pytest.raises(OutputError, match="does not read back"):
        paramtool.export(bert, tmp_path / "plain.safetensors", **options)
    assert not (tmp_path / "plain.safetensors").exists()
    assert paramtool.export(bert, tmp_path / "plain.safetensors", verify=False, **options).verified is False


@pytest.mark.parametrize("name", ["plain.safetensors", "plain.pt", "plain"])
def test_an_output_that_cannot_be_read_back_has_its_own_name(
    name: str, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary file is gone when the error is read, so that it says where the output would have been."""
    from paramtool.engine.write import writer

    real = writer.write

    def cut(staged: writer.Staged, *rest: object, **more: object) -> None:
        real(staged, *rest, **more)  # type: ignore[arg-type]
        for path in Path(staged.temporary).glob("*.safetensors") if staged.is_folder else [Path(staged.temporary)]:
            path.write_bytes(path.read_bytes()[:-9])

    monkeypatch.setattr("paramtool.commands.output.write.write", cut)
    monkeypatch.chdir(tmp_path)
    more = {"max_shard_size": 1 << 20} if name == "plain" else {}
    with pytest.raises(OutputError, match=f"^{name}: does not read back") as caught:
        paramtool.export(bert, name, all_names=True, **more)
    assert ".tmp" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [bert.name, "t.pt"]


# --- the command -----------------------------------------------------------------------------------------------------


WAYS = (("--names", "names"), ("--like", "t.pt"), ("--all-names",))


@pytest.mark.parametrize("second", range(len(WAYS)))
@pytest.mark.parametrize("first", range(len(WAYS)))
def test_just_one_way_to_say_which(bert: Path, first: int, second: int) -> None:
    """Two of them are a wrong use, whatever they would say."""
    if first == second:
        return
    (bert.parent / "names").write_text("w\n")
    refused(quick, "export", bert.name, "-o", "x.safetensors", *WAYS[first], *WAYS[second], cwd=bert.parent, code=2)


def test_every_name_where_nothing_says_which(bert: Path) -> None:
    """Without a config; of one that is given, the names are its model's."""
    for more, output in (((), "one.safetensors"), (("--all-names",), "all.safetensors")):
        assert quick("export", bert.name, *more, "-o", output, cwd=bert.parent).code == 0
    one, every = ((bert.parent / name).read_bytes() for name in ("one.safetensors", "all.safetensors"))
    assert one == every
    (bert.parent / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "n_layer": 1}')
    args = ("export", bert.name, "-o", "x.safetensors", "--config", "config.json", "--ties", "a=b")
    refused(quick, *args, cwd=bert.parent, code=2, says=("--ties", "--config", "leave out --ties"))


def test_a_section_alone_is_all_of_it(bert: Path) -> None:
    """A file is what --all-names gives; a folder without a config.json says that one is needed."""
    for more, output in (((), "one.safetensors"), (("--all-names",), "all.safetensors")):
        ran = quick("export", bert.name, "--only", "model", *more, "-o", output, cwd=bert.parent)
        assert ran.code == 0, ran
    one, every = (load_file(bert.parent / name) for name in ("one.safetensors", "all.safetensors"))
    assert one.keys() == every.keys() == saved(bert).keys()
    ran = quick("export", bert.name, "--only", "model", "-o", "folder", cwd=bert.parent)
    assert ran.code == 0 and "has no config.json, which from_pretrained needs" in ran.err, ran
    assert load_file(bert.parent / "folder" / "model.safetensors").keys() == one.keys()


@pytest.mark.parametrize("section", ["model", "state_dict", ""])
def test_the_model_whatever_its_section_is_called(section: str, tmp_path: Path) -> None:
    """The one section of that role, or a checkpoint that is nothing else; two models are not guessed between."""
    model = {"a.weight": torch.ones(3, 2), "a.bias": torch.zeros(3)}
    state = {"optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3, 2)}}, "param_groups": []}]}
    torch.save({section: model, **state} if section else model, tmp_path / "c.ckpt")
    found = paramtool.export(tmp_path / "c.ckpt", tmp_path / "m.safetensors", only="model")
    assert set(found.names) == model.keys()
    line = ("verify", "m.safetensors", "--against", "c.ckpt", "--only", "model", "--subset")
    assert quick(*line, cwd=tmp_path).code == 0
    torch.save({"net_g": model, "net_d": model, **state}, tmp_path / "two.ckpt")
    refused(quick, "export", "two.ckpt", "--only", "model", "-o", "x", cwd=tmp_path, code=2, says=("net_g", "net_d"))


@pytest.mark.parametrize("form", ["torch", "lightning"])
def test_the_settings_of_an_optimizer_that_is_exported_are_left_and_told(form: str, tmp_path: Path) -> None:
    """Lightning keeps a list of optimizers, and torch one: an export has their tensors alone."""
    one = {"state": {0: {"exp_avg": torch.ones(3, 2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    state = {"optimizer_states": [one]} if form == "lightning" else {"optimizer_states": one}
    torch.save({"model": {"a": torch.ones(3, 2)}, **state}, tmp_path / "c.ckpt")
    found = paramtool.export(tmp_path / "c.ckpt", tmp_path / "o.safetensors", only="optimizer_states")
    assert "objects 'param_groups': an export has tensors alone" in found.left_out


def test_files_of_a_training_stay_and_those_of_the_model_do_not(tmp_path: Path) -> None:
    """By their names; those of the model are taken from beside a file, too."""
    (tmp_path / "in").mkdir()
    kept = ("config.json", "tokenizer.json", "vocab.txt", "chat_template.jinja", "tokenizer.model")
    gone = ("trainer_state.json", "scheduler.pt", "rng_state_0.pth", "training_args.bin", "optimizer.pt")
    for name in (*kept, *gone, "README.md"):
        (tmp_path / "in" / name).write_text("{}")
    torch.save({"model": {"a": torch.ones(2)}, "epoch": 3}, tmp_path / "in" / "last.ckpt")
    paramtool.export(tmp_path / "in" / "last.ckpt", tmp_path / "out", only="model")
    assert set(contents(tmp_path / "out")) == {"model.safetensors", *kept}
    (tmp_path / "in" / "last.ckpt").unlink()
    save_file({"a": torch.ones(2)}, tmp_path / "in" / "model.safetensors")
    found = paramtool.export(tmp_path / "in", tmp_path / "folder", only="model")
    assert set(contents(tmp_path / "folder")) == {"model.safetensors", "README.md", *kept}
    assert any("of the training" in text for text in found.left_out)


@pytest.mark.parametrize(
    "more, code, says",
    [
        (("--rename", "a"), 2, ("'a'", "FROM=TO")),
        (("--rename", "a.*=b"), 2, ("'a.*=b'", "stars")),
        (("--rename", "ghost.*=*"), 2, ("'ghost.*=*'", "none of 9 names")),
        (("--rename", "model.bert.layer.*.w=w"), 2, ("stars",)),
        (("--rename", "*.0.w=*.1.w"), 2, ("'model.bert.layer.0.w' and 'model.bert.layer.1.w'",)),
        (("--prefix", "bert."), 2, ("'bert.'", "'model.'")),
        (("--prefix", "model"), 2, ("--prefix model.",)),
        (("--only", "ghost"), 2, ("'ghost'", "'model'")),
        (("--max-inflated", "x"), 2, ("--max-inflated",)),
        (("--max-shard-size", "0"), 2, ("--max-shard-size",)),
    ],
)
def test_what_does_not_fit(bert: Path, more: tuple[str, ...], code: int, says: tuple[str, ...]) -> None:
    """An error that says what, and nothing is written."""
    refused(quick, "export", bert.name, "--all-names", "-o", "x", *more, cwd=bert.parent, code=code, says=says)


@pytest.mark.parametrize(
    "names, says",
    [
        (("words.weight", "ln.gamma"), "with --prefix bert. 2 of them match"),
        (("model.model.bert.row", "x.bert.row"), "1 of them matches"),
        (("bert.layer.0.v", "bert.rows"), "'bert.row'"),
        (("zzz",), "inspect --tensors"),
    ],
)
def test_names_that_are_missing(bert: Path, names: tuple[str, ...], says: str) -> None:
    """Each is named, with names like it, and the flag that would find them."""
    (bert.parent / "names").write_text("\n".join(names))
    args = ("export", bert.name, "--only", "model", "--names", "names", "-o", "x")
    refused(
        quick, *args, cwd=bert.parent, code=2, says=(says, *map(repr, names), f"lacks {len(names)} of {len(names)}")
    )


def test_a_dry_run(bert: Path) -> None:
    """Every name that would be written, and what it was; nothing is written, and what would fail fails."""
    before = contents(bert.parent)
    args = ("export", bert.name, "-o", "x.safetensors", "--all-names", "--only", "model", "--dry-run")
    ran = quick(*args, "--rename", "*.gamma=*.weight", cwd=bert.parent)
    assert ran.code == 0 and "name  bert.ln.weight  was bert.ln.gamma\n" in ran.out and "name  bert.row\n" in ran.out
    assert ran.out.count("\nname  ") == len(saved(bert)) and "next" not in ran.out and contents(bert.parent) == before
    refused(quick, *args, "--rename", "ghost=x", cwd=bert.parent, code=2)


def test_the_report(bert: Path) -> None:
    """What was renamed; the next command where it fits."""
    ran = quick("export", bert.name, "-o", "x.safetensors", "--all-names", "--prefix", "model.", cwd=bert.parent)
    assert ran.code == 0 and "renamed  bert.row  was model.bert.row" in ran.out and "next" not in ran.out, ran
    assert "verified  all read back and equal" in ran.out
    ran = quick("export", bert.name, "-o", "y.safetensors", "--all-names", "--only", "model", cwd=bert.parent)
    line = ran.out.strip().splitlines()[-1].removeprefix("next  paramtool ")
    assert quick(*line.split(), cwd=bert.parent).code == 0
    ran = quick("export", bert.name, "-o", "z.safetensors", "--all-names", "--no-verify", cwd=bert.parent)
    assert ran.code == 0 and "not verified" in ran.out


def test_tensors_without_a_plain_form(tmp_path: Path) -> None:
    """All of them are named, and a list of the others works."""
    state = {"s": torch.eye(3).to_sparse(), "t": torch.eye(3).to_sparse(), "w": torch.ones(3)}
    torch.save(state, tmp_path / "m.pt")
    refused(quick, "export", "m.pt", "--all-names", "-o", "x", cwd=tmp_path, code=6, says=("'s'", "'t'", "sparse"))
    torch.save({"epoch": 3}, tmp_path / "e.pt")
    refused(quick, "export", "e.pt", "--all-names", "-o", "x", cwd=tmp_path, code=6, says=("e.pt", "no tensor"))


# --- torch's format --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_export_to_torch(bert: Path, tmp_path: Path, suffix: str) -> None:
    """By the suffix; each name in memory of its own, also those that shared it: plain, as every export."""
    found = paramtool.export(bert, tmp_path / f"plain{suffix}", all_names=True, only="model", rename=["bert.*=*"])
    state = {name.removeprefix("bert."): tensor for name, tensor in saved(bert).items()}
    for mmap in (False, True):
        loaded = torch.load(str(tmp_path / f"plain{suffix}"), weights_only=True, mmap=mmap)  # 2.1 maps no Path
        assert list(loaded) == list(found.names) and loaded.keys() == state.keys()
        assert all(torch.equal(loaded[name], state[name]) for name in state)
        assert len({tensor.untyped_storage().data_ptr() for tensor in loaded.values()}) == len(state)
    assert found.verified and found.warnings == ()


def test_a_folder_to_a_torch_file(bert: Path, tmp_path: Path) -> None:
    """A suffix of torch's names a file, also where a folder is read."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "config.json").write_text("{}")
    bert.rename(tmp_path / "in" / "model.safetensors")
    for found in (
        paramtool.export(tmp_path / "in", tmp_path / "a.pt", all_names=True),
        paramtool.dedup(tmp_path / "in", tmp_path / "b.pt"),
    ):
        assert Path(found.output).is_file() and found.sidecars == () and found.files == (found.output,)
