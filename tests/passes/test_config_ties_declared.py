"""`passes/config_ties/declared.py` and `model/config.py`: what a config declares of ties, beside what a file stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramtool.model import alias
from paramtool.model.checkpoint import Compound, Entry, Link, Section
from paramtool.model.config import Config, _table, version
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View
from paramtool.passes.config_ties import declared
from paramtool.passes.config_ties.declared import Declared
from tests.examples import examples
from tests.passes.made import checkpoint, view

WTE, HEAD = "transformer.wte.weight", "lm_head.weight"
T5 = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD]
WORDS = "tie_word_embeddings"
SPARSE = Compound("sparse_coo", {"values": view(0, 2)})


def config(said: bool | Mapping[str, bool] | None = None, **types: str) -> Config:
    """A config that says that, or only so of its words; `_` is the outermost model type."""
    words = {} if said is None else {WORDS: said} if isinstance(said, bool) else said
    return Config("config.json", words, {"" if key == "_" else key: one for key, one in types.items()})


def rows(one: Config, file: dict[str, Any], sections: Any = ()) -> list[Declared]:
    """The table of a config and a file."""
    made = checkpoint(file, sections=sections)
    return declared.table(one, made, alias.build(made, parts=False))


def says(one: Config, *names: str) -> list[tuple[bool | None, str]]:
    """What a config says of each tie among names, and why."""
    return [(row.says, row.because) for row in declared.expected(one, names)]


@pytest.mark.parametrize("said", [True, False, None])
def test_what_the_file_says_without_reading(said: bool | None) -> None:
    """One name, one memory, other shapes, bytes that are stored once for two memories, and what nobody compared."""
    sliced, turned = view(0, 4, 4), View(0, DTYPES["float32"], 0, (4, 6), (1, 4))
    once = Entry(view(0, 6, 4), link=Link(HEAD, "storage", 1, WTE, True))
    tied, broken = {True: "tied", False: "shared-though-denied", None: "undeclared"}[said], said is False
    equal = {True: "equal-not-tied", False: "equal-though-denied", None: "undeclared-equal"}[said]
    for other, expect in (
        (view(0, 6, 4), ("one memory", "", tied)),
        (sliced, ("one memory", "slice", tied)),
        (turned, ("one memory", "transpose", tied)),
        (once, ("equal bytes", "stored once", equal)),
        ((8, 4), ("different shapes", "[6, 4] and [8, 4]", "diverged" if said else "apart")),
        ((6, 4), ("not compared", "", "not-compared")),
        (Entry(SPARSE), ("not compared", f"{HEAD} is Compound, not a plain tensor", "not-compared")),
    ):
        first = Entry(view(0, 6, 4), link=Link(WTE, "storage")) if other is once else (6, 4)
        (row,) = rows(config(said), {WTE: first, HEAD: other})
        assert (row.tie.names, row.says) == ((WTE, HEAD), said)
        assert (row.file, row.detail, row.result) == expect
        assert row.apart == ((WTE, HEAD) if row.file == "different shapes" else None) and row.largest is None
        assert (row.result in declared.BROKEN) is (broken if row.file == "one memory" else row.result == "diverged")
    (row,) = rows(config(said), {WTE: (6, 4)})
    assert (row.tie.names, row.file, row.result) == ((WTE,), "one name", "one-name")
    states = (
        declared.MEMORY,
        declared.NAME,
        declared.EQUAL,
        declared.DIFFERENT,
        declared.SHAPES,
        declared.DTYPES,
        declared.UNKNOWN,
    )
    assert all((said, state) in declared.RESULTS for state in states)


def test_what_has_to_be_read_and_what_comes_of_it() -> None:
    """One name of each memory, the tie's first first; then equal, of other types, or of other bytes."""
    file = {T5[1]: (6, 4), T5[0]: (6, 4), T5[2]: view(0, 6, 4), HEAD: view(1, 6, 4)}
    made = checkpoint(file)
    graph = alias.build(made)
    sides, head = sorted(declared.table(config(True), made, graph), key=lambda row: row.tie.kind, reverse=True)
    assert declared.unread(sides, graph) == [T5[0], T5[1]] and declared.unread(head, graph) == []
    types, pair = ("float32", "float32"), (T5[0], T5[1])
    equal = declared.compared(sides, None, types, None)
    assert (equal.file, equal.detail, equal.result, equal.apart) == (
        "equal bytes",
        "stored twice",
        "equal-not-tied",
        None,
    )
    other = declared.compared(sides, pair, types, 0.5)
    assert (other.file, other.apart, other.largest, other.result) == ("different bytes", pair, 0.5, "diverged")
    cast = declared.compared(sides, pair, ("float32", "bfloat16"), 0.1)
    assert (cast.file, cast.apart, cast.largest, cast.detail) == ("different dtypes", pair, 0.1, "float32 and bfloat16")
    part = {T5[0]: (6, 4), T5[1]: view(0, 4, 4), T5[2]: (6, 4)}
    assert rows(config(True), part)[0].file == "not compared"
    odd = {WTE: (6, 4), HEAD: Entry(SPARSE)}
    assert declared.unread(*rows(config(True), odd), alias.build(checkpoint(odd), parts=False)) == []


