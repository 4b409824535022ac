"""The lines to type for attention, gated MLPs and experts that were found, each of them tried.

Fused tensors whose layout something says are taken apart; parts that are apart are fused; a model under the names of
a dialect is converted to another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from paramtool.commands._guess_line import TriedOn, facts, places, typed
from paramtool.commands.seen_parts import fused_place
from paramtool.errors import ParamtoolError
from paramtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from paramtool.commands.rearrangement import Rearrangement
    from paramtool.commands.relayout_options import RelayoutOptions
    from paramtool.formats.folder.weight_names import Weights
    from paramtool.passes.parts.groups import SeenGroup, SeenParts


class PartsTried(NamedTuple):
    """What came of trying."""

    lines: tuple[str, ...] = ()
    """Those that work."""
    refused: Mapping[str, str] = {}
    """{module: why there is no line for it}"""


class _PartsCall(NamedTuple):
    """A call of `fuse`, `unfuse` or `convert`, and the module of the first group that it is for."""

    command: str
    where: str = ""
    layout: str = ""
    at: tuple[str, ...] = ()
    target: str = ""

    def text(self, path: str, spec: str, output: str) -> str:
        """As it is typed; only `convert` says where to write."""
        words = [f"paramtool {self.command}", typed(path)]
        words += [f"--layout {self.layout}"] if self.layout else []
        words += [f"--to {self.target}", f"-o {typed(output)}"] if self.target else []
        return " ".join([*words, *places(self.at), *facts(spec)])

    def options(self, spec: str) -> RelayoutOptions:
        """The same, as the library takes it."""
        from paramtool.commands.relayout_options import RelayoutOptions

        is_back = self.command == "unfuse"
        source, target = (self.layout, "") if is_back else ("", self.layout or self.target)
        return RelayoutOptions(
            source=source or None, target=target or None, described=is_back, spec=spec, at=self.at, dry_run=True,
            force=True,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartsTries:
    """The lines for groups of parts of a checkpoint, each of them tried."""

    on: TriedOn
    weights: Callable[[], Weights]
    """The weights of the checkpoint, as those commands open them."""

    def all(self, seen: SeenParts | None, at: str | None) -> PartsTried:
        """The lines for these groups; `at` is where the user looks."""
        if seen is None:
            return PartsTried()
        lines: list[str] = []
        refused: dict[str, str] = {}
        if at is None and seen.dialect and not self.on.spec:
            lines += self._converted(seen.dialect)
        for call in self._calls(seen, at):
            if why := self._refused(call):
                refused[call.where] = f"{call.command} refuses it: {why}"
            else:
                lines.append(self._line(call))
        return PartsTried(tuple(lines), refused)

    def _line(self, call: _PartsCall, output: str = "") -> str:
        return " ".join([call.text(os.fspath(self.on.path), self.on.spec, output), *self.on.flags])

    def _calls(self, seen: SeenParts, at: str | None) -> Iterator[_PartsCall]:
        """One for all fused tensors, if it works, else one for each group; one for all parts of a kind.

        Parts are fused to the layout that has the name of their kind: the one that most families store.
        """
        fused = [one for one in seen.groups if one.form == "fused"]
        every = _PartsCall("unfuse")
        if at is None and fused and all(one.layout for one in fused) and not self._refused(every):
            yield every
        else:
            yield from (_PartsCall("unfuse", one.at, one.layout, (fused_place(one),)) for one in fused if one.layout)
        apart: dict[str, list[SeenGroup]] = {}
        for one in seen.groups:
            if one.form != "fused":
                apart.setdefault(one.kind, []).append(one)
        for layout, groups in apart.items():
            chosen = tuple(dict.fromkeys(one.at for one in groups)) if at is not None else ()
            yield _PartsCall("fuse", groups[0].at, layout, chosen)

    def _converted(self, dialect: str) -> Iterator[str]:
        """The line for another dialect, if there is a config and something changes."""
        from paramtool import dialects
        from paramtool.commands.output.destination import default_output

        target = dialects.MEMORY if dialect == dialects.HUB else dialects.HUB
        call = _PartsCall("convert", target=target)
        try:
            done = self._tried(call)
        except ParamtoolError:
            return
        if done is not None and not done.is_nothing:
            is_folder = self.on.checkpoint.format.startswith("sharded")
            yield self._line(call, default_output(self.on.path, is_folder, target))

    def _refused(self, call: _PartsCall) -> str:
        """Why a call does not work; empty if it does."""
        try:
            return "" if self._tried(call) is not None else "it takes a recurrent network"
        except ParamtoolError as error:
            return " ".join(error.message.split())

    def _tried(self, call: _PartsCall) -> Rearrangement | None:
        """What a call does, without writing it; None for recurrent networks."""
        from paramtool.commands.rearrange import rearrangement
        from paramtool.commands.relayout import relayouted

        options = call.options(self.on.spec)
        if not self.on.values:
            return rearrangement(self.on.checkpoint, options)
        word = call.target or f"{call.command}d"
        options = replace(options, allow_class=self.on.allow_class, allow_unknown=self.on.allow_unknown)
        return relayouted(self.on.path, None, self.weights(), options, word=word).rearranged
