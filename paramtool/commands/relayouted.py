"""What `convert`, `fuse` and `unfuse` did: networks, types, parts, ties and optimizers, and what was filled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from paramtool.commands.expected import is_of
from paramtool.commands.optimizer_carry import StateReport
from paramtool.commands.output.write import WholeReport
from paramtool.engine.write.casting import Losses
from paramtool.formats.record import edits
from paramtool.formats.record import parts as parts_record
from paramtool.lazy_dataclass import frozen
from paramtool.passes.into.plan import Into
from paramtool.passes.rnn.convert import Converted

if TYPE_CHECKING:
    from paramtool.commands.rearrangement import Rearrangement
    from paramtool.passes.types.apply import Typed


@frozen(kw_only=True, repr=False)
class Relayouted(WholeReport):
    """What `convert`, `fuse` or `unfuse` did, or would do."""

    converted: tuple[Converted, ...]
    """The recurrent networks that were converted."""
    untouched: int
    """Tensors that belong to no converted network and have the type that they had."""
    as_is: bool = False
    """Whether no layout was asked for."""
    typed: Typed | None = None
    """Which tensors were cast, and which stay in float32; None where nobody asked for other types."""
    losses: Mapping[str, Losses] = field(default_factory=dict)
    """{stored tensor: what its cast did to its elements}; without `dry_run` it is filled when it is written."""
    rearranged: Rearrangement | None = None
    """What was done to attention, gated MLPs and experts; None where recurrent networks were meant."""
    into: Into | None = None
    """What went where in a given model."""
    model: str = ""
    """That model."""
    judge: str = ""
    """The library that read the model back, too."""
    optimizer: StateReport = field(default_factory=StateReport)
    """What became of the optimizers in it."""
    made: tuple[str, ...] = ()
    """The other files of the output that were written anew for it, such as a config.json."""

    @property
    def changed_ties(self) -> edits.RecordedTies | None:
        """`ties`; None where none were changed."""
        return self.ties if self.ties.untied or self.ties.tied else None

    @property
    def changed_state(self) -> StateReport | None:
        """`optimizer`; None where there is none, or it stays as it is."""
        return self.optimizer if self.optimizer.moved or self.optimizer.dropped else None

    @property
    def cast_report(self) -> CastReport | None:
        """What was cast and what stays; None where nobody asked for types."""
        return None if self.typed is None else CastReport(self, self.typed)

    @property
    def filled(self) -> FilledModel | None:
        """What went into a given model."""
        return None if self.into is None else FilledModel(self.model, self.into)

    @property
    def ties(self) -> edits.RecordedTies:
        """The names that became tensors of their own, and those that became names of other tensors."""
        before, after = (edits.ties_of(self.input, one.metadata) for one in (self.checkpoint, self.plan))
        return after if after != before else edits.RecordedTies({}, {}, {})

    @property
    def is_recorded(self) -> bool:
        """Whether the output says what was converted and cast, so that `verify` can do it again."""
        is_cast = self.typed is not None and bool(self.typed.casts)
        is_kept = self.rearranged is None or parts_record.KEY in self.plan.metadata or not self.rearranged.is_recorded
        return (is_kept and (not self.converted or bool(self.plan.modules))) and (
            not is_cast or edits.TYPES in self.plan.metadata
        )

    @property
    def of_networks(self) -> set[str]:
        """The tensors of the source that `verify` takes for those of networks.

        Without a record of their layout, these are only those that are below a network by name.
        """
        found = {name for one in self.converted for name in (*one.source.tensors.values(), *one.source.raw.values())}
        if any(text.startswith("which layout") for text in self.left_out):
            return {name for name in found if any(is_of(name, module) for module in self.plan.modules)}
        return found

    _schema = "relayout/1"
    _members = (
        "input output written verified nbytes_before nbytes_after names=plan.names.__len__ untouched "
        "networks=converted types=cast_report? "
        "parts=rearranged?(from=source to=target is_dialect renamed split joined facts said+) "
        "ties=changed_ties?(untied tied state) "
        "optimizer=changed_state?(moved(at algorithm before after words) dropped training) made+ left_out warnings "
        "files seconds into=filled? cloned_nbytes+"
    )


@frozen
class CastTensor:
    """A tensor that was cast, with what that lost."""

    name: str
    before: str
    after: str
    losses: Losses | None
    _members = "name from=before to=after *losses"


@frozen
class KeptType:
    """A tensor that is float32 in the output, and why."""

    name: str
    why: str


@frozen
class CastReport:
    """Which tensors were cast, and which were not."""

    report: Relayouted
    typed: Typed
    _members = "cast float32 unchanged=typed.left dequantised=typed.dequantised+"

    @property
    def cast(self) -> Iterator[CastTensor]:
        """Those that were."""
        after = {target.name: target.dtype.name for target in self.report.plan.targets}
        losses = self.report.losses
        return (CastTensor(name, old, after[name], losses.get(name)) for name, old in self.typed.casts.items())

    @property
    def float32(self) -> Iterator[KeptType]:
        """Those that are float32."""
        return (KeptType(*one) for one in self.typed.kept.items())


@frozen
class FilledModel:
    """What went into which model."""

    model: str
    into: Into
    _members = (
        "model networks=into.networks(source=pair.source.name model=pair.model.name how=pair.how notes) "
        "layers=into.layers filled=into.targets.keys unfilled=into.unfilled unused=into.unused"
    )
