"""A program that uses every public function: mypy checks it with --strict, and a test runs it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import paramtool
import paramtool.torch


class Model(nn.Module):
    """An embedding, a network, and a head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 8)
        self.rnn = nn.LSTM(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.emb.weight


def write(folder: Path) -> Path:
    """Files to look at."""
    saved: paramtool.torch.Saved = paramtool.torch.save_model(Model(), folder / "model.safetensors", {"by": "a sample"})
    aliases: dict[str, str] = dict(saved.aliases)
    assert aliases == {"head.weight": "emb.weight"}
    (folder / "set").mkdir()
    paramtool.torch.save_file({"w": torch.ones(3)}, folder / "set" / "model.safetensors", force=True)
    (folder / "names.txt").write_text("emb.weight\nhead.weight\n", encoding="utf-8")
    return Path(saved.path)


def look(path: Path) -> None:
    """Everything that only reads."""
    checkpoint: paramtool.Checkpoint = paramtool.read(path)
    entry: paramtool.Entry = checkpoint.entries["emb.weight"]
    assert isinstance(entry.value, paramtool.View) and entry.value.shape == (20, 8)
    graph: paramtool.AliasGraph = paramtool.alias_graph(checkpoint, keep="first")
    alias: paramtool.Alias = graph.names["head.weight"]
    assert alias.owner == "emb.weight"
    found: paramtool.Inspection = paramtool.inspect(path, digest=True, fail_on=["untied:head.weight=emb.weight"])
    findings: tuple[paramtool.Finding, ...] = found.findings
    assert not findings, [(one.rule, one.names, one.message) for one in findings]
    guessed: paramtool.Guessed = paramtool.guess(path, limit=3, values=False)
    networks: tuple[paramtool.Guess, ...] = guessed.candidates
    assert networks[0].layout
    variants: tuple[paramtool.Variant, ...] = paramtool.variants(path, [path.parent / "names.txt"])
    assert variants[0].verdict
    arrays = paramtool.load_file(path, max_inflated=10**9)
    assert arrays["emb.weight"].shape == (20, 8)


def change(path: Path, folder: Path) -> None:
    """Everything that writes."""
    options = paramtool.DedupOptions(keep="last", dry_run=True)
    planned: paramtool.Deduped = paramtool.dedup(path, None, options)
    plan: paramtool.Plan = planned.plan
    assert plan.names and not planned.written
    small = paramtool.dedup(path, folder / "small.pt", keep="emb*", min_equal_bytes=1, force=True)
    each: paramtool.Each[paramtool.Deduped] = paramtool.dedup_each(folder / "set", folder / "set-small")
    assert each.members[0].written
    checked: paramtool.Checked = paramtool.check([path])
    files: tuple[paramtool.CheckedFile, ...] = checked.files
    assert checked.exit_code == 0 and not files[0].error
    locked: paramtool.Locked = paramtool.lock([path], folder / "paramtool.lock", headers=True, force=True)
    assert locked.models[0].path == path.name
    found: paramtool.Diffed = paramtool.diff(path, small.output)
    assert found.is_same
    page: paramtool.PageReport = paramtool.report(path, small.output, output=folder / "page.html", equal=True)
    assert page.nbytes and page.other == small.output
    base: paramtool.BaseFound = paramtool.find_base(small.output, [path])
    assert base.base == str(path)
    family: paramtool.Family = paramtool.dedup_family([path, small.output], folder / "family", min_equal_bytes=1)
    members: tuple[paramtool.FamilyMember, ...] = family.members
    assert len(members) == 2
    plain: paramtool.Exported = paramtool.export(path, folder / "plain.safetensors", names=["emb.weight"])
    assert plain.names == ("emb.weight",)
    paramtool.export_each(folder / "set", folder / "set-plain", options=paramtool.ExportOptions(prefix=""))
    fused: paramtool.Relayouted = paramtool.fuse(path, folder / "fused.safetensors", layout="cudnn", at=["rnn"])
    networks: tuple[paramtool.Converted, ...] = fused.converted
    assert networks[0].is_exact
    paramtool.unfuse(fused.output, folder / "unfused.safetensors")
    paramtool.convert(path, folder / "keras.safetensors", source="torch", target="keras", rename={"rnn": "lstm"})
    same: paramtool.Verified = paramtool.verify(small.output, path)
    assert same.differences == ()
    assert paramtool.verify_each(folder / "set-small", folder / "set", subset=True).differences == ()


def with_torch(path: Path) -> None:
    """Everything that needs torch."""
    loaded: paramtool.torch.Loaded = paramtool.torch.load_model(Model(), path, strict=True)
    assert loaded.missing == ()
    tensors: dict[str, torch.Tensor] = paramtool.torch.load_file(path, device="cpu")
    assert tensors["head.weight"].shape == (20, 8)
    (variant,) = paramtool.torch.variants(Model(), path)
    assert variant.loads


def config(path: Path) -> int:
    """The names of the model of a config.json, which transformers builds."""
    return len(paramtool.torch.names_from_config(path))


def own_layout() -> paramtool.Layout:
    """A layout of our own."""
    rows = (paramtool.TensorRule("w{layer}", "W[hidden in]"), paramtool.TensorRule("r{layer}", "R[hidden rec]"))
    layout = paramtool.Layout("sample", "a sample", (paramtool.Form("rnn", "h", rows),), max_directions=1)
    return paramtool.register_layout(layout)


def errors(folder: Path) -> None:
    """Errors by their classes, and by Python's own."""
    try:
        paramtool.read(folder / "ghost.pt")
    except paramtool.MissingFileError as error:
        message, hint, code = error.message, error.hint, error.exit_code
        assert message and code == 3 and isinstance(hint, str)
    try:
        paramtool.dedup(folder / "ghost.pt", align=3)
    except ValueError as error:
        assert isinstance(error, paramtool.UsageError)


def main(folder: Path) -> None:
    """All of it."""
    path = write(folder)
    look(path)
    change(path, folder)
    with_torch(path)
    own_layout()
    errors(folder)