@pytest.mark.parametrize(
    "one, expect",
    [
        (config(True, _="llama"), (True, "tie_word_embeddings is true")),
        (config({f"text_config.{WORDS}": False}, _="gpt2"), (False, "text_config.tie_word_embeddings is false")),
        (config({f"text_config.llm_config.{WORDS}": True}),
         (True, "text_config.llm_config.tie_word_embeddings is true")),
        (config({f"vision_config.{WORDS}": True}), (None, "not said")),
        (config({f"text_config.vision_config.{WORDS}": True}), (None, "not said")),
        (config({WORDS: True, f"text_config.{WORDS}": False}),
         (True, "tie_word_embeddings is true (text_config.tie_word_embeddings is false, which transformers 4 reads)")),
        (config({WORDS: True, f"text_config.{WORDS}": True}), (True, "tie_word_embeddings is true")),
    ],
)  # fmt: skip
def test_where_a_config_says_it(one: Config, expect: object) -> None:
    """Outermost, in its text config, both; not in a config of something else."""
    assert says(one, WTE, HEAD) == [expect]


TYPES = [(name, True) for name in sorted(_table()["tied"])]
TYPES += [(name, False) for name in sorted(_table()["untied"])] + [("nobodys-own", None)]  # type: ignore[list-item]


@given(st.sampled_from(TYPES))
@settings(max_examples=examples(50))
def test_defaults(known: tuple[str, bool | None]) -> None:
    """An absent setting is what its model type has by default, of a known version; what is said counts before it."""
    name, default = known
    because = f"; {str(default).lower()} is the default of {name} in transformers {version()}"
    assert says(config(_=name), WTE, HEAD) == [(default, "not said" + ("" if default is None else because))]
    assert [says(config(said, _=name), WTE, HEAD)[0][0] for said in (True, False)] == [True, False]


def test_defaults_that_are_known() -> None:
    """Types that everybody knows, and none is of both kinds."""
    assert {"gpt2", "bert", "t5", "gemma", "whisper", "opt", "xlm-roberta"} <= {*_table()["tied"]}
    assert {"llama", "mistral", "qwen2", "gpt_neox", "gptj", "mixtral", "phi3"} <= {*_table()["untied"]}
    assert not {*_table()["tied"]} & {*_table()["untied"]}


def test_only_the_head_is_denied() -> None:
    """`false` says nothing of sides, `true` declares them; Marian's own setting is about the sides."""
    assert [one[0] for one in says(config(False), *T5)] == [None, False]
    assert "which is about the output head" in says(config(False), *T5)[0][1]
    assert [one[0] for one in says(config(_="llama"), *T5)] == [None, False]
    assert [one[0] for one in says(config(True), *T5)] == [True, True]


