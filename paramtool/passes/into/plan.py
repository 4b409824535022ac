"""The plan of `convert --into`: which tensor of a model is filled from what, and what is left on both sides.

Everything is checked before a byte moves, and everything that is wrong is in one error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from shlex import quote

from paramtool.errors import LayoutError, UsageError, listed, plural, some
from paramtool.grouping import grouped
from paramtool.layouts.networks import Network
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import GRAPH, Checkpoint, LayerPart
from paramtool.model.conventions import NORMS
from paramtool.model.curves import alike, shown
from paramtool.model.images import FEATURES, FIRST, LAST, MIXED, STEP, Image
from paramtool.model.plan import Requirement, Target
from paramtool.model.view import View, Views
from paramtool.passes.into import layers as layer_pass
from paramtool.passes.into import networks as network_pass
from paramtool.passes.into.layers import Filling, LayerTensor, PlainLayer, Turn
from paramtool.passes.into.matching import matched, tokens
from paramtool.passes.into.networks import FilledNetwork, NetworkPair, NetworkUnit

FORCED = (":transpose", ":as-is")
"""What may follow a pair of `--map`."""
BY_HAND = "put the tensor into the model's shape and order yourself, and --map it ':as-is'"


@frozen
class FilledLayer:
    """A layer of the model, or one tensor, and what it is filled from."""

    source: str
    """Its name in the source."""
    model: str
    kind: str
    how: str
    """`name`, `shape`, `order`, `equal` or `map`."""
    fillings: tuple[Filling, ...]
    _members = "source model kind how tensors=fillings"


@frozen
class Into:
    """What is put into a model."""

    targets: Mapping[str, Target]
    """{the name of a tensor in the model: its new values, as copies from the source}.  Of several names of one tensor,
    the first."""
    networks: tuple[FilledNetwork, ...] = ()
    layers: tuple[FilledLayer, ...] = ()
    unfilled: tuple[str, ...] = ()
    """Weights of the model that keep their values."""
    unused: tuple[str, ...] = ()
    """Tensors of the source that are used nowhere."""
    requires: tuple[Requirement, ...] = ()
    """Conditions on the source's bytes."""
    notes: tuple[str, ...] = ()
    """What was assumed, for people."""


def plan(
    source: Checkpoint,
    found: Sequence[Network],
    model: Checkpoint,
    networks: Sequence[Network],
    *,
    maps: Sequence[str] = (),
    flatten: str = "",
    partial: bool = False,
    same: Callable[[View, View], bool] = lambda a, b: a == b,
) -> Into:
    """What of a source goes into which tensor of a model.

    `found` and `networks` are the recurrent networks of the two; `flatten` is the order in which the source flattens
    images; with `partial` layers whose shapes differ are left; `same` says whether two tensors of the source hold the
    same bytes.  LayoutError lists all that does not fit, and all that is ambiguous with the `--map` that decides it;
    UsageError for a `--map` of what is not there.
    """
    return _Planning(source, found, model, networks, flatten=flatten, partial=partial, same=same).made(maps)


