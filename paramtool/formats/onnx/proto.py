"""The numbers of the fields that are read from ONNX messages, and ONNX' element types.

Source: onnx/onnx.proto (onnx 1.23, IR version 13), whose names these are.
"""

from __future__ import annotations

import re

from paramtool.errors import FormatError
from paramtool.formats.protobuf import BYTES, FIXED32, FIXED64, VARINT, Field, Reader, Span

MODEL = {
    1: Field("ir_version", VARINT),
    2: Field("producer_name", BYTES),
    3: Field("producer_version", BYTES),
    4: Field("domain", BYTES),
    5: Field("model_version", VARINT),
    6: Field("doc_string", BYTES),
    7: Field("graph", BYTES),
    8: Field("opset_import", BYTES, many=True),
    14: Field("metadata_props", BYTES, many=True),
    20: Field("training_info", BYTES, many=True),
    25: Field("functions", BYTES, many=True),
    26: Field("configuration", BYTES, many=True),
}
GRAPH = {
    1: Field("node", BYTES, many=True),
    5: Field("initializer", BYTES, many=True),
    11: Field("input", BYTES, many=True),
    12: Field("output", BYTES, many=True),
    13: Field("value_info", BYTES, many=True),
    15: Field("sparse_initializer", BYTES, many=True),
}
FUNCTION = {
    1: Field("name", BYTES),
    4: Field("input", BYTES, many=True),
    5: Field("output", BYTES, many=True),
    7: Field("node", BYTES, many=True),
    13: Field("overload", BYTES),
}
TRAINING_INFO = {1: Field("initialization", BYTES), 2: Field("algorithm", BYTES)}
NODE = {
    1: Field("input", BYTES, many=True),
    2: Field("output", BYTES, many=True),
    3: Field("name", BYTES),
    4: Field("op_type", BYTES),
    5: Field("attribute", BYTES, many=True),
    7: Field("domain", BYTES),
    9: Field("metadata_props", BYTES, many=True),
}
NUMBERED = re.compile(r"val_\d+")
"""What torch's exporter calls a value that it computed, such as a weight with other axes."""
SCOPES = "pkg.torch.onnx.name_scopes"
"""The entry of a node's metadata in which torch's exporter lists the modules around it: `['', 'fc', 'linear']`."""
ATTRIBUTE = {
    1: Field("name", BYTES),
    2: Field("f", FIXED32),
    3: Field("i", VARINT),
    4: Field("s", BYTES),
    5: Field("t", BYTES),
    6: Field("g", BYTES),
    7: Field("floats", FIXED32, many=True),
    8: Field("ints", VARINT, many=True),
    9: Field("strings", BYTES, many=True),
    11: Field("graphs", BYTES, many=True),
    22: Field("sparse_tensor", BYTES),
}
TENSOR = {
    1: Field("dims", VARINT, many=True),
    2: Field("data_type", VARINT),
    3: Field("segment", BYTES),
    4: Field("float_data", FIXED32, many=True),
    5: Field("int32_data", VARINT, many=True),
    6: Field("string_data", BYTES, many=True),
    7: Field("int64_data", VARINT, many=True),
    8: Field("name", BYTES),
    9: Field("raw_data", BYTES),
    10: Field("double_data", FIXED64, many=True),
    11: Field("uint64_data", VARINT, many=True),
    13: Field("external_data", BYTES, many=True),
    14: Field("data_location", VARINT),
}
SPARSE_TENSOR = {1: Field("values", BYTES), 2: Field("indices", BYTES), 3: Field("dims", VARINT, many=True)}
VALUE_INFO = {1: Field("name", BYTES), 2: Field("type", BYTES), 4: Field("metadata_props", BYTES, many=True)}
TYPE = {1: Field("tensor_type", BYTES)}
TENSOR_TYPE = {2: Field("shape", BYTES)}
SHAPE = {1: Field("dim", BYTES, many=True)}
DIMENSION = {1: Field("dim_value", VARINT), 2: Field("dim_param", BYTES)}
ENTRY = {1: Field("key", BYTES), 2: Field("value", BYTES)}
"""StringStringEntryProto."""

MAX_HEAD_TEXT_NBYTES = 1024
"""The longest producer name, producer version or domain of a file that is recognised by its first bytes."""


def begins_model(head: bytes, nbytes: int, is_named: bool) -> bool:
    """Whether the first bytes of a file of `nbytes` bytes are those of a ModelProto.

    Every writer orders the fields by their numbers, so the version and short strings come before the graph.  A file
    that `is_named` as a model may end before they do: it is truncated.
    """
    last = 0
    try:
        for number, wire, content in Reader(head, "").fields(Span(0, 1 << 62 if is_named else nbytes)):
            field = MODEL.get(number)
            if field is None or field.wire != wire or number < last:
                return False
            last = number
            if number == 7:
                return content.nbytes > 0
            if content.stop >= len(head) or (number < 6 and content.nbytes > MAX_HEAD_TEXT_NBYTES):
                is_long_text = number == 6 and content.stop < nbytes  # before the graph
                return is_long_text or (is_named and content.stop >= nbytes)
    except (FormatError, IndexError):
        return is_named
    return False


NETWORKS = "paramtool.networks"
"""The key of the metadata under which paramtool writes which nodes are one network."""
EXTERNAL = 1
"""TensorProto.DataLocation."""
STRING = 8
TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 23: "float4_e2m1fn",
    24: "float8_e8m0fnu", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip
"""TensorProto.DataType, as paramtool calls the types."""
PACKED = {21: ("uint4", 2), 22: ("int4", 2), 25: ("uint2", 4), 26: ("int2", 4)}
"""{code: (type, elements in a byte)} of packed types, lowest bits first; the last byte may be partly unused."""
TYPED_FIELDS = {
    "float_data": {1, 14},
    "double_data": {11, 15},
    "int64_data": {7},
    "uint64_data": {12, 13},
    "int32_data": {2, 3, 4, 5, 6, 9, 10, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26},
}
"""{field: the data types that it may hold}; float6 in int32_data, one value for each number, is not read."""
