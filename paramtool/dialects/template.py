"""Templates of names: `model.layers.{layer}.self_attn.q_proj.{kind}`.

{layer} {expert} {n}   a number         {kind}   weight or bias
{path}                 a path, not empty    {rest}   anything
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, NamedTuple

from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shapes

_FIELD = re.compile(r"\{(\w+)\}")
_KINDS = {"kind": "weight|bias", "path": ".+", "rest": ".*"}
_STEMS = {"kind": "(?:weight|bias)", "path": ".*", "rest": ".*"}
"""The same for names without digits, in which a number is nothing and a path can be empty."""
_DIGITS = b"0123456789"
_UTF8 = ("utf-8", "surrogatepass")


class Template:
    """Names with fields, recognised and written.

    >>> q = Template("layers.{layer}.q_proj.{kind}")
    >>> q.match("layers.3.q_proj.bias")
    {'layer': '3', 'kind': 'bias'}
    >>> q.filled({"layer": "4", "kind": "weight"})
    'layers.4.q_proj.weight'
    """

    def __init__(self, text: str) -> None:
        """`text` has fields in braces; two of one name have the same value."""
        self.text = text
        self.fields = tuple(dict.fromkeys(_FIELD.findall(text)))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        found, at, seen = "", 0, set()
        for one in _FIELD.finditer(self.text):
            name = one[1]
            found += re.escape(self.text[at : one.start()])
            found += f"(?P={name})" if name in seen else f"(?P<{name}>{_KINDS.get(name, '[0-9]+')})"
            seen.add(name)
            at = one.end()
        return re.compile(found + re.escape(self.text[at:]))

    def match(self, name: str) -> dict[str, str] | None:
        """The values of the fields if the template has this name, else None."""
        found = self._pattern.fullmatch(name)
        return found and found.groupdict()

    @cached_property
    def _stems(self) -> re.Pattern[str]:
        """What names without their digits look like: a number is nothing, a path can have been digits alone."""
        found = ""
        for k, text in enumerate(_FIELD.split(self.text)):  # literals, and fields between them
            found += _STEMS.get(text, "") if k % 2 else re.escape(_stem(text).decode(*_UTF8))
        return re.compile(found)

    def may_match(self, stem: bytes) -> bool:
        """Whether the template can have a name that is `stem` without its digits."""
        return self._stems.fullmatch(stem.decode(*_UTF8)) is not None

    def filled(self, fields: Mapping[str, str]) -> str:
        """The name with these values."""
        return _FIELD.sub(lambda found: fields[found[1]], self.text)

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


def _stem(name: str) -> bytes:
    """A name without its digits; as bytes this takes a fifth of the time."""
    return name.encode(*_UTF8).translate(None, _DIGITS)


class Templates:
    """Templates that are tried in their order.

    Most names of a model are the same without their digits: which templates can have them is asked once for all.
    """

    def __init__(self, templates: Iterable[Template]) -> None:
        self._all = tuple(templates)
        self._near: dict[bytes, tuple[tuple[int, Template], ...]] = {}

    def matches(self, name: str) -> Iterator[tuple[int, dict[str, str]]]:
        """(number of a template, the values of its fields), of all templates that have this name."""
        stem = _stem(name)
        near = self._near.get(stem)
        if near is None:
            near = tuple((k, one) for k, one in enumerate(self._all) if one.may_match(stem))
            self._near[stem] = near
        for k, one in near:
            if (fields := one.match(name)) is not None:
                yield k, fields

    def match_any(self, names: Iterable[str]) -> bool:
        """Whether a template has one of these names."""
        names = list(names)
        near = {stem for stem in set(map(_stem, names)) if any(one.may_match(stem) for one in self._all)}
        return bool(near) and any(self.match(name) is not None for name in names if _stem(name) in near)

    def match(self, name: str) -> tuple[int, dict[str, str]] | None:
        """The first of `matches`; None if no template has this name."""
        return next(self.matches(name), None)


HubShapes = Shapes
"""{tensor of transformers 4: its shape}"""


class Caveat(NamedTuple):
    """What a reader of a dialect should know, and of which models it is true."""

    text: str
    concerns: Callable[[HubShapes, Mapping[str, Any]], bool] = lambda hub, config: True
    """Whether it is true of a model with these tensors and this config."""


def general(text: str) -> Caveat:
    """What is true of the program, and needs no warning: `paramtool layouts` shows it."""
    return Caveat(text, lambda hub, config: False)


def of_words(text: str, *words: str) -> Caveat:
    """What concerns models with one of these words in a name."""
    return Caveat(text, lambda hub, config: any(not frozenset(words).isdisjoint(name.split(".")) for name in hub))


def padded(text: str, multiple: int) -> Caveat:
    """What concerns models whose vocabulary size is not a multiple of a number; adapters have no rows of tokens."""

    def is_padded(hub: HubShapes, config: Mapping[str, Any]) -> bool:
        size = config.get("vocab_size")
        if type(size) is not int:
            return True
        return size % multiple != 0 and any(shape and shape[0] >= size for shape in hub.values())

    return Caveat(text, is_padded)


def next_tokens(text: str) -> Caveat:
    """What concerns models with layers that predict further tokens, behind the others."""

    def has_more(hub: HubShapes, config: Mapping[str, Any]) -> bool:
        count = config.get("num_hidden_layers")
        numbers = (re.match(r"(?:\w+\.)*layers\.([0-9]{1,9})\.", name) for name in hub)
        return type(count) is int and any(found is not None and int(found[1]) >= count for found in numbers)

    return Caveat(text, has_more)


@frozen
class Row:
    """A tensor of a dialect, and the tensors of transformers 4 whose elements it holds."""

    name: str
    """A template of its name."""
    parts: Mapping[str, str]
    """{term of the pattern: a template of the part's name}; with `{expert}` if the tensor holds a part of each."""
    pattern: str = ""
    """The tensor, see `parts.patterns`; empty if it is its only part under another name."""
    along: int = 0
    """The axis along which the pattern's blocks follow each other."""
    axes: Mapping[str, str] | None = None
    """{term: the axes of the part's tensor} where they are not those of `parts.patterns.PARTS`."""
    held: str = ""
    """A pattern of the part's own tensor, if the pattern's terms are not tensors of transformers 4 but held in one."""
    when: str = ""
    """A template of a name of transformers 4 without which the row writes nothing."""
    is_read_only: bool = False
    """Whether the tensor is recognised under this name, but written under that of another row."""
    source: str = ""
    """Where the fact is from: project, file and line."""

    @property
    def is_fused(self) -> bool:
        """Whether the tensor is more than one tensor under another name."""
        return bool(self.pattern)


@frozen
class ModelRows:
    """The models that have the same rows."""

    models: tuple[str, ...]
    """Architectures, as `architectures` of config.json has them."""
    rows: tuple[Row, ...]
    """The first that fits a name has it."""
    caveats: tuple[Caveat, ...] = ()
    """What a reader of the target should know."""
    layouts: str = ""
    """What the rows are, in a line."""


@frozen
class DialectTable:
    """A dialect: the names and forms of one program."""

    name: str
    title: str
    version: str
    """Of the program, or the revision of its sources."""
    families: tuple[ModelRows, ...]
    refused: Mapping[str, str]
    """{architecture: why it has no rows}."""
    caveats: tuple[Caveat, ...] = ()
    vocabulary: tuple[str, ...] = ()
    """Templates of names of transformers 4 that have a row for each token, where the program pads them."""
    file: str = ""
    """What the program calls the file of the weights in a model's folder; empty if it opens no folder, or any file."""
    check: Callable[[Mapping[str, Any], Shapes], None] | None = None
    """LayoutError if the program has no place for something that a config.json says, or for a tensor's shape."""
    tied: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """{architecture: (head, embedding)}: the program wants a tensor under both names, also where the config ties them.
    """
    unread: Mapping[str, str] = field(default_factory=dict)
    """The same for architectures of the program that nobody looked at, too many to be listed."""
    embeddings: Mapping[str, str] = field(default_factory=dict)
    """{architecture: its embedding}, which says what is in front of all names, where a file may lack that."""
