"""The colours of figures, for light and dark pages: tints on which the page's ink can be read.

They follow Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), which people with any kind of colour vision tell
apart; no figure says anything by colour alone.  A test computes the contrasts (WCAG 2.2, 1.4.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Shades(NamedTuple):
    """A colour on a light page, and on a dark one."""

    light: str
    dark: str


PAGE: Mapping[str, Shades] = {
    "paper": Shades("#ffffff", "#12161c"),
    "panel": Shades("#f5f7fa", "#1a2029"),
    "ink": Shades("#16202c", "#f1f4f8"),
    "soft": Shades("#4c5866", "#b3bdc9"),
    "line": Shades("#c9d1da", "#3a4451"),
    "strong": Shades("#6b7785", "#8a96a4"),
    "accent": Shades("#0b57b8", "#8cc2ff"),
    "bad": Shades("#a81e13", "#ff9d90"),
    "warn": Shades("#7a4d00", "#f3c469"),
    "good": Shades("#116138", "#7fd8a6"),
}
"""Of the page itself."""
TINTS: Mapping[str, Shades] = {
    "blue": Shades("#a9cdf5", "#1f4e80"),
    "orange": Shades("#f7c58f", "#7d4a0c"),
    "green": Shades("#a8dfc4", "#1c5f46"),
    "purple": Shades("#dcc0ee", "#5b3877"),
    "yellow": Shades("#f1e18b", "#5f5510"),
    "red": Shades("#f6b3a0", "#7c3222"),
    "sky": Shades("#b8e6f5", "#1d5a6e"),
    "grey": Shades("#d5d9df", "#474d56"),
    "blank": Shades("#ffffff", "#12161c"),
}
"""What figures are filled with; words on them have the page's ink."""
SERIES = ("blue", "orange", "green", "purple", "yellow", "red", "sky", "grey")
"""Tints for things that have no tint of their own, in this order."""
HEAT = (
    Shades("#eef1f5", "#232b36"), Shades("#fde9c9", "#4a2a12"), Shades("#fbcf93", "#6e3a12"),
    Shades("#f3aa61", "#96500f"), Shades("#e07f3a", "#c06a1c"), Shades("#bd5522", "#e08a35"),
    Shades("#8f3413", "#f3ae64"), Shades("#5c1d0b", "#ffdcae"),
)  # fmt: skip
"""From no difference to the largest one: darker on a light page, brighter on a dark one."""


def series(k: int) -> str:
    """The tint of the thing of a number; those behind the last tint have that of no thing.

    >>> series(0), series(7), series(99)
    ('blue', 'grey', 'grey')
    """
    return SERIES[min(k, len(SERIES) - 1)]


def css() -> str:
    """All of it as variables of CSS; what is printed is light."""
    every = {**PAGE, **TINTS, **{f"heat{k}": shades for k, shades in enumerate(HEAT)}}
    light = "".join(f"--{name}:{shades.light};" for name, shades in every.items())
    dark = "".join(f"--{name}:{shades.dark};" for name, shades in every.items())
    fills = "".join(f".t-{name}{{fill:var(--{name});background:var(--{name})}}" for name in TINTS)
    halos = "".join(f"svg .k-{name}{{stroke:var(--{name})}}" for name in TINTS)
    heat = "".join(f".h{k}{{fill:var(--heat{k});background:var(--heat{k})}}" for k in range(len(HEAT)))
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{fills}{halos}{heat}\n"
    )
