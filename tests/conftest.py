"""What every test may use."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.covering import COVERING  # before the first import of paramtool

# isort: split
from paramtool.layouts.layout import registered
from tests import recording, sampling
from tests.examples import examples

# Before NumPy and torch are imported: each worker has a core, and threads that wait for each other's small products
# take twice the time; processes that tests start inherit it.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Before anything imports Keras: without a backend that is installed, the first import fails halfway, and so does every
# later one in the same process.
os.environ.setdefault("KERAS_BACKEND", "torch")

for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):  # the tests themselves may run there
    os.environ.pop(name, None)

SAMPLES = Path(__file__).resolve().parents[2] / "shared" / "samples"
"""Real checkpoints of other people; see the README there.  Not a part of the repository."""


# the same examples in every run: `HYPOTHESIS_PROFILE=search` looks for new ones
settings.register_profile(
    "untimed",
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "untimed"))
"""No law depends on how busy the machine is; this comes before any test module makes settings of its own."""


def pytest_configure(config: pytest.Config) -> None:
    """The plugins beside this file."""
    if COVERING is not None:
        config.pluginmanager.register(COVERING)
    config.pluginmanager.register(recording)
    config.pluginmanager.register(sampling)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collecting makes hundreds of thousands of objects and no garbage: looking for it took a third of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Ctrl-C ends what the tests start, also where a shell started the tests in the background and ignores it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """What a test writes need not outlive the machine: to wait for the disk takes a twentieth of the time.

    Commands in processes of their own do wait; `tests/faults` counts their calls, and lets each of them fail.
    """
    kept = os.fsync
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    yield
    os.fsync = kept


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of real checkpoints; the test is skipped where it is not there."""
    if not SAMPLES.is_dir():
        pytest.skip(f"{SAMPLES} is not there")
    return SAMPLES


@pytest.fixture(scope="session")
def findings() -> Path:
    """The folder of small files that once went wrong; the test is skipped where it is not there."""
    folder = SAMPLES.parent / "findings"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


@pytest.fixture(scope="module", autouse=True)
def small_heap() -> None:
    """What was imported is looked through for garbage once, not in each collection: a whole second with torch."""
    gc.collect()
    gc.freeze()


ONE_PROCESS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def one_process() -> Iterator[None]:
    """No test runs as one of several processes of a training, whatever a library left in the environment before it."""
    for name in ONE_PROCESS:
        os.environ.pop(name, None)
    yield


@pytest.fixture(autouse=True)
def own_layouts() -> Iterator[None]:
    """Layouts that a test registers, or reads from a file, are gone after it."""
    before = dict(registered)
    yield
    registered.clear()
    registered.update(before)
