"""`paramtool report` on the command line: where the page goes, what is printed, and the exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.commands.report_pages import Parsed, tied
from tests.hostile.command import contents, quick


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tied(tmp_path / "model.pt")
    return tmp_path


def test_the_page_is_beside_the_checkpoint(folder: Path) -> None:
    ran = quick("report", "model.pt", cwd=folder)
    assert ran.code == 0 and "model.report.html" in ran.out and "Where the bytes are" in ran.out, ran
    assert Parsed((folder / "model.report.html").read_text()).wrong == []
    again = quick("report", "model.pt", cwd=folder)
    assert again.code == 7 and "exists" in again.err
    forced = quick("report", "model.pt", "--force", "-q", cwd=folder)
    assert forced.code == 0 and not forced.out and not forced.err


def test_findings_do_not_change_the_exit_code(folder: Path) -> None:
    ran = quick("report", "model.pt", "--fail-on", "missing:absent", "--equal", "-o", "page.html", cwd=folder)
    assert ran.code == 0 and "missing:absent" in (folder / "page.html").read_text()


def test_what_a_lock_finds_is_on_the_page(folder: Path) -> None:
    """The tie is lost: torch's own file without it, against the lock of the file with it."""
    assert quick("lock", "model.pt", cwd=folder).code == 0
    fine = quick("report", "model.pt", "--lock", "paramtool.lock", "-o", "fine.html", cwd=folder)
    assert fine.code == 0 and "PT101" not in (folder / "fine.html").read_text(), fine
    state = torch.load(folder / "model.pt")
    state["model"]["head.weight"] = state["model"]["head.weight"].clone()
    torch.save(state, folder / "model.pt")
    lost = quick("report", "model.pt", "--lock", "paramtool.lock", "-o", "lost.html", cwd=folder)
    assert lost.code == 0 and "PT101" in (folder / "lost.html").read_text(), lost


@pytest.mark.parametrize(
    ("args", "code"),
    [(("ghost.pt",), 3), (("model.pt", "ghost.pt"), 3), (("model.pt", "--fail-on", "nonsense"), 2),
     (("model.pt", "--only", "nonsense"), 2), (("model.pt", "-o", "model.pt", "--force"), 7),
     (("model.pt", "-o", "none/page.html"), 7), (("model.pt", "-o", "."), 7)],
)  # fmt: skip
def test_a_page_that_cannot_be_made(args: tuple[str, ...], code: int, folder: Path) -> None:
    before = contents(folder)
    ran = quick("report", *args, cwd=folder)
    assert ran.code == code and ran.err.startswith("error: "), ran
    assert contents(folder) == before
