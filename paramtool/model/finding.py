"""What a check found: one type for the terminal, `--json`, GitHub, SARIF, JUnit and Markdown."""

from __future__ import annotations

from typing import NamedTuple

from paramtool.lazy_dataclass import frozen
from paramtool.model.severity import ERROR


class FileLine(NamedTuple):
    """A line of a text file."""

    path: str
    line: int
    """From 1."""
    column: int = 1
    """From 1, in characters."""


@frozen
class Finding:
    """What a rule found."""

    rule: str
    """The rule as it was written: `untied:a=b`; `tie-lost` for one without an argument."""
    message: str
    """What was found, as a sentence."""
    names: tuple[str, ...] = ()
    """The tensors that it is about, as far as it is about tensors."""
    what: str = ""
    """What is said of its first tensor, without the name, where the same can be said of others; empty otherwise."""
    id: str = ""
    """The stable id of the kind of rule: `PT101`; empty where nobody asked for ids (`inspect --fail-on`)."""
    severity: str = ERROR
    """One of SEVERITIES, without `off`."""
    path: str = ""
    """The checkpoint, as it was given; empty where there is only one."""
    place: FileLine | None = None
    """The line of the lock or of the configuration that it contradicts."""
    allowed: str = ""
    """Why it is allowed, and until when: a finding with this fails nothing; empty otherwise."""
    _members = "id name severity rule message names place(path line column) allowed!"

    @property
    def name(self) -> str:
        """The name of the rule that its id stands for."""
        from paramtool.model.rule_ids import BY_ID

        return BY_ID[self.id].name

    @property
    def fails(self) -> bool:
        """Whether a check that has it fails."""
        return self.severity == ERROR and not self.allowed
