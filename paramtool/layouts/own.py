"""Custom layouts: declared in Python, by an installed package, or in a TOML file.

    @paramtool.register_layout
    def mine() -> Layout:
        return Layout("mine", "my cells", forms=(Form("lstm", "ifgo", (TensorRule(...), ...)),))

    [project.entry-points."paramtool.layouts"]     in the pyproject.toml of a package
    mine = "my_package.layouts:mine"

    paramtool convert model.pt --from mine --to torch --layout-file mine.toml

All three are checked (`check_layout`) before they are registered.  Packages are imported only if a name is asked for
that paramtool does not have, or if all layouts are listed.  A broken package is reported and does not stop others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from paramtool import layouts
from paramtool.errors import LayoutError, UsageError, message_of
from paramtool.layouts._toml import TypesTable, from_toml, types_from_toml
from paramtool.layouts.layout import Layout
from paramtool.layouts.proof import check_layout
from paramtool.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "paramtool.layouts"
"""The group of entry points: each is a Layout, several of them, or a function without arguments that returns them."""

Declared = TypeVar("Declared", Layout, Callable[[], Layout])

__all__ = ["GROUP", "TypesTable", "check_layout", "from_toml", "installed", "register_layout", "types_from_toml"]


def register_layout(declared: Declared) -> Declared:
    """Register a layout, or the layout that a function returns.  Returns its argument, so it can be a decorator.

    LayoutError if the layout does not tile its tensors, UsageError if another layout has its name.
    """
    made: object = declared() if not isinstance(declared, Layout) and callable(declared) else declared
    if not isinstance(made, Layout):
        raise UsageError(f"register_layout: {made!r} is not a Layout; expected one, or a function that returns one")
    check_layout(made)
    _refuse_clash(made)
    layouts.registered[made.name] = made
    return declared


def _refuse_clash(layout: Layout) -> None:
    """UsageError if another layout has that name; the same layout may be registered twice, as by a notebook's cell."""
    if layout.name in layouts.built_in():
        raise UsageError(f"layout {layout.name!r} comes with paramtool; choose another name")
    if layouts.registered.get(layout.name, layout) != layout:
        raise UsageError(f"another layout {layout.name!r} is registered; choose another name")


@dataclass(frozen=True, slots=True)
class InstalledLayouts:
    """The layouts that installed packages declare."""

    layouts: dict[str, Layout]
    broken: list[tuple[str, LayoutError]]
    """The name of the entry point, and an error that names the package."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The errors of broken packages, one line each."""
        return tuple(error.message for _, error in self.broken)


@lru_cache(maxsize=1)
def installed() -> InstalledLayouts:
    """Import every package that declares layouts; errors of a package are kept, not raised."""
    from importlib.metadata import entry_points

    found = InstalledLayouts({}, [])
    for point in sorted(entry_points(group=GROUP), key=lambda point: (_package(point), point.name)):
        try:
            for layout in _loaded(point):
                _refuse_clash(layout)
                if found.layouts.get(layout.name, layout) != layout:
                    raise UsageError(f"another package has a layout {layout.name!r}")
                found.layouts[layout.name] = layout
        except Exception as error:  # code of others, which may raise anything
            message = f"package {_package(point)}, entry point {point.name} = {point.value}: {_reason(error)}"
            found.broken.append((point.name, LayoutError(message, "other layouts are not affected")))
    return found


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"


def _reason(error: Exception) -> str:
    text = message_of(error)
    return text if isinstance(error, (LayoutError, UsageError)) else f"{type(error).__name__}: {text}"


def _loaded(point: EntryPoint) -> list[Layout]:
    """The layouts of an entry point, checked; exceptions of the package are passed on."""
    made = point.load()
    if not isinstance(made, Layout) and callable(made):
        made = made()
    several = [made] if isinstance(made, Layout) else list(made) if isinstance(made, Iterable) else [made]
    for layout in several:
        if not isinstance(layout, Layout):
            raise LayoutError(f"returns {layout!r}; expected a Layout, several, or a function that returns them")
        check_layout(layout)
    return several
