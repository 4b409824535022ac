"""Files of the models that a lock names: checking one of them checks its model, once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

from paramtool.commands.check.against import place_of
from paramtool.commands.check.targets import CheckTarget
from paramtool.formats.folder.weight_names import of_file
from paramtool.lockfile.lock import Lock


class LockedFiles:
    """Which models of a lock a path is a file of."""

    def __init__(self, lock: Lock) -> None:
        self._entry = lru_cache(maxsize=None)(_entry)
        places = {name: place_of(lock, name) for name in lock.models}
        self._places = set(map(self._entry, places.values()))
        self._folders = {self._entry(place): place for place in places.values() if os.path.isdir(place)}
        self._models: dict[object, list[str]] = {}
        """{a file, or the folder, the stem and the suffix of shards: the places of the models that have it}"""
        for name, model in lock.models.items():
            place = places[name]
            if not os.path.isdir(place) and len(model.files) == 1:
                continue  # the model is this file
            folder = place if os.path.isdir(place) else os.path.dirname(place)
            for file in model.files:
                path = os.path.join(folder, *file.name.split("/"))
                for key in (self._entry(path), self._shards(path)):
                    if place not in (known := self._models.setdefault(key, [])):
                        known.append(place)

    def is_named(self, path: str) -> bool:
        """Whether the lock has a model of a path itself."""
        return self._entry(path) in self._places

    def models(self, path: str) -> list[str]:
        """The places of the models of which a path is a file, or a shard that the lock does not know yet.

        Empty for a path that the lock names itself, and for a folder.
        """
        if self.is_named(path) or not os.path.isfile(path):
            return []
        return self._models.get(self._entry(path)) or self._models.get(self._shards(path), [])

    def around(self, path: str) -> str:
        """The locked folder that a path is in while it is none of its files; empty where there is none."""
        if self.is_named(path) or self.models(path):
            return ""
        folder = self._entry(path)
        while (above := os.path.dirname(folder)) != folder:
            folder = above
            if folder in self._folders:
                return self._folders[folder]
        return ""

    def _shards(self, path: str) -> tuple[str, str, str]:
        """What shards of the same weights have in common."""
        return self._entry(os.path.dirname(path) or os.curdir), of_file(path).stem, os.path.splitext(path)[1]

    def joined(self, found: Iterable[CheckTarget], is_compared: Callable[[str], bool]) -> list[CheckTarget]:
        """Targets with each model once in place of its files, unless a file is not compared with the lock."""
        made: dict[str, CheckTarget] = {}
        for one in found:
            models = self.models(one.path) if one.error is None and is_compared(one.path) else []
            for place in models:
                earlier = made.setdefault(self._entry(place), CheckTarget(place))
                made[self._entry(place)] = replace(earlier, given=(*earlier.given, one.path))
            if not models:
                made.setdefault(one.path if one.error is not None else self._entry(one.path), one)
        return list(made.values())


def _entry(path: str) -> str:
    """A path by its place in its folder; a link is not followed, for two models may link to one file."""
    folder, name = os.path.split(os.path.normpath(path))
    return os.path.normpath(os.path.join(os.path.realpath(folder), name))
