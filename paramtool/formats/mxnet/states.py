"""What `Trainer.save_states` of MXNet's Gluon writes: a pickle of {index: NDArrays}, mostly with the optimizer itself.

    ({0: (NDArray, NDArray), 4: NDArray, 5: None}, Adam)        a Trainer; or a Module with `save_optimizer_states`

An NDArray is pickled as `NDArray(None)` and the state {"handle": bytearray}, with the bytes that `.params` has for it.
The machine leaves them where they are.  The optimizer is kept as the name of its class and its attributes.

Sources: MXNet 1.9.1, python/mxnet/ndarray/ndarray.py (`__reduce__`, `__getstate__`), optimizer/optimizer.py (`Updater`,
`Optimizer.__getstate__`), gluon/trainer.py (`save_states`).
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING

from paramtool.formats.mxnet.ndarray import NdArrayReader
from paramtool.formats.pickle.numpy_values import SPELLINGS, TEXT_OF, NumpyArray, NumpyDtype, state_of
from paramtool.formats.pickle.values import Global, Instance, PickledSpan
from paramtool.model.objects import Node, Opaque, Sequence
from paramtool.model.storage import SourceFile
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.model.dtype import DType

NAME = "mxnet states"
OPTIMIZERS = "mxnet.optimizer.optimizer"
_ARRAYS = ("mxnet.ndarray.ndarray.NDArray", "mxnet.numpy.multiarray.ndarray")
_CLASSES = {
    OPTIMIZERS: "SGD Signum FTML LARS LBSGD LAMB NAG SGLD DCASGD ccSGD Adam AdaGrad RMSProp AdaDelta Ftrl Adamax Nadam "
    "Test",
    "mxnet.lr_scheduler": "LRScheduler FactorScheduler MultiFactorScheduler PolyScheduler CosineScheduler",
}
"""Classes whose objects are numbers and mappings (MXNet 1.9.1: optimizer/optimizer.py, lr_scheduler.py)."""
_HEAD_NBYTES = 4096
"""More than the longest header of an array has."""


class NdArray(NumpyArray):
    """An NDArray of a pickle; it is a tensor of its own."""

    __slots__ = ()
    stands_alone = True

    def __init__(self, *args: object) -> None:
        super().__init__(SPELLINGS[0], (Global("numpy", "ndarray"),))

    def build(self, state: object) -> None:
        """State is {"handle": bytearray}, or None for an array without data; ValueError if it is damaged."""
        handle = state.get("handle") if isinstance(state, dict) else None
        held = handle.args[0] if isinstance(handle, Instance) and handle.args else handle
        if isinstance(held, PickledSpan) and held.form:
            held = held.bytes()
        if isinstance(held, PickledSpan):
            self._place(held.part(0, _HEAD_NBYTES).raw(), held.nbytes, held)
        elif isinstance(held, bytes):
            self._place(held, len(held), None)
        elif held is not None:
            raise ValueError("the handle of an NDArray must be bytes")

    def _place(self, head: bytes, nbytes: int, span: PickledSpan | None) -> None:
        """Take what the header of an array says; a sparse array stays an object."""
        reader = NdArrayReader(BytesIO(head), SourceFile("", nbytes, 0))
        found = reader.array()
        if not isinstance(found, View):
            return
        if reader.left:
            raise ValueError(f"{reader.left} bytes follow an NDArray")
        self.shape, self.dtype = found.shape, _numpy_dtype(found.dtype)
        start = nbytes - found.nbytes
        if span is None:
            self.data = head[start:]
        else:
            self.span = span.part(start, nbytes)


def _numpy_dtype(dtype: DType) -> NumpyDtype:
    if dtype.name not in TEXT_OF:
        return NumpyDtype(Global("ml_dtypes", dtype.name))
    text = TEXT_OF[dtype.name]
    made = NumpyDtype(text[1:], False, True)
    made.build(state_of(text))
    return made


def is_state(tree: Node) -> bool:
    """Whether a pickle has an optimizer of MXNet beside its states, of which all may be None."""
    last = tree.items[-1] if isinstance(tree, Sequence) and len(tree.items) == 2 else None
    return isinstance(last, Opaque) and last.path.startswith(f"{OPTIMIZERS}.")


def _object(path: str) -> Callable[..., object]:
    return lambda *args: Instance(path, args, False)


CONSTRUCTORS: dict[str, Callable[..., object]] = {
    **dict.fromkeys(_ARRAYS, NdArray),
    **{f"{module}.{name}": _object(f"{module}.{name}") for module, names in _CLASSES.items() for name in names.split()},
}
"""{path: what makes a plain value of such a call}"""
