"""The names and forms that families of programs give to the tensors of one model.

    transformers-4   the files that transformers 4 wrote, and that version 5 writes by default: the hub of all others
    transformers-5   what version 5 has in memory, and writes with save_original_format=False
    vllm, megatron, meta, torch-mha, timm, gluonnlp, gluonnlp-interleaved

A dialect says of each of its tensors which elements of which tensors of transformers 4 it holds.  So no pair of
dialects needs code of its own, and neither does the way back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from paramtool.errors import LayoutError, UsageError, plural, some
from paramtool.model.view import Shapes
from paramtool.parts.facts import Facts
from paramtool.parts.families import Config
from paramtool.parts.pieces import Stored, whole
from paramtool.parts.sizes import Sizes

if TYPE_CHECKING:
    from paramtool.dialects.recognition import Told
    from paramtool.dialects.template import DialectTable

HUB = "transformers-4"
MEMORY = "transformers-5"
HUB_TITLE = "the files that transformers 4 wrote, and that version 5 writes by default: the hub of all dialects"
MEMORY_TITLE = "what transformers 5 has in memory, and saves where it keeps no original format"
MEMORY_LAYOUTS = "qkv, gate-up, experts, experts-transposed, convs"
TABLES = (
    "vllm", "megatron", "meta", "torch-mha", "timm", "gluonnlp", "gluonnlp-interleaved",
)  # fmt: skip
"""Dialects whose rows are in `tables/NAME.json`."""
NAMES = (HUB, MEMORY, *TABLES)
"""Every dialect."""
FactsOf = Callable[[str], Facts]
"""The facts about the tensor of a name: a model may have a tower of text and one of images."""


class OpenedDialect:
    """A dialect for one model.  This one is transformers 4: every tensor is itself."""

    @property
    def tied(self) -> tuple[str, str] | None:
        """(head, embedding): the dialect's program wants tensors of both names, also where a tied model has one."""
        return None

    def caveats(self, hub: Shapes) -> tuple[str, ...]:
        """What a reader of the target should know of a model with these tensors of transformers 4."""
        return ()

    def read(self, tensors: Shapes) -> list[Stored]:
        """What the tensors of a file hold, as pieces of tensors of transformers 4."""
        return [whole(name, shape) for name, shape in tensors.items()]

    def write(self, hub: Shapes) -> list[Stored]:
        """What this dialect stores for tensors of transformers 4."""
        return self.read(hub)

    def prefix(self, hub: Collection[str]) -> str:
        """What this dialect has in front of all names, where those of transformers 4 lack it; "" for nothing."""
        return ""

    def joins(self, name: str) -> bool:
        """Whether a tensor of this name is made of several tensors of transformers 4, or of another form of one."""
        return bool(self.form(name))

    def form(self, name: str) -> str:
        """How a tensor of this name holds its parts, where that differs from transformers 4; "" where it does not."""
        return ""


