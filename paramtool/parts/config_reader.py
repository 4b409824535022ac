"""Reading sizes from one config by rules, with the key that said each; `config_facts` says how a rule is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from paramtool.errors import LayoutError
from paramtool.parts.facts import MAX_SIZE

OTHERS = re.compile(r"^(num_)?(swa|global|sliding|local|cross)_\w*(heads|head_dim)$|^linear_(num_heads|head_dim)$")
"""Keys for some layers only, beside those for the others."""


class ConfigReader:
    """Takes sizes from a config by their rules."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where
        self.sizes: dict[str, int] = {}
        self.said: dict[str, str] = {}

    def take(self, word: str, rule: str) -> None:
        """Add what a rule gives, if it gives anything."""
        if rule.startswith("*"):
            self.share(word, rule[1:])
            return
        keys, default, null = (*rule.split(":"), "")[:3]
        key, value = self.value(keys)
        if isinstance(value, int) and not isinstance(value, bool):
            self.add(word, value, key)
        elif key and isinstance(value, (str, float, bool)):
            raise LayoutError(f"{self.where}{key} is {value!r:.40}; expected a whole number")
        elif key and value is not None:
            return  # a list with a number for each layer, or another class's form
        elif key and null:
            self.follow(word, null)
        elif not default.isdecimal():
            self.follow(word, default)
        elif not key:
            self.add(word, int(default), f"{keys.partition('|')[0] or word} is absent, and the default")

    def value(self, keys: str) -> tuple[str, object]:
        """The first of some keys that the config has, and its value; LayoutError if two of them differ."""
        found = [(key, value) for key in filter(None, keys.split("|")) for value in self.values(key)]
        for key, value in found[1:]:
            if value != found[0][1]:
                raise LayoutError(f"{self.where}{found[0][0]} is {found[0][1]!r:.40}, and {key} is {value!r:.40}")
        return found[0] if found else ("", None)

    def values(self, path: str) -> Iterator[object]:
        """The value at a path of keys, if there is one."""
        *steps, last = path.split(".")
        config: object = self.config
        for step in steps:
            config = config.get(step) if isinstance(config, Mapping) else None
        if isinstance(config, Mapping) and last in config:
            yield config[last]

    def follow(self, word: str, expression: str) -> None:
        """A word that is another, or the quotient of two, rounded down as transformers does, where those are known."""
        words = [one for one in expression.split("/") if one]
        if not words or any(one not in self.sizes for one in words):
            return
        size = self.sizes[words[0]]
        if len(words) > 1:
            size //= self.sizes[words[1]]
        if not size:
            return
        self.sizes[word] = size
        self.said[word] = " / ".join(dict.fromkeys(self.said[one] for one in words))

    def add(self, word: str, size: int, source: str) -> None:
        if not 1 <= size <= MAX_SIZE:
            raise LayoutError(f"{self.where}{source} is {size}; expected a number from 1 to {MAX_SIZE}")
        self.sizes[word] = size
        self.said[word] = f"{self.where}{source}"

    def share(self, word: str, default: str) -> None:
        """A share of head_dim, rounded down as transformers does (modeling_rope_utils.py, `int(head_dim * factor)`)."""
        head_dim = self.sizes.get("head_dim")
        default, _, outside = default.partition("@")
        factors = self.factors(outside) or {"the default share": float(default)}
        if head_dim is None or len(set(factors.values())) > 1:
            return
        key, factor = next(iter(factors.items()))
        if 0 < factor <= 1 and (size := int(head_dim * factor)):
            self.sizes[word] = size
            self.said[word] = f"{self.where}{key}, {self.said['head_dim'].removeprefix(self.where)}"

    def drop_unequal(self) -> None:
        """Forget what other layers of the same config have in another number: `swa_num_key_value_heads`."""
        for key, value in self.config.items():
            if not OTHERS.search(key) or not isinstance(value, int):
                continue
            dim = "value_dim" if key.endswith("v_head_dim") else "head_dim"
            word = "kv_heads" if "key_value" in key or "kv" in key else "heads" if key.endswith("heads") else dim
            if self.sizes.get(word, value) != value:
                for one in (word, *(("rotary", "value_dim") if word == "head_dim" else ())):
                    self.sizes.pop(one, None)
                    self.said.pop(one, None)

    def factors(self, outside: str) -> dict[str, float]:
        """The shares that a config says, those for kinds of layers among them."""
        found = {}
        for outer in ("rope_parameters", "rope_scaling"):
            inner = self.config.get(outer)
            if isinstance(inner, Mapping):
                for path, one in [(outer, inner), *((f"{outer}.{k}", v) for k, v in inner.items())]:
                    factor = one.get("partial_rotary_factor") if isinstance(one, Mapping) else None
                    if isinstance(factor, (int, float)) and not isinstance(factor, bool):
                        found[f"{path}.partial_rotary_factor"] = float(factor)
        factor = self.config.get(outside)
        if isinstance(factor, (int, float)) and not isinstance(factor, bool):
            found[outside] = float(factor)
        return found
