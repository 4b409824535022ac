"""Files and folders that are recognised and not read: what each is, and what converts it.

Three tables, asked in this order once no format recognises a file:

    STARTS   bytes at a fixed place, as the format's own specification has them
    CHECKS   formats without such bytes: the first fields must be those of the format
    NAMES    suffixes of formats whose content says nothing; the message says that it goes by the name

`folder` names folders by the files in them, and `archive` zip and tar archives by their members.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from struct import Struct
from typing import NamedTuple

from paramtool.errors import plural
from paramtool.formats import sniff
from paramtool.formats.protobuf import MAX_VARINT_NBYTES, varint


class Foreign(NamedTuple):
    """What a file or a folder is, and what to do about it."""

    what: str
    hint: str = ""


def _unread(what: str, hint: str) -> Foreign:
    return Foreign(f"{what}, which this version does not read", hint)


LFS = Foreign("a git-LFS pointer, not the file", "fetch the real file: git lfs pull")
XET = Foreign("a Xet pointer, not the file", "fetch the real file: git xet checkout, or hf download")
PAGE = Foreign("an HTML page, not a checkpoint", "download the file itself, not its page")
SERVER = Foreign("an error message of a server (XML), not the file", "its text says why; download the file again")
JSON = Foreign("JSON text without weights", "the index of a sharded checkpoint has a weight_map")
XML = Foreign("XML text without weights")
ORIGINAL = "nothing converts it back: take the model that it was made from"
GGUF = _unread(
    "a GGUF file",
    "with transformers: AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=NAME).save_pretrained(...); it "
    "dequantises the weights",
)
GGML = _unread("a GGML file", "llama.cpp's convert_llama_ggml_to_gguf.py makes GGUF of LLaMA's; else take the original")
TFLITE = _unread("a TensorFlow Lite model", "python -m tf2onnx.convert --tflite FILE --output model.onnx")
ORT = _unread("an ONNX Runtime model (.ort)", "take the .onnx file that it was made from")
EXECUTORCH = _unread("an ExecuTorch program (.pte)", ORIGINAL)
TENSORRT = _unread("a TensorRT engine", ORIGINAL)
RKNN = _unread("an RKNN model", ORIGINAL)
NCNN_PARAM = Foreign("an ncnn model's graph without its weights, which this version does not read", ORIGINAL)
MAT = _unread("a MATLAB file", "with SciPy: scipy.io.loadmat(FILE); save its arrays with numpy.savez")
MAT73 = _unread(
    "a MATLAB 7.3 file (HDF5 behind a header)", "with h5py: h5py.File(FILE); save its arrays with numpy.savez"
)
R_DATA = _unread("R data", "in R: readRDS(FILE), or load(FILE); write its arrays with hdf5r")
XGBOOST = _unread("an XGBoost model", "its trees are no tensors; XGBoost reads it")
LIGHTGBM = _unread("a LightGBM model", "its trees are no tensors; LightGBM reads it")
CATBOOST = _unread("a CatBoost model", "its trees are no tensors; CatBoost reads it")
FASTTEXT = _unread("a fastText model", "with fasttext: fasttext.load_model(FILE).get_input_matrix() is an array")
CAFFE = _unread("a Caffe model", "with pycaffe: save the blobs of caffe.Net(PROTOTXT, FILE, caffe.TEST).params")
GRAPH = _unread(
    "a TensorFlow frozen graph (GraphDef)",
    "python -m tf2onnx.convert --graphdef FILE --inputs NAMES --outputs NAMES --output model.onnx",
)
SAVED_MODEL = _unread(
    "the graph of a TensorFlow SavedModel without its variables",
    "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx",
)
COREML = _unread("a Core ML model", "with coremltools: coremltools.utils.load_spec(FILE) has its weights")
CTRANSLATE2 = _unread("a CTranslate2 model", ORIGINAL)
PADDLE = "paddle2onnx --model_dir FOLDER --model_filename MODEL --params_filename PARAMETERS --save_file model.onnx"
PADDLE_PARAMETERS = _unread("a file of parameters of a Paddle inference model", PADDLE)
PADDLE_PROGRAM = _unread("the program of a Paddle inference model without its parameters", PADDLE)
TORCH7 = _unread("a Lua Torch7 file", "with torchfile: torchfile.load(FILE); save its arrays with numpy.savez")
DARKNET = _unread("a Darknet weights file", "pytorch-YOLOv4's tool/darknet2onnx.py, with the .cfg file")
OPENVINO = _unread(
    "an OpenVINO model",
    "with openvino: the Constant nodes of openvino.Core().read_model(XML).get_ops() have its weights",
)
JOBLIB = _unread("a joblib file", "open it with joblib.load where it is trusted, and save its arrays with numpy.savez")
PICKLE = Foreign(
    "a pickle that holds no NumPy arrays of numbers", "save it with torch.save, numpy.savez, or as safetensors"
)
ZEROS = Foreign(
    "all zeros: nothing was written to it", "the download or the copy broke off, or the disk was full; fetch it again"
)
ONNX_CUT = Foreign("the beginning of an ONNX model: it is truncated", "fetch the file again")


def _packed(what: str, tool: str) -> Foreign:
    return Foreign(f"{what}-compressed", f"decompress it first: {tool}")


def _other(what: str) -> Foreign:
    return Foreign(f"{what}, not a checkpoint")


STARTS = {
    0: {
        b"version https://git-lfs": LFS,
        b"version https://hawser": LFS,  # its name before 2015: git-lfs/lfs/pointer.go
        b"# xet version": XET,  # xet-core, pointer_file.rs
        b"GGUF": GGUF,  # ggml/docs/gguf.md
        **dict.fromkeys((b"lmgg", b"fmgg", b"tjgg", b"algg"), GGML),  # llama.h of 2023: `ggml` and so on, as u32
        b"ftrt": TENSORRT,  # as torch_tensorrt tests it: py/torch_tensorrt/dynamo/_exporter.py
        b"RKNN": RKNN,
        b"7767517\n": NCNN_PARAM,  # ncnn wiki, "param and model file structure"
        b"7767517\r\n": NCNN_PARAM,
        b"\xdd\x85\x76\x00": NCNN_PARAM,  # the same number in .param.bin
        b"MATLAB 5.0 MAT-file": MAT,  # "MAT-File Format", MathWorks
        b"MATLAB 7.3 MAT-file": MAT73,
        b"RDX2\n": R_DATA,  # R Internals 1.8, "Serialization Formats"
        b"RDX3\n": R_DATA,
        b"X\n\0\0\0\2": R_DATA,
        b"X\n\0\0\0\3": R_DATA,
        b"CBM1": CATBOOST,  # catboost/libs/model/model.cpp
        b"tree\nversion=v": LIGHTGBM,  # src/boosting/gbdt_model_text.cpp
        b"binf": XGBOOST,  # learner.cc: the binary form up to 1.0
        b"{L" + bytes(7) + b"\x07learner{": XGBOOST,  # since 1.6: UBJSON, an object whose first key is `learner`
        b"\xba\x16\x4f\x2f": FASTTEXT,  # fasttext.h: FASTTEXT_FILEFORMAT_MAGIC_INT32
        b"\x1f\x8b": _packed("gzip", "gunzip"),
        b"\x28\xb5\x2f\xfd": _packed("zstd", "unzstd"),
        b"\xfd7zXZ\0": _packed("xz", "unxz"),
        b"BZh": _packed("bzip2", "bunzip2"),
        b"\x04\x22\x4d\x18": _packed("LZ4", "unlz4"),
        b"7z\xbc\xaf\x27\x1c": Foreign("a 7z archive", "unpack it first: 7z x FILE"),
        b"Rar!\x1a\x07": Foreign("a RAR archive", "unpack it first: unrar x FILE"),
        b"%PDF-": _other("a PDF document"),
        b"\x89PNG\r\n\x1a\n": _other("a PNG image"),
        b"\xff\xd8\xff": _other("a JPEG image"),
        b"GIF8": _other("a GIF image"),
        b"\x7fELF": _other("a program or library (ELF)"),
        b"SQLite format 3\0": _other("an SQLite database"),
        b"PAR1": _other("a Parquet table"),
        b"ARROW1\0\0": _other("an Arrow table"),
    },
    4: {
        b"TFL3": TFLITE,  # file_identifier of tensorflow/lite/schema/schema.fbs
        b"ORTM": ORT,  # onnxruntime/core/flatbuffers/schema/ort.fbs
        b"ET12": EXECUTORCH,  # executorch/schema/program.fbs
    },
}
"""{place: {bytes that are there: what they show}}.  The source of each that no registry of file types lists is beside
it."""


def named(path: str, head: bytes, nbytes: int) -> Foreign:
    """What a file is that no format recognises, from its first bytes and its size, and last from its name."""
    if found := _by_start(head):
        return found
    for check in CHECKS:
        if found := check(path, head, nbytes):
            return found
    return next((found for end, found in NAMES if path.lower().endswith(end)), UNKNOWN)


def _by_start(head: bytes) -> Foreign | None:
    starts = ((start, found, at) for at, rows in STARTS.items() for start, found in rows.items())
    return next((found for start, found, at in starts if head.startswith(start, at)), None)


def is_known_text(head: bytes) -> bool:
    """Whether text is one of a kind of file that is known: JSON, a page, a pointer."""
    return head.lstrip()[:1] in (b"{", b"<") or _by_start(head) is not None


UNKNOWN = Foreign("not in a format that this version reads")

# --- by structure -------------------------------------------------------------------------------------------------

I32, U32, U64 = Struct("<i"), Struct("<I"), Struct("<Q")


def _text(path: str, head: bytes, nbytes: int) -> Foreign | None:
    """Pages, messages of servers, and descriptions of models in JSON or XML."""
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return PAGE
    if text.startswith((b"<?xml", b"<error")):
        if b"<error>" in text:
            return SERVER
        return OPENVINO if re.search(rb"<net\s[^>]*version=", text) else XML
    if text.startswith(b"<net "):
        return OPENVINO
    if not text.startswith(b"{"):
        return None
    return next((found for word, found in JSON_WORDS if word in text), JSON)


JSON_WORDS = (
    (b'"learner"', XGBOOST),
    (b'"magic":"pir"', PADDLE_PROGRAM),  # of Paddle 3: paddle/fluid/pir/serialize_deserialize
    (
        b'"modeltopology"',
        _unread("JSON: the graph of a TensorFlow.js model", "tensorflowjs_converter, to a Keras model"),
    ),
    (
        b'"class_name"',
        Foreign("JSON text without weights: a Keras architecture", "the weights are in a file beside it"),
    ),
    (b'"arg_nodes"', Foreign("JSON text without weights: an MXNet symbol", "its weights are in a .params file")),
    (
        b'"model_type"',
        Foreign("JSON text without weights: the config of a model", "its weights are in a file beside it"),
    ),
    (b'"error"', Foreign("JSON text without weights: an error message of a server", "download the file again")),
)
"""Keys in the first 4096 bytes, in lower case."""


def _by_numbers(path: str, head: bytes, nbytes: int) -> Foreign | None:
    """Formats that begin with numbers."""
    # TensorRT behind its metadata: an i32 length and JSON (ultralytics/engine/exporter.py, export_engine)
    stop = 4 + U32.unpack(head[:4])[0] if len(head) > 8 else 0
    if head[4:5] == b"{" and head[stop : stop + 4] == b"ftrt":
        return TENSORRT
    # version, the specification's name, its revision (python/ctranslate2/specs/model_spec.py, _serialize)
    if len(head) >= 8 and 2 <= U32.unpack(head[:4])[0] <= 20 and re.match(rb"[A-Za-z0-9]{2,60}Spec\0", head[6:]):
        return CTRANSLATE2
    # a table or an object with its index and `V 1`, in binary or in lines (torch7/File.lua, writeObject)
    is_object = head[:4] == I32.pack(4) and head[8:15] == I32.pack(3) + b"V 1"
    is_table = head[:4] == I32.pack(3) and head[4:8] == I32.pack(1) and 0 < len(head[8:12]) == 4
    is_table = is_table and 0 < I32.unpack(head[8:12])[0] < 1 << 20 and head[12:16] in KEYS_OF_TABLES
    if is_object or is_table or re.match(rb"4\r?\n\d+\r?\n3\r?\nV 1\r?\n", head):
        return TORCH7
    # version 0.1.0 or 0.2.0, the images seen, and float32 to the end (parser.c, save_weights_upto)
    known = head[:12] in (I32.pack(0) + I32.pack(minor) + I32.pack(0) for minor in (1, 2))
    is_named = path.lower().endswith((".weights", ".backup")) or ".conv." in os.path.basename(path)
    return DARKNET if known and is_named and nbytes % 4 == 0 and nbytes > 20 else None


KEYS_OF_TABLES = (I32.pack(1), I32.pack(2))
"""The first key of a table is a number or a string."""


def _paddle(path: str, head: bytes, nbytes: int) -> Foreign | None:
    """A LoDTensor: two versions, levels, and a TensorDesc (paddle/phi/core/framework/lod_tensor_serialize.cc)."""
    if len(head) >= 24 and head[:16] == bytes(16):
        length = I32.unpack(head[16:20])[0]
        desc = fields(head[20 : 20 + length])
        if 2 <= length <= 1024 and desc and desc[0].number == 1 and all(f.number == 2 for f in desc[1:]):
            return PADDLE_PARAMETERS
    blocks = fields(head)
    if (
        blocks
        and blocks[0].number == 1
        and blocks[0].data.startswith(b"\x08\0\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\1")
    ):
        return PADDLE_PROGRAM  # BlockDesc 0, whose parent is -1 (paddle/fluid/framework/framework.proto)
    return None


def _protobuf(path: str, head: bytes, nbytes: int) -> Foreign | None:
    """Messages of known first fields: ONNX, SavedModel, Core ML, GraphDef, Caffe."""
    found = fields(head)
    if not found:
        return None
    first, second = found[0], found[1] if len(found) > 1 else None
    if first.number == 1 and first.data == b"" and second is not None and second.number == 2:
        inner = fields(second.data)
        deeper = fields(inner[0].data) if inner and inner[0].number == 1 else []
        if first.value == 1 and deeper and deeper[0].number == 2:
            return SAVED_MODEL  # MetaGraphDef.meta_info_def.stripped_op_list (tensorflow/core/protobuf)
        if first.value < 20 and deeper and deeper[0].number == 1 and deeper[0].is_text:
            return COREML  # ModelDescription.input.name (mlmodel/format/Model.proto)
        has_graph = any(one.number == 7 for one in found)
        is_cut = found[-1].stop > nbytes or not has_graph
        if 1 <= first.value <= 20 and second.is_text and is_cut and (has_graph or path.lower().endswith(".onnx")):
            return ONNX_CUT  # ModelProto.ir_version, .producer_name and .graph (onnx.proto)
    if first.number == 1 and first.is_message and {one.number for one in found} <= {1, 2, 3, 4}:
        node = fields(first.data)
        numbers = [one.number for one in node[:2]]
        if numbers == [1, 2] and node[0].is_text and re.fullmatch(rb"_?[A-Z][A-Za-z0-9_>]*", node[1].data):
            return GRAPH  # NodeDef.name, .op (tensorflow/core/framework/node_def.proto)
    layers = [one for one in found if one.number in (2, 100)]
    if layers and {one.number for one in found} <= {1, 2, 3, 4, 5, 6, 7, 8, 100} and _is_layer(layers[0]):
        return CAFFE
    return None


def _is_layer(field: HeadField) -> bool:
    """Whether it is LayerParameter (name 1, type 2) or V1LayerParameter (name 4, type 5): caffe.proto."""
    inner = fields(field.data)
    numbers = [one.number for one in inner]
    if field.number == 100:
        return numbers[:2] == [1, 2] and inner[0].is_text and inner[1].is_text
    return bool(inner) and {2, 3, 4, 5} >= set(numbers[:1]) and 4 in numbers and 5 in numbers


def _joblib(path: str, head: bytes, nbytes: int) -> Foreign | None:
    """Compressed files of joblib: zlib, behind `ZF` and a length up to 0.9 (joblib/numpy_pickle_utils.py)."""
    is_zlib = head[:1] == b"x" and head[1:2] in (b"\x01", b"\x5e", b"\x9c", b"\xda")
    if re.match(rb"ZF0x[0-9a-f]+", head) or (is_zlib and path.lower().endswith((".joblib", ".pkl", ".gz", ".z"))):
        return JOBLIB
    return None


def _zeros(path: str, head: bytes, nbytes: int) -> Foreign | None:
    """A file that was only made; the end is looked at, too."""
    if head.strip(b"\0"):
        return None
    with open(path, "rb") as file:
        for at in range(0, nbytes, max(nbytes // ZERO_PLACES, len(head))):
            file.seek(at)
            if file.read(len(head)).strip(b"\0"):
                return None
    return ZEROS


ZERO_PLACES = 256
"""Places of a file of zeros that are looked at."""


def _beside(path: str, head: bytes, nbytes: int) -> Foreign | None:
    """Weights beside a graph or a description of the same name; their own bytes do not say what they are."""
    for end in (".param", ".xml") if path.endswith(".bin") else ():
        if os.path.isfile(beside := os.path.splitext(path)[0] + end):
            with open(beside, "rb") as file:
                text = file.read(max(len(head), 7))
            if end == ".param" and text.startswith(b"7767517"):
                return _unread("the weights of an ncnn model", ORIGINAL)
            if end == ".xml" and _text(beside, text, 0) is OPENVINO:
                return Foreign(OPENVINO.what.replace("an", "the weights of an", 1), OPENVINO.hint)
    return None


def _cut_safetensors(path: str, head: bytes, nbytes: int) -> Foreign | None:
    """A file of safetensors' name that ends before its header."""
    if not path.lower().endswith(".safetensors") or nbytes > 8:
        return None
    length = int.from_bytes(head, "little") if nbytes == 8 else 0
    is_known = 2 <= length <= sniff.MAX_SAFETENSORS_HEADER
    least = f"its header alone ends at byte {8 + length}" if is_known else "the shortest safetensors file has 10"
    return Foreign(f"truncated: it has {plural(nbytes, 'byte')}, and {least}", sniff.INTERRUPTED)


