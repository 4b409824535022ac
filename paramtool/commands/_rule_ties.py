"""Ties of names that a file lacks, by what a config declares: `save_pretrained` stores one name of each tie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paramtool.commands._rule_names import quoted
from paramtool.errors import FormatError
from paramtool.lazy_dataclass import dataclass
from paramtool.model.checkpoint import Compound
from paramtool.model.view import overlaps

if TYPE_CHECKING:
    from paramtool.commands.inspect import Inspection
    from paramtool.model.config import Config
    from paramtool.passes.config_ties.declared import Declared


@dataclass(frozen=True, slots=True)
class MissingTie:
    """What a config says of the tie of two names, of which the file lacks at least one."""

    found: Inspection
    config: Config | None = None
    rows: tuple[Declared, ...] = ()
    """The ties that lead from the one name to the other."""
    unread: str = ""
    """Why the config cannot be read."""

    @classmethod
    def of(cls, found: Inspection, a: str, b: str) -> MissingTie:
        """By the config that was given, or else the one in the folder or beside the file."""
        from paramtool.commands import config_ties
        from paramtool.passes.config_ties import declared

        try:
            config = found.settings or config_ties.config_beside(found.path)
        except FormatError as error:
            return cls(found, unread=error.message)
        return cls(found, config, declared.between(config, found.checkpoint, a, b) if config else ())

    @property
    def declared(self) -> bool:
        """Whether the config says that the two are one."""
        return bool(self.rows) and all(row.says for row in self.rows)

    @property
    def present(self) -> list[str]:
        """The names of these ties that the file has."""
        names = dict.fromkeys(name for row in self.rows for name in row.tie.names)
        return [name for name in names if name in self.found.checkpoint.entries]

    @property
    def holds(self) -> bool:
        """Whether the tie is declared, and the file has its tensor, in one alias set."""
        return self.declared and len({alias_sets(self.found, name) for name in self.present} - {()}) == 1

    @property
    def because(self) -> str:
        """Where the config says what it says."""
        row = next((row for row in self.rows if not row.says), self.rows[0])
        return f"{self.config.path if self.config else ''} ({row.because})"

    @property
    def against(self) -> str:
        """Why the config does not make the rule hold, where it is about these names or cannot be read."""
        if self.unread:
            return f"; what a config says of it is not known: {self.unread}"
        if not self.rows or not self.present:
            return ""
        if not self.declared:
            return f"; {self.because} does not tie them"
        return f"; {self.because} ties them, and the file stores {' and '.join(map(quoted, self.present[:2]))} apart"


def alias_sets(found: Inspection, name: str) -> tuple[str, ...]:
    """The memory of a tensor, or of each part of a compound; empty for one without bytes."""
    members = found.graph.names
    if name in members:
        return (members[name].alias_set,)
    value = found.checkpoint.entries[name].value
    if not isinstance(value, Compound):
        return ()
    return tuple(f"{part} {members[f'{name}/{part}'].alias_set}" for part in sorted(value.parts))


def is_one_tensor(found: Inspection, a: str, b: str) -> bool:
    """Whether two names of one alias set have the same bytes of it, in whatever order of axes.

    The windows of a flattened RNN share a storage and no byte, and a slice is a part.  Names that a record ties and
    that stand on several storages are one by its word.
    """
    members = found.graph.names
    if a not in members or b not in members or members[a].source.storage != members[b].source.storage:
        return True
    one, other = members[a].source, members[b].source
    places = [(view.byte_start, view.byte_stop, view.numel, view.dtype) for view in (one, other)]
    return places[0] == places[1] and (not one.numel or overlaps(one, other))


def elsewhere(found: Inspection, name: str) -> str:
    """To which name that the file has a config ties one that it lacks, if to any."""
    tie = MissingTie.of(found, name, name)
    others = [other for other in tie.present if other != name] if tie.declared else []
    return f"; {tie.because} ties it to {quoted(others[0])}, which is there" if others else ""
