"""Folders of DeepSpeed, against what DeepSpeed itself reads from them, and with each of their facts wrong."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import paramtool
import paramtool.torch
from paramtool import formats
from paramtool.commands.optimizers import bindings
from paramtool.errors import Defects, FormatError, ParamtoolError
from paramtool.formats.deepspeed.read import read
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Leaf, Mapping, Sequence
from paramtool.model.storage import ByteRange
from tests.examples import IS_HARD
from tests.formats import deepspeed_folders as made
from tests.hostile.command import quick, refused
from tests.laws.sharing import raw
from tests.versions import needs

FIXTURES = Path(__file__).parents[2] / "fixtures" / "deepspeed"
STAGES = ("stage1", "stage2", "stage3")
UNIVERSAL = ("universal1", "universal3")
STEP = "global_step2"
FILES = {"optimizer": "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt", "model": "mp_rank_00_model_states.pt",
         "sliced": "zero_pp_rank_{}_mp_rank_00_model_states.pt"}  # fmt: skip


def folder_of(name: str) -> Path:
    """The folder of a fixture."""
    return FIXTURES / name / name


def loaded(path: Path) -> dict[str, torch.Tensor]:
    """The tensors as paramtool reads them."""
    return paramtool.torch.load_file(path)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether dtype, shape and every byte agree."""
    return found.dtype == expected.dtype and found.shape == expected.shape and raw(found) == raw(expected)


# --- against DeepSpeed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STAGES)
def test_zero_to_fp32(name: str) -> None:
    """The float32 parameters, the frozen ones and the tied name are those that DeepSpeed's own script reads."""
    expected = torch.load(FIXTURES / name / "zero_to_fp32.pt", weights_only=True)
    found = loaded(folder_of(name))
    module = {key.removeprefix("module.") for key in found if key.startswith("module.")}
    lacking = {"still.weight"} if name == "stage1" else set()  # its script knows those of stages 2 and 3
    assert module == expected.keys() | lacking and len(expected) > 5
    for key, value in expected.items():
        where = "module" if f"optimizer.fp32.{key}" not in found else "optimizer.fp32"
        if key == "head.weight" and name != "stage3":
            where, key = "optimizer.fp32", "emb.weight"
        mine = found[f"{where}.{key}"]
        assert same(mine.float() if key == "ids" else mine, value.float() if key == "ids" else value), key


@pytest.mark.parametrize("stage", ["1", "3"])
def test_ds_to_universal(stage: str) -> None:
    """The parameters, both moments and the step are those that DeepSpeed's own conversion writes for each name."""
    found = loaded(folder_of(f"stage{stage}"))
    zero = folder_of(f"universal{stage}") / "zero"
    names = [path.name for path in zero.iterdir() if (path / "exp_avg.pt").exists()]
    assert len(names) == 5
    for name in names:
        weight = f"optimizer.fp32.{name}" if stage == "1" else f"module.{name}"
        places = {"fp32": weight, **{s: f"optimizer.state.{name}.{s}" for s in ("exp_avg", "exp_avg_sq")}}
        for slot, place in places.items():
            value = torch.load(zero / name / f"{slot}.pt", weights_only=False)
            value = value["param"] if isinstance(value, dict) else value.reshape(found[place].shape)
            assert same(found[place], value), place
        if stage == "1":
            assert same(found[f"optimizer.state.{name}.step"], torch.load(zero / name / "step.pt"))


@pytest.mark.parametrize("stage", ["1", "3"])
def test_a_universal_folder_is_the_one_that_it_was_made_of(stage: str) -> None:
    """Every tensor, under the same name, in the same order; and the same settings."""
    one, other = loaded(folder_of(f"stage{stage}")), loaded(folder_of(f"universal{stage}"))
    assert list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    trees = [paramtool.read(folder_of(f"{kind}{stage}")).objects for kind in ("stage", "universal")]
    held = [dict(dict(tree.items)["optimizer"].items) for tree in trees]  # type: ignore[union-attr]
    assert held[0]["param_groups"] == held[1]["param_groups"]
    assert held[0].keys() == held[1].keys() and held[0]["loss_scaler"].path == held[1]["loss_scaler"].path  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["stage1", "stage2"])
