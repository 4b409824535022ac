"""Case number n of a run: a seed, its mutations and the commands, all of them from the number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from paramtool import layouts
from tests.fuzz import mutators
from tests.fuzz.seeds import Seed
from tests.written import WRITERS

Command = tuple[str, ...]

LAYOUTS = tuple(layout.name for layout in layouts.all_layouts())
WEIGHTS = {
    "torch": 6, "safetensors": 3, "record": 6, "sharded": 3, "mxnet": 4, "npz": 4, "keras": 5, "jld2": 2, "onnx": 4,
    "bson": 3, "dcp": 4, "tensorflow": 4, "pickle": 4, "msgpack": 4, "deepspeed": 3, "ranks": 2, "folder": 2,
    "foreign": 2, "lock": 4, "policy": 4, "layouts": 2,
}  # fmt: skip
"""How often each format is chosen, of as many cases as these are together."""
PLANS = {
    "dedup": 16, "convert": 8, "inspect": 3, "export": 3, "verify": 2, "lock": 2, "diff": 2, "fuse": 1, "unfuse": 1,
    "guess": 1, "report": 2, "variants": 1,
}  # fmt: skip
"""How often each command follows `inspect`; `check` and `layouts` come with the formats that they alone read."""
OPTIONS = (
    "--derive-casts", "--fold-constants", "--across-roles", "--skip-unsupported", "--plain", "--strict", "--no-equal",
    "--allow-unknown", "--json", "--min-equal-bytes=1",
)  # fmt: skip
"""Of dedup."""
CHECKED = ("lock", "policy", "layouts")
"""Formats of what a command reads beside a checkpoint, or without one."""
ORIGINAL = "original"
"""The folder of the seed's own files, for commands that compare."""


@dataclass(frozen=True)
class Case:
    """Files, and what is run on them."""

    format: str
    name: str
    main: str
    files: dict[str, bytes]
    commands: tuple[Command, ...]
    original: dict[str, bytes]
    """The seed's own files, where a command compares with them."""


def drawn(weights: Mapping[str, int], start: str, number: int) -> tuple[str, int]:
    """The row of a case, and how many cases before it had that row.

    Rows are dealt, not diced: of as many cases as all weights together, each row has as many as its weight.

    >>> sorted(drawn({"a": 1, "b": 2}, "0", number) for number in range(3))
    [('a', 0), ('b', 0), ('b', 1)]
    """
    turn, at = divmod(number, sum(weights.values()))
    deck = [name for name, weight in weights.items() for _ in range(weight)]
    Random(f"{start}/{turn}").shuffle(deck)
    return deck[at], turn * weights[deck[at]] + deck[:at].count(deck[at])


def seed_of(seeds: list[Seed], start: str, number: int) -> Seed:
    """The seed of a case: all of a row have been drawn before one is drawn again."""
    format_, before = drawn(WEIGHTS, start, number)
    found = [seed for seed in seeds if seed.format == format_]
    turn, at = divmod(before, len(found))
    return Random(f"{start}/{format_}/{turn}").sample(found, len(found))[at]


def make(seeds: list[Seed], number: int, start: str, count: int | None = None) -> Case:
    """Case `number` of the run `start`; with `count`, only its first mutations."""
    random = Random(f"{start}/{number}")
    seed = seed_of(seeds, start, number)
    format_ = seed.format
    commands = tuple(plan(seed, *drawn(PLANS, f"{start}/plan", number), random))
    steps = random.choice((1, 1, 1, 1, 2, 2, 4))
    chances = [random.random() for _ in range(steps)]
    files = dict(seed.files)
    for chance in chances if count is None else chances[:count]:
        files = mutated(seed, files, Random(f"{start}/{number}/{chance}"))
    needs_original = format_ in CHECKED or any(ORIGINAL in word for command in commands for word in command)
    original = seed.files if needs_original else {}
    return Case(format_, f"{seed.name}, case {number}", seed.main, files, commands, original)


def mutated(seed: Seed, files: dict[str, bytes], random: Random) -> dict[str, bytes]:
    """One file of a seed mutated; of several, now and then two change places, or one goes."""
    names = [name for name in seed.kinds if name in files]
    if len(files) > 1 and random.random() < 0.08:
        one, other = random.choice(sorted(files)), random.choice(sorted(files))
        if random.random() < 0.5 or one == seed.main:
            return files | {one: files[other]}
        return {name: data for name, data in files.items() if name != one}
    if not names:
        return files
    name = seed.main if seed.main in names and random.random() < 0.6 else random.choice(names)
    return files | {name: mutators.mutate(seed.kinds[name], files[name], random)}


