"""Describing a checkpoint, and comparing what could be equal in it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from paramtool import formats
from paramtool.commands.progress import MIN_EQUAL_NBYTES, Path, Progress, silent
from paramtool.commands.seen_parts import seen_parts
from paramtool.errors import FormatError
from paramtool.formats import hf_config, policy
from paramtool.formats.config_names import with_config
from paramtool.formats.judging import judging
from paramtool.lazy_dataclass import frozen
from paramtool.model import alias, quantised
from paramtool.model.alias import AliasGraph
from paramtool.model.checkpoint import Checkpoint, Compound, Entries, Entry, Unknown, judged_files, pending
from paramtool.model.config import NONE, reading
from paramtool.model.display import Displayed
from paramtool.model.view import View

if TYPE_CHECKING:
    from paramtool.commands.config_ties import DeclaredTies
    from paramtool.commands.networks import NamedNetwork
    from paramtool.commands.optimizers import BoundFile
    from paramtool.commands.rules import Rule
    from paramtool.engine.read.finite import NotFinite
    from paramtool.formats.folder.below import Below
    from paramtool.model.config import Config
    from paramtool.model.finding import Finding
    from paramtool.model.match import Content, Equal
    from paramtool.passes.parts.groups import SeenParts
    from paramtool.passes.rnn.convert import FusedNetwork


def said_beside(folder: str, name: str) -> Mapping[str, object]:
    """What a JSON file says; nothing where it is not there, or damaged: it is a neighbour of what is looked at."""
    place = os.path.join(folder, name)
    if not os.path.isfile(place):
        return {}
    from paramtool.formats import strict_json

    try:
        found, _ = strict_json.strict_file(place, "settings", 1 << 20)
    except FormatError:
        return {}
    return found if isinstance(found, dict) else {}


def alias_graph(checkpoint: Checkpoint | Path, keep: str = "first") -> AliasGraph:
    """Which names share which bytes, by storage and by the file's own record; no tensor byte is read.

    A path is read first.
    `keep` says which of the names that share bytes owns them: `first` or `last` in file order, or an fnmatch pattern
    such as `*embed*`, of which the first match counts.
    """
    return alias.build(checkpoint if isinstance(checkpoint, Checkpoint) else formats.read(checkpoint), keep)


RECURRENT = "weight_hh_l0"
"""Each of PyTorch's recurrent networks has a tensor whose name ends so."""


MAX_PICTURED = 20_000
"""Tensors of a checkpoint that a notebook draws."""