class _Tabled(OpenedDialect):
    """A dialect of a table."""

    def __init__(self, name: str, config: Config, facts: FactsOf, prefix: str = "") -> None:
        from paramtool.dialects.dialect import Dialect

        self._dialect = Dialect(table(name), architecture(config))
        self._config = config
        self._facts = facts
        self._prefix = prefix
        size = config.get("vocab_size")
        self._vocabulary = size if isinstance(size, int) else 0

    def caveats(self, hub: Shapes) -> tuple[str, ...]:
        return self._dialect.caveats(hub, self._config)

    @property
    def tied(self) -> tuple[str, str] | None:
        return self._dialect.table.tied.get(self._dialect.architecture)

    def read(self, tensors: Shapes) -> list[Stored]:
        return _without(self._dialect.read(tensors, self._sizes, self._vocabulary), self._prefix)

    def write(self, hub: Shapes) -> list[Stored]:
        from paramtool.dialects.counts import check_lists

        check_lists(hub, self._facts)
        prefix = self.prefix(hub)
        made = _without(self._dialect.write({f"{prefix}{name}": hub[name] for name in hub}, self._sizes), prefix)
        table = self._dialect.table
        for word, why, hint in table.lacks:
            if name := next((one.name for one in made if word in one.name), ""):
                raise LayoutError(f"{name!r} {why}", hint)
        if table.name == "meta":
            from paramtool.dialects import meta_params

            meta_params.check(self._config, {one.name: one.shape for one in made})
        return made

    def prefix(self, hub: Collection[str]) -> str:
        """As of `OpenedDialect`; LayoutError if the program has something in front of names, and it is not known what.

        transformers saves a model alone as it is inside another: `layers.0`, for what LlamaForCausalLM has as
        `model.layers.0`.  vLLM has the second, whichever class the config says (vLLM 0.33 models/adapters.py).
        """
        table, name = self._dialect.table, self._dialect.architecture
        embedding = table.embeddings.get(name, "")
        ends = [embedding[k + 1 :] for k, letter in enumerate(embedding) if letter == "."]
        found = next((end for end in ends if end in hub), "") if embedding not in hub else ""
        if (found and HEAD in hub) or (
            not found
            and table.embeddings
            and (name.endswith(("ForCausalLM", "LMHeadModel")) and any(map(ALONE.match, hub)))
        ):
            first = next(one for one in hub if one != HEAD)
            raise LayoutError(
                f"{first!r}: {table.name} has something in front of this name in {name}, as in 'model.{first}'",
                hint="the names have another prefix than transformers gives them; `export --rename` changes "
                "it, as in --rename '*=model.*'",
            )
        return embedding.removesuffix(found) if found else ""

    def has_any(self, names: Iterable[str]) -> bool:
        """Whether the table has a row for one of these names."""
        return self._dialect.has_any(names)

    def leaves(self, hub: Iterable[str]) -> bool:
        """Whether names of transformers 4 have layers of the table at a place where it has none."""
        return any(self._dialect.elsewhere(hub))

    def form(self, name: str) -> str:
        return self._dialect.form(name)

    def _sizes(self, name: str) -> Sizes:
        return Sizes(self._facts(name).sizes)


HEAD = "lm_head.weight"
"""An output head, which has nothing in front of its name."""
ALONE = re.compile(r"(layers|h|blocks)\.[0-9]+\.")
"""How the names of a model's layers begin where the model is saved alone."""


def _without(found: list[Stored], prefix: str) -> list[Stored]:
    """Tensors whose parts are called without a prefix."""
    return [one.with_parts(lambda part: part.removeprefix(prefix)) for one in found] if prefix else found


class _Memory(OpenedDialect):
    """Transformers 5 in memory."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def read(self, tensors: Shapes) -> list[Stored]:
        from paramtool.dialects import transformers

        return transformers.read(tensors, self._config)

    def write(self, hub: Shapes) -> list[Stored]:
        from paramtool.dialects import transformers

        return transformers.write(hub, self._config)

    def joins(self, name: str) -> bool:
        from paramtool.dialects import recognition

        return bool(recognition.told([name], self._config).five)


def architecture(config: Config) -> str:
    """The class of a model, as its config says; empty if it says none."""
    found = config.get("architectures")
    first = found[0] if isinstance(found, list) and found else ""
    return first if isinstance(first, str) else ""


def table(name: str) -> DialectTable:
    """The table of a dialect; those of transformers have no rows, and say their models alone."""
    from paramtool.dialects import scopes, template

    if name == HUB:
        return template.DialectTable(HUB, HUB_TITLE, f"transformers {scopes.version()}", ())
    if name == MEMORY:
        found = scopes.table()
        types = template.ModelRows((*found["rules"], *found["aliases"]), (), (), MEMORY_LAYOUTS)
        return template.DialectTable(MEMORY, MEMORY_TITLE, f"transformers {scopes.version()}", (types,))
    return template.table(name)


def file_of(name: str) -> str:
    """What a dialect's program calls the file of the weights in a model's folder; empty if it has no name of its own.

    >>> file_of("meta"), file_of("transformers-5")
    ('consolidated.00.pth', '')
    """
    return table(name).file if name in TABLES else ""


def of_file(name: str) -> str:
    """The dialect whose program alone calls a file so, whatever the numbers in its name; empty if it is none.

    >>> of_file("model-rank-3-part-12.safetensors"), of_file("model.safetensors")
    ('vllm', '')
    """
    return next((one for one in TABLES if (own := file_of(one)) and _numberless(own) == _numberless(name)), "")


def _numberless(name: str) -> str:
    return re.sub(r"[0-9]+", "0", name)


def architectures_of(name: str) -> frozenset[str]:
    """The models that a dialect's table has rows for."""
    return frozenset(table(name).models)


