"""Configurations in TOML: keys, values, tables and lines changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from paramtool.commands.check.config import ALLOW, KEYS, TOP
from paramtool.model.finding import RULE_IDS
from tests.fuzz.mutators import raw
from tests.fuzz.mutators.json_text import TEXTS, dump

VALUES = (
    "true", "false", "0", "-1", "1e400", "nan", "inf", "9" * 400, "0x10", "1_000", '""', "''", '"1%"', '"101%"', "[",
    '"1MB"', '"a"', '["a"]', "[]", "[[]]", '[["a", "b"]]', '[["a"]]', '{a = "float32"}', "{}", "{a = 1}", '["*"]',
    '["["]', "2027-01-31", "2027-01-31T00:00:00Z", "07:32:00", '"2027-13-41"', '"1..2"', '"2..1"', '"os.*"', '"*"',
    '"\\u001b[31m"', '"\\uD800"', '"""a\nb"""', "'''x'''", '"error"', '"off"', "[1, 'a', [true]]", "]", "=", "#",
    "[" * 500 + "]" * 500, '"' + "x" * 5000 + '"',
)  # fmt: skip
KEYS_TRIED = (
    *KEYS, *TOP, *ALLOW, "match", "tool", "a", '"\\u001b[31m"', '""', "a.b", "__proto__",
    *(one.name for one in RULE_IDS[::4]), *(one.id for one in RULE_IDS[::5]), "PT999",
)  # fmt: skip
VALID = (
    "no-nan = true", "no-nan = ['h*']", "max-unused = 0", "max-duplicate = 0", "unsafe = false", "changed = false",
    "config-ties = false", "content-only = true", "has = ['x']", "size = 1", "parameters = '..2'",
    "tied = [['head', 'w 0']]", "dtype = {'*' = 'int8'}", "files = ['*.pt', '*.nothing']", "unknown-class = true",
)  # fmt: skip
"""Pairs that a table takes, if it has none with this key."""
HEADERS = ("[severity]", "[[allow]]", "[[paths]]", "[allow]", "[a]", "[tool.paramtool]", "[[files]]", "[dtype]", "[")


def _value(lines: list[str], random: Random) -> None:
    """Another value for a key."""
    chosen = [k for k, line in enumerate(lines) if "=" in line]
    at = random.choice(chosen)
    key = lines[at].partition("=")[0]
    made = dump(random.choice(TEXTS)) if random.random() < 0.2 else random.choice(VALUES)
    lines[at] = f"{key}= {made}"


def _key(lines: list[str], random: Random) -> None:
    """Another key for a value."""
    chosen = [k for k, line in enumerate(lines) if "=" in line]
    at = random.choice(chosen)
    lines[at] = f"{random.choice(KEYS_TRIED)} ={lines[at].partition('=')[2]}"


def _pair(lines: list[str], random: Random) -> None:
    lines.insert(random.randint(0, len(lines)), f"{random.choice(KEYS_TRIED)} = {random.choice(VALUES)}")


def _valid(lines: list[str], random: Random) -> None:
    """A key that is valid in its place, in place of the one that is there."""
    made = random.choice(VALID)
    key = made.partition(" ")[0]
    kept = [line for line in lines if not line.startswith(f"{key} ")]
    lines[:] = [*kept[:1], made, *kept[1:]]


def _header(lines: list[str], random: Random) -> None:
    lines.insert(random.randint(0, len(lines)), random.choice(HEADERS))


def _lose(lines: list[str], random: Random) -> None:
    del lines[random.randrange(len(lines))]


def _double(lines: list[str], random: Random) -> None:
    lines.insert(random.randint(0, len(lines)), random.choice(lines))


def _swap(lines: list[str], random: Random) -> None:
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]


def _near(lines: list[str], random: Random) -> None:
    """A number or a word inside a value, or a quote or bracket less."""
    at = random.randrange(len(lines))
    found = re.findall(r"\d+|\w+|\W", lines[at]) or [""]
    k = random.randrange(len(found))
    number = found[k].isdigit() and random.random() < 0.7
    found[k] = str(raw.number(random, int(found[k]))) if number else random.choice(("", found[k] * 2, "x", '"', "\t"))
    lines[at] = "".join(found)


ALL: tuple[Callable[[list[str], Random], None], ...] = (
    _valid, _valid, _valid, _valid, _value, _value, _value, _key, _key, _pair, _pair, _header, _lose, _double, _swap,
    _near, _near,
)  # fmt: skip


def mutate(data: bytes, random: Random) -> bytes:
    """A few mutations; now and then in another encoding, or with the line ends of Windows."""
    lines = data.decode("utf-8").split("\n")
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        random.choice(ALL)(lines, random)
    text = ("\r\n" if random.random() < 0.1 else "\n").join(lines)
    encoding = random.choice(("utf-8", "utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"))
    return text.encode(encoding, "surrogatepass" if encoding == "utf-8" else "replace")
