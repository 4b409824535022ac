"""Training in Keras 3 that goes on from what paramtool wrote: 20 steps, a conversion, 20 more, against 40.

Keras reads the output by its own `load_weights` and `load_model`, and its variables say by their paths whose they are.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paramtool
from paramtool.commands.optimizers import bindings
from paramtool.commands.relayout import convert
from paramtool.errors import PlanError
from tests.examples import IS_HARD

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
STEPS = 20
FAR = 1e-4
MADE: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(1e-2),
    "amsgrad": lambda: keras.optimizers.Adam(1e-2, amsgrad=True),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2)),
    "momentum": lambda: keras.optimizers.SGD(1e-2, momentum=0.9),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-3, momentum=0.9, centered=True),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.9)),
    "averaged": lambda: keras.optimizers.Adam(1e-2, use_ema=True, gradient_accumulation_steps=2, amsgrad=True),
    "nadam": lambda: keras.optimizers.Nadam(1e-2),
    "adagrad": lambda: keras.optimizers.Adagrad(1e-2),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "adamax": lambda: keras.optimizers.Adamax(1e-2),
    "adamw": lambda: keras.optimizers.AdamW(1e-2),
    "ftrl": lambda: keras.optimizers.Ftrl(1e-2),
    "lion": lambda: keras.optimizers.Lion(1e-3),
    "lamb": lambda: keras.optimizers.Lamb(1e-2),
    "schedule-free": lambda: keras.optimizers.ScheduleFreeAdamW(1e-2),
    "adafactor": lambda: keras.optimizers.Adafactor(1e-2),
}
IN_EVERY_RUN = ("adam", "scaled")
"""Those that `make test` trains with; `make hard` takes all."""
UNNAMED = ("momentum", "rmsprop")
"""Those whose files of weights alone do not say which of their slots is which."""
JOINED = ("ftrl", "adafactor")
"""What they keep does not follow an LSTM to another layout."""


def _chosen(names: list[str]) -> list[Any]:
    hard = pytest.mark.skipif(not IS_HARD, reason="make hard trains with every optimizer")
    return [name if name in IN_EVERY_RUN else pytest.param(name, marks=hard) for name in names]


def _layers() -> list[Any]:
    """Two neighbours of one shape, and names that are not the groups of the file."""
    return [
        keras.Input((5, 3)), keras.layers.LSTM(4), keras.layers.BatchNormalization(),
        keras.layers.Dense(4, name="head"), keras.layers.Dense(4), keras.layers.Dense(1, name="dense_1"),
    ]  # fmt: skip


def fresh(optimizer: str, seed: int = 0) -> Any:
    """A network that is not trained, whose optimizer has its variables."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(_layers())
    model.compile(MADE[optimizer](), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def train(model: Any, first: int) -> Any:
    """Twenty steps, each with its own data."""
    for k in range(first, first + STEPS):
        inputs = np.random.RandomState(k).randn(4, 5, 3).astype("float32")
        model.train_on_batch(inputs, inputs.sum((1, 2))[:, None])
    return model


def far(one: Any, other: Any) -> float:
    """The largest difference of two models."""
    pairs = zip(one.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def _whose(model: Any) -> dict[str, list[str]]:
    """{path of a variable: the slots that the optimizer's own names give it}"""
    paths = {variable.path.replace("/", "_"): variable.path for variable in model.trainable_variables}
    found: dict[str, list[str]] = {path: [] for path in paths.values()}
    for variable in model.optimizer.variables:
        word = variable.path.partition("/")[2] if variable.path.count("/") else variable.path
        fits = [path for path in paths if word.startswith(f"{path}_")]
        if fits:
            best = max(fits, key=len)
            found[paths[best]].append(word.removeprefix(f"{best}_"))
    return found


@pytest.mark.parametrize("optimizer", _chosen([name for name in MADE if name != "adafactor"]))
class TestKeras:
    """Each optimizer; Adafactor's variables are called after those of the model alone."""

    def test_every_slot_is_of_the_variable_that_keras_says(self, optimizer: str, tmp_path: Path) -> None:
        """Variables are known by their values: after training, no two are equal."""
        model = train(fresh(optimizer), 0)
        values = {variable.path: np.asarray(variable.numpy()) for variable in model.trainable_variables}
        for path in (tmp_path / "m.keras", tmp_path / "m.weights.h5", tmp_path / "m.h5"):
            model.save_weights(path) if path.name == "m.weights.h5" else model.save(path)
            checkpoint = paramtool.read(path)
            (binding,) = bindings(path, checkpoint)
            assert binding.is_unique, binding.words
            prefix = next((s.prefix for s in checkpoint.sections if s.name == binding.optimizer.section), "")
            arrays = paramtool.load_file(path)
            slots: dict[str, list[str]] = {}
            for entry in binding.optimizer.entries:
                array = arrays[prefix + binding.names[entry.key]]
                (name,) = [name for name, one in values.items() if one.shape == array.shape and (one == array).all()]
                slots[name] = [slot.key for slot in entry.slots if "/" not in slot.key]
            theirs = {name: sorted(some) for name, some in _whose(model).items()}
            if path.name == "m.weights.h5" and optimizer in UNNAMED:
                theirs = {name: [f"slot {k}" for k in range(len(some))] for name, some in theirs.items()}
            assert {name: sorted(some) for name, some in slots.items()} == theirs

    @pytest.mark.sample(8)
    def test_training_goes_on_after_another_layout_and_back(self, optimizer: str, tmp_path: Path) -> None:
        train(fresh(optimizer), 0).save(tmp_path / "a.keras")
        if optimizer in JOINED:
            with pytest.raises(PlanError, match="cannot follow"):
                convert(tmp_path / "a.keras", tmp_path / "b.safetensors", target="torch")
            return
        convert(tmp_path / "a.keras", tmp_path / "b.safetensors", target="torch")
        convert(tmp_path / "b.safetensors", tmp_path / "c.h5", target="keras.vars")
        shutil.copy(tmp_path / "c.h5", tmp_path / "c.weights.h5")
        model = fresh(optimizer, seed=1)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Skipping variable loading")
            model.load_weights(tmp_path / "c.weights.h5")
        assert far(train(model, STEPS), train(train(fresh(optimizer), 0), STEPS)) == 0

    @pytest.mark.sample(8)
    def test_training_goes_on_in_a_model_that_was_filled(self, optimizer: str, tmp_path: Path) -> None:
        train(fresh(optimizer), 0).save(tmp_path / "a.keras")
        fresh(optimizer, seed=1).save(tmp_path / "b.keras")
        convert(tmp_path / "a.keras", tmp_path / "c.keras", into=tmp_path / "b.keras")
        model = keras.models.load_model(tmp_path / "c.keras")
        assert far(train(model, STEPS), train(train(fresh(optimizer), 0), STEPS)) == 0


def test_controls_end_elsewhere() -> None:
    """Without the state, and with that of two layers of one shape exchanged, which Keras cannot see."""
    whole, without, wrong = (train(fresh("adam"), 0) for _ in range(3))
    without.compile(MADE["adam"](), "mse")
    variables = {variable.path.partition("/")[2]: variable for variable in wrong.optimizer.variables}
    for slot in ("momentum", "velocity"):
        ends = [f"{name}_kernel_{slot}" for name in ("head", "dense")]
        found = [one for name, one in variables.items() if name.endswith(tuple(ends)) and one.shape == (4, 4)]
        assert len(found) == 2
        values = [np.array(one.numpy()) for one in found]
        for one, value in zip(found, reversed(values), strict=True):
            one.assign(value)
    expected = train(whole, STEPS)
    assert min(far(train(without, STEPS), expected), far(train(wrong, STEPS), expected)) > FAR


def test_what_has_no_place_is_refused(tmp_path: Path) -> None:
    """A model whose optimizer has no variables, or others; nothing is written."""
    train(fresh("adam"), 0).save(tmp_path / "a.keras")
    keras.utils.clear_session()
    model = keras.Sequential(_layers())
    model.compile(MADE["adam"](), "mse")
    model.save(tmp_path / "new.keras")
    fresh("amsgrad").save(tmp_path / "other.keras")
    for name, reason in (("new", "has no variables yet"), ("other", "the model's is Adam, with")):
        with pytest.raises(PlanError, match=reason) as caught:
            convert(tmp_path / "a.keras", tmp_path / "c.keras", into=tmp_path / f"{name}.keras")
        assert "--optimizer-state drop" in (caught.value.hint or "")
    report = convert(tmp_path / "a.keras", tmp_path / "c.keras", into=tmp_path / "new.keras", optimizer_state=["drop"])
    assert any("as --optimizer-state drop says" in text for text in report.left_out)
    with pytest.raises(PlanError, match="numbered, and such a file cannot say whose they are"):
        convert(tmp_path / "a.keras", tmp_path / "c.h5", target="torch")
    assert not (tmp_path / "c.h5").exists()
