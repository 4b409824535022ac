"""Files and folders that are recognised and not read: each is called by its name, with what converts it."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path
from struct import pack

import pytest

from paramtool.errors import FormatError
from paramtool.formats import foreign, read, read_file, table
from tests.formats.test_format_table import FILES, ROOT, sniffed

HERE = ROOT / "fixtures" / "foreign"


def field(number: int, content: bytes) -> bytes:
    """A protobuf field with a length."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


LAYER = field(1, b"conv1") + field(2, b"Convolution") + field(7, bytes(300))
OLD_LAYER = field(2, b"data") + field(3, b"conv1") + field(4, b"conv1") + b"\x28\x04"
GRAPH_NODE = field(1, field(1, b"x") + field(2, b"Placeholder"))
TENSOR = bytes(16) + pack("<i", 6) + b"\x08\x05\x10\x02\x10\x03" + bytes(24)
ONNX_HEAD = b"\x08\x08\x12\x07pytorch\x1a\x052.0.0"

DOCUMENTED: dict[str, tuple[str, bytes, str]] = {
    "git-LFS": ("model.bin", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-LFS pointer"),
    "Xet": ("model.bin", b"# xet version 0\nfilesize = 1\nhash = '0'\n", "Xet pointer"),
    "HTML": ("model.bin", b"\n <!DOCTYPE HTML><html>", "HTML page"),
    "S3": (
        "model.bin",
        b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>',
        "an error message of a server",
    ),
    "JSON error": ("model.bin", b'{"error":"Repository not found"}', "JSON text.*an error message of a server"),
    "JSON": ("model.bin", b'{"a": 1}', "JSON text without weights"),
    "config": ("config.json", b'{"model_type": "bert"}', "the config of a model"),
    "TensorFlow.js": ("model.json", b'{"modelTopology": {"class_name": "Model"}}', "TensorFlow.js"),
    "GGUF": ("model.gguf", b"GGUF\x03\0\0\0" + bytes(16), "GGUF"),
    "GGML": ("ggml.bin", b"tjgg\x03\0\0\0" + bytes(16), "GGML"),
    "whisper.cpp": ("ggml.bin", b"lmgg" + bytes(30), "GGML"),
    "TFLite": ("x", b"\x1c\0\0\0TFL3" + bytes(16), "TensorFlow Lite"),
    "ExecuTorch": ("x", b"\x1c\0\0\0ET12eh00", "ExecuTorch"),
    "TensorRT": ("x", b"ftrt" + bytes(20), "TensorRT"),
    "TensorRT of Ultralytics": ("x", pack("<i", 12) + b'{"stride":1}ftrt' + bytes(9), "TensorRT"),
    "RKNN": ("x", b"RKNN" + bytes(20), "RKNN"),
    "ncnn": ("x.param", b"7767517\n3 3\nInput data 0 1 data\n", "ncnn"),
    "MATLAB 7.3": ("x", b"MATLAB 7.3 MAT-file, Platform: GLNXA64", "MATLAB 7.3"),
    "R": ("x.rds", b"X\n\0\0\0\3\0\4\0\0", "R data"),
    "CatBoost": ("x", b"CBM1" + bytes(8), "CatBoost"),
    "LightGBM": ("x.txt", b"tree\nversion=v4\nnum_class=1\n", "LightGBM"),
    "XGBoost": ("x.json", b'{"learner":{"attributes":{}}}', "XGBoost"),
    "XGBoost ubj": ("x.ubj", b"{L" + pack(">q", 7) + b"learner{L" + pack(">q", 1), "XGBoost"),
    "fastText": ("x.bin", pack("<ii", 793712314, 12), "fastText"),
    "CTranslate2": ("model.bin", pack("<IH", 6, 16) + b"TransformerSpec\0" + pack("<II", 7, 200), "CTranslate2"),
    "Torch7 object": ("x", pack("<iii", 4, 1, 3) + b"V 1" + pack("<i", 13) + b"nn.Sequential", "Torch7"),
    "Torch7 table": ("x", pack("<iiii", 3, 1, 2, 2) + pack("<i", 4) + b"conv", "Torch7"),
    "Torch7 in lines": ("x", b"4\n1\n3\nV 1\n13\nnn.Sequential\n", "Torch7"),
    "Darknet": ("yolo.weights", pack("<iiiQ", 0, 2, 0, 32013312) + bytes(400), "Darknet"),
    "Caffe": ("x", field(1, b"AlexNet") + field(100, LAYER), "Caffe model"),
    "Caffe without a name": ("x", field(100, LAYER), "Caffe model"),
    "Caffe V1": ("x", field(1, b"AlexNet") + field(2, OLD_LAYER), "Caffe model"),
    "GraphDef": ("x", GRAPH_NODE * 3 + field(4, b"\x08\x87\x0d"), "frozen graph"),
    "Paddle parameters": ("__params__", TENSOR, "Paddle"),
    "Paddle program": ("__model__", field(1, b"\x08\0\x10" + b"\xff" * 9 + b"\1" + field(3, b"")), "Paddle"),
    "OpenVINO": ("x.xml", b'<?xml version="1.0"?>\n<net name="a" version="11">', "OpenVINO"),
    "an ONNX graph that is cut": ("x", ONNX_HEAD + b"\x3a\xff\x7f" + bytes(40), "truncated"),
    "joblib": ("x.joblib", b"x\x9c" + bytes(10), "joblib"),
    "xz": ("x", b"\xfd7zXZ\0\0\4", "xz-compressed"),
    "bzip2": ("x", b"BZh91AY&SY", "bzip2-compressed"),
    "LZ4": ("x", b"\x04\x22\x4d\x18" + bytes(9), "LZ4-compressed"),
    "7z": ("x", b"7z\xbc\xaf\x27\x1c" + bytes(9), "7z archive"),
    "RAR": ("x", b"Rar!\x1a\x07\x01\0", "RAR archive"),
    "PDF": ("x", b"%PDF-1.7\n", "PDF"),
    "PNG": ("x", b"\x89PNG\r\n\x1a\n", "PNG"),
    "zeros": ("model.safetensors", bytes(10_000), "all zeros"),
    "MNN": ("x.mnn", b"\x20\0\0\0something", "its name is that of an MNN model"),
    "a damaged GGUF": ("x.gguf", b"something", "its name is that of a GGUF file"),
    "nothing": ("x", b"something", "is not in a format that this version reads\n"),
    "a letter": ("x", b"a", "is not in a format that this version reads\n"),
}
"""A file as its format's documentation has it, and what is said of it."""


@pytest.mark.parametrize("what", DOCUMENTED)
def test_documented_forms(tmp_path: Path, what: str) -> None:
    """The name of the format, and a hint; no format of the table takes it."""
    name, data, says = DOCUMENTED[what]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError, match=says) as raised:
        read_file(str(tmp_path / name))
    assert raised.value.hint and sniffed(tmp_path / name) == []


