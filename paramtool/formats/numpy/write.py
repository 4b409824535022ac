"""Write `.npz`: an archive of `.npy` members, stored, each with the header that NumPy writes.

Specification: numpy/lib/format.py, "Format Version 1.0" to "3.0".
"""

from __future__ import annotations

from collections.abc import Mapping

from paramtool.formats.numpy import _npy
from paramtool.formats.output import OutputFile
from paramtool.formats.zip.write import archive
from paramtool.model.plan import Plan, Target

DESCR = {name: code for code, name in reversed(_npy.CODES.items())}
"""{dtype: NumPy's code for it}"""
HEADER_ALIGN = 64
"""The elements begin at a multiple of so many bytes of the member."""


def refusals(dtypes: Mapping[str, str]) -> dict[str, str]:
    """{name: reason} for the names in {name: dtype} that a `.npz` file cannot store."""
    return {name: f"NumPy has no {dtype}" for name, dtype in dtypes.items() if dtype not in DESCR}


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """One archive with a member for each target; every name of the plan is a target."""
    members = ((f"{target.name}.npy", (_header(target), target)) for target in plan.targets)
    return (OutputFile("", archive(members, is_torch=False)),)


def _header(target: Target) -> bytes:
    """The header of a tensor that is stored row by row."""
    code = DESCR[target.dtype.name]
    order = "<" if target.dtype.block_bytes > 1 else "|"
    text = f"{{'descr': '{order}{code}', 'fortran_order': False, 'shape': {target.shape}, }}".encode("latin-1")
    version, length = ((1, 0), _npy.U16) if len(text) < _npy.MAX_HEADER_NBYTES - HEADER_ALIGN else ((2, 0), _npy.U32)
    start = len(_npy.MAGIC) + 2 + length.size
    text += b" " * (-(start + len(text) + 1) % HEADER_ALIGN) + b"\n"
    return _npy.MAGIC + bytes(version) + length.pack(len(text)) + text
