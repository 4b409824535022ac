"""Folders of torch.distributed.checkpoint, against its own loader, and with each of their facts wrong."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

import paramtool
import paramtool.torch
from paramtool import formats
from paramtool.errors import Defects, FormatError, ParamtoolError
from paramtool.formats.dcp.flatten import with_numbers
from paramtool.formats.dcp.read import read
from paramtool.formats.folder import roots
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.objects import Leaf, Mapping, Node, Sequence, TensorRef
from paramtool.model.storage import Assembled, ByteRange
from tests.contracts.makers_dcp import flat, nested
from tests.examples import IS_HARD, examples
from tests.hostile.command import quick, refused
from tests.laws.sharing import raw
from tests.versions import needs

pytestmark = needs("torch", "2.3", "dcp_to_torch_save")

FIXTURES = Path(__file__).parents[2] / "fixtures" / "dcp"
FOLDERS = [FIXTURES / name / name for name in ("one_process", "fsdp2", "tensor_parallel")]
ONE_PROCESS = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def folder(request: pytest.FixtureRequest) -> Path:
    """Each fixture in turn."""
    return request.param


def value_of(node: Node, tensors: dict[str, Any]) -> Any:
    """Plain values of a tree, with the tensors in it."""
    match node:
        case TensorRef(name):
            return tensors[name]
        case Leaf(value):
            return value
        case Mapping("dict", items):
            return {key: value_of(child, tensors) for key, child in items}
        case Sequence(kind, items):
            return {"list": list, "tuple": tuple}[kind](value_of(child, tensors) for child in items)
    raise AssertionError(node)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and raw(one) == raw(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        pairs = len(one) == len(other) and zip(one, other, strict=True)
        return type(one) is type(other) and pairs is not False and all(same(*pair) for pair in pairs)
    return type(one) is type(other) and one == other


def test_values_and_tree(folder: Path) -> None:
    """Every value at its place is what torch's own loader gives, which joins the shards."""
    found = paramtool.read(folder)
    tensors = {
        name: torch.from_numpy(a) if not isinstance(a, torch.Tensor) else a for name, a in loaded(folder).items()
    }
    assert same(value_of(found.objects, tensors), nested(folder))


def loaded(path: Path) -> dict[str, torch.Tensor]:
    """The tensors as paramtool reads them."""
    return paramtool.torch.load_file(path)


@pytest.mark.parametrize("command", ["dedup", "export", "convert"])
def test_commands(folder: Path, command: str, tmp_path: Path) -> None:
    """Each writes what torch's own loader reads."""
    words = {"dedup": [], "export": ["--all-names"], "convert": ["--dtype", "model.*=float32"]}[command]
    shutil.copytree(folder, tmp_path / "ck")
    ran = quick(command, "ck", *words, "-o", "out.safetensors", cwd=tmp_path)
    assert ran.code == 0, ran
    expected = flat(nested(folder))
    found = loaded(tmp_path / "out.safetensors")
    assert {name: raw(value) for name, value in found.items()} == {name: raw(value) for name, value in expected.items()}
    if command == "dedup":
        assert quick("verify", "out.safetensors", "--against", "ck", cwd=tmp_path).code == 0


def test_sections(folder: Path) -> None:
    """The parts of a training checkpoint, with their roles."""
    found = {section.name: section.role for section in paramtool.read(folder).sections}
    assert found["model"] == "model" and found.get("optim", "optimizer") == "optimizer"
    assert roots.root_of(str(folder)).kind == "dcp"  # type: ignore[union-attr]


def test_a_section_alone(tmp_path: Path) -> None:
    """Its parts come along."""
    ran = quick(
        "export", FIXTURES / "fsdp2" / "fsdp2", "--only", "model", "--all-names", "-o", "m.safetensors", cwd=tmp_path
    )
    assert ran.code == 0, ran
    expected = flat(nested(FIXTURES / "fsdp2" / "fsdp2")["model"])
    assert {n: raw(v) for n, v in loaded(tmp_path / "m.safetensors").items()} == {
        n: raw(v) for n, v in expected.items()
    }


