"""Rules that rename, and what is said where one does not fit."""

from __future__ import annotations

import pytest

from paramtool.errors import UsageError
from paramtool.passes.renaming import RenamingRule, parse, renamed
from paramtool.passes.select import advice, alike


@pytest.mark.parametrize(
    "rule, name, new",
    [
        ("lm_head.weight=head.weight", "lm_head.weight", "head.weight"),
        ("lm_head.weight=head.weight", "x.lm_head.weight", None),
        ("bert.*=*", "bert.encoder.w", "encoder.w"),
        ("bert.*=*", "albert.encoder.w", None),
        ("*.gamma=*.weight", "ln.gamma", "ln.weight"),
        ("*=model.*", "w", "model.w"),
        ("h.*.attn.*=layers.*.self.*", "h.3.attn.q.w", "layers.3.self.q.w"),
        ("*.w*=*.v*", "a.w.w", "a.v.w"),
        ("a*a=b*", "a", None),
        ("a*a=b*", "aa", "b"),
        ("a.b=c", "axb", None),
        ("a[0]*=b*", "a[0].w", "b.w"),
        ("é*=e*", "é.w", "e.w"),
        ("*\n*=*n*", "a\nb", "anb"),
    ],
)
def test_one_rule_on_one_name(rule: str, name: str, new: str | None) -> None:
    """Stars take any text, everything else stands for itself, and the whole name has to fit."""
    assert parse(rule).apply(name) == new


@pytest.mark.parametrize("text", ["", "=", "a", "a=", "=b", "a=b=c", "a.*=b", "a=b.*", "*.*=*"])
def test_what_is_no_rule(text: str) -> None:
    """Refused with the text of the rule and an example."""
    with pytest.raises(UsageError) as error:
        parse(text)
    assert repr(text) in str(error.value) and "FROM=TO" in error.value.hint + "FROM=TO" * ("star" in str(error.value))


def test_a_rule_takes_one_pass_over_a_name() -> None:
    """Many stars and a long name that nearly fits: what would keep a backtracking matcher for ever."""
    rule = RenamingRule("*a" * 30 + "b", "*c" * 30 + "d")
    assert rule.apply("a" * 100_000) is None


def test_rules_see_what_those_before_them_made() -> None:
    """The order decides, and two names change places by way of a third."""
    names = ["bert.ln.gamma", "bert.ln.beta", "cls.w"]
    steps = [parse("bert.*=*"), parse("ln.gamma=ln.weight")]
    assert list(renamed(names, "", steps)) == ["ln.weight", "ln.beta", "cls.w"]
    swapped = renamed(["a", "b"], "", [parse("a=t"), parse("b=a"), parse("t=b")])
    assert swapped == {"b": "a", "a": "b"}
    with pytest.raises(UsageError, match=r"'a=b'.*matches none"):
        renamed(["c"], "", [parse("a=b")])
    with pytest.raises(UsageError, match=r"'bert\.\*=\*'.*matches none of 1 name, such as 'w'"):
        renamed(["bert.w"], "bert.", [parse("bert.*=*")])


def test_a_prefix() -> None:
    """What begins with it, without it; said where nothing does, and where a dot was forgotten."""
    names = ["bert.w", "bert.b", "head.w"]
    assert renamed(names, "bert.") == {"w": "bert.w", "b": "bert.b"}
    assert renamed(names) == {name: name for name in names}
    with pytest.raises(UsageError, match=r"'model'.*none of 3 names") as error:
        renamed(names, "model")
    assert "'bert.', 'head.'" in error.value.hint
    with pytest.raises(UsageError, match="begin with a dot") as error:
        renamed(names, "bert")
    assert error.value.hint == "use --prefix bert."
    with pytest.raises(UsageError, match=r"'head\.w': its new name is empty"):
        renamed(names, "head.w")


def test_a_collision_names_both() -> None:
    """All of them are listed, each with the two names and the one that they would share."""
    with pytest.raises(UsageError) as error:
        renamed(["a.w", "b.w", "a.v", "b.v", "c"], "", [parse("a.*=*"), parse("b.*=*")])
    assert "2 names" in str(error.value)
    assert "'a.w' and 'b.w' would both be 'w'" in str(error.value)
    assert "'a.v' and 'b.v' would both be 'v'" in str(error.value)
    with pytest.raises(UsageError, match="'b' and 'a' would both be 'b'"):
        renamed(["b", "a"], "", [parse("a=b")])


def test_near_misses() -> None:
    """Names that look like one, those with the same last part before others."""
    names = {"encoder.layer.0.attention.weight": 1, "encoder.layer.0.attention.bias": 2, "wte.weight": 3}
    assert alike("encoder.layers.0.attention.weight", names) == ["encoder.layer.0.attention.weight"]
    assert alike("zzz", names) == []


def test_advice() -> None:
    """The flag that gives most names; nothing where none would."""
    assert advice(["w", "b", "c"], {"bert.w": 1, "bert.b": 1, "x.c": 1}) == "with --prefix bert. 2 of them match"
    assert advice(["m.w", "m.b"], {"w": 1, "b": 1}) == "with --rename '*=m.*' 2 of them match"
    assert advice(["w"], {"v": 1}) == ""
