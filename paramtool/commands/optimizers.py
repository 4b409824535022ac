"""The optimizers of a checkpoint and of the files beside it, bound to the parameters of the model.

What is known of the order of the parameters, the surest first: the class that a config.json names, built by
transformers where that is installed; the order of the state dict, in a file of torch's.  safetensors files, HDF5 groups
and arrays have no order that says anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, permutations
from typing import TYPE_CHECKING, NamedTuple, cast

from paramtool import formats
from paramtool.commands import models_of_transformers
from paramtool.commands.name_lists import lines_of
from paramtool.commands.opening import Allowed, Allowing
from paramtool.commands.progress import Path
from paramtool.errors import Defects, ParamtoolError, UsageError, listed, plural
from paramtool.formats import hf_config
from paramtool.formats.dcp.metadata import NAME as METADATA
from paramtool.formats.files import is_folder
from paramtool.formats.folder.training_files import OPTIMIZER, OPTIMIZER_FOLDER
from paramtool.formats.hdf5 import keras_optimizer, keras_trained
from paramtool.formats.record import edits
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.optimizer import Binding, EntryKey, OptimizerState, Order
from paramtool.passes.optimizer import copies, gluon, optax, read
from paramtool.passes.optimizer import order as orders
from paramtool.passes.optimizer.bind import PARAM_NAMES, Given, bind
from paramtool.passes.optimizer.read import shapes_of

if TYPE_CHECKING:
    from paramtool.passes.optimizer.order import ClassParameters

TRAINER_FILES = ("trainer_state.json", "training_args.bin")
"""Files that the Trainer of transformers 5.23 writes (trainer.py, trainer_callback.py)."""
_MOST_SECTIONS = 3
"""The most sections whose orders are tried together."""
_NOTHING = Allowed()
_NO_NAMES: edits.Recorded = {}
_HEADER = re.compile(r"\[(.*)\]")


@frozen
class BoundFile:
    """The optimizers of one file, each with its binding."""

    file: str
    """The name of a file beside the model; empty for the checkpoint itself."""
    checkpoint: Checkpoint
    """The file that has the state."""
    bindings: tuple[Binding, ...]


def bindings(
    path: Path, checkpoint: Checkpoint, *, names: Path | None = None, allowing: Allowing = _NOTHING,
) -> tuple[Binding, ...]:  # fmt: skip
    """The binding of every optimizer of a checkpoint and of the files beside it; errors as of `bound_files`."""
    files = bound_files(path, checkpoint, names=names, allowing=allowing)
    return tuple(binding for file in files for binding in file.bindings)


def bound_files(
    path: Path, checkpoint: Checkpoint, *, names: Path | None = None, allowing: Allowing = _NOTHING,
    recorded: edits.Recorded = _NO_NAMES,
) -> tuple[BoundFile, ...]:  # fmt: skip
    """Every file that has optimizers: the checkpoint itself, and those beside it that hold nothing else.

    `path` is the file or the folder that `checkpoint` was read from.  A file that holds an optimizer alone is bound to
    the model of its folder.  `names` is a file with the names of the parameters, one for each entry, in the order of
    the groups; where there are several optimizers, a line `[AT]` before the names of each says whose they are.
    `recorded` is {path of an optimizer: {key: name}}, as the record of a file has it; those of the checkpoint itself
    are taken without it.

    Defects where an optimizer contradicts itself; UsageError where the names do not fit.  What contradicts the model
    is in `Binding.defects`, for which see `refuse_defects`.
    """
    path = os.fspath(path)
    read = [("", checkpoint), *(_beside(path, allowing) if is_folder(path) else ())]
    states = [(file, one, state) for file, one in read for state in optimizers(one)]
    if names is not None and not states:
        raise UsageError(f"{path}: has no optimizer that --optimizer-names could be of")
    if not states:
        return ()
    known = _known(path, checkpoint)
    place = os.fspath(names or "")
    given = _given(place, [(file, state) for file, _, state in states]) if names is not None else {}
    found: dict[str, list[Binding]] = {}
    for k, (file, one, state) in enumerate(states):
        if k in given:
            bound = known.fitting(one, state, (given[k], "given", f"--optimizer-names {place}"))
            if not bound.is_unique:
                raise UsageError(listed(f"{place}: the names do not fit", [*bound.defects] or [bound.source]))
        else:
            bound = known.binding(one, state, recorded)
        found.setdefault(file, []).append(bound)
    return tuple(BoundFile(file, one, tuple(found[file])) for file, one in read if file in found)


def bound_beside(
    path: str, model: Checkpoint, file: Checkpoint, said: ClassParameters | None
) -> tuple[Binding, ...]:  # fmt: skip
    """The bindings of a file beside a model in the folder `path`; `said` is what is known of the model's class."""
    known = _KnownOrders.of(model, lambda: said, path)
    return tuple(known.binding(file, one) for one in optimizers(file))


