"""The recurrent networks that a conversion is asked for: found, put together or taken apart, and converted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from shlex import quote
from typing import TYPE_CHECKING

from paramtool import layouts
from paramtool.commands.output.destination import Destination
from paramtool.commands.relayout_options import DEFAULT, RelayoutOptions
from paramtool.dialects import HUB, MEMORY
from paramtool.errors import LayoutError, UnknownSizesError, UsageError, listed, plural, some
from paramtool.layouts.networks import squeezed
from paramtool.layouts.spec import Facts, parse
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes.rnn import convert as relayout_pass
from paramtool.passes.rnn import stacking
from paramtool.passes.rnn.convert import Converted
from paramtool.passes.rnn.find import Found, NetworkRequest, find

if TYPE_CHECKING:
    from paramtool.guessing.candidates import Guess


def network_warnings(found: list[Found]) -> Iterator[str]:
    """What is beside the networks, what is between them, and why their names may mean something else."""
    # The tensors beside the networks that were said not to matter.
    for one in found:
        if one.ignored:
            yield f"{_where(one)}: converted without {some(one.ignored, IGNORED)}, as --ignore says"
    # What nobody looked for between layers that were put together.
    for one in found:
        if len(one.network.stacked) > 1:
            names = ", ".join(map(repr, one.network.stacked))
            yield (
                f"{one.network.at!r}: computes what {names} do where each takes just what the one before gives; "
                "an activation, a norm or a sum between them is not looked for"
            )
    for one in found:
        if one.doubt:
            yield f"{_where(one)}: {one.doubt}"


def _where(one: Found) -> str:
    return repr(one.network.at) if one.network.at else "the network"


def asked_networks(where: Destination, checkpoint: Checkpoint, options: RelayoutOptions) -> list[Found]:
    """The networks that are asked for; where there are none, the error says what such an output can hold."""
    try:
        found = source_networks(checkpoint, options)
        _check_renamed(checkpoint, found, options.rename or {})
        return found
    except LayoutError as error:
        if options.described and options.source is None and not options.at and not checkpoint.modules:
            _refuse_apart(checkpoint)
            # LayoutError if the fused tensors of a checkpoint have only the names and forms of a dialect
            from paramtool.commands.seen_parts import dialect_of

            if (dialect := dialect_of(checkpoint)) not in ("", HUB, MEMORY):
                raise LayoutError(
                    f"{checkpoint.path}: its names are those of {dialect}; no layout of single tensors is known "
                    "under them",
                    hint=f"paramtool convert SRC --from {dialect} --to {HUB} -o DST converts the whole model",
                ) from error
        hints = [error.hint] if error.hint else []
        if where.writer.is_graph:
            hints.append("a new ONNX model holds recurrent networks alone, and --into MODEL.onnx fills any model")
        if options.described and options.source is None and not checkpoint.modules:
            hints.append("no fused attention, gated MLP or experts are known in it either")
        error.hint = "; ".join(hints)
        raise


def _refuse_apart(checkpoint: Checkpoint) -> None:
    """LayoutError if all attention, gated MLPs and experts of a checkpoint are separate tensors already."""
    from paramtool.commands.seen_parts import seen_parts

    seen = seen_parts(checkpoint)
    if seen is not None and all(group.form != "fused" for group in seen.groups):
        from paramtool.passes.parts.groups import words

        where = checkpoint.path
        lines = [f"{tower.at}: {words(tower)}" for tower in seen.towers]
        kinds = "` or `fuse --layout ".join(dict.fromkeys(group.kind for group in seen.groups))
        raise LayoutError(
            listed(f"{where}: nothing is fused in it; its attention, gated MLPs and experts are apart:", lines),
            hint=f"`fuse --layout {kinds}` joins them; --layout LAYOUT --at MODULE names another tensor",
        )


def source_networks(checkpoint: Checkpoint, options: RelayoutOptions, *, lenient: bool = False) -> list[Found]:
    """The networks that are asked for, with layers put together or taken apart; `lenient` as in `NetworkRequest`."""
    # The networks with layers put together or taken apart
    found = _find(checkpoint, options, lenient=lenient)
    stacks = [stacking.parse(text) for text in options.stack]
    by_name = {one.network.at: one for one in found}
    where = checkpoint.path
    made = stacking.stacked(where, [one.network for one in found], stacks)
    old = [by_name[at] for one in made for at in one.stacked]
    if kept := [name for name in checkpoint.entries if not options.drop_kept and any(o.is_kept(name) for o in old)]:
        raise LayoutError(
            f"{where}: {kept[0]!r} holds biases of a network that --stack takes layers of",
            hint="--drop-kept continues without them, or convert first and stack the result",
        )
    return [
        replace(by_name[one.stacked[0]], network=one, shapes={}, ignored=()) if one.stacked else by_name[one.at]
        for one in made
    ]


def _find(checkpoint: Checkpoint, options: RelayoutOptions, *, lenient: bool = False) -> list[Found]:
    """The networks that are asked for; where a flat vector could be many, the error lists the likely ones."""
    try:
        return find(checkpoint, replace(_wanted(options), lenient=lenient))
    except UnknownSizesError as error:
        views = checkpoint.views()
        if any(len(squeezed(views[name].shape)) != 1 for name in error.names):
            raise
        raise _unsure(checkpoint, error.names[0], parse(options.spec), options.source) from None


def _unsure(checkpoint: Checkpoint, name: str, facts: Facts, source: str | None) -> LayoutError:
    """A flat vector fits many networks; the first that are plausible, each with the words to type."""
    from paramtool.guessing import vectors
    from paramtool.guessing.candidates import flat, spec_of

    shapes = checkpoint.shapes()
    where, length = checkpoint.path, prod(shapes[name])
    every = flat(length, vectors.hints(name, shapes, layouts.parse(source or "")[0]))
    likely = [c for c in every if all(getattr(spec_of(c.spec), key) == value for key, value in facts.items())]
    if not likely:
        return LayoutError(
            f"{where}: {name!r} has {plural(length, 'element')}; no network with these facts has this length",
            _look_closer(where),
        )
    lines = [f"{_words(one)}   {'; '.join(one.reasons[:2])}" for one in likely[:LIKELY]]
    fits = plural(likely, "network")
    head = f"{where}: {name!r} has {plural(length, 'element')}; that fits {fits}; choose one:"
    return LayoutError(listed(head, lines, len(likely) - len(lines)), _look_closer(where))


def _words(one: Guess) -> str:
    """What to type for a candidate; the layout only where its options have to be said."""
    return f'{f"--layout {one.layout} " if ":" in one.layout else ""}--spec "{one.spec}"'


LIKELY = 5
"""The most networks that a vector could be, in an error."""


def _look_closer(where: str) -> str:
    """What to do next."""
    return f"paramtool guess {quote(where)} looks at the values, too"


IGNORED = 8
"""The most ignored names that are written out."""


def _wanted(options: RelayoutOptions) -> NetworkRequest:
    return NetworkRequest(
        options.source, parse(options.spec), tuple(options.at), options.described, tuple(options.ignore)
    )


def converted_network(checkpoint: Checkpoint, found: Found, options: RelayoutOptions) -> Converted:
    """One network in the layout that is wanted."""
    network = found.network
    try:
        name, chosen = layouts.parse(options.target or found.parts or DEFAULT)
        layout = layouts.find(name)
    except UsageError as error:
        if options.target is not None:
            raise
        text = f"{checkpoint.path}: {network.at!r:.200}: the file says what it was made from, and {error.message}"
        raise LayoutError(text, "--layout-file has a layout of one's own, `convert --to` writes another") from None
    at = (options.rename or {}).get(network.at, network.at)
    views = {name: view for name, view in checkpoint.views().items() if not (options.drop_kept and found.is_kept(name))}
    shapes = found.shapes if name == found.parts else {}
    if name == network.layout.name and options.target is None:
        shapes = {own: views[tensor].shape for own, tensor in network.tensors.items()}
    try:
        return relayout_pass.convert(
            network, views, layout, chosen, at=at, keep_split=options.keep_split, shapes=shapes
        )
    except LayoutError as error:
        raise error.located(checkpoint.path) from None


def _check_renamed(checkpoint: Checkpoint, found: list[Found], rename: Mapping[str, str]) -> None:
    """UsageError for a new name of what is no converted network."""
    there = dict.fromkeys(one.network.at for one in found)
    if unknown := [at for at in rename if at not in there]:
        where, known = checkpoint.path, ", ".join(map(repr, there))
        raise UsageError(f"{where}: --rename {unknown[0]!r} is not a converted network; expected one of: {known}")
