"""What a model's config.json says about ties, and which names the classes of transformers tie.

The table ties.json is of one version of transformers (docs/make_tie_table.py makes it) and is read when it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar, cast

from paramtool.grouping import grouped
from paramtool.lazy_dataclass import frozen
from paramtool.model.inflating import limiting
from paramtool.package_data import package_data

WORDS = "tie_word_embeddings"
"""The setting that ties the output head to the input embeddings."""
SIDES = "tie_encoder_decoder"
"""The setting that ties a decoder to its encoder; only transformers 4 reads it."""
SHARE = "share_encoder_decoder_embeddings"
"""Marian's setting that ties the embeddings of encoder and decoder."""
TEXT = ("text_config", "language_config", "llm_config")
"""Nested configs of the text model that the outer setting is about; theirs counts where the outer one is absent."""
NONE = "none"
"""What is given instead of a path where no config counts."""
P = ParamSpec("P")
R = TypeVar("R")
_given: ContextVar[str] = ContextVar("config", default="")


def given() -> str:
    """The path of the config that was given for all that is read; empty where the one beside a checkpoint counts."""
    return _given.get()


def reading(function: Callable[P, R]) -> Callable[P, R]:
    """Give the keyword `config` of a function, or of its options, while the function runs; `limiting`, too."""

    @limiting
    @wraps(function)
    def kept(*args: P.args, **kwargs: P.kwargs) -> R:
        context = copy_context()
        said = (getattr(one, "config", None) for one in (*args, *kwargs.values()) if hasattr(one, "max_inflated"))
        context.run(_given.set, os.fspath(cast("str", kwargs.get("config") or next(said, None) or given())))
        return context.run(function, *args, **kwargs)

    return kept


@frozen
class Config:
    """The settings of a config that say which names share memory, and the model types that they are for."""

    path: str
    said: Mapping[str, bool]
    """The settings by their paths: {`tie_word_embeddings`: True, `text_config.tie_word_embeddings`: True}."""
    model_types: Mapping[str, str]
    """{path of a nested config, empty for the outermost config: its `model_type`}."""
    architecture: str = ""
    """The class of the model; empty where the config names none."""

    def prefixes(self) -> list[str]:
        """The paths of the configs that have any of the settings, the outermost first: ``, `text_config`."""
        keys = [*self.model_types, *(key.rpartition(".")[0] for key in self.said)]
        return sorted(dict.fromkeys(keys), key=lambda key: (key.count(".") + bool(key), key))

    def says(self, kind: str, name: str) -> tuple[bool | None, str]:
        """Whether a name is tied, where it is one of a tie of that kind (`NamedTie`), and what of the config says so.

        None where nothing is said, and nothing is known of the default.
        """
        scope = self._scope(name)
        shared = self.said.get(SHARE)
        if kind == "sides" and shared is not None:
            return shared, _text(SHARE, shared)
        says, because = self._words(scope)
        if says is False and kind == "sides":
            # transformers 4 always ties these, transformers 5 as the setting says
            return None, f"not said; {because}, which is about the output head only"
        return says, because

    def class_ties(self, names: Collection[str], says: bool = True) -> list[tuple[str, ...]]:
        """The ties of the class that the config declares, or denies, and of which names are in `names`.

        The first name of each, which save_pretrained keeps, and the others.  Files can have other names than the
        model, and lack the name of its base: of all lists the one counts with most of the names.  Where the first is
        not there, and one other is, names of its module show that it is not there under a name of another kind.
        """
        rows = [*self.rows(), *map(_without_base, self.rows())]
        best = max(rows, key=lambda ties: sum(n in names for n in {*ties, *ties.values()}), default=None)
        groups = grouped((first, name) for name, first in (best or {}).items() if self.says("", name)[0] is says)
        found = [(first, *others) for first, others in groups.items()]
        return [group for group in found if _is_there(group, names)]

    @property
    def is_known(self) -> bool:
        """Whether the table knows all names that the class ties."""
        is_of_type = self.model_types.get("") in (*_table()["tied"], *_table()["untied"])
        return self.architecture not in ("", *_table()["lacking"]) and (is_of_type or bool(self.rows()))

    def rows(self) -> list[dict[str, str]]:
        """{name: the name that the class ties it to}, for the names of the model and, where they differ, its files."""
        return [ties for ties, classes in _table()["classes"] if self.architecture in classes]

    def _scope(self, name: str) -> str:
        """The nested config of a name's module: `decoder` for `decoder.lm_head.weight`; else the outermost config."""
        words = name.split(".")[:-2]
        for prefix in reversed(self.prefixes()):
            steps = [step.removesuffix("_config") for step in prefix.split(".")] if prefix else []
            if steps and words[: len(steps)] == steps:
                return prefix
        return ""

    def _words(self, scope: str) -> tuple[bool | None, str]:
        """What one config says about tied word embeddings: itself, its text config, one around it, or a default."""
        key = f"{scope}.{WORDS}" if scope else WORDS
        places = [key, *(one for one in self.said if _is_text(one, scope))]
        said = [place for place in places if place in self.said]
        if said:
            other = next((place for place in said if self.said[place] != self.said[said[0]]), "")
            but = f" ({_text(other, self.said[other])}, which transformers 4 reads)" if other else ""
            return self.said[said[0]], _text(said[0], self.said[said[0]]) + but
        model_type = self.model_types.get(scope, "")
        for known, default in (("tied", True), ("untied", False)):
            if model_type in _table()[known]:
                what = str(default).lower()
                return default, f"not said; {what} is the default of {model_type} in transformers {version()}"
        return self._words("") if scope else (None, "not said")


def _is_there(group: Sequence[str], names: Collection[str]) -> bool:
    held = sum(name in names for name in group)
    base = group[0].partition(".")[0] + "."
    return group[0] in names or held > 1 or (held == 1 and any(name.startswith(base) for name in names))


def _without_base(ties: Mapping[str, str]) -> dict[str, str]:
    """The same ties in a file of the base model alone: `wte.weight`, where a model with a head has `transformer.`.

    >>> _without_base({"lm_head.weight": "transformer.wte.weight"})
    {'lm_head.weight': 'wte.weight'}
    """
    bases = {
        base
        for name, first in ties.items()
        if (base := first.partition(".")[0]) != name.partition(".")[0] and first.count(".") > 1
    }
    heads = {name: head for name in {*ties, *ties.values()} if (head := name.partition("."))[0] in bases}
    return {heads.get(name, ("", "", name))[2]: heads.get(first, ("", "", first))[2] for name, first in ties.items()}


@cache
def _table() -> Any:
    """The default of `tie_word_embeddings` for each model type, and the ties of each class.

    Types whose configs have no such setting, or cannot be made without arguments, are in neither list.
    """
    import json

    return json.loads(package_data("model", "ties.json"))


def version() -> str:
    """The version of transformers that the table is of."""
    return str(_table()["version"])


def _is_text(place: str, scope: str) -> bool:
    """Whether a setting is in the text config of a scope, at any depth."""
    *steps, last = place.removeprefix(f"{scope}." if scope else "").split(".")
    return last == WORDS and bool(steps) and all(step in TEXT for step in steps)


def _text(key: str, value: bool) -> str:
    return f"{key} is {str(value).lower()}"