class _Planning:
    """The plan in the making."""

    def __init__(
        self, source: Checkpoint, found: Sequence[Network], model: Checkpoint, networks: Sequence[Network],
        *, flatten: str, partial: bool, same: Callable[[View, View], bool],
    ) -> None:  # fmt: skip
        views, others = source.views(), model.views()
        alike = {
            name: part for name, part in model.parts.items()
            if part.axes == "in out" and name in views.keys() - source.parts and views[name].shape == others[name].shape
        }  # fmt: skip
        if any(views[name].shape != views[name].shape[::-1] for name in alike):  # a matrix that fits only as it is
            source = replace(source, parts={**source.parts, **alike})
        self.source, self.model, self.flatten, self.partial, self.same = source, model, flatten, partial, same
        self.where = model.path if model.files else "the model"
        self.source_units = [*network_pass.units(source, found)]
        self.model_units = [*network_pass.units(model, networks)]
        self.source_parts = [
            layer
            for unit in self.source_units
            if unit.network.spec.layers > 1
            for layer in network_pass.apart(unit, "")
        ]
        """The layers of the source's networks, each as a unit."""
        in_source = {name for one in found for name in (*one.tensors.values(), *one.raw.values(), *one.raw)}
        in_model = {name for one in networks for name in one.tensors.values()}
        in_source |= {name for module in source.modules for name in module.tensors.values()}
        in_model |= {name for module in model.modules for name in module.tensors.values()}
        self.source_layers = layer_pass.source_layers(source, in_source)
        self.model_layers = layer_pass.model_layers(model, in_model)
        self.usual = _usual(source, self.source_layers, found), _usual(model, self.model_layers, networks)
        self.wrong: list[str] = []
        self.notes: list[str] = []
        self.decides: list[str] = []
        """The `--map` that would decide what is ambiguous."""
        self.networks: list[FilledNetwork] = []
        self.layers: list[FilledLayer] = []
        self.said: list[NetworkPair] = []
        """The networks that `--map` names."""
        self.said_units: list[NetworkUnit] = []
        """The networks, and layers of them, that it names on both sides."""

    def made(self, maps: Sequence[str]) -> Into:
        for text in maps:
            self._read(text)
        self._fill_networks()
        self._fill_layers()
        self._refuse_unseen_images()
        targets, used = self._targets()
        if self.wrong:
            head = f"{self.where}: {self.source.path if self.source.files else 'the source'} does not fit:"
            raise LayoutError(
                listed(head, list(dict.fromkeys(self.wrong))), hint="; ".join(dict.fromkeys(self.decides))
            )
        requires = tuple(one for filled in self.networks for one in filled.converted.requires)
        return Into(
            targets,
            tuple(self.networks),
            tuple(self.layers),
            tuple(self._unfilled(targets)),
            tuple(
                name for name, entry in self.source.entries.items() if name not in used and entry.role not in NO_WEIGHTS
            ),
            requires,
            tuple(dict.fromkeys([*(note for one in self.networks for note in one.notes), *self.notes])),
        )

    # --- what a person says ---------------------------------------------------------------------------------------

    def _read(self, text: str) -> None:
        """One `--map`; UsageError if it names nothing that is there."""
        words, force = text, ""
        for one in FORCED:
            if text.endswith(one):
                words, force = text.removesuffix(one), one[1:]
        if "=" not in words:
            raise UsageError(f"--map {text!r}: expected A=B, or A=B:transpose, or A=B:as-is")
        ways = [(words[:k], words[k + 1 :]) for k, letter in enumerate(words) if letter == "="]
        if not any(self._read_pair(here, there, force) for here, there in ways):
            mine, theirs = (
                some(list(dict.fromkeys([*(one.name for one in units), *(one.name for one in layers)])), 8)
                for units, layers in (
                    (self.source_units, self.source_layers),
                    (self.model_units, self.model_layers),
                )
            )
            raise UsageError(
                f"--map {text!r}: expected two networks, two layers or two tensors; the source has "
                f"{mine}; the model has {theirs}"
            )

    def _read_pair(self, here: str, there: str, force: str) -> bool:
        """Take a pair of networks, of tensors or of layers; False if one of the two is not there."""
        ours, theirs = _units([*self.source_units, *self.source_parts], here), _units(self.model_units, there)
        if ours and theirs and not force:
            self.said += network_pass.said_pair(ours, theirs, self.where)
            self.said_units += [*ours, *theirs]
            return True
        views = self.source.views()
        for layer in self.model_layers:
            for piece in layer.pieces:
                if here in views and piece.name == there:
                    found = [one for other in self.source_layers for one in other.pieces if one.name == here]
                    suits = [one for one in found if layer_pass.axes_in(one, layer.kind, piece.own)]
                    mine = next(iter(suits or found), LayerTensor(here, here, views[here]))
                    self._fill_tensor(mine, piece, layer.kind, "map", force)
                    return True
        pairs = [
            (one, other)
            for one in self.source_layers
            if here in _names(one)
            for other in self.model_layers
            if there in _names(other)
        ]
        if not pairs or force:
            return False
        self._fill_layer(*max(pairs, key=lambda pair: len(layer_pass.partners(*pair))), "map")
        return True

    # --- networks -------------------------------------------------------------------------------------------------

    def _fill_networks(self) -> None:
        said = {id(one.network) for one in self.said_units}
        left: list[NetworkUnit] = []
        for unit in self.source_units:
            layers = [one for one in self.source_parts if one.whole is unit.network]
            rest = [one for one in layers if id(one.network) not in said]
            if id(unit.network) not in said:
                left += [unit] if len(rest) == len(layers) else rest
        right = [unit for unit in self.model_units if id(unit.network) not in said]
        pairs, unsure = network_pass.pair(left, right, self.where)
        for many in unsure:
            self._ambiguous(
                [(unit.name, str(unit.network.spec)) for unit in many.sources],
                [(u.name, u.name if u.whole is u.network else u.whole.at) for u in many.models],
                "network",
            )
        for pair in [*self.said, *pairs]:
            one, other = pair.source, pair.model
            names, spec = (one.name, other.name), other.network.spec
            turn = self._turn(one.said, other.said, "in", spec.input, names)
            if self._turn(one.said, other.said, "out", spec.hidden, names):
                self._refuse_outputs(names)
            try:
                self.networks.append(network_pass.fill(pair, self.source, self.model, turn))
            except LayoutError as error:
                self._does_not_fit(error.message)
                self.decides += [error.hint] if error.hint else []

    # --- other layers ---------------------------------------------------------------------------------------------

    def _fill_layers(self) -> None:
        used, done = self._done()
        mine = [layer for layer in self.source_layers if not any(piece.name in used for piece in layer.pieces)]
        theirs = [layer for layer in self.model_layers if not any(piece.name in done for piece in layer.pieces)]
        theirs = [layer for layer in theirs if layer.kind or layer.pieces[0].said]
        pairs, unsure = matched(self._named(mine, theirs), theirs, lambda layer: layer.name, layer_pass.fits)
        for pair in pairs:
            self._fill_layer(pair.source, pair.model, pair.how)
        for many in unsure:
            if self._are_equal(many.sources, many.models):
                for one, other in zip(many.sources, many.models, strict=False):
                    self._fill_layer(one, other, "equal")
                continue
            self._ambiguous(
                [(layer.name, _shapes(layer)) for layer in many.sources],
                [(layer.name, layer.name) for layer in many.models],
                "layer",
            )
        self._fill_by_name()

    def _are_equal(self, ours: Sequence[PlainLayer], theirs: Sequence[PlainLayer]) -> bool:
        """Whether any of some layers of the source can fill any of the model's with the same bytes."""
        if len(ours) < len(theirs) or not all(layer_pass.fits(one, other) for one in ours for other in theirs):
            return False
        first, *rest = (layer_pass.partners(one, theirs[0]) for one in ours)
        pairs = [(piece, found[name]) for found in rest for name, piece in first.items()]

        def kind(one: LayerTensor) -> tuple[str, LayerPart | None]:
            return one.own, one.said and replace(one.said, layer="", settings={})

        return all(kind(a) == kind(b) and self.same(a.view, b.view) for a, b in pairs)

    def _named(self, mine: Sequence[PlainLayer], theirs: Sequence[PlainLayer]) -> list[PlainLayer]:
        """Of the source's readings of one name, the one that has most in common with the model's layer of that name."""
        best: dict[tuple[str, ...], PlainLayer] = {tokens(layer.name): layer for layer in theirs}
        found: dict[tuple[str, ...], PlainLayer] = {}
        for layer in mine:
            key = tokens(layer.name)
            wanted = next((best[key[k:]] for k in range(len(key)) if key[k:] in best), None)
            other = found.get(key)
            if other is None or (
                wanted and len(layer_pass.partners(layer, wanted)) > len(layer_pass.partners(other, wanted))
            ):
                found[key] = layer
        return list(found.values())

    def _fill_by_name(self) -> None:
        """Tensors of which the file says nothing, from tensors of the same name."""
        used, done = self._done()
        pieces = {piece.name: piece for layer in self.source_layers for piece in layer.pieces if piece.name not in used}
        by_name = grouped((tokens(piece.name), piece) for piece in pieces.values())
        for layer in self.model_layers:
            for piece in layer.pieces:
                same = by_name.get(tokens(piece.name), [])
                said = [one for one in (piece.said, *(one.said for one in same)) if one is not None and one.kind]
                is_other = len({(one.kind, one.part) for one in said}) > 1
                if piece.name not in done and len(same) == 1 and not is_other:
                    self._fill_tensor(same[0], piece, layer.kind, "name")

    def _done(self) -> tuple[set[str], set[str]]:
        """The tensors of the source that are used in layers, and those of the model that are filled there."""
        done = [one for layer in self.layers for one in layer.fillings]
        return {one.source for one in done}, {one.piece.name for one in done}

    def _fill_layer(self, one: PlainLayer, other: PlainLayer, how: str) -> None:
        """The tensors of a layer; what does not fit is noted."""
        found = layer_pass.partners(one, other)
        if not found:
            self._does_not_fit(
                f"{one.name!r} ({_shapes(one)}) into {other.name!r}, {other.kind or 'of no known kind'} "
                f"({_shapes(other)}): no tensor of the first is known to be one of the second"
            )
            self.decides += [
                *layer_pass.unmade([piece.name for piece in one.pieces]),
                "--map names the tensors, or another layer",
            ]
        fillings = [
            filled
            for piece in other.pieces
            if piece.name in found and (filled := self._filling(found[piece.name], piece, other.kind))
        ]
        if fillings and not (self.partial and other.kind and len(fillings) < len(found)):
            self.layers.append(FilledLayer(one.name, other.name, other.kind, how, tuple(fillings)))

    def _fill_tensor(self, one: LayerTensor, other: LayerTensor, kind: str, how: str, force: str = "") -> None:
        if filled := self._filling(one, other, kind, force=force, is_said=how == "map"):
            self.layers.append(FilledLayer(one.name, other.name, kind, how, (filled,)))

    def _filling(
        self, one: LayerTensor, other: LayerTensor, kind: str, *, force: str = "", is_said: bool = False
    ) -> Filling | None:
        """One tensor; None and a line for the error if it does not fit."""
        here, there = self.source.parts.get(one.name), self.model.parts.get(other.name)
        if here and there and not force and (words := layer_pass.differing(here.settings, there.settings)):
            source, model = (", ".join(f"{w}={shown(side.settings[w])}" for w in words) for side in (here, there))
            self._does_not_fit(f"{here.layer!r} into {there.layer!r}: the source has {source}; the model has {model}")
            self.decides += [network_pass.FIXED, "--partial leaves these layers and names them"]
            return None
        mine = other.said.axes if other.said and not force else "in out" if force == "transpose" else ""
        said, names = one.said, (one.name, other.name)
        words = mine.split() if kind in ("dense", "prelu", "embedding", *NORMS, *CONVOLUTIONS) else []
        sizes = other.view.shape if len(words) > 1 else (prod(other.view.shape),)
        looked_at = {"in"} if kind in CONVOLUTIONS else {*words[kind == "embedding" :]}
        turns = {
            word: turn
            for word, size in zip(reversed(words), reversed(sizes), strict=False)
            if word in looked_at
            and (turn := self._turn(said, other.said, "in" if word == "in" else "out", size, names))
        }
        if not (looked_at - {"in"} or force) and self._turn(said, other.said, "out", prod(other.view.shape), names):
            self._refuse_outputs(names)
        filled = layer_pass.filling(one, other, kind, force, turns)
        if filled is None:
            axes = f" ({other.said.axes})" if other.said and other.said.axes else ""
            self._does_not_fit(
                f"{one.name!r} has shape {list(one.view.shape)}; {other.name!r} has {list(other.view.shape)}{axes}"
            )
        elif not is_said and layer_pass.is_unsure(filled, one):
            self.wrong.append(
                f"{one.name!r} into {other.name!r}: a tensor of shape {list(other.view.shape)} fits in several orders "
                "of its axes, and neither file shows which"
            )
            self.decides.append(f"--map '{one.name}={other.name}:as-is' or --map '{one.name}={other.name}:transpose'")
        elif not filled.target.copies[0].terms:
            value = filled.target.copies[0].shift
            self.notes.append(f"{other.name!r} is filled with {value:g}, as the description of {one.name!r} says")
            return filled
        elif turns and not filled.axes:
            self.wrong.append(f"{one.name!r} into {other.name!r}: nothing shows which axis is the flattened image")
        else:
            return filled
        return None

    # --- flattened images -----------------------------------------------------------------------------------------

    def _turn(
        self, mine: LayerPart | None, theirs: LayerPart | None, axis: str, size: int, names: tuple[str, str]
    ) -> Turn | None:
        """How an axis of a layer is reordered, along which an image is flattened; None if it stays, or is wrong."""
        here, there = ((said.images or {}).get(axis) if said else None for said in (mine, theirs))
        image = there or here
        if image is None or size in (1, image.channels):
            return None
        if FEATURES in {one.channels for one in (here, there) if one}:
            is_both = all(one and one.images is not None for one in (mine, theirs))
            sides = [one for one in (here, there) if one and (one.joined > 1 or one.units == size)]
            self._moved(sides, f"{names[0]!r} into {names[1]!r}", is_both, "source" if here else "model")
            return None
        if (image.order != MIXED or image.unseen) and (image.channels == 1 or size % image.channels):
            return None
        order = there.order if there else self.usual[1]
        ours = here.order if here else self.flatten or self.usual[0]
        both = f"{names[0]!r} into {names[1]!r}"
        if here and self.flatten not in ("", ours):
            self.wrong.append(f"{both}: the source says that its images are {ours}, and --flatten {self.flatten}")
        elif ours == order or not (here or self.flatten or self.usual[0] != self.usual[1]):
            return None
        elif not image.unseen and order != MIXED and not self.flatten:
            what = f"an image of {image.channels} channels is flattened there, {order} in the model"
            self._refuse_image(both, what)
        elif image.unseen:
            where = "model" if there else "source"
            self.wrong.append(f"{both}: an image is flattened there, its order hidden by {image.unseen}")
            self.decides.append(
                f"--flatten says the order of the source, and not what the {where} computes: put layers of known "
                f"axes in its place (Rescaling, Permute, Reshape), or {BY_HAND}"
            )
        elif MIXED in (order, ours):
            self.wrong.append(f"{both}: an image is flattened there, in neither order of --flatten")
            self.decides.append(BY_HAND)
        else:
            return Turn(image.channels, ours, order)
        return None

    def _moved(self, sides: Sequence[Image], both: str, is_both: bool, one: str) -> None:
        """Features that only one of the two moves, or both in other ways; a graph of one library says it for both."""
        dims = [image.dims[-image.joined :] for image in sides]
        if not sides or self.flatten == self.usual[1] or (len(dims) == 2 and alike(*dims)):
            return
        other = "model" if one == "source" else "source"
        says = "otherwise than the model" if len(sides) == 2 else f"the {other} does not" + " say so" * (not is_both)
        words = f"{both}: the {one} moves the outputs of a layer to other places before it takes them, {says}"
        is_known = not any(image.unseen for image in sides) and all(place != STEP for dim in dims for _, place in dim)
        if is_both or is_known or self.usual[0] != self.usual[1]:
            self.wrong.append(words)
            self.decides.append(f"--flatten {self.usual[1]}, if the source does what the model does; else {BY_HAND}")
        else:
            self.notes.append(f"{words}: the source is taken to do the same")

    def _refuse_outputs(self, names: tuple[str, str]) -> None:
        self.wrong.append(f"{names[0]!r} into {names[1]!r}: an image is made of its outputs, which are not reordered")
        self.decides.append(BY_HAND)

    def _refuse_image(self, both: str, what: str) -> None:
        self.wrong.append(f"{both}: {what}, and the source has its channels elsewhere or does not say where")
        self.decides.append(
            f"--flatten {FIRST}, if the source flattens (channels, height, width), as PyTorch does; "
            f"--flatten {LAST}, if (height, width, channels)"
        )

    def _refuse_unseen_images(self) -> None:
        """Refuse what can be a flattened image by its size, where neither file says what its layers are made into."""
        if self.usual[0] == self.usual[1] or self.flatten == self.usual[1]:
            return
        channels, made = set[int](), list[int]()
        taken: list[tuple[str, LayerPart | None, int]] = []
        for layer in self.layers:
            for one in layer.fillings:
                axes = zip(reversed(one.axes.split()), reversed(one.piece.view.shape), strict=False)
                sizes = dict(
                    axes if one.axes.startswith("*") else zip(one.axes.split(), one.piece.view.shape, strict=False)
                )
                if "bias" not in one.piece.own:
                    made += [sizes[axis] for axis in ("out", "dim") if axis in sizes]
                if layer.kind in CONVOLUTIONS:
                    channels |= {sizes.get("out", 1)} - {1}
                if layer.kind == "dense" and "in" in sizes:
                    taken.append((f"{one.source!r} into {one.piece.name!r}", one.piece.said, sizes["in"]))
        for filled in self.networks:
            spec, pair = filled.converted.spec, filled.pair
            made.append(spec.hidden * spec.directions)
            taken.append((f"{pair.source.name!r} into {pair.model.name!r}", pair.model.said, spec.input))
        inputs = [size for *_, size in taken]
        for both, said, size in taken:
            is_image = any(size > count and size % count == 0 for count in channels)
            if is_image and (said is None or said.images is None) and inputs.count(size) > made.count(size):
                self._refuse_image(both, "its inputs can be a flattened image")

    # --- the whole ------------------------------------------------------------------------------------------------

    def _does_not_fit(self, text: str) -> None:
        (self.notes if self.partial else self.wrong).append(text)

    def _ambiguous(self, ours: Sequence[tuple[str, str]], theirs: Sequence[tuple[str, str]], what: str) -> None:
        """Note (name, what it is) of the source, and (name, what `--map` calls it) of the model."""
        here = ", ".join(f"{name!r} ({words})" for name, words in ours[:MANY])
        there = ", ".join(repr(name) for name, _ in theirs[:MANY])
        counts = f"{plural(len(ours), what)} of the source could be {plural(len(theirs), what)} of the model"
        self.wrong.append(f"{counts}: {here} -> {there}")
        maps = grouped((other, one) for (one, _), (_, other) in list(zip(ours, theirs, strict=False))[:MANY])
        lines = " ".join("--map " + quote(",".join(ones) + f"={other}") for other, ones in maps.items())
        self.decides.append(lines + (", or in another order" if len(ours) <= len(theirs) else ", or others of them"))

    def _targets(self) -> tuple[dict[str, Target], set[str]]:
        """The targets, of which each place of the model has one; and the tensors that they are made from."""
        views = self.model.views()
        found: dict[View, Target] = {}
        first: dict[str, str] = {}
        used: set[str] = set()
        for filled in self.networks:
            network = filled.pair.source.network
            used |= {*network.tensors.values(), *network.raw.values(), *network.raw}
            for target in filled.converted.targets:
                self._put(target, views, found)
        for layer in self.layers:
            for one in layer.fillings:
                used.add(one.source)
                other = first.setdefault(one.source, one.piece.name)
                if other != one.piece.name and layer.how != "map" and views[other] != views[one.piece.name]:
                    self.wrong.append(f"{one.source!r} would fill both {other!r} and {one.piece.name!r}")
                    self.decides.append("--map names each pair")
                self._put(one.target, views, found)
        return {target.name: target for target in found.values()}, used

    def _put(self, target: Target, views: Views, found: dict[View, Target]) -> None:
        """Note a target; several names of one tensor of the model must get the same values."""
        narrow = {
            (" and ".join(map(repr, copy.names)) or "its source", view.dtype.name)
            for copy in target.copies
            for _, view in copy.terms
            if not layer_pass.widens(view.dtype, target.dtype)
        }
        for name, dtype in sorted(narrow):
            self.wrong.append(
                f"{name} is {dtype}; {target.name!r} is {target.dtype.name}, which does not hold all its values"
            )
            self.decides.append("convert the source to the model's types first, with --dtype")
        place = views[target.name]
        if place not in found:
            found[place] = target
            return
        other = found[place]
        same = target.called(other.name, other.dtype)
        if same.copies != other.copies:
            self.wrong.append(
                f"{other.name!r} and {target.name!r} are one tensor of the model, and would get different values"
            )

    def _unfilled(self, targets: Mapping[str, Target]) -> Iterator[str]:
        """Weights of the model that keep their values."""
        views = self.model.views()
        filled = {views[name] for name in targets}
        for name, entry in self.model.entries.items():
            part = self.model.parts.get(name)
            is_weight = entry.role in ("model", "buffer") and not (part and part.is_state)
            if is_weight and (not isinstance(entry.value, View) or entry.value not in filled):
                yield name


