"""Templates of names: `model.layers.{layer}.self_attn.q_proj.{kind}`.

{layer} {expert} {n}   a number         {kind}   weight or bias
{path}                 a path, not empty    {rest}   anything
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache, cached_property
from operator import itemgetter
from typing import Any, NamedTuple

from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shapes
from paramtool.package_data import package_data

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


class Caveat(NamedTuple):
    """What a reader of a dialect should know, and of which models it is true: of all, if nothing else is said."""

    text: str
    is_general: bool = False
    """True of the program, which needs no warning: `paramtool layouts` shows it."""
    words: Sequence[str] = ()
    """Of models with one of these words in a name."""
    multiple: int = 0
    """Of models whose vocabulary size is not a multiple of it; adapters have no rows of tokens."""
    is_of_next_tokens: bool = False
    """Of models with layers that predict further tokens, behind the others."""
    unless: Mapping[str, object] = {}
    """Of models whose config has other values than these."""

    def concerns(self, hub: Shapes, config: Mapping[str, Any]) -> bool:
        """Whether it is true of a model with these tensors of transformers 4 and this config."""
        size, count = config.get("vocab_size"), config.get("num_hidden_layers")
        if self.multiple and type(size) is int:
            return size % self.multiple != 0 and any(shape and shape[0] >= size for shape in hub.values())
        if self.is_of_next_tokens:
            numbers = (re.match(r"(?:\w+\.)*layers\.([0-9]{1,9})\.", name) for name in hub)
            return type(count) is int and any(found is not None and int(found[1]) >= count for found in numbers)
        if self.words:
            return any(not frozenset(self.words).isdisjoint(name.split(".")) for name in hub)
        return not self.is_general and any(config.get(key) != one for key, one in self.unless.items() or [("", 0)])


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
    refused: Mapping[str, str] = field(default_factory=dict)
    """{architecture: why it has no rows}."""
    caveats: tuple[Caveat, ...] = ()
    vocabulary: tuple[str, ...] = ()
    """Templates of names of transformers 4 that have a row for each token, where the program pads them."""
    file: str = ""
    """What the program calls the file of the weights in a model's folder; empty if it opens no folder, or any file."""
    lacks: tuple[tuple[str, str, str], ...] = ()
    """(a part of names, why the program has no tensor of such a name, a hint)."""
    tied: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """{architecture: (head, embedding)}: the program wants a tensor under both names, also where the config ties them.
    """
    unread: Mapping[str, str] = field(default_factory=dict)
    """The same for architectures of the program that nobody looked at, too many to be listed."""
    embeddings: Mapping[str, str] = field(default_factory=dict)
    """{architecture: its embedding}, which says what is in front of all names, where a file may lack that."""

    @property
    def models(self) -> tuple[str, ...]:
        """Classes or model types that have their own names; empty for the hub, which has every model."""
        return tuple(dict.fromkeys(model for family in self.families for model in family.models))

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts of its fused tensors."""
        words = (word.strip() for family in self.families for word in family.layouts.split(","))
        return tuple(dict.fromkeys(filter(None, words)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of its files should know, whatever the model."""
        every = (*self.caveats, *(one for family in self.families for one in family.caveats))
        return tuple(dict.fromkeys(one.text for one in every))


@cache
def table(name: str) -> DialectTable:
    """The table of a dialect, from `tables/NAME.json`, whose members are those of these classes but for shorter forms.

    `like` is another file, which it adds families to.  `rows` are lists of rows by name, of which each family has some;
    a row may be [name, part, source].  `{base}` in the name of a part is the family's `base`, and a row or a table has
    one `source` for all that name none.  `notes` are caveats by name.  Refusals are {why: models}, or {why with {} for
    a place: {model: place}}.
    """
    data = json.loads(package_data("dialects", "tables", f"{name}.json"))
    base = json.loads(package_data("dialects", "tables", f"{data['like']}.json")) if "like" in data else {}
    found: dict[str, Any] = {**base, **data, "name": name}
    taken = {key: found.pop(key, {}) for key in ("about", "like", "digest", "rows", "notes", "source", "is_read_only")}
    lists, notes = base.get("rows", taken["rows"]) | taken["rows"], taken["notes"]

    def rows(of: Any, start: str) -> Iterator[Row]:
        is_read_only = of in taken["is_read_only"] if isinstance(of, str) else False
        for one in lists[of] if isinstance(of, str) else [of]:
            if isinstance(one, list):
                one = {"name": one[0], "parts": {"w": one[1]}, **({"source": one[2]} if one[2:] else {})}
            parts = {term: part.replace("{base}", start) for term, part in one["parts"].items()}
            yield Row(**{"source": taken["source"] or "", "is_read_only": is_read_only, **one, "parts": parts})

    def caveats(of: Mapping[str, Any]) -> tuple[Caveat, ...]:
        return tuple(Caveat(**(notes[one] if isinstance(one, str) else one)) for one in of.get("caveats", ()))

    families = tuple(
        ModelRows(
            tuple(one["models"]),
            tuple(row for of in one["rows"] for row in rows(of, one.get("base", ""))),
            caveats(one),
            one["layouts"],
        )
        for one in (*base.get("families", ()), *data.get("families", ()))
    )
    known = {model for family in families for model in family.models}

    def why(key: str) -> dict[str, str]:
        told = ((one, models, text) for text, models in found.get(key, {}).items() for one in models)
        return {model: text.format(of[model]) if isinstance(of, dict) else text
                for model, of, text in sorted(told, key=itemgetter(0)) if model not in known}  # fmt: skip

    return DialectTable(**{
        **found, "families": families, "caveats": caveats(data), "refused": why("refused"), "unread": why("unread"),
        "vocabulary": tuple(found.get("vocabulary", ())), "lacks": tuple(map(tuple, found.get("lacks", ()))),
        "tied": {model: (head, of) for head, of, models in found.get("tied", ()) for model in models},
        "embeddings": {model: of for of, models in found.get("embeddings", {}).items() for model in models},
    })  # fmt: skip
