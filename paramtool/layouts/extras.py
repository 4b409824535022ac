"""Tensors that libraries store beside the weights of a recurrent network, or instead of them: one row for each.

A wrapper such as weight norm replaces `weight_hh_l0` by tensors that it is computed from.  A conversion that ignored
them would keep the network's shapes and change its function.  So each such tensor is read as its library reads it
(`taken`), recognised as not needed by the function (`harmless`), or refused with a hint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from paramtool.layouts.spec import words

TAKEN = "taken"
HARMLESS = "harmless"
REFUSED = "refused"


@dataclass(frozen=True)
class Extra:
    """Names of tensors that belong to a tensor `{own}` of a network, or to the whole network."""

    names: tuple[str, ...]
    """Templates: `{own}_g`.  `{n}` is a number and `{any}` anything, as in `seed_generator/{any}`."""
    what: str
    """What such a tensor is, for messages."""
    then: str
    """TAKEN, HARMLESS or REFUSED."""
    hint: str = ""
    """What to do if it is refused."""
    source: str = ""

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """Patterns of the full names, with the groups `at` (the module) and `own` (if it belongs to one tensor)."""
        return tuple(re.compile(_pattern(name), re.DOTALL) for name in self.names)

    def read(self, name: str) -> tuple[str, str] | None:
        """(module, name of the tensor it belongs to, or empty) if a name matches this row; else None.

        >>> EXTRAS[1].read("encoder.rnn.weight_hh_l0_g")
        ('encoder.rnn', 'weight_hh_l0')
        """
        for pattern in self.patterns:
            if found := pattern.fullmatch(name):
                return found["at"] or "", found.groupdict().get("own") or ""
        return None


def _pattern(template: str) -> str:
    text = re.escape(template).replace("/", "[./]")
    text = text.replace(r"\{own\}", "(?P<own>[^./]+)").replace(r"\{n\}", r"\d+").replace(r"\{any\}", ".+")
    return rf"(?:(?P<at>.+?)[./])??{text}"


EXTRAS = tuple(Extra(**{**row, "names": tuple(row["names"])}) for row in words()["extras"])
