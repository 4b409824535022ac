"""`paramtool guess` as people and pipes use it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from safetensors.torch import load_file
from torch.nn.utils import prune

from paramtool import layouts
from tests.hostile.command import Ran, command, contents, quick, refused

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "schema" / "guess-2.json").read_text())


@pytest.fixture
def lstm() -> torch.nn.LSTM:
    torch.manual_seed(0)
    return torch.nn.LSTM(28, 100)


@pytest.fixture
def model(tmp_path: Path, lstm: torch.nn.LSTM) -> Path:
    """A flat LSTM between an embedding and a dense layer, and an LSTM under names of its own."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in lstm.parameters()])
    own = dict(zip(["a.w1", "a.w2", "a.b1", "a.b2"], lstm.parameters(), strict=True))
    torch.save({"emb.weight": torch.randn(50, 28), "enc.flat": flat, "fc.weight": torch.randn(10, 100), **own},
               tmp_path / "m.pt")  # fmt: skip
    return tmp_path / "m.pt"


def rows(ran: Ran, label: str) -> list[str]:
    return [line.removeprefix(label).strip() for line in ran.out.splitlines() if line.startswith(label + "  ")]


def typed(line: str, folder: Path) -> None:
    """Run a line, whose words a shell has read, with this Python's paramtool."""
    words = subprocess.run(f"printf '%s\\0' {line}", shell=True, cwd=folder, capture_output=True, text=True, check=True)
    name, *args = words.stdout.split("\0")[:-1]
    assert name == "paramtool"
    ran = command(*args, cwd=folder)
    assert ran.code == 0, ran


def test_candidates_are_listed_with_what_to_type(model: Path) -> None:
    """One row a candidate: layout and spec as they are typed, how sure, and why; then what would decide."""
    ran = quick("guess", "m.pt", "--at", "enc.flat", "--limit", "3", cwd=model.parent)
    assert (ran.code, ran.err) == (0, "")
    (vector,) = rows(ran, "vector")
    assert vector.startswith("enc.flat  [52000] float32") and "networks fit, 3 listed: --limit lists more" in vector
    listed = rows(ran, "candidate")
    assert len(listed) == 3
    assert listed[0].startswith('--layout cudnn --spec "lstm input=28 hidden=100"  possible  ')
    for reason in ("embedding emb.weight [50, 28] gives 28", "fc.weight [10, 100] takes 100", "1/sqrt(100)"):
        assert reason in listed[0]
    assert ran.out.splitlines()[-2:] == [
        "decide  enc.flat  1627 networks fit: kind, hidden, input, layers, bias would decide, "
        "which the network's code says",
        'then  enc.flat  guess --at enc.flat --spec "..." lists what agrees with it',
    ]
    assert not rows(ran, "next")


def given(model: Path, at: str, lstm: torch.nn.LSTM) -> bool:
    """Whether the output of unfuse has the network under that name."""
    made = load_file(model.parent / "m.unfused.safetensors")
    return all(torch.equal(made[f"{at}.{name}"], value) for name, value in lstm.state_dict().items())


def test_the_next_line_gives_the_network(model: Path, lstm: torch.nn.LSTM) -> None:
    """Typed as it stands, once what would decide is said."""
    spec = "LSTM input_size=28 hidden_size=100 num_layers=1 bias=True"
    ran = quick("guess", "m.pt", "--at", "enc.flat", "--spec", spec, cwd=model.parent)
    assert len(rows(ran, "candidate")) == 1 and not rows(ran, "decide")
    (line,) = rows(ran, "next")
    typed(line, model.parent)
    assert given(model, "enc", lstm)


def test_names_of_ones_own_have_a_layout_file_and_no_line(model: Path, lstm: torch.nn.LSTM) -> None:
    """No shape shows the order of gates: what to type leaves the layout open, and works with the right one."""
    ran = quick("guess", "m.pt", "--at", "a", cwd=model.parent)
    assert not rows(ran, "next") and "no shape shows" in rows(ran, "decide")[0]
    assert rows(ran, "then") == [
        "a  guess --at a --toml LAYOUT prints a layout file for unfuse, with that layout's gates"
    ]
    own = quick("guess", "m.pt", "--at", "a", "--toml", "torch", cwd=model.parent).out
    (model.parent / "own.toml").write_text(own)
    line = 'paramtool unfuse m.pt --layout-file own.toml --layout guessed --at a --spec "lstm input=28 hidden=100"'
    typed(line, model.parent)
    assert given(model, "a", lstm)


