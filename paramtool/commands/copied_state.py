"""Files with the state of optimizers that are copied beside weights: can they be read, and are they of this model?

`optimizer.pt` and others like it come along byte for byte where no parameter changes.  Only their descriptions are
read.  What is not understood is no contradiction: an optimizer of another form, parameters that a class trains in
another form than its files have, or a folder with several models.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from paramtool import formats
from paramtool.commands.output.sidecar_checks import other_weights
from paramtool.commands.progress import Path
from paramtool.errors import FormatError, ParamtoolError, UnsafeError
from paramtool.formats import hf_config
from paramtool.formats.files import is_folder
from paramtool.formats.folder.training_files import is_training_state, optimizer_of

METADATA = ".metadata"
"""What is read of a folder of torch.distributed.checkpoint."""

if TYPE_CHECKING:
    from paramtool.commands.opening import Allowing
    from paramtool.formats.folder.weight_names import Weights
    from paramtool.model.checkpoint import Checkpoint
    from paramtool.model.optimizer import OptimizerState


def warnings(path: Path, weights: Weights, files: Mapping[str, str], allowing: Allowing) -> Iterator[str]:
    """A warning for each of the `files` that is copied and of no use for the model of the folder `path`.

    `files` is {name in the output: the file}, as `Sidecars.files`.
    """
    if not is_folder(path) or not any(map(optimizer_of, files)):
        return
    is_only = not weights.others and not other_weights(files)
    for name in dict.fromkeys(map(optimizer_of, files)):
        place = files.get(name) or files.get(f"{name}/{METADATA}")
        if name and place is not None:
            model = weights.checkpoint if is_only else None
            yield from _of_one(os.fspath(path), name, place, model, allowing=allowing)


def _of_one(
    folder: str, name: str, place: str, model: Checkpoint | None, *, allowing: Allowing
) -> Iterator[str]:  # fmt: skip
    """What is wrong with one file."""
    from paramtool.commands.optimizers import bound_beside, class_parameters, optimizers

    try:
        found = formats.read(place, allow_class=allowing.allow_class, allow_unknown=allowing.allow_unknown)
        optimizers(found)
    except UnsafeError:
        return  # the warning about what it calls says so
    except FormatError as error:
        if is_training_state(name) or place.endswith(METADATA):
            what = error.message.removeprefix(f"{place}: ")
            yield f"{name!r} is copied, and no training goes on from it: {what}"
        return
    bound = bound_beside(folder, model, found, None) if model is not None else ()
    if model is not None and any(one.defects for one in bound):  # what contradicts its tensors is asked of its class
        config = os.path.join(folder, hf_config.NAME)
        said = class_parameters(config)
        if said is not None:
            bound = bound_beside(folder, model, found, said)
        elif os.path.exists(config) and not _is_trained_as_saved(config):
            return
    lines = [line for one in bound if _is_understood(one.optimizer) for line in one.defects]
    if lines:
        more = f" (and {len(lines) - 1} more)" if lines[1:] else ""
        yield f"{name!r} is copied, and is not the state of this model: {lines[0]}{more}"


def _is_understood(state: OptimizerState) -> bool:
    """Whether the shapes of all that an optimizer keeps follow from its parameters; those of GaLore do not."""
    kinds = {slot.kind for entry in state.entries for slot in entry.slots}
    return bool(state.algorithm) and not state.refused and "unknown" not in kinds


def _is_trained_as_saved(config: str) -> bool:
    """Whether the class of a config trains the tensors that its files have, under their names and in their shapes."""
    from paramtool.dialects import scopes

    try:
        return not scopes.rules(hf_config.whole(config))
    except ParamtoolError:  # a class that is not transformers' own
        return False
