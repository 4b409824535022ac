"""The best that a good engineer would write for one job, for `as_typed.py` to compare with.

python best.py plain FILE.pt OUT           torch.load(mmap=True) and save_file, on the disk
python best.py keras FILE.pt OUT           every matrix transposed in blocks of 512 by two threads, on the disk
python best.py keras-equal FILE.pt OUT     the same blocks compared with the file, by two threads
python best.py blake3 FILE                 blake3 of the mapped file with all cores
python best.py sha256 FILE                 hashlib.file_digest
python best.py equal FILE OTHER            both files compared in blocks of 1 MB by two threads
python best.py torch FILE.pt               torch.load(mmap=True) and load_state_dict: prints the seconds of both
python best.py load_model FILE.pt          paramtool.torch.load_model: prints its seconds
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product, repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

EDGE, BLOCK, THREADS = 512, 1 << 20, 2
BAND_NBYTES = 32 << 20


def _tensors(path: str) -> dict[str, torch.Tensor]:
    import torch

    found: dict[str, torch.Tensor] = torch.load(path, mmap=True, weights_only=True)
    return found


def _distinct(path: str) -> list[Any]:
    """The arrays of a file, each storage once, as raw numbers."""
    found = {one.untyped_storage().data_ptr(): one for one in _tensors(path).values()}
    return [one.view(KINDS[one.element_size()]).numpy() for one in found.values()]


KINDS: dict[int, Any] = {}


def _blocks(shape: tuple[int, int]) -> list[tuple[slice, slice]]:
    corners = product(range(0, shape[0], EDGE), range(0, shape[1], EDGE))
    return [(slice(i, i + EDGE), slice(j, j + EDGE)) for i, j in corners]


def _same(one: Any, other: Any, box: tuple[slice, slice]) -> bool:
    return bool((one[box] == other[box]).all())


def _move(one: Any, other: Any, box: tuple[slice, slice]) -> None:
    one[box] = other[box]


def keras(path: str, out: str, *, compare: bool = False) -> None:
    """Write every array, matrices transposed, or compare them with what was written."""
    import numpy as np

    room = np.empty(BAND_NBYTES, "u1")
    with open(out, "r+b" if compare else "wb", buffering=0) as file, ThreadPoolExecutor(THREADS) as pool:
        for array in _distinct(path):
            turned = array.T if array.ndim == 2 else array.reshape(1, -1)
            rows = max(1, BAND_NBYTES // max(1, turned.shape[1] * turned.itemsize))
            for low in range(0, len(turned), rows):
                part = turned[low : low + rows]
                band = np.ndarray(part.shape, part.dtype, room.data)
                if compare:
                    file.readinto(band.reshape(-1).view("u1").data)
                    assert all(pool.map(_same, repeat(band), repeat(part), _blocks(part.shape))), "differs"
                else:
                    list(pool.map(_move, repeat(band), repeat(part), _blocks(part.shape)))
                    file.write(band.reshape(-1).view("u1").data)
        os.fsync(file.fileno())


def equal(path: str, other: str) -> None:
    """Compare all bytes of two files."""

    def same(start: int) -> bool:
        return os.pread(one, BLOCK, start) == os.pread(two, BLOCK, start)

    one, two = os.open(path, os.O_RDONLY), os.open(other, os.O_RDONLY)
    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(same, range(0, os.path.getsize(path), BLOCK))), "differs"


def plain(path: str, out: str) -> None:
    """The tensors of a `.pt` as safetensors, each name with bytes of its own."""
    from safetensors.torch import save_file

    save_file({name: one.contiguous().clone() for name, one in _tensors(path).items()}, out)
    with open(out, "rb") as file:
        os.fsync(file.fileno())


def _model(path: str) -> torch.nn.Module:
    """A module with a parameter for every name of a file."""
    import torch

    root = torch.nn.Module()
    for name, tensor in _tensors(path).items():
        *places, last = name.split(".")
        module = root
        for place in places:
            if place not in dict(module.named_children()):
                module.add_module(place, torch.nn.Module())
            module = module.get_submodule(place)
        module.register_parameter(last, torch.nn.Parameter(torch.zeros_like(tensor), requires_grad=False))
    return root


def load(path: str, *, by_paramtool: bool) -> None:
    """Print the seconds of filling a model."""
    import paramtool.torch

    model = _model(path)
    began = time.perf_counter()
    if by_paramtool:
        paramtool.torch.load_model(model, path)
    else:
        model.load_state_dict(_tensors(path))
    print(time.perf_counter() - began)


def main() -> None:
    """Do one job."""
    job, path, *other = sys.argv[1:]
    if job in ("blake3", "sha256"):
        if job == "blake3":
            from blake3 import blake3

            print(blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest())
        else:
            with open(path, "rb", buffering=0) as file:
                print(hashlib.file_digest(file, "sha256").hexdigest())
        return
    import torch

    KINDS.update({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64})
    if job in ("torch", "load_model"):
        load(path, by_paramtool=job == "load_model")
    elif job == "equal":
        equal(path, *other)
    elif job == "plain":
        plain(path, *other)
    else:
        keras(path, *other, compare=job == "keras-equal")


if __name__ == "__main__":
    main()
