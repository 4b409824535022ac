"""Conversions made again from their record: the same targets, or none where the record does not say enough."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paramtool.model.checkpoint import Checkpoint, Module
from paramtool.passes.rnn import rewrite
from paramtool.passes.rnn.rewrite import converted_again
from tests.passes.made import checkpoint
from tests.passes.test_rnn_rewrite import LSTM, converted, under

SOURCE = checkpoint(under("rnn", LSTM))


def made(layout: str) -> tuple[Module, Checkpoint]:
    """The record of a conversion, and its output."""
    plan, _ = rewrite.together(SOURCE, converted(SOURCE, layout), False)
    return plan.modules[0], checkpoint({target.name: target.shape for target in plan.targets})


@pytest.mark.parametrize("layout", ["keras", "cudnn", "mxnet"])
def test_the_same_targets(layout: str) -> None:
    module, output = made(layout)
    (one,) = converted(SOURCE, layout)
    done = converted_again(module, output, SOURCE)
    assert done is not None and done.targets == one.targets


def test_no_answer_where_the_record_says_too_little() -> None:
    module, output = made("keras")
    kept = checkpoint({**under("rnn", LSTM), "paramtool.kept/rnn/bias_ih_l0": (8,)})
    for other in (
        replace(module, at="enc"), replace(module, source=""), replace(module, stacked=("a", "b")),
        replace(module, source="converted from keras"), replace(module, source="converted from tf1.basic"),
        replace(module, layout="unknown"), replace(module, spec="gru input=3 hidden=2"),
    ):  # fmt: skip
        assert converted_again(other, output, SOURCE) is None
    assert converted_again(module, output, kept) is None


def test_what_an_output_should_have() -> None:
    """Tensors that it lacks are made again, too: `verify` misses them."""
    module, _ = made("keras")
    (one,) = converted(SOURCE, "keras")
    done = converted_again(module, SOURCE, SOURCE)
    assert done is not None and done.targets == one.targets
