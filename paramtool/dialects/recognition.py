"""Of which of the two dialects of transformers the names of a file are.

A rule changes a name of `transformers-4` forwards and a name of `transformers-5` backwards.  Some rules find their
words in what they made, too, such as `norm` in `language_model.norm`: a name that comes out of the rules backwards and
forwards as it was is one that the model has, whatever they would make of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from paramtool.dialects import scopes
from paramtool.dialects.renaming import NameRule, Renamed, Renaming
from paramtool.errors import plural
from paramtool.parts.families import Config

FOUR, FIVE = "transformers-4", "transformers-5"


class Told(NamedTuple):
    """Names by the dialect that has them; those that no rule touches are in neither list."""

    four: tuple[str, ...]
    five: tuple[str, ...]
    either: tuple[str, ...]
    """Names that both have, for different tensors."""

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects that the names can be of: both where nothing tells, none where they are mixed."""
        return ((FOUR,) if not self.five else ()) + ((FIVE,) if not self.four else ())

    def mixture(self) -> str:
        """Names of both dialects, in words."""
        return " and ".join(
            f"{dialect} ({names[0]!r}, {plural(len(names), 'tensor')})"
            for dialect, names in ((FOUR, self.four), (FIVE, self.five))
        )


def told(names: Iterable[str], config: Config) -> Told:
    """The names of a file by their dialects; LayoutError where the model of the config is not known."""
    rules = scopes.rules(config)
    names = list(names)
    return told_by(names, rules, config, renamings(names, rules, config))


def told_by(names: Collection[str], rules: Sequence[NameRule], config: Config, forward: Mapping[str, Renamed]) -> Told:
    """The names of a file by their dialects; `forward` is what `renamings` gives for them."""
    back = backwards(rules)
    unchanged = [name for name in names if not forward[name].changed]
    five = [name for name, one in back.of(unchanged).items() if one.way is not None or one.name != name]
    changed = [(name, _ANY_EXPERT.sub(".experts.0.", name)) for name in names if _differs(name, forward[name])]
    known = _again({one for _, one in changed}, back, lambda those: renamings(those, rules, config))
    four = [name for name, one in changed if one not in known]
    return Told(tuple(four), tuple(five), tuple(name for name, one in changed if one in known))


_ANY_EXPERT = re.compile(r"\.experts\.[0-9]+\.")
"""One expert of a list stands for all: there can be 100,000."""


def _differs(name: str, one: Renamed) -> bool:
    return one.way is not None or one.name != name


def renamings(names: Iterable[str], rules: Sequence[NameRule], config: Config) -> dict[str, Renamed]:
    """{name in a file: what becomes of it}; as the model has it, where the rules alone give another."""
    found = Renaming([*rules, *scopes.legacy()]).of(names)
    if known := scopes.names(scopes.architecture(config)):
        found = {name: one._replace(name=scopes.as_named(one.name, known)) for name, one in found.items()}
    return found


def backwards(rules: Iterable[NameRule]) -> Renaming:
    """Rules from the model to the file: without prefixes, of which it is not known whether the file had them
    (revert_weight_conversion, core_model_loading.py 1897)."""
    return Renaming([rule for rule in rules if rule.kind != "prefix"], back=True)


def _made(one: Renamed) -> list[str]:
    """The names of all tensors that a rule makes of a tensor, and of others."""
    if one.way is None:
        return [one.name]
    before, _, behind = one.name.partition(one.way.targets[0])
    return [f"{before}{target.replace('*', '0')}{behind}" for target in one.way.targets]


def _again(names: Iterable[str], back: Renaming, forward: Callable[[Iterable[str]], dict[str, Renamed]]) -> set[str]:
    """Names that a rule changes backwards, and that come back forwards."""
    sources: dict[str, list[str]] = {}
    for name, one in back.of(names).items():
        if one.way is not None:
            sources[name] = list(back.renamed(_made(one)).values())
        elif _differs(name, one):
            sources[name] = [one.name]
    there = forward([one for made in sources.values() for one in made])
    return {name for name, made in sources.items() if all(name in _made(there[one]) for one in made)}
