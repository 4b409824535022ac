"""Write MXNet's `.params`: an NDArray list of version V2, which MXNet 1.0 to 2.0 reads, dense and on the CPU.

Names are those of the source: `arg:` and `aux:`, with which `mx.model.load_checkpoint` tells parameters from auxiliary
states, are a part of the name.

Sources: src/ndarray/ndarray.cc (NDArray::Save) and mshadow/base.h (TypeFlag) of MXNet 1.9.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paramtool.formats.mxnet import ndarray, params
from paramtool.formats.output import OutputFile, Segment, is_utf8
from paramtool.model.plan import Plan, Target

FLAGS = {
    name: flag
    for flag, name in enumerate(ndarray.TYPE_FLAGS)
    if name not in ("int16", "uint16", "uint32", "uint64")  # of 2.0 alone: 1.9.1 says "Unknown type enum 8"
}
"""{dtype: its number}, of those that MXNet 1.9.1 reads."""
DENSE = 0
CPU = ndarray.DEVICE.pack(1, 0)


def refusals(dtypes: Mapping[str, str]) -> dict[str, str]:
    """{name: reason} for the names in {name: dtype} that a `.params` file cannot store."""
    refused = {name: f"MXNet 1.9 has no {dtype}" for name, dtype in dtypes.items() if dtype not in FLAGS}
    for name in dtypes:
        if "\0" in name:
            refused[name] = "MXNet ends a name at its first zero byte"
        elif not is_utf8(name):
            refused[name] = "is not UTF-8"
    return refused


def unfit(target: Target) -> str:
    """Why an NDArray list cannot store a tensor of this shape; empty if it can."""
    if target.shape:
        return ""
    return "has no axes, which means an array without data to MXNet 1.x; a shape of [1] can be stored"


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """One file; every name of the plan is a target."""
    return (OutputFile("", tuple(_segments(plan.targets))),)


def _segments(targets: tuple[Target, ...]) -> Iterator[Segment]:
    before = params.HEADER.pack(params.MAGIC, 0, len(targets))
    for target in targets:
        shape = b"".join(ndarray.I64.pack(size) for size in target.shape)
        head = ndarray.U32.pack(ndarray.V2) + ndarray.I32.pack(DENSE) + ndarray.I32.pack(len(target.shape)) + shape
        yield before + head + CPU + ndarray.I32.pack(FLAGS[target.dtype.name])
        yield target
        before = b""
    names = [target.name.encode() for target in targets]
    yield params.U64.pack(len(names)) + b"".join(params.U64.pack(len(name)) + name for name in names)
