"""The numbers of the fields that are read from ONNX messages, and ONNX' element types.

Source: onnx/onnx.proto (onnx 1.23, IR version 13), whose names these are.
"""

from __future__ import annotations

import re

from paramtool.errors import FormatError
from paramtool.formats.protobuf import BYTES, FIXED32, FIXED64, VARINT, Reader, Span, many, one

MODEL = (
    one(VARINT, ir_version=1, model_version=5)
    | one(BYTES, producer_name=2, producer_version=3, domain=4, doc_string=6, graph=7)
    | many(BYTES, opset_import=8, metadata_props=14, training_info=20, functions=25, configuration=26)
)
GRAPH = many(BYTES, node=1, initializer=5, input=11, output=12, value_info=13, sparse_initializer=15)
FUNCTION = one(BYTES, name=1, overload=13) | many(BYTES, input=4, output=5, node=7)
TRAINING_INFO = one(BYTES, initialization=1, algorithm=2)
NODE = one(BYTES, name=3, op_type=4, domain=7) | many(BYTES, input=1, output=2, attribute=5, metadata_props=9)
NUMBERED = re.compile(r"val_\d+")
"""What torch's exporter calls a value that it computed, such as a weight with other axes."""
SCOPES = "pkg.torch.onnx.name_scopes"
"""The entry of a node's metadata in which torch's exporter lists the modules around it: `['', 'fc', 'linear']`."""
ATTRIBUTE = (
    one(VARINT, i=3)
    | one(FIXED32, f=2)
    | one(BYTES, name=1, s=4, t=5, g=6, sparse_tensor=22)
    | many(VARINT, ints=8)
    | many(FIXED32, floats=7)
    | many(BYTES, strings=9, graphs=11)
)
TENSOR = (
    one(VARINT, data_type=2, data_location=14)
    | one(BYTES, segment=3, name=8, raw_data=9)
    | many(VARINT, dims=1, int32_data=5, int64_data=7, uint64_data=11)
    | many(FIXED32, float_data=4)
    | many(FIXED64, double_data=10)
    | many(BYTES, string_data=6, external_data=13)
)
SPARSE_TENSOR = one(BYTES, values=1, indices=2) | many(VARINT, dims=3)
VALUE_INFO = one(BYTES, name=1, type=2) | many(BYTES, metadata_props=4)
TYPE = one(BYTES, tensor_type=1)
TENSOR_TYPE = one(BYTES, shape=2)
SHAPE = many(BYTES, dim=1)
DIMENSION = one(VARINT, dim_value=1) | one(BYTES, dim_param=2)
ENTRY = one(BYTES, key=1, value=2)
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