REAL = {
    "frozen.pb": "a TensorFlow frozen graph",
    "saved_model.pb": "a TensorFlow SavedModel",
    "model.tflite": "a TensorFlow Lite model",
    "model.mlmodel": "a Core ML model",
    "model.pdiparams": "of a Paddle inference model",
    "program.json": "of a Paddle inference model",
    "model.mat": "a MATLAB file",
    "model.ort": "an ONNX Runtime model",
}


def test_every_real_file_is_listed() -> None:
    assert {path.name for path in HERE.iterdir() if path.suffix not in {".py", ".md"} and path.is_file()} == set(REAL)


@pytest.mark.parametrize("name", REAL)
def test_files_of_the_real_programs(name: str, tmp_path: Path) -> None:
    """By their content, whatever they are called."""
    (tmp_path / "odd.name").write_bytes((HERE / name).read_bytes())
    with pytest.raises(FormatError, match=REAL[name]):
        read_file(str(tmp_path / "odd.name"))


def test_a_file_that_is_read_is_not_foreign() -> None:
    """No check takes a file for what it is not: every file of the fixtures and samples that a format reads."""
    for path in FILES:
        if not sniffed(path):
            continue
        with path.open("rb") as file:
            head = file.read(table.HEAD_NBYTES)
        said = foreign.named(str(path), head, path.stat().st_size)
        assert said.what.startswith("not in a format"), (path, said)


@pytest.mark.parametrize("name", ["x.bin", "x.weights", "x.onnx", "x.pb"])
def test_every_beginning_is_looked_at(tmp_path: Path, name: str) -> None:
    """Cut after any byte, and with any first bytes, each file has a name, and nothing fails."""
    path = tmp_path / name
    path.write_bytes(b"x")
    for _, data, _ in DOCUMENTED.values():
        for length in range(1, min(len(data), 400)):
            assert foreign.named(str(path), data[:length], length).what
    for first in range(256):
        for rest in (bytes(30), b"\xff" * 30, b"abc" * 10):
            assert foreign.named(str(path), bytes([first]) + rest, 31).what