def test_a_config_of_a_module_is_about_its_head() -> None:
    """A decoder's own setting or type, before that of the whole; what neither says is the outer one's."""
    names = ["decoder.embed_tokens.weight", "decoder.lm_head.weight"]
    assert says(config({WORDS: True, f"decoder.{WORDS}": False}), *names)[0][0] is False
    assert says(config({WORDS: True, f"decoder_config.{WORDS}": False}), *names)[0][0] is False
    assert says(config(False, _="x", decoder="bert"), *names)[0][0] is True
    assert says(config(False, decoder="x"), *names) == [(False, "tie_word_embeddings is false")]
    assert says(config({WORDS: True, f"decoder.{WORDS}": False}), WTE, HEAD)[0][0] is True
    inner = config({f"decoder.{WORDS}": True, f"decoder.a.{WORDS}": False})
    assert says(inner, "decoder.a.embed_tokens.weight", "decoder.a.lm_head.weight")[0][0] is False


def test_layers_prefixes_and_wrappers() -> None:
    """A decoder that is its encoder; what stands before a model is no part of its names."""
    pair = ("net.module.encoder.w", "net.module.decoder.w")
    (row,) = declared.expected(config({"tie_encoder_decoder": True}), pair, "net.")
    assert (row.tie.kind, row.tie.names, row.why) == ("layers", pair, "tie_encoder_decoder is true, by name")
    assert declared.expected(config({"tie_encoder_decoder": False}), pair, "net.") == []
    wrapped = ["net.module.wte.weight", "net.module.output.weight"]
    assert [row.tie.names for row in declared.expected(config(True), wrapped, "net.")] == [tuple(wrapped)]
    assert [row.tie.names for row in declared.expected(config(True), [*wrapped, "net.b"], "net.")] == [(wrapped[0],)]


def test_a_class_knows_better_than_names() -> None:
    """Its ties are declared and others denied, where the names are its; what the table lacks stays by name."""
    bert = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
    file = dict.fromkeys((*bert, "cls.predictions.bias", "cls.predictions.decoder.bias"), (2,))
    tied = replace(config(True, _="bert"), architecture="BertForMaskedLM")
    found = rows(tied, file)
    assert [(row.tie.kind, row.tie.names, row.says) for row in found] == [
        ("head", bert, True), ("other", ("cls.predictions.bias", "cls.predictions.decoder.bias"), True),
    ]  # fmt: skip
    assert {row.why for row in found} == {f"BertForMaskedLM of transformers {version()} ties them"}
    (row,) = rows(
        replace(config(True, _="bigbird_pegasus"), architecture="BigBirdPegasusForCausalLM"), {WTE: (2,), HEAD: (2,)}
    )
    assert (row.says, row.why) == (False, f"BigBirdPegasusForCausalLM of transformers {version()} does not tie them")
    for one in (
        tied,
        replace(config(True), architecture="Nobodys"),
        replace(config(True), architecture="ZambaForCausalLM"),
    ):
        (row,) = rows(one, {WTE: (2,), HEAD: (2,)})
        assert (row.tie.names, row.says, row.why) == ((WTE, HEAD), True, "tie_word_embeddings is true, by name")
    assert [row.says for row in rows(replace(tied, said={WORDS: False}), file)] == [False]


