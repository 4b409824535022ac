"""For editors and type checkers; `python -m tests.library.stub` writes it."""

import os
from collections.abc import Collection, Mapping, Sequence

from paramtool import errors as errors
from paramtool import torch as torch
from paramtool.commands.progress import Path, Progress, silent
from paramtool.passes.renaming import RenamingRule
from paramtool.commands.check.check import check as check
from paramtool.commands.check.report import Checked as Checked
from paramtool.commands.check.report import CheckedFile as CheckedFile
from paramtool.commands.dedup import DedupOptions as DedupOptions
from paramtool.commands.dedup import Deduped as Deduped
from paramtool.commands.dedup_many import Family as Family
from paramtool.commands.dedup_many import FamilyMember as FamilyMember
from paramtool.commands.dedup_many import Shard as Shard
from paramtool.commands.diff.diff import Diffed as Diffed
from paramtool.commands.diff.diff import diff as diff
from paramtool.commands.diff.find_base import BaseFound as BaseFound
from paramtool.commands.diff.find_base import find_base as find_base
from paramtool.commands.export import ExportOptions as ExportOptions
from paramtool.commands.export import Exported as Exported
from paramtool.commands.guess import Considered as Considered
from paramtool.commands.guess import Guessed as Guessed
from paramtool.commands.guess import guess as guess
from paramtool.commands.inspect import Inspection as Inspection
from paramtool.commands.inspect import alias_graph as alias_graph
from paramtool.commands.inspect import inspect as inspect
from paramtool.commands.load import load_file as load_file
from paramtool.commands.lock import Locked as Locked
from paramtool.commands.lock import lock as lock
from paramtool.commands.opening import Each as Each
from paramtool.commands.relayout_options import RelayoutOptions as RelayoutOptions
from paramtool.commands.relayouted import Relayouted as Relayouted
from paramtool.commands.report.write import PageReport as PageReport
from paramtool.commands.report.write import report as report
from paramtool.commands.variants import Variant as Variant
from paramtool.commands.variants import variants as variants
from paramtool.commands.verify import Verified as Verified
from paramtool.commands.verify import verify as verify
from paramtool.commands.verify import verify_each as verify_each
from paramtool.errors import Defects as Defects
from paramtool.errors import FormatError as FormatError
from paramtool.errors import LayoutError as LayoutError
from paramtool.errors import LockError as LockError
from paramtool.errors import MissingFileError as MissingFileError
from paramtool.errors import ModelError as ModelError
from paramtool.errors import NoSuchFileError as NoSuchFileError
from paramtool.errors import OutputError as OutputError
from paramtool.errors import ParamtoolError as ParamtoolError
from paramtool.errors import PlanError as PlanError
from paramtool.errors import TieError as TieError
from paramtool.errors import UnknownSizesError as UnknownSizesError
from paramtool.errors import UnreadableError as UnreadableError
from paramtool.errors import UnsafeError as UnsafeError
from paramtool.errors import UsageError as UsageError
from paramtool.formats import read as read
from paramtool.guessing.candidates import Guess as Guess
from paramtool.layouts.layout import Form as Form
from paramtool.layouts.layout import Layout as Layout
from paramtool.layouts.layout import TensorRule as TensorRule
from paramtool.layouts.own import register_layout as register_layout
from paramtool.model.alias import Alias as Alias
from paramtool.model.alias import AliasGraph as AliasGraph
from paramtool.model.checkpoint import Checkpoint as Checkpoint
from paramtool.model.checkpoint import Entry as Entry
from paramtool.model.finding import Finding as Finding
from paramtool.model.plan import Plan as Plan
from paramtool.model.view import View as View
from paramtool.passes.rnn.convert import Converted as Converted

__version__: str
__all__ = ['Alias', 'AliasGraph', 'BaseFound', 'Checked', 'CheckedFile', 'Checkpoint', 'Considered', 'Converted', 'DedupOptions', 'Deduped', 'Defects', 'Diffed', 'Each', 'Entry', 'ExportOptions', 'Exported', 'Family', 'FamilyMember', 'Finding', 'Form', 'FormatError', 'Guess', 'Guessed', 'Inspection', 'Layout', 'LayoutError', 'LockError', 'Locked', 'MissingFileError', 'ModelError', 'NoSuchFileError', 'OutputError', 'PageReport', 'ParamtoolError', 'Plan', 'PlanError', 'RelayoutOptions', 'Relayouted', 'Shard', 'TensorRule', 'TieError', 'UnknownSizesError', 'UnreadableError', 'UnsafeError', 'UsageError', 'Variant', 'Verified', 'View', '__version__', 'alias_graph', 'check', 'convert', 'dedup', 'dedup_each', 'dedup_family', 'diff', 'export', 'export_each', 'find_base', 'fuse', 'guess', 'inspect', 'load_file', 'lock', 'read', 'register_layout', 'report', 'unfuse', 'variants', 'verify', 'verify_each']

