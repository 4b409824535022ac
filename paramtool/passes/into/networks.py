"""Recurrent networks of a source put into those of a model: which into which, and the copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from paramtool.errors import LayoutError, UsageError
from paramtool.layouts.networks import Network
from paramtool.layouts.spec import Spec, text, word
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint, LayerPart
from paramtool.model.curves import shown
from paramtool.model.images import FIRST
from paramtool.passes.into.layers import Turn, differing
from paramtool.passes.into.matching import MatchedPair, Unsure, matched
from paramtool.passes.rnn import stacking
from paramtool.passes.rnn.convert import Converted, convert
from paramtool.passes.rnn.stacking import Stack

SIZES = ("kind", "input", "hidden", "layers", "bidirectional", "projection")
"""What of a spec shapes show."""


@frozen
class NetworkUnit:
    """A network, or one layer of it."""

    name: str
    """As people call it: the user's name of the layer, or its module."""
    network: Network
    whole: Network
    """The network that it is a layer of; else itself."""
    layer: int = 0
    said: LayerPart | None = None
    """What the file says of it."""


NetworkPair = MatchedPair[NetworkUnit, NetworkUnit]


@frozen
class FilledNetwork:
    """A network of the model with the values of one of the source."""

    pair: NetworkPair
    converted: Converted
    """Its targets and tensors have the model's names, dtypes and shapes."""
    notes: tuple[str, ...] = ()


def units(checkpoint: Checkpoint, networks: Sequence[Network]) -> Iterator[NetworkUnit]:
    """The networks of a checkpoint as units, under the users' names where the file has them."""
    for one in networks:
        said = next((checkpoint.parts[name] for name in one.tensors.values() if name in checkpoint.parts), None)
        yield NetworkUnit(said.layer if said and said.layer else one.at, one, one, said=said)


def fits(source: NetworkUnit, model: NetworkUnit) -> bool:
    """Whether the sizes are the same."""
    return all(getattr(source.network.spec, fact) == getattr(model.network.spec, fact) for fact in SIZES)


def pair(
    sources: Sequence[NetworkUnit], models: Sequence[NetworkUnit], where: str
) -> tuple[list[NetworkPair], list[Unsure[NetworkUnit, NetworkUnit]]]:
    """Networks matched whole, where both have the same layers, and layer by layer."""
    several = [[one for one in side if one.network.spec.layers > 1] for side in (sources, models)]
    found, _ = matched(several[0], several[1], lambda one: one.name, fits)
    found = [one for one in found if fits(one.source, one.model)]
    left = [one for one in sources if all(one is not pair.source for pair in found)]
    right = [one for one in models if all(one is not pair.model for pair in found)]
    more, unsure = matched(
        [layer for one in left for layer in apart(one, where)],
        [layer for one in right for layer in apart(one, where)],
        lambda one: one.name,
        fits,
    )
    return [*found, *_rejoined(more, where)], unsure


def apart(unit: NetworkUnit, where: str) -> list[NetworkUnit]:
    """The layers of a network as units; those of one whose layers are stored together stay together."""
    layers = unit.network.spec.layers
    if layers == 1:
        return [unit]
    names = [f"{unit.name}[{k}]" for k in range(layers)]
    try:
        made = stacking.stacked(where, [unit.network], [Stack((unit.network.at,), tuple(names))])
    except LayoutError:
        return [unit]
    return [
        NetworkUnit(name, one, unit.network, k, None if k else unit.said)
        for k, (name, one) in enumerate(zip(names, made, strict=True))
    ]


def join(parts: Sequence[NetworkUnit], where: str) -> NetworkUnit:
    """Networks as the layers of one; LayoutError if they do not fit each other."""
    if len(parts) == 1:
        return parts[0]
    ats = [f"{one.network.at}#{k}" for k, one in enumerate(parts)]  # a network may be given twice
    made = stacking.stacked(
        where,
        [replace(one.network, at=at) for one, at in zip(parts, ats, strict=True)],
        [Stack(tuple(ats), ("joined",))],
    )
    name = ", ".join(one.name for one in parts)
    one = replace(made[0], at=name, stacked=tuple(part.name for part in parts))
    return NetworkUnit(name, one, one, said=parts[0].said)


def _rejoined(pairs: Sequence[NetworkPair], where: str) -> Iterator[NetworkPair]:
    """Pairs of layers, with those of one network of the model put together again; LayoutError if one has no pair."""
    several: dict[int, list[NetworkPair]] = {}
    for one in pairs:
        if one.model.whole is one.model.network:
            yield one
        else:
            several.setdefault(id(one.model.whole), []).append(one)
    for group in several.values():
        group.sort(key=lambda one: one.model.layer)
        whole = group[0].model.whole
        if len(group) != whole.spec.layers:
            there = ", ".join(f"{one.source.name} -> {one.model.name}" for one in group)
            raise LayoutError(
                f"{where}: only {len(group)} of the {whole.spec.layers} layers of {whole.at!r} have a source: {there}",
                hint=f"--map A,B={whole.at} names the source of each layer",
            )
        model = NetworkUnit(whole.at, whole, whole, said=group[0].model.said)
        yield MatchedPair(join([one.source for one in group], where), model, group[0].how)