def test_a_bare_vector_has_a_line_that_works(tmp_path: Path, lstm: torch.nn.LSTM) -> None:
    """`torch.save(flat)`: the file is one tensor, and the line works."""
    torch.save(torch.cat([parameter.detach().reshape(-1) for parameter in lstm.parameters()]), tmp_path / "m.pt")
    ran = quick("guess", "m.pt", "--spec", "lstm hidden=100 input=28 bias=yes", cwd=tmp_path)
    (line,) = rows(ran, "next")
    typed(line, tmp_path)


def test_all_networks_of_a_file_are_in_one_line(tmp_path: Path) -> None:
    """With no --at where the layout finds them all; only those where nothing is left to decide."""
    encoder, decoder = torch.nn.LSTM(3, 4, bidirectional=True), torch.nn.GRUCell(5, 6)
    tensors = {f"enc.{name}": value for name, value in encoder.state_dict().items()}
    tensors |= {f"dec.{name}": value for name, value in decoder.state_dict().items()}
    torch.save(tensors, tmp_path / "m.pt")
    assert rows(quick("guess", "m.pt", cwd=tmp_path), "next") == ["paramtool unfuse m.pt --layout torch"]
    torch.save({**tensors, "flat.weights": torch.randn(52000)}, tmp_path / "m.pt")
    ran = quick("guess", "m.pt", cwd=tmp_path)
    assert rows(ran, "next") == ["paramtool unfuse m.pt --layout torch"] and len(rows(ran, "decide")) == 1


def test_every_listed_candidate_is_taken_by_unfuse(model: Path) -> None:
    """As a dry run: layout and spec of each candidate fit the file."""
    found = json.loads(quick("guess", "m.pt", "--at", "enc.flat", "--limit", "40", "--json", cwd=model.parent).out)
    assert found["commands"] == []
    for one in found["places"][0]["candidates"]:
        args = ("--layout", one["layout"], "--at", "enc.flat", "--spec", one["spec"], "--dry-run")
        ran = quick("unfuse", "m.pt", *args, cwd=model.parent)
        if "bias=no" in one["spec"] and "tail=no" not in one["layout"]:  # the room for biases is looked at
            assert ran.code == 5 and "is not zero" in ran.err, (one, ran)
        else:
            assert ran.code == 0, (one, ran)


def test_nothing_is_written_and_nothing_decided(model: Path) -> None:
    """Looking leaves the folder as it was, and of several readings none is sure."""
    before = contents(model.parent)
    ran = quick("guess", "m.pt", cwd=model.parent)
    assert contents(model.parent) == before
    assert len(rows(ran, "candidate")) == 21 and sum("  possible  " in row for row in rows(ran, "candidate")) == 20
    assert rows(ran, "module")[0].startswith("a  4 tensors  1 network fits")


def test_without_values(model: Path) -> None:
    """No tensor is read, and that is said."""
    ran = quick("guess", "m.pt", "--at", "enc.flat", "--no-values", cwd=model.parent)
    assert "1/sqrt" not in ran.out and rows(ran, "not done") == ["values were not read (--no-values): enc.flat"]
    assert not rows(quick("guess", "m.pt", "--at", "enc.flat", cwd=model.parent), "not done")


def test_without_values_no_array_is_imported(model: Path) -> None:
    """The arithmetic of lengths needs no NumPy and no engine."""
    script = (
        "import atexit, sys, json\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=open('modules.json', 'w')))\n"
        "from paramtool.cli.main import main\nmain()"
    )
    args = [sys.executable, "-c", script, "guess", "m.pt", "--no-values"]
    subprocess.run(args, cwd=model.parent, check=True, capture_output=True)
    found = set(json.loads((model.parent / "modules.json").read_text()))
    assert not {"numpy", "torch", "rich", "safetensors", "blake3", "paramtool.engine"} & found
    assert "paramtool.commands.guess" in found


