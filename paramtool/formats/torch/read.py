"""Checkpoints of torch.save, in every form it ever had, and TorchScript archives; read without torch.

    zip        torch 1.6 and later   `N/data.pkl` and one stored member `N/data/KEY` for each storage
    stacked    torch 0.1.10 to 1.5   five pickles one behind the other, then (i64 count, bytes) for each storage
    tar        torch 0.1.1 to 0.1.9  members `pickle`, `storages`, `tensors`
    TorchScript                      a zip with `constants.pkl` and `code/`; only its tensors are looked at

A storage is a range of bytes of the file; the pickles say which windows on it are tensors.  Same key, same storage:
that is all the alias information there is, and it is complete.

Sources: torch/serialization.py, caffe2/serialize/inline_container.cc, torch/csrc/jit/serialization/pickler.cpp.
"""

from __future__ import annotations

from paramtool.formats import sniff
from paramtool.formats.files import open_source
from paramtool.formats.torch.archive import read_archive
from paramtool.model.checkpoint import Checkpoint


def read(path: str) -> Checkpoint:
    """Describe a file of any of torch's forms; FormatError or UnsafeError if that is not possible."""
    file, source = open_source(path)
    with file:
        head = file.read(512)
        if sniff.is_zip(head):
            return read_archive(file, source)
        if sniff.is_stacked(head):
            from paramtool.formats.torch._old import read_stacked

            return read_stacked(file, source)
        from paramtool.formats.torch._old import read_tar

        return read_tar(file, source)
