"""HTML and SVG as text, with all escaping in one place: whatever is not `Markup` is a stranger's words.

    tag("p", "a < b", class_="note")    <p class="note">a &lt; b</p>

Attributes are written with `class_` for `class` and `_` for `-`.  There is no way to write an event handler or a style
into an attribute; the page's policy (`document`) would not run one either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from html import escape

MAX_NAME = 240
"""Characters of a name that are written; the middle of a longer one is left out."""
VOID = frozenset(("meta", "input", "br", "rect", "path", "line", "circle"))
"""Elements without content, of HTML and of SVG."""


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


EMPTY = Markup("")


def readable(text: str, most: int = MAX_NAME) -> str:
    """A text without characters that would not be seen or would move others, and without its middle if it is long.

    Control characters, marks of direction and lone surrogates are shown as escapes.

    >>> print(readable("a\\u202eb\\x1b[0m"), readable("w" * 999, 9))
    a\\u202eb\\x1b[0m wwww…wwww
    """
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[-(most // 2) :]}"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def written(text: str) -> Markup:
    """A text as HTML.

    >>> written("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return text if isinstance(text, Markup) else Markup(escape(readable(text, 4 * MAX_NAME)))


def tag(name: str, *children: str | None, **attributes: object) -> Markup:
    """An element; children and attributes that are None are left out.

    >>> tag("rect", x=1.0, width=2.345678, class_="<a>")
    '<rect x="1" width="2.35" class="&lt;a&gt;"/>'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inner = "".join(written(child) for child in children if child is not None)
    if name in VOID and not inner:
        return Markup(f"<{name}{words}/>")
    return Markup(f"<{name}{words}>{inner}</{name}>")


def _value(value: object) -> str:
    if value is True:
        return ""
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        return number(value)
    return written(str(value))


def number(value: float) -> str:
    """A coordinate, to a hundredth of a pixel.

    >>> number(3.0), number(2 / 3), number(-0.0)
    ('3', '0.67', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def svg(label: str, wide: float, high: float, *children: str | None, **attributes: object) -> Markup:
    """A figure that says what it is."""
    return tag(
        "svg", tag("title", label), *children, viewBox=f"0 0 {number(wide)} {number(high)}", role="img",
        aria_label=label, **attributes,
    )  # fmt: skip


def joined(parts: Iterable[str]) -> Markup:
    """Elements and texts behind each other."""
    return Markup("".join(map(written, parts)))


def data(value: object) -> Markup:
    """A value as JSON inside a `script` element of a type that is no program; nothing in it can end the element.

    >>> data(["</script>"])
    '["\\\\u003c/script\\\\u003e"]'
    """
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for one in "<>&":
        text = text.replace(one, f"\\u{ord(one):04x}")
    return Markup(text)


def breakable(name: str) -> Markup:
    """A name that may go on in another line behind a dot, a slash or a line below.

    >>> breakable("h.0/w<")
    'h.<wbr/>0/<wbr/>w&lt;'
    """
    return Markup(re.sub("[./_]", r"\g<0><wbr/>", written(name)))


def short(text: str, letters: int) -> str:
    """A readable text of at most so many letters: its end says more than its middle.

    >>> short("transformer.h.0.attn.c_attn.weight", 16), short("abc", 2), short("abc", 3)
    ('trans…ttn.weight', '', 'abc')
    """
    text = readable(text)
    if len(text) <= letters:
        return text
    if letters < 6:
        return ""
    end = (letters - 1) * 2 // 3
    return f"{text[: letters - 1 - end]}…{text[-end:]}"
