"""New names for old ones: a prefix that is taken off, and rules `FROM=TO`, in order.

    bert.*=*            bert.encoder.w     -> encoder.w
    *.gamma=*.weight    encoder.ln.gamma   -> encoder.ln.weight
    *=model.*           encoder.w          -> model.encoder.w
    lm_head.w=head      lm_head.w          -> head

Every rule looks at what the rules before it made of a name, so that the first two of these together turn
`bert.encoder.ln.gamma` into `encoder.ln.weight`.  A rule that meets no name is an error, since most often it is
misspelt, and so are two names that become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paramtool.errors import UsageError, listed, plural
from paramtool.lazy_dataclass import dataclass

STAR = "*"


@dataclass(frozen=True, slots=True)
class RenamingRule:
    """One rule: names of the form `old` get the form `new`.

    A `*` stands for any text, also an empty one, of which each but the last takes as little as it can; the stars of
    `new` are filled with those of `old`, in order.  Without a star a rule is about one name.
    """

    old: str
    new: str

    def __post_init__(self) -> None:
        if not self.old or not self.new:
            raise UsageError(f"rename {str(self)!r}: a name is empty", hint="FROM=TO, as in 'bert.*=*'")
        before, behind = self.old.count(STAR), self.new.count(STAR)
        if before != behind:
            raise UsageError(
                f"rename {str(self)!r}: has {before} stars before the = and {behind} behind",
                hint="each * of TO is filled with one of FROM, as in 'bert.*=*'",
            )

    def __str__(self) -> str:
        return f"{self.old}={self.new}"

    def apply(self, name: str) -> str | None:
        """The new name of a name of the old form; None for any other.

        >>> RenamingRule("*.gamma", "*.weight").apply("ln.gamma"), RenamingRule("*.gamma", "*.weight").apply("ln.beta")
        ('ln.weight', None)
        """
        texts = _texts(self.old.split(STAR), name)
        if texts is None:
            return None
        first, *rest = self.new.split(STAR)
        return first + "".join(text + piece for text, piece in zip(texts, rest, strict=True))


def _texts(pieces: Sequence[str], name: str) -> list[str] | None:
    """What stands between pieces that follow each other in a name, from its start to its end; None where they do not.

    Taking each piece at its first place finds a way where there is one, in one pass over the name.
    """
    first, *inner = pieces
    if not inner:
        return [] if name == first else None
    last = inner.pop()
    at, stop = len(first), len(name) - len(last)
    if at > stop or not (name.startswith(first) and name.endswith(last)):
        return None
    texts = []
    for piece in inner:
        found = name.find(piece, at, stop)
        if found < 0:
            return None
        texts.append(name[at:found])
        at = found + len(piece)
    return [*texts, name[at:stop]]


def parse(text: str) -> RenamingRule:
    """The rule that `FROM=TO` says; UsageError where it says none.

    >>> parse("bert.*=*")
    RenamingRule(old='bert.*', new='*')
    """
    if text.count("=") != 1:
        raise UsageError(
            f"rename {text!r}: has {text.count('=')} of the sign =; expected one",
            hint="FROM=TO, as in 'bert.*=*'; a name that itself has a = can be renamed in Python: Rule(old, new)",
        )
    return RenamingRule(*text.split("="))


def renamed(names: Iterable[str], prefix: str = "", rules: Sequence[RenamingRule] = ()) -> dict[str, str]:
    """{new name: old name}, in the order of `names`: those that begin with `prefix`, without it, then by the rules.

    UsageError where the prefix or a rule meets no name, where a name would be empty, and where two would be one.

    >>> renamed(["bert.w", "bert.ln.gamma", "head.w"], "bert.", [parse("*.gamma=*.weight")])
    {'w': 'bert.w', 'ln.weight': 'bert.ln.gamma'}
    """
    old = list(names)
    kept = [name for name in old if name.startswith(prefix)]
    _check_prefix(prefix, kept, old)
    new = [name[len(prefix) :] for name in kept]
    for rule in rules:
        made = [rule.apply(name) for name in new]
        if all(name is None for name in made):
            raise UsageError(
                f"rename {str(rule)!r}: meets none of {plural(len(new), 'name')}, "
                f"such as {', '.join(map(repr, new[:3]))}",
                hint="rules see names without the prefix, and as the rules before them made them",
            )
        new = [before if after is None else after for before, after in zip(new, made, strict=True)]
    _check_distinct(kept, new)
    return dict(zip(new, kept, strict=True))


def _check_prefix(prefix: str, kept: list[str], names: list[str]) -> None:
    if prefix and not kept:
        heads = dict.fromkeys(name[: name.find(".") + 1] for name in names if "." in name)
        raise UsageError(
            f"prefix {prefix!r}: begins none of {plural(len(names), 'name')}",
            hint=f"they begin with {', '.join(map(repr, list(heads)[:8]))}" if heads else "",
        )
    if prefix and not prefix.endswith(".") and all(name.startswith(f"{prefix}.") for name in kept):
        raise UsageError(f"prefix {prefix!r}: leaves names that begin with a dot", hint=f"--prefix {prefix}.")


def _check_distinct(old: list[str], new: list[str]) -> None:
    first: dict[str, str] = {}
    clashes = []
    for before, after in zip(old, new, strict=True):
        if before and not after:
            raise UsageError(f"{before!r}: nothing is left of its name", hint="keep some of it: --rename FROM=TO")
        if first.setdefault(after, before) != before:
            clashes.append(f"{first[after]!r} and {before!r} would both be {after!r}")
    if clashes:
        that = "that of another" if len(clashes) == 1 else "those of others"
        raise UsageError(listed(f"{plural(len(clashes), 'name')} would be {that}:", clashes))
