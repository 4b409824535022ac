"""Every row of every table: its templates, its pattern, and there and back with its numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool import dialects
from paramtool.dialects.dialect import Dialect
from paramtool.dialects.template import DialectTable, Row, Template, table
from paramtool.errors import LayoutError
from paramtool.layouts.pattern import blocks
from paramtool.package_data import package_data
from paramtool.parts import patterns
from paramtool.parts import rows as part_rows
from paramtool.parts.pieces import Stored, whole
from paramtool.parts.sizes import Sizes
from paramtool.passes.diff.names import exchanged
from tests.dialects.moved import moved, shapes
from tests.examples import examples

TABLES = VLLM, MEGATRON, META, TORCH_MHA, TIMM, GLUONNLP, INTERLEAVED = tuple(map(table, dialects.TABLES))
PER_GROUP = [
    (MEGATRON, "LlamaForCausalLM", "model.layers.0.self_attn.{}_proj.weight"),
    (META, "LlamaForCausalLM", "model.layers.0.self_attn.{}_proj.weight"),
    (VLLM, "Llama4ForCausalLM", "model.layers.0.self_attn.{}_proj.weight"),
]
PER_HEAD = [
    (INTERLEAVED, "BertModel", "encoder.layer.0.attention.self.{}.weight"),
]
"""(table, model, what its queries, keys and values are called): facts that no shape shows decide about rows."""
SIZES = {
    "heads": 6,
    "kv_heads": 3,
    "head_dim": 4,
    "rotary": 4,
    "value_dim": 4,
    "experts": 3,
    "ffn": 5,
    "in": 7,
    "out": 7,
    "rows": 6,
    "q_rank": 3,
    "latent": 5,
}
FIELDS = {"layer": "2", "kind": "weight", "path": "model.layers.1.part", "rest": "weight"}


def _families() -> list[tuple[DialectTable, str]]:
    return [(table, family.models[0]) for table in TABLES for family in table.families if family.rows]


def _facts(dialect: Dialect) -> Sizes:
    """What a config would say: as many KV heads as heads where the tables have no groups."""
    is_per_head = any("{heads:" in row.pattern + row.held for row in dialect.family.rows)
    known = {word: SIZES[word] for word in ("heads", "kv_heads", "head_dim", "rotary", "experts", "q_rank")}
    return Sizes({**known, "kv_heads": SIZES["heads"]} if is_per_head else known)


def _hub(row: Row, lengths: Mapping[str, int] = SIZES, known: Mapping[str, str] = FIELDS) -> dict[str, tuple[int, ...]]:
    """Tensors of transformers 4 that the row takes."""
    found = {}
    sizes = Sizes({**lengths, "kv_heads": lengths["heads"]} if "{heads:" in row.pattern + row.held else lengths)
    for term, text in row.parts.items():
        axes = (row.axes or {}).get(term) or patterns.PARTS.get(term, "out in")
        shape = part_rows.part_shape(axes, sizes)
        if row.held:
            shape = (part_rows.extent(patterns.parsed(row.held), 0, sizes), lengths["in"])
        for expert in range(lengths["experts"] if "{expert}" in text else 1):
            found[Template(text).filled({**known, "expert": str(expert)})] = shape
    if row.when:
        found.setdefault(Template(row.when).filled(known), (3, 7))
    return found


def _numbered(hub: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Tensors in which no two elements are equal."""
    sizes = [torch.Size(shape).numel() for shape in hub.values()]
    begins = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    return {
        name: torch.arange(a, b, dtype=torch.float32).reshape(shape)
        for (name, shape), (a, b) in zip(hub.items(), pairwise(begins), strict=True)
    }


@pytest.mark.parametrize(("table", "model"), _families(), ids=lambda value: getattr(value, "name", value))
def test_each_row_there_and_back(table: DialectTable, model: str) -> None:
    dialect = Dialect(table, model)
    facts = _facts(dialect)
    for row in (row for row in dialect.family.rows if not row.is_read_only):
        hub = _numbered(_hub(row))
        made = dialect.write(shapes(hub), lambda name: facts)
        there = moved(hub, [whole(name, tuple(hub[name].shape)) for name in hub], made)
        read = dialect.read(shapes(there), lambda name: facts)
        assert sorted(one.name for one in read) == sorted(there)
        back = moved(there, read, [whole(name, tuple(hub[name].shape)) for name in hub])
        assert all(torch.equal(back[name], hub[name]) for name in hub), row.name
        assert any(Template(row.name).match(name) is not None for name in there), (row.name, sorted(there))


