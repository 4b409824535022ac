"""TensorFlow's tables: a block changed under a CRC that is right again, so that more than the CRC is reached."""

from __future__ import annotations

from random import Random

from tests.contracts.makers_tensorflow import trailed
from tests.fuzz.mutators import raw


def mutate(data: bytes, random: Random) -> bytes:
    """The first block mutated and cut or filled to its length, so that everything behind it is still found."""
    nbytes = next(n for n in range(1, len(data)) if data[n] == 0 and trailed(data[:n]) == data[: n + 5])
    content = (raw.mutate(data[:nbytes], random) + bytes(nbytes))[:nbytes]
    return trailed(content) + data[nbytes + 5 :]
