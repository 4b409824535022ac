"""Reading and writing the tensors of a dialect: its rows, applied to names and shapes.

    write   {hub name: shape} -> what the dialect's tensors hold        q_proj, k_proj, v_proj -> qkv_proj
    read    {name: shape} -> what a file's tensors hold                  qkv_proj -> q_proj, k_proj, v_proj

Both give the same kind of answer, pieces of tensors of transformers 4, so that `parts.joined` converts either way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from paramtool.dialects.template import DialectTable, ModelRows, Row, Template, Templates
from paramtool.errors import LayoutError, nearest
from paramtool.model.view import Shape, Shapes
from paramtool.parts import patterns, rows
from paramtool.parts.pieces import Digit, Digits, Pair, Piece, Stored, joined, whole
from paramtool.parts.rows import PartTensor
from paramtool.parts.sizes import CHECK, Sizes

Facts = Callable[[str], Sizes]
"""The sizes that are known for the tensor of a name: a model may have a tower of text and one of images."""


LAYER = "{layer}."
"""Between the name of a stack of layers and what is in each."""
ANYWHERE = "{path}."


class Dialect:
    """A table's rows for one architecture."""

    def __init__(self, table: DialectTable, architecture: str) -> None:
        """LayoutError if the table has no rows for the architecture."""
        self.table = table
        self.architecture = architecture
        self.family = _family(table, architecture)
        self.rows = [_Compiled(row) for row in self.family.rows]
        self._names = Templates(row.name for row in self.rows)
        written = [(k, row) for k, row in enumerate(self.rows) if not row.row.is_read_only]
        self._places = [(k, term) for k, row in written for term in row.parts]
        self._parts = Templates(template for _, row in written for template in row.parts.values())

    def caveats(self, hub: Shapes, config: Mapping[str, Any]) -> tuple[str, ...]:
        """What a reader of the target should know of a model with these tensors of transformers 4."""
        return tuple(one.text for one in (*self.table.caveats, *self.family.caveats) if one.concerns(hub, config))

    def read(self, tensors: Shapes, facts: Facts, vocabulary: int = 0) -> list[Stored]:
        """What the tensors of a file of this dialect hold; a name that no row has stands for itself.

        `vocabulary` is the number of tokens, if it is known.  LayoutError if a shape contradicts the facts, if two
        tensors hold one part, or if parts stand beside fused tensors; UnknownSize if a size is lacking.
        """
        found = []
        for name, shape in tensors.items():
            row, fields = self._of_dialect(name)
            found.append(whole(name, shape) if row is None else row.read(name, shape, fields, facts(name)))
        # LayoutError if two tensors hold the same elements of a part.
        holders: dict[tuple[str, Shape], str] = {}
        for stored in found:
            for part, start, _ in stored.boxes:
                holder = holders.setdefault((part, start), stored.name)
                if holder != stored.name:
                    raise LayoutError(f"{holder!r} and {stored.name!r} both hold {part!r}")
        # LayoutError if an embedding has another number of rows than there are tokens.
        table = self.table
        templates = Templates(map(Template, table.vocabulary if vocabulary else ()))
        for stored in found:
            if stored.shape[:1] != (vocabulary,) and templates.match(stored.parts[0]) is not None:
                raise LayoutError(
                    f"{stored.name!r} has {stored.shape[0] if stored.shape else 0} rows; "
                    f"expected vocab_size={vocabulary}",
                    hint=f"{table.name} pads the vocabulary: cut the rows that are no token's, or set vocab_size",
                )
        kept = [one.name for one in found if one.parts[0] == one.name]
        self._unmixed(kept)
        _refuse_companions(
            self.table.name,
            [row.name for row in self.rows],
            [name for name in kept if self._of_dialect(name)[0] is None],
        )
        return found

    def write(self, hub: Shapes, facts: Facts) -> list[Stored]:
        """What this dialect stores for tensors of transformers 4; a name that no row has stays.

        LayoutError if a part is missing or contradicts the facts, or if two tensors would have one name.
        """
        groups: dict[tuple[int, str], _Parts] = {}
        found: list[Stored] = []
        kept = []
        for name, shape in hub.items():
            taken = self._of_hub(name, hub)
            if taken is None:
                found.append(whole(name, shape))
                kept.append(name)
                continue
            k, term, fields = taken
            key = (k, repr([(field, fields[field]) for field in sorted(fields) if field != "expert"]))
            groups.setdefault(key, _Parts(self.rows[k], fields)).add(term, name, shape)
        for group in groups.values():  # a missing part, before a bias that has none beside it for that reason
            if group.row.row.is_fused and group.fields.get("kind") != "bias":
                group.check()
        for group in groups.values():
            found += group.stored(facts)
        # LayoutError if the model has a layer of the table under a prefix that the program does not read
        for name, text in self.elsewhere(kept):
            where = f"{self.table.name} has this layer of {self.architecture} at {text.partition(LAYER)[0]}*"
            if name.startswith(ADAPTER):
                raise LayoutError(
                    f"the names begin with {ADAPTER!r}, as those of a PEFT adapter do: {where}",
                    hint="merge the adapter into its model first",
                )
            raise PrefixError(
                f"{name!r}: {where}",
                "the names have another prefix than transformers gives them; `export --rename` changes "
                "it, as in --rename 'module.*=*'",
                name=name,
            )
        seen: set[str] = set()
        for stored in found:
            if stored.name in seen:
                raise LayoutError(f"two tensors would be called {stored.name!r}")
            seen.add(stored.name)
        _refuse_companions(self.table.name, [part for row in self.rows for part in row.parts.values()], kept)
        return found

    def form(self, name: str) -> str:
        """The pattern of a tensor that holds several parts, or one in another form; "" for any other."""
        row, fields = self._of_dialect(name)
        return row.pattern(fields.get("kind") == "bias")[0] if row is not None and row.row.is_fused else ""

    def has_any(self, names: Iterable[str]) -> bool:
        """Whether one of the names is that of a row; where none is, each tensor stands for itself."""
        return self._names.match_any(names)

    def _of_dialect(self, name: str) -> tuple[_Compiled | None, dict[str, str]]:
        k, fields = self._names.match(name) or (-1, {})
        return (None if k < 0 else self.rows[k]), fields

    def _of_hub(self, name: str, hub: Shapes) -> tuple[int, str, dict[str, str]] | None:
        """The row that has a name of transformers 4, its term in it, and the values of the template's fields."""
        for number, fields in self._parts.matches(name):
            k, term = self._places[number]
            when = self.rows[k].when
            if when is None or when.filled(fields) in hub:
                return k, term, fields
        return None

    def elsewhere(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """(a name of transformers 4 that no row has, the template of a row that has it at another place)."""
        parts = {part for row in self.rows for part in row.row.parts.values() if LAYER in part}
        inside = [part for part in parts if not part.startswith(ANYWHERE)]
        ends = Templates(Template(ANYWHERE + part.partition(LAYER)[2]) for part in inside)
        for name in names:
            if (found := ends.match(name)) is not None and self._parts.match(name) is None:
                yield name, inside[found[0]]

    def _unmixed(self, kept: Iterable[str]) -> None:
        """LayoutError if names that stand for themselves are parts of what this dialect fuses."""
        rows = [(row, template) for row in self.rows if row.row.is_fused for template in row.parts.values()]
        fused = Templates(template for _, template in rows)
        names = {*kept}
        for name in kept:
            found = fused.match(name)
            when = rows[found[0]][0].when if found is not None else None
            if found is None or (when is not None and when.filled(found[1]) not in names):
                continue  # DeepSeek-V2-Lite has no q_a_proj, which kv_a_proj_with_mqa would be fused with
            if self._of_dialect(name)[0] is None:
                raise LayoutError(
                    f"{name!r} is a part that {self.table.name} stores fused with others",
                    hint="the file mixes two dialects; see `inspect`",
                )


class _Compiled:
    """A row with its templates."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.name = Template(row.name)
        self.parts = {term: Template(text) for term, text in row.parts.items()}
        self.when = Template(row.when) if row.when else None

    @cached_property
    def has_experts(self) -> bool:
        """Whether the tensor holds those of several experts."""
        return "expert" not in self.name.fields and any("expert" in part.fields for part in self.parts.values())

    @cached_property
    def is_one_expert(self) -> bool:
        """Whether the tensor is one expert's share of a stack."""
        return "expert" in self.name.fields and not any("expert" in part.fields for part in self.parts.values())

    def axes(self, term: str, is_bias: bool) -> str:
        """The axes of a part."""
        axes = (self.row.axes or {}).get(term) or patterns.PARTS[term]
        return patterns.without(axes, patterns.groups(axes)[-1][0]) if is_bias else axes

    def pattern(self, is_bias: bool) -> tuple[str, int]:
        """The pattern, and the axis along which its blocks follow each other."""
        found = self.row.pattern, self.row.along
        return patterns.bias_pattern(*found) if is_bias else found

    def held(self, is_bias: bool) -> str:
        """The pattern of the part's own tensor."""
        return patterns.bias_pattern(self.row.held, 0)[0] if is_bias else self.row.held

    def read(self, name: str, shape: Shape, fields: Mapping[str, str], sizes: Sizes) -> Stored:
        """What the tensor holds."""
        if not self.row.is_fused:
            (template,) = self.parts.values()
            return whole(name, shape, template.filled(fields))
        is_bias = fields.get("kind") == "bias"
        pattern, along = self.pattern(is_bias)
        sizes = rows.solved(name, pattern, along, shape, sizes=sizes)
        parts: dict[str, list[PartTensor]] = {}
        for term, template in self.parts.items() if not self.row.held else ():
            axes = self.axes(term, is_bias)
            one = PartTensor("", axes, rows.part_shape(self.of_one(axes), sizes))
            count = sizes.of("experts") if self.has_experts else 1
            parts[term] = [
                PartTensor(template.filled({**fields, "expert": fields.get("expert", str(k))}), axes, one.shape)
                for k in range(count)
            ]
        found = self.stored(name, parts, sizes, fields)
        if found.shape != shape:
            raise LayoutError(
                f"{name!r} has shape {list(shape)}; expected {list(found.shape)} for {pattern}",
                hint=CHECK,
            )
        return found

    def of_one(self, axes: str) -> str:
        """The axes of a part without that of experts, if the tensor is one expert's share."""
        return patterns.without(axes, patterns.EXPERTS) if self.is_one_expert else axes

    def stored(
        self, name: str, parts: Mapping[str, list[PartTensor]], sizes: Sizes, fields: Mapping[str, str]
    ) -> Stored:
        """The dialect's tensor with the pieces of its parts."""
        is_bias = fields.get("kind") == "bias"
        pattern, along = self.pattern(is_bias)
        if self.row.held:
            (template,) = self.parts.values()
            axes = {term: self.axes(term, is_bias) for term in patterns.terms(pattern)}
            return rebased(name, (pattern, along), (self.held(is_bias), template.filled(fields)), sizes, axes=axes)
        if not self.is_one_expert:
            return rows.stored(name, pattern, along, parts, sizes=sizes)
        (term,) = parts
        (part,) = parts[term]
        axis = patterns.groups(part.axes).index((patterns.EXPERTS,))
        is_stack = len(part.shape) == len(patterns.groups(part.axes))
        shape = (*part.shape[:axis], *part.shape[axis + 1 :]) if is_stack else part.shape
        one = PartTensor(part.name, self.of_one(part.axes), shape)
        stored = rows.stored(name, pattern, along, {term: [one]}, sizes=sizes)
        expert = int(fields["expert"])
        # The same elements of one expert in a stack
        pieces = (
            piece._replace(
                start=(*piece.start[:axis], expert, *piece.start[axis:]),
                digits=(*piece.digits[:axis], (Digit(1, 0, 1),), *piece.digits[axis:]),
            )
            for piece in stored.pieces
        )
        return stored._replace(pieces=tuple(pieces))


class _Parts:
    """The tensors of transformers 4 that one tensor of a dialect holds, or one for each expert."""

    def __init__(self, row: _Compiled, fields: Mapping[str, str]) -> None:
        self.row = row
        self.fields = dict(fields)
        self.found: dict[str, dict[int, tuple[str, Shape]]] = {}

    def add(self, term: str, name: str, shape: Shape) -> None:
        """A part."""
        fields = self.row.parts[term].match(name) or {}
        self.found.setdefault(term, {})[int(fields.get("expert", 0))] = (name, shape)

    def stored(self, facts: Facts) -> Iterator[Stored]:
        """The tensors of the dialect."""
        if not self.row.row.is_fused:
            for tensors in self.found.values():
                for expert, (name, shape) in tensors.items():
                    yield whole(self.row.name.filled({**self.fields, "expert": str(expert)}), shape, name)
            return
        self.check()
        name = self.row.name.filled({"expert": "0", **self.fields})
        is_bias = self.fields.get("kind") == "bias"
        sizes = facts(next(iter(next(iter(self.found.values())).values()))[0])
        if self.row.row.held:
            ((hub, shape),) = (one for tensors in self.found.values() for one in tensors.values())
            sizes = rows.solved(hub, self.row.held(is_bias), 0, shape, sizes=sizes)
            yield self.row.stored(name, {}, sizes, self.fields)
            return
        parts = {
            term: [
                PartTensor(name, self.row.axes(term, is_bias), shape) for _, (name, shape) in sorted(tensors.items())
            ]
            for term, tensors in self.found.items()
        }
        if self.row.has_experts:
            # The sizes with the number of experts that are there; LayoutError if it is known to be another.
            count = len(next(iter(parts.values())))
            if sizes.knows(patterns.EXPERTS) and sizes.of(patterns.EXPERTS) != count:
                raise LayoutError(
                    f"{name!r}: found {count} experts, expected experts={sizes.of(patterns.EXPERTS)}", hint=CHECK
                )
            sizes = sizes.with_one(patterns.EXPERTS, count)
        if "expert" not in self.row.name.fields:
            yield self.row.stored(name, parts, sizes, self.fields)
            return
        count = len(next(iter(self.found.values())))
        if self.row.is_one_expert:
            ((part,),) = parts.values()
            count = part.shape[patterns.groups(part.axes).index((patterns.EXPERTS,))]
        for expert in range(count):
            fields = {**self.fields, "expert": str(expert)}
            own = {term: tensors if self.row.is_one_expert else [tensors[expert]] for term, tensors in parts.items()}
            yield self.row.stored(self.row.name.filled(fields), own, sizes, fields)

    def check(self) -> None:
        """LayoutError if a part or an expert is missing."""
        fields = {"expert": "0", **self.fields}
        there = next(iter(next(iter(self.found.values())).values()))[0]
        for term, template in self.row.parts.items():
            if term not in self.found:
                raise LayoutError(
                    f"{there!r} has no {template.filled(fields)!r} beside it; expected all of: "
                    f"{', '.join(part.filled(fields) for part in self.row.parts.values())}",
                    hint="a shard is missing, the file was converted in part, or config.json is of another model",
                )
        count = max(len(tensors) for tensors in self.found.values())
        for term, tensors in self.found.items():
            for expert in range(count):
                if expert not in tensors and (len(tensors) > 1 or count > 1 or expert):
                    name = self.row.parts[term].filled({**self.fields, "expert": str(expert)})
                    raise LayoutError(f"{name!r} is missing; found {len(tensors)} of {count} experts")


def _family(table: DialectTable, architecture: str) -> ModelRows:
    for family in table.families:
        if architecture in family.models:
            return family
    where = f"the table of {table.name} ({table.version}) lacks {architecture or 'a model without `architectures`'}"
    if why := {**table.unread, **table.refused}.get(architecture, ""):
        raise LayoutError(f"{where}: {why}", hint=_not_needed(table))
    known = sorted(table.models)
    near = nearest(_stem(architecture), dict.fromkeys(map(_stem, known)))
    similar = [name for one in near for name in known if _stem(name) == one] if len(known) > FEW else []
    lists = f"`paramtool layouts {table.name}` lists the {len(known)} that it has"
    hints = (
        f"similar names that it has: {', '.join(similar)}" if similar else "",
        _not_needed(table) or (f"it has one for {', '.join(known)}" if len(known) <= FEW else lists),
    )
    raise LayoutError(where, hint="; ".join(filter(None, hints)))


def _stem(architecture: str) -> str:
    """The name of a model's class without what it is for, which most have in common.

    >>> _stem("GPTNeoXForCausalLM"), _stem("GPT2LMHeadModel"), _stem("BertModel")
    ('GPTNeoX', 'GPT2', 'Bert')
    """
    return re.sub(r"(?<=\w)(For[A-Z]\w*|LMHeadModel|Model)$", "", architecture)


class PrefixError(LayoutError):
    """A layer has another prefix than its model's; `name` is a tensor of it."""

    def __init__(self, message: str, hint: str = "", *, name: str = "") -> None:
        super().__init__(message, hint)
        self.name = name


ADAPTER = "base_model.model."
"""What PEFT puts in front of all names of an adapter."""
FEW = 3
"""How many models of a table a hint lists."""


def _not_needed(table: DialectTable) -> str:
    """What to do where a program opens folders of transformers itself."""
    if table.name != "vllm":
        return ""
    return (
        "if vLLM runs this model, give it the folder as it is: only --load-format sharded_state needs other names; "
        "`paramtool layouts vllm` lists the models with a table"
    )


def _refuse_companions(dialect: str, templates: Sequence[Template], names: Sequence[str]) -> None:
    """LayoutError if a name that no row has belongs to a tensor that a row has: a scale, or a factor of LoRA."""
    known = Templates(templates)
    names = [name for name in names if known.match(name) is None]
    kinds = (".{kind}", ".weight", ".bias")
    tensors = {template.text for template in templates if not template.text.endswith("{rest}")} if names else ()
    modules = {next((one.removesuffix(kind) for kind in kinds if one.endswith(kind)), "") for one in tensors}
    contents = [module + ".{rest}" for module in modules if module]
    contents += [one + mark + "{rest}" for one in tensors if not one.endswith(kinds) for mark in "._"]
    inside = Templates(map(Template, contents))
    for name in names:
        if inside.match(name) is not None:
            if name.endswith(".bias"):
                raise LayoutError(
                    f"{name!r} is a bias, and {dialect} has no place for it: its model computes without one",
                    hint="convert to a dialect that has it; `paramtool layouts` lists them",
                )
            raise LayoutError(
                f"{name!r} belongs to a tensor that {dialect} stores otherwise, and is no weight or bias of the table",
                hint="remove the quantisation or merge the adapter first",
            )


# --- A fused tensor of transformers 4 in another fused form, as BLOOM's `query_key_value` in vLLM --------------------
#
# Both are patterns of the same terms; the tensor of transformers 4 is cut into the runs that stand together in both.


def rebased(
    name: str, pattern: tuple[str, int], held: tuple[str, str], sizes: Sizes, *, axes: Mapping[str, str]
) -> Stored:
    """The tensor of a pattern along an axis, as pieces of the tensor that holds it.

    `pattern` is (pattern, axis), `held` is (pattern along axis 0, name), `axes` are those of each term's part.
    """
    content, along = pattern
    holding, hub = held
    parts = {term: [PartTensor(term, of, rows.part_shape(of, sizes))] for term, of in axes.items()}
    mine = rows.stored(name, content, along, parts, sizes=sizes)
    other = rows.stored(hub, holding, 0, parts, sizes=sizes)
    pieces = []
    for term in parts:
        of_term = ([piece for piece in side.pieces if piece.part == term] for side in (mine, other))
        pieces += [piece for pair in joined(*of_term) for piece in _dense(pair, hub)]
    return Stored(name, mine.shape, tuple(pieces))


def _dense(pair: Pair, hub: str) -> Iterator[Piece]:
    """The boxes of the holding tensor that a pair of pieces covers, one for each value of the digits that skip rows."""
    cut = []
    for mine, other in zip(pair.mine.digits, pair.other.digits, strict=True):
        dense, inner = 0, 1
        for digit in reversed(other):
            if digit.length != 1 and digit.step != inner:
                break
            inner *= digit.length
            dense += 1
        k = len(other) - dense
        cut.append((mine[:k], other[:k], mine[k:], inner))
    for values in product(*(_values(mine, other) for mine, other, _, _ in cut)):
        start, at = list(pair.other.at), list(pair.mine.at)
        for moved in values:
            for digit, far, value in moved:
                start[far.axis] += far.step * value
                at[digit.axis] += digit.step * value
        digits: list[Digits] = [rest or (Digit(1, 0, 1),) for _, _, rest, _ in cut]
        yield Piece(hub, tuple(start), tuple(digits), tuple(at))


def _values(mine: Digits, other: Digits) -> list[tuple[tuple[Digit, Digit, int], ...]]:
    """Every choice of values of some digits."""
    assert prod(digit.length for digit in mine) == prod(digit.length for digit in other)
    return [
        tuple(zip(mine, other, chosen, strict=True)) for chosen in product(*(range(digit.length) for digit in mine))
    ]
