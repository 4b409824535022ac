"""Case number n of a run: a seed, its mutations and the commands, all of them from the number."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from paramtool import layouts
from tests.fuzz import mutators
from tests.fuzz.seeds import Seed

Command = tuple[str, ...]

LAYOUTS = tuple(layout.name for layout in layouts.all_layouts())
WEIGHTS = {
    "torch": 6, "safetensors": 3, "record": 6, "sharded": 3, "mxnet": 4, "npz": 4, "keras": 5, "jld2": 2, "onnx": 4,
    "bson": 3, "folder": 2, "foreign": 1, "lock": 4, "policy": 4,
}  # fmt: skip
"""How often each format is chosen."""
OPTIONS = (
    "--derive-casts", "--fold-constants", "--across-roles", "--skip-unsupported", "--plain", "--strict", "--no-equal",
    "--allow-unknown", "--json", "--min-equal-bytes=1",
)  # fmt: skip
"""Of dedup."""
CHECKED = ("lock", "policy")
"""Formats of what `check` reads beside a checkpoint."""
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


def make(seeds: list[Seed], number: int, start: str, count: int | None = None) -> Case:
    """Case `number` of the run `start`; with `count`, only its first mutations."""
    random = Random(f"{start}/{number}")
    (format_,) = random.choices(list(WEIGHTS), list(WEIGHTS.values()))
    seed = random.choice([seed for seed in seeds if seed.format == format_])
    commands = tuple(plan(seed, random))
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


def plan(seed: Seed, random: Random) -> list[Command]:
    """What is run: always `inspect --json`, then one command that writes, compares or reads all bytes."""
    main = seed.main
    if seed.format in CHECKED:
        return [_check(seed, random)]
    folder = main == "."
    first: Command = ("inspect", "--json", main)
    if random.random() < 0.25:
        first = ("inspect", main, *random.choice((("--tensors",), ("--quiet",), ())))
    out = "../out/d" if folder else random.choice(("../out/x.safetensors", "../out/x.safetensors", "../out/x.pt"))
    chosen = random.randrange(34)
    if chosen >= 30:
        return [first, ("lock", main, "-o", LOCK), ("check", main, "--lock", LOCK, "--json")]
    if chosen < 18:
        options = [word for word in OPTIONS if random.random() < 0.2]
        if "--no-equal" in options or out.endswith(".pt"):  # one does not go with the others: a usage error
            options = [word for word in options if word not in ("--derive-casts", "--fold-constants", "--across-roles")]
        if random.random() < 0.1 and not folder and not out.endswith(".pt"):
            options.append("--max-shard-size=100")
            out = "../out/d"
        return [first, ("dedup", main, "-o", out, *options)]
    if chosen < 21:
        return [("inspect", "--json", "--digest", main)]
    if chosen < 24:
        return [first, ("export", main, "--all-names", "-o", out)]
    if chosen < 26:
        return [first, ("verify", main, "--against", f"../{ORIGINAL}/{main}", *random.choice(((), ("--json",))))]
    if chosen < 27 and random.random() < 0.5:
        flags = random.choice(((), ("--json",), ("--rows",), ("--exit-code",), ("--stat", "--memory=1MB")))
        pair = (main, f"../{ORIGINAL}/{main}")[:: random.choice((1, -1))]
        return [first, ("diff", *pair, *flags)]
    if chosen < 27 and not folder:
        return [first, ("guess", main, *random.choice(((), ("--json",), ("--no-values",))))]
    if seed.network and not folder:
        to = random.choice(LAYOUTS)
        keep = random.choice(((), ("--keep-names",), ("--keep-split",)))
        words = random.choice((("convert", "--to", to, *keep), ("fuse", "--layout", "cudnn"), ("unfuse",)))
        return [first, (words[0], main, "-o", out, *words[1:])]
    return [first, ("dedup", main, "-o", out)]


LOCK = "../out/x.lock"
FORMS = ("text", "github", "sarif", "junit", "markdown")


def _check(seed: Seed, random: Random) -> Command:
    """A check of a checkpoint that is as it was, by a lock or a configuration that is not; mostly as a document."""
    form = ("--json",) if random.random() < 0.8 else ("--format", random.choice(FORMS))
    if seed.format == "lock":
        return ("check", seed.main, "--lock", "my.lock", *form)
    return ("check", *random.choice(((), (), (seed.main,), ("--config", "paramtool.toml"))), *form)
