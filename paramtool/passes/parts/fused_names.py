"""Which tensors of a file are the fused tensors of a layout: by their names, or by the patterns of `--at`."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from paramtool.errors import LayoutError, plural, some
from paramtool.parts.layout import PartLayout
from paramtool.parts.schemes import PAIR, is_companion
from paramtool.parts.words import FUSED_NAMES, LAYER_STACKS, STACK_NAMES, kind_in

BARE_SEPARATOR = "_"
"""Between a bare tensor's name and the kind of its companion: `gate_up_proj_bias`, `in_proj_weight`."""
OF_INPUTS = (".layer_norm_weight", ".layer_norm_bias")
"""What a layer of Megatron has for its inputs: no row of its weight is in it, so it stays (Transformer Engine's
LayerNormLinear; `dialects/tables/megatron.json`)."""
FusedTensors = dict[str, dict[str, dict[int, tuple[str, str]]]]
"""{module: {suffix: {number of a row of the layout: (name in the module, tensor)}}}"""


def split(name: str, wanted: Container[str]) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, suffix) at every dot before a name that is wanted."""
    words = name.split(".")
    for k in [k for k, word in enumerate(words) if word in wanted]:
        yield ".".join(words[:k]), words[k], ".".join(words[k + 1 :])


def joined(*words: str) -> str:
    """Words of a name that are not empty, with dots."""
    return ".".join(word for word in words if word)


def tensors_of(names: Iterable[str], layout: PartLayout, at: Sequence[str], where: str) -> FusedTensors:
    """The fused tensors of a layout.

    A pattern takes the tensors whose names the layout has; where it matches none of them, those of the one name that
    it matches.  LayoutError if these are several.
    """
    usual = [dict.fromkeys(variant[k] for variant in variants_of(layout)) for k in range(len(layout.tensors))]
    found: FusedTensors = {}
    fits: set[str] = set()
    others: dict[str, dict[str, list[tuple[str, str, str]]]] = {pattern: {} for pattern in at}
    for name in names:
        for base, child, suffix in _children(name) if not name.endswith(OF_INPUTS) else ():
            chosen = [one for one in at if fnmatchcase(base, one) or fnmatchcase(joined(base, child), one)]
            if (at and not chosen) or _is_of_other(base, child, layout, is_chosen=bool(at)):
                continue
            rows = [
                k
                for k, row in enumerate(layout.tensors)
                if (not (row.is_bare and suffix.startswith(".") and child not in LAYER_STACKS))
            ]
            own = [k for k in rows if child in usual[k]]
            for k in own:
                found.setdefault(base, {}).setdefault(suffix, {})[k] = (child, name)
                fits.update(chosen)
            if (
                rows == [0]
                and not own
                and len(usual) == 1
                and (suffix.count(".") < 2 or is_companion(suffix.lstrip(".")))
            ):
                for pattern in chosen:
                    if fnmatchcase(joined(base, child), pattern):
                        others[pattern].setdefault(child, []).append((base, suffix, name))
    for pattern in [one for one in at if one not in fits]:
        layers = {child: one for child, one in others[pattern].items() if not _bare_kind(child)} or others[pattern]
        if len(layers) > 1:
            matched = list(layers)
            called = some([variant[0] for variant in variants_of(layout)], 4)
            raise LayoutError(
                f"{where}: --at {pattern!r} matches no tensor that layout {layout.name} is known for ({called}); it "
                f"matches {plural(len(matched), 'other name')}, which {'was' if len(matched) == 1 else 'were'} not "
                f"used: {some(matched, 5)}",
                hint="name the fused tensor itself, such as --at '*.attn.NAME'; `inspect` shows the names",
            )
        for child, tensors in layers.items():
            for base, suffix, name in tensors:
                found.setdefault(base, {}).setdefault(suffix, {})[0] = (child, name)
    return found


def _is_of_other(module: str, child: str, layout: PartLayout, *, is_chosen: bool) -> bool:
    """Whether a name means a tensor of another kind in this module: GPT-2's `c_attn` in a cross attention."""
    if child != "c_attn" or kind_in(module, child) == layout.group:
        return False
    return kind_in(module, child) == "kv" or (layout.name == "kv-conv1d" and not is_chosen)


def variants_of(layout: PartLayout) -> list[tuple[str, ...]]:
    """What files call the fused tensors of a layout, the usual names first."""
    own = tuple(row.name for row in layout.tensors)
    others = STACK_NAMES.get(own, ()) if len(own) > 1 else ((name,) for name in FUSED_NAMES.get(layout.group, ()))
    return list(dict.fromkeys((own, *others)))


def _children(name: str) -> Iterator[tuple[str, str, str]]:
    """(module, name in it, suffix with its separator): `attn.in_proj_weight` is `in_proj` with `_weight`, too."""
    for base, child, suffix in split(name, name.split(".")):
        yield base, child, f".{suffix}" if suffix else ""
        for k in [k for k, letter in enumerate(child) if letter == BARE_SEPARATOR] if not suffix else ():
            if kind := _bare_kind(child[k + 1 :]):
                yield base, child[:k], f"{BARE_SEPARATOR}{kind}"


def _bare_kind(text: str) -> str:
    """What a tensor is of the bare one before its last words; empty if they say nothing.

    >>> _bare_kind("bias"), _bare_kind("scale_inv"), _bare_kind("proj")
    ('bias', 'weight_scale_inv', '')
    """
    if text in ("weight", "bias", *PAIR):
        return text
    return next((known for known in (f"weight_{text}", text) if is_companion(known)), "")