def convert(
    path: Path,
    output: Path | None = None,
    *,
    weights: str | None = None,
    only: str | None = None,
    max_shard_size: int | None = None,
    align: int = 8,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    skip_unsupported: bool = False,
    plain: bool = False,
    strict: bool = False,
    source: str | None = None,
    target: str | None = None,
    spec: str = '',
    at: Sequence[str] = (),
    ignore: Sequence[str] = (),
    stack: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    keep_names: bool = False,
    keep_split: bool = False,
    drop_kept: bool = False,
    layout_file: Sequence[Path] = (),
    dtype: str | Mapping[str, str] | Sequence[str] = (),
    keep_float32: Sequence[str] = (),
    allow_overflow: bool = False,
    dequantise: bool = False,
    into: Path | None = None,
    map: Sequence[str] = (),
    flatten: str = '',
    partial: bool = False,
    optimizer_names: Path | None = None,
    optimizer_state: Sequence[str] = (),
    untie: Sequence[str] = (),
    tie: Mapping[str, str] | None = None,
    new_config: Path | None = None,
    format: str | None = None,
    progress: Progress = silent,
) -> Relayouted:
    """Write a checkpoint in another format, its networks in another layout, a model in another dialect, other types.

    The suffix of `output` says the format; a dialect takes a folder with config.json and writes a folder.  Everything
    else stays as it is.  Without `target` the networks stay in the layout that they are in, unless the format has one
    layout only, as ONNX has.

        convert("lstm.params", "lstm.safetensors", source="mxnet", target="torch")
        convert("mixtral", "mixtral-vllm", target="vllm")
        convert("resnet.pt", "resnet16.safetensors", dtype="float16", keep_float32=["batchnorm"])

    The keywords:

    - `source`: the layout they are in (`--from`), with options after a colon: `tf1.basic:forget_bias=0`; without it
      what the file says, else torch
    - `target`: the layout or the dialect to write (`--to`), as `paramtool layouts` lists them
    - `spec`: what the file does not say of the networks: `lstm layers=2 hidden=128 input=18`
    - `at`: modules, patterns that match one, or flat tensors; without it all networks
    - `ignore`: patterns of tensors beside a network that it is converted without
    - `stack`: `enc0,enc1=enc` puts networks together as the layers of one; `enc=enc0,enc1` takes one apart
    - `rename`: {module: its name in the output}
    - `keep_names`: also record the old names, as views of the new tensors
    - `keep_split`: also write what the conversion loses, so that the way back gives the same bytes
    - `drop_kept`: leave out what an earlier conversion kept
    - `layout_file`: TOML files with layouts of your own, and with rules for types
    - `dtype`: the type of every floating point tensor, as in `"float16"`; or rules, as in `{"head.*": "float32"}` or
      `["float16", "head.*=float32"]`, of which the last that matches counts
    - `keep_float32`: kinds of modules (batchnorm, norm, scales, counters) or patterns of tensors that stay float32
    - `allow_overflow`: casts may make finite numbers infinite
    - `dequantise`: write the weights that FP8 codes and their scales stand for, in the scales' type, or in `dtype`
    - `into`: a model file of Keras or ONNX: the output is this model with its weights replaced, its networks in its
      layout; everything else of it stays byte for byte
    - `map`: `A=B` puts network, layer or tensor A of the input into B of the model; `A,B=C` and `A=B,C` join and split
      layers; `A=B:transpose` and `A=B:as-is` say the order of a matrix' axes
    - `flatten`: where the source has the channels of images that it flattens: `channels-first`, `channels-last`
    - `partial`: leave what the model has no place for, or in another shape
    - `format`: the format of an output folder: `safetensors`, or `dcp` (torch.distributed.checkpoint); without it `dcp`
      if the input is such a folder, else `safetensors`
    - `optimizer_names`: a file with the names of an optimizer's parameters, one for each of its entries
    - `untie`, `tie`: names that become tensors of their own; {name: the equal tensor that it becomes a name of}
    - `optimizer_state`: what becomes of the state of optimizers: `copy`, `split`, `zero` or `one` where a parameter
      becomes several, `first` or `second` where two become one; `drop` leaves it out
    - `new_config`: the config.json of the model that opens the output folder: it is copied there, and the entries of an
      optimizer beside the weights get the order of its parameters

    With `into`, `strict` refuses to leave a weight of the model as it was.  All others are those of `dedup`.
    LayoutError where a network is not found, does not fit, or its bytes break what the conversion requires; nothing is
    written then.
    """