def test_the_model_is_the_float32_copy_rounded(name: str) -> None:
    """DeepSpeed makes the one from the other in each step: no parameter has the copy or a piece of another."""
    found = loaded(folder_of(name))
    copies = [key for key in found if key.startswith("optimizer.fp32.")]
    assert len(copies) == 5
    for key in copies:
        assert same(found[key.replace("optimizer.fp32", "module")], found[key].to(torch.bfloat16)), key


def test_ranks_that_take_turns() -> None:
    """The same training with `round_robin_gradients`: other places in the flat groups, the same values."""
    one, other = loaded(folder_of("stage1")), loaded(folder_of("stage2"))
    assert one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    assert "round_robin_gradients" in paramtool.read(folder_of("stage2")).notes[0]
    assert not any("round_robin" in note for note in paramtool.read(folder_of("stage1")).notes)


# --- what a reader says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*STAGES, *UNIVERSAL])
def test_sections_and_tie(name: str) -> None:
    """The model and its optimizer, and the head that is the embedding."""
    found = paramtool.inspect(folder_of(name))
    assert {one.name: one.role for one in found.checkpoint.sections} == {"module": "model", "optimizer": "optimizer"}
    head = found.graph.names["module.head.weight"]
    assert head.alias_set == "module.emb.weight" == found.graph.names["module.emb.weight"].alias_set
    sets = {found.graph.names[key].alias_set for key in found.graph.names if key.endswith(".step")}
    assert len(sets) == 5, "steps that share memory count each step five times"


@pytest.mark.parametrize("name", [*STAGES, *UNIVERSAL])
def test_the_state_is_bound_by_names(name: str) -> None:
    """Each entry belongs to the parameter of its name, in the group with its settings."""
    checkpoint = paramtool.read(folder_of(name))
    (found,) = bindings(folder_of(name), checkpoint)
    assert found.is_unique and found.how == "names" and not found.defects
    assert all(key == value for key, value in found.names.items()) and len(found.names) == 5
    decays = [dict(group.settings.items)["weight_decay"] for group in found.optimizer.groups]  # type: ignore[union-attr]
    assert decays == [Leaf(0.125), Leaf(0.0)] and found.optimizer.algorithm == "AdamW"
    assert [{"weight" in str(key) for key in group.keys} for group in found.optimizer.groups] == [{True}, {False}]
    assert bool(found.optimizer.masters) == (name[-1] != "3")


def test_what_else_is_kept() -> None:
    """The client's state, the loss scaler and the counters; nothing of how ranks shared the vectors."""
    tree = paramtool.read(folder_of("stage1")).objects
    assert isinstance(tree, Mapping)
    top, inside = dict(tree.items), dict(dict(tree.items)["optimizer"].items)  # type: ignore[union-attr]
    assert top["epoch"] == Leaf(3) and top["global_steps"] == Leaf(2) and "frozen_param_fragments" not in top
    assert list(inside) == [
        "state",
        "param_groups",
        "fp32",
        "loss_scaler",
        "dynamic_loss_scale",
        "overflow",
        "clip_grad",
    ]


def test_the_folder_of_a_step_and_the_one_above() -> None:
    """`latest` says which; both are the same checkpoint."""
    one, other = paramtool.read(folder_of("stage1")), paramtool.read(folder_of("stage1") / STEP)
    assert list(one.entries) == list(other.entries) and one.objects == other.objects
    assert [Path(file.path).name for file in one.files[len(other.files) :]] == ["latest"]


