"""The writers of formats of arrays: NumPy's archives, MXNet's lists, flax's msgpack, HDF5."""

from __future__ import annotations

from collections.abc import Iterator

from paramtool.commands.output.writer import Writer, whole
from paramtool.engine.write.verify import by_zipfile
from paramtool.errors import some
from paramtool.formats import table
from paramtool.formats.hdf5 import write as hdf5_write
from paramtool.formats.msgpack import write as msgpack_write
from paramtool.formats.mxnet import params as mxnet_write
from paramtool.formats.numpy import write as numpy_write
from paramtool.model.plan import Plan

MANY = 3


def _bfloat16_caveat(plan: Plan) -> Iterator[str]:
    """NumPy and h5py have no type for bfloat16, and return its bytes."""
    names = [target.name for target in plan.targets if target.dtype.name == "bfloat16"]
    if names:
        yield (
            f"{some(names, MANY)} {'is' if len(names) == 1 else 'are'} bfloat16, which NumPy and h5py return as raw "
            "bytes: array.view(ml_dtypes.bfloat16) gives the numbers"
        )


NPZ = Writer(
    name="npz",
    form=table.find("npz"),
    encode=lambda plan, name: numpy_write.lay_out(plan),
    refusals=numpy_write.refusals,
    differences=by_zipfile,
    needs=("zipfile",),
    caveats=_bfloat16_caveat,
)
MXNET = Writer(
    name="MXNet",
    form=table.find("mxnet"),
    encode=lambda plan, name: mxnet_write.lay_out(plan),
    refusals=mxnet_write.refusals,
    unfit=mxnet_write.unfit,
)
MSGPACK = Writer(
    name="msgpack",
    form=table.find("msgpack"),
    encode=lambda plan, name: msgpack_write.lay_out(plan),
    refusals=msgpack_write.refusals,
    hold=whole(links=False, tree_of=msgpack_write.held),
)
HDF5 = Writer(
    name="HDF5",
    form=table.find("keras"),
    encode=lambda plan, name: hdf5_write.lay_out(plan),
    refusals=hdf5_write.refusals,
    hold=whole(links=True),
    unfit=hdf5_write.unfit,
    caveats=_bfloat16_caveat,
)
