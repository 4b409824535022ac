"""Renaming tensors: strip a prefix, then apply rules `FROM=TO` in order.

    bert.*=*            bert.encoder.w     -> encoder.w
    *.gamma=*.weight    encoder.ln.gamma   -> encoder.ln.weight
    *=model.*           encoder.w          -> model.encoder.w
    lm_head.w=head      lm_head.w          -> head

Each rule sees the names that the rules before it produced, so the first two of these together turn
`bert.encoder.ln.gamma` into `encoder.ln.weight`.  A rule that matches no name is an error, since it is most often
misspelt.  It is also an error if two names become the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paramtool.errors import UsageError, listed, plural
from paramtool.lazy_dataclass import frozen

STAR = "*"


@frozen
class RenamingRule:
    """One rule: names that match `old` become `new`.

    A `*` matches any string, including an empty one; each but the last matches as little as possible.  The stars of
    `new` are replaced by what the stars of `old` matched, in order.  Without a star a rule renames one name.
    """

    old: str
    new: str

    def __post_init__(self) -> None:
        if not self.old or not self.new:
            raise UsageError(f"rename {str(self)!r}: a name is empty", hint="write FROM=TO, as in 'bert.*=*'")
        before, behind = self.old.count(STAR), self.new.count(STAR)
        if before != behind:
            raise UsageError(
                f"rename {str(self)!r}: {before} stars before the = and {behind} after it; expected the same number",
                hint="each * of TO is replaced by what a * of FROM matches, as in 'bert.*=*'",
            )

    def __str__(self) -> str:
        return f"{self.old}={self.new}"

    def apply(self, name: str) -> str | None:
        """The new name of a name that matches; None for any other.

        >>> RenamingRule("*.gamma", "*.weight").apply("ln.gamma"), RenamingRule("*.gamma", "*.weight").apply("ln.beta")
        ('ln.weight', None)
        """
        strings = _strings(self.old.split(STAR), name)
        if strings is None:
            return None
        first, *rest = self.new.split(STAR)
        return first + "".join(text + piece for text, piece in zip(strings, rest, strict=True))


def _strings(pieces: Sequence[str], name: str) -> list[str] | None:
    """The strings between consecutive pieces of a name; None where the name does not consist of these pieces in order.

    Taking each piece at its first place finds a match wherever there is one, in one pass over the name.
    """
    first, *inner = pieces
    if not inner:
        return [] if name == first else None
    last = inner.pop()
    at, stop = len(first), len(name) - len(last)
    if at > stop or not (name.startswith(first) and name.endswith(last)):
        return None
    strings = []
    for piece in inner:
        found = name.find(piece, at, stop)
        if found < 0:
            return None
        strings.append(name[at:found])
        at = found + len(piece)
    return [*strings, name[at:stop]]


def parse(text: str) -> RenamingRule:
    """Parse a rule `FROM=TO`; UsageError if it is not one.

    >>> parse("bert.*=*")
    RenamingRule(old='bert.*', new='*')
    """
    if text.count("=") != 1:
        raise UsageError(
            f"rename {text!r}: has {text.count('=')} equals signs; expected one",
            hint="write FROM=TO, as in 'bert.*=*'; to rename a name that has a = in it, use "
            "RenamingRule(old, new) in Python",
        )
    return RenamingRule(*text.split("="))


def renamed(names: Iterable[str], prefix: str = "", rules: Sequence[RenamingRule] = ()) -> dict[str, str]:
    """{new name: old name}, in the order of `names`: names under `prefix`, with it stripped and the rules applied.

    UsageError if the prefix or a rule matches no name, if a name would be empty, or if two names would be the same.

    >>> renamed(["bert.w", "bert.ln.gamma", "head.w"], "bert.", [parse("*.gamma=*.weight")])
    {'w': 'bert.w', 'ln.weight': 'bert.ln.gamma'}
    """
    old = list(names)
    kept = [name for name in old if name.startswith(prefix)]
    if prefix and not kept:
        heads = dict.fromkeys(name[: name.find(".") + 1] for name in old if "." in name)
        raise UsageError(
            f"prefix {prefix!r}: matches none of {plural(len(old), 'name')}",
            hint=f"the names begin with {', '.join(map(repr, list(heads)[:8]))}" if heads else "",
        )
    if prefix and not prefix.endswith(".") and all(name.startswith(f"{prefix}.") for name in kept):
        raise UsageError(f"prefix {prefix!r}: leaves names that begin with a dot", hint=f"use --prefix {prefix}.")
    new = [name[len(prefix) :] for name in kept]
    for rule in rules:
        made = [rule.apply(name) for name in new]
        if all(name is None for name in made):
            raise UsageError(
                f"rename {str(rule)!r}: matches none of {plural(len(new), 'name')}, "
                f"such as {', '.join(map(repr, new[:3]))}",
                hint="a rule sees names without the prefix, after the rules before it",
            )
        new = [before if after is None else after for before, after in zip(new, made, strict=True)]
    first: dict[str, str] = {}
    clashes = []
    for before, after in zip(kept, new, strict=True):
        if before and not after:
            raise UsageError(f"{before!r}: its new name is empty", hint="keep a part of the name: --rename FROM=TO")
        if first.setdefault(after, before) != before:
            clashes.append(f"{first[after]!r} and {before!r} would both be {after!r}")
    if clashes:
        raise UsageError(listed(f"{plural(len(clashes), 'name')} would clash with another:", clashes))
    return dict(zip(new, kept, strict=True))