def test_steps_without_the_one_that_is_the_latest(tmp_path: Path) -> None:
    """They are listed, and `--each` takes all; a `latest` that names none is said."""
    for step in ("global_step1", "global_step2"):
        shutil.copytree(folder_of("stage3") / STEP, tmp_path / "ck" / step)
    refused(quick, "inspect", "ck", cwd=tmp_path, code=2, says=("global_step1/", "global_step2/", "--each"))
    assert quick("dedup", "ck", "--each", "-o", "out", cwd=tmp_path).code == 0
    assert {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.safetensors")} == {
        "global_step1/model.safetensors", "global_step2/model.safetensors"
    }  # fmt: skip
    shutil.rmtree(tmp_path / "ck")
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "latest").write_text("global_step9")
    refused(quick, "inspect", "ck", cwd=tmp_path, code=3, says=("'latest'", "'global_step9'", "is not there"))


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", [*STAGES, *UNIVERSAL])
@pytest.mark.parametrize("command", ["dedup", "export", "convert"])
def test_commands(name: str, command: str, tmp_path: Path) -> None:
    """Each writes every tensor, and `verify` agrees."""
    words = {"dedup": [], "export": ["--all-names"], "convert": ["--dtype", "module.*=float32"]}[command]
    shutil.copytree(folder_of(name), tmp_path / "ck")
    ran = quick(command, "ck", *words, "-o", "out", cwd=tmp_path)
    assert ran.code == 0, ran
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.safetensors"}
    assert "DeepSpeed resumes from the files of its ranks" in ran.out + ran.err
    expected, found = loaded(folder_of(name)), loaded(tmp_path / "out" / "model.safetensors")
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        wide = value.float() if command == "convert" and value.is_floating_point() else value
        assert same(found[key], wide if key.startswith("module.") else value), key
    subset = ["--subset"] if command == "export" else []
    assert quick("verify", "out", "--against", "ck", *subset, cwd=tmp_path).code == 0