def test_memory_that_nothing_declares_and_sections() -> None:
    """Listed beside the ties; each outermost section is a model of its own, an optimizer none."""
    file = {"m.wte.weight": (2,), "m.lm_head.weight": view(0, 2), "wte.weight": (2,), "lm_head.weight": (2,),
            "a.w": (3,), "a.v": view(3, 3), "o.wte.weight": Entry(view(4, 2), "optimizer")}  # fmt: skip
    sections = [
        Section("m", "m.", "model"),
        Section("m.lm_head", "m.lm_head.", "model"),
        Section("o", "o.", "optimizer"),
    ]
    found = [(row.tie.kind, row.tie.names, row.result) for row in rows(config(True), file, sections=sections)]
    assert found == [
        ("head", ("m.wte.weight", "m.lm_head.weight"), "tied"),
        ("head", ("wte.weight", "lm_head.weight"), "not-compared"), ("other", ("a.w", "a.v"), "undeclared"),
    ]  # fmt: skip
    file = {"m.b.wte.weight": (2,), "m.a.wte.weight": (2,), "m.lm_head.weight": (2,)}
    sections = [Section("m.b", "m.b.", "model"), Section("m", "m.", "model")]
    assert [row.tie.names for row in rows(config(True), file, sections=sections)] == [
        ("m.b.wte.weight", "m.lm_head.weight")
    ]
    of_training = {WTE: (2,), HEAD: Entry(view(1, 2), "optimizer")}
    assert [row.tie.names for row in rows(config(True), of_training)] == [(WTE,)]
    chain = {T5[0]: (2,), **dict.fromkeys(T5[1:], view(0, 2))}
    assert [row.result for row in rows(config(True), chain)] == ["tied", "tied"]


def test_what_a_config_does_not_tie() -> None:
    """Later names of one memory that nothing declares, whole ones only; not those that another tie declares."""

    def loose(one: Config, file: dict[str, Any]) -> set[str]:
        made = checkpoint(file)
        return declared.untied(one, made, alias.build(made, parts=False))

    shared = {WTE: (6, 4), HEAD: view(0, 6, 4), "part": view(0, 2, 4)}
    assert loose(config(False), shared) == {HEAD} and loose(config(), shared) == {HEAD}
    assert loose(config(True), {WTE: (6, 4), HEAD: view(0, 6, 4)}) == set()
    assert loose(config(False), {WTE: (6, 4), HEAD: (6, 4)}) == set()
    marian = config({WORDS: False, "share_encoder_decoder_embeddings": True})
    assert loose(marian, {T5[0]: (2,), **dict.fromkeys(T5[1:], view(0, 2))}) == {HEAD}
    layers = config({"share_encoder_decoder_embeddings": False, "tie_encoder_decoder": True})
    assert loose(layers, {T5[0]: (2,), **dict.fromkeys(T5[1:3], view(0, 2))}) == set()


def test_ties_between_two_names() -> None:
    """Also where the file lacks one; over a chain; not between sections, and not where no table knows them."""
    made = checkpoint({"m.shared.weight": (2,), "n.w": (2,)}, sections=[Section("m", "m.", "model")])
    (head,) = declared.between(config(True), made, "m.shared.weight", "m.lm_head.weight")
    assert (head.says, head.tie.names) == (True, ("m.shared.weight", "m.lm_head.weight"))
    assert [row.says for row in declared.between(config(False), made, "m.lm_head.weight", "m.shared.weight")] == [False]
    assert declared.between(config(True), made, "m.shared.weight", "lm_head.weight") == ()
    assert declared.between(config(True), made, "lm_head.weight", "m.shared.weight") == ()
    assert declared.between(config(True), made, "m.shared.weight", "m.w") == ()
    sides = checkpoint({T5[0]: (2,), T5[2]: (2,)})
    assert [row.tie.kind for row in declared.between(config(True), sides, T5[2], HEAD)] == ["sides", "head"]
    assert {row.says for row in declared.between(config(False), sides, T5[2], HEAD)} == {None, False}
    shared = config({WORDS: False, "share_encoder_decoder_embeddings": True})
    assert [row.tie.kind for row in declared.between(shared, checkpoint(dict.fromkeys(T5, (2,))), T5[1], T5[2])] == [
        "sides"
    ]
