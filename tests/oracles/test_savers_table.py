"""The table of docs/savers.md: every cell is run here, and ours says what is right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "docs/examples/savers_table.py"
pytest.importorskip("accelerate")
pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("savers_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["savers_table"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text(script: ModuleType) -> str:
    """What the script prints."""
    return script.markdown()


@pytest.fixture(scope="module")
def cells(text: str) -> list[list[str]]:
    """The cells of every line of the table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_table_is_well_formed(script: ModuleType, cells: list[list[str]]) -> None:
    """A head, a rule, a line a case; every line has a cell for each saver and no cell is empty."""
    assert len(cells) == 2 + len(script.CASES)
    assert {len(line) for line in cells} == {1 + len(script.SAVERS)}
    assert set(cells[1]) == {"---"}
    assert all(cell for line in cells for cell in line)


def test_every_verdict_is_known(script: ModuleType, cells: list[list[str]]) -> None:
    """No cell says anything that the judge has no word for."""
    for _, *verdicts in cells[2:]:
        assert all(verdict.startswith(script.VERDICTS) for verdict in verdicts), verdicts


def test_paramtool_is_right_in_every_case(script: ModuleType, cells: list[list[str]]) -> None:
    """What should load does, bit for bit, with its ties and no others; what contradicts the model is refused."""
    for case, line in zip(script.CASES, cells[2:], strict=True):
        assert line[-1].startswith(case.good), (case.what, line[-1])


def test_the_judge_can_find_fault(script: ModuleType) -> None:
    """A saver that unties, and one that writes zeros, do not pass."""
    import torch

    def zeros(target: torch.nn.Module, folder: Path) -> None:
        with torch.no_grad():
            for tensor in target.state_dict().values():
                tensor.zero_()

    def untied(target: torch.nn.Module, folder: Path) -> None:
        values = torch.load(folder / "m.pt", weights_only=True)
        target["decoder"].weight = torch.nn.Parameter(target["decoder"].weight.detach().clone())
        target.load_state_dict(values)

    def save(source: torch.nn.Module, folder: Path) -> None:
        torch.save(source.state_dict(), folder / "m.pt")

    case = script.CASES[0]
    assert script.verdict(case, script.Saver("zeros", save, zeros)).startswith("wrong values: ")
    assert script.verdict(case, script.Saver("untied", save, untied)).startswith("unties: ")
    nothing = script.Saver("nothing", save, lambda target, folder: None)
    assert script.verdict(case, nothing).startswith("leaves unset: ")


def test_the_table_is_written_between_its_markers(script: ModuleType, tmp_path: Path) -> None:
    """What stood between the markers goes, everything else stays, and again gives the same."""
    page = tmp_path / "savers.md"
    page.write_text(f"above\n{script.BEGIN}\nold\n{script.END}\nbelow\n")
    for _ in range(2):
        script.write(page, "| new |\n")
        assert page.read_text() == f"above\n{script.BEGIN}\n| new |\n{script.END}\nbelow\n"


def test_a_page_without_markers_is_refused(script: ModuleType, tmp_path: Path) -> None:
    """Nothing is written where the markers are missing."""
    page = tmp_path / "savers.md"
    page.write_text("above\n")
    with pytest.raises(SystemExit, match="lacks"):
        script.write(page, "| new |\n")
    assert page.read_text() == "above\n"


def test_the_page_has_the_table(script: ModuleType) -> None:
    """docs/savers.md has the markers, one row for each case and one column for each saver."""
    page = SCRIPT.parents[1] / "savers.md"
    _, _, rest = page.read_text(encoding="utf-8").partition(script.BEGIN)
    table, closed, _ = rest.partition(script.END)
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert closed and [row[0].removeprefix("| ") for row in rows[2:]] == [case.what for case in script.CASES]
    assert {len(row) for row in rows} == {len(script.SAVERS) + 1}
