"""Mutators: functions of (bytes, Random) to bytes that know a format's structure.

`KINDS` has those of each kind of file with their weights.  A mutator that cannot read its input raises some error of
reading, and the bytes are mutated without structure instead: `mutate` never fails.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.fuzz.mutators import (
    bson_documents,
    hdf5,
    json_text,
    lock_text,
    msgpack_values,
    mxnet,
    numpy_arrays,
    pickles,
    protobuf,
    raw,
    tables,
    tensors,
    toml_text,
    zips,
)

Mutator = Callable[[bytes, Random], bytes]

KINDS: dict[str, tuple[tuple[int, Mutator], ...]] = {
    "raw": ((1, raw.mutate),),
    "json": ((9, json_text.mutate), (1, raw.mutate)),
    "safetensors": ((8, tensors.mutate), (1, raw.mutate)),
    "record": ((12, tensors.mutate_record), (2, tensors.mutate), (1, raw.mutate)),
    "torch": ((7, zips.mutate_member), (4, zips.mutate), (1, raw.mutate)),
    "stacked": ((7, pickles.mutate_stacked), (1, raw.mutate)),
    "tar": ((7, zips.mutate_tar), (1, raw.mutate)),
    "pickle": ((7, pickles.mutate), (2, raw.mutate)),
    "mxnet": ((8, mxnet.mutate), (1, raw.mutate)),
    "npy": ((8, numpy_arrays.mutate), (1, raw.mutate)),
    "npz": ((7, zips.mutate_member), (4, zips.mutate), (1, raw.mutate)),
    "hdf5": ((5, hdf5.mutate), (4, hdf5.mutate_metadata), (1, raw.mutate)),
    "keras": ((7, zips.mutate_member), (3, zips.mutate), (1, raw.mutate)),
    "onnx": ((9, protobuf.mutate), (1, raw.mutate)),
    "bson": ((8, bson_documents.mutate), (2, raw.mutate)),
    "lock": ((12, lock_text.mutate), (2, raw.mutate)),
    "toml": ((12, toml_text.mutate), (2, raw.mutate)),
    "msgpack": ((9, msgpack_values.mutate), (1, raw.mutate)),
    "tensorflow": ((8, tables.mutate), (1, raw.mutate)),
}
MAX_NBYTES = 1 << 20
"""Mutants that grow beyond this are cut: cases stay small."""


def mutate(kind: str, data: bytes, random: Random) -> bytes:
    """One mutation of a file of a kind."""
    weights = [weight for weight, _ in KINDS[kind]]
    ((_, mutator),) = random.choices(KINDS[kind], weights)
    try:
        made = mutator(data, random)
    except Exception:  # whatever a library says of a file that earlier mutations damaged
        made = raw.mutate(data, random)
    return made[:MAX_NBYTES]
