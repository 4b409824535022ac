"""docs/claims.json: each claim is a sentence of README.md, its proofs exist, and the page is what the script writes."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest

from tests.recording import claims_module

ROOT = Path(__file__).resolve().parents[2]
claims = claims_module()
EVERY = {one.id: one for one in claims.claims()}


def plain(text: str) -> str:
    """Text with each white space as one space."""
    return re.sub(r"\s+", " ", text)


def functions(path: Path) -> set[str]:
    """The tests of a module: `test_x`, or `Class::test_x`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("key", EVERY)
def test_the_readme_says_so(key: str) -> None:
    """In these words."""
    assert plain(EVERY[key].says) in plain((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("key", EVERY)
def test_the_proofs_exist(key: str) -> None:
    """A script, a module of tests, or a test in it."""
    assert EVERY[key].proofs
    for proof in EVERY[key].proofs:
        path, _, name = proof.partition("::")
        assert (ROOT / path).is_file(), proof
        assert not name or name in functions(ROOT / path), proof


@pytest.mark.parametrize("key", EVERY)
def test_the_libraries_exist(key: str) -> None:
    """Each is installed here, or named in the requirements of its environment."""
    for library, environment in EVERY[key].libraries.items():
        if not environment:
            assert metadata.version(library)
            continue
        wanted = next((ROOT / "tests/oracles").rglob(f"requirements-{environment}.txt"))
        assert re.search(rf"^{library}==", wanted.read_text(encoding="utf-8"), re.M | re.I), library


def test_the_page_is_what_the_script_writes() -> None:
    """`python docs/claims.py page` would change nothing."""
    assert claims.page(EVERY.values()) == (ROOT / "docs/claims.md").read_text(encoding="utf-8")


def test_releases_are_in_order() -> None:
    """By their numbers, whatever was built."""
    versions = ["0.9", "1.10.0b1", "2.0.0", "2.13.0", "2.13.1+cpu"]
    assert sorted(["2.13.1+cpu", "2.0.0", "1.10.0b1", "2.13.0", "0.9"], key=claims.order) == versions
    assert claims.order("2.0.0") == claims.order("2.0") == claims.order("2+cu130")


def test_what_is_older_is_printed() -> None:
    """A proof that ran with an older release, and one that never ran; not one that ran with the newest or a newer."""
    ran = {"t.py": {"date": "2026-01-02", "versions": {"torch": "2.13.0+cpu", "tf_keras": "2.21.0"}}}
    one = claims.Claim("one", "", ["t.py"], {"torch": "", "tf_keras": "tf"}, ran)
    assert list(claims.stale([one], {"torch": ("2.13.0", ".venv"), "tf-keras": ("2.20.0", ".venv")})) == []
    assert list(claims.stale([one], {"torch": ("2.15.0+cu132", ".venv-oracles/zoo")})) == [
        "one: ran with torch 2.13.0+cpu on 2026-01-02; 2.15.0+cu132 is installed in .venv-oracles/zoo"
    ]
    assert list(claims.stale([claims.Claim("two", "", ["t.py", "u.py"], {}, ran)], {})) == ["two: never ran: u.py"]


def test_environments_are_looked_into(tmp_path: Path) -> None:
    """The newest release in any, with its place."""
    for place, version in ((".venv", "2.9.0"), (".venv-oracles/zoo", "2.15.0"), (".venv-oracles/next", "3.0.0b1")):
        folder = tmp_path / place / "lib/python3.11/site-packages" / f"torch-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    assert claims.newest_installed(tmp_path) == {"torch": ("2.15.0", ".venv-oracles/zoo")}


def test_only_what_passed_is_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with a test that was skipped or failed is none, and a function is judged alone."""
    kept = [claims.Claim("one", "", ["t.py"], {}), claims.Claim("two", "", ["t.py::test_a"], {"pytest": ""})]
    monkeypatch.setattr(claims, "claims", lambda: kept)
    found = claims.passed({"t.py::test_a": "passed", "t.py::test_ab": "skipped"})
    assert found.keys() == {"two"}
    assert found["two"]["t.py::test_a"]["versions"] == {"pytest": metadata.version("pytest")}
    assert claims.passed({"t.py::test_a": "passed", "t.py::test_ab": "passed"}).keys() == {"one", "two"}
    assert claims.passed({"t.py::test_a": "failed"}) == {}