Check = Callable[[str, bytes, int], Foreign | None]
CHECKS: tuple[Check, ...] = (_text, _by_numbers, _paddle, _protobuf, _joblib, _beside, _cut_safetensors, _zeros)


def _by_name(what: str, hint: str) -> Foreign:
    return Foreign(f"not in a format that this version reads; its name is that of {what}", hint)


NAMES = (
    (".caffemodel", _by_name("a Caffe model", CAFFE.hint)),
    (".gguf", _by_name("a GGUF file", "fetch the file again")),
    (".tflite", _by_name("a TensorFlow Lite model", "fetch the file again")),
    (".weights", _by_name("Darknet weights", DARKNET.hint)),
    (".mnn", _by_name("an MNN model", ORIGINAL)),
    (".t7", _by_name("a Lua Torch7 file", TORCH7.hint)),
    (".pdiparams", _by_name("the parameters of a Paddle inference model", PADDLE)),
    (".pdmodel", _by_name("the program of a Paddle inference model", PADDLE)),
    (".pb", _by_name("a TensorFlow graph", GRAPH.hint)),
    (".mlmodel", _by_name("a Core ML model", COREML.hint)),
    (".engine", _by_name("a TensorRT engine", ORIGINAL)),
    (".plan", _by_name("a TensorRT engine", ORIGINAL)),
    (".trt", _by_name("a TensorRT engine", ORIGINAL)),
    (".rknn", _by_name("an RKNN model", ORIGINAL)),
    (".pte", _by_name("an ExecuTorch program", ORIGINAL)),
    (".ort", _by_name("an ONNX Runtime model", ORT.hint)),
    (".onnx", _by_name("an ONNX model", "fetch the file again; onnx.checker.check_model says what is wrong with it")),
    (".rds", _by_name("R data", R_DATA.hint)),
    (".mat", _by_name("a MATLAB file", MAT.hint)),
    (".joblib", _by_name("a joblib file", JOBLIB.hint)),
    (".safetensors", _by_name("safetensors", "fetch the file again")),
)
"""Suffixes of files whose content none of the tables above knows."""