def test_only_the_model(tmp_path: Path) -> None:
    """The weights of stage 3, joined, under the model's own names."""
    ran = quick("export", folder_of("stage3"), "--only", "module", "--all-names", "-o", "m.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    expected = torch.load(FIXTURES / "stage3" / "zero_to_fp32.pt", weights_only=True)
    found = loaded(tmp_path / "m.safetensors")
    assert found.keys() == expected.keys()
    assert all(same(found[key], value) for key, value in expected.items() if key != "ids")


@pytest.mark.parametrize("stage", [1, 3])
def test_the_state_follows_a_join(stage: int, tmp_path: Path) -> None:
    """Both moments and the float32 copy are joined as the weight is, and `unfuse` gives them back."""
    parts = [f"attn.{part}_proj.weight" for part in "qkv"]
    group = {
        name: torch.arange(64 * k, 64 * (k + 1), dtype=torch.float32).reshape(8, 8) for k, name in enumerate(parts)
    }
    made.save(tmp_path / "ck", [group], 3, stage)
    assert quick("fuse", "ck", "--layout", "qkv", "-o", "fused.safetensors", cwd=tmp_path).code == 0
    before, found = loaded(tmp_path / "ck"), loaded(tmp_path / "fused.safetensors")
    prefixes = {"module.": "", "optimizer.state.": ".exp_avg", "optimizer.state. ": ".exp_avg_sq"}
    prefixes |= {"optimizer.fp32.": ""} if stage == 1 else {}
    for prefix, slot in prefixes.items():
        joined = torch.cat([before[f"{prefix.strip()}{name}{slot}"] for name in parts])
        assert same(found[f"{prefix.strip()}attn.qkv_proj.weight{slot}"], joined), (prefix, slot)
    assert len(found) == len(prefixes) + 1
    (bound,) = bindings(tmp_path / "fused.safetensors", paramtool.read(tmp_path / "fused.safetensors"))
    assert bound.is_unique and list(bound.names.values()) == ["attn.qkv_proj.weight"]
    assert quick("unfuse", "fused.safetensors", "-o", "back.safetensors", cwd=tmp_path).code == 0
    back = loaded(tmp_path / "back.safetensors")
    assert back.keys() == before.keys() and all(same(back[name], value) for name, value in before.items())


@pytest.mark.parametrize("name", ["stage1", "stage3", "universal3"])
def test_inspect_needs_neither_torch_nor_numpy(name: str, tmp_path: Path) -> None:
    """Nothing that the pickles name is imported."""
    script = (
        "import sys\nfrom paramtool.cli.main import main\n"
        "sys.argv = ['paramtool', 'inspect', '--optimizer', sys.argv[1]]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert not {'torch', 'numpy', 'deepspeed'} & sys.modules.keys(), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script, folder_of(name)], check=True, capture_output=True, cwd=tmp_path)


# --- any number of ranks ---------------------------------------------------------------------------------------------


def expected_of(groups: list[made.Group], stage: int) -> dict[str, torch.Tensor]:
    """The tensors of a folder that was made."""
    names = {name: one for group in groups for name, one in group.items()}
    found = {f"module.{name}": one if stage == 3 else one.to(torch.bfloat16) for name, one in names.items()}
    for slot in made.SLOTS:
        held = {name: one for group in made.moments(groups, slot) for name, one in group.items()}
        found |= {f"optimizer.state.{name}.{slot}": one for name, one in held.items()}
    found |= {f"optimizer.state.{name}.step": torch.tensor(4.0) for name in names}
    return found | ({f"optimizer.fp32.{name}": one for name, one in names.items()} if stage < 3 else {})


SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(st.lists(SHAPES, min_size=1, max_size=3), st.integers(1, 5), st.sampled_from([1, 3]))
def test_any_parameters_on_any_ranks(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[list[tuple[int, ...]]], world: int, stage: int
) -> None:
    """However ranks cut them, every parameter and its state come back whole."""
    folder = tmp_path_factory.mktemp("ds")
    groups = made.groups_of(shapes)
    made.save(folder, groups, world, stage)
    expected, found = expected_of(groups, stage), loaded(folder)
    assert found.keys() == expected.keys()
    assert all(same(found[name], value) for name, value in expected.items())


@needs("torch", "2.6", "set_crc32_options")
@pytest.mark.parametrize("stage", [2, 3])
def test_64_ranks_are_joined_in_one_pass(stage: int, tmp_path: Path, reads: list[int]) -> None:
    """What is read of the files is as much as the tensors have.

    Without CRCs, which are compared by reading the bytes before they are copied.
    """
    groups = made.groups_of([[(512, 96), (96,), (64, 64)], [(100, 3)]])
    torch.serialization.set_crc32_options(False)
    try:
        made.save(tmp_path / "ck", groups, 64, stage)
    finally:
        torch.serialization.set_crc32_options(True)
    paramtool.dedup(tmp_path / "ck", tmp_path / "out.safetensors", verify=False, equal=False)
    expected = expected_of(groups, stage)
    assert sum(reads) == sum(one.nbytes for one in expected.values())
    found = loaded(tmp_path / "out.safetensors")
    assert all(same(found[name], value) for name, value in expected.items())


def test_an_elastic_checkpoint(tmp_path: Path) -> None:
    """Its state is a list without padding, and it has no settings."""

    def elastic(rank: int, saved: Any) -> None:
        held = saved["optimizer_state_dict"]
        lean = held["single_partition_of_fp32_groups"]
        held["base_optimizer_state"] = [
            {k: v[: len(lean[g])].clone() if v.dim() else v for k, v in one.items()}
            for g, one in held["base_optimizer_state"]["state"].items()
        ]

    groups = made.groups_of([[(3, 3)], [(5,), (2,)]])
    made.save(tmp_path, groups, 2, 1, elastic)
    expected, found = expected_of(groups, 1), loaded(tmp_path)
    assert found.keys() == expected.keys() and all(same(found[name], value) for name, value in expected.items())


def test_padding_between_parameters(tmp_path: Path) -> None:
    """`param_alignment_paddings` of DeepSpeed 0.19: parameters begin at multiples of 8."""
    group = {"a": torch.arange(1.0, 6), "b": torch.arange(6.0, 12).reshape(2, 3)}
    with_gap = {"a": torch.cat([group["a"], torch.zeros(3)]), "b": group["b"]}

    def aligned(rank: int, saved: Any) -> None:
        saved["optimizer_state_dict"]["param_alignment_paddings"] = [[3, 0]]

    made.save(tmp_path, [with_gap], 2, 2, aligned)
    states = made.model_states([group], 2, 2)
    torch.save(states, tmp_path / FILES["model"])
    found = loaded(tmp_path)
    assert all(same(found[f"optimizer.fp32.{name}"], value) for name, value in group.items())
    assert same(found["optimizer.state.b.exp_avg"], group["b"] + 1000)


# --- what is wrong ---------------------------------------------------------------------------------------------------


def edited(path: Path, change: Callable[[Any], object]) -> None:
    """Change a file as a program could."""
    held = torch.load(path, weights_only=False)
    change(held)
    torch.save(held, path)


def optimizer(rank: int, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change the optimizer states of a rank of a folder that was made."""
    name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    return lambda folder: edited(folder / name, lambda held: change(held["optimizer_state_dict"]))


def model(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change the model states of a folder of stage 1."""
    return lambda folder: edited(folder / FILES["model"], change)


def sliced(rank: int, change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change the model states of a rank of a folder of stage 3."""
    return lambda folder: edited(folder / FILES["sliced"].format(rank), change)


def _file(rank: int, what: str = "optim_states") -> str:
    return f"zero_pp_rank_{rank}_mp_rank_00_{what}.pt"


def _state(held: Any, group: int) -> Any:
    return (held.get("base_optimizer_state") or held["optimizer_state_dict"])["state"][group]


WRONG: dict[str, tuple[int, Callable[[Path], object], str]] = {
    "a rank is missing": (1, lambda f: (f / _file(1)).unlink(), "1 file of 3 ranks are missing, as of rank 1"),
    "the model is missing": (1, lambda f: (f / FILES["model"]).unlink(), "'mp_rank_00_model_states.pt' is missing"),
    "a rank's model is missing": (
        3, lambda f: (f / _file(2, "model_states")).unlink(), "'zero_pp_rank_2_mp_rank_00_model_states.pt' is missing"
    ),
    "truncated": (1, lambda f: os.truncate(f / _file(1), 900), "zero_pp_rank_1_mp_rank_00_optim_states.pt: "),
    "empty": (3, lambda f: os.truncate(f / _file(0, "model_states"), 0), "zero_pp_rank_0_mp_rank_00_model_states.pt"),
    "another world": (
        1, optimizer(1, lambda h: h.update(partition_count=[4, 4])), "2 worlds: ranks 0, 2 of 3 ranks; rank 1 of 4"
    ),
    "a rank too many": (1, lambda f: shutil.copy(f / _file(0), f / _file(3)), "has files of rank 3; .* says 3 ranks"),
    "two files of a rank": (
        1, lambda f: shutil.copy(f / _file(0), f / f"bf16_{_file(0)}"), "rank 0 has 2 files, of several saves"
    ),
    "another stage": (1, optimizer(2, lambda h: h.update(zero_stage=2)), "several saves: .* rank 2 of stage 2"),
    "the model of stage 3 beside that of stage 1": (
        1, lambda f: shutil.copy(f / FILES["model"], f / _file(0, "model_states")), "of another save"
    ),
    "another step": (1, optimizer(1, lambda h: _state(h, 0).update(step=torch.tensor(5.0))), "'step' is not the same"),
    "another step, as a number": (
        3, optimizer(1, lambda h: [_state(h, g).update(step=5) for g in (0, 1)]), "group 0: 'step' is neither"
    ),
    "another step of the model": (
        3, sliced(1, lambda h: h.update(global_steps=5)), "'global_steps' is 5; .* has 4: they are of two saves"
    ),
    "another version": (1, model(lambda h: h.update(ds_version="0.1")), "written by DeepSpeed '0.19.8'; .* by '0.1'"),
    "other settings": (
        1, optimizer(2, lambda h: h["base_optimizer_state"]["param_groups"][0].update(lr=1)), "`param_groups` are not"
    ),
    "other values": (1, optimizer(1, lambda h: h.update(overflow=True)), "'overflow' differ"),
    "other shapes": (
        1, model(lambda h: h["param_shapes"][0].update({"g0.p0": torch.Size((9, 9))})), "param_shapes. has 85"
    ),
    "other shapes, stage 3": (
        3, lambda f: [sliced(k, lambda h: h["param_shapes"][0].update({"g0.p0": torch.Size((9, 9))}))(f)
                      for k in range(3)], "rank 0: float32 parameters of group 0 have .* expected 29"
    ),
    "shapes of one rank": (
        3, sliced(1, lambda h: h["param_shapes"][0].update({"g0.p0": torch.Size((9, 9))})), "'param_shapes' is other"
    ),
    "another model": (1, model(lambda h: h["param_shapes"].pop()), "`param_shapes` has 1: they are of"),
    "no shapes": (1, model(lambda h: h.update(param_shapes=[["x"]])), "are not names with shapes"),
    "a shape without end": (
        1, model(lambda h: h["param_shapes"][0].update({"g0.p0": (0, 1 << 59, 1 << 59)})), "are not names with shapes"
    ),
    "a shorter moment": (
        1, optimizer(1, lambda h: _state(h, 0).update(exp_avg=torch.ones(3))), "exp_avg of group 0 have 3 elements"
    ),
    "a moment of two axes": (
        3, optimizer(1, lambda h: _state(h, 0).update(exp_avg=torch.ones(5, 2))), "'exp_avg' is neither one value"
    ),
    "a moment is missing": (
        1, optimizer(1, lambda h: _state(h, 0).pop("exp_avg_sq")), "group 0: its ranks keep different state"
    ),
    "state of no group": (
        1, optimizer(0, lambda h: h["base_optimizer_state"]["state"].update({10**9: {}})), "3 with state"
    ),
    "groups without numbers": (
        1, lambda f: [optimizer(k, lambda h: h["base_optimizer_state"]["param_groups"][0].update(params=["x"]))(f)
                      for k in range(3)], "`param_groups` has 1 flat group of 2 groups"
    ),
    "no vectors": (
        1, optimizer(2, lambda h: h.update(single_partition_of_fp32_groups=[1, 2])), "of group 0 are not one vector"
    ),
    "no state": (1, optimizer(1, lambda h: h.pop("base_optimizer_state")), "does not have the state of ZeRO"),
    "other mappings": (
        1, lambda f: [optimizer(k, lambda h: h.update(param_slice_mappings=[{"g0.p0": Fragment(0, 5)}]))(f)
                      for k in range(3)], "have different orders"
    ),
    "a name that the model lacks": (
        3, lambda f: [sliced(k, lambda h: h["module"].pop("g0.p0"))(f) for k in range(3)], "lacks 1 parameter"
    ),
    "no values": (
        3, lambda f: [sliced(k, lambda h: h["module"].update(x=torch.empty(0)))(f) for k in range(3)],
        "'x': is empty in `module`",
    ),
    "no module": (1, model(lambda h: h.pop("module")), "has no `module`"),
    "a tie to nothing": (
        3, sliced(0, lambda h: (h["module"].update(y=torch.empty(0)), h["shared_params"].update(y="z"))),
        "says that 'y' is 'z', which no rank has",
    ),
    "a lost slice": (
        3, lambda f: [sliced(k, _frozen(2 if k < 2 else 0))(f) for k in range(3)], "'fr': rank 2 does not have"
    ),
}  # fmt: skip


class Fragment:
    """What `fragment_address` of DeepSpeed is pickled as."""

    def __init__(self, start: int, numel: int) -> None:
        self.start, self.numel = start, numel


def _frozen(count: int) -> Callable[[Any], object]:
    def change(held: Any) -> None:
        held["module"]["fr"] = torch.empty(0)
        held["frozen_param_shapes"] = {"fr": torch.Size((6,))}
        held["frozen_param_fragments"] = {"fr": torch.ones(count)}

    return change


@pytest.mark.sample(9)
@pytest.mark.parametrize("what", WRONG)
def test_wrong(what: str, tmp_path: Path) -> None:
    """Each is an error that says where, and nothing is written."""
    stage, change, says = WRONG[what]
    made.save(tmp_path / "ck", made.groups_of([[(5, 5), (4,)], [(6,)]]), 3, stage)
    read(str(tmp_path / "ck"))
    change(tmp_path / "ck")
    with pytest.raises(Defects, match=says) as raised:
        read(str(tmp_path / "ck"))
    assert str(raised.value).startswith(str(tmp_path / "ck")) and "save" in raised.value.hint
    assert quick("dedup", "ck", "-o", "out", cwd=tmp_path).code == 3
    assert not (tmp_path / "out").exists()


def test_defects_are_gathered(tmp_path: Path) -> None:
    """A missing rank, a truncated one and one of another save in one error."""
    made.save(tmp_path, made.groups_of([[(5, 5)]]), 5, 1)
    (tmp_path / _file(4)).unlink()
    os.truncate(tmp_path / _file(1), 900)
    optimizer(2, lambda held: held.update(zero_stage=2))(tmp_path)
    with pytest.raises(Defects) as raised:
        read(str(tmp_path))
    text = "\n".join(raised.value.defects)
    assert "as of rank 4" in text and f"{_file(1)}: " in text and "rank 2 of stage 2" in text
    assert raised.value.exit_code == 3


SPLIT = {
    "tensor parallelism": "zero_pp_rank_0_mp_rank_01_optim_states.pt",
    "tensor parallelism ": "mp_rank_01_model_states.pt",
    "a pipeline or experts": "layer_00-model_states.pt",
    "a pipeline or experts ": "expp_rank_0_mp_rank_00_optim_states.pt",
}


@pytest.mark.parametrize("what", SPLIT)
def test_what_is_split_otherwise_is_refused_by_name(what: str, tmp_path: Path) -> None:
    """A part of the model is never taken for all of it."""
    made.save(tmp_path / "ck", made.groups_of([[(5, 5)]]), 2, 1)
    (tmp_path / "ck" / SPLIT[what]).write_bytes(b"")
    refused(quick, "inspect", "ck", cwd=tmp_path, code=3, says=(what.strip(), SPLIT[what], "save_16bit_model"))


@pytest.mark.parametrize(
    ("stage", "said"),
    [(1, {"partition_count": [2, 1]}), (3, {"ds_zero_partition_groups": [{"partition_count": k} for k in (2, 1)]})],
)
def test_experts_are_refused_by_name(stage: int, said: Any, tmp_path: Path) -> None:
    """Groups that other numbers of ranks share."""
    groups = made.groups_of([[(5, 5)], [(4,)]])
    made.save(tmp_path, groups, 2, stage, lambda _, held: held["optimizer_state_dict"].update(said))
    with pytest.raises(FormatError, match="experts split its model"):
        read(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "zero/up.bias/fp32.pt").unlink(), "zero/up.bias: has no fp32.pt"),
        (lambda f: (f / "zero/up.bias/exp_avg.pt").unlink(), "zero/up.bias: has no exp_avg.pt; others of its group"),
        (lambda f: shutil.rmtree(f / "zero/up.bias"), "zero/ lacks 1 parameter: 'up.bias'"),
        (lambda f: (f / "zero/up.bias").rename(f / "zero/other"), "zero/ has 1 parameter that the model does not have"),
        (lambda f: os.truncate(f / "zero/up.bias/exp_avg.pt", 500), "exp_avg.pt: "),
        (lambda f: (f / "zero/optimizer_state.pt").unlink(), "optimizer_state.pt"),
        (
            lambda f: shutil.copy(f / "zero/emb.weight/exp_avg.pt", f / "zero/up.bias/exp_avg.pt"),
            r"exp_avg.pt: has \[11, 6\]; `param_shapes` says \[7\]",
        ),
    ],
)
def test_a_universal_folder_is_whole(change: Callable[[Path], object], says: str, tmp_path: Path) -> None:
    """What is missing, of another model or damaged is named."""
    shutil.copytree(folder_of("universal1"), tmp_path / "ck")
    change(tmp_path / "ck")
    with pytest.raises(FormatError, match=says):
        formats.read(tmp_path / "ck")
    assert quick("dedup", "ck", "-o", "out", cwd=tmp_path).code == 3
    assert not (tmp_path / "out").exists()


def test_a_universal_folder_of_stage_3_has_the_model_of_all_ranks(tmp_path: Path) -> None:
    """Frozen parameters are in slices there."""
    shutil.copytree(folder_of("universal3"), tmp_path / "ck")
    (tmp_path / "ck" / FILES["sliced"].format(1)).unlink()
    refused(quick, "inspect", "ck", cwd=tmp_path, code=3, says=("model states of 1 rank; expected 2",))


def test_any_byte_of_the_pickles(tmp_path: Path) -> None:
    """Whatever is changed or cut off, there is a checkpoint or an error, and no traceback."""
    random_ = random.Random(0)
    for name in ("stage1", "stage3", "universal3"):
        shutil.copytree(folder_of(name), tmp_path / name)
        paths = sorted(path for path in (tmp_path / name).rglob("*.pt"))
        for _ in range(400 if IS_HARD else 40):
            path = random_.choice(paths)
            data = path.read_bytes()
            at = random_.randrange(len(data))
            changed = bytearray(data)
            changed[at] ^= random_.choice((1, 2, 8, 0x20, 0x80, 0xFF))
            path.write_bytes(changed if random_.random() < 0.8 else data[:at])
            try:
                found = formats.describe(tmp_path / name).checkpoint
            except ParamtoolError as error:
                assert error.exit_code in (2, 3, 4), error
            else:
                assert isinstance(found, Checkpoint)
            path.write_bytes(data)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    """Its CRC is checked when it is read, and the error says which tensors."""
    shutil.copytree(folder_of("stage3"), tmp_path / "ck")
    path = tmp_path / "ck" / STEP / FILES["optimizer"].format(1)
    at = _start(path, "optimizer_state_dict.optimizer_state_dict.state.0.exp_avg")
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    refused(quick, "dedup", "ck", "-o", "out", cwd=tmp_path, code=3, says=("CRC", "optimizer.state.emb.weight"))
    assert not (tmp_path / "out").exists()


def _start(path: Path, name: str) -> int:
    """Where the bytes of a tensor of a torch file begin."""
    found = paramtool.read(path)
    backing = found.storages[int(found.views()[name].storage)].backing
    assert isinstance(backing, ByteRange)
    return backing.start


class Called:
    """What a hostile pickle holds."""

    def __reduce__(self) -> Any:
        return eval, ("1",)


def test_what_a_rank_would_call(tmp_path: Path) -> None:
    """It is listed, refused, and never called; of each rank."""
    for name, change in {
        "a": optimizer(1, lambda h: h.update(x=Called())),
        "b": sliced(1, lambda h: h.update(x=Called())),
    }.items():
        made.save(tmp_path / name, made.groups_of([[(5, 5)]]), 2, 3)
        change(tmp_path / name)
        refused(quick, "dedup", name, "-o", "out", cwd=tmp_path, code=4, says=("eval",))


def test_sequences_of_the_tree_are_plain() -> None:
    """`params` are names."""
    tree = paramtool.read(folder_of("universal3")).objects
    groups = dict(dict(tree.items)["optimizer"].items)["param_groups"]  # type: ignore[union-attr]
    assert isinstance(groups, Sequence)
    params = dict(groups.items[1].items)["params"]  # type: ignore[union-attr]
    assert params == Sequence("list", (Leaf("up.bias"), Leaf("down.bias")))
