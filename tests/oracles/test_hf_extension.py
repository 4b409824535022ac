"""`hf paramtool ...`: huggingface_hub finds the script as that of an extension, and runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import pytest

from tests.patience import PATIENCE

extensions = pytest.importorskip("huggingface_hub.cli.extensions", reason="huggingface_hub has no extensions")

FIXTURE = Path(__file__).parents[2] / "fixtures/torch/tied_flattened/tied_flattened.pt"
SCRIPTS = Path(sys.executable).parent


def test_the_script_is_what_an_extension_must_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By huggingface_hub's own names of a repository `hf-paramtool`; `hf` gives it the words and passes on its code.

    Installed as `hf extensions install` installs it, without the download: the manifest names the script.
    """
    owner, repository, short = extensions._normalize_repo_id("owner/hf-paramtool")
    script = extensions._get_executable_name(short)
    assert script in {one.name for one in metadata.entry_points(group="console_scripts")}
    monkeypatch.setattr(extensions, "EXTENSIONS_ROOT", tmp_path / ".local/share/hf/extensions")
    folder = extensions._get_extension_dir(short)
    folder.mkdir(parents=True)
    extensions.ExtensionManifest(
        owner=owner, repo=repository, repo_id=f"{owner}/{repository}", short_name=short, type="python",
        executable_path=str(SCRIPTS / script), installed_at=datetime.now(timezone.utc),
    ).save(folder)  # fmt: skip

    def ran(*words: object) -> tuple[int, str]:
        environment = os.environ | {"HOME": str(tmp_path), "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
        done = subprocess.run([*map(str, words)], env=environment, text=True, capture_output=True, timeout=PATIENCE)
        return done.returncode, done.stdout

    assert ran(SCRIPTS / "hf", short, "inspect", FIXTURE) == ran(SCRIPTS / "paramtool", "inspect", FIXTURE)
    assert ran(SCRIPTS / "hf", short, "inspect", FIXTURE, "--fail-on", "missing:head")[0] == 1