def test_nothing_fits(tmp_path: Path) -> None:
    """A finding: exit 1, and what to look at next."""
    torch.save({"fc.weight": torch.randn(10, 30), "fc.bias": torch.zeros(10)}, tmp_path / "m.pt")
    ran = quick("guess", "m.pt", cwd=tmp_path)
    assert (ran.code, ran.err) == (1, "") and rows(ran, "none")
    assert ran.out.splitlines()[-1] == "next  paramtool inspect m.pt --tensors"


@pytest.mark.parametrize(
    "args, code, says",
    [
        (("m.pt", "--at", "enc.flot"), 2, ("m.pt", "'enc.flot'", "'enc.flat'")),
        (("m.pt", "--at", "fc.weight"), 2, ("m.pt", "'fc.weight'", "one-dimensional")),
        (("m.pt", "--limit", "0"), 2, ("--limit",)),
        (("m.pt", "--toml", "keras"), 2, ("m.pt", "'keras'", "there: torch")),
        (("missing.pt",), 3, ("missing.pt",)),
        ((".",), 3, (".",)),
    ],
)
def test_refusals(args: tuple[str, ...], code: int, says: tuple[str, ...], model: Path) -> None:
    """Each with the exit code of its class, and what was expected."""
    if args == (".",):
        model.unlink()
    refused(quick, "guess", *args, cwd=model.parent, code=code, says=says)


def test_a_damaged_file(model: Path) -> None:
    """A CRC that is wrong is said, even where values only give an order."""
    data = bytearray(model.read_bytes())
    at = data.find(torch.load(model)["enc.flat"].numpy().tobytes()[:64])
    data[at + 5] ^= 1
    model.write_bytes(data)
    refused(quick, "guess", "m.pt", cwd=model.parent, code=3, says=("CRC",))


