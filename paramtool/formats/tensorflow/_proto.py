"""The messages of TensorFlow's files: the numbers of their fields, as far as they are read.

Sources: tensor_bundle, trackable_object_graph, saved_model, meta_graph and saved_object_graph.proto in
tensorflow/core/protobuf; tensor_shape, tensor_slice and types.proto in tensorflow/core/framework (2.21);
tf_keras/protobuf/saved_metadata.proto.
"""

from __future__ import annotations

from paramtool.formats.protobuf import BYTES, FIXED32, VARINT, Field

HEADER = {1: Field("num_shards", VARINT), 2: Field("endianness", VARINT), 3: Field("version", BYTES)}
VERSION = {1: Field("producer", VARINT), 2: Field("min_consumer", VARINT), 3: Field("bad_consumers", VARINT, many=True)}
ENTRY = {
    1: Field("dtype", VARINT),
    2: Field("shape", BYTES),
    3: Field("shard_id", VARINT),
    4: Field("offset", VARINT),
    5: Field("size", VARINT),
    6: Field("crc32c", FIXED32),
    7: Field("slices", BYTES, many=True),
}
SHAPE = {2: Field("dim", BYTES, many=True), 3: Field("unknown_rank", VARINT)}
DIM = {1: Field("size", VARINT), 2: Field("name", BYTES)}
SLICE = {1: Field("extent", BYTES, many=True)}
EXTENT = {1: Field("start", VARINT), 2: Field("length", VARINT)}

OBJECT_GRAPH = {1: Field("nodes", BYTES, many=True)}
OBJECT = {
    1: Field("children", BYTES, many=True),
    2: Field("attributes", BYTES, many=True),
    3: Field("slot_variables", BYTES, many=True),
}
CHILD = {1: Field("node_id", VARINT), 2: Field("local_name", BYTES)}
ATTRIBUTE = {1: Field("name", BYTES), 2: Field("full_name", BYTES), 3: Field("checkpoint_key", BYTES)}
SLOT = {
    1: Field("original_variable_node_id", VARINT),
    2: Field("slot_name", BYTES),
    3: Field("slot_variable_node_id", VARINT),
}

SAVED_MODEL = {1: Field("schema_version", VARINT), 2: Field("meta_graphs", BYTES, many=True)}
META_GRAPH = {1: Field("meta_info_def", BYTES), 7: Field("object_graph_def", BYTES)}
META_INFO = {5: Field("tensorflow_version", BYTES)}
SAVED_OBJECT = {4: Field("user_object", BYTES)}
USER_OBJECT = {1: Field("identifier", BYTES), 3: Field("metadata", BYTES)}
KERAS_METADATA = {1: Field("nodes", BYTES, many=True)}
KERAS_NODE = {
    2: Field("node_id", VARINT),
    3: Field("node_path", BYTES),
    4: Field("identifier", BYTES),
    5: Field("metadata", BYTES),
}
"""`metadata` is JSON, in both."""

STRING = 7
TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64", 10: "bool",
    11: "int8", 12: "uint8", 13: "int32", 14: "bfloat16", 15: "int16", 16: "uint16", 17: "uint16", 18: "complex128",
    19: "float16", 22: "uint32", 23: "uint64", 24: "float8_e5m2", 25: "float8_e4m3fn", 26: "float8_e4m3fnuz",
    28: "float8_e5m2fnuz", 29: "int4", 30: "uint4",
}  # fmt: skip
"""DataType, as paramtool calls the types; quantised integers are plain ones, and small ones take a byte each."""
QUANTISED = {11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16"}
OPAQUE = {
    STRING: "strings", 20: "a resource", 21: "a variant", 27: "float8_e4m3b11fnuz numbers", 31: "int2 numbers",
    32: "uint2 numbers", 33: "float4_e2m1fn numbers",
}  # fmt: skip
"""Types that no paramtool tensor has."""
