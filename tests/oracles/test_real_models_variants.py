"""One model's file, another variant of the model: `paramtool variants` says what will happen, and it happens.

Each meeting is judged four times: by `variants` with the model and with its config, by `load_model`, and by
`from_pretrained` on what `export` wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import paramtool
import paramtool.torch
from paramtool.commands import dedup as dedup_command
from paramtool.commands import export as export_command
from paramtool.errors import PlanError, TieError
from tests.hostile.command import quick
from tests.laws.sharing import raw
from tests.oracles.real_models import complaints, examples, results, single_thread

__all__ = ["single_thread"]  # a fixture


def as_it_is(model: nn.Module) -> None:
    """Nothing more."""


def copy_the_head(model: nn.Module) -> None:
    """Equal bytes in head and embedding, which are not tied."""
    with torch.no_grad():
        model.get_output_embeddings().weight.copy_(model.get_input_embeddings().weight)  # type: ignore[operator]


@dataclass(frozen=True)
class Meeting:
    """A model whose file is opened, and the variant that opens it."""

    saved: str
    wanted: str
    verdict: str
    part: Callable[[nn.Module], nn.Module] = lambda model: model
    """Of the saved model, what the variant is."""
    change: Callable[[nn.Module], None] = as_it_is
    prefix: str = ""
    """What the file calls the variant."""
    more: str = ""
    """What the names that the variant leaves unused begin with."""


MEETINGS = {
    "GPT-2 tied -> untied": Meeting("GPT-2 tied", "GPT-2 untied", "loads through aliases"),
    "GPT-2 untied, equal bytes -> tied": Meeting("GPT-2 untied", "GPT-2 tied", "loads through aliases",
                                                 change=copy_the_head),
    "Llama tied -> untied": Meeting("Llama tied", "Llama untied", "loads through aliases"),
    "Llama untied, equal bytes -> tied": Meeting("Llama untied", "Llama tied", "loads through aliases",
                                                 change=copy_the_head),
    "BERT with head -> without": Meeting("BERT with its MLM head", "BERT without a head", "loads through aliases",
                                         part=lambda model: model.bert, prefix="bert.", more="cls."),
    "T5 -> encoder": Meeting("T5", "T5 encoder", "loads through aliases", part=lambda model: model.get_encoder(),
                             more="decoder."),
    "BART -> encoder": Meeting("BART", "BART encoder", "loads through aliases", prefix="model.encoder.",
                               part=lambda model: model.get_encoder()),
}  # fmt: skip


@pytest.fixture(params=MEETINGS.values(), ids=MEETINGS.keys())
def meeting(request: pytest.FixtureRequest) -> Meeting:
    """Each of them."""
    return request.param


def small(name: str, folder: Path, change: Callable[[nn.Module], None] = as_it_is) -> tuple[nn.Module, Path]:
    """A model, and its state dict saved by torch and deduplicated."""
    model = examples.MODELS[name].build()
    change(model)
    torch.save(model.state_dict(), folder / "m.pt")
    dedup_command.dedup(folder / "m.pt", folder / "small.safetensors", min_equal_bytes=1)
    return model, folder / "small.safetensors"


def config_of(name: str, folder: Path) -> Path:
    """The variant's config.json in a folder of its own."""
    examples.MODELS[name].blank().config.save_pretrained(folder)  # type: ignore[union-attr, operator]
    return folder / "config.json"


def opened(name: str, folder: Path) -> tuple[nn.Module, dict[str, object]]:
    """The variant that `from_pretrained` makes of a folder, and what it says of names."""
    spec = examples.MODELS[name]
    found, info = spec.make.from_pretrained(folder, output_loading_info=True, **spec.more)  # type: ignore[attr-defined]
    return found.eval(), complaints(info)


def plain(path: Path, name: str, folder: Path, *how: object) -> Path:
    """An export of a file, with the variant's config beside it."""
    config_of(name, folder)
    ran = quick("export", path, *how, "-o", folder / "model.safetensors", cwd=folder)
    assert ran.code == 0, ran
    return folder