# --- archives and folders -----------------------------------------------------------------------------------------

NEMO = _unread("a NeMo archive", "unpack it: tar -xf FILE; its weights are in model_weights.ckpt")
MAR = _unread("a TorchServe archive (.mar)", "unpack it: unzip FILE; its weights are in one of the files")
EXPORTED = _unread(
    "a torch.export archive (.pt2)", "with torch: torch.save(torch.export.load(FILE).state_dict, 'model.pt')"
)
INDUCTOR = _unread("a package of AOTInductor (.pt2): compiled code, with the weights in it", ORIGINAL)
PACKAGE = _unread("a torch.package archive", "with torch: torch.package.PackageImporter(FILE) where it is trusted")
DL4J = _unread("a Deeplearning4j model", "in Java: ModelSerializer.restoreMultiLayerNetwork(FILE).params()")


def archive(members: Collection[str]) -> Foreign | None:
    """What an archive with such members is; None if none of them says it."""
    tops = {name.removeprefix("./") for name in members}
    ends = {name.rpartition("/")[2] for name in members}
    has_program = any("/models/" in f"/{name}" for name in tops)  # torch/export/pt2_archive/constants.py of 2.13
    if not has_program and any("data/aotinductor/" in name for name in tops):
        return INDUCTOR
    if "archive_format" in ends:
        return EXPORTED
    if "model_config.yaml" in ends and any(name.endswith(".ckpt") for name in ends):
        return NEMO
    if "MAR-INF/MANIFEST.json" in tops:
        return MAR
    if {"coefficients.bin", "configuration.json"} <= tops:
        return DL4J
    if any(name.endswith("/.data/extern_modules") for name in tops):
        return PACKAGE
    if any(name.endswith(("coremldata.bin", "Manifest.json")) for name in tops):
        return COREML
    return None


