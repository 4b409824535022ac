"""Which networks a flat vector could be: every spec of exactly that length, each with its reasons.

A length alone decides little: 52000 elements are an LSTM of 28 inputs and 100 cells, and some hundred other networks.
All readings are found by arithmetic.  They are then ranked by the sizes that people usually choose, by words in the
name, and by the widths of the tensors around it.  Nothing here decides.

    length = sum over layers and directions of gates * hidden * (in + rec + biases) + projection * hidden
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

from paramtool.errors import UsageError, plural
from paramtool.layouts import layout as tables
from paramtool.layouts.layout import Form, Layout
from paramtool.layouts.spec import GATES, Facts, Spec, parse
from paramtool.lazy_dataclass import frozen

SURE = ("said", "names and shapes", "shapes only", "possible")
"""How certain a candidate is, the most certain first: the file says so; names and shapes are those of the layout; only
its shapes are; it is one of several that fit equally well."""
MAX_HIDDEN, MAX_LAYERS, MAX_INPUT = 8192, 8, 1 << 17
"""Limits for the readings of a flat vector, which also limit the work.  A one-hot vocabulary of 10**5 words is a
possible input."""


@frozen
class Guess:
    """A network that some tensors could be."""

    at: str
    """The module or the tensor, as written for `--at`."""
    layout: str
    """The layout, with options: `cudnn:tail=no`."""
    spec: str
    """The spec, as written for `--spec`."""
    reasons: tuple[str, ...]
    """Why it could be this network."""
    sure: str
    """How certain it is: one of `SURE`."""
    score: float
    """Ranks the candidates of one place; it has no other meaning."""
    alike: tuple[str, ...] = ()
    """Other layouts that the same tensors fit."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """{the layout's name of a tensor: its name in the file}."""
    cell: int = 0
    """If the names belong to no layout: the number of the network in its module, from 1."""
    unshown: tuple[str, ...] = ()
    """Assumptions that no tensor shows, each with the option that sets it; empty if everything is known."""
    _members = "layout alike spec sure score reasons tensors own_names"

    @property
    def own_names(self) -> bool:
        """Whether its names belong to no layout."""
        return bool(self.cell)


def spec_of(text: str) -> Spec:
    """The network of a complete spec string; UsageError or TypeError if the spec is incomplete.

    >>> spec_of("gru input=3 hidden=4").hidden
    4
    """
    facts: dict[str, Any] = parse(text)
    return Spec(**facts)


def own_name(cell: int) -> str:
    """The name of the layout for the nth cell of a module, in the layout file that is made for it.

    >>> own_name(1), own_name(2)
    ('guessed', 'guessed2')
    """
    return "guessed" if cell == 1 else f"guessed{cell}"


class Width(NamedTuple):
    """A width of a tensor near the vector."""

    size: int
    why: str


@frozen
class Hints:
    """What is known about a vector besides its length."""

    kind: str = ""
    bidirectional: bool = False
    layers: int = 0
    inputs: tuple[Width, ...] = ()
    """Possible widths of its input."""
    outputs: tuple[Width, ...] = ()
    """Possible values of hidden (or projection) times directions."""
    projections: tuple[int, ...] = ()
    """Projections to search for; empty for none."""
    layout: str = "cudnn"
    """A layout that stores a network as one flat vector in order P."""
    at: str = ""
    biases: int | None = None
    """The length of a vector beside it that holds all biases; None if there is none."""


class _BiasForm(NamedTuple):
    """A way in which biases are stored in a vector."""

    options: str
    biases: int
    """The number of biases for each row of gates."""
    bias: bool
    score: float
    reason: str


BOTH = _BiasForm("", 2, True, 0.0, "")
VARIANTS = (
    BOTH,
    _BiasForm("", 2, False, -2.5, "no biases, with unused space for both, as PyTorch's cuDNN buffers have it"),
    _BiasForm("tail=no", 0, False, -1.5, "no biases and no space for them"),
    _BiasForm("bias_mode=input", 1, True, -3.0, "one bias, as in cuDNN's single-bias modes"),
)
"""The bias forms of cuDNN's buffer; other layouts always have both biases."""
ALONE = (_BiasForm("", 0, True, 0.0, "the biases are in the vector beside it"),)


class Reading(NamedTuple):
    """A spec whose vector has exactly the given length."""

    spec: Spec
    variant: _BiasForm


def readings(length: int, hints: Hints) -> Iterator[Reading]:
    """Every spec within the bounds whose flat vector has `length` elements.

    Hidden divides the length, so each divisor is tried; the rest of the length then gives the input.
    """
    variants = ALONE if hints.biases else VARIANTS if hints.layout == "cudnn" else (BOTH,)
    for hidden in [size for size in range(1, min(MAX_HIDDEN, length) + 1) if length % size == 0]:
        for kind in GATES:
            for directions in (1, 2):
                for variant in variants:
                    yield from _stacks(length, kind, hidden, directions, projection=0, variant=variant)
                    for projection in hints.projections if kind == "lstm" else ():
                        if projection < hidden:
                            yield from _stacks(length, kind, hidden, directions, projection=projection, variant=variant)


def _stacks(
    length: int, kind: str, hidden: int, directions: int, *, projection: int, variant: _BiasForm
) -> Iterator[Reading]:  # fmt: skip
    """The readings of one hidden width, by layers: each further layer leaves less for the input."""
    rows = len(GATES[kind]) * hidden
    recurrent = projection or hidden
    around = recurrent + variant.biases
    projected = projection * hidden
    left, rest = divmod(length, directions)
    for layers in range(1, MAX_LAYERS + 1):
        if rest or left <= projected:
            return
        size, odd = divmod(left - projected, rows)
        if not odd and 1 <= size - around <= MAX_INPUT:
            reset = "after" if kind == "gru" else ""
            spec = Spec(
                kind, int(size - around), hidden, layers, directions == 2, projection, variant.bias, reset
            )  # fmt: skip
            yield Reading(spec, variant)
        left -= rows * (recurrent * directions + around) + projected


def flat(length: int, hints: Hints | None = None) -> list[Guess]:
    """Every network that a flat vector of `length` elements could be, the most plausible first.

    >>> [c.spec for c in flat(52000, Hints(kind="lstm"))][0]
    'lstm input=28 hidden=100'
    """
    hints = hints or Hints()
    found = [one for one in readings(length, hints) if _fits_beside(one.spec, hints)]
    made = [_candidate(one, length, hints, len(found)) for one in found]
    return sorted(made, key=lambda one: -one.score)


def _fits_beside(spec: Spec, hints: Hints) -> bool:
    """Whether the vector of biases beside it has the length of this network's biases."""
    rows = len(spec.gates) * spec.hidden
    return not hints.biases or hints.biases == 2 * rows * spec.layers * spec.directions


def _candidate(one: Reading, length: int, hints: Hints, count: int) -> Guess:
    score, reasons = plausibility(one.spec, hints)
    layout = f"{hints.layout}:{one.variant.options}" if one.variant.options else hints.layout
    only = "" if count > 1 else f"no other network within the limits has {plural(length, 'element')}"
    return Guess(
        at=hints.at,
        layout=layout,
        spec=str(one.spec),
        reasons=tuple(filter(None, (only, one.variant.reason, *reasons))) or ("its length fits",),
        sure="possible" if count > 1 else "shapes only",
        score=round(score + one.variant.score, 3),
    )


# --- what people choose -----------------------------------------------------------------------------------------------

LAYERS = {1: 1.5, 2: 1.2, 3: 0.6, 4: 0.2, 5: -0.6, 6: -0.6, 7: -1.2, 8: -1.0}
KINDS = {"lstm": 0.6, "gru": 0.3, "rnn": -0.8}
SAID = 4.0
"""The score of a word in a name."""
BESIDE = 2.5
"""The score of a tensor with a matching width."""


def plausibility(spec: Spec, hints: Hints) -> tuple[float, list[str]]:
    """A score for how likely these sizes are, and the reasons."""
    score = LAYERS.get(spec.layers, -1.5) + KINDS[spec.kind] - (0.2 if spec.bidirectional else 0.0)
    reasons: list[str] = []
    for worth, reason in (*_sizes(spec), *_words(spec, hints), *_neighbours(spec, hints)):
        score += worth
        if reason:
            reasons.append(reason)
    return score, reasons


def roundness(size: int) -> tuple[float, str]:
    """How round a size is, from 0 to 3, and why.

    >>> roundness(128), roundness(300), roundness(37)
    ((3.0, 'a power of two'), (2.5, 'a multiple of 100'), (0.0, ''))
    """
    if size >= 8 and size & (size - 1) == 0:
        return 3.0, "a power of two"
    for step, worth in ((100, 2.5), (32, 2.5), (50, 2.2), (16, 2.2), (8, 1.8), (10, 1.5), (5, 0.6), (4, 0.5)):
        if size % step == 0:
            return worth if size <= 16 * step else 0.6 * worth, f"a multiple of {step}"
    return 0.0, ""


def _sizes(spec: Spec) -> Iterator[tuple[float, str]]:
    worth, how = roundness(spec.hidden)
    yield worth, f"hidden {spec.hidden} is {how}" if worth > 1 else ""
    yield -2.0 if spec.hidden < 4 else -1.0 if spec.hidden < 8 or spec.hidden > 2048 else 0.0, ""
    worth, how = roundness(spec.input)
    yield worth / 3, f"input {spec.input} is {how}" if worth > 1 else ""
    ratio = spec.input / spec.hidden
    if ratio > 16 or spec.input > 16384:
        yield (-3.0 if ratio > 64 else -1.5), f"but input {spec.input} is large compared to hidden {spec.hidden}"
    elif spec.input == spec.hidden:
        yield 0.8, "input equals hidden"
    elif spec.input <= 128:
        yield 0.5, ""
    if spec.projection:
        yield roundness(spec.projection)[0] / 3, ""


def _words(spec: Spec, hints: Hints) -> Iterator[tuple[float, str]]:
    if hints.kind:
        yield (SAID, f"the name says {hints.kind}") if hints.kind == spec.kind else (-SAID, "")
    if hints.bidirectional:
        yield (SAID / 2, "the name says both directions") if spec.bidirectional else (-SAID / 2, "")
    if hints.layers:
        yield (
            (SAID / 2, f"the name says {plural(hints.layers, 'layer')}")
            if hints.layers == spec.layers
            else (-SAID / 2, "")
        )


def _neighbours(spec: Spec, hints: Hints) -> Iterator[tuple[float, str]]:
    wide = spec.recurrent * spec.directions
    for width in hints.inputs:
        if width.size == spec.input:
            yield BESIDE, f"{width.why}: input={spec.input}"
            break
    for width in hints.outputs:
        if width.size == wide:
            times = " in both directions" if spec.bidirectional else ""
            yield BESIDE, f"{width.why}: hidden={spec.recurrent}{times}"
            break


# --- Which facts would decide between the candidates of one place ----------------------------------------------------
#
# A command is printed only if one candidate is left and nothing is assumed.  Otherwise the fact that would decide is
# named: a size, a direction, an option that no tensor shows, or the order of gates.


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
            for place in tensor.places():
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