@pytest.mark.sample(28)
@pytest.mark.parametrize(("table", "model"), _families(), ids=lambda value: getattr(value, "name", value))
def test_no_dialect_exchanges_names(table: DialectTable, model: str) -> None:
    """In the eyes of `diff`, which warns of tensors in each other's places; here all are of one shape."""
    dialect = Dialect(table, model)
    facts = _facts(dialect)
    pairs = []
    for layer in "0123":
        known = {**FIELDS, "layer": layer, "path": f"model.layers.{layer}.part"}
        for row in (row for row in dialect.family.rows if not row.is_read_only):
            made = dialect.write(_hub(row, known=known), lambda name: facts)
            pairs += [(piece.part, one.name) for one in made for piece in one.pieces]
    olds, news = ({pair[k]: pair for pair in reversed(pairs)} for k in (0, 1))
    assert len(pairs) >= 4 and exchanged([*news.values()], lambda one, other: True) == []
    assert exchanged([(new, old) for old, new in olds.values()], lambda one, other: True) == []


@pytest.mark.parametrize(("table", "model"), _families(), ids=lambda value: getattr(value, "name", value))
def test_names_that_are_only_read_hold_the_same_parts(table: DialectTable, model: str) -> None:
    dialect = Dialect(table, model)
    facts = _facts(dialect)
    for row in (row for row in dialect.family.rows if row.is_read_only):
        fields = {**FIELDS, "expert": "0"}
        names = [Template(text).filled(fields) for text in row.parts.values()]
        read = dialect.read({Template(row.name).filled(fields): _shape(row)}, lambda name: facts)
        assert {piece.part for piece in read[0].pieces} == set(names)


def _shape(row: Row) -> tuple[int, ...]:
    """A shape that the tensor of a row may have."""
    if not row.is_fused:
        return (7, 7)
    items, sizes = (
        patterns.parsed(row.pattern),
        Sizes({**SIZES, "kv_heads": 6} if "{heads:" in row.pattern else SIZES),
    )
    block = next(blocks(items))
    return tuple(
        part_rows.extent(items, k, sizes) if k == row.along else torch.Size([sizes.of(word) for word in group]).numel()
        for k, group in enumerate(block.axes)
    )


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_table_has_a_source_for_what_it_fuses(table: DialectTable) -> None:
    assert [row.name for family in table.families for row in family.rows if row.is_fused and not row.source] == []


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_model_is_in_one_family_and_not_refused(table: DialectTable) -> None:
    models = Counter(name for family in table.families for name in family.models)
    assert [name for name, count in models.items() if count > 1] == []
    assert not models.keys() & table.refused.keys()


def test_counts_of_the_generated_table() -> None:
    """Those of vLLM 0.33.0; docs/make_vllm_names.py says the same of its wheel."""
    made = json.loads(package_data("dialects", "tables", "vllm_0_33.json"))
    assert made["version"] == VLLM.version == "0.33.0"
    assert len(made["families"]) == 14
    assert sum(len(family["models"]) for family in made["families"]) == 58
    assert sum(map(len, made["refused"].values())) == 107


def test_changes_of_values_are_refused_under_that_name() -> None:
    for of, model in ((MEGATRON, "Qwen3NextForCausalLM"), (VLLM, "MambaForCausalLM")):
        with pytest.raises(Exception, match="changes values") as error:
            Dialect(of, model)
        assert error.value.exit_code == 5


def test_stored_is_in_the_order_of_the_file() -> None:
    made = Dialect(META, "LlamaForCausalLM").write({"model.norm.weight": (4,), "other": (2,)}, lambda name: Sizes({}))
    assert [one.name for one in made] == ["other", "norm.weight"]
    assert all(isinstance(one, Stored) for one in made)