def _usual(checkpoint: Checkpoint, layers: Sequence[PlainLayer], networks: Sequence[Network]) -> str:
    """Where a library has the channels of images: Keras, TensorFlow and flax last, which call a matrix a kernel."""
    if checkpoint.format.startswith("onnx"):
        return FIRST
    pieces = [one for layer in layers for one in layer.pieces]
    is_last = any(one.own == "kernel" or (one.said and one.said.axes == "in out") for one in pieces)
    is_last |= any(one.said is not None and one.said.axes.startswith("*k") for one in pieces)
    is_last |= any(one.layout.name.startswith(("keras", "flax", "tf1")) for one in networks)
    return LAST if is_last else FIRST


CONVOLUTIONS = ("conv", "conv_transposed", "depthwise", "separable")
NO_WEIGHTS = ("other", GRAPH)
"""Roles of tensors that no model needs."""
MANY = 6
"""The most layers that an error lists."""


def _units(units: Sequence[NetworkUnit], text: str) -> list[NetworkUnit]:
    """The networks that a part of `--map` names; empty if one is not there."""
    for names in ([text], text.split(",")):
        found = [[unit for unit in units if name in (unit.name, unit.network.at)] for name in names]
        if all(len(one) == 1 for one in found):
            return [one[0] for one in found]
    return []


def _names(layer: PlainLayer) -> set[str]:
    """The names by which `--map` can name a layer."""
    groups = {piece.name.rpartition("/")[0].removesuffix("/vars") for piece in layer.pieces if "/" in piece.name}
    return {layer.name, *(groups if len(groups) == 1 else ())}


def _shapes(layer: PlainLayer) -> str:
    """The shapes of a layer's tensors, for people."""
    return ", ".join(f"{piece.own} {list(piece.view.shape)}" for piece in layer.pieces[:4])