def test_inspect_needs_neither_torch_nor_numpy(folder: Path, tmp_path: Path) -> None:
    """Nothing that the metadata names is imported."""
    script = (
        "import sys\nfrom paramtool.cli.main import main\n"
        "sys.argv = ['paramtool', 'inspect', sys.argv[1]]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys(), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(folder)], check=True, capture_output=True, cwd=tmp_path)


@pytest.mark.parametrize("files", [16, 128])
@pytest.mark.parametrize("width", [96, 1 << 15])
def test_each_byte_is_read_once(
    tmp_path: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch, *, width: int, files: int
) -> None:
    """The shards of 64 ranks are joined in one pass, and the CRC of each comes from the same read."""
    monkeypatch.setattr("paramtool.engine.read.open_files.MANY_OPEN_FILES", files)
    rows = torch.randint(256, (512, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(width))
    shards = [((8 * k, 0), rows[8 * k : 8 * k + 8]) for k in range(64)]
    save_shards(tmp_path / "ck", {"rows": (512, width)}, {"rows": shards})
    paramtool.dedup(tmp_path / "ck", tmp_path / "out.safetensors", verify=False, equal=False)
    assert sum(reads) == rows.nbytes
    assert torch.equal(loaded(tmp_path / "out.safetensors")["rows"], rows)


def test_each_byte_of_columns_is_read_once(tmp_path: Path, reads: list[int]) -> None:
    """Shards that are no runs, without CRCs, which are compared by reading the bytes before they are copied."""
    columns = -torch.arange(512 * 96, dtype=torch.float32).reshape(512, 96)
    torch.serialization.set_crc32_options(False)
    try:
        save_shards(tmp_path / "ck", {"columns": (512, 96)},
                    {"columns": [((0, 3 * k), columns[:, 3 * k : 3 * k + 3]) for k in range(32)]})  # fmt: skip
    finally:
        torch.serialization.set_crc32_options(True)
    paramtool.dedup(tmp_path / "ck", tmp_path / "out.safetensors", verify=False, equal=False)
    assert sum(reads) == columns.nbytes
    assert torch.equal(loaded(tmp_path / "out.safetensors")["columns"], columns)


# --- made folders --------------------------------------------------------------------------------------------------


def save_shards(
    folder: Path, shapes: dict[str, tuple[int, ...]], shards: dict[str, list[tuple[tuple[int, ...], torch.Tensor]]]
) -> None:
    """Write a folder as many ranks would: shard k of each tensor is in the file of rank k."""
    from torch.distributed.checkpoint import metadata as dm
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    folder.mkdir(exist_ok=True)
    described: dict[str, Any] = {}
    places: dict[Any, Any] = {}
    for name, parts in shards.items():
        chunks = []
        for rank, (offsets, part) in enumerate(parts):
            path = folder / f"__{rank}_0.distcp"
            start = path.stat().st_size if path.exists() else 0
            with path.open("ab") as file:
                torch.save(part.clone(), file)
            info = _StorageInfo(path.name, start, path.stat().st_size - start)
            places[dm.MetadataIndex(name, torch.Size(offsets), rank)] = info
            chunks.append(dm.ChunkStorageMetadata(torch.Size(offsets), part.shape))
        properties = dm.TensorProperties(dtype=parts[0][1].dtype)
        described[name] = dm.TensorStorageMetadata(properties, torch.Size(shapes[name]), chunks)
    planned = {name: (name,) for name in shapes}
    made = dm.Metadata(described, planned, places, None, "1.0.0")
    (folder / ".metadata").write_bytes(pickle.dumps(made))


Box = tuple[tuple[int, int], ...]


def tiled(random_: random.Random, box: Box, depth: int) -> list[Box]:
    """Boxes that tile a box."""
    long = [k for k, (start, stop) in enumerate(box) if stop - start > 1]
    if not depth or not long:
        return [box]
    axis = random_.choice(long)
    start, stop = box[axis]
    middle = random_.randint(start + 1, stop - 1)
    halves = [(*box[:axis], side, *box[axis + 1 :]) for side in ((start, middle), (middle, stop))]
    return [one for half in halves for one in tiled(random_, half, random_.randint(0, depth - 1))]


@ONE_PROCESS
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 30), st.lists(st.integers(1, 6), max_size=3))
def test_any_shards_are_joined(tmp_path_factory: pytest.TempPathFactory, seed: int, shape: list[int]) -> None:
    """However boxes tile a tensor, it is what torch's loader makes of it."""
    random_ = random.Random(seed)
    folder = tmp_path_factory.mktemp("dcp")
    whole = torch.randint(-1000, 1000, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int16)
    boxes = tiled(random_, tuple((0, n) for n in shape), 4)
    random_.shuffle(boxes)
    parts = [(tuple(a for a, _ in box), whole[tuple(slice(*side) for side in box)]) for box in boxes]
    save_shards(folder, {"w": tuple(shape)}, {"w": parts})
    expected = {"w": torch.zeros_like(whole)}
    dcp.load(expected, checkpoint_id=folder, no_dist=True)
    assert torch.equal(expected["w"], whole) and torch.equal(loaded(folder)["w"], whole)