@pytest.mark.sample(4)
def test_a_variant_that_loads(meeting: Meeting, tmp_path: Path) -> None:
    """`load_model` fills it, keeping its ties; it computes what that part of the saved model computes."""
    source, path = small(meeting.saved, tmp_path, meeting.change)
    expected = results(meeting.part(source).eval())
    if meeting.prefix:
        (variant,) = paramtool.torch.variants(examples.MODELS[meeting.wanted].build(1), path)
        assert variant.verdict == "cannot load" and f"prefix={meeting.prefix!r}" in variant.advice
        with pytest.raises(PlanError, match="lacks") as caught:
            paramtool.torch.load_model(examples.MODELS[meeting.wanted].build(1), path)
        assert f"prefix={meeting.prefix!r}" in str(caught.value.hint)
    for assign in (False, True):
        target = examples.MODELS[meeting.wanted].build(1)
        shared = {name: tensor.data_ptr() for name, tensor in target.state_dict().items()}
        strict = not meeting.more or bool(meeting.prefix)
        paramtool.torch.load_model(target, path, strict, prefix=meeting.prefix, assign=assign)
        assert torch.equal(results(target), expected)
        groups = {name: tensor.data_ptr() for name, tensor in target.state_dict().items()}
        assert all((shared[a] == shared[b]) == (groups[a] == groups[b]) for a in groups for b in groups)


@pytest.mark.sample(4)
def test_what_from_pretrained_makes_of_it(meeting: Meeting, tmp_path: Path) -> None:
    """`variants` of the exported names says `loads`, and `from_pretrained` of them misses nothing."""
    source, path = small(meeting.saved, tmp_path, meeting.change)
    model = examples.MODELS[meeting.wanted].build(1)
    cut = path
    if meeting.prefix:
        cut = tmp_path / "cut.safetensors"
        export_command.export(path, cut, all_names=True, prefix=meeting.prefix)
    (variant,) = paramtool.torch.variants(model, cut)
    assert variant.verdict == (meeting.verdict if cut == path else "loads")
    assert {name.split(".")[0] + "." for name in variant.unused} == ({meeting.more} if cut == path and meeting.more
                                                                     else set())  # fmt: skip
    (tmp_path / "names.txt").write_text("\n".join(model.state_dict()))
    folder = plain(cut, meeting.wanted, tmp_path / "plain", "--names", tmp_path / "names.txt")
    found, complaints = opened(meeting.wanted, folder)
    assert complaints == {}
    assert torch.equal(results(found), results(meeting.part(source).eval()))


@pytest.mark.parametrize("name", [n for n, m in MEETINGS.items() if not m.prefix])
def test_the_config_says_the_same(name: str, tmp_path: Path) -> None:
    """`variants` of the config.json alone: the verdict that the model got, and exit code 0."""
    meeting = MEETINGS[name]
    _, path = small(meeting.saved, tmp_path, meeting.change)
    config = config_of(meeting.wanted, tmp_path / "wanted")
    (of_config,) = paramtool.variants(path, [config])
    (of_model,) = paramtool.torch.variants(examples.MODELS[meeting.wanted].build(1), path)
    assert of_config.verdict == of_model.verdict == meeting.verdict
    assert (of_config.through, of_config.unused) == (of_model.through, of_model.unused)
    assert quick("variants", path, "--against", config, cwd=tmp_path).code == 0


# --- what cannot load ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("saved", "wanted"), [("GPT-2 untied", "GPT-2 tied"), ("Llama untied", "Llama tied")])
def test_a_tie_that_the_bytes_contradict(saved: str, wanted: str, tmp_path: Path) -> None:
    """Apart, with the difference; `load_model` refuses; transformers opens it, as a model that does not tie."""
    source, path = small(saved, tmp_path)
    config = config_of(wanted, tmp_path / "wanted")
    (variant,) = paramtool.variants(path, [config])
    head, embedding = source.get_output_embeddings().weight, source.get_input_embeddings().weight  # type: ignore
    (apart,) = variant.apart
    assert variant.verdict == "cannot load" and apart.difference == pytest.approx((head - embedding).abs().max().item())
    assert quick("variants", path, "--against", config, cwd=tmp_path).code == 1
    target = examples.MODELS[wanted].build(1)
    before = {name: raw(tensor) for name, tensor in target.state_dict().items()}
    with pytest.raises(TieError) as caught:
        paramtool.torch.load_model(target, path)
    assert apart.name in str(caught.value) and apart.other in str(caught.value)
    assert {name: raw(tensor) for name, tensor in target.state_dict().items()} == before
    found, complaints = opened(wanted, plain(path, wanted, tmp_path / "plain", "--config", config))
    still_tied = found.get_output_embeddings().weight is found.get_input_embeddings().weight  # type: ignore[operator]
    assert not (still_tied and torch.equal(results(found), results(source)))
    assert complaints == {}  # transformers says so in its log alone


