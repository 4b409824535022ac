"""A lock as text: ASCII, sorted, one fact a line, so that git shows what changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from paramtool.lockfile import digests
from paramtool.lockfile.lock import VERSION, LockedModel
from paramtool.lockfile.words import quoted, shape_text

FIRST_LINE = "# paramtool.lock, version {}: `paramtool lock` writes it, `paramtool check` reads it"


def text(models: Iterable[LockedModel]) -> str:
    """The whole file."""
    lines = [FIRST_LINE.format(VERSION)]
    for model in sorted(models, key=lambda one: one.path):
        own = list(_lines(model))
        lines += ["", *own, f"lines b3:{digests.blake3_of(chr(10).join(own))}"]
    return "".join(f"{line}\n" for line in lines)


def _lines(model: LockedModel) -> Iterator[str]:
    yield f"model {quoted(model.path)}"
    for file in sorted(model.files):
        yield f"file {quoted(file.name)} {file.nbytes}" + (f" sha256:{file.sha256}" if file.sha256 else "")
    yield f"content {model.content}"
    yield f"unnamed {model.unnamed}"
    if model.dialect:
        yield f"dialect {quoted(model.dialect)}"
    for tie in sorted(model.ties):
        yield f"tied {' = '.join(map(quoted, tie.names))} {tie.kind}"
    for view in sorted(model.views.values()):
        yield f"view {quoted(view.name)} {view.offset} {shape_text(view.strides)}"
    for one in sorted(model.objects.values()):
        words = "..." if re.search("['\"]", one.words) else one.words  # version 1 had strings as Python writes them
        yield f"object {quoted(one.key)} b3:{one.digest} {quoted(words)}"
    for tensor in sorted(model.tensors.values()):
        digest = tensor.digest if tensor.digest in ("-", "no-data") else f"b3:{tensor.digest}"
        yield f"tensor {quoted(tensor.name)} {tensor.dtype} {shape_text(tensor.shape)} {digest}"
