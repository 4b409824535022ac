"""cuDNN's functions as they are called: what descriptors are told, what failures become, what is given back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from paramtool.layouts.spec import Spec
from proof.cudnn import grid
from proof.cudnn.answers import Answer, Key, Region, Unsupported, as_json, from_json
from proof.cudnn.grid import ALGORITHMS, BIAS_MODES, Case
from proof.cudnn.library import OPTIONAL, SIGNATURES, CudnnError
from tests.proof.fake_cudnn import BAD_PARAM, NAMELESS, NOT_SUPPORTED, Fake

LSTM = Spec("lstm", 3, 5)
CASE = Case(LSTM, "double", "float32")
SETTERS = ("cudnnSetRNNDescriptor_v8", "cudnnGetRNNWeightSpaceSize", "cudnnGetRNNWeightParams")
"""What is called for an answer and may say that there is no such network."""


def told(case: Case) -> dict[str, int]:
    """What the descriptor of a case was told."""
    fake = Fake()
    fake.library().answer(case)
    (found,) = fake.described
    return found


@pytest.mark.parametrize("spec, mode", [
    (Spec("rnn", 3, 5, activation="relu"), 0), (Spec("rnn", 3, 5, activation="tanh"), 1), (LSTM, 2),
    (Spec("gru", 3, 5, reset="after"), 3),
])  # fmt: skip
def test_a_kind_is_a_cell_mode(spec: Spec, mode: int) -> None:
    """RELU 0, TANH 1, LSTM 2, GRU 3; sizes as they are, and projSize is hiddenSize where there is no projection."""
    found = told(Case(spec, "double", "float32"))
    assert [found[key] for key in ("mode", "input", "hidden", "projection", "layers")] == [mode, 3, 5, 5, 1]
    assert (found["direction"], found["input_mode"], found["flags"]) == (0, 0, 1)


def test_a_projection_layers_and_directions() -> None:
    """Each in its own place."""
    found = told(Case(Spec("lstm", 3, 5, layers=4, bidirectional=True, projection=2), "double", "float32"))
    assert [found[key] for key in ("projection", "hidden", "layers", "direction")] == [2, 5, 4, 1]


@pytest.mark.parametrize("dtype, numbers", [
    ("float32", (0, 0, 3)), ("float64", (1, 1, 0)), ("float16", (2, 0, 1)), ("bfloat16", (9, 0, 1)),
])  # fmt: skip
def test_a_type_has_a_precision_and_a_math_type(dtype: str, numbers: tuple[int, ...]) -> None:
    """The data type, the precision (double's own, else float's) and the math type that torch takes without TF32."""
    found = told(replace(CASE, dtype=dtype))
    assert (found["dtype"], found["precision"], found["math"]) == numbers


@pytest.mark.parametrize("mode, number", [("none", 0), ("input", 1), ("double", 2), ("recurrent", 3)])
def test_bias_modes(mode: str, number: int) -> None:
    """As cudnnRNNBiasMode_t counts them, all four."""
    assert told(Case(replace(LSTM, bias=mode != "none"), mode, "float32"))["bias"] == number
    assert len(BIAS_MODES) == 4


@pytest.mark.parametrize("name, number", [
    ("standard", 0), ("persist_static", 1), ("persist_dynamic", 2), ("persist_static_small_h", 3),
])  # fmt: skip
def test_algorithms(name: str, number: int) -> None:
    """As cudnnRNNAlgo_t counts them, all four."""
    assert told(replace(CASE, algorithm=name))["algorithm"] == number
    assert len(ALGORITHMS) == 4


def test_nothing_is_dropped_out() -> None:
    """A dropout descriptor is needed, and says zero."""
    fake = Fake()
    fake.library()
    assert fake.dropouts == [(0.0, None, 0, 0)]


def test_an_answer() -> None:
    """Bytes from the start of the weight space, shapes and strides in elements; what is not there is not answered."""
    found = Fake().library().answer(Case(replace(LSTM, bias=False), "none", "float16"))
    assert isinstance(found, Answer)
    assert found.nbytes == 2 * 4 * (3 + 5) * 5 and len(found.regions) == 8
    assert found.regions[Key(0, 0, "matrix")] == Region(0, "float16", (1, 5, 3), (15, 3, 1))
    assert found.regions[Key(0, 4, "matrix")] == Region(2 * 60, "float16", (1, 5, 5), (25, 5, 1))


def test_answers_survive_their_json() -> None:
    """Those of networks, and those that say why there is none."""
    for answer in (Fake().library().answer(CASE), Unsupported("because")):
        assert from_json(as_json(answer)) == answer


@pytest.mark.parametrize("number, text", [(8500, "8.5.0"), (8907, "8.9.7"), (90100, "9.1.0"), (92800, "9.28.0")])
def test_versions(number: int, text: str) -> None:
    """cuDNN 8 counts otherwise than cuDNN 9."""
    assert Fake(number).library().version == text


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_a_function_that_is_not_there(name: str) -> None:
    """The library is too old, or none, and nothing was called before that was known."""
    fake = Fake(lacks=(name,))
    with pytest.raises(CudnnError, match=f"the library has no {name}: expected cuDNN 8 or later"):
        fake.library()
    assert fake.made == 0


def test_no_explanation_is_needed() -> None:
    """cuDNN 8 has no function that explains a failure."""
    assert OPTIONAL.keys() == {"cudnnGetLastErrorString"}
    found = Fake(failures={SETTERS[0]: NOT_SUPPORTED}).library().answer(CASE)
    assert found == Unsupported("CUDNN_STATUS_NOT_SUPPORTED")


@pytest.mark.parametrize("name", SETTERS)
def test_no_such_network(name: str) -> None:
    """A verdict of its own, in the library's words, whichever function says so."""
    fake = Fake(failures={name: NOT_SUPPORTED}, explains="no persistent kernels here")
    assert fake.library().answer(CASE) == Unsupported("CUDNN_STATUS_NOT_SUPPORTED: no persistent kernels here")


