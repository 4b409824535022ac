"""Renaming and back gives the same names, and two names never become one unseen."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paramtool.errors import UsageError
from paramtool.passes.renaming import RenamingRule, renamed

TEXTS = st.text("ab.", max_size=4)
NAMES = st.lists(st.text("ab.", min_size=1, max_size=8), min_size=1, max_size=8, unique=True)


@st.composite
def rules(draw: st.DrawFn, stars: int = 1) -> RenamingRule:
    """A rule with up to so many stars."""
    count = draw(st.integers(0, stars))
    old, new = ("*".join(draw(st.lists(TEXTS, min_size=count + 1, max_size=count + 1))) for _ in range(2))
    assume(old and new)
    return RenamingRule(old, new)


def brute(rule: RenamingRule, name: str) -> str | None:
    """What a rule makes of a name, by trying every way to cut it: the first stars as short as they can be."""

    def fill(olds: list[str], news: list[str], rest: str) -> str | None:
        if len(olds) == 1:
            return news[0] if rest == olds[0] else None
        if not rest.startswith(olds[0]):
            return None
        rest = rest[len(olds[0]) :]
        for k in range(len(rest) + 1):
            tail = fill(olds[1:], news[1:], rest[k:])
            if tail is not None:
                return news[0] + rest[:k] + tail
        return None

    return fill(rule.old.split("*"), rule.new.split("*"), name)


@given(rules(stars=3), st.text("ab.", max_size=10))
def test_a_rule_does_what_trying_every_cut_does(rule: RenamingRule, name: str) -> None:
    """One pass over the name finds what all ways to cut it find."""
    assert rule.apply(name) == brute(rule, name)


@given(rules(), st.lists(TEXTS, min_size=1, max_size=5, unique=True), NAMES)
def test_renaming_and_back(rule: RenamingRule, fillings: list[str], others: list[str]) -> None:
    """With one star or none, the rule turned round undoes it, where it does not also meet names that were there."""
    back = RenamingRule(rule.new, rule.old)
    met = dict.fromkeys(name for text in fillings if (name := rule.old.replace("*", text)) and brute(rule, name))
    apart = [name for name in others if rule.apply(name) is None and back.apply(name) is None]
    assume(met)
    names = [*apart[:2], *met, *apart[2:]]
    once = renamed(names, "", [rule])
    assert list(once.values()) == names and len(once) == len(names)
    assert list(renamed(once, "", [back])) == names


@given(NAMES, st.lists(rules(2), max_size=3), TEXTS)
def test_collisions_are_always_found(names: list[str], steps: list[RenamingRule], prefix: str) -> None:
    """Either every name that has the prefix gets a name of its own, or it is an error."""
    kept = [name for name in names if name.startswith(prefix)]
    made = [name[len(prefix) :] for name in kept]
    idle = False
    for rule in steps:
        after = [brute(rule, name) for name in made]
        idle |= all(name is None for name in after)
        made = [old if new is None else new for old, new in zip(made, after, strict=True)]
    fine = bool(kept) and not idle and all(made) and len(set(made)) == len(made)
    if fine:
        dotted = prefix and not prefix.endswith(".") and all(name.startswith(f"{prefix}.") for name in kept)
        assume(not dotted)
        assert renamed(names, prefix, steps) == dict(zip(made, kept, strict=True))
    else:
        with pytest.raises(UsageError):
            renamed(names, prefix, steps)