def dedup(
    path: Path,
    output: Path | None = None,
    options: DedupOptions | None = None,
    *,
    weights: str | None = None,
    only: str | None = None,
    max_shard_size: int | None = None,
    align: int = 8,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    skip_unsupported: bool = False,
    plain: bool = False,
    strict: bool = False,
    keep: str = 'first',
    ties: Mapping[str, str] | None = None,
    equal: bool = True,
    min_equal_bytes: int = 4096,
    across_roles: bool = False,
    derive_casts: bool = False,
    fold_constants: bool = False,
    share_renamed: bool = False,
    memory: int = 536870912,
    format: str | None = None,
    progress: Progress = silent,
) -> Deduped:
    """Write a checkpoint with every byte once and every name recorded.

    `output` is a file (`.safetensors`, or `.pt` and others for torch.save's format) or a folder; without it,
    `STEM.dedup.safetensors` beside the input.  The keywords, or `options` in their place:

    - `keep`: which name owns what several share: `first`, `last`, or a pattern such as `*embed*`
    - `ties`: {name: the first of the names that are one tensor}; names that the file lacks are recorded too, as those
      are that the config.json beside it ties
    - `config`: another config.json, or a folder with one; `none` for none
    - `equal`: compare the bytes of tensors with different names
    - `min_equal_bytes`: the size in bytes of the smallest tensors that are compared
    - `across_roles`: let model weights, optimizer state, EMA copies and buffers share equal bytes
    - `derive_casts`: leave out tensors that a cast of another gives; loading calculates them
    - `fold_constants`: store a tensor that repeats one value as that value
    - `share_renamed`: of a folder: share equal bytes under different names; other programs then miss these names
    - `memory`: how many bytes comparing may hold in memory
    - `format`: the format of an output folder: `safetensors`, or `dcp` (torch.distributed.checkpoint); without it `dcp`
      if the input is such a folder, else `safetensors`
    - `skip_unsupported`: leave out tensors and objects that the output has no form for
    - `plain`: in a torch file, write objects as dicts, lists, numbers and strings
    - `strict`: raise where objects would be left out
    - `weights`, `only`: of a folder, the file of weights; of a training checkpoint, the section
    - `max_shard_size`: write a folder of shards of at most this many bytes
    - `align`: begin tensor data at a multiple of this many bytes
    - `allow_class`, `allow_unknown`, `max_inflated`: as of `read` and docs/security.md: what is allowed of unsafe files
    - `verify`: read the output back before it is moved to its place
    - `dry_run`: report what would be written
    - `force`: overwrite an earlier output
    - `progress`: called with a label and a number of bytes; gives a context that yields a function of bytes

    FormatError, UnsafeError, PlanError, UsageError or OutputError where it is not possible; nothing is left then.
    """

def dedup_each(
    path: Path,
    output: Path | None = None,
    options: DedupOptions | None = None,
    *,
    only: str | None = None,
    max_shard_size: int | None = None,
    align: int = 8,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    skip_unsupported: bool = False,
    plain: bool = False,
    strict: bool = False,
    keep: str = 'first',
    equal: bool = True,
    min_equal_bytes: int = 4096,
    across_roles: bool = False,
    derive_casts: bool = False,
    fold_constants: bool = False,
    share_renamed: bool = False,
    memory: int = 536870912,
    progress: Progress = silent,
) -> Each[Deduped]:
    """`dedup` of every set of weights of a folder and of those inside, into one folder that is built alike.

    So are both sets of a folder with `model.safetensors` and `model.fp16.safetensors`, and all parts of a pipeline of
    diffusers.  All other files are copied.  The keywords are those of `dedup`, without `weights` and `ties`.
    Errors as of `dedup`; nothing is written where one set is refused.
    """

def dedup_family(
    paths: Sequence[Path],
    output: Path,
    options: DedupOptions | None = None,
    *,
    weights: str | None = None,
    only: str | None = None,
    max_shard_size: int | None = None,
    align: int = 8,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    skip_unsupported: bool = False,
    plain: bool = False,
    strict: bool = False,
    keep: str = 'first',
    equal: bool = True,
    min_equal_bytes: int = 4096,
    across_roles: bool = False,
    derive_casts: bool = False,
    fold_constants: bool = False,
    share_renamed: bool = False,
    memory: int = 536870912,
    progress: Progress = silent,
) -> Family:
    """Write several checkpoints into `output`, a folder for each, with tensors that they have in common once.

    A folder is a sharded checkpoint of its own.  What several inputs hold under one name with one dtype, shape and the
    same bytes is in a shard that is hard-linked into the folder of each.  `share_renamed` shares equal bytes under
    different names as well, which only readers of the alias record find.  The other keywords are those of `dedup`;
    `equal` cannot be switched off here, and `derive_casts` and `fold_constants` are refused.
    FormatError, UnsafeError, UsageError, PlanError or OutputError where it is not possible; nothing is left then.
    """

