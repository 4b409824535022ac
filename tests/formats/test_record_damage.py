"""The records beside the alias record: what is wrong with one is a FormatError that names the file and the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from paramtool.errors import FormatError
from paramtool.formats.record import edits, layouts, parts
from paramtool.formats.record.damage import DAMAGE, reading

READERS: dict[str, tuple[Callable[[str, Mapping[str, str]], object], str]] = {
    edits.OPTIMIZERS: (edits.optimizers_of, "its record of optimizers ('paramtool.optimizer')"),
    parts.KEY: (parts.decode, "its record of parts ('paramtool.parts')"),
    edits.TYPES: (edits.types_of, "its record of casts ('paramtool.types')"),
    edits.TIES: (edits.ties_of, "its record of ties ('paramtool.ties')"),
    layouts.KEY: (layouts.decode, "its record of layouts ('paramtool.layouts')"),
}


@pytest.mark.parametrize("key", READERS)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "JSONDecodeError"), ("[]", "TypeError"), ("5", "TypeError"), ("{}", "KeyError: 'version'"),
        ('{"version": 99}', "ValueError: version 99, this program reads"),
        ('{"version": true}', "ValueError: version True, this program reads"),
        ('{"version": 1, "version": 1}', "ValueError"),
        pytest.param("[" * 200_000, "ValueError: it is nested too deeply", id="deep"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_named(key: str, text: str, says: str) -> None:
    """No JSON, another type, no version, another version: the message has the file, the record and the reason."""
    decode, record = READERS[key]
    with pytest.raises(FormatError) as raised:
        decode("m.safetensors", {key: text})
    assert raised.value.message.startswith(f"m.safetensors: {record} is damaged: {says}")
    assert raised.value.hint


@pytest.mark.parametrize("names_type", [True, False])
@pytest.mark.parametrize("error", DAMAGE)
def test_every_exception_of_a_malformed_record_is_caught(error: type[Exception], names_type: bool) -> None:
    """The message has the exception's own words, and its type if that is asked for."""
    cause = error("x")
    with pytest.raises(FormatError) as raised, reading("f: its record", "a hint", names_type=names_type):
        raise cause
    prefix = f"{error.__name__}: " if names_type else ""
    assert raised.value.message == f"f: its record is damaged: {prefix}{cause}"
    assert raised.value.hint == "a hint"


def test_an_exception_of_anything_else_is_left_alone() -> None:
    """A disk that fails is no damaged record."""
    with pytest.raises(OSError, match="disk"), reading("f: its record", ""):
        raise OSError("disk")