def opened(name: str, config: Config, facts: FactsOf, prefix: str = "") -> OpenedDialect:
    """A dialect for the model of a config; `prefix` is what a record says that its file has in front of all names.

    UsageError if there is no dialect of that name, LayoutError if it has no table for the model.
    """
    if name == HUB:
        return OpenedDialect()
    if name == MEMORY:
        return _Memory(config)
    if name in TABLES:
        return _Tabled(name, config, facts, prefix)
    raise UsageError(f"no dialect is called {name!r}; expected one of: {', '.join(NAMES)}")


def recognised(tensors: Shapes, config: Config, facts: FactsOf) -> list[str]:
    """The dialects whose names a file has, in the order of `NAMES`.

    The two of transformers are one answer where they do not differ: the hub.  Where a table keeps the hub's names for
    other rows, as vLLM's does for BLOOM, both are an answer.
    """
    told = _told(tensors, config)
    found, same_names = [], False
    for name in TABLES:
        try:
            if not (table := _Tabled(name, config, facts)).has_any(tensors):
                continue
            held = table.read(tensors)
        except LayoutError:
            continue
        parts = {part for one in held for part in one.parts}
        if table.leaves(parts):  # as a model without its prefix
            continue
        renamed = any(part != one.name for one in held for part in one.parts)
        if not renamed and all(one == whole(one.name, one.shape) for one in held):
            continue
        if told is not None and told.dialects == (MEMORY,) and (held_by := _told(parts, config)) and held_by.five:
            continue  # its names mean tensors that transformers 4 does not have
        found.append(name)
        same_names |= not renamed
    own = () if told is None else told.dialects
    if own and (not found or same_names):
        is_either = told is not None and told.either and own == (HUB, MEMORY)
        found += _by_shapes(tensors, config) if is_either else [HUB] if HUB in own else [MEMORY]
    return found


def _by_shapes(tensors: Shapes, config: Config) -> list[str]:
    """The one of the two dialects of transformers whose shapes a file has; both where they do not tell.

    Qwen3-VL-MoE has the same names in both, for stacks that are turned.
    """
    memory, found = _Memory(config), []
    for name, fits in ((HUB, memory.write), (MEMORY, memory.read)):
        try:
            fits(tensors)
        except LayoutError:
            continue
        found.append(name)
    return found if len(found) == 1 else [HUB, MEMORY]


def is_of_hub(names: Iterable[str], config: Config) -> bool:
    """Whether some names are those of tensors that transformers 4 has, and transformers 5 has otherwise."""
    told = _told(names, config)
    return told is not None and bool(told.four)


def mixture(names: Iterable[str], config: Config) -> str:
    """Names of both dialects of transformers, in words; empty if they are those of one, or if the model is not known.

    Names that belong to parts of a model that both have alike, or to none, do not count.
    """
    told = _told(names, config)
    return "" if told is None or told.dialects else told.mixture()


def _told(names: Iterable[str], config: Config) -> Told | None:
    """Names by the dialects of transformers that have them; None where the config's model is not known."""
    from paramtool.dialects import recognition

    try:
        return recognition.told(names, config)
    except LayoutError:
        return None


def why_none(tensors: Shapes, config: Config) -> str:
    """Why names are those of no dialect: how many are of which, or that the model is not known."""
    from paramtool.dialects import recognition

    try:
        told = recognition.told(tensors, config)
    except LayoutError as error:
        which = f"{plural(len(tensors), 'name')} ({some(list(tensors), 3)})"
        return f"its {which} are those of no dialect: {error.message}"
    return f"mixes {told.mixture()}"