def test_a_head_that_the_file_lacks(tmp_path: Path) -> None:
    """A headless BERT's file for the model with the head: `variants` lists what from_pretrained then makes up."""
    _, path = small("BERT without a head", tmp_path)
    config = config_of("BERT with its MLM head", tmp_path / "wanted")
    (variant,) = paramtool.variants(path, [config])
    assert variant.verdict == "cannot load" and "the prefix 'bert.' only in the model" in variant.advice
    assert quick("variants", path, "--against", config, cwd=tmp_path).code == 1
    export_command.export(path, tmp_path / "whole.safetensors", all_names=True, rename=["*=bert.*"])
    (variant,) = paramtool.variants(tmp_path / "whole.safetensors", [config])
    assert variant.verdict == "cannot load" and all(name.startswith("cls.") for name in variant.lacks)
    assert [filled.name for filled in variant.filled] == ["cls.predictions.decoder.weight"]
    assert quick("variants", "whole.safetensors", "--against", config, cwd=tmp_path).code == 1
    target = examples.MODELS["BERT with its MLM head"].build(1)
    with pytest.raises(PlanError, match="lacks 6 names"):
        paramtool.torch.load_model(target, tmp_path / "whole.safetensors")
    loaded = paramtool.torch.load_model(target, tmp_path / "whole.safetensors", strict=False)
    assert loaded.missing == variant.lacks
    for source in (path, tmp_path / "whole.safetensors"):  # from_pretrained tries the prefix by itself
        folder = plain(source, "BERT with its MLM head", tmp_path / f"plain.{source.stem}", "--all-names")
        _, complaints = opened("BERT with its MLM head", folder)
        assert complaints.keys() == {"missing_keys"}
        assert set(variant.lacks) == complaints["missing_keys"]


def test_the_body_of_a_model_with_a_head_is_filled_by_the_headless_file(tmp_path: Path) -> None:
    """What the advice says: the file goes into that part of the model."""
    source, path = small("BERT without a head", tmp_path)
    target = examples.MODELS["BERT with its MLM head"].build(1)
    (variant,) = paramtool.torch.variants(target.bert, path)  # type: ignore[arg-type]
    assert variant.loads
    paramtool.torch.load_model(target.bert, path)  # type: ignore[arg-type]
    assert torch.equal(results(target.bert), results(source))  # type: ignore[arg-type]
    assert target.cls.predictions.decoder.weight is target.bert.embeddings.word_embeddings.weight  # type: ignore


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("saved", [True, False], ids=["flat file", "plain file"])
def test_flattened_and_tied_recurrent_networks(kind: str, saved: bool, tmp_path: Path) -> None:
    """A file of windows on one buffer serves a model that has none and no tie, and the other way round."""
    sizes = examples.MODELS[kind].sizes
    specs = {flat: examples.Model(examples.Recurrent, sizes=sizes | {"flat": flat}) for flat in (True, False)}
    loose = examples.Model(examples.Recurrent, sizes=sizes | {"flat": False, "tied": False})
    source = specs[saved].build()
    torch.save(source.state_dict(), tmp_path / "m.pt")
    for output in ("small.safetensors", "small.pt"):
        dedup_command.dedup(tmp_path / "m.pt", tmp_path / output, min_equal_bytes=1)
        for spec in (*specs.values(), loose):
            for assign in (False, True):
                target = spec.build(1)
                assert paramtool.torch.variants(target, tmp_path / output)[0].loads
                paramtool.torch.load_model(target, tmp_path / output, assign=assign)
                assert torch.equal(results(target), results(source))
                assert (target.emb.weight is target.decoder.weight) == (spec is not loose)  # type: ignore[union-attr]
