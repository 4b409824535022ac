"""What tests of other libraries share.

A script here is run by another Python, with DeepSpeed; doctest must not import it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

collect_ignore = ["run_deepspeed.py"]


@pytest.fixture
def quiet_training() -> Iterator[None]:
    """No warnings, as Trainer warns of its own names; afterwards, nothing is left of accelerate's state."""
    from tests.oracles.trainers import reset_accelerate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    reset_accelerate()
