"""Optimizers of Keras, optax and Gluon: files of the libraries themselves, bound as their makers say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import paramtool
from paramtool.commands.optimizers import bindings, bound_files
from paramtool.commands.relayout import convert
from paramtool.errors import PlanError, UsageError
from paramtool.model.optimizer import Binding
from tests.hostile.command import quick

ROOT = Path(__file__).parents[2] / "fixtures"
KERAS = ROOT / "keras_optimizer" / "trained" / "trained.keras"
OPTAX = ROOT / "msgpack" / "train_state" / "train_state.msgpack"
GLUON = ROOT / "mxnet" / "trainer" / "trainer.states"


def _bound(path: Path) -> Binding:
    (found,) = bindings(path, paramtool.read(path))
    return found


def _whose(path: Path, binding: Binding) -> dict[str, list[str]]:
    """{tensor of the optimizer: its parameter and slot}"""
    sections = {one.name: one.prefix for one in paramtool.read(path).sections}
    prefix = sections.get(binding.optimizer.section, "")
    names = {key: prefix + name for key, name in binding.names.items()}
    found = {s.tensor: [names[e.key], s.key] for e in binding.optimizer.entries for s in e.slots}
    return found | {tensor: [names[key], "master"] for key, tensor in binding.optimizer.masters.items()}


class TestKeras:
    """Variables that are numbered."""

    def test_each_is_of_the_variable_that_keras_says(self) -> None:
        found = _bound(KERAS)
        assert _whose(KERAS, found) == json.loads((KERAS.parent / "expected.json").read_text())["optimizer"]
        assert found.words == (
            "bound by order of the model's 11 parameters (the layers of its configuration) and their shapes"
        )

    def test_there_and_back_is_the_same(self, tmp_path: Path) -> None:
        convert(KERAS, tmp_path / "a.safetensors", target="torch")
        convert(tmp_path / "a.safetensors", tmp_path / "b.h5", target="keras.vars")
        before, after = paramtool.load_file(KERAS), paramtool.load_file(tmp_path / "b.h5")
        assert {n: a.tobytes() for n, a in before.items()} == {n: a.tobytes() for n, a in after.items()}
        found = quick("verify", str(tmp_path / "a.safetensors"), "--against", str(KERAS), cwd=tmp_path)
        assert found.code == 0, found.err

    def test_numbers_that_no_record_explains_are_refused(self, tmp_path: Path) -> None:
        found = quick("convert", str(KERAS), "--to", "torch", "-o", str(tmp_path / "a.h5"), cwd=tmp_path)
        assert found.code == 6 and "--optimizer-state drop" in found.err and not list(tmp_path.iterdir())
        convert(KERAS, tmp_path / "a.h5", target="torch", optimizer_state=["drop"])
        assert not [name for name in paramtool.read(tmp_path / "a.h5").entries if "optimizer" in name]

    def test_into_another_model_of_the_same_layers(self, tmp_path: Path) -> None:
        convert(KERAS, tmp_path / "a.keras", into=KERAS)
        assert (tmp_path / "a.keras").read_bytes() == KERAS.read_bytes()
        found = quick("verify", str(tmp_path / "a.keras"), "--against", str(KERAS), "--into", str(KERAS), cwd=tmp_path)
        assert found.code == 0, found.err

    def test_into_a_model_without_an_optimizer_is_refused(self, tmp_path: Path) -> None:
        other = ROOT / "keras" / "layers3" / "layers3.keras"
        maps = {"map": ("lstm=both",)}
        with pytest.raises((PlanError, UsageError, paramtool.LayoutError)):
            convert(KERAS, tmp_path / "a.keras", into=other, **maps)
        assert not list(tmp_path.iterdir())


class TestOptax:
    """Trees with the names of the parameters."""

    def test_each_is_of_the_parameter_of_its_path(self) -> None:
        found = _bound(OPTAX)
        assert found.how == "names" and found.is_unique
        names = [
            name for name in paramtool.read(OPTAX).entries if name.startswith(("opt_state/0/mu/", "opt_state/0/nu/"))
        ]
        expected = {name: [name.replace(name[:15], "params/"), f"0/{name[12:14]}"] for name in names}
        assert len(expected) > 20 and _whose(OPTAX, found) == expected

    def test_written_again_it_has_the_bytes_of_flax(self, tmp_path: Path) -> None:
        """But for the kind of a NumPy scalar, which becomes an array without axes."""
        convert(OPTAX, tmp_path / "a.msgpack")
        mine, theirs = (tmp_path / "a.msgpack").read_bytes(), OPTAX.read_bytes()
        differs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a != b]
        assert differs == [(1, 3)]

    def test_there_and_back_is_the_same(self, tmp_path: Path) -> None:
        convert(OPTAX, tmp_path / "a.safetensors", source="flax.linen", target="torch")
        found = quick("verify", str(tmp_path / "a.safetensors"), "--against", str(OPTAX), cwd=tmp_path)
        assert found.code == 0, found.err
        assert _bound(tmp_path / "a.safetensors").is_unique
        convert(tmp_path / "a.safetensors", tmp_path / "b.msgpack", target="flax.linen")
        before, after = paramtool.load_file(OPTAX), paramtool.load_file(tmp_path / "b.msgpack")
        assert {n: a.tobytes() for n, a in before.items()} == {n: a.tobytes() for n, a in after.items()}


class TestGluon:
    """Indices of sorted names."""

    def test_each_is_of_the_parameter_that_the_trainer_says(self) -> None:
        found = _bound(GLUON)
        assert _whose(GLUON, found) == json.loads((GLUON.parent / "expected.json").read_text())["optimizer"]
        assert "the sorted names of collect_params" in found.words

    def test_without_the_model_nothing_is_bound(self, tmp_path: Path) -> None:
        shutil.copy(GLUON, tmp_path)
        found = _bound(tmp_path / GLUON.name)
        assert not found.is_unique and "no model is known" in found.words

    def test_names_say_whose_it_is(self, tmp_path: Path) -> None:
        """In the order of the entries, where the file of the model has other names."""
        shutil.copy(GLUON, tmp_path)
        expected = json.loads((GLUON.parent / "expected.json").read_text())["optimizer"]
        names = dict.fromkeys(name for name, _ in expected.values())
        (tmp_path / "names.txt").write_text("\n".join(names))
        (file,) = bound_files(
            tmp_path / GLUON.name, paramtool.read(tmp_path / GLUON.name), names=tmp_path / "names.txt"
        )
        assert file.bindings[0].is_unique and [*file.bindings[0].names.values()] == [*names]

    def test_nothing_of_the_pickle_is_run_or_unsafe(self) -> None:
        found = paramtool.read(GLUON)
        assert found.format == "mxnet states" and not found.unknown
        assert {entry.role for entry in found.entries.values()} == {"optimizer"}

    def test_a_dedup_of_it_is_proved(self, tmp_path: Path) -> None:
        """Its pickle says which objects are one, though no such file is written."""
        assert quick("dedup", str(GLUON), "-o", "a.safetensors", cwd=tmp_path).code == 0
        found = quick("verify", "a.safetensors", "--against", str(GLUON), cwd=tmp_path)
        assert found.code == 0 and not found.err, found

    def test_beside_a_model_that_changes_it_is_refused(self, tmp_path: Path) -> None:
        found = quick("convert", str(GLUON.parent), "--from", "mxnet", "--to", "torch", "-o", "out", cwd=tmp_path)
        assert found.code == 6 and "trainer.states" in found.err and "--optimizer-state drop" in found.err
        assert not (tmp_path / "out").exists()
