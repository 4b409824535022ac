"""The work of fusing experts and of taking them apart grows as their number does, in steps and in memory."""

from __future__ import annotations

from functools import cache

import pytest

from paramtool.guessing.sets import by_shapes
from paramtool.model.checkpoint import Checkpoint, Entry
from paramtool.model.plan import check
from paramtool.model.storage import Ranges, SourceFile
from paramtool.parts.config_facts import KnownModel
from paramtool.parts.layout import find_part_layout, group
from paramtool.passes.parts import find, fuse
from paramtool.passes.parts.dialect_change import dialect_change, dialect_of
from paramtool.passes.parts.rewrite import Rearranged, rewritten
from paramtool.passes.rnn import beside
from tests.hostile.test_bounded_work import EXPONENT, exponent, peak, steps
from tests.passes.made import view

NBYTES_PER_TENSOR = 4000
STEPS_PER_NAME = 200
"""Of Python, for each tensor that `guess` passes over."""
SMALL = 256
FFN, WIDTH = 3, 5


def stored(shapes: dict[str, tuple[int, ...]]) -> Checkpoint:
    """A file of float32 tensors, one after the other."""
    entries = {name: Entry(view(k, *shape)) for k, (name, shape) in enumerate(shapes.items())}
    stops = []
    for entry in entries.values():
        stops.append((stops[-1] if stops else 0) + entry.value.nbytes)  # type: ignore[union-attr]
    file = SourceFile("made.safetensors", stops[-1], 0)
    return Checkpoint("safetensors", (file,), Ranges(file.path, [0, *stops[:-1]], stops), entries)


@cache
def change(count: int, layers: int, layout: str) -> Rearranged:
    """The experts of some layers as a list, and in stacks."""
    shapes = {
        f"layers.{layer}.experts.{expert}.{child}.weight": (WIDTH, FFN) if child == "down_proj" else (FFN, WIDTH)
        for layer in range(layers)
        for expert in range(count // layers)
        for child in ("gate_proj", "up_proj", "down_proj")
    }
    chosen = find_part_layout(layout)
    assert chosen is not None
    found = find.apart(shapes, group("experts"), (), "made")
    joints = list(fuse.fused(found, chosen, fuse.KnownParts(shapes, lambda at: {})))
    return Rearranged(tuple(fuse.parts_of(joints)), tuple(one.stored for one in joints))


def planned(wanted: Rearranged) -> None:
    """The plan of one rearrangement, proved."""
    checkpoint = stored({one.name: one.shape for one in wanted.read})
    plan, _ = rewritten(checkpoint, wanted)
    check(plan, plan.order, checkpoint.storages)


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", ["experts", "experts-interleaved", "experts-transposed"])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("layers", [8, 1])
def test_it_grows_as_the_experts_do(layout: str, back: bool, layers: int) -> None:
    """Four times the experts of each layer: about four times the steps, and some kilobytes for each tensor."""

    def work(count: int) -> Rearranged:
        wanted = change(count, layers, layout)
        return Rearranged(wanted.made, wanted.read) if back else wanted

    wanted = [work(count) for count in (SMALL, 4 * SMALL)]
    planned(wanted[0])
    few, many = (steps(lambda one=one: planned(one)) for one in wanted)  # type: ignore[misc]
    assert exponent(few, many, 4) < EXPONENT, (few, many)
    assert peak(lambda: planned(work(4 * SMALL))) < NBYTES_PER_TENSOR * 3 * 4 * SMALL


@pytest.mark.sample(1)
@pytest.mark.parametrize("layers", [8, 1])
def test_finding_them_grows_as_they_do(layers: int) -> None:
    """The same for the pieces."""

    def work(count: int) -> None:
        change.__wrapped__(count, layers, "experts")

    work(SMALL)
    few, many = (steps(lambda count=count: work(count)) for count in (SMALL, 4 * SMALL))  # type: ignore[misc]
    assert exponent(few, many, 4) < EXPONENT, (few, many)


def test_looking_for_networks_among_them_grows_as_they_do() -> None:
    """`guess` looks at every module for cells, and at every name for what a wrapper replaced."""

    def work(checkpoint: Checkpoint) -> None:
        assert by_shapes({name: view.shape for name, view in checkpoint.views().items()}) == []
        assert beside.wrapped(checkpoint) == {}

    few, many = (stored({one.name: one.shape for one in change(count, 8, "experts").read}) for count in (SMALL, 1024))
    work(few)
    assert exponent(steps(lambda: work(few)), steps(lambda: work(many)), 4) < EXPONENT
    assert steps(lambda: work(many)) < STEPS_PER_NAME * len(many.entries)


def test_another_dialect_grows_as_they_do() -> None:
    """The tensors of a Mixtral under the names of transformers 5: found, checked and put together."""

    def work(count: int) -> None:
        config = {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": count}
        shapes = {
            f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{child}.weight": shape
            for layer in range(2)
            for expert in range(count)
            for child, shape in (("w1", (FFN, WIDTH)), ("w3", (FFN, WIDTH)), ("w2", (WIDTH, FFN)))
        }
        model = KnownModel(config, {})
        assert dialect_of("made", shapes, model) == "transformers-4"
        made = dialect_change(shapes, ("transformers-4", "transformers-5"), model).change.made
        assert len(made) == 4

    work(SMALL // 4)
    few, many = (steps(lambda count=count: work(count)) for count in (SMALL // 4, SMALL))  # type: ignore[misc]
    assert exponent(few, many, 4) < EXPONENT, (few, many)
