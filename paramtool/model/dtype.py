"""Element types, as blocks of elements that fill whole bytes.

Most types are one element in `block_bytes` bytes.  Sub-byte types pack several elements into a block (float4: two in
one byte, float6: four in three), and a window on them must begin and end on a block.

Names are those of NumPy and ml_dtypes where they have the type, else torch's.
"""

from __future__ import annotations

from paramtool.lazy_dataclass import frozen


@frozen
class DType:
    """An element type.

    >>> DTYPES["float32"].nbytes(6)
    24
    >>> DTYPES["float6_e2m3fn"].nbytes(8)
    6
    >>> DTYPES["float4_e2m1fn"].nbytes(3)
    Traceback (most recent call last):
    ValueError: 3 elements of float4_e2m1fn do not fill whole blocks of 2
    """

    name: str
    block_elements: int
    """Elements in one block."""
    block_bytes: int
    """Bytes of one block."""

    def nbytes(self, numel: int) -> int:
        """Bytes of `numel` elements; ValueError where they do not fill whole blocks."""
        if self.block_elements == 1:
            return numel * self.block_bytes
        blocks, rest = divmod(numel, self.block_elements)
        if rest:
            raise ValueError(f"{numel} elements of {self.name} do not fill whole blocks of {self.block_elements}")
        return blocks * self.block_bytes

    @property
    def is_floating(self) -> bool:
        """Whether it has real floating-point numbers."""
        return self.name.startswith(("float", "bfloat"))

    @property
    def is_inexact(self) -> bool:
        """Whether it has floating-point numbers, real or complex: numbers are rounded to it, and do not wrap around."""
        return self.is_floating or self.name.startswith("complex")

    @property
    def component(self) -> DType | None:
        """The real type of the two parts of a complex type; None for any other."""
        half = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}.get(self.name)
        return DTYPES[half] if half else None


_ONE_ELEMENT_BYTES = {
    1: (
        "bool uint8 int8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
        # torch's own one-byte types: quantised integers, raw bits, and integers of 1 to 7 bits in a byte each.
        "float4_e2m1fn_x2 qint8 quint8 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 "
        "uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7"
    ),
    2: "int16 uint16 float16 bfloat16 bits16",
    4: "int32 uint32 float32 complex32 qint32",
    8: "int64 uint64 float64 complex64",
    16: "complex128",
}

DTYPES: dict[str, DType] = {
    **{name: DType(name, 1, size) for size, names in _ONE_ELEMENT_BYTES.items() for name in names.split()},
    "float4_e2m1fn": DType("float4_e2m1fn", 2, 1),
    "float6_e2m3fn": DType("float6_e2m3fn", 4, 3),
    "float6_e3m2fn": DType("float6_e3m2fn", 4, 3),
}


def can_hold(wanted: DType, found: DType) -> bool:
    """Whether numbers of type `found` keep their kind in `wanted`: float32 in bfloat16 yes, float32 in int64 no.

    Floats may lose digits; integers must not lose their highest bits, since a copy would not report that.

    A packed type, several elements of which fill a block, can be held only by itself.

    >>> [can_hold(DTYPES[name], DTYPES["int32"]) for name in ("int8", "float16", "bool")]
    [False, True, False]
    """
    if wanted == found:
        return True
    packed = wanted.block_elements != 1 or found.block_elements != 1
    shortened = _kind(wanted.name) == _kind(found.name) == 1 and found.block_bytes > wanted.block_bytes
    return not packed and not shortened and _kind(found.name) <= _kind(wanted.name)


def _kind(name: str) -> int:
    """0 for truth values, 1 for integers and raw bits, 2 for real and 3 for complex numbers."""
    if name.startswith(("float", "bfloat")):
        return 2
    return 0 if name == "bool" else 3 if name.startswith("complex") else 1


NARROWER = {
    "float64": ("float32", "bfloat16", "float16"),
    "float32": ("bfloat16", "float16"),
    "int64": ("int32", "int16"),
    "int32": ("int16",),
}
"""Types whose numbers are all numbers of the wider type.  One-byte types come with scales and are left out."""


def is_widened(stored: DType, derived: DType) -> bool | None:
    """True where a cast between two types loses nothing, False where it rounds, None for any other pair of types.

    >>> wide, narrow = DTYPES["float32"], DTYPES["bfloat16"]
    >>> is_widened(narrow, wide), is_widened(wide, narrow), is_widened(wide, DTYPES["int8"])
    (True, False, None)
    """
    if stored.name in NARROWER.get(derived.name, ()):
        return True
    rounds = derived.name in NARROWER.get(stored.name, ()) and "float" in stored.name
    return False if rounds else None
