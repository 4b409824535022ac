"""Which layers of a Keras model take a flattened image, in configurations of every form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.formats.hdf5._keras_layers import walked
from paramtool.model.images import LAST


def layer(name: str, *inputs: str, **config: Any) -> dict[str, Any]:
    """A layer in the graph of Keras 2, called as its class."""
    nodes = [[[one, 0, 0, {}] for one in inputs]] if inputs else []
    return {"class_name": name, "name": name, "config": {"name": name, **config}, "inbound_nodes": nodes}


def graph(*layers: dict[str, Any]) -> dict[str, Any]:
    ends = {"input_layers": [["InputLayer", 0, 0]], "output_layers": [[layers[-1]["name"], 0, 0]]}
    return {"class_name": "Functional", "config": {"layers": list(layers), **ends}}


IMAGE = layer("InputLayer", batch_input_shape=[None, 5, 4, 3])
CONV = layer("Conv2D", "InputLayer", filters=4)
FLAT = layer("Flatten", "Conv2D")


def of(model: Any, path: str, axis: str = "in") -> Any:
    """(channels, order, whether that is sure) of what a layer takes."""
    walk = walked(model)
    found = walk.flow.found.get(path, {}).get(axis) if walk else None
    return (None, None, None) if found is None else (found.channels, found.order, not found.unseen)


def test_a_graph_of_keras_2() -> None:
    assert of(graph(IMAGE, CONV, FLAT, layer("Dense", "Flatten")), "layers/dense") == (4, LAST, True)


@pytest.mark.parametrize("order", [1, -1])
def test_layers_may_stand_in_any_order(order: int) -> None:
    made = graph(IMAGE, CONV, FLAT, layer("Dense", "Flatten"))
    made["config"]["layers"] = made["config"]["layers"][::order]
    assert of(made, "layers/dense") == (4, LAST, True)


def test_pooled_images_are_none() -> None:
    pool = layer("GlobalAveragePooling2D", "Conv2D")
    assert of(graph(IMAGE, CONV, pool, layer("Dense", "GlobalAveragePooling2D")), "layers/dense") == (None, None, None)


def test_a_flattened_image_beside_other_values_is_not_taken_apart() -> None:
    pool = layer("GlobalMaxPooling2D", "InputLayer")
    both = layer("Concatenate", "Flatten", "GlobalMaxPooling2D", axis=-1)
    assert of(graph(IMAGE, CONV, FLAT, pool, both, layer("Dense", "Concatenate")), "layers/dense") == (-1, LAST, False)


def test_a_list_of_layers_of_keras_1() -> None:
    layers = [layer("Conv2D", filters=4, batch_input_shape=[None, 5, 4, 3]), layer("Flatten"), layer("Dense")]
    assert of({"class_name": "Sequential", "config": layers}, "layers/dense") == (4, LAST, True)


JSON = st.recursive(
    st.none() | st.integers() | st.floats() | st.sampled_from(["Dense", "Conv2D", "a"]),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(["config", "layers", "class_name", "name", "inbound_nodes", "output_layers", "filters"]),
            inside,
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["config", "class_name"]), JSON))
def test_any_configuration_is_read_or_passed_over(model: dict[str, Any]) -> None:
    walk = walked(model)
    assert walk is None or isinstance(walk.flow.found, dict)
