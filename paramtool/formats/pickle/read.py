"""A closed pickle machine.

A pickle is a program for a stack machine.  Ours runs all of protocols 0 to 5, builds plain data and never
imports or calls anything the pickle names: a name becomes a `Global`, a call becomes an `Instance` that keeps
the arguments.  The reader of a format hands in `constructors`, its own functions for the few names it
understands.  Every other name is kept in `Result.uses`, so that people can see what it asks for.

    cposix\\nsystem\\n  'rm -rf'  TUPLE1 REDUCE   ->   Instance("posix.system", ("rm -rf",), called=True)

The cost of a hostile pickle is limited by its size: lengths are checked before slicing; stack, memo and
objects have limits; a pickle may not cause more copying and hashing than its own bytes (`spend`); keys of dicts
are atoms or small tuples of them, and keys that collide on purpose are refused.

Positions are indices into the data that was given, in bytes.  Source: Lib/pickletools.py of CPython 3.13,
which describes every opcode; behaviour as in Modules/_pickle.c.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING

from paramtool.errors import ParamtoolError, UnsafeError
from paramtool.formats.pickle import opcodes  # noqa: F401  # each enters itself into the machine's tables
from paramtool.formats.pickle.machine import Machine
from paramtool.formats.pickle.values import PickleLimits, Result, Use

if TYPE_CHECKING:
    from paramtool.formats.files import Buffer

DEFAULT_LIMITS = PickleLimits()


def load(
    data: Buffer,
    start: int,
    where: str,
    constructors: Mapping[str, Callable[..., object]],
    *,
    persistent: Callable[[object], object],
    limits: PickleLimits = DEFAULT_LIMITS,
    known: Container[str] = (),
    spans: bool = False,
) -> Result:
    """Run the pickle that starts at `data[start]`.

    `constructors` maps a path such as `torch._utils._rebuild_tensor_v2` to what makes its value; a value with
    a method `build(state)` gets its BUILDs.  A value may become a key of a dict: its hash must be cheap and
    must not follow what the pickle put inside.  `persistent` resolves persistent ids.  `known` are paths that
    may be mentioned freely; a call of one is still unknown.

    Values are None, bool, int, float, str, bytes, list, tuple, dict, `Global`, `Instance` and what
    constructors made.  A Python 2 string becomes a str: UTF-8 if it is, else Latin-1.  With `spans` all bytes, long
    texts, and strings of Python 2 that are no short text become a `PickledSpan`: they are not read.

    Raises FormatError for damage and UnsafeError for bombs; a ParamtoolError of a constructor passes.
    """
    machine = Machine(data, start, where, constructors, persistent=persistent, limits=limits, known=known)
    machine.spans = spans
    return machine.run()


def attempt(
    data: Buffer,
    start: int,
    constructors: Mapping[str, Callable[..., object]],
    persistent: Callable[[object], object],
    *,
    limits: PickleLimits = DEFAULT_LIMITS,
    known: Container[str] = (),
) -> tuple[tuple[Use, ...], int, int]:
    """The uses in a pickle, the index after its STOP, and the bytes that were read.

    Where the machine fails, opcodes are read on without their values (`names.py`).  The index is -1 where what follows
    is no pickle, -2 if a limit was reached, and `CUT` or `BROKEN` of `names.py`.  Each of the constructors takes any
    arguments, and none.
    """
    machine = Machine(data, start, "", constructors, persistent=persistent, limits=limits, known=known)
    machine.frames = False
    try:
        return (found := machine.run()).uses, found.stop, found.stop - start
    except ParamtoolError as error:
        from paramtool.formats.pickle.names import read_on

        failed, ran = -2 if isinstance(error, UnsafeError) else -1, machine.position - start
        stop, read = read_on(machine)
        return tuple(machine.uses.values()), stop if stop > 0 else min(stop, failed), max(ran, read)