@pytest.mark.parametrize("name", [*SETTERS, "cudnnCreateRNNDescriptor", "cudnnGetTensorNdDescriptor"])
def test_any_other_failure_is_an_error(name: str) -> None:
    """With the function's name, the status and what the library says of it."""
    library = Fake(failures={name: BAD_PARAM}, explains="hiddenSize is odd").library()
    with pytest.raises(CudnnError, match=f"^{name}: CUDNN_STATUS_BAD_PARAM: hiddenSize is odd$"):
        library.answer(CASE)


@pytest.mark.parametrize("name", ["cudnnGetTensorNdDescriptor", "cudnnCreateRNNDescriptor"])
def test_what_cannot_be_refused_is_an_error(name: str) -> None:
    """A descriptor that is not supported says nothing about the network."""
    with pytest.raises(CudnnError, match=f"^{name}: CUDNN_STATUS_NOT_SUPPORTED$"):
        Fake(failures={name: NOT_SUPPORTED}).library().answer(CASE)


def test_a_status_without_a_name() -> None:
    """Is said by its number."""
    with pytest.raises(CudnnError, match=f"^{SETTERS[0]}: status 77$"):
        Fake(failures={SETTERS[0]: NAMELESS}).library().answer(CASE)


def test_everything_is_given_back() -> None:
    """One descriptor of a network at a time, and after `close` nothing is left."""
    fake = Fake()
    library = fake.library()
    before = dict(fake.alive)
    assert sorted(before.values()) == ["Dropout", "Tensor", "Tensor", "handle"]
    for case in list(grid.asked(quick=True))[:40]:
        library.answer(case)
        assert fake.alive == before
    library.close()
    assert fake.alive == {} and fake.made == 44


@pytest.mark.parametrize("status", [BAD_PARAM, NOT_SUPPORTED])
@pytest.mark.parametrize("name", [*SETTERS, "cudnnGetTensorNdDescriptor"])
def test_everything_is_given_back_after_a_failure(name: str, status: int) -> None:
    """Whether it is an error or an answer."""
    fake = Fake(failures={name: status})
    library = fake.library()
    with suppress(CudnnError):
        library.answer(CASE)
    assert fake.made == 5
    library.close()
    assert fake.alive == {}


@pytest.mark.parametrize("name, made", [
    ("cudnnCreate", 0), ("cudnnCreateDropoutDescriptor", 1), ("cudnnSetDropoutDescriptor", 2),
    ("cudnnCreateTensorDescriptor", 2),
])  # fmt: skip
def test_a_library_that_fails_at_once(name: str, made: int) -> None:
    """What was made until then is given back."""
    fake = Fake(failures={name: BAD_PARAM})
    with pytest.raises(CudnnError, match=f"^{name}: CUDNN_STATUS_BAD_PARAM"):
        fake.library()
    assert fake.made == made and fake.alive == {}


def test_a_handle_of_zeros() -> None:
    """Without a GPU no handle is made: the library gets zeros, and answers the same."""
    fake = Fake(failures={"cudnnCreate": BAD_PARAM})
    library = fake.library(blank=True)
    assert library.answer(CASE) == Fake().library().answer(CASE)
    assert len(fake.handles) == 9 and set(fake.handles) == {bytes(64)}
    library.close()
    assert fake.alive == {}
