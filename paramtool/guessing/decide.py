"""Which facts would decide between the candidates of one place.

A command is printed only if one candidate is left and nothing is assumed.  Otherwise the fact that would decide is
named: a size, a direction, an option that no tensor shows, or the order of gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paramtool.errors import UsageError, plural
from paramtool.guessing.candidates import Guess
from paramtool.layouts import layout as tables
from paramtool.layouts.layout import Form, Layout
from paramtool.layouts.spec import Facts, Spec, parse
from paramtool.model.dtype import DTYPES
from paramtool.model.view import contiguous

FEW = 4
"""Up to this many candidates are listed one by one."""
FACTS = ("kind", "hidden", "input", "layers", "bidirectional", "bias", "projection", "reset", "activation",
         "gate_activation", "cell_clip", "clip", "peephole", "initial_state", "coupled", "backward")  # fmt: skip
"""Fields of a spec, in the order in which a network's code usually gives them."""


UNSHOWN = {"activation", "gate_activation", "cell_clip", "clip", "coupled", "backward"}
"""Facts that no shape shows."""


def meaning(
    layout: Layout, form: Form, spec: Spec, options: Mapping[str, str], *, tensors: Mapping[str, str]
) -> object:
    """Where each cell is in the tensors of a file; equal for layouts that read the same network from them."""
    found = []
    for tensor in tables.stored(layout, form, spec, layout.chosen(options)):
        if tensor.name in tensors:
            for place in tensor.places(contiguous(0, DTYPES["float32"], tensor.shape)):
                steps = [(n, s) for n, s in place.view.axes if n != 1]
                found.append((tensors[tensor.name], place.terms, place.view.offset, *steps, place.shift))
    return frozenset(found)


def deciding(found: Sequence[Guess]) -> list[str]:
    """The facts that would decide between several candidates of one place; empty for a single candidate.

    >>> one = Guess("x", "cudnn", "lstm input=8 hidden=8 layers=2", (), "possible", 0.0)
    >>> two = Guess("x", "cudnn", "lstm input=8 hidden=8 bidirectional", (), "possible", 0.0)
    >>> deciding([one, two])
    ["layers=2 or bidirectional=yes: the network's code says which"]
    """
    if len(found) < 2:
        return []
    said = [_facts(one) for one in found]
    names = [name for name in ("layout", *FACTS) if len({facts.get(name) for facts in said}) > 1]
    where = "the program that wrote the file" if names == ["layout"] else "the network's code"
    if len(found) <= FEW:
        return [f"{' or '.join(_apart(facts, names) for facts in said)}: {where} says which"]
    chosen = _distinguishing([name for name in names if name != "layout"], said)
    return [
        f"{plural(len(found), 'network fits', 'networks fit')}: {', '.join(chosen)} would decide, which {where} says"
    ]


def _facts(one: Guess) -> dict[str, str]:
    """The facts of a candidate as words, including defaults."""
    try:
        spec = Spec(**parse(one.spec))  # type: ignore[arg-type]
    except (UsageError, TypeError):
        return {"layout": one.layout}
    return {"layout": one.layout, **{name: _word(getattr(spec, name)) for name in FACTS}}


_DEFAULTS = {name: getattr(Spec("lstm", 1, 1), name) for name in FACTS[2:]}


OTHERS = {"gate_activation": "gate_activation=sigmoid or gate_activation=hard_sigmoid(0.2,0.5)"}
"""The usual values of facts that no tensor shows, where neither is more likely."""


def unshown(fact: str, how: str) -> str:
    """An assumed fact as a question, with the option that sets it.

    >>> unshown("forget_bias=1.0", "--from tf1.basic:forget_bias=...")
    "forget_bias=1.0 or another: the network's code says which; set it with --from tf1.basic:forget_bias=..."
    """
    either = OTHERS.get(fact.partition("=")[0], f"{fact} or another")
    return f"{either}: the network's code says which; set it with {how}"


def _word(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _apart(facts: Mapping[str, str], names: Sequence[str]) -> str:
    """The values of the differing facts in one candidate; defaults only if it has no other values."""
    said = [name for name in names if name not in _DEFAULTS or facts.get(name) != _word(_DEFAULTS[name])]
    return " and ".join(f"{name}={facts[name] or 'not said'}" for name in said or names[:1] if name in facts)


def _distinguishing(names: Sequence[str], said: Sequence[Mapping[str, str]]) -> Sequence[str]:
    """Facts that distinguish the candidates, each of which distinguishes more than those before it."""
    chosen: list[str] = []
    apart = 1
    for name in names:
        more = len({tuple(facts.get(one) for one in (*chosen, name)) for facts in said})
        if more > apart:
            chosen, apart = [*chosen, name], more
    return chosen


def narrowed(found: Sequence[Guess], facts: Facts) -> Iterator[Guess]:
    """The candidates that agree with the given facts; facts that no tensor shows are added to their specs."""
    for one in found:
        try:
            own = parse(one.spec)
            spec = Spec(**own)  # type: ignore[arg-type]
        except (UsageError, TypeError):
            yield one
            continue
        hidden = {name: facts[name] for name in UNSHOWN & facts.keys() if getattr(spec, name) == _DEFAULTS[name]}
        try:
            stated = replace(spec, **hidden)  # type: ignore[arg-type]
        except UsageError:
            continue
        if all(getattr(stated, name) == value for name, value in facts.items()):
            yield replace(one, spec=str(stated))
