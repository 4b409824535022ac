"""Facts: sizes of attention, gated MLPs, experts and state spaces that the shapes of their tensors do not give.

    config.json  {"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
    facts        heads=32  kv_heads=8  head_dim=128  value_dim=128  group=4  rotary=128

A fused q, k and v of 6144 rows may be 32, 8 and 8 heads of 128, or 16, 16 and 16 of 128.  Facts say which.  Each has
the place that said it.  They come from a file's record, from a config or from the user; what nobody said is absent,
and nothing is guessed from shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paramtool.errors import LayoutError, UsageError
from paramtool.lazy_dataclass import frozen
from paramtool.parts.sizes import MEANINGS, VOCABULARY

KINDS: Mapping[str, Sequence[str]] = {kind: words.split() for kind, words in VOCABULARY["kinds"].items()}
"""{kind of a group of parts: the facts that `--spec` may give for it}."""
MAX_SIZE = 1 << 24
"""The largest size; larger numbers are typing errors."""


@frozen
class Facts:
    """Sizes by their words, and who said each."""

    sizes: Mapping[str, int]
    """{one of `MEANINGS`: a number of at least 1}."""
    said: Mapping[str, str]
    """{word: its source, as in an error: `config.json: num_key_value_heads`}."""

    def __bool__(self) -> bool:
        return bool(self.sizes)

    def __str__(self) -> str:
        return " ".join(f"{word}={number}" for word, number in self.sizes.items())


NONE = Facts({}, {})
"""No facts."""


def facts(sizes: Mapping[str, int], source: str) -> Facts:
    """Sizes that all come from one source, with what follows from them; LayoutError if they contradict each other.

    >>> str(facts({"heads": 32, "kv_heads": 8, "head_dim": 128}, "--spec"))
    'heads=32 kv_heads=8 head_dim=128 value_dim=128 group=4'
    """
    return derived(Facts(dict(sizes), dict.fromkeys(sizes, source)))


def derived(known: Facts) -> Facts:
    """The facts with those that follow: value_dim, group, and heads or kv_heads of a group; checked.

    value_dim is head_dim unless it is said: two dimensions differ in a few models, whose configs say it.
    """
    sizes, said = dict(known.sizes), dict(known.said)
    for word, words, size in _following(sizes):
        if word not in sizes:
            sizes[word] = size
            said[word] = " and ".join(dict.fromkeys(said[one] for one in words))
    found = Facts(sizes, said)
    check(found)
    return found


def _following(sizes: Mapping[str, int]) -> Iterable[tuple[str, tuple[str, ...], int]]:
    """(a word, the words that it follows from, its size), where it is a whole number."""
    heads, kv_heads, group = (sizes.get(word, 0) for word in GROUPED)
    if "head_dim" in sizes:
        yield "value_dim", ("head_dim",), sizes["head_dim"]
    if heads and kv_heads and heads % kv_heads == 0:
        yield "group", ("heads", "kv_heads"), heads // kv_heads
    if heads and group and heads % group == 0:
        yield "kv_heads", ("heads", "group"), heads // group
    if kv_heads and group:
        yield "heads", ("kv_heads", "group"), kv_heads * group


MULTIPLES = (("heads", "kv_heads"), ("linear_value_heads", "linear_key_heads"), ("state_heads", "groups"))
"""Pairs of sizes of which the first is a multiple of the second."""
GROUPED = ("heads", "kv_heads", "group")
"""Sizes of which the first is the product of the others."""


def check(known: Facts) -> None:
    """LayoutError if sizes are out of range, or contradict each other; it names the sizes and who said them."""
    for word, size in known.sizes.items():
        if not 1 <= size <= MAX_SIZE:
            raise LayoutError(f"{_told(known, word)}: expected a number from 1 to {MAX_SIZE}")
    sizes = known.sizes
    broken: list[tuple[Sequence[str], str]] = [
        ((many, one), f"{many} must be a multiple of {one}")
        for many, one in MULTIPLES
        if many in sizes and one in sizes and sizes[many] % sizes[one]
    ]
    heads, kv_heads, group = (sizes.get(word, 0) for word in GROUPED)
    if heads and kv_heads and group and heads != kv_heads * group:
        broken.append((GROUPED, "heads must be kv_heads times group"))
    for words, law in broken:
        raise LayoutError(f"{', '.join(_told(known, word) for word in words)}: {law}", hint=HINT)


HINT = "--spec gives the true sizes, as in --spec 'qkv heads=32 kv_heads=8 head_dim=128'"


def _told(known: Facts, word: str) -> str:
    return f"{word}={known.sizes[word]} ({known.said[word]})"


def merged(record: Facts = NONE, config: Facts = NONE, spec: Facts = NONE) -> Facts:
    """The facts of a file's record, of a config and of the user, each word from the first that says it.

    LayoutError names both sources where two say different sizes.

    >>> str(merged(config=facts({"heads": 4, "head_dim": 8}, "config.json"), spec=facts({"kv_heads": 2}, "--spec")))
    'heads=4 head_dim=8 value_dim=8 kv_heads=2 group=2'
    """
    sizes: dict[str, int] = {}
    said: dict[str, str] = {}
    for source in (record, config, spec):
        for word, size in source.sizes.items():
            if sizes.setdefault(word, size) != size:
                raise LayoutError(
                    f"{word} is {sizes[word]} by {said[word]}, and {size} by {source.said[word]}",
                    hint="correct the one that is wrong; nothing was assumed",
                )
            said.setdefault(word, source.said[word])
    return derived(Facts(sizes, said))


def of_spec(text: str, kind: str = "") -> Facts:
    """The facts that `--spec` gives about a kind of group, or about any; UsageError if it is about another kind."""
    if not text:
        return NONE
    named, found = from_spec(text)
    if kind and named != kind:
        raise UsageError(f"--spec {text!r} is about {named}; the layout holds {kind}", hint=f'--spec "{kind} ..."')
    return found


def from_spec(text: str) -> tuple[str, Facts]:
    """The kind of a group of parts and the facts that `--spec` gives; UsageError names a wrong word.

    >>> kind, found = from_spec("qkv heads=32 kv_heads=8")
    >>> kind, str(found), found.said["heads"]
    ('qkv', 'heads=32 kv_heads=8 group=4', '--spec')
    """
    kind, sizes = "", dict[str, int]()
    for written in text.split():
        word, equals, value = written.partition("=")
        word = word.lower().lstrip("-").replace("-", "_") if equals else word.lower().lstrip("-").replace("_", "-")
        if not equals:
            if kind:
                what = f"{written!r} is a second kind or a word without a number, after {kind}"
                raise UsageError(what, hint=_near("", kind))
            if word not in KINDS:
                what = f"{written!r} is not a kind of group of parts"
                raise UsageError(what, hint=f"write one of {', '.join(KINDS)} first")
            kind = word
            continue
        name = SYNONYMS.get(word, word)
        if name not in MEANINGS:
            raise UsageError(f"unknown word {written!r} in a spec", hint=_near(word, kind))
        if not value.isascii() or not value.isdecimal() or not 1 <= int(value[:9]) <= MAX_SIZE or len(value) > 8:
            raise UsageError(f"{written!r}: expected a whole number from 1 to {MAX_SIZE}")
        if sizes.setdefault(name, int(value)) != int(value):
            raise UsageError(f"{name} is given twice, with different values, in {text!r}")
    if not kind:
        raise UsageError(f"{text!r} names no kind", hint=f"write one of {', '.join(KINDS)} first")
    for name in sizes:
        if name not in KINDS[kind]:
            raise UsageError(f"{name} says nothing of {kind}", hint=_near("", kind))
    return kind, facts(sizes, "--spec")


KEYS: Mapping[str, Sequence[str]] = {word: keys.split() for word, keys in VOCABULARY["keys"].items()}
"""{fact: the keys whose meaning is the same in every config that has them}"""
SYNONYMS = {
    key: word
    for word, keys in (*KEYS.items(), *((word, keys.split()) for word, keys in VOCABULARY["also"].items()))
    for key in keys
    if key != word
}
"""{a word of a config: the fact that it is, whatever the model type}."""


def _near(word: str, kind: str) -> str:
    from difflib import get_close_matches

    words = KINDS.get(kind, tuple(MEANINGS))
    found = [SYNONYMS.get(one, one) for one in get_close_matches(word, [*words, *SYNONYMS], 3, 0.75)]
    if found := [one for one in dict.fromkeys(found) if one in words]:
        return f"did you mean {' or '.join(f'{one}=...' for one in found)}?"
    return f"the words{f' of {kind}' if kind else ''} are {', '.join(words)}"
