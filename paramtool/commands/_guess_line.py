"""The line to type for the networks that were found: one for all of them, and only where it was tried."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paramtool import layouts
from paramtool.errors import LayoutError, ParamtoolError
from paramtool.guessing.candidates import Guess
from paramtool.layouts.spec import parse
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Checkpoint
from paramtool.passes.rnn import convert as relayout_pass
from paramtool.passes.rnn.find import NetworkRequest, find

if TYPE_CHECKING:
    from paramtool.commands.progress import Path


TARGETS = (None, "onnx")
"""What unfuse writes: torch's layout where it can hold the networks, else that of ONNX, which lacks the least."""


def typed(path: str) -> str:
    """A path as it is typed, and not mistaken for a flag."""
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def places(at: Sequence[str]) -> list[str]:
    """`--at` for each module."""
    return [f"--at{'=' if one.startswith('-') else ' '}{shlex.quote(one)}" for one in at]


def facts(spec: str) -> list[str]:
    """`--spec`, where something is said."""
    return [f'--spec "{spec}"'] if spec else []


@dataclass(frozen=True, slots=True)
class UnfuseCall:
    """A call of `paramtool unfuse` that gives some networks, and no others."""

    source: str | None
    target: str | None
    at: tuple[str, ...]
    spec: str

    def text(self, path: str, allowed: Sequence[str] = ()) -> str:
        """As it is typed; `allowed` are flags for what the file's pickles may hold."""
        words = ["paramtool unfuse", typed(path)]
        words += [f"--layout {self.source}"] if self.source else []
        words += [f"--to {self.target}"] if self.target else []
        return " ".join([*words, *places(self.at), *facts(self.spec), *allowed])


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of trying: lines that work, and why there is none for a network."""

    lines: tuple[UnfuseCall, ...]
    refused: dict[str, str]
    """{module: why}."""


@dataclass(frozen=True, slots=True)
class TriedOn:
    """A checkpoint on which lines are tried, without writing anything, and what the user says of it."""

    path: Path
    checkpoint: Checkpoint
    spec: str
    """What the user says of all networks, or of all groups of parts."""
    values: bool
    """Whether bytes may be read for what a line requires of them."""
    allow_class: Sequence[str] = ()
    allow_unknown: bool = False

    @property
    def flags(self) -> list[str]:
        """The flags for what the file's pickles may hold, as they are typed."""
        allowed = [f"--allow-class {shlex.quote(name)}" for name in self.allow_class]
        return allowed + ["--allow-unknown"] * self.allow_unknown


@dataclass(frozen=True, slots=True)
class Tries:
    """The lines for networks of a checkpoint, each of them tried."""

    on: TriedOn

    def all(self, found: Sequence[Guess]) -> Tried:
        """The fewest lines that give all of these networks."""
        if not found:
            return Tried((), {})
        line, _ = self.one(found)
        if line:
            return Tried((line,), {})
        alone = [(one, *self.one([one])) for one in found]
        refused = {one.at: why for one, line, why in alone if line is None}
        groups: dict[tuple[str, str | None], list[tuple[Guess, UnfuseCall]]] = {}
        for one, line, _ in alone:
            if line:
                groups.setdefault((one.layout, line.target), []).append((one, line))
        lines: list[UnfuseCall] = []
        for group in groups.values():
            together, _ = self.one([one for one, _ in group])
            lines += [together] if together else [line for _, line in group]
        return Tried(tuple(lines), refused)

    def one(self, found: Sequence[Guess]) -> tuple[UnfuseCall | None, str]:
        """A line that gives just these networks, the shortest; else what the last one was refused with."""
        why = ""
        for line in self._lines(found):
            try:
                self._prove(line, found)
            except ParamtoolError as error:
                why = why or error.message
            else:
                return line, ""
        return None, why

    def _lines(self, found: Sequence[Guess]) -> Iterator[UnfuseCall]:
        names = list(dict.fromkeys(one.layout for one in found))
        family = names[0].split(".")[0]
        sources: list[str | None] = [*names] if len(names) == 1 else []
        if len(names) > 1 and all(name.split(".")[0] == family for name in names) and family in layouts.built_in():
            sources = [family]
        said = all(one.sure == "said" for one in found)
        ats = tuple(dict.fromkeys(one.at for one in found))
        whole = found[0].spec if len(found) == 1 else ""
        for target in TARGETS:
            for source in [None, *sources] if said else [*sources, None]:
                yield UnfuseCall(source, target, (), self.on.spec)
                yield UnfuseCall(source, target, ats, self.on.spec)
            for source in sources if whole else ():
                yield UnfuseCall(source, target, ats, whole)

    def _prove(self, line: UnfuseCall, found: Sequence[Guess]) -> None:
        """LayoutError or another error where the line does not give these networks, or cannot be carried out."""
        got = find(self.on.checkpoint, NetworkRequest(line.source, parse(line.spec), line.at, described=True))
        wanted = {frozenset(one.tensors.values()): one for one in found}
        for one in got:
            network = one.network
            mine = wanted.pop(frozenset(network.raw.get(name, name) for name in network.tensors.values()), None)
            if mine is None or mine.spec != str(network.spec):
                raise LayoutError(f"it takes {network.at!r} for {network.layout.name} {network.spec}")
            if network.layout.name not in (mine.layout.partition(":")[0], *mine.alike):
                raise LayoutError(f"it takes {network.at!r} for {network.layout.name}")
        if wanted:
            raise LayoutError(f"it leaves out {next(iter(wanted.values())).at!r}")
        target, options = layouts.parse(line.target or "torch")
        views = self.on.checkpoint.views()
        for one in got:
            name, chosen = (target, options) if line.target or not one.parts else layouts.parse(one.parts)
            relayout_pass.convert(one.network, views, layouts.find(name), chosen, at=one.network.at)
        if self.on.values:
            self._carry_out(line)

    def _carry_out(self, line: UnfuseCall) -> None:
        """All but the writing."""
        from paramtool.commands.relayout import relayout

        relayout(
            self.on.path,
            source=line.source,
            target=line.target,
            described=True,
            spec=line.spec,
            at=line.at,
            dry_run=True,
            force=True,
            allow_class=self.on.allow_class,
            allow_unknown=self.on.allow_unknown,
        )