@frozen(repr=False)
class Inspection(Displayed):
    """What `inspect` knows of a checkpoint."""

    path: str
    """The checkpoint, as it was given."""
    checkpoint: Checkpoint
    """The checkpoint, described."""
    graph: AliasGraph
    """Which names share which bytes."""
    content: Content | None = None
    """What comparing found; None where content was not looked at."""
    digests: Mapping[str, str] | None = None
    """{name: blake3}, where asked for."""

    fused: Mapping[int, FusedNetwork] = field(default_factory=dict)
    """{storage: the recurrent network whose cuDNN buffer it is}."""
    config: DeclaredTies | None = None
    """What a config declares of ties, where one was asked for."""
    below: Below | None = None
    """What the pickles of the files below a folder ask for; None of a file."""
    allow_class: tuple[str, ...] = ()
    """The names and patterns that were allowed."""

    weights: str | None = None
    """The file that was asked for of a folder with several sets of weights."""
    section: str | None = None
    """The section that was asked for: `checkpoint` holds it alone, without its prefix, and `unknown` of the whole."""
    settings: Config | None = None
    """The config that was asked for."""
    findings: tuple[Finding, ...] = ()
    """What the rules of `fail_on` found, in their order."""
    assumed: tuple[str, ...] = ()
    """What the file itself does not show, of rules that found nothing."""
    networks: tuple[NamedNetwork, ...] = ()
    """The recurrent networks that the file describes, or that its names and shapes show."""
    parts: SeenParts | None = None
    """The groups of attention, gated MLPs and experts; None where there are none."""
    quantised: Mapping[str, int | None] = field(default_factory=dict)
    """{name: elements of the weight whose codes it has, 0 if it belongs to codes, None where nothing shows them}."""
    numbers: Callable[[], Mapping[View, NotFinite]] = field(default=dict, repr=False, compare=False)
    """What is not finite, where a command reads the numbers anyway."""
    optimizers: tuple[BoundFile, ...] | None = None
    """The optimizers of each file that has one, and which parameters their entries belong to; None where that was not
    asked for."""

    _facts = "`findings` and `unsafe`"
    _members = (
        "path format=checkpoint.format producer=checkpoint.producer+ unsafe(path) findings(rule message) "
        "tensors=checkpoint.entries.__len__ distinct parameters nbytes=checkpoint.nbytes unused_nbytes "
        "duplicate_nbytes? groups=graph.shared_groups networks+(at layout spec) sections=checkpoint.sections+(name)"
    )

    @property
    def unsafe(self) -> tuple[Unknown, ...]:
        """What the pickles of the checkpoint, and of other files of a folder, ask for and nobody has allowed."""
        beside = (one for asked in self.unsafe_sidecars.values() for one in asked)
        return policy.merged((*self.own_unsafe, *beside))

    @property
    def own_unsafe(self) -> tuple[Unknown, ...]:
        """The same of the checkpoint's own pickles."""
        return policy.unsafe(self.checkpoint.unknown, self.allow_class)

    @property
    def sidecars(self) -> Mapping[str, tuple[Unknown, ...]]:
        """What the pickles of the other files of a folder ask for: {path in the folder: unknown names}."""
        if self.below is None:
            return {}
        own, below = judged_files(self.checkpoint), self.below.asked()
        return {os.path.relpath(one, self.path): asked for one, asked in below.items() if one not in own}

    @property
    def unsafe_sidecars(self) -> Mapping[str, tuple[Unknown, ...]]:
        """The same of the other files of a folder."""
        judged = {name: policy.unsafe(found, self.allow_class) for name, found in self.sidecars.items()}
        return {name: found for name, found in judged.items() if found}

    def refuse(self, *, beside: bool = True) -> None:
        """UnsafeError where something is unsafe: for programs that look first, and then go no further.

        Of a folder that is any file below it; without `beside` only those that hold weights.
        """
        found = ((os.path.join(self.path, name), asked) for name, asked in self.sidecars.items())
        files = self.below.files if self.below else {}
        if self.below:
            self.below.refuse_defects()
        judged = [(path, asked) for path, asked in found if beside or files[path].weights]
        policy.refuse(
            [(self.checkpoint.path, self.checkpoint.unknown), *judged], self.allow_class,
            refused=self.below.refused if self.below else (), is_listed=beside,
        )  # fmt: skip

    @property
    def equal(self) -> tuple[Equal, ...] | None:
        """Classes of equal windows; None where content was not looked at."""
        return None if self.content is None else self.content.equal

    @property
    def distinct(self) -> int:
        """Tensors without those that repeat another's bytes or are calculated; one of several parts counts once."""
        entries, derived = self.checkpoint.entries, self.graph.derived
        own, others = 0, set()
        for name, entry in entries.items():
            identity = _identity(name, entry, self.graph)
            if identity != name:
                others.add(identity)
            elif name not in derived:
                own += 1
        return own + sum(not (isinstance(one, str) and (one in entries or one in derived)) for one in others)

    @property
    def parameters(self) -> int:
        """Elements of the tensors that can be parameters, of quantised weights before they were packed.

        What several names share counts once; scales do not count, nor weights of which nothing shows how many they are.
        """
        entries, members, owners = self.checkpoint.entries, self.graph.names, self.graph.owners
        own, others, weights = 0, set(), self.quantised
        for name, entry in entries.items():
            if name in weights:
                owner = members[name].owner if name in members else name
                own += (weights[name] or 0) if owner == name or owner not in entries else 0
                continue
            if parameter(name, entry) is None:
                continue
            owner = members[name if name in members else f"{name}/data"].owner
            if owner.removesuffix("/data") == name or owner == name:
                own += owners[owner].numel
            else:
                others.add(owner)
        return own + sum(owners[owner].numel for owner in others if not _counts(owner, entries))

    @property
    def refused(self) -> frozenset[str]:
        """Tensors that dedup cannot write to safetensors."""
        from paramtool.formats.safetensors import CODE_OF
        from paramtool.passes.compat.wanted import plain_window

        windows = ((name, plain_window(entry.value)) for name, entry in self.checkpoint.entries.items())
        return frozenset(name for name, view in windows if view is None or view.dtype.name not in CODE_OF)

    @property
    def unused_nbytes(self) -> int:
        """Bytes of storages that no tensor looks at."""
        return sum(self.graph.unused.values())

    @property
    def duplicate_nbytes(self) -> int | None:
        """Bytes that are stored more than once; None where content was not looked at."""
        if self.content is None:
            return None
        members = self.graph.names
        equal = sum(
            (len({members[n].window for n in found.names}) - 1) * members[found.names[0]].window.nbytes
            for found in self.content.equal
        )
        return equal + sum(members[m.name].window.nbytes for m in self.content.matches if m.relation != "cast")

    def _picture(self) -> str:
        """Where the bytes are, module by module; nothing of very many tensors, which would take seconds."""
        if not 0 < len(self.checkpoint.entries) <= MAX_PICTURED:
            return ""
        from paramtool.commands.report.modules import separator_of, stored, tree
        from paramtool.drawing.notebook import small_treemap

        root = tree(stored(self), separator_of(self.checkpoint.entries))
        return small_treemap(root, f"bytes by module: {root.words}")


