"""Write `.npz`: an archive of `.npy` members, stored, each with the header that NumPy writes.

MXNet 2 reads the same archive, if its element types and headers are among those that it reads (`not_for_mxnet`).
bfloat16 is `<V2`, as ml_dtypes writes it: `np.load(...)[name].view(ml_dtypes.bfloat16)`.

Sources: numpy/lib/format.py, "Format Version 1.0" to "3.0", and npyio.py (NpzFile); MXNet 2.0.0b1, cnpy.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from paramtool.formats.numpy import npy
from paramtool.formats.output import OutputFile, is_utf8
from paramtool.formats.zip.directory import leaves_folder
from paramtool.formats.zip.write import archive
from paramtool.model.plan import Plan, Target

DESCR = {name: code for code, name in reversed(npy.CODES.items())}
"""{dtype: NumPy's code for it}"""
HEADER_ALIGN = 64
"""The elements begin at a multiple of this many bytes in the member."""


SUFFIX = ".npy"
MAX_NAME_NBYTES = 4000
"""The first bytes of a file show that it is a `.npz`, whatever its first array is called."""
MXNET_HEADER_NBYTES = 127
"""The longest text of a header that MXNet 2 reads: it takes the low byte of the length for a signed number."""
MXNET_DTYPES = frozenset(DESCR) - {"bfloat16", "complex64", "complex128"}


def refusals(dtypes: Mapping[str, str]) -> dict[str, str]:
    """{name: reason} for the names in {name: dtype} that a `.npz` file cannot store."""
    refused = {name: f"NumPy has no {dtype}" for name, dtype in dtypes.items() if dtype not in DESCR}
    for name in dtypes:
        if "\0" in name or not is_utf8(name):
            refused[name] = "a zip file stores names as UTF-8 without zero bytes"
        elif len(name.encode()) > MAX_NAME_NBYTES:
            refused[name] = f"a name in a .npz has at most {MAX_NAME_NBYTES} bytes"
        elif leaves_folder(f"{name}{SUFFIX}".encode()):
            refused[name] = "is no relative path with '/', so programs that unpack zip files refuse it"
        elif name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in dtypes:
            refused[name] = f"NumPy takes it for the member of {name.removesuffix(SUFFIX)!r:.200}"
    return refused


def not_for_mxnet(targets: Iterable[Target]) -> Iterator[str]:
    """The tensors of a `.npz` that MXNet 2.0.0b1 cannot read, for people: it stops at the first."""
    for target in targets:
        if target.dtype.name not in MXNET_DTYPES:
            yield f"{target.name!r:.200} ({target.dtype.name})"
        elif len(_header(target)) - len(npy.MAGIC) - 4 > MXNET_HEADER_NBYTES:
            yield f"{target.name!r:.200} (its shape is too long for its header)"


def lay_out(plan: Plan) -> tuple[OutputFile, ...]:
    """One archive with a member for each target; every name of the plan is a target."""
    members = ((f"{target.name}{SUFFIX}", (_header(target), target)) for target in plan.targets)
    return (OutputFile("", archive(members, is_torch=False)),)


def _header(target: Target) -> bytes:
    """The header of a tensor that is stored row by row."""
    code = DESCR[target.dtype.name]
    order = "<" if target.dtype.block_bytes > 1 else "|"
    text = f"{{'descr': '{order}{code}', 'fortran_order': False, 'shape': {target.shape}, }}".encode("latin-1")
    version, length = ((1, 0), npy.U16) if len(text) < npy.MAX_HEADER_NBYTES - HEADER_ALIGN else ((2, 0), npy.U32)
    start = len(npy.MAGIC) + 2 + length.size
    text += b" " * (-(start + len(text) + 1) % HEADER_ALIGN) + b"\n"
    return npy.MAGIC + bytes(version) + length.pack(len(text)) + text
