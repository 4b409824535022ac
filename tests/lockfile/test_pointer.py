"""Pointers of git-LFS and Xet: read as their own programs read them, and refused where these would refuse them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramtool.errors import FormatError
from paramtool.lockfile.pointer import LFS, XET, Pointer, parse

OID, OTHER = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393", "a" * 64
TEXT = f"version https://git-lfs.github.com/spec/v1\noid sha256:{OID}\nsize 12345\n"
EXTENDED = TEXT.replace("oid", f"ext-0-foo sha256:{OTHER}\next-1-bar sha256:{'b' * 64}\noid")
XET_TEXT = f"# xet version 0\nfilesize = 12345\nhash = '{OID}'\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT, Pointer(LFS, OID, 12345)),
        (TEXT.replace("\n", "\r\n"), Pointer(LFS, OID, 12345)),
        (TEXT.replace("https://git-lfs.github", "https://hawser.github"), Pointer(LFS, OID, 12345)),
        (TEXT.replace("https://git-lfs.github.com/spec/v1", "http://git-media.io/v/2"), Pointer(LFS, OID, 12345)),
        (EXTENDED, Pointer(LFS, OTHER, None)),  # the file as it was before the first extension
        (XET_TEXT, Pointer(XET, "", 12345)),
        (XET_TEXT.replace("'", '"'), Pointer(XET, "", 12345)),
        ("", None),
        ("version 1\n", None),
        ("GGUF", None),
    ],
)
def test_pointers(text: str, expected: Pointer | None) -> None:
    assert parse(text.encode(), "model.bin") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("sha256", "md5"), "found oid 'md5:"),
        (TEXT.replace(OID, OID[:-1]), "expected `sha256:` and 64 lower-case hexadecimal digits"),
        (TEXT.replace(OID, OID.upper()), "expected `sha256:` and 64 lower-case hexadecimal digits"),
        (TEXT.replace("12345", "-1"), "expected a number of bytes"),
        (TEXT.replace("12345", "\N{SUPERSCRIPT TWO}"), "expected a number of bytes"),
        (TEXT.replace("spec/v1", "spec/v9"), "is not known"),
        (TEXT + TEXT.split("\n")[1] + "\n", "each key once"),
        (TEXT + "more\n", "expected `key value`"),
        (TEXT[:60], "found oid"),
        (TEXT + "x" * 1024, "expected less than 1024"),
        (XET_TEXT.replace("version 0", "version 9"), "expected version 0"),
        (XET_TEXT.replace("filesize", "size"), "expected lines `filesize` and `hash`"),
        (XET_TEXT + "[table]\n", "expected `key = value`"),
    ],
)
def test_damaged_pointers(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=r"a damaged .* pointer") as caught:
        parse(text.encode(), "model.bin")
    assert "model.bin" in caught.value.message and message in caught.value.message


def test_bytes_that_are_not_text() -> None:
    with pytest.raises(FormatError, match="it is not UTF-8"):
        parse(TEXT.encode() + b"\xff\n", "model.bin")


@given(st.binary(max_size=40) | st.sampled_from([TEXT, EXTENDED, XET_TEXT]).flatmap(
    lambda text: st.builds(lambda at, byte: text.encode()[:at] + byte + text.encode()[at + 1 :],
                           st.integers(0, len(text) - 1), st.binary(max_size=2))
))  # fmt: skip
def test_any_bytes_are_a_pointer_none_or_refused(data: bytes) -> None:
    try:
        found = parse(data, "m")
    except FormatError:
        return
    assert found is None or found.kind in (LFS, XET)
