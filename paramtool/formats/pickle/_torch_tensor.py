"""A tensor as torch pickles it, run in one step.

torch.save writes each tensor of a plain state dict with the same thirty opcodes, and a state dict has nothing else:

    f( PERSID( 'storage', type, 'key', 'cpu', numel ), offset, (sizes), (strides), requires_grad, OrderedDict() )

`run` does what these opcodes would do one by one, including the memo, or nothing: then the machine continues with the
first of them.  So an invalid tensor is reported at the opcode that is wrong.  A test compares both ways.

Source of the form: torch/_tensor.py `_reduce_ex_internal` and torch/serialization.py `persistent_id` (0.4 to 2.13),
as Lib/pickle.py writes them in protocols 2 and 3.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING

from paramtool.errors import ParamtoolError
from paramtool.formats.pickle.values import CALLS_ITS_FIRST, MAPPINGS, Global

if TYPE_CHECKING:
    from paramtool.formats.pickle.machine import Machine

_INT = rb"(?:K.|M..|J....)"
_GET, _PUT = rb"h(.)", rb"r(....)"
_SIZES = rb"((?:" + _INT + rb"){1,3}[\x85-\x87])" + _PUT
_TENSOR = re.compile(
    rb"\(\(" + _GET + _GET + rb"X(.)\0\0\0([0-9]{1,20})" + _PUT + _GET + rb"(" + _INT + rb")t" + _PUT + rb"Q"
    rb"(" + _INT + rb")" + _SIZES + _SIZES + rb"([\x88\x89])" + _GET + rb"\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT,
    re.DOTALL,
)  # fmt: skip
"""From the mark of the arguments to where the tensor is memoized, behind the first 256 places of the memo."""
_KEYS = Struct("<7I")
"""Where in the memo the key, the persistent id, sizes, strides, hooks, arguments and the tensor are put."""
_MANY = 256
"""Places of the memo that an opcode of two bytes can recall."""
_OBJECTS = 7
"""Four tuples, the persistent id and two calls."""


def run(machine: Machine, at: int) -> int:
    """The index after the tensor whose arguments begin at `at`; 0 where they are of another form."""
    data, stack, memo = machine.data, machine.stack, machine.memo
    if type(data) is not bytes or not data.startswith(b"((", at) or not stack or type(stack[-1]) is not Global:
        return 0
    make = None if stack[-1].path in CALLS_ITS_FIRST else machine.constructors.get(stack[-1].path)
    found = _TENSOR.match(data, at, machine.end)
    if make is None or found is None or machine.sparse or len(memo) < _MANY:
        return 0
    (
        kind, type_, key_nbytes, key, put1, location, numel, put2, offset, sizes, put3, strides, put4, requires_grad,
        hooks, put5, put6, put7,
    ) = found.groups()  # fmt: skip
    next_key = len(memo)
    if _KEYS.pack(*range(next_key, next_key + 7)) != b"".join((put1, put2, put3, put4, put5, put6, put7)):
        return 0
    shape, steps, cls = _numbers(sizes), _numbers(strides), memo[hooks[0]]
    if shape is None or steps is None or key_nbytes[0] != len(key) or type(cls) is not Global:
        return 0
    if cls.path not in MAPPINGS or cls.path in machine.constructors:
        return 0
    name = key.decode()
    pid = (memo[kind[0]], memo[type_[0]], name, memo[location[0]], _number(numel))
    empty = machine.inert(cls.path, ())
    try:
        args = (machine.persistent(pid), _number(offset), shape, steps, requires_grad == b"\x88", empty)
        made = make(*args)
    except (ParamtoolError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        return 0  # running the opcodes one by one reports the error
    machine.objects += _OBJECTS
    memo += (name, pid, shape, steps, empty, args, made)
    stack[-1] = made
    return found.end()


def _number(opcode: bytes) -> int:
    """The number that an opcode pushes: one or two bytes without a sign, or four with one."""
    return opcode[1] if len(opcode) == 2 else int.from_bytes(opcode[1:], "little", signed=len(opcode) == 5)


@lru_cache(4096)
def _numbers(opcodes: bytes) -> tuple[int, ...] | None:
    """The tuple that opcodes make, whose last opcode gives its length; None if there are more or fewer numbers."""
    found, at = [], 0
    while at < len(opcodes) - 1:
        stop = at + {ord("K"): 2, ord("M"): 3, ord("J"): 5}[opcodes[at]]
        found.append(_number(opcodes[at:stop]))
        at = stop
    return tuple(found) if len(found) == opcodes[-1] - 0x84 else None
