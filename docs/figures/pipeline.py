"""Describe, plan, write: what happens between a file and its output, and who touches tensor bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from figures.canvas import LEFT, RIGHT, arrow_down, box, line, paragraph, path, picture, text
from paramtool.drawing.markup import Markup, joined, number

CENTRE = (LEFT + RIGHT) / 2
HIGH = 118.0
STAGES = (
    ("describe", "blue", ("formats", "Checkpoint", "alias graph"),
     ("Readers take headers, directories and pickles.", "No tensor byte is read, and nothing in a pickle runs.")),
    ("plan", "yellow", ("passes", "Plan"),
     ("Pure functions turn a description into a plan: plain", "data that --dry-run, --json and progress show.")),
    ("write", "green", ("engine", "temporary file", "verify", "rename"),
     ("Only the engine moves tensor bytes.  The output", "appears when every name equals its source.")),
)  # fmt: skip
"""(stage, tint, what follows what, what is said)"""


def describe_plan_write() -> str:
    """The picture."""
    parts = [joined(_files(20, ("model.pt",)))]
    y = 56.0
    for k, (name, tint, steps, words) in enumerate(STAGES):
        parts += [arrow_down(CENTRE, y, y + 26), joined(_stage(y + 26, f"{k + 1}  {name}", tint, steps)),
                  paragraph(LEFT + 14, y + 114, words, step=18)]  # fmt: skip
        y += 26 + HIGH
    parts += [arrow_down(CENTRE, y, y + 26), joined(_files(y + 26, ("model.dedup.safetensors",)))]
    return picture(
        "Describe, plan, write",
        "A checkpoint is described by readers of formats, without tensor bytes, as a Checkpoint and an alias graph.  "
        "Passes make a plan of it, which is plain data.  The engine writes the plan to a temporary file, verifies it "
        "and renames it.",
        y + 26 + 36 + 20,
        parts,
    )


def _files(y: float, names: Sequence[str]) -> Iterator[Markup]:
    """Files beside each other, in the middle."""
    widths = [24 + 7.9 * len(name) for name in names]
    x = CENTRE - (sum(widths) + 14 * (len(names) - 1)) / 2
    for name, width in zip(names, widths, strict=True):
        yield box(x, y, width, 36, "paper")
        yield text(x + width / 2, y + 22.5, name, "m b", "middle")
        x += width + 14


def _stage(y: float, title: str, tint: str, steps: Sequence[str]) -> Iterator[Markup]:
    """A stage: its name in a band of its colour, and its steps."""
    yield box(LEFT, y, RIGHT - LEFT, HIGH, "paper", "strong", 6)
    yield path(
        f"M{LEFT} {number(y + 26)}v-20a6 6 0 0 1 6 -6h{RIGHT - LEFT - 12}a6 6 0 0 1 6 6v20z", f"f-{tint} k-strong", 1
    )
    yield text(LEFT + 14, y + 18, title, "b")
    x = LEFT + 14.0
    for k, step in enumerate(steps):
        width = 16 + 7.3 * len(step)
        if k:
            yield line(x, y + 52, x + 14, y + 52)
            yield path(f"M{number(x + 21)} {number(y + 52)}l-8 -4.5v9z", "f-strong", 0)
            x += 23
        yield box(x, y + 38, width, 28, "panel")
        yield text(x + width / 2, y + 56.3, step, "m t", "middle")
        x += width
