"""The messages of TensorFlow's files: the numbers of their fields, as far as they are read.

Sources: tensor_bundle, trackable_object_graph, saved_model, meta_graph and saved_object_graph.proto in
tensorflow/core/protobuf; tensor_shape, tensor_slice and types.proto in tensorflow/core/framework (2.21);
tf_keras/protobuf/saved_metadata.proto.
"""

from __future__ import annotations

from paramtool.formats.protobuf import BYTES, FIXED32, VARINT, many, one

HEADER = one(VARINT, num_shards=1, endianness=2) | one(BYTES, version=3)
VERSION = one(VARINT, producer=1, min_consumer=2) | many(VARINT, bad_consumers=3)
ENTRY = (
    one(VARINT, dtype=1, shard_id=3, offset=4, size=5)
    | one(FIXED32, crc32c=6)
    | one(BYTES, shape=2)
    | many(BYTES, slices=7)
)
SHAPE = one(VARINT, unknown_rank=3) | many(BYTES, dim=2)
DIM = one(VARINT, size=1) | one(BYTES, name=2)
SLICE = many(BYTES, extent=1)
EXTENT = one(VARINT, start=1, length=2)

OBJECT_GRAPH = many(BYTES, nodes=1)
OBJECT = many(BYTES, children=1, attributes=2, slot_variables=3)
CHILD = one(VARINT, node_id=1) | one(BYTES, local_name=2)
ATTRIBUTE = one(BYTES, name=1, full_name=2, checkpoint_key=3)
SLOT = one(VARINT, original_variable_node_id=1, slot_variable_node_id=3) | one(BYTES, slot_name=2)

SAVED_MODEL = one(VARINT, schema_version=1) | many(BYTES, meta_graphs=2)
META_GRAPH = one(BYTES, meta_info_def=1, object_graph_def=7)
META_INFO = one(BYTES, tensorflow_version=5)
SAVED_OBJECT = one(BYTES, user_object=4)
USER_OBJECT = one(BYTES, identifier=1, metadata=3)
KERAS_METADATA = many(BYTES, nodes=1)
KERAS_NODE = one(VARINT, node_id=2) | one(BYTES, node_path=3, identifier=4, metadata=5)
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