def _identity(name: str, entry: Entry, graph: AliasGraph) -> object:
    """What an entry has in common with its aliases: the owner of its window, or the owners of all its parts."""
    if isinstance(entry.value, Compound):
        parts = tuple((part, graph.names[f"{name}/{part}"].window) for part in entry.value.parts)
        return (entry.value.kind, parts) if parts else name
    return graph.names[name].owner if name in graph.names else name


def _counts(owner: str, entries: Entries) -> bool:
    """Whether an owner is itself a tensor, or the data of one, that can be a parameter."""
    names = (name for name in (owner, owner.removesuffix("/data")) if name in entries)
    return any(parameter(name, entries[name]) is not None for name in names)


def parameter(name: str, entry: Entry) -> View | None:
    """The window of a tensor that can be a parameter; None of what is none.

    Parameters that are trained are floats or complex (torch/nn/parameter.py); integers are counted where they are
    called `weight`, as those of quantised layers are.  Masks are no parameters, whatever their type.
    """
    waiting = pending(entry.value)
    view = waiting[1] if waiting else entry.value
    if entry.role != "model" or not isinstance(view, View):
        return None
    last = name.rsplit(".", 1)[-1]
    is_number = view.dtype.is_inexact or last == "weight"
    return view if is_number and not _is_mask(last, view) else None


def _is_mask(last: str, view: View) -> bool:
    """Whether a tensor is a mask: by its type, by its name, or the lower triangle of GPT-2 and its kin.

    That one is a buffer `bias` of shape (1, 1, n, n): modeling_gpt2.py of transformers 4, model.py of nanoGPT.
    """
    if view.dtype.name == "bool" or last == "mask" or last.endswith("_mask"):
        return True
    return last == "bias" and len(view.shape) == 4 and view.shape[:2] == (1, 1) and view.shape[2] == view.shape[3] > 1


@reading
@judging("path")
def inspect(
    path: Path,
    *,
    digest: bool = False,
    equal: bool = False,
    min_equal_bytes: int = MIN_EQUAL_NBYTES,
    config: Path | None = None,
    weights: str | None = None,
    only: str | None = None,
    optimizer: bool = False,
    optimizer_names: Path | None = None,
    fail_on: Sequence[str] = (),
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    max_inflated: int | None = None,
    progress: Progress = silent,
) -> Inspection:
    """Describe a checkpoint.  Tensor bytes are read only for `digest`, `equal` and some rules, and for a `config`.

    `config` is the path of a model's config.json, or empty for the one beside the checkpoint: the ties that it declares
    are compared with those of the file.  `none` ignores the one beside it.  `weights` is the
    file that is taken of a folder with several sets of weights.  `only` describes one section of a training checkpoint,
    its prefix stripped from every name; UsageError where there is none of that name.  What the pickles of the file call
    counts as a whole.

    `optimizer` binds the state of optimizers to the parameters: of the checkpoint, and of the files of a folder that
    hold an optimizer alone.  `optimizer_names` is a file with the names of the parameters, one for each entry; it
    settles what is ambiguous.  Defects where the state contradicts itself; `Binding.defects` says what contradicts the
    model.

    `fail_on` are rules such as `untied:lm_head.weight=wte.weight` or `unused-bytes>1MB` (docs/rules.md); what they find
    is in `Inspection.findings`.  Those that need a config or compare tensors do what `config=""` and
    `min_equal_bytes=1` do.  UsageError where one is not a rule.

    This is how one looks at an unsafe file: it is described all the same, `Inspection.unsafe` says why it is unsafe,
    and `Inspection.refuse` raises.  UnsafeError where it is unsafe and cannot be described; `allow_unknown` is for
    such files alone.
    """
    rules = _rules(fail_on)
    is_compared = config not in (None, NONE) or any(rule.kind.needs_config for rule in rules)
    if any(rule.kind.needs_content for rule in rules):
        equal, min_equal_bytes = True, 1
    allowed = policy.checked(allow_class)
    opened = formats.describe(path, weights, allow_class=allowed, allow_unknown=allow_unknown)
    whole = opened.checkpoint
    checkpoint = whole if only is None else _section(whole, only)
    graph = alias.build(checkpoint)
    settings = hf_config.read(hf_config.place(os.fspath(path))) if is_compared else None
    found = Inspection(
        os.fspath(path), checkpoint, graph, fused=_fused(checkpoint, graph),
        config=None if settings is None else _declared(settings, checkpoint, graph, progress),
        below=opened.below, allow_class=allowed, weights=weights, section=only, settings=settings,
        networks=_networks(checkpoint), parts=seen_parts(checkpoint), quantised=_quantised(checkpoint),
        optimizers=_optimizers(
            path, whole, optimizer_names, allow_class=allowed, allow_unknown=allow_unknown
        ) if optimizer or optimizer_names is not None else None,
    )  # fmt: skip
    if digest or equal:
        found = _compared(found, digest, min_equal_bytes, progress)
    return _judged(found, rules) if rules else found