def test_archives_of_one_shape_are_read_by_comparison(tmp_path: Path) -> None:
    """Storages and CRCs are those that reading each of them gives."""
    parts = [((4 * k, 0), torch.full((4, 5), float(k))) for k in range(6)]
    save_shards(tmp_path, {"w": (24, 5)}, {"w": parts})
    found = read(str(tmp_path))
    for k in range(6):
        alone = paramtool.read(_cut_out(tmp_path / f"__{k}_0.distcp"))
        (one,) = (
            s.backing for s in found.storages.values() if getattr(s.backing, "file", "").endswith(f"__{k}_0.distcp")
        )
        assert isinstance(one, ByteRange) and one._replace(file="") == alone.storages[0].backing._replace(file="")  # type: ignore[union-attr]
    assert isinstance(found.storages[max(found.storages)].backing, Assembled)


def _cut_out(path: Path) -> Path:
    shutil.copy(path, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("width", [5, 50_000, 300_000, 600_000])
def test_a_damaged_shard_is_named(tmp_path: Path, width: int, number: int) -> None:
    """Its CRC is checked however it is copied, by its last bit, too, and the error says which tensor."""
    save_shards(tmp_path / "ck", {"w": (4, width)}, {"w": [((k, 0), torch.ones(2, width)) for k in (0, 2)]})
    storages = read(str(tmp_path / "ck")).storages.values()
    backing = [s.backing for s in storages if isinstance(s.backing, ByteRange)][number]
    with open(backing.file, "r+b") as file:
        file.seek(backing.stop - 1)
        last = file.read(1)[0]
        file.seek(backing.stop - 1)
        file.write(bytes([last ^ 1]))
    refused(quick, "dedup", "ck", "-o", "out.safetensors", cwd=tmp_path, code=3, says=("CRC", "'w'", "damaged"))
    assert not (tmp_path / "out.safetensors").exists()


# --- what is wrong -------------------------------------------------------------------------------------------------


def edited(folder: Path, change: Callable[[Any], object]) -> None:
    """Change `.metadata` as a program could."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def _chunk(metadata: Any, **facts: Any) -> None:
    chunk = metadata.state_dict_metadata["model.0.weight"].chunks[1]
    for key, value in facts.items():
        setattr(chunk, key, value)


def _info(metadata: Any, **facts: Any) -> None:
    for index, info in list(metadata.storage_data.items()):
        if index.fqn == "model.0.weight" and index.offset[0]:
            metadata.storage_data[index] = replace(info, **facts)


def _moved(metadata: Any, offset: tuple[int, ...]) -> None:
    """The chunk and its place, said to be elsewhere."""
    _chunk(metadata, offsets=torch.Size(offset))
    for index, info in list(metadata.storage_data.items()):
        if index.fqn == "model.0.weight" and index.offset[0]:
            del metadata.storage_data[index]
            metadata.storage_data[replace(index, offset=torch.Size(offset))] = info


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "a chunk that nobody has": (
        lambda m: m.storage_data.pop(next(i for i in m.storage_data if i.fqn == "model.0.weight" and i.offset[0])),
        r"'model.0.weight': no file has it at \[4, 0\]",
    ),
    "a chunk is missing": (
        lambda m: m.state_dict_metadata["model.0.weight"].chunks.pop(), "its parts have 20 of 35 elements"
    ),
    "chunks overlap": (lambda m: _moved(m, (3, 0)), "its parts overlap"),
    "a chunk outside": (lambda m: _moved(m, (6, 0)), r"\[3, 5\] at \[6, 0\], outside of its shape \[7, 5\]"),
    "beyond the file": (lambda m: _info(m, offset=10**9), "ends at byte"),
    "inside another": (lambda m: _info(m, offset=1), "model.0.weight"),
    "another shape": (lambda m: _chunk(m, sizes=torch.Size((3, 4))), r"elements|hold float32 \[3, 5\]"),
    "another dtype": (
        lambda m: setattr(m.state_dict_metadata["model.0.weight"].properties, "dtype", torch.float64),
        "hold float32 .*says float64",
    ),
    "half a surrogate pair": (lambda m: _info(m, relative_path="x\ud800"), "the name of no file"),
    "transformed": (lambda m: _info(m, transform_descriptors=["zstd"]), "stored transformed, by .*zstd"),
    "another version": (lambda m: setattr(m, "version", "2.0.0"), "found version '2.0.0'; expected '1.0.0'"),
    "a size below 0": (lambda m: _chunk(m, sizes=torch.Size((3, -5))), "without offsets and sizes"),
    "two values at one place": (
        lambda m: m.planner_data.update({"model.0.bias": ("model", "0.weight")}), "is taken"
    ),
    "inside of a value": (lambda m: m.planner_data.update({"step": ("model", "0.weight", "x")}), "is taken"),
    "a dict and a list": (lambda m: m.planner_data.update({"step": ("model", 0)}), "text and numbers"),
    "a far number": (lambda m: m.planner_data.update({"step": ("l", 10**12)}), "the number 1000000000000"),
    "no tables": (lambda m: setattr(m, "storage_data", None), "storage_data is of type NoneType"),
    "another storage": (
        lambda m: m.storage_data.update(dict.fromkeys(list(m.storage_data)[:1], "x")), "is stored by str"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["../x", "/x", "a/../b"])
def test_a_file_elsewhere(name: str, tmp_path: Path) -> None:
    """Exit 4: whoever wrote `.metadata` chose what would be read."""
    shutil.copytree(FIXTURES / "fsdp2" / "fsdp2", tmp_path / "ck")
    edited(tmp_path / "ck", lambda m: _info(m, relative_path=name))
    for command in ("inspect", "dedup", "check"):
        ran = quick(command, "ck", cwd=tmp_path)
        assert ran.code in (1, 4) and "outside its own folder" in ran.out + ran.err, ran


@pytest.mark.parametrize("what", WRONG)
def test_wrong(what: str, tmp_path: Path) -> None:
    """Each is an error that says where, and nothing is written."""
    change, says = WRONG[what]
    shutil.copytree(FIXTURES / "fsdp2" / "fsdp2", tmp_path / "ck")
    edited(tmp_path / "ck", change)
    with pytest.raises(FormatError, match=says):
        read(str(tmp_path / "ck"))
    assert quick("dedup", "ck", "-o", "out.safetensors", cwd=tmp_path).code == 3
    assert not (tmp_path / "out.safetensors").exists()


def test_defects_are_gathered(tmp_path: Path) -> None:
    """A missing rank, a truncated one, and a wrong chunk in one error."""
    shutil.copytree(FIXTURES / "fsdp2" / "fsdp2", tmp_path / "ck")
    shutil.copy(tmp_path / "ck" / "__0_0.distcp", tmp_path / "ck" / "__2_0.distcp")

    def change(metadata: Any) -> None:
        for index, info in list(metadata.storage_data.items()):
            if index.fqn == "model.0.bias":
                metadata.storage_data[index] = replace(info, relative_path="__2_0.distcp")

    edited(tmp_path / "ck", change)
    (tmp_path / "ck" / "__2_0.distcp").unlink()
    os.truncate(tmp_path / "ck" / "__1_0.distcp", 20_000)
    with pytest.raises(Defects) as raised:
        read(str(tmp_path / "ck"))
    text = "\n".join(raised.value.defects)
    assert "'__2_0.distcp' is missing" in text and "'__1_0.distcp' ends at byte 20000" in text
    assert "model.0.bias" in text and raised.value.exit_code == 3


def test_files_of_another_save_are_noted(tmp_path: Path) -> None:
    """Fewer ranks that save over more leave files behind, which belong to nothing."""
    shutil.copytree(FIXTURES / "fsdp2" / "fsdp2", tmp_path / "ck")
    shutil.copy(tmp_path / "ck" / "__0_0.distcp", tmp_path / "ck" / "__7_0.distcp")
    (note,) = paramtool.read(tmp_path / "ck").notes
    assert "__7_0.distcp" in note


def test_without_metadata(tmp_path: Path) -> None:
    """Nothing says what the files hold."""
    shutil.copytree(FIXTURES / "fsdp2" / "fsdp2", tmp_path / "ck")
    (tmp_path / "ck" / ".metadata").unlink()
    refused(quick, "inspect", "ck", cwd=tmp_path, code=3, says=("ck", "torch.distributed.checkpoint", ".metadata"))


def test_any_byte_of_the_metadata(tmp_path: Path) -> None:
    """Whatever it is changed to, there is a checkpoint or an error, and no traceback."""
    shutil.copytree(FIXTURES / "one_process" / "one_process", tmp_path / "ck")
    path = tmp_path / "ck" / ".metadata"
    data = path.read_bytes()
    random_ = random.Random(0)
    for at in range(0, len(data), 1 if IS_HARD else 7):
        changed = bytearray(data)
        changed[at] ^= random_.choice((1, 2, 8, 0x20, 0x80, 0xFF))
        path.write_bytes(changed)
        try:
            found = formats.describe(tmp_path / "ck").checkpoint
        except ParamtoolError as error:
            assert error.exit_code in (3, 4), error
        else:
            assert isinstance(found, Checkpoint)


class Called:
    """What a hostile pickle holds."""

    def __reduce__(self) -> Any:
        return json.loads, ("{}",)


def test_what_the_metadata_would_call(tmp_path: Path) -> None:
    """It is listed, refused, and never called."""
    shutil.copytree(FIXTURES / "fsdp2" / "fsdp2", tmp_path / "ck")
    edited(tmp_path / "ck", lambda m: setattr(m, "storage_meta", Called()))
    refused(quick, "dedup", "ck", "-o", "x.safetensors", cwd=tmp_path, code=4, says=("json.loads",))


@ONE_PROCESS
def test_what_an_object_would_call(tmp_path: Path) -> None:
    """The archives of objects are pickles, too."""
    dcp.save({"model": {"w": torch.ones(2)}, "hook": Called()}, checkpoint_id=tmp_path / "ck", no_dist=True)
    refused(quick, "dedup", "ck", "-o", "x.safetensors", cwd=tmp_path, code=4, says=("json.loads",))


@pytest.mark.slow
@ONE_PROCESS
def test_names_that_share_an_object_are_a_bomb(tmp_path: Path) -> None:
    """One object at very many places, each of which has all of it."""

    def change(metadata: Any) -> None:
        (index,) = (index for index in metadata.storage_data if index.fqn == "o")
        for k in range(3000):
            metadata.state_dict_metadata[f"o{k}"] = metadata.state_dict_metadata["o"]
            metadata.storage_data[replace(index, fqn=f"o{k}")] = metadata.storage_data[index]

    for name, count in (("small", 10), ("large", 1000)):
        held = {"o": [[0] * count] * count, "w": torch.ones(1)}
        dcp.save(held, checkpoint_id=tmp_path / name, no_dist=True)
        edited(tmp_path / name, change)
    assert len(read(str(tmp_path / "small")).objects.items) == 3002  # type: ignore[union-attr]
    refused(quick, "inspect", "large", cwd=tmp_path, code=4, says=("bomb",))


def test_a_folder_stays_a_folder(tmp_path: Path) -> None:
    """Its other files come along, and not those of the save before, nor the ranks' own."""
    shutil.copytree(FIXTURES / "fsdp2" / "fsdp2", tmp_path / "ck")
    (tmp_path / "ck" / "__7_0.distcp").touch()  # a rank without tensors
    (tmp_path / "ck" / "config.json").write_text("{}")
    ran = quick("dedup", "ck", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and "__7_0.distcp" in ran.out, ran
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", ".metadata", "__0_0.distcp"}
    assert quick("dedup", "ck", "-o", "safe", "--format", "safetensors", cwd=tmp_path).code == 0
    assert {path.name for path in (tmp_path / "safe").iterdir()} == {"config.json", "model.safetensors"}
    shutil.copy(tmp_path / "safe" / "model.safetensors", tmp_path / "ck" / "model.safetensors")
    assert quick("inspect", "ck", cwd=tmp_path).code == 0  # a copy in another format
    torch.save({"w": torch.ones(3)}, tmp_path / "ck" / "pytorch_model.bin")
    refused(quick, "inspect", "ck", cwd=tmp_path, code=2, says=("2 sets", "--weights .metadata"))
    assert quick("inspect", "ck", "--weights", ".metadata", cwd=tmp_path).code == 0


def test_the_keys_of_an_optimizer_are_numbers_again() -> None:
    """torch writes them as strings; they are numbers in the groups.  Other strings stay what they are."""
    groups = Sequence("list", (Mapping("dict", (("params", Sequence("list", (Leaf(0), Leaf(1)))),)),))
    one = Mapping("dict", (("step", Leaf(1)),))

    def optimizer(*keys: str | int) -> Mapping:
        return Mapping(
            "dict", (("state", Mapping("dict", tuple((key, one) for key in keys))), ("param_groups", groups))
        )

    assert with_numbers(optimizer("0", "1")) == optimizer(0, 1) and with_numbers(optimizer("1")) == optimizer(1)
    for kept in (optimizer("0", "2"), optimizer("a.weight"), optimizer("00"), one):
        assert with_numbers(kept) == kept


def test_a_folder_that_lacks_all_its_parts(folder: Path, tmp_path: Path) -> None:
    """`.metadata` alone says which files are missing; a folder of this name says nothing."""
    parts = sorted(path.name for path in folder.glob("*.distcp"))
    shutil.copytree(folder, tmp_path / "in", ignore=shutil.ignore_patterns("*.distcp"))
    with pytest.raises(Defects) as raised:
        paramtool.read(tmp_path / "in")
    assert all(f"the file {name!r} is missing" in str(raised.value) for name in parts)
    (tmp_path / "other" / ".metadata").mkdir(parents=True)
    with pytest.raises(FormatError, match="without weights files"):
        paramtool.read(tmp_path / "other")
