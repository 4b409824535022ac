"""Makers of safetensors files that lie, assembled by hand, and of alias records damaged in every field.

`HEADERS` holds headers that must be refused, `RECORDS` damaged records, `NAMES` names that nobody should obey.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

from tests.hostile.command import Hostile

DATA = pack("<4f", 1, 2, 3, 4)


def item(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict[str, object]:
    """A header entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def build(header: object, data: bytes = DATA, length: int | None = None) -> bytes:
    """A file; `header` is text, bytes or what JSON can hold."""
    text = header if isinstance(header, (str, bytes)) else json.dumps(header)
    raw = text.encode() if isinstance(text, str) else text
    return pack("<Q", len(raw) if length is None else length) + raw + data


def made(data: bytes | Callable[[], bytes], file: str = "model.safetensors") -> Callable[[Path], Path]:
    """A maker of one file."""

    def make(folder: Path) -> Path:
        (folder / file).write_bytes(data if isinstance(data, bytes) else data())
        return folder / file

    return make


def _two(first: tuple[int, int], second: tuple[int, int]) -> bytes:
    shapes = [[(end - begin) // 4] for begin, end in (first, second)]
    return build({"w": item(shape=shapes[0], offsets=first), "v": item(shape=shapes[1], offsets=second)})


def long_header_of_nothing(folder: Path) -> Path:
    """A hundred million bytes of header that are no JSON, in a file that takes no space."""
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(pack("<Q", 100_000_000) + b"{")
        file.truncate(100_000_008)
    return path


HONEST = build({"w": item()})
HEADERS: dict[str, Hostile] = {
    key: Hostile(made(data), says)
    for key, (data, says) in {
        "length_near_2_to_64": (build({"w": item()}, length=2**64 - 1), ()),
        "length_above_the_limit": (build({"w": item()}, length=100_000_001), ("100000001", "100000000")),
        "length_beyond_the_file": (build({"w": item()}, length=99_999_999), ("99999999",)),
        "length_zero": (build({"w": item()}, length=0), ()),
        "length_one_short": (build({"w": item()}, length=len(HONEST) - 8 - 16 - 1), ("JSON",)),
        "length_one_long": (build({"w": item()}, length=len(HONEST) - 8 - 16 + 1), ("JSON",)),
        "deep_json": (build('{"a":' * 100_000), ("deep",)),
        "deep_lists": (build('{"a":' + "[" * 100_000), ("deep",)),
        "deep_metadata": (build('{"__metadata__":' + '{"a":' * 100_000), ("deep",)),
        "duplicate_name": (build('{"w":%s,"w":%s}' % ((json.dumps(item()),) * 2)), ("'w'", "twice")),
        "duplicate_key": (build('{"w":{"dtype":"F32","shape":[4],"shape":[2],"data_offsets":[0,16]}}'), ("twice",)),
        "duplicate_metadata": (build('{"__metadata__":{"a":"1","a":"2"}}', b""), ("'a'", "twice")),
        "two_metadata": (build('{"__metadata__":{},"__metadata__":{}}', b""), ("twice",)),
        "not_utf8": (build(b'{"\xff\xfe":1}'), ()),
        "no_object": (build("{1}"), ("JSON",)),
        "junk_behind_the_object": (build(f'{{"w":{json.dumps(item())}}} junk'), ("JSON",)),
        "nan": (build('{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}'), ("NaN",)),
        "infinity": (build('{"w":{"dtype":"F32","shape":[1e999],"data_offsets":[0,16]}}'), ("1e999",)),
        "shape_float": (build({"w": item(shape=[4.0])}), ("'w'",)),
        "shape_true": (build({"w": item(shape=[True], offsets=[0, 4])}, DATA[:4]), ("'w'",)),
        "shape_text": (build({"w": item(shape="4")}), ("'w'",)),
        "shape_negative": (build({"w": item(shape=[-4])}), ("'w'",)),
        "shape_twice_negative": (build({"w": item(shape=[-2, -2])}), ("'w'",)),
        "shape_huge": (build({"w": item(shape=[2**62])}), ("'w'",)),
        "shape_overflows_to_fit": (build({"w": item(shape=[2**62 + 1, 4])}), ("'w'",)),
        "shapes_multiply": (build({"w": item(shape=[2**40, 2**40])}), ("'w'",)),
        "shape_of_a_thousand_digits": (build('{"w":{"dtype":"F32","shape":[1%s],"data_offsets":[0,16]}}' % ("0" * 1000)),  # noqa: E501
                                       ("out of range",)),
        "shape_of_a_million_digits": (build('{"w":{"dtype":"F32","shape":[1%s],"data_offsets":[0,16]}}' % ("0" * 10**6)),  # noqa: E501
                                      ()),
        "shape_of_ten_thousand_axes": (build({"w": item(shape=[2] * 10_000)}), ("'w'",)),
        "shape_none": (build({"w": item(shape=None)}), ("'w'",)),
        "offsets_negative": (build({"w": item(offsets=[-16, 0])}), ("'w'",)),
        "offsets_turned_round": (build({"w": item(offsets=[16, 0])}), ("'w'",)),
        "offsets_three": (build({"w": item(offsets=[0, 16, 16])}), ("'w'",)),
        "offsets_near_2_to_64": (build({"w": item(offsets=[2**64 - 16, 2**64])}), ("'w'",)),
        "offsets_beyond_the_file": (build({"w": item(shape=[400], offsets=[0, 1600])}), ("truncated",)),
        "offsets_of_other_length": (build({"w": item(offsets=[0, 12])}, DATA[:12]), ("'w'", "12", "16")),
        "offsets_an_object": (build({"w": item(offsets={})}), ("'w'",)),
        "overlap": (_two((0, 12), (8, 16)), ("'v'", "an overlap")),
        "same_range_twice": (_two((0, 16), (0, 16)), ("an overlap",)),
        "hole": (_two((0, 4), (8, 16)), ("gap",)),
        "hole_at_the_beginning": (_two((4, 8), (8, 16)), ("gap",)),
        "bytes_behind_the_last": (build({"w": item()}, DATA + b"x"), ("1 byte",)),
        "dtype_unknown": (build({"w": item("F33")}), ("'w'", "F33")),
        "dtype_a_number": (build({"w": item(7)}), ("'w'",)),
        "dtype_a_list": (build({"w": item(["F32"])}), ("'w'",)),
        "dtype_endless": (build({"w": item("F" * 10**6)}), ("'w'",)),
        "half_a_byte": (build({"w": item("F4", [3], [0, 1])}, b"x"), ("'w'",)),
        "entry_a_number": (build({"w": 5}), ("'w'",)),
        "entry_a_list": (build({"w": []}), ("'w'",)),
        "entry_none": (build({"w": None}), ("'w'",)),
        "entry_lacks_offsets": (build({"w": {"dtype": "F32", "shape": [4]}}), ("'w'",)),
        "metadata_a_list": (build({"__metadata__": ["a"], "w": item()}), ("__metadata__",)),
        "metadata_of_numbers": (build({"__metadata__": {"a": 1}, "w": item()}), ("__metadata__",)),
        "metadata_a_tensor": (build({"__metadata__": item()}), ("__metadata__",)),
        "five_thousand_defects": (build({f"n{k}": 5 for k in range(5000)}), ("4980 more",)),
        "name_of_a_million_letters": (build({"n" * 10**6: 5}), ()),
    }.items()
} | {"header_of_a_hundred_million_zeros": Hostile(long_header_of_nothing)}  # fmt: skip

# --- the alias record ------------------------------------------------------------------------------------------------

KEY = "paramtool.aliases"
ALIAS: dict[str, Any] = {
    "owner": "w", "memory": "w", "evidence": "storage", "relation": "same", "dtype": "float32", "shape": [4],
    "strides": [1], "offset": 0, "position": 1,
}  # fmt: skip
RECORD: dict[str, Any] = {"version": 1, "aliases": {"a": ALIAS}, "stored": {}, "spans": []}


def recorded(record: object, *, pairs: dict[str, str] | None = None) -> bytes:
    """A file with the tensors `w` and `v`, and a record."""
    text = record if isinstance(record, str) else json.dumps(record)
    metadata = {"format": "pt", KEY: text, **(pairs or {})}
    return build({"__metadata__": metadata, "w": item(), "v": item(offsets=(16, 32))}, DATA * 2)


def _with(*path: str | int, value: object) -> str:
    record = copy.deepcopy(RECORD)
    place: Any = record
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(record)


def _without(*path: str) -> str:
    record = copy.deepcopy(RECORD)
    place: Any = record
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return json.dumps(record)


def _alone(aliases: dict[str, Any]) -> str:
    """A record of these aliases."""
    return json.dumps({**RECORD, "aliases": aliases})


CONSTANT: dict[str, Any] = {"dtype": "float32", "shape": [4], "position": 2, "constant": "00000000"}


def _derived(name: str, **changed: Any) -> str:
    """A record of version 2 with a constant."""
    return json.dumps({**RECORD, "version": 2, "derived": {name: {**CONSTANT, **changed}}})


def _cast(dtype: object, lossless: object = False, **changed: Any) -> str:
    """A record of version 2 with a cast of `w`, which is float32."""
    shape = changed.pop("shape", [4])
    place = {"owner": "w", "dtype": "float32", "strides": [1], "offset": 0, "lossless": lossless, **changed}
    item = {"dtype": dtype, "shape": shape, "position": 2, "cast": place}
    return json.dumps({**RECORD, "version": 2, "derived": {"c": item}})


def _tree(objects: object) -> str:
    """A record with this tree; the file has the tensors `w` and `v` and the alias `a`."""
    return _with("objects", value=objects)


def _nested(depth: int) -> dict[str, Any]:
    """Three tensors and so many maps in one another."""
    inner: object = 1
    for _ in range(depth):
        inner = {"map": "dict", "items": [["k", inner]]}
    return {"map": "dict", "items": [3, ["deep", inner]]}


def _without_of_derived(key: str) -> str:
    item = {k: v for k, v in CONSTANT.items() if k != key}
    return json.dumps({**RECORD, "version": 2, "derived": {"c": item}})


WRONG: tuple[object, ...] = (None, True, -1, 2**80, 1.5, "text", [], {}, [None], {"a": None})
"""A value of each type, put in the place of each field."""

FIELDS: dict[str, tuple[str | int, ...]] = {
    "version": ("version",), "aliases": ("aliases",), "alias": ("aliases", "a"), "stored": ("stored",),
    "spans": ("spans",), "objects": ("objects",),
    **{f"alias_{field}": ("aliases", "a", field) for field in ALIAS},
}  # fmt: skip
FUZZ = {
    f"{field}_{number}": made(recorded(_with(*path, value=value)))
    for field, path in FIELDS.items()
    for number, value in enumerate(WRONG)
}
"""Some of these are right by chance; none may be worse than an error of the file's class."""

RECORDS: dict[str, Hostile] = {
    key: Hostile(made(recorded(text)), ("alias record", *says))
    for key, (text, says) in {
        "empty": ("", ()),
        "not_json": ("hello", ()),
        "cut_off": (json.dumps(RECORD)[:-5], ()),
        "a_list": ("[]", ("not a JSON object",)),
        "a_number": ("1", ()),
        "nothing": ("null", ()),
        "deep": ("[" * 100_000, ()),
        "version_99": (_with("version", value=99), ("99",)),
        "version_text": (_with("version", value="1"), ()),
        "version_true": (_with("version", value=True), ()),
        "no_version": (_without("version"), ("has no 'version'",)),
        "no_aliases": (_without("aliases"), ("has no 'aliases'", "hint: ")),
        "no_stored": (_without("stored"), ("has no 'stored'", "hint: ")),
        "no_spans": (_without("spans"), ("has no 'spans'", "hint: ")),
        **{f"no_{key}": (_without("aliases", "a", key), ("'a' of 'aliases'", f"has no {key!r}", "hint: "))
           for key in ALIAS if key != "relation"},
        "stored_without_memory": (_with("stored", value={"w": {}}), ("'w' of 'stored' has no 'memory'",)),
        "derived_without_shape": (_without_of_derived("shape"), ("'c' of 'derived' has no 'shape'",)),
        "derived_without_constant": (_without_of_derived("constant"), ("neither of 'constant' and 'cast'",)),
        "derived_constant_no_text": (_derived("c", constant=5), ("'c' of 'derived'", "constant 5; expected a string")),
        "derived_constant_no_digits": (_derived("c", constant="zz"), ("'c'",)),
        "derived_constant_of_two_bytes": (_derived("c", constant="0000"), ("'c'", "2 bytes", "float32 has 4")),
        "derived_dtype_unknown": (_derived("c", dtype="bogus"), ("'c' of 'derived'", "'bogus'", "not known")),
        "derived_shape_of_texts": (_derived("c", shape=["4"]), ("'c'", "whole numbers")),
        "cast_without_owner": (_cast("bfloat16", owner=None), ("'c' of 'derived' has a cast that has the owner None",)),
        "cast_of_a_ghost": (_cast("bfloat16", owner="ghost"), ("'c'", "'ghost'", "not stored")),
        "cast_to_int8": (_cast("int8"), ("'c'", "int8, cast from float32")),
        "cast_to_itself": (_cast("float32", True), ("'c'", "float32, cast from float32")),
        "cast_said_to_be_lossless": (_cast("bfloat16", True), ("'c'", "float32 to bfloat16 is lossless")),
        "cast_said_to_be_lossy": (_cast("float64", False), ("'c'", "float32 to float64 is not lossless")),
        "cast_lossless_no_flag": (_cast("float64", 1), ("'c' of 'derived'", "lossless 1; expected true or false")),
        "owner_missing": (_with("aliases", "a", "owner", value="ghost"), ("ghost",)),
        "owner_an_alias": (
            _with("aliases", "b", value={**ALIAS, "owner": "a", "position": 2}),
            ("'b'", "'a'", "itself an alias", "hint: ")),
        "owners_go_round": (
            _alone({"a": {**ALIAS, "owner": "b"}, "b": {**ALIAS, "owner": "a", "position": 2}}),
            ("'a'", "'b'", "itself an alias", "2 defects")),
        "memory_missing": (
            _with("aliases", "a", "memory", value="ghost"), ("'a'", "'ghost'", "not a name of the file")),
        "memory_a_span": (
            json.dumps({**RECORD, "spans": ["w"]}), ("'a'", "'w'", "not a name of the file")),
        "memory_leads_on": (
            _alone({"a": {**ALIAS, "memory": "b"}, "b": {**ALIAS, "memory": "w", "position": 2}}),
            ("'a'", "'b'", "'w'", "expected the first name")),
        "memories_go_round": (
            _alone({"a": {**ALIAS, "memory": "b"}, "b": {**ALIAS, "memory": "a", "position": 2}}),
            ("'a'", "'b'", "2 defects")),
        "memory_on_another_owner": (
            json.dumps({**RECORD, "aliases": {"a": {**ALIAS, "memory": "v"}}}), ("'a'", "'v'", "'w'", "is a view of")),
        "stored_is_not_stored": (
            _with("stored", value={"ghost": {"memory": "ghost", "memory_evidence": "storage"}}), ("'ghost'",)),
        "position_twice": (_alone({"a": ALIAS, "b": ALIAS}), ("'a' and 'b'", "position, 1")),
        "derived_is_an_alias_too": (_derived("a"), ("'a'", "both an alias and derived")),
        "derived_is_stored_too": (_derived("w"), ("'w'", "both derived and stored")),
        "derived_at_the_position_of_an_alias": (_derived("c", position=1), ("'a' and 'c'", "position, 1")),
        "position_negative": (_with("aliases", "a", "position", value=-1), ("'a'", "-1")),
        "alias_is_stored": (_with("aliases", "w", value=ALIAS), ("'w'",)),
        "span_missing": (_with("spans", value=["ghost"]), ("ghost",)),
        "window_outside": (_with("aliases", "a", "offset", value=1), ("'a'", "20", "16")),
        "shape_outside": (_with("aliases", "a", "shape", value=[5]), ("'a'", "20", "16")),
        "stride_outside": (_with("aliases", "a", "strides", value=[2]), ("'a'", "28", "16")),
        "dtype_wider": (_with("aliases", "a", "dtype", value="float64"), ("'a'", "32", "16")),
        "dtype_unknown": (
            _with("aliases", "a", "dtype", value="float33"), ("'a' of 'aliases'", "'float33'", "not known", "hint: ")),
        "offset_negative": (_with("aliases", "a", "offset", value=-1), ()),
        "shape_negative": (_with("aliases", "a", "shape", value=[-4]), ()),
        "stride_negative": (_with("aliases", "a", "strides", value=[-1]), ()),
        "shape_float": (_with("aliases", "a", "shape", value=[4.0]), ()),
        "shape_true": (_with("aliases", "a", "shape", value=[True]), ()),
        "shape_of_petabytes": (_with("aliases", "a", "shape", value=[2**50]), ("'a'",)),
        "strides_too_many": (_with("aliases", "a", "strides", value=[1, 1]), ("'a'", "expected equally many")),
        "evidence_unknown": (_with("aliases", "a", "evidence", value="hearsay"), ("hearsay",)),
        "memory_evidence_unknown": (_with("aliases", "a", "memory_evidence", value="hearsay"), ("hearsay",)),
        "objects_unknown_form": (_with("objects", value={"what": 1}), ("objects: ", "not a known form")),
        "objects_deep": (_with("objects", value=0)[:-2] + "[" * 900 + "]" * 900 + "}", ()),
        "objects_nested_maps": (_tree(_nested(300)), ("objects: ", "nested deeper than 200 levels")),
        "objects_a_number": (_with("objects", value=5), ("objects: ", "is missing")),
        "objects_a_list": (_with("objects", value=[1]), ("objects: ", "not a known form")),
        "objects_of_nothing": (_with("objects", value={}), ("objects: ", "not a known form")),
        "objects_lack_a_tensor": (_tree({"map": "dict", "items": [2]}), ("objects: ", "'v' is missing")),
        "objects_too_many_tensors": (
            _tree({"map": "dict", "items": [10**12]}), ("objects: ", "a run of 1000000000000 tensors, but only 3 of")),
        "objects_one_tensor_too_many": (_tree({"map": "dict", "items": [4]}), ("objects: ", "a run of 4 tensors")),
        "objects_less_than_no_tensors": (_tree({"map": "dict", "items": [-1, 3]}), ("objects: ", "a run of -1")),
        "objects_with_a_ghost": (
            _tree({"map": "dict", "items": [3, ["x", {"tensor": "nope"}]]}), ("objects: ", "'nope'", "not a name of")),
        **{f"objects_with_{key}": (_tree({"map": "dict", "items": [3, ["x", value]]}), ("objects: ", says))
           for key, (value, says) in {
               "nothing": ({}, "not a known form"), "a_list": ([], "not a known form"),
               "a_seq_of_nothing": ({"seq": "list"}, "'items'"),
               "a_map_of_nothing": ({"map": "dict"}, "'items'"), "items_a_number": ({"seq": "list", "items": 5}, "5"),
               "a_pair_of_one": ({"map": "dict", "items": [["k"]]}, "a list of 2"),
               "a_kind_a_number": ({"map": 5, "items": []}, "'map' 5; expected a string"),
               "a_tensor_a_number": ({"tensor": 5}, "'tensor' 5; expected a string"),
               "parts_missing": ({"opaque": "x.Y"}, "'parts'"),
               "a_part_of_one": ({"opaque": "x.Y", "parts": [["k"]]}, "2"),
               "an_array_of_two": ({"array": ["<f4", [1]]}, "a list of 4"), "an_int_of_letters": ({"int": "x"}, "'x'"),
               "a_shape_a_number": ({"array": ["<f4", 5, "C", ""]}, "objects"), "bytes_a_number": ({"bytes": 5}, "5"),
           }.items()},
        "objects_bad_base64": (_with("objects", value={"bytes": "?"}), ("objects: ",)),
        "duplicate_alias": (
            '{"version":1,"aliases":{"a":%s,"a":%s},"stored":{},"spans":[]}' % ((json.dumps(ALIAS),) * 2), ("twice",)),
    }.items()
}  # fmt: skip

BOMBS = {
    key: Hostile(made(recorded(text)), ("alias record", "'c'", "at most 17179869184 are", "hint: "), inspect=4)
    for key, text in {
        "constant": _derived("c", shape=[2**40]),
        "constant_of_more_than_2_to_64_bytes": _derived("c", shape=[2**31, 2**31]),
        "expanded_cast": _cast("bfloat16", shape=[2**40], strides=[0]),
        "many_constants": json.dumps({**RECORD, "version": 2, "derived": {
            f"c{k or ''}": {**CONSTANT, "shape": [2**30], "position": 2 + k} for k in range(5)}}),
    }.items()
}  # fmt: skip

FOREIGN_RECORD = Hostile(made(recorded("somebody else's text")), (KEY,))

# --- names that are not to be obeyed ---------------------------------------------------------------------------------

NAMES = {
    "clears_the_screen": "w\x1b[2J\x1b[31m",
    "sets_the_title": "w\x1b]0;owned\x07",
    "one_byte_csi": "w\x9b31m",
    "new_line": "w\nfinding: all is well",
    "carriage_return": "w\rfile  fine.pt",
    "right_to_left": "w\u202egnp.exe",
    "zero_width": "w\u200b",
    "nul": "w\0",
    "path": "../../etc/passwd",
    "absolute_path": "/etc/passwd",
    "markup": "[bold red]w[/]",
    "format": "{w!r} %s $(id) `id`",
    "empty": "",
    "blanks": "   ",
    "long": "n" * 100_000,
}


def named(name: str) -> bytes:
    """A file with one tensor of that name."""
    return build({name: item()})
