"""What is known of one model beside its tensors: its config.json, and what the user says with `--spec`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paramtool.parts.config_facts import from_config, kind_of_layer, tower_of
from paramtool.parts.facts import NONE, Facts, merged
from paramtool.parts.packing import packing_of


class KnownModel:
    """The config of a model, and the facts about its modules; it remembers which facts were asked for."""

    def __init__(self, config: Mapping[str, Any], spec: Facts = NONE) -> None:
        """`config` is the parsed config.json, empty if there is none."""
        self.config = config
        self.packing = packing_of(config)
        self._spec = spec
        self._towers: dict[tuple[str, str], Facts] = {}
        self._used: dict[tuple[str, int], str] = {}

    def facts(self, name: str) -> Facts:
        """The facts about the module or tensor of a name: of its tower and kind of layer, and of `--spec`."""
        tower = tower_of(name, self.config) if self.config else None
        if tower is None:
            found = self._spec
        else:
            key = tower, kind_of_layer(name, self.config, tower)
            if key not in self._towers:
                self._towers[key] = merged(config=from_config(self.config, tower, layers=key[1]), spec=self._spec)
            found = self._towers[key]
        self._used.update({(word, size): found.said[word] for word, size in found.sizes.items()})
        return found

    def check(self, name: str, known: Facts) -> None:
        """LayoutError if facts about a module or tensor contradict those of the config or of `--spec`."""
        found = self.facts(name)
        both = known.sizes.keys() & found.sizes.keys()
        merged(
            Facts({word: known.sizes[word] for word in both}, known.said),
            Facts({word: found.sizes[word] for word in both}, found.said),
        )

    def sizes(self, name: str) -> Mapping[str, int]:
        """The sizes among the facts about a module or tensor."""
        return self.facts(name).sizes

    def said(self, needed: Iterable[tuple[str, int]] | None = None) -> dict[str, str]:
        """{`heads=12`: who said it} of the facts that were asked for, or of those among them that are `needed`."""
        wanted = None if needed is None else set(needed)
        return {
            f"{word}={size}": said
            for (word, size), said in self._used.items()
            if wanted is None or (word, size) in wanted
        }
