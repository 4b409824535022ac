"""Draws docs/pictures: `python docs/make_pictures.py`."""

from __future__ import annotations

import os
from collections.abc import Callable

from figures import gates, graph, heads, one_file, performance, pipeline, rulers, storages

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pictures")
PICTURES: dict[str, Callable[[], str]] = {
    "one-file": one_file.one_file,
    "views-on-a-storage": storages.views_on_a_storage,
    "alias-graph": graph.alias_graph,
    "fused-buffer": rulers.fused_buffer,
    "gate-orders": gates.gate_orders,
    "head-orders": heads.head_orders,
    "describe-plan-write": pipeline.describe_plan_write,
    "performance-scale": performance.scale,
    "performance-growth": performance.growth,
    "performance-copies": performance.copies,
    "performance-typed": performance.typed,
    "performance-rearranging": performance.rearranging,
    "performance-training": performance.training,
    "performance-diff": performance.diff,
    "performance-content": performance.content,
}
"""{name: what draws it}"""


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        with open(os.path.join(FOLDER, f"{name}.svg"), "w", encoding="utf-8") as file:
            file.write(draw())
