"""What a check found: one type for the terminal, `--json`, GitHub, SARIF, JUnit and Markdown."""

from __future__ import annotations

from typing import Any, NamedTuple

from paramtool.lazy_dataclass import frozen

ERROR, WARNING, NOTE, OFF = SEVERITIES = ("error", "warning", "note", "off")
"""An error fails a check, a warning and a note do not, and `off` is not looked for."""


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
        return BY_ID[self.id].name

    @property
    def sentence(self) -> str:
        """The message, with what allows it."""
        return f"{self.message} (allowed {self.allowed})" if self.allowed else self.message

    @property
    def fails(self) -> bool:
        """Whether a check that has it fails."""
        return self.severity == ERROR and not self.allowed


# --- The kinds of findings of `check`, each with a stable id, a name, a default severity and words --------------------
#
# An id never changes its meaning and is never used again; a name may get a better one.  The first digit is a subject: 1
# ties, 2 tensors and their bytes, 3 safety, 4 files and what is not a tensor, 5 the configuration.


@frozen
class RuleId:
    """A kind of finding."""

    id: str
    name: str
    severity: str
    """What it has where nobody says otherwise."""
    words: str
    """What it finds, in a phrase."""

    def found(self, message: str, names: tuple[str, ...] = (), *, severity: str = "", **more: Any) -> Finding:
        """One of its findings."""
        return Finding(self.name, message, names, id=self.id, severity=severity or self.severity, **more)


LOWERED = RuleId(
    "PT504", "lowered", WARNING, "a configuration that was found, and may be a stranger's, lets unsafe files pass"
)
"""What every form says first, whatever a configuration makes of it."""
RULE_IDS = (
    RuleId("PT101", "tie-lost", ERROR, "names that shared memory when the lock was made do not share it any more"),
    RuleId("PT102", "tie-gained", ERROR, "names share memory that did not when the lock was made"),
    RuleId("PT103", "untied", ERROR, "two names that have to be tied do not share memory"),
    RuleId("PT104", "config-ties", WARNING, "a tie that config.json declares has diverged, or shares what it unties"),
    RuleId("PT105", "declared-ties", ERROR, "the ties that config.json declares are not those of the lock"),
    RuleId("PT106", "overlap-changed", ERROR, "names that share memory share other elements of it than in the lock"),
    RuleId("PT201", "changed", ERROR, "a tensor has other numbers, another type or another shape than in the lock"),
    RuleId("PT202", "missing", ERROR, "a tensor of the lock, or one that has to be there, is not in the file"),
    RuleId("PT203", "added", ERROR, "a tensor is in the file and not in the lock"),
    RuleId("PT204", "unused-bytes", WARNING, "bytes of the file belong to no tensor"),
    RuleId("PT205", "duplicate-bytes", WARNING, "bytes are stored more than once"),
    RuleId("PT206", "size", ERROR, "the files are larger than is allowed"),
    RuleId("PT207", "parameters", ERROR, "the model has another number of parameters than is allowed"),
    RuleId("PT208", "wrong-dtype", ERROR, "a tensor has another type than it has to have"),
    RuleId("PT209", "nan", ERROR, "a tensor holds a NaN or an infinity"),
    RuleId("PT210", "renamed", ERROR, "the same tensors are there under other names than in the lock"),
    RuleId("PT301", "unsafe", ERROR, "a pickle calls or names what is not known to be data"),
    RuleId("PT302", "unknown-class", ERROR, "a pickle calls or names what is not known and was not allowed"),
    RuleId("PT401", "file-changed", WARNING, "a file has other bytes than in the lock"),
    RuleId("PT402", "objects-changed", ERROR, "what is not a tensor differs from the lock"),
    RuleId("PT403", "dialect-changed", WARNING, "the names are those of another dialect than in the lock"),
    RuleId("PT404", "pointer-changed", ERROR, "a git-LFS or Xet pointer names another file than the lock"),
    RuleId(
        "PT405",
        "not-checked",
        NOTE,
        "only headers or a pointer were there, or a tensor cannot be read, so the numbers were not compared",
    ),
    RuleId("PT501", "expired", WARNING, "an exception of the configuration has expired"),
    RuleId("PT502", "unmatched", WARNING, "a pattern of the configuration matches no checkpoint, or no tensor"),
    RuleId("PT503", "unused-exception", WARNING, "no finding needs an exception of the configuration"),
    LOWERED,
)
"""Every kind, by its id."""
BY_NAME = {one.name: one for one in RULE_IDS}

BY_ID = {one.id: one for one in RULE_IDS}