def test_weights_beside_their_description(tmp_path: Path) -> None:
    """The files of ncnn and OpenVINO have no first bytes of their own."""
    (tmp_path / "a.bin").write_bytes(pack("<I", 0x01306B47) + bytes(range(40)))
    (tmp_path / "b.bin").write_bytes(bytes(range(1, 60)))
    with pytest.raises(FormatError, match="not in a format"):
        read_file(str(tmp_path / "a.bin"))
    (tmp_path / "a.param").write_bytes(b"7767517\n1 1\n")
    (tmp_path / "b.xml").write_bytes(b'<?xml version="1.0"?>\n<net name="b" version="11">')
    with pytest.raises(FormatError, match="the weights of an ncnn model"):
        read_file(str(tmp_path / "a.bin"))
    with pytest.raises(FormatError, match="the weights of an OpenVINO model"):
        read_file(str(tmp_path / "b.bin"))


def test_zeros_and_something(tmp_path: Path) -> None:
    """A file is all zeros only if its later bytes are."""
    (tmp_path / "x").write_bytes(bytes(9000) + b"end")
    with pytest.raises(FormatError, match="not in a format"):
        read_file(str(tmp_path / "x"))


ARCHIVES = {
    "nemo": (("./model_config.yaml", "./model_weights.ckpt"), "NeMo"),
    "mar": (("MAR-INF/MANIFEST.json", "model.pt"), "TorchServe"),
    "pt2": (("model/archive_format", "model/models/model.json"), "torch.export"),
    "zip of DL4J": (("configuration.json", "coefficients.bin"), "Deeplearning4j"),
    "mlpackage": (("m.mlpackage/Manifest.json", "m.mlpackage/Data/model.mlmodel"), "Core ML"),
}


@pytest.mark.parametrize("what", ARCHIVES)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives(tmp_path: Path, what: str, kind: str) -> None:
    members, says = ARCHIVES[what]
    path = tmp_path / "model"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in members:
                archive.writestr(name, b"x")
    else:
        with tarfile.open(path, "w") as tar:
            for name in members:
                tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(FormatError, match=says):
        read_file(str(path))


FOLDERS = {
    "Orbax": (("_METADATA", "manifest.ocdbt", "d", "ocdbt.process_0"), "Orbax"),  # orbax-checkpoint 0.12.8 makes these
    "SavedModel": (("saved_model.pb", "fingerprint.pb"), "SavedModel"),
    "mlpackage": (("Manifest.json", "Data"), "Core ML"),
    "Zarr": ((".zgroup",), "Zarr"),
    "Paddle": (("inference.pdmodel", "inference.pdiparams"), "Paddle"),
    "TensorRT-LLM": (("rank0.engine", "config.json"), "TensorRT"),
    "GGUF": (("model.Q4_0.gguf", "README.md"), "GGUF"),
    "DCP": (("__0_0.distcp",), "torch.distributed.checkpoint"),
    "nothing": (("README.md",), "without weights files"),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_folders(tmp_path: Path, what: str) -> None:
    names, says = FOLDERS[what]
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(FormatError, match=says):
        read(tmp_path)


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is an empty folder") as raised:
        read(tmp_path)
    assert "model.safetensors" in raised.value.hint and "pytorch_model.bin" in raised.value.hint


def test_a_folder_of_ctranslate2(tmp_path: Path) -> None:
    """Its file is called as transformers calls weights; its first bytes say what it is."""
    (tmp_path / "model.bin").write_bytes(DOCUMENTED["CTranslate2"][1])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FormatError, match="CTranslate2"):
        read(tmp_path)


def test_a_file_that_is_read_needs_no_table() -> None:
    """Starting is not slower: the table of foreign files is imported only after every format has said no."""
    import subprocess
    import sys

    code = (
        "import sys, paramtool; paramtool.read(sys.argv[1]);"
        "print([m for m in sys.modules if m in ('paramtool.formats.foreign', 'paramtool.formats.numpy.pickled')])"
    )
    path = ROOT / "fixtures" / "torch" / "content_equal" / "content_equal.pt"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=environment)
    assert ran.stdout.strip() == "[]", ran


@pytest.mark.parametrize("count", [1, 4, 7, 8, 9, 40, 90])
def test_safetensors_cut_short(count: int, tmp_path: Path) -> None:
    """However little is left, the message says that it is truncated, and what leaves such files."""
    text = b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    whole = len(text).to_bytes(8, "little") + text + bytes(16)
    (tmp_path / "m.safetensors").write_bytes(whole[:count] if count < len(whole) else whole[:-1])
    with pytest.raises(FormatError, match="truncated") as raised:
        read(tmp_path / "m.safetensors")
    assert "download" in raised.value.hint
    needed = 10 if count < 8 else 8 + len(text) if count < 8 + len(text) else len(whole)
    assert str(needed) in str(raised.value)


def test_an_empty_file_says_how_it_comes_to_be(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"")
    with pytest.raises(FormatError, match="is empty") as raised:
        read(tmp_path / "m.safetensors")
    assert "download" in raised.value.hint
