"""What is seen of groups of parts: their names and forms, and the layouts that a fused tensor could have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paramtool.lazy_dataclass import frozen
from paramtool.model.view import Shape

ShapeOf = Callable[[str], Shape]
"""The shape of the tensor of a name; () where there is none."""
ROWS_OF = "rows of "
"""How the reason begins why a layout fits that one of several dialects has."""


@frozen
class FittingLayout:
    """A layout that a fused tensor could have by its shape."""

    layout: str
    needs: tuple[str, ...]
    """The facts that it needs, and nobody said."""
    why: str


@frozen
class SeenGroup:
    """Groups of one kind and of the same names, in all layers of a tower."""

    at: str
    """Their modules, `*` for the numbers: `model.layers.*.self_attn`."""
    modules: int
    kind: str
    """`qkv`, `kv`, `gate-up`, `experts`."""
    form: str
    """`apart`, `list` (one module for each expert), or `fused`."""
    names: tuple[str, ...]
    """Of the parts, or of the fused tensors."""
    experts: int = 0
    """In the first of them."""
    first: str = ""
    """The first of the modules."""
    layout: str = ""
    """Of fused tensors; empty where nothing says it."""
    source: str = ""
    """Who says the layout: `its record`, `config.json (gpt_neox)`."""
    fits: tuple[FittingLayout, ...] = ()
    """Where nothing says the layout: those that fit by shape, or that dialects of the same names have."""
    pattern: str = ""
    """The rows that a dialect has, where no layout has them."""
    _members = "at modules kind form names experts layout source fits decide=decides"

    @property
    def decides(self) -> str:
        """What would decide between the layouts that fit; empty if nothing is to be decided."""
        if self.form != "fused" or self.layout or self.pattern:
            return ""
        if any(fit.why.startswith(ROWS_OF) for fit in self.fits):
            return "the program that wrote the file (--layout LAYOUT)"
        needs = dict.fromkeys(fact for fit in self.fits for fact in fit.needs if fact != "chunks")
        said = " ".join(f"{fact}=..." for fact in needs)
        spec = f' and --spec "{self.kind} {said}"' if said else ""
        return f"config.json of a known model type, or --layout LAYOUT{spec}"


@frozen
class KnownOfFile:
    """What is known beside names and shapes."""

    config: Mapping[str, Any]
    """The model's config.json; empty if there is none."""
    layouts: Mapping[str, str]
    """{fused tensor: its layout}, from the file's record."""
    dialect: str = ""
    """From the file's record, or from a file name that one program alone gives."""
    who: str = "its record"
    """What says the dialect."""
    recognised: Callable[[], Sequence[str]] = tuple
    """The dialects that have the names of a file whose dialect is not said."""
    facts: Mapping[str, int] | None = None
    """Sizes that the user gave."""
