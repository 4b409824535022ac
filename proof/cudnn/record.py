"""All verdicts on a layout as one document: `paramtool.layout-record/2` (docs/schema/layout-record-2.json).

A verdict is one letter, so that a record of the whole grid stays small: a string for each network, with one letter for
each combination of options in question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from datetime import date
from typing import Any

from paramtool.grouping import grouped
from paramtool.layouts.evidence import MACHINE, SCHEMA, VERDICTS, table_digest
from paramtool.layouts.layout import Layout
from paramtool.layouts.spec import Spec
from paramtool.lazy_dataclass import dataclass
from proof.cudnn.answers import Answer, Unsupported
from proof.cudnn.compare import Disagreement, differences
from proof.cudnn.grid import ALGORITHMS, BIAS_MODES, DTYPES, Case
from proof.cudnn.table import answer

MAX_FINDINGS = 200
"""How many findings are written out; all are counted."""


@dataclass(slots=True)
class QuestionVerdicts:
    """The verdicts of one question."""

    columns: dict[str, tuple[str, ...]]
    """The options that the letters of a string stand for, the last axis fastest: {axis: its values}."""
    letters: dict[str, str] = field(default_factory=dict)
    """{network: one letter for each combination of options}."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    unsupported: dict[str, int] = field(default_factory=dict)
    """{why: how often}."""
    findings: list[Disagreement] = field(default_factory=list)
    findings_count: int = 0
    more: dict[str, Any] = field(default_factory=dict)
    """Other measurements."""

    def add(self, spec: Spec, verdict: str) -> None:
        """Append a letter for a network."""
        name = named(spec)
        self.letters[name] = self.letters.get(name, "") + VERDICTS[verdict]
        self.counts[verdict] += 1

    def judge(self, case: Case, findings: Iterable[Disagreement] | Unsupported) -> None:
        """Add one case: its findings, or why it is not supported."""
        if isinstance(findings, Unsupported):
            why = f"{findings.why} ({case.dtype}, {case.algorithm})"
            self.unsupported[why] = self.unsupported.get(why, 0) + 1
            self.add(case.spec, "unsupported")
            return
        found = list(findings)
        self.findings += found[: max(0, MAX_FINDINGS - len(self.findings))]
        self.findings_count += len(found)
        self.add(case.spec, "differs" if found else "agrees")

    def fail(self, finding: Disagreement) -> None:
        """Add a finding that ends the whole question."""
        self.findings.append(finding)
        self.findings_count += 1

    def as_json(self) -> dict[str, Any]:
        """As JSON data, without the findings, which a record has in one list."""
        return {
            "columns": {axis: list(values) for axis, values in self.columns.items()},
            "counts": dict(self.counts),
            "unsupported": dict(sorted(self.unsupported.items())),
            "networks": grouped((letters, name) for name, letters in self.letters.items()),
            **self.more,
        }


def named(spec: Spec) -> str:
    """The name of a network without its biases, which are one of the axes."""
    return str(spec).replace(" bias=no", "")


def asked_part() -> QuestionVerdicts:
    """The question to a library: every bias mode, type and algorithm."""
    return QuestionVerdicts({"bias_mode": BIAS_MODES, "dtype": DTYPES, "algorithm": ALGORITHMS})


def built_part() -> QuestionVerdicts:
    """The question to torch or a GPU: with both biases or none, in every type."""
    return QuestionVerdicts({"bias_mode": ("none", "double"), "dtype": DTYPES})


def compare(part: QuestionVerdicts, layout: Layout, case: Case, found: Answer | Unsupported) -> None:
    """Compare one answer of a library with the table."""
    if isinstance(found, Unsupported):
        part.judge(case, found)
    else:
        part.judge(case, differences(case, answer(layout, case), found))


def document(
    layout: Layout,
    machine: Mapping[str, str],
    quick: bool,
    *,
    asked: QuestionVerdicts | None = None,
    flattened: QuestionVerdicts | None = None,
    ran: QuestionVerdicts | None = None,
) -> dict[str, Any]:
    """The record; a part is None if that question could not be asked."""
    parts = {"asked": asked, "flattened": flattened, "ran": ran}
    there = [part for part in parts.values() if part is not None]
    findings = [finding for part in there for finding in part.findings]
    return {
        "schema": SCHEMA,
        "layout": layout.name,
        "table": table_digest(layout),
        "date": date.today().isoformat(),
        "machine": {key: machine.get(key, "") for key in MACHINE},
        "grid": "quick" if quick else "full",
        "verdicts": {letter: word for word, letter in VERDICTS.items()},
        **{name: part.as_json() if part is not None else None for name, part in parts.items()},
        "findings_count": sum(part.findings_count for part in there),
        "findings": [asdict(finding) for finding in findings[:MAX_FINDINGS]],
    }