def export(
    path: Path,
    output: Path | None = None,
    *,
    names: Collection[str] | os.PathLike[str] | None = None,
    like: Path | None = None,
    all_names: bool = False,
    options: ExportOptions | None = None,
    weights: str | None = None,
    only: str | None = None,
    max_shard_size: int | None = None,
    align: int = 8,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    like_only: str | None = None,
    prefix: str = '',
    rename: Sequence[str | RenamingRule] = (),
    ties: Mapping[str, str] | None = None,
    format: str | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write a plain file or folder with exactly the names that one variant wants, each stored for itself.

    Say the names with one of these:

    - `names`: a list; a mapping {name: shape or array}, whose shapes are checked; or the path (a Path) of a text file
      with one name a line
    - `like`: another checkpoint, whose names and shapes these are: of its section `like_only`, else of its one model
      section if it has optimizer or EMA sections, else all
    - `all_names`: every name of the input, with those that the config.json beside it ties

    Without any of these, `config` takes the names of its model, a file or a folder, with its ties; for an input that
    lacks these names, those that save_pretrained gives such a model.  Else every name is written.  `only` alone takes
    every name of that section.  `only` leaves files of the training behind; in a
    folder with a config.json, names are as its model wants them: of tied names the first is written, and one that is
    missing is an error.

    The other keywords, or `options` in their place:

    - `prefix`: take the names that begin with it, without it
    - `rename`: rules such as `*.gamma=*.weight`, applied in this order
    - `ties`: {wanted name: the first of the names that are one tensor}: one that the file lacks is written from another
    - `format`: the format of an output folder: `safetensors`, or `dcp` (torch.distributed.checkpoint)

    All others are those of `dedup`.  UsageError where a name is missing or a rule does not fit, PlanError where a
    tensor has no plain form or another shape; nothing is written then.
    """

def export_each(
    path: Path,
    output: Path | None = None,
    *,
    options: ExportOptions | None = None,
    only: str | None = None,
    max_shard_size: int | None = None,
    align: int = 8,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    prefix: str = '',
    rename: Sequence[str | RenamingRule] = (),
    progress: Progress = silent,
) -> Each[Exported]:
    """`export` of all names of every set of weights of a folder and of those inside, into one folder built alike.

    The keywords are those of `export`.
    """

def fuse(
    path: Path,
    output: Path | None = None,
    *,
    layout: str,
    weights: str | None = None,
    only: str | None = None,
    max_shard_size: int | None = None,
    align: int = 8,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    skip_unsupported: bool = False,
    plain: bool = False,
    strict: bool = False,
    source: str | None = None,
    spec: str = '',
    at: Sequence[str] = (),
    ignore: Sequence[str] = (),
    stack: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    keep_names: bool = False,
    keep_split: bool = False,
    drop_kept: bool = False,
    layout_file: Sequence[Path] = (),
    optimizer_names: Path | None = None,
    optimizer_state: Sequence[str] = (),
    new_config: Path | None = None,
    format: str | None = None,
    progress: Progress = silent,
) -> Relayouted:
    """Write recurrent networks, attention, gated MLPs or experts as fused tensors, in `layout`.

        fuse("model.pt", layout="cudnn")
        fuse("llama", "fused", layout="qkv")

    Without `output` it is `STEM.fused.safetensors` beside the input.  Sizes that no shape shows, such as the number of
    heads, come from config.json or `spec`.  The other keywords, and errors, are those of `convert`.
    """

def unfuse(
    path: Path,
    output: Path | None = None,
    *,
    layout: str | None = None,
    weights: str | None = None,
    only: str | None = None,
    max_shard_size: int | None = None,
    align: int = 8,
    allow_class: Sequence[str] = (),
    allow_unknown: bool = False,
    config: Path | None = None,
    max_inflated: int | None = None,
    verify: bool = True,
    dry_run: bool = False,
    force: bool = False,
    skip_unsupported: bool = False,
    plain: bool = False,
    strict: bool = False,
    target: str | None = None,
    spec: str = '',
    at: Sequence[str] = (),
    ignore: Sequence[str] = (),
    stack: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    keep_split: bool = False,
    drop_kept: bool = False,
    layout_file: Sequence[Path] = (),
    optimizer_names: Path | None = None,
    optimizer_state: Sequence[str] = (),
    new_config: Path | None = None,
    format: str | None = None,
    progress: Progress = silent,
) -> Relayouted:
    """Write fused recurrent networks, attention, gated MLPs and experts as separate named tensors.

        unfuse("flat.pt", layout="cudnn", at=["rnn.weights"], spec="lstm layers=2 hidden=128 input=18")

    `layout` is how they are fused; without it, what the file says.  `target` is the layout of recurrent networks in the
    output: torch, unless another is given.  Without `output` it is `STEM.unfused.safetensors` beside the input.  The
    other keywords, and errors, are those of `convert`.
    """
