"""A repository with a locked model, and what CI says when somebody unties it, and when its dialect is converted.

    python docs/examples/ci/demo.py [FOLDER]

It makes three commits in FOLDER, which has to be new, or in a temporary folder, and prints what was run and what it
said.  It needs git, torch and transformers, and downloads nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

WHO = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in {"NAME": "Ann", "EMAIL": "ann@example.com", "DATE": "2026-01-01T00:00:00Z"}.items()
}


class Repository:
    """A folder in which commands are shown and run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SystemExit(f"{folder} is not empty")
        self.folder = folder

    def run(self, line: str, code: int = 0, **environment: str) -> None:
        """Show a command and what it prints; it has to exit with `code`."""
        before = "".join(f"{key}={value} " for key, value in environment.items())
        print(f"$ {before}{line}", flush=True)
        done = self.quietly(line, **environment)
        print(done.stdout, end="")
        print(done.stderr, end="")
        if done.returncode:
            print(f"exit code {done.returncode}")
        if done.returncode != code:
            raise SystemExit(f"{line}: expected exit code {code}")
        print(flush=True)

    def quietly(self, line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command; `paramtool` is the one of this interpreter, wherever PATH leads."""
        words = shlex.split(line)
        words[:1] = [sys.executable, "-m", "paramtool"] if words[0] == "paramtool" else words[:1]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "GITHUB_"))}
        kept |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **WHO, **environment}
        return subprocess.run(words, cwd=self.folder, env=kept, capture_output=True, text=True, check=False)

    def commit(self, message: str) -> None:
        """Commit everything."""
        self.quietly("git add --all")
        self.run(f"git commit --quiet --message {shlex.quote(message)}")

    def save(self, *, tied: bool) -> None:
        """The model as a training script saves it; the same numbers each time."""
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, tie_word_embeddings=True, architectures=["LlamaForCausalLM"],
        )  # fmt: skip
        state = LlamaForCausalLM(config).state_dict()
        config.save_pretrained(self.folder / "model")
        kept = {name: tensor if tied else tensor.clone() for name, tensor in state.items()}
        torch.save(kept, self.folder / "model" / "pytorch_model.bin")


def main(folder: Path) -> None:
    """Three commits."""
    repository = Repository(folder)
    repository.quietly("git init --quiet --initial-branch main")
    (folder / ".gitignore").write_text("*.sarif\n")

    print("# 1. The model is tied, and locked.\n")
    repository.save(tied=True)
    repository.run("paramtool lock model")
    repository.commit("The model, and its lock")
    repository.run("paramtool check")

    print("# 2. Somebody saves it with every tensor cloned: equal numbers, and no tie.\n")
    repository.save(tied=False)
    repository.commit("Save the model on the CPU")
    repository.run("paramtool check -o results.sarif", code=1)
    show_result(folder)
    repository.run("paramtool check", code=1, GITHUB_ACTIONS="true")

    print("# 3. The tied one is back, and is converted for vLLM.\n")
    repository.run("git checkout --quiet HEAD~1 -- model")
    repository.run("paramtool convert model -o model-vllm --to vllm --quiet")
    repository.run("paramtool diff model model-vllm --exit-code")
    repository.run("paramtool lock model-vllm")
    repository.commit("The model for vLLM, beside the original")
    repository.run("paramtool check")


def show_result(folder: Path) -> None:
    """The first result of the SARIF, and the line of the lock that it is about."""
    first = json.loads((folder / "results.sarif").read_text())["runs"][0]["results"][0]
    where = first["locations"][0]["physicalLocation"]
    line = where["region"]["startLine"]
    print("# the first result of results.sarif, and its line in the lock")
    print(f"{first['ruleId']} {first['level']} {where['artifactLocation']['uri']}:{line} {first['message']['text']}")
    print(f"{line}: {(folder / 'paramtool.lock').read_text().splitlines()[line - 1]}\n")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        made = Path(tempfile.mkdtemp())
        try:
            main(made / "repository")
        finally:
            shutil.rmtree(made)
