"""Pickles of NumPy arrays: what `pickle.dump` makes of a dict of arrays, or of anything else that holds some.

    protocols 3 to 5, and Python 2's 1 and 2    the bytes of an array stand in the file as they are: a range of it
    protocols 1 and 2 of Python 3, and 0        they stand there as text, and are decoded when they are read

A `.npy` of Python objects is such a pickle behind a header: `np.save(path, {"w": array})`.

All of Python's protocols, also several pickles one after the other.  Paddle's `.pdparams` and `.pdopt` are such
pickles (`_build_saved_state_dict` in python/paddle/framework/io.py, 3.3).  The states of MXNet's trainers are read, too
(`mxnet/states.py`).

What the pickles hold is in `objects.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from paramtool.errors import FormatError, plural
from paramtool.formats import object_tree, scan, sniff
from paramtool.formats.files import Contents, open_source
from paramtool.formats.mxnet import states as mxnet
from paramtool.formats.numpy import objects
from paramtool.formats.policy import merged
from paramtool.model.checkpoint import Checkpoint, Unknown
from paramtool.model.objects import Mapping, Node

PADDLE = "StructuredToParameterName@@"
"""The key under which Paddle keeps the names of parameters."""
NAMED = re.compile(b"_reconstruct|_frombuffer|mxnet|joblib|torch|storage")
"""What a pickle names that holds arrays, or that is of a kind that is refused by its name."""
SEARCHED_NBYTES = 16 << 20
"""Up to here a file is searched for such names."""


def read(path: str) -> Checkpoint:
    """Describe a pickle that holds arrays; FormatError if it is damaged or holds none, UnsafeError if it is a bomb."""
    file, source = open_source(path)
    with file:
        data = Contents(file, source.nbytes)
        if source.nbytes < SEARCHED_NBYTES and not NAMED.search(data[:]):
            scanned = scan.scan_file(path)
            if scanned.is_pickle and scanned.ended:  # it is not run again
                raise _without_arrays(path, scanned.unknown)
        start = sniff.numpy_stop(data[:12]) if data[:6] == sniff.NUMPY_MAGIC else 0
        results = objects.run(data, start, source.nbytes, path)
        value = results[0].value if len(results) == 1 else tuple(result.value for result in results)
        rest = source.nbytes - results[-1].stop
        unknown = objects.unknown(results)
        if rest:
            unknown += scan.scan_parts(file, source, [(results[-1].stop, source.nbytes)]).unknown
        found = objects.held(path, value, results[-1].stop - sum(result.skipped for result in results))
    is_state = found.is_state or mxnet.is_state(found.tree)
    if not found.entries and not is_state:
        raise _without_arrays(path, unknown)
    return Checkpoint(
        format=mxnet.NAME if is_state else "paddle pickle" if _is_paddle(found.tree) else "pickle",
        files=(source,),
        storages=found.storages,
        entries=found.entries,
        objects=found.tree,
        sections=object_tree.sections(found.tree),
        unknown=merged(unknown),
        left_out=(f"{plural(rest, 'byte')} after the pickle were not read",) if rest else (),
        notes=("some names collide and have their dots escaped",) if found.is_escaped else (),
    )


def _is_paddle(tree: Node) -> bool:
    return isinstance(tree, Mapping) and any(key == PADDLE for key, _ in tree.items)


def _without_arrays(path: str, unknown: Iterable[Unknown]) -> FormatError:
    names = list(dict.fromkeys(one.path.partition(".")[0] for one in unknown))
    named = f", and names {', '.join(names[:3])}" if names else ""
    return FormatError(f"{path}: is a pickle that holds no NumPy arrays of numbers{named}", hint=objects.SAVE)