ORBAX = _unread(
    "an Orbax checkpoint of JAX",
    "with orbax: orbax.checkpoint.StandardCheckpointer().restore(FOLDER); save its arrays with numpy.savez",
)
SAVED_MODEL_FOLDER = _unread("a TensorFlow SavedModel", SAVED_MODEL.hint)
ZARR = _unread("a Zarr store", "with zarr: zarr.open(FOLDER); save its arrays with numpy.savez")
COREML_FOLDER = COREML._replace(hint="with coremltools: coremltools.models.MLModel(FOLDER).get_spec(), and its weights")


def folder(names: Collection[str]) -> Foreign | None:
    """What a folder with such files and folders is; None if none of them says it."""
    held = set(names)
    if held & {"manifest.ocdbt", "_CHECKPOINT_METADATA", "_METADATA"}:
        return ORBAX
    if "default" in held and "metadata" in held:  # of a step of Orbax's CheckpointManager
        return ORBAX
    if "saved_model.pb" in held:
        return SAVED_MODEL_FOLDER
    if {"Manifest.json", "Data"} <= held or "coremldata.bin" in held:
        return COREML_FOLDER
    if held & {".zgroup", ".zarray", "zarr.json"}:
        return ZARR
    if any(name.endswith((".pdiparams", ".pdmodel")) for name in held):
        return PADDLE_PARAMETERS
    if any(name.endswith(".engine") for name in held):
        return TENSORRT
    if any(name.endswith(".gguf") for name in held):
        return GGUF
    return None


