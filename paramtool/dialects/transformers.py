"""The dialects `transformers-4` and `transformers-5`: files of the same model before and after transformers 5 loads it.

`transformers-4` has the names and tensors of the original files, which transformers 4 wrote and which `save_pretrained`
of 5.23 writes by default: Mixtral's experts one by one.  `transformers-5` has the names and tensors of the model in
memory, as `save_pretrained(save_original_format=False)` writes them: the experts of a layer in one tensor.  The hub is
`transformers-4`.

Where transformers 5.23 writes the same tensors in both forms and the files that people have are others, the hub is what
people have: OLMo-Hybrid's convolutions of unequal sizes, and the stacks of Qwen3-VL-MoE, [experts, in, out] in its own
files and [experts, out, in] in memory.  A file that transformers 5 wrote with the original names of the latter is of
`transformers-5`, as its shapes show; square stacks show nothing and are refused.  Dory's files have two blocks
for each layer; transformers 5.24 writes its layers under the names in memory, and the rest under those of its files.

Which rules a model has is in the table of `scopes`, sizes that no shape gives in `facts`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from paramtool.dialects import chains, counts, scopes
from paramtool.dialects.chains import NoFact
from paramtool.dialects.recognition import FIVE, FOUR, backwards, renamings, told_by
from paramtool.dialects.renaming import NameRule, Renamed, RuleWay, natural
from paramtool.errors import LayoutError, listed, plural
from paramtool.model.view import Shape, Shapes
from paramtool.parts.families import Config
from paramtool.parts.operations import Misfit, stored
from paramtool.parts.pieces import Stored, whole

PARTLY = "a shard is missing, the file was converted in part, or config.json is of another model"
"""The hint where a list lacks members."""


def read(tensors: Shapes, config: Config) -> list[Stored]:
    """The tensors of a file of `transformers-5`, as pieces of tensors of `transformers-4`, in their order.

    `config` is the parsed config.json.  LayoutError where a tensor is missing or of a shape that does not fit, where
    the config lacks a number that decides, and where the names are not all of the dialect: they are listed.
    """
    rules = scopes.rules(config)
    made = {one.name: one for one in _forward(_hub(tensors, rules, config)[0], rules, config, tensors)}
    _refuse_mixed(
        [name for name, shape in tensors.items() if name not in made or made[name].shape != tuple(shape)],
        [name for name in made if name not in tensors],
        len(tensors),
    )
    return [made[name] for name in tensors]


def write(tensors: Shapes, config: Config) -> list[Stored]:
    """The tensors that `transformers-5` has for tensors of `transformers-4`, as pieces of them.

    Errors as of `read`.
    """
    return _forward(tensors, scopes.rules(config), config, ())


# --- Backwards -------------------------------------------------------------------------------------------------------


def _hub(
    tensors: Shapes, rules: Sequence[NameRule], config: Config
) -> tuple[dict[str, Shape], dict[str, tuple[str, ...]]]:
    """The tensors of `transformers-4` that tensors of `transformers-5` are made of: {name: shape}, {name: of which}."""
    back = backwards(rules)
    found: dict[str, Shape] = {}
    origins: dict[str, tuple[str, ...]] = {}
    groups: dict[str, tuple[RuleWay, dict[int, str]]] = {}
    made: dict[str, Shape] = {}
    of: dict[str, tuple[str, ...]] = {}
    for name, one in back.of(tensors).items():
        if one.way is None:
            _add(found, one.name, tuple(tensors[name]), name)
            origins[one.name] = (name,)
        else:
            groups.setdefault(one.name, (one.way, {}))[1][one.which] = name
    for name, (way, members) in groups.items():
        sources = _sources(name, way, members, (tensors, config))
        made |= sources
        of |= dict.fromkeys(sources, tuple(members[k] for k in sorted(members)))
    for name, new in back.renamed(made).items():
        _add(found, new, made[name], name)
        origins[new] = of[name]
    return found, origins


def _add(found: dict[str, Shape], name: str, shape: Shape, of: str) -> None:
    if name in found:
        raise LayoutError(f"{of!r}: two tensors would be {name!r} in {FOUR}")
    found[name] = shape


def _sources(name: str, way: RuleWay, members: Mapping[int, str], given: tuple[Shapes, Config]) -> dict[str, Any]:
    """{name: shape} of the tensors of a file that some tensors of a model are made of, before they are renamed."""
    tensors, config = given
    rule = way.rule.back()  # forwards, as in the table
    if missing := [target for k, target in enumerate(rule.targets) if k not in members]:
        have = ", ".join(repr(one) for one in members.values())
        raise LayoutError(f"{have}: made together with {', '.join(map(repr, missing))}, which is not in the file")
    first = members[0]
    try:
        shapes = chains.sources_of(rule, [tuple(tensors[members[k]]) for k in range(len(rule.targets))], config)
    except (Misfit, NoFact) as error:
        raise _refused(first, rule, error) from None
    before, _, behind = name.partition(way.targets[0])
    found = {}
    for k, each in enumerate(shapes):
        for number, shape in enumerate(each):
            text = way.targets[k].replace("*", str(number)) if "*" in way.targets[k] else way.targets[k]
            found[f"{before}{text}{behind}"] = shape
    return found


def _refused(name: str, rule: NameRule, error: Exception) -> LayoutError:
    what = f"{' + '.join(rule.sources)} -> {' + '.join(rule.targets)}"
    if isinstance(error, NoFact):
        return LayoutError(
            f"{name!r}: {what}: config.json does not say {error}",
            hint="add it to a copy of config.json: the shapes alone cannot decide it",
        )
    return LayoutError(
        f"{name!r}: {what}: {error}",
        hint="compare its shape with the sizes in config.json: the tensor was cut, or the file is of another model",
    )


# --- Forwards --------------------------------------------------------------------------------------------------------


def _forward(hub_shapes: Shapes, rules: Sequence[NameRule], config: Config, wanted: Collection[str]) -> list[Stored]:
    """The tensors of `transformers-5`; with the names that a file of them has, a name that is one of them stays."""
    renamed = renamings(hub_shapes, rules, config)
    if not wanted:
        known = told_by(hub_shapes, rules, config, renamed)
        _refuse_mixed(known.five, [], len(known.four) + len(known.five))
    groups: dict[str, dict[int, list[tuple[str, Renamed]]]] = {}
    ways: dict[str, RuleWay] = {}
    taken: dict[str, str] = {}
    order: dict[str, tuple[str, str]] = {}
    for name, one in renamed.items():
        if one.way is None:
            new_name = name if wanted and one.name not in wanted and name in wanted else one.name
            if other := taken.get(new_name):
                raise LayoutError(f"{other!r} and {name!r} are both {new_name!r} in {FIVE}")
            taken[new_name] = name
            order[new_name] = (name, "")
            continue
        key = f"{one.name}\0{id(one.way)}"
        ways[key] = one.way
        groups.setdefault(key, {}).setdefault(one.which, []).append((name, one))
        order.setdefault(key, ("", key))
    _refuse_companions(groups, taken.values())
    found: list[Stored] = []
    for new_name, (name, key) in order.items():
        if not key:
            found.append(whole(new_name, hub_shapes[name], name))
            continue
        for one_made in _made(key.partition("\0")[0], ways[key], groups[key], (hub_shapes, config)):
            if one_made.name in taken:
                raise LayoutError(
                    f"{one_made.name!r} is made of others in {FIVE}, and {taken[one_made.name]!r} is it, too"
                )
            taken[one_made.name] = one_made.name
            found.append(one_made)
    counts.check_stacks(found, config, wanted or hub_shapes)
    return found


def _made(
    name: str, way: RuleWay, members: Mapping[int, list[tuple[str, Renamed]]], given: tuple[Shapes, Config]
) -> list[Stored]:
    """The tensors that one rule makes of some tensors of a file."""
    hub_shapes, config = given
    rule = way.rule
    lists: list[list[Stored]] = []
    numbers: list[int] = []
    sources = rule.sources[:1] if chains.has_scales(rule) else rule.sources
    if scales := [one for k in members if k >= len(sources) for one, _ in members[k]]:
        raise LayoutError(
            f"{scales[0]!r}: a scale of quantised experts, which transformers dequantises when it loads them",
            hint="only experts that are not quantised are converted",
        )
    for k, source in enumerate(sources):
        if k not in members:
            have = next(one for each in members.values() for one, _ in each)
            raise LayoutError(f"{have!r}: {name!r} is made of it and {source!r}, which is not in the file", hint=PARTLY)
        ordered = _in_order(source, members[k])
        numbers.append(len(ordered))
        lists.append([whole(one, hub_shapes[one]) for one in ordered])
    if len(set(numbers)) > 1:
        raise _unpaired(name, rule, members)
    first = members[0][0][0]
    try:
        made = chains.made(rule, lists, config)
    except (Misfit, NoFact) as error:
        raise _refused(first, rule, error) from None
    before, _, behind = name.partition(way.targets[0])  # the first target is a part of the name
    return [stored(f"{before}{way.targets[k]}{behind}", tensor) for k, tensor in enumerate(made)]


def _in_order(source: str, members: list[tuple[str, Renamed]]) -> list[str]:
    """Names by their numbers; LayoutError where one is missing or twice."""
    if "*." not in source:
        if len(members) > 1:
            raise LayoutError(f"{members[0][0]!r} and {members[1][0]!r} are the same tensor in {FIVE}")
        return [members[0][0]]
    by_number: dict[int, str] = {}
    for name, one in members:
        if not one.number.isdecimal() or int(one.number) in by_number:
            raise LayoutError(f"{name!r}: expected one tensor for each number in the place of the * of {source!r}")
        by_number[int(one.number)] = name
    if gaps := sorted(set(range(max(by_number) + 1)) - by_number.keys()):
        lines = [f"number {k}" for k in gaps]
        raise LayoutError(
            listed(f"{members[0][0]!r} and others are a list, and these are missing:", lines), hint=PARTLY
        )
    return [by_number[k] for k in range(len(by_number))]


def _unpaired(name: str, rule: NameRule, members: Mapping[int, list[tuple[str, Renamed]]]) -> LayoutError:
    """What of several lists has no counterpart in the others."""
    have = [{one.number for _, one in members[k]} for k in range(len(rule.sources))]
    every = set().union(*have)
    lines = [
        f"{source.replace('*', number)}"
        for k, source in enumerate(rule.sources)
        for number in sorted(every - have[k], key=natural)
    ]
    return LayoutError(listed(f"{name!r} is made of lists of one length, and these are missing:", lines), hint=PARTLY)


def _refuse_companions(groups: Mapping[str, Mapping[int, list[tuple[str, Renamed]]]], others: Iterable[str]) -> None:
    """LayoutError where experts are stacked, and something else of the same experts is not, such as their scales."""
    heads = set()
    for members in groups.values():
        for each in members.values():
            name, one = each[0]
            if one.number:
                heads.add(name.rpartition(f".{one.number}.")[0])
    lines = [
        name
        for name in others
        if any(name[len(head) + 1 :].partition(".")[0].isdecimal() for head in _heads(name, heads))
    ]
    if lines:
        stay = plural(lines, "tensor of experts stays", "tensors of experts stay")
        raise LayoutError(
            listed(f"{stay} apart where {FIVE} has the experts in one:", lines),
            hint="quantised experts have no such form in transformers",
        )


def _heads(name: str, heads: Collection[str]) -> list[str]:
    if not heads:
        return []
    steps = name.split(".")
    return [head for k in range(1, len(steps)) if (head := ".".join(steps[:k])) in heads]


def _refuse_mixed(lines: Sequence[str], lacking: Sequence[str], total: int) -> None:
    """LayoutError for names that are of the other dialect."""
    if not lines and not lacking:
        return
    text = list(lines) + [f"{name} (expected)" for name in lacking]
    if len(lines) == total:
        raise LayoutError(listed("all names that a rule touches are of the other dialect:", text))
    raise LayoutError(
        listed(f"{plural(len(lines), 'name is', 'names are')} not of the dialect that the others are of:", text),
        hint="the file was converted in part, or it is of another model than config.json says",
    )