@pytest.mark.sample(10)
@settings(deadline=None, max_examples=examples(25))
@given(st.data())
@pytest.mark.parametrize(("table", "model"), _families(), ids=lambda value: getattr(value, "name", value))
def test_any_sizes_there_and_back(table: DialectTable, model: str, data: st.DataObject) -> None:
    """The places of a tensor's parts tile it, and every element comes back, whatever the sizes are."""
    dialect = Dialect(table, model)
    is_per_head = any("{heads:" in row.pattern + row.held for row in dialect.family.rows)
    group = 1 if is_per_head else data.draw(st.integers(1, 4), label="group")
    sizes = {word: data.draw(st.integers(1, 5), label=word) for word in ("kv_heads", "experts", "ffn", "in", "out")}
    dim = 2 * data.draw(st.integers(1, 4), label="half")
    known = {"heads": group * sizes["kv_heads"], "kv_heads": sizes["kv_heads"], "head_dim": dim, "rotary": dim}
    facts = Sizes({**known, "experts": sizes["experts"], "q_rank": SIZES["q_rank"]})
    rows_ = [row for row in dialect.family.rows if not row.is_read_only]
    row = data.draw(st.sampled_from(rows_), label="row")
    hub = _numbered(_hub(row, {**SIZES, **sizes, **known, "value_dim": dim, "rows": 3}))
    plain = [whole(name, tuple(hub[name].shape)) for name in hub]
    there = moved(hub, plain, dialect.write(shapes(hub), lambda name: facts))
    assert sorted(value for one in there.values() for value in one.flatten().tolist()) == sorted(
        value for one in hub.values() for value in one.flatten().tolist()
    )
    back = moved(there, dialect.read(shapes(there), lambda name: facts), plain)
    assert all(torch.equal(back[name], hub[name]) for name in hub)


@settings(deadline=None, max_examples=examples(25))
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from(PER_GROUP + PER_HEAD))
def test_another_fact_gives_other_bytes(
    kv_heads: int, group: int, half: int, case: tuple[DialectTable, str, str]
) -> None:
    """Twice the heads of half the size have the same shapes, and another order of rows."""
    table, model, name = case
    group = group if case in PER_GROUP else 1
    terms = ("query", "key", "value") if case in PER_HEAD else ("q", "k", "v")
    dim = 4 * half
    rows_ = (group * kv_heads * dim, kv_heads * dim, kv_heads * dim)
    hub = _numbered({name.format(term): (count, 3) for term, count in zip(terms, rows_, strict=True)})
    plain = [whole(one, tuple(hub[one].shape)) for one in hub]
    found = []
    for factor in (1, 2):
        facts = Sizes(
            {
                "heads": factor * group * kv_heads,
                "kv_heads": factor * kv_heads,
                "head_dim": dim // factor,
                "rotary": dim // factor,
            }
        )
        made = Dialect(table, model).write(shapes(hub), lambda _, facts=facts: facts)
        found.append(moved(hub, plain, made))
    assert shapes(found[0]) == shapes(found[1])
    assert any(not torch.equal(found[0][one], found[1][one]) for one in found[0])


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("MiMoV2FlashForCausalLM", r"code that does more than join and rename \(mimo_v2\.py:866\)"),
        ("DbrxForCausalLM", r"does more than join and rename"),
        (
            "GPTNeoXForCausalLM",
            r"vLLM runs transformers' own class \(models/registry\.py, _TRANS",
        ),
        ("WhisperForConditionalGeneration", "several towers, whose packed mappings the table does not carry"),
        ("BaichuanForCausalLM", "vLLM no longer has this class"),
        ("EagleLlamaForCausalLM", "drafts tokens for another"),
        ("BertForTokenClassification", "the table does not carry its packed mapping"),
    ],
)
def test_models_of_vllm_without_a_table_are_refused_by_name(model: str, why: str) -> None:
    """With the version that was read, the reason, and what to do."""
    with pytest.raises(LayoutError, match=rf"^the table of vllm \(0\.33\.0\) lacks {model}: .*{why}") as error:
        Dialect(VLLM, model)
    assert error.value.exit_code == 5
    assert "give it the folder as it is" in error.value.hint
    assert "`paramtool layouts vllm` lists" in error.value.hint


def test_no_model_has_rows_and_a_reason_why_it_has_none() -> None:
    with_rows = {name for family in VLLM.families for name in family.models}
    assert not VLLM.unread.keys() & (with_rows | VLLM.refused.keys())
    assert len(VLLM.unread) == 288
    with pytest.raises(LayoutError, match=r"^the table of vllm \(0\.33\.0\) lacks NoSuchModel") as error:
        Dialect(VLLM, "NoSuchModel")
    assert "`paramtool layouts vllm`" in error.value.hint
