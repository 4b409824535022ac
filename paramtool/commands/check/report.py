"""What a check found: a value for each checkpoint, and one for all."""

from __future__ import annotations

from paramtool.errors import ParamtoolError, UsageError, exit_code
from paramtool.findings.report import counts, summary
from paramtool.lazy_dataclass import frozen
from paramtool.model.display import Displayed
from paramtool.model.finding import BY_NAME, Finding


class OtherModelError(UsageError):
    """A checkpoint that was read, and is not the model that the lock has for it."""


def code(finding: Finding) -> int:
    """The exit code of one finding."""
    return (4 if finding.id == BY_NAME["unsafe"].id else 1) if finding.fails else 0


@frozen
class CheckedFile:
    """One checkpoint, and what was found in it."""

    path: str
    """The checkpoint, as it was given."""
    findings: tuple[Finding, ...] = ()
    """With those that are allowed."""
    error: ParamtoolError | None = None
    """Why it could not be checked, or not to the end."""
    locked: str = ""
    """The model of the lock that it was compared with; empty where it was not."""
    notes: tuple[str, ...] = ()
    """What the rules assume."""
    _members = "path exit_code findings error locked! notes"

    @property
    def exit_code(self) -> int:
        """The code that it has alone, of its own error and of errors that nobody allows: 4 if one is unsafe, else 1."""
        return exit_code([*map(code, self.findings), self.error.exit_code if self.error else 0])


@frozen(repr=False)
class Checked(Displayed):
    """What `check` found."""

    files: tuple[CheckedFile, ...]
    """The checkpoints, in the order in which they were checked."""
    lock: str = ""
    """The lock that was used; empty where there is none."""
    config: str = ""
    """The configuration that was used; empty where there is none."""
    general: tuple[Finding, ...] = ()
    """Findings about the configuration or the lock, and no checkpoint."""
    notes: tuple[str, ...] = ()
    """What was assumed or left out."""

    _facts = "`exit_code` and `findings`"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, with those that are allowed."""
        return (*self.general, *(finding for file in self.files for finding in file.findings))

    @property
    def exit_code(self) -> int:
        """The one code of all, as of every command: 1 for an error that nobody allows, 4 where that is unsafe."""
        return exit_code([*map(code, self.general), *(file.exit_code for file in self.files)])

    def counts(self) -> dict[str, int]:
        """{`error`, `warning`, `note`, `allowed`: how many findings}"""
        return counts(self.findings)

    @property
    def summary(self) -> str:
        """The last line: how many of what."""
        return summary(self.findings, len(self.files), sum(1 for file in self.files if file.error))

    _schema = "check/1"
    _members = "exit_code counts general files lock! config! notes"