def bound_copies(path: Path, checkpoint: Checkpoint, recorded: edits.Recorded) -> tuple[Binding, ...]:
    """The lists of averages in a checkpoint, each bound to its model; `recorded` as of `bound_files`."""
    states = copies.averages(checkpoint)
    if not states:
        return ()
    known = _known(os.fspath(path), checkpoint)
    return tuple(known.binding(checkpoint, one, recorded) for one in states)


def refuse_defects(path: Path, found: Sequence[Binding]) -> None:
    """Defects where the state of an optimizer contradicts the model."""
    lines = [line for binding in found for line in binding.defects]
    if lines:
        by_names = any(binding.defects and binding.source == PARAM_NAMES for binding in found)
        more = "; --optimizer-names FILE says other names" if by_names else ""
        raise Defects(os.fspath(path), lines, hint=f"the optimizer is of another model, or a file is missing{more}")


def _beside(folder: str, allowing: Allowing) -> Iterator[tuple[str, Checkpoint]]:
    """The files of a folder that hold optimizers alone, and its folders that do."""
    for name in sorted(os.listdir(folder)):
        place = os.path.join(folder, name)
        if is_sharded := bool(re.fullmatch(OPTIMIZER_FOLDER, name)) and os.path.isfile(os.path.join(place, METADATA)):
            place = os.path.join(place, METADATA)
        if is_sharded or re.fullmatch(OPTIMIZER, name):
            yield name, formats.read(place, allow_class=allowing.allow_class, allow_unknown=allowing.allow_unknown)


# Orders


class _KnownOrders(NamedTuple):
    """What is known of the parameters of the models that an optimizer may belong to."""

    model: Checkpoint
    apart: list[Order]
    """Of each section that may be a model, as the file has them."""
    joined: list[Order]
    """Of all such sections together: the modules of one model may be saved apart, and have one optimizer."""
    trainer: bool
    """Whether the groups are those of the Trainer of transformers, if they can be."""
    said: Callable[[], ClassParameters | None]
    """What is known of the model's class, which takes seconds to import."""

    @classmethod
    def of(cls, model: Checkpoint, said: Callable[[], ClassParameters | None], folder: str) -> _KnownOrders:
        """The orders of a model."""
        sections = orders.sections_of_models(model)
        apart = [orders.of_checkpoint(model, section, _source(model, section)) for section in sections]
        names = [section for section in sections if section is not None]
        joined = []
        if 1 < len(names) <= _MOST_SECTIONS:
            source = min(_source(model, section) for section in names)  # empty where one is
            joined = [orders.of_sections(model, some, source) for some in permutations(names)]
        trainer = any(os.path.isfile(os.path.join(folder, name)) for name in TRAINER_FILES)
        return cls(model, apart, joined, trainer, said)

    def with_class(self) -> list[Order]:
        """Each order after that of the class, where one is known; those that lack parameters last."""
        said = self.said()
        pairs = ([orders.of_class(said, order), order] if said is not None else [order] for order in self.apart)
        return sorted(chain.from_iterable(pairs), key=lambda order: bool(order.missing))

    def binding(self, file: Checkpoint, state: OptimizerState, recorded: edits.Recorded = _NO_NAMES) -> Binding:
        """The binding of an optimizer in a file: to recorded names, where they still fit, else as its entries show."""
        if state.refused and not state.entries:
            return Binding(state, {}, "order", state.refused, False)
        own = {one.at: one.names for one in edits.optimizers_of(file.path, file.metadata)}
        names = recorded.get(state.at) or own.get(state.at)
        if names and len(names) == len(state.entries):
            by_key = {entry.key: names.get(str(entry.key), "") for entry in state.entries}
            found = self.fitting(file, state, (by_key, "record", f"the record {edits.OPTIMIZERS}"))
            if found.is_unique:
                return found
        return self.fitting(file, state)

    def fitting(self, file: Checkpoint, state: OptimizerState, given: Given | None = None) -> Binding:
        """The binding to one model; to several together, where the optimizer fits none of them alone."""
        shapes, order = shapes_of(file), None
        # The order in which other libraries than torch have the variables of a model
        if state.form == keras_optimizer.FORM:
            order = keras_trained.order(file, state, shapes)
        elif state.form == gluon.FORM:
            order = gluon.order(self.model)
        first = [order] if order is not None else []
        found = bind(state, [*first, *self.apart], shapes, self.trainer, given)
        if not found.is_unique or found.how in ("order", "shapes"):  # names need no class
            found = bind(state, [*first, *self.with_class()], shapes, self.trainer, given)
        if not found.defects or not self.joined:
            return found
        together = bind(state, self.joined, shapes, given=given)
        return found if together.defects else together


