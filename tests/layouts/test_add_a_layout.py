"""What docs/add-a-layout.md shows is what happens: its examples and its messages are taken from the page and run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import paramtool
from paramtool import layouts
from paramtool.errors import ParamtoolError
from paramtool.layouts import own
from paramtool.layouts.spec import Spec
from tests.hostile.command import quick
from tests.laws.conversions import held, move

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "add-a-layout.md").read_text(encoding="utf-8")


def examples(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


MINE, ENTRY_POINT = examples("toml")
(PYTHON,) = examples("python")
WRONG = re.findall(r"^\| `(.+?)` \| `(.+?)` \| `(.+)` \|$", PAGE, re.MULTILINE)


@pytest.fixture(autouse=True)
def unregistered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that a test registers stays."""
    layouts.registered.clear()
    yield


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_toml_example_converts_there_and_back(kind: str, bidirectional: bool) -> None:
    """Weights of a torch network stand in the example's tensors where the picture has them, and come back."""
    (layout,) = own.from_toml(MINE, "my.toml")
    paramtool.register_layout(layout)
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](5, 3, 2, bidirectional=bidirectional)
    arrays = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    spec = Spec(kind, 5, 3, 2, bidirectional, reset="after" if kind == "gru" else "")
    there = move(held(arrays, "torch", spec, at=""), "mine")
    kernel, bias = there.arrays()["l0_kernel"], there.arrays()["l0_bias"]
    k = {"lstm": 9, "gru": 0}[kind]  # torch's o and r are the second block of columns here
    assert kernel.shape == (5 + 3, len(spec.gates) * 3)
    assert (kernel[:5, 3:6] == arrays["weight_ih_l0"][k : k + 3].T).all()
    assert (kernel[5:, 3:6] == arrays["weight_hh_l0"][k : k + 3].T).all()
    assert (bias[3:6] == (arrays["bias_ih_l0"] + arrays["bias_hh_l0"])[k : k + 3]).all()
    back = move(there, "torch").arrays()
    assert back.keys() == arrays.keys()
    for name in arrays:
        assert "bias" in name or (back[name] == arrays[name]).all(), name


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's commands, one after the other, in a folder with its my.toml and a file of torch's."""
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(MINE)
    module = torch.nn.LSTM(5, 3, 2, bidirectional=True)
    save_file({f"net.{name}": value for name, value in module.state_dict().items()}, "torch.safetensors")
    (commands,) = examples("console")
    for line in commands.splitlines():
        program, *args = line.removeprefix("$ ").split()
        assert program == "paramtool"
        done = quick(*args, cwd=tmp_path)
        assert done.code == 0, done
    assert "net/l1_back_kernel" in load_file("mine.safetensors")
    back = load_file("back.safetensors")
    assert all(
        (back[f"net.{name}"] == value).all() for name, value in module.state_dict().items() if "bias" not in name
    )


def test_the_python_example_converts_there_and_back() -> None:
    """The decorated function stays a function, and its layout is found and loses no bit."""
    scope: dict[str, object] = {}
    exec(PYTHON, scope)
    assert callable(scope["stacked"])
    module = torch.nn.LSTM(5, 3, 2, bidirectional=True)
    arrays = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    there = move(held(arrays, "torch", Spec("lstm", 5, 3, 2, True), at=""), "stacked")
    assert there.arrays()["bw0.weights"].shape == (5 + 3, 4, 3)
    back = move(there, "torch").arrays()
    assert all((back[name] == arrays[name]).all() for name in arrays)


@pytest.mark.parametrize(("before", "after", "message"), WRONG)
def test_a_wrong_layout_is_refused_as_the_page_says(before: str, after: str, message: str) -> None:
    """Each change of the table, made to the page's own example, gives the table's message."""
    assert before in MINE
    with pytest.raises(ParamtoolError) as caught:
        own.from_toml(MINE.replace(before, after, 1), "my.toml")
    assert str(caught.value).startswith("my.toml: layout")
    assert caught.value.message.endswith(f": {message}")


def test_the_table_of_wrong_layouts_is_there() -> None:
    """The test above runs on rows, not on nothing."""
    assert len(WRONG) == 10


def test_the_entry_point_is_of_the_group_that_is_read() -> None:
    """The snippet for pyproject.toml has the group's name."""
    assert f'[project.entry-points."{own.GROUP}"]' in ENTRY_POINT


@pytest.mark.parametrize(
    ("title", "keys"),
    [("`[[layout]]`", own.LAYOUT), ("`[[layout.form]]`", own.FORM), ("a row of `tensors`", own.TENSOR)],
)
def test_the_page_lists_every_key(title: str, keys: dict[str, object]) -> None:
    """The tables of keys are those that the reader knows."""
    start = PAGE.index(f"| {title} | value | meaning |")
    rows = PAGE[start : PAGE.index("\n\n", start)].splitlines()[2:]
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])} == set(keys)


def test_the_page_lists_every_kind_of_cells() -> None:
    """The table of cells is that of specs, with their axes."""
    from paramtool.layouts.spec import KINDS

    start = PAGE.index("| cell | axes |")
    rows = [row.split("|") for row in PAGE[start : PAGE.index("\n\n", start)].splitlines()[2:]]
    said: dict[str, str] = {}
    for row in rows:
        kinds = re.findall(r"`(\w+)`", row[1])
        axes = [part.strip() for part in row[2].split(",")]
        said.update(zip(kinds, axes if len(axes) > 1 else axes * len(kinds), strict=True))
    assert said == KINDS


def test_the_page_names_what_is_there() -> None:
    """Names of functions and files on the page exist."""
    assert "`paramtool/layouts/layouts.json`" in PAGE
    assert layouts.built_in()
    for name in ("check_layout", "from_toml"):
        assert f"{name}(" in PAGE
        assert callable(getattr(own, name))