FOLDER, PAGE = "../out/d", "../out/x.html"
OUTPUTS = tuple([f"../out/x{suffix}" for suffix in writer.suffixes] for writer in WRITERS if writer.suffixes)
"""A file of each writer under each of its suffixes; DCP writes a folder, and so does a folder of shards."""


def plan(seed: Seed, word: str, before: int, random: Random) -> list[Command]:
    """What is run: `inspect --json`, then a command that writes, compares or reads all bytes; `before` were like it."""
    main = seed.main
    if seed.format == "layouts":
        return [("layouts", "--layout-file", main, *random.choice(((), ("--json",), ("my.lstm", "--verbose"))))]
    if seed.format in CHECKED:
        return [_check(seed, random)]
    folder = main == "."
    first: Command = ("inspect", "--json", main)
    if random.random() < 0.25:
        first = ("inspect", main, *random.choice((("--tensors",), ("--quiet",), ())))
    out = FOLDER if folder else random.choice(("../out/x.safetensors", "../out/x.safetensors", "../out/x.pt"))
    against = f"../{ORIGINAL}/{main}"
    match word:
        case "inspect":
            return [("inspect", "--json", "--digest", main)]
        case "lock":
            return [first, ("lock", main, "-o", LOCK), ("check", main, "--lock", LOCK, "--json")]
        case "export":
            return [first, ("export", main, "--all-names", "-o", out)]
        case "verify":
            return [first, ("verify", main, "--against", against, *random.choice(((), ("--json",))))]
        case "diff":
            flags = random.choice(((), ("--json",), ("--rows",), ("--exit-code",), ("--stat", "--memory=1MB")))
            return [first, ("diff", *(main, against)[:: random.choice((1, -1))], *flags)]
        case "guess" if not folder:
            return [first, ("guess", main, *random.choice(((), ("--json",), ("--no-values",))))]
        case "variants" if not folder:
            return [first, ("variants", main, "--against", against, *random.choice(((), ("--json",))))]
        case "report":
            return [first, ("report", main, *random.choice(((), (against,), ("--equal",))), "-o", PAGE)]
        case "fuse" | "unfuse" if seed.network and not folder:
            return [first, (word, main, "-o", out, *(("--layout", "cudnn") if word == "fuse" else ()))]
        case "convert":
            return [first, ("convert", main, *_converted(seed, before, random))]
    options = [one for one in OPTIONS if random.random() < 0.2]
    if "--no-equal" in options or out.endswith(".pt"):  # one does not go with the others: a usage error
        options = [one for one in options if one not in ("--derive-casts", "--fold-constants", "--across-roles")]
    if random.random() < 0.1 and not folder and not out.endswith(".pt"):
        options.append("--max-shard-size=100")
        out = FOLDER
    return [first, ("dedup", main, "-o", out, *options)]


def _converted(seed: Seed, before: int, random: Random) -> list[str]:
    """The output of a conversion in any format that is written; of a network, now and then in another layout."""
    is_folder = seed.main == "."
    if is_folder or random.random() < 0.15:
        return ["-o", FOLDER, *(("--format", "dcp") if not is_folder or random.random() < 0.5 else ())]
    if seed.network and random.random() < 0.5:
        keep = random.choice(((), ("--keep-names",), ("--keep-split",)))
        return ["-o", "../out/x.safetensors", "--to", random.choice(LAYOUTS), *keep]
    return ["-o", random.choice(OUTPUTS[before % len(OUTPUTS)])]


LOCK = "../out/x.lock"
FORMS = ("text", "github", "sarif", "junit", "markdown")


def _check(seed: Seed, random: Random) -> Command:
    """A check of a checkpoint that is as it was, by a lock or a configuration that is not; mostly as a document."""
    form = ("--json",) if random.random() < 0.8 else ("--format", random.choice(FORMS))
    if seed.format == "lock":
        return ("check", seed.main, "--lock", "my.lock", *form)
    return ("check", *random.choice(((), (), (seed.main,), ("--config", "paramtool.toml"))), *form)