def _known(path: str, checkpoint: Checkpoint) -> _KnownOrders:
    """What is known of the model that an optimizer belongs to: the checkpoint, or that of its folder."""
    folder = path if is_folder(path) else os.path.dirname(os.path.abspath(path))
    model = checkpoint
    if not is_folder(path) and not orders.sections_of_models(checkpoint):
        path = folder
        try:
            model = formats.describe(folder).checkpoint
        except ParamtoolError:  # there is no model, or there are several
            return _KnownOrders(checkpoint, [], [], False, lambda: None)
    return _KnownOrders.of(model, partial(class_parameters, hf_config.beside(os.path.abspath(path))), folder)


def _source(checkpoint: Checkpoint, section: str | None) -> str:
    return "the state dict's order" if orders.is_ordered(checkpoint, section) else ""


def class_parameters(config: str) -> ClassParameters | None:
    """The parameters of the class that a config names; None where there is no config, or nothing that builds it."""
    try:
        state = os.stat(config)
    except OSError:
        return None
    return _built(os.path.abspath(config), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=8)
def _built(config: str, *state: int) -> ClassParameters | None:
    models = models_of_transformers.load_if_installed()
    try:
        found = None if models is None else models.parameters_from_config(config)
    except (ImportError, ParamtoolError):  # another version, or a model that is not its own: no order is known
        return None
    return cast("ClassParameters | None", found)


# Names that are given


def _given(path: str, states: Sequence[tuple[str, OptimizerState]]) -> dict[int, dict[EntryKey, str]]:
    """{the position of an optimizer: the names of its entries}; UsageError where a list is of none of them."""
    # {what is in the brackets before them, or nothing: names}, without comments.
    lists: dict[str, list[str]] = {}
    at = ""
    for line in lines_of(path):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if header := _HEADER.fullmatch(text):
            at = header[1]
            if at in lists:
                raise UsageError(f"{path}: has two lists for [{at}]")
            lists[at] = []
        else:
            lists.setdefault(at, []).append(text)
    if not any(lists.values()):
        raise UsageError(f"{path}: holds no name", hint="one name a line, in the order of the optimizer's entries")
    places = {
        (":".join(part for part in (file, state.at) if part) or "optimizer"): k
        for k, (file, state) in enumerate(states)
    }
    if "" in lists and len(lists) == len(states) == 1:
        lists = dict.fromkeys(places, lists[""])
    known = ", ".join(f"[{place}]" for place in places)
    if "" in lists:
        raise UsageError(f"{path}: does not say of which optimizer its names are: {known}",
                         hint=f"a line such as {known.split(', ')[0]} before the names of each")  # fmt: skip
    if strange := [at for at in lists if at not in places]:
        raise UsageError(f"{path}: has names for [{strange[0]}]; the optimizers are {known}")
    found = {}
    for place, names in lists.items():
        state = states[places[place]][1]
        if len(names) != len(state.entries):
            entries = plural(state.entries, "entry", "entries")
            raise UsageError(
                f"{path}: has {plural(len(names), 'name')}; {state.at or 'the optimizer'} has {entries}",
                hint="one name a line for each entry, in the order of the groups: `inspect --optimizer` shows it",
            )
        found[places[place]] = {entry.key: name for entry, name in zip(state.entries, names, strict=True)}
    return found


# --- The optimizers of a checkpoint, whatever library wrote them ------------------------------------------------------


def optimizers(checkpoint: Checkpoint) -> tuple[OptimizerState, ...]:
    """Every optimizer of a checkpoint; Defects where one contradicts itself.

    The forms of torch are looked for first; a file has those of one library.
    """
    found = read.optimizers(checkpoint)
    if found:
        return found
    shapes = read.shapes_of(checkpoint)
    kinds = (optax.states, keras_optimizer.states, keras_optimizer.named_states, gluon.states)
    return tuple(state for states in kinds for state in states(checkpoint, shapes))
