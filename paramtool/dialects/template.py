"""Templates of names: `model.layers.{layer}.self_attn.q_proj.{kind}`.

{layer} {expert} {n}   a number         {kind}   weight or bias
{path}                 a path, not empty    {rest}   anything
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from paramtool.lazy_dataclass import dataclass

_FIELD = re.compile(r"\{(\w+)\}")
_KINDS = {"kind": "weight|bias", "path": ".+", "rest": ".*"}


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
        for field in _FIELD.finditer(self.text):
            name = field[1]
            found += re.escape(self.text[at : field.start()])
            found += f"(?P={name})" if name in seen else f"(?P<{name}>{_KINDS.get(name, '[0-9]+')})"
            seen.add(name)
            at = field.end()
        return re.compile(found + re.escape(self.text[at:]))

    def match(self, name: str) -> dict[str, str] | None:
        """The values of the fields if the template has this name, else None."""
        found = self._pattern.fullmatch(name)
        return found and found.groupdict()

    def filled(self, fields: Mapping[str, str]) -> str:
        """The name with these values."""
        return _FIELD.sub(lambda field: fields[field[1]], self.text)

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


@dataclass(frozen=True, slots=True)
class Row:
    """A tensor of a dialect, and the tensors of transformers 4 whose elements it holds."""

    name: str
    """A template of its name."""
    parts: Mapping[str, str]
    """{term of the pattern: a template of the part's name}; with `{expert}` if the tensor holds a part of each."""
    pattern: str = ""
    """The tensor, see `parts.rows`; empty if it is its only part under another name."""
    along: int = 0
    """The axis along which the pattern's blocks follow each other."""
    axes: Mapping[str, str] | None = None
    """{term: the axes of the part's tensor} where they are not those of `parts.rows.PARTS`."""
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


@dataclass(frozen=True, slots=True)
class ModelRows:
    """The models that have the same rows."""

    models: tuple[str, ...]
    """Architectures, as `architectures` of config.json has them."""
    rows: tuple[Row, ...]
    """The first that fits a name has it."""
    caveats: tuple[str, ...] = ()
    """What a reader of the target should know, in sentences."""
    layouts: str = ""
    """What the rows are, in a line."""


@dataclass(frozen=True, slots=True)
class DialectTable:
    """A dialect: the names and forms of one program."""

    name: str
    title: str
    version: str
    """Of the program, or the revision of its sources."""
    families: tuple[ModelRows, ...]
    refused: Mapping[str, str]
    """{architecture: why it has no rows}."""
    caveats: tuple[str, ...] = ()
    vocabulary: tuple[str, ...] = ()
    """Templates of names of transformers 4 that have a row for each token, where the program pads them."""