def test_the_layout_file_of_own_names(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--toml prints nothing but the file, and it is one."""
    layouts.registered.clear()
    ran = quick("guess", "m.pt", "--at", "a", "--toml", "torch", cwd=model.parent)
    assert (ran.code, ran.err) == (0, "")
    from paramtool.layouts.own import from_toml

    (made,) = from_toml(ran.out, "guessed.toml")
    assert made.name == "guessed" and [row.name for row in made.forms[0].tensors] == [
        "[{layer}.]w1", "[{layer}.]w2", "[{layer}.]b1", "[{layer}.]b2",
    ]  # fmt: skip


def test_own_names_of_two_modules_need_a_word(tmp_path: Path, lstm: torch.nn.LSTM) -> None:
    """One file for one module: --at says which."""
    own = {f"{m}.{n}": p for m in "ab" for n, p in zip(["w1", "w2", "b1", "b2"], lstm.parameters(), strict=True)}
    torch.save({name: value.clone() for name, value in own.items()}, tmp_path / "m.pt")
    refused(quick, "guess", "m.pt", "--toml", "torch", cwd=tmp_path, code=2, says=("--at",))


# --- documents --------------------------------------------------------------------------------------------------------


def validate(text: str) -> Any:
    found = json.loads(text)
    Draft202012Validator(SCHEMA).validate(found)
    assert text.isascii()
    return found


def test_the_schema() -> None:
    """Draft 2020-12; a member too few or of a wrong type does not pass, and one more does."""
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$id"] == "guess-2.json"
    (example,) = examples()
    place = example["places"][0]
    for bad in (
        {**example, "at": 1}, {k: v for k, v in example.items() if k != "places"},
        {**example, "places": [{**place, "fits": -1}]},
        {**example, "places": [{**place, "candidates": [{**place["candidates"][0], "sure": "quite"}]}]},
    ):  # fmt: skip
        assert list(Draft202012Validator(SCHEMA).iter_errors(bad)), bad
    for more in ({**example, "more": 1}, {**example, "places": [{**place, "more": 1}]}):
        assert not list(Draft202012Validator(SCHEMA).iter_errors(more)), more


def examples() -> list[Any]:
    blocks = re.findall(r"```json\n(.*?)```", (DOCS / "json.md").read_text(), re.S)
    return [validate(block) for block in blocks if json.loads(block)["schema"] == "paramtool.guess/2"]


def test_the_example_of_the_documentation_validates() -> None:
    """It is there, and it is one."""
    assert len(examples()) == 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("flags", [(), ("--no-values",), ("--at", "enc.flat"), ("--limit", "1"), ("--at", "a")])
def test_the_document(flags: tuple[str, ...], model: Path) -> None:
    """The same facts as the rows, exact."""
    found = validate(quick("guess", "m.pt", *flags, "--json", cwd=model.parent).out)
    assert found["at"] == (flags[1] if flags[:1] == ("--at",) else None)
    for place in found["places"]:
        assert len(place["candidates"]) <= place["fits"]
        assert place["looked"] == (place["what"] == "vector" and flags != ("--no-values",))
        assert all(one["own_names"] == (place["at"] == "a") for one in place["candidates"])


def test_the_document_of_nothing(tmp_path: Path) -> None:
    """No place, exit 1."""
    torch.save({"fc.weight": torch.randn(10, 30)}, tmp_path / "m.pt")
    ran = quick("guess", "m.pt", "--json", cwd=tmp_path)
    assert ran.code == 1 and validate(ran.out)["places"] == []


def test_names_cannot_write_to_a_terminal(tmp_path: Path, lstm: torch.nn.LSTM) -> None:
    """Escapes in names are shown, not obeyed."""
    torch.save({"x\x1b[31m.flat": torch.randn(52000)}, tmp_path / "m.pt")
    ran = command("guess", "m.pt", "--limit", "1", cwd=tmp_path)
    assert ran.code == 0 and "\x1b" not in ran.out and "x\\x1b[31m.flat" in ran.out


def test_what_a_wrapper_computes_is_said(tmp_path: Path) -> None:
    """The parts of a weight under pruning are no weights: the row says what undoes it, and no line is printed."""
    module = torch.nn.Sequential(prune.l1_unstructured(torch.nn.LSTM(3, 5), "weight_hh_l0", 0.3))
    torch.save(module.state_dict(), tmp_path / "m.pt")
    ran = quick("guess", "m.pt", cwd=tmp_path)
    (row,) = rows(ran, "decide")
    assert "'weight_hh_l0' is computed when the network runs" in row and "prune.remove(module, 'weight_hh_l0')" in row
    assert not rows(ran, "candidate") and not rows(ran, "next") and not rows(ran, "then")


def test_weight_dropout_has_a_line(tmp_path: Path) -> None:
    """AWD-LSTM: the raw weight is taken, by guess as by unfuse."""
    tensors = {f"rnn.module.{name}": value for name, value in torch.nn.LSTM(3, 5).state_dict().items()}
    raw = torch.randn(20, 5)
    torch.save(tensors | {"rnn.weight_hh_l0_raw": raw}, tmp_path / "m.pt")
    (line,) = rows(quick("guess", "m.pt", cwd=tmp_path), "next")
    typed(line, tmp_path)
    found = load_file(tmp_path / "m.unfused.safetensors")
    assert torch.equal(found["rnn.module.weight_hh_l0"], raw)


def test_a_refusal_is_one_line(tmp_path: Path) -> None:
    """What stands beside a network is named, and no command that was refused is advised."""
    tensors = {f"rnn.{name}": value for name, value in torch.nn.LSTM(3, 5).state_dict().items()}
    torch.save(tensors | {"rnn.ln.weight": torch.ones(20), "rnn.ln.bias": torch.ones(20)}, tmp_path / "m.pt")
    ran = quick("guess", "m.pt", cwd=tmp_path)
    (row,) = rows(ran, "decide")
    assert "'rnn.ln.weight'" in row and "'rnn.ln.bias'" in row
    assert not rows(ran, "then") and not rows(ran, "next")