def _optimizers(
    path: Path, whole: Checkpoint, names: Path | None, *, allow_class: Sequence[str], allow_unknown: bool,
) -> tuple[BoundFile, ...]:  # fmt: skip
    """The bindings of all optimizers; what makes them is imported where they are asked for."""
    from paramtool.commands.opening import Allowed
    from paramtool.commands.optimizers import bound_files

    return bound_files(path, whole, names=names, allowing=Allowed(allow_class, allow_unknown))


def _rules(texts: Sequence[str]) -> list[Rule]:
    if not texts:
        return []
    from paramtool.commands import rules

    return [rules.parse(text) for text in texts]


def _judged(found: Inspection, rules: Sequence[Rule]) -> Inspection:
    findings = tuple(finding for rule in rules for finding in rule.findings(found))
    return replace(found, findings=findings, assumed=tuple(text for rule in rules for text in rule.assumptions(found)))


def _compared(found: Inspection, digest: bool, min_equal_bytes: int, progress: Progress) -> Inspection:
    """The same with what comparing found, and with a digest of each tensor."""
    from paramtool.commands import _value_facts
    from paramtool.commands.compare import Looking, compare
    from paramtool.engine.compare import changes
    from paramtool.engine.read.source import Source
    from paramtool.lockfile.digests import blake3_of

    checkpoint = found.checkpoint
    content = compare(checkpoint, found.graph, Looking(min_equal_bytes), progress)
    made: dict[str, str] = {}
    if digest:
        windows = dict(checkpoint.windows())
        with (
            Source(checkpoint) as source,
            progress("digest", sum(v.nbytes for v in windows.values())) as advance,
        ):
            known: dict[View, str] = {}
            for name, view in windows.items():
                if view not in known:
                    known[view] = changes.digest(source, view, advance)
                made[name] = known[view]
        for facts in (_value_facts.known(checkpoint), _value_facts.of_file(checkpoint)):
            for name, said in facts.items():
                key = name.removesuffix(_value_facts.HEADER)
                made[key if key not in made else name] = blake3_of(_value_facts.text(said))
    return replace(found, content=content, digests=made if digest else None)


def _section(whole: Checkpoint, name: str) -> Checkpoint:
    """One section alone; its file is as safe as all of its pickles."""
    from paramtool.passes import select

    return with_config(replace(select.section(whole, name), unknown=whole.unknown))[0]


def _declared(settings: Config, checkpoint: Checkpoint, graph: AliasGraph, progress: Progress) -> DeclaredTies:
    """The table of a config's ties."""
    from paramtool.commands import config_ties

    return config_ties.declared_ties(settings, checkpoint, graph, progress)


def _quantised(checkpoint: Checkpoint) -> Mapping[str, int | None]:
    """Quantised weights, with the bits of a code that the config beside them says."""
    found = quantised.elements(checkpoint.entries, 0, checkpoint.metadata)
    path = hf_config.beside(checkpoint.path) if None in found.values() else ""
    if not path:
        return found
    from paramtool.parts.schemes import packing_of

    try:
        bits = packing_of(hf_config.whole(path), 0).bits
    except FormatError:  # a note says so
        return found
    return quantised.elements(checkpoint.entries, bits, checkpoint.metadata)


def _networks(checkpoint: Checkpoint) -> tuple[NamedNetwork, ...]:
    """The recurrent networks of a checkpoint; what finds them is imported where a name could be one's."""
    if not checkpoint.modules and not any(_RECURRENT.search(name) for name in checkpoint.entries):
        return ()
    from paramtool.commands.networks import networks

    return networks(checkpoint)


_RECURRENT = re.compile(r"weight_hh|rnn|lstm|gru|recurrent|h2h", re.IGNORECASE)


def _fused(checkpoint: Checkpoint, graph: AliasGraph) -> Mapping[int, FusedNetwork]:
    """Fused blocks that are a recurrent network's buffer; layouts are only imported where names could be one's."""
    if not any(name.endswith(RECURRENT) for block in graph.fused for name, _, _ in block.parts):
        return {}
    from paramtool.passes.rnn.convert import fused_networks

    return fused_networks(checkpoint, graph)
