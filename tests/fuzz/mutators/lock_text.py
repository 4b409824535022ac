"""Lock files: lines and words changed, and often sealed again, so that more than the digests is reached."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random

from paramtool.errors import ParamtoolError
from paramtool.lockfile import digests, words
from paramtool.lockfile.lock import LockedTensor
from tests.fuzz.mutators import raw
from tests.fuzz.mutators.json_text import TEXTS

HEX = "0123456789abcdef"
WORDS = (
    "-", "no-data", "=", '""', '"', '"\\ud800"', "b3:", "b3:" + "0" * 64, "b3-headers:" + "0" * 64, "1e3", "0x1", "-1",
    "sha256:" + "f" * 64, "span:" + "0" * 64, "[]", "[0]", "[1,]", "[-1]", "[" + "9" * 30 + "]", "[" + "1," * 70 + "1]",
    "9" * 30, "storage", "declared", "config", "untied-by-config", "float32", "float4_e2m1fn", "compound", "\x1b[31m",
    "../m.pt", "/etc/passwd", "::set-env", "a" * 3000,
)  # fmt: skip
"""Words that programs get wrong."""
LINES = (
    "", "#", "# a comment", "model model.pt", "lines", "file x 1", "tensor x", "tied a", "tied = storage", " tensor a",
    "view a 0 [1]", "object a b", "dialect x", "content b3:" + "0" * 64, "unknown word", "tensor  a",
    "\ttied a = b storage",
)  # fmt: skip


def parts(line: str) -> list[str]:
    """The words of a line, also of one that is damaged."""
    return re.findall(r'"(?:[^"\\]|\\.)*"|[^\s"]+|\s+|"', line)


def _word(lines: list[str], random: Random) -> None:
    """Another word, or one near it, or one of another line."""
    at = random.randrange(len(lines))
    found = parts(lines[at]) or [""]
    k = random.randrange(len(found))
    was = found[k]
    choice = random.randrange(5)
    if choice == 0 and re.search("[0-9a-f]", was):
        places = [place for place, letter in enumerate(was) if letter in HEX]
        place = random.choice(places)
        found[k] = was[:place] + random.choice(HEX) + was[place + 1 :]
    elif choice == 1 and was.isdigit():
        found[k] = str(raw.number(random, int(was)))
    elif choice == 2:
        others = parts(random.choice(lines)) or [was]
        found[k] = random.choice(others)
    elif choice == 3:
        found[k] = words.quoted(random.choice(TEXTS))
    else:
        found[k] = random.choice(WORDS)
    lines[at] = "".join(found)


def _digits(lines: list[str], random: Random) -> None:
    """One digit of the digest of a tensor, an object or a file: what a changed number would change."""
    chosen = [k for k, line in enumerate(lines) if line.startswith(("tensor", "object", "file")) and ":" in line]
    at = random.choice(chosen)
    place = lines[at].index(":", lines[at].rindex(" ") if lines[at].startswith("tensor") else 0) + 1
    place += random.randrange(8)
    was = lines[at][place]
    lines[at] = lines[at][:place] + random.choice(HEX.replace(was, "")) + lines[at][place + 1 :]


def _lose(lines: list[str], random: Random) -> None:
    del lines[random.randrange(len(lines))]


def _double(lines: list[str], random: Random) -> None:
    lines.insert(random.randrange(len(lines)), random.choice(lines))


def _swap(lines: list[str], random: Random) -> None:
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


def _insert(lines: list[str], random: Random) -> None:
    lines.insert(random.randrange(len(lines) + 1), random.choice(LINES))


def _rename(lines: list[str], random: Random) -> None:
    """A name, everywhere."""
    names = sorted({word for line in lines if line.startswith("tensor ") for word in parts(line)[2:3]})
    was = random.choice(names)
    new = words.quoted(random.choice((was + "x", random.choice(names), random.choice(TEXTS))))
    lines[:] = [" ".join(new if word == was else word for word in line.split(" ")) for line in lines]


ALL: tuple[Callable[[list[str], Random], None], ...] = (
    _word, _word, _word, _digits, _digits, _digits, _lose, _lose, _double, _swap, _insert, _rename,
)  # fmt: skip


def sealed(lines: list[str]) -> list[str]:
    """The lines sorted, with the digests that these lines have: what whoever edits a lock with care would write."""
    order = ("model", "file", "content", "unnamed", "dialect", "tied", "view", "object", "tensor")
    kept = [line for line in lines if line and not line.startswith(("#", "lines", "content", "unnamed"))]
    kept = sorted(dict.fromkeys(kept), key=lambda line: (_place(line, order), _first_name(line)))
    tensors = list(_tensors(kept))
    whole = [f"content {digests.content(tensors)}", f"unnamed {digests.unnamed(tensors)}"]
    at = next((k for k, line in enumerate(kept) if _place(line, order) > order.index("content")), len(kept))
    kept[at:at] = whole
    return [lines[0], "", *kept, f"lines b3:{digests.blake3_of(chr(10).join(kept))}"]


def _place(line: str, order: tuple[str, ...]) -> int:
    word = line.partition(" ")[0]
    return order.index(word) if word in order else len(order)


def _first_name(line: str) -> str:
    found = parts(line)
    return words.unquoted(found[2]) if len(found) > 2 else ""


def _tensors(lines: list[str]) -> Iterator[LockedTensor]:
    for line in lines:
        if line.startswith("tensor "):
            _, name, dtype, shape, digest = words.split(line)
            yield LockedTensor(words.unquoted(name), dtype, words.shape_of(shape), digest.removeprefix("b3:"))


def mutate(data: bytes, random: Random) -> bytes:
    """A few mutations of a lock of one model; then often sealed, and with the line ends of Windows now and then."""
    lines = data.decode("ascii").split("\n")[:-1]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(ALL)(lines, random)
    if random.random() < 0.6:
        with suppress(ParamtoolError, ValueError):  # nobody can seal what has tensors that cannot be read
            lines = sealed(lines)
    ends = "\r\n" if random.random() < 0.05 else "\n"
    text = ends.join(lines) + (ends if random.random() < 0.97 else "")
    return text.encode("ascii" if text.isascii() else "utf-8", "surrogatepass")


def meaning(data: bytes) -> list[str]:
    """The lines that say something, for who asks whether a mutation changed any.

    Not the path of the only model, and not the name of its only file: both may be moved.
    """
    lines = data.decode("ascii", "replace").replace("\r\n", "\n").split("\n")
    if len(files := [k for k, line in enumerate(lines) if line.startswith("file ")]) == 1:
        word, _, *rest = words.split(lines[files[0]])
        lines[files[0]] = " ".join((word, *rest))
    said = [line for line in lines if line and not line.startswith(("#", "model ", "lines ", "view "))]
    said = [re.sub(r"^(object .* b3:[0-9a-f]{64}) .*", r"\1", line) for line in said]  # words for people
    return [re.sub(r" declared$", " storage", line) for line in said]
