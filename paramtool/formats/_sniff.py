"""Recognising files by their first bytes."""

from __future__ import annotations

STACKED_MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""LONG1 0x1950a86a20f9469cfc6c STOP: torch's first stacked pickle, behind its two bytes of protocol."""
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06")
TAR_MAGIC = b"ustar"
MAX_SAFETENSORS_HEADER = 100_000_000
INDEX_SUFFIX = ".index.json"
INDEX_NAME = "model.safetensors.index.json"
"""What transformers, accelerate and huggingface_hub look for, and what is written."""


def is_zip(head: bytes) -> bool:
    """Whether a file that begins so is a zip archive; an empty one counts."""
    return head.startswith(ZIP_STARTS)


def is_stacked(head: bytes) -> bool:
    """Whether a file begins with torch's pickled magic number, in any protocol that has binary numbers."""
    return head[:1] == b"\x80" and STACKED_MAGIC in head[:24]


def is_torch(head: bytes, nbytes: int) -> bool:
    """Whether a file can be one of torch's forms; a zip may turn out to be something else."""
    return is_zip(head) or is_stacked(head) or head[257:262] == TAR_MAGIC


def is_safetensors(head: bytes, nbytes: int) -> bool:
    """Whether a file can be safetensors: eight bytes that are no text, then a JSON object."""
    return head[8:9] == b"{" and not (head[:8].isascii() and head[:8].decode().isprintable())


def is_index(head: bytes, path: str) -> bool:
    """Whether a file is the index of a sharded checkpoint: JSON that says so, or is called so."""
    return head.lstrip()[:1] == b"{" and (b'"weight_map"' in head or path.endswith(INDEX_SUFFIX))
