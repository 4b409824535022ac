"""The table of `docs/proofs-models.md`: every cell is run here, ours says what is right, and the page says the same.

It takes half a minute: `make oracles` runs it (PARAMTOOL_EVERY_MODEL=1).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.examples import IS_EVERY_MODEL
from tests.oracles.real_models import single_thread, table_script

__all__ = ["single_thread"]  # a fixture
pytestmark = pytest.mark.skipif(not IS_EVERY_MODEL, reason="make oracles")
PAGE = Path(__file__).parents[2] / "docs/proofs-models.md"


@pytest.fixture(scope="module")
def text() -> str:
    """What the script prints."""
    found: str = table_script.markdown()
    return found


def cells(text: str) -> list[list[str]]:
    """The cells of every line of a table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def page() -> str:
    """What stands between the markers."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(table_script.BEGIN + "\n")
    found, end, _ = rest.partition(table_script.END)
    assert end
    return found


def test_every_verdict_is_known(text: str) -> None:
    """A line a case, a cell a saver, and no cell says anything that the judge has no word for."""
    found = cells(text)
    assert [line[0] for line in found[2:]] == [case.label for case in table_script.CASES]
    assert {len(line) for line in found} == {1 + len(table_script.SAVERS)}
    for _, *verdicts in found[2:]:
        assert all(verdict.startswith(table_script.SAYS) for verdict in verdicts), verdicts


def test_paramtool_is_right_in_every_case(text: str) -> None:
    """What should load does, with its ties and no others and the same logits; what contradicts the model is refused."""
    for case, line in zip(table_script.CASES, cells(text)[2:], strict=True):
        assert line[-1].startswith(case.good), (case.label, line[-1])


def test_the_page_says_the_same(text: str) -> None:
    """Its first and last column always, and all of it where it was made with the versions that are installed."""
    assert [(line[0], line[-1]) for line in cells(page())] == [(line[0], line[-1]) for line in cells(text)]
    if page().splitlines()[-1] == text.splitlines()[-1]:
        assert page() == text


def test_a_model_of_transformers_is_opened_by_it() -> None:
    """Only plain torch models are none of its own."""
    (transformers,) = (saver for saver in table_script.SAVERS if "save_pretrained" in saver.name)
    others = [name for name, spec in table_script.MODELS.items() if not transformers.opens(spec.build())]
    assert others == ["LSTM", "GRU"]


def save(source: nn.Module, folder: Path) -> None:
    torch.save(source.state_dict(), folder / "m.pt")


def loads(edit: Callable[[nn.Module], object]) -> Callable[..., None]:
    """A loader that is right, and then edits what it loaded."""

    def load(target: nn.Module, folder: Path, case: object) -> None:
        target.load_state_dict(torch.load(folder / "m.pt", weights_only=True))
        edit(target)

    return load


def untie(model: nn.Module) -> None:
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())  # type: ignore[union-attr, operator]


def zero(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).zero_()


def scale(model: nn.Module) -> None:
    """Something that no name shows."""
    model.transformer.h[0].attn.scaling = 3.0  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("edit", "says"),
    [(lambda model: None, "loads"), (untie, "unties: "), (zero, "wrong values: "), (scale, "other logits")],
    ids=["right", "unties", "zeros", "scales"],
)
def test_the_judge_can_find_fault(edit: Callable[[nn.Module], object], says: str) -> None:
    """Savers that are wrong on purpose."""
    case = table_script.CASES[0]
    assert table_script.verdict(case, table_script.Saver("wrong", save, loads(edit))).startswith(says)


def test_what_was_not_loaded_is_found() -> None:
    """A loader that does nothing, and one that opens a model of its own."""
    case = table_script.CASES[0]
    nothing = table_script.Saver("nothing", save, lambda target, folder, case: None)
    assert table_script.verdict(case, nothing).startswith("leaves unset: ")
    own = table_script.Saver("own", save, lambda target, folder, case: case.spec.build(2))
    assert table_script.verdict(case, own).startswith("wrong values: ")
