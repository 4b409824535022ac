"""All verdicts on a layout as one document: `paramtool.layout-record/1` (docs/schema/layout-record-1.json).

A verdict is one letter, so that a record of the whole grid stays small: a text for each network, with one letter for
each way in which it was asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from datetime import date
from typing import Any

from paramtool.layouts.evidence import MACHINE, SCHEMA, VERDICTS, table_digest
from paramtool.layouts.layout import Layout
from paramtool.layouts.spec import Spec
from paramtool.lazy_dataclass import dataclass
from paramtool.proof.cudnn.answers import Answer, Unsupported
from paramtool.proof.cudnn.compare import Disagreement, differences
from paramtool.proof.cudnn.grid import ALGORITHMS, BIAS_MODES, DTYPES, Case
from paramtool.proof.cudnn.table import answer

MAX_FINDINGS = 200
"""So many are written out; all are counted."""


@dataclass(slots=True)
class QuestionVerdicts:
    """The verdicts of one question."""

    columns: dict[str, tuple[str, ...]]
    """What the letters of a text stand for, the last axis fastest: {axis: its values}."""
    letters: dict[str, str] = field(default_factory=dict)
    """{network: a letter for each way}."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VERDICTS, 0))
    unsupported: dict[str, int] = field(default_factory=dict)
    """{why: how often}."""
    findings: list[Disagreement] = field(default_factory=list)
    findings_count: int = 0
    more: dict[str, Any] = field(default_factory=dict)
    """What else was measured."""

    def add(self, spec: Spec, verdict: str) -> None:
        """One more letter for a network."""
        name = named(spec)
        self.letters[name] = self.letters.get(name, "") + VERDICTS[verdict]
        self.counts[verdict] += 1

    def judge(self, case: Case, findings: Iterable[Disagreement] | Unsupported) -> None:
        """Count one case: what differs in it, or why there is none."""
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
        """What is wrong with all that is left of it."""
        self.findings.append(finding)
        self.findings_count += 1

    def as_json(self) -> dict[str, Any]:
        """Without the findings, which a record has together."""
        return {
            "columns": {axis: list(values) for axis, values in self.columns.items()},
            "counts": dict(self.counts),
            "unsupported": dict(sorted(self.unsupported.items())),
            "networks": dict(self.letters),
            **self.more,
        }


def named(spec: Spec) -> str:
    """A network without its biases, which are one of the columns."""
    return str(spec).replace(" bias=no", "")


def asked_part() -> QuestionVerdicts:
    """For what a library is asked: every bias mode, type and algorithm."""
    return QuestionVerdicts({"bias_mode": BIAS_MODES, "dtype": DTYPES, "algorithm": ALGORITHMS})


def built_part() -> QuestionVerdicts:
    """For what torch made or a GPU ran: with both biases or none, in every type."""
    return QuestionVerdicts({"bias_mode": ("none", "double"), "dtype": DTYPES})


def compare(part: QuestionVerdicts, layout: Layout, case: Case, found: Answer | Unsupported) -> None:
    """Set one answer of a library beside the table."""
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
    """The record; a part is None where that question could not be put."""
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