def said_pair(sources: Sequence[NetworkUnit], models: Sequence[NetworkUnit], where: str) -> list[NetworkPair]:
    """The pairs that `--map A,B=C` or `--map A=B,C` names."""
    if len(models) == 1:
        return [MatchedPair(join(sources, where), models[0], "map")]
    pieces = sources if len(sources) > 1 else apart(sources[0], where)
    if len(pieces) != len(models):
        raise LayoutError(
            f"{where}: {sources[0].name!r} has {len(pieces)} layers; --map gives it to {len(models)} networks"
        )
    return [MatchedPair(one, other, "map") for one, other in zip(pieces, models, strict=True)]


def fill(one: NetworkPair, source: Checkpoint, model: Checkpoint, turn: Turn | None) -> FilledNetwork:
    """The copies that put a network into the one of the model; LayoutError with both specs where they differ."""
    mine, other = one.source.network, one.model.network
    notes: list[str] = []
    swapped = None
    if turn is not None:
        notes.append(f"{_both(one)}: the inputs go from {turn.source} to {turn.model}, of {turn.channels} channels")
        places = mine.spec.input // turn.channels
        swapped = (turn.channels, places) if turn.source == FIRST else (places, turn.channels)
    spec = _agreed(one, notes)
    views, theirs = source.views(), model.views()
    shapes = {own: theirs[name].shape for own, name in other.tensors.items()}
    try:
        made = convert(replace(mine, spec=spec), views, other.layout, other.options, at="", shapes=shapes,
                       swapped=swapped)  # fmt: skip
    except (LayoutError, UsageError) as error:
        raise LayoutError(f"{_both(one)}: {error.message}", error.hint) from None
    if made.tensors.keys() != other.tensors.keys():
        lacking = sorted(made.tensors.keys() ^ other.tensors.keys())
        raise LayoutError(f"{_both(one)}: {lacking[0]!r} is a tensor of only one of them")
    named = {made.tensors[own]: name for own, name in other.tensors.items()}
    targets = tuple(target.called(named[target.name], theirs[named[target.name]].dtype) for target in made.targets)
    return FilledNetwork(
        one,
        replace(made, source=mine, at=other.at, targets=targets, tensors=dict(other.tensors)),
        tuple(notes),
    )


def _both(one: NetworkPair) -> str:
    return f"{one.source.name!r} into {one.model.name!r}"


def _open(network: Network) -> set[str]:
    """The facts of a network that nobody gave."""
    found = {fact.partition("=")[0] for fact, _ in network.assumed} | set(network.lacking)
    unknown = {"reset"} if network.spec.kind == "gru" and not network.spec.reset else set()
    return found | unknown | ({"activation"} if network.spec.kind == "rnn" and not network.spec.activation else set())


def _agreed(one: NetworkPair, notes: list[str]) -> Spec:
    """The spec of both networks; LayoutError if they differ in what both say."""
    specs = mine, other = one.source.network.spec, one.model.network.spec
    opened = _open(one.source.network), _open(one.model.network)
    saids = [side.said.settings if side.said else {} for side in (one.source, one.model)]
    facts = [
        {field.name: getattr(spec, field.name) for field in fields(Spec) if field.name not in gone}
        for spec, gone in zip(specs, opened, strict=True)
    ]
    if other.bias and not mine.bias and not any("bias" in gone for gone in opened):
        mine = replace(mine, bias=True)  # a network without biases computes what one with zeros does
        facts[0]["bias"] = True
    if words := [*differing(*facts), *differing(*saids)]:
        sides = [
            " ".join([text(spec, [word for word in words if word in facts[0] and word not in SIZES[:3]])]
                     + [f"{word}={shown(said[word])}" for word in words if word in said])
            for spec, said in zip(specs, saids, strict=True)
        ]  # fmt: skip
        raise LayoutError(
            f"{_both(one)}: the source is {sides[0]}; the model is {sides[1]}",
            hint=FIXED + (", or --spec says what the source is" if set(words) & set(_SAYABLE) else ""),
        )
    silent: dict[tuple[bool, bool], list[str]] = {who: [] for who in _SILENT}
    for fact in (field.name for field in fields(Spec) if field.name in opened[0] | opened[1]):
        is_open = fact in opened[0], fact in opened[1]
        value = getattr(other if is_open == (True, False) else mine, fact)
        if (fact == "activation" or mine.has(fact)) and (fact != "backward" or not mine.bidirectional):
            silent[is_open].append(word(fact, value or "tanh" if fact == "activation" else value))
        mine = replace(mine, **{fact: value})
    notes += [f"{_both(one)}: {_SILENT[who].format(', '.join(words))}" for who, words in silent.items() if words]
    return mine


FIXED = "weights cannot change that; make the model as the source was trained"
_SILENT = {
    (True, True): "neither file says {}, which is taken to be the same in both",
    (True, False): "the source does not say {}, which is the model's",
    (False, True): "the model does not say {}, as the source has it",
}
"""{whether the source and the model leave facts open: what is noted}"""
_SAYABLE = ("activation", "gate_activation", "merge", "backward", "reset", "cell_clip")