# --- The fields of a protobuf message of which only the first bytes are known ----------------------------------------


MAX_FIELDS = 1000
MAX_NUMBER = 10_000
"""The largest number of a field that is taken for one: those of the formats that are recognised go to 600."""


class HeadField(NamedTuple):
    """A field; `data` is what the first bytes have of its content."""

    number: int
    wire: int
    value: int
    """Of a number; of anything else its length."""
    data: bytes
    stop: int
    """Where it ends, by its own word."""

    @property
    def is_message(self) -> bool:
        """Whether it has a length and content."""
        return self.wire == 2 and len(self.data) > 0

    @property
    def is_text(self) -> bool:
        """Whether it is printable ASCII, all of which is known."""
        is_whole = self.wire == 2 and len(self.data) == self.value > 0
        return is_whole and self.data.isascii() and self.data.decode().isprintable()


def fields(data: bytes) -> list[HeadField]:
    """The fields of a message up to where `data` ends; none if it does not begin like a message."""
    found: list[HeadField] = []
    at = 0
    while at < len(data) and len(found) < MAX_FIELDS:
        key, taken = varint(data[at : at + MAX_VARINT_NBYTES])
        if not taken:
            return found
        number, wire, at = key >> 3, key & 7, at + taken
        if not 0 < number <= MAX_NUMBER or wire not in (0, 1, 2, 5):
            return []
        if wire in (1, 5):
            size = 8 if wire == 1 else 4
            found.append(HeadField(number, wire, size, data[at : at + size], at + size))
            at += size
            continue
        value, taken = varint(data[at : at + MAX_VARINT_NBYTES])
        if not taken:
            return found
        at += taken
        stop = at + value if wire == 2 else at
        found.append(HeadField(number, wire, value, data[at:stop], stop))
        at = stop
    return found
