"""What `fuse`, `unfuse` and `convert` are asked to do, and which options contradict each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paramtool.commands.output.options import ObjectOptions
from paramtool.commands.progress import Path
from paramtool.errors import UsageError
from paramtool.lazy_dataclass import frozen
from paramtool.model.images import FIRST, LAST
from paramtool.model.optimizer import TIED, UNTIED, StateChoice

DEFAULT = "torch"
"""What is written where nobody says another layout."""
STATES = (*UNTIED, *TIED, "drop")
"""What can become of the state of optimizers."""


OF_NETWORKS = {
    "source": "--from", "spec": "--spec", "at": "--at", "ignore": "--ignore", "stack": "--stack",
    "rename": "--rename", "keep_names": "--keep-names", "keep_split": "--keep-split", "drop_kept": "--drop-kept",
}  # fmt: skip
"""{an option that says how networks are converted: its flag}"""


@frozen(kw_only=True)
class RelayoutOptions(ObjectOptions):
    """How networks are found and written."""

    source: str | None = None
    """The layout they are in, with options: `tf1.basic:forget_bias=0`.  None: what the file says, else torch."""
    target: str | None = None
    """The layout that is wanted, with options.  None: torch, or torch.cell for what was fused from cells."""
    as_is: bool = False
    """Leave the networks in the layout that they are in; `target` is None then."""
    described: bool = False
    """Where the file describes networks itself, only these are taken."""
    spec: str = ""
    """What the file does not say of the networks."""
    at: Sequence[str] = ()
    """Modules, or patterns that each match one; empty for every network that is found."""
    ignore: Sequence[str] = ()
    """Patterns of tensors that may stand beside a network without being a part of it; they stay as they are."""
    stack: Sequence[str] = ()
    """`enc0,enc1=enc` puts networks together as the layers of one, `enc=enc0,enc1` takes one apart."""
    rename: Mapping[str, str] | None = None
    """{module: its name in the output}."""
    keep_names: bool = False
    """Also record the old names, as windows on the new tensors."""
    keep_split: bool = False
    """Also write what the conversion would lose, so that the way back gives the same bytes."""
    drop_kept: bool = False
    """Do without what an earlier conversion kept."""
    layout_file: Sequence[Path] = ()
    """TOML files with layouts of one's own, and with rules for types."""
    dtype: str | Mapping[str, str] | Sequence[str] = ()
    """`float16` for every floating point tensor, and `PATTERN=DTYPE`, or {pattern: dtype}."""
    keep_float32: Sequence[str] = ()
    """Kinds of modules, or patterns, of tensors that are float32 in the output."""
    allow_overflow: bool = False
    """Casts may make finite numbers infinite."""
    dequantise: bool = False
    """Write the weights that FP8 codes and their scales stand for, in place of both."""
    into: Path | None = None
    """A model whose weights are replaced, and which stays as it is otherwise; None writes a file of its own."""
    map: Sequence[str] = ()
    """`A=B` puts network, layer or tensor A of the input into B of the model."""
    flatten: str = ""
    """How the source flattens images: `channels-first` or `channels-last`."""
    partial: bool = False
    """Whether what of the source the model has no place for is left, and what does not fit."""
    optimizer_names: Path | None = None
    """A file with the names of an optimizer's parameters, one for each of its entries."""
    optimizer_state: Sequence[str] = ()
    """What becomes of the state of optimizers: `copy`, `split`, `zero` or `one` of a parameter that becomes several,
    `first` or `second` of two that become one; `drop` leaves all of it out."""
    untie: Sequence[str] = ()
    """Names that become tensors of their own."""
    tie: Mapping[str, str] | None = None
    """{name: the other name whose tensor it becomes a name of}; their bytes have to be equal."""
    new_config: Path | None = None
    """The config.json of the model that opens the output folder; None keeps that of the input folder."""
    format: str | None = None
    """The format of an output folder: `safetensors` or `dcp`.  None: `dcp` where the input is such a folder."""

    def __post_init__(self) -> None:
        """UsageError for what says how networks are converted, where none is."""
        ObjectOptions.__post_init__(self)
        # UsageError for choices that there are not, and for ties that change beside layouts.
        if self.flatten not in ("", FIRST, LAST):
            raise UsageError(f"--flatten {self.flatten}: expected one of {FIRST}, {LAST}")
        for word in self.optimizer_state:
            if word not in STATES:
                raise UsageError(f"--optimizer-state {word}: expected one of {', '.join(STATES)}")
        untied, tied = self.state_choice
        for word, flag, asked in ((tied, "--tie", self.tie), (untied, "--untie", self.untie)):
            if word and self.as_is and not asked:
                raise UsageError(f"--optimizer-state {word} is about {flag}, which is not given")
        if (self.untie or self.tie) and (self.target or self.source or self.into is not None):
            raise UsageError(
                "--tie and --untie change which names are one tensor, and not the layout of tensors",
                hint="convert without --to and --into first, and then the output --to another layout",
            )
        given = [flag for name, flag in OF_NETWORKS.items() if getattr(self, name)]
        if self.as_is and given:
            raise UsageError(
                f"{given[0]} says how networks are converted, and no layout is given to convert them to",
                hint="--to torch writes that of PyTorch; `paramtool layouts` lists all",
            )

    @property
    def drops_state(self) -> bool:
        """Whether the state of optimizers is left out."""
        return "drop" in self.optimizer_state

    @property
    def state_choice(self) -> StateChoice:
        """What becomes of it where parameters part or join; the last word of each kind counts."""
        untied, tied = ([word for word in self.optimizer_state if word in kind] for kind in (UNTIED, TIED))
        return StateChoice(*(words[-1] if words else "" for words in (untied, tied)))
