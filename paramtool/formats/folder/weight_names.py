"""The names of weights in a folder: of files and indexes in an input, and in an output.

    STEM.safetensors                                             one file
    STEM-00001-of-00002.safetensors, STEM.safetensors.index.json shards and their index

An output keeps the stem of its input, because libraries find weights by name:

    model                    transformers: `SAFE_WEIGHTS_NAME` in utils/__init__.py (5.23)
    model_1, model_2         accelerate: the models after the first (`load_accelerator_state` in checkpointing.py, 1.15)
    diffusion_pytorch_model  diffusers: `SAFETENSORS_WEIGHTS_NAME` in utils/constants.py (0.42)
    adapter_model            PEFT: `SAFETENSORS_WEIGHTS_NAME` in utils/constants.py (0.21)
    pytorch_lora_weights     diffusers: `LORA_WEIGHT_NAME_SAFE` in loaders/lora_base.py (0.42)
    open_clip_model          open_clip: `HF_SAFE_WEIGHTS_NAME` in constants.py (3.3)
    consolidated             mistral-inference: `Transformer.from_folder` in transformer.py
    model-rank-0-part-0      vLLM's load format sharded_state; its shards are model-rank-0-part-1 and so on

A few libraries use another name for safetensors than for pickles; `SAFE_STEMS` lists these.

`from_pretrained(variant="fp16")` puts the variant before the last suffix: `model.fp16.safetensors`,
`model.fp16-00001-of-00002.safetensors` and `model.safetensors.index.fp16.json` (`_add_variant` in modeling_utils.py of
transformers and in utils/hub_utils.py of diffusers).  Older diffusers wrote `model.safetensors.fp16.index.json` and
`model-00001-of-00002.fp16.safetensors` (`_fetch_index_file_legacy` in models/model_loading_utils.py): these names are
read, but not written.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from paramtool.formats.folder.training_files import is_training_state
from paramtool.formats.table import SUFFIXES
from paramtool.lazy_dataclass import frozen
from paramtool.model.checkpoint import Checkpoint

if TYPE_CHECKING:
    from paramtool.formats.folder.below import Below

SAFE_STEMS = (
    (r"pytorch_model(_\d+)?", r"model\1"),  # WEIGHTS_NAME of transformers, MODEL_NAME of accelerate/utils/constants.py
    (r"open_clip_pytorch_model", r"open_clip_model"),  # HF_WEIGHTS_NAME of open_clip/constants.py
    (r"consolidated\.00", r"consolidated"),  # the other name that mistral-inference looks for
)
"""(the stem of a pickle, the stem that the same library looks for in safetensors)"""
SAFETENSORS = ".safetensors"
STEMS = ("model", "diffusion_pytorch_model", "adapter_model", "open_clip_model", "consolidated", "pytorch_lora_weights")
"""The stems above, the usual ones first."""
LINKED_PREFIX = "paramtool.linked-"
"""The prefix of files that hold tensors for a record in an index, and no weights under their own names."""
_RANK = re.compile(r"(model-rank-\d+-part-)\d+")
"""vLLM's sharded state: one tensor parallel rank, in parts that no index lists (`TP_ONLY_PATTERN` in
model_executor/model_loader/sharded_state_loader.py, 0.33)."""
_NUMBER = re.compile(r"-\d{5}-of-\d{5}(?=\.[^.]+$|$)")
_KNOWN = re.compile(rf"({'|'.join(STEMS)})(_\d+)?(\.(?P<variant>[^.]+))?|{_RANK.pattern}")
_MAX_STEM_NBYTES = 180
"""File systems allow 255 bytes for a name; the rest is for numbers and suffixes."""


@frozen
class WeightsName:
    """The names of the weights in an output folder.  The stem may begin with folders, separated by `/`."""

    stem: str = STEMS[0]
    variant: str = ""
    """The last part of the stem after a dot, if that is a variant: the index has it in another place."""
    suffix: str = SAFETENSORS
    """What it ends with; only safetensors can be shards."""
    beside: tuple[str, ...] = ()
    """Files that belong to it, where it is not alone."""

    @property
    def file(self) -> str:
        """The name of a single file."""
        return f"{self.stem}{self.suffix}"

    @property
    def has_shards(self) -> bool:
        """Whether the weights can be several files."""
        return self.suffix == SAFETENSORS

    @property
    def index(self) -> str:
        """The index of shards.

        >>> WeightsName("model").index, WeightsName("model.fp16", "fp16").index
        ('model.safetensors.index.json', 'model.safetensors.index.fp16.json')
        """
        if not self.variant:
            return f"{self.file}.index.json"
        return f"{self.stem.removesuffix(f'.{self.variant}')}.safetensors.index.{self.variant}.json"

    def shard(self, k: int, count: int) -> str:
        """Shard `k`, from 0, of `count`.

        >>> WeightsName("model.fp16", "fp16").shard(0, 2)
        'model.fp16-00001-of-00002.safetensors'
        >>> WeightsName("model-rank-0-part-0").shard(1, 2)
        'model-rank-0-part-1.safetensors'
        """
        if rank := _RANK.fullmatch(self.stem):
            return f"{rank[1]}{k}{self.suffix}"
        return f"{self.stem}-{k + 1:05d}-of-{count:05d}.safetensors"

    @property
    def is_usual(self) -> bool:
        """Whether a library looks for weights of this name."""
        return _KNOWN.fullmatch(self.stem) is not None

    @property
    def order(self) -> tuple[bool, int, str]:
        """The sort key: plain names before variants, the usual stems first."""
        base = self.stem.removesuffix(f".{self.variant}") if self.variant else self.stem
        return bool(self.variant), STEMS.index(base) if base in STEMS else len(STEMS), self.stem


DCP = WeightsName(stem="", suffix=".metadata", beside=("__0_0.distcp",))
"""A folder of torch.distributed.checkpoint of one rank: what is opened, and the file with its tensors."""
Pair = tuple[str, str]
"""The names of two tensors, in a set and in its copy, whose bytes must be the same if it is a copy."""


@frozen
class WeightsCopy:
    """A set of weights with the names, shapes, dtypes and first bytes of another, or another form of the model."""

    path: str
    checkpoint: Checkpoint
    pairs: tuple[Pair, ...]
    """Empty where no name is in common: it may be the same model for another framework."""


@frozen
class Weights:
    """One set of weights of a folder, or a file that was named itself."""

    path: str
    """Its file or index."""
    checkpoint: Checkpoint
    name: WeightsName
    """What an output folder calls it."""
    copies: tuple[WeightsCopy, ...] = ()
    """Other files of the folder that hold the same, as far as their first bytes say."""
    others: tuple[str, ...] = ()
    """Files of the folder's other sets, where this one was chosen: they stay out of an output."""
    more: tuple[str, ...] = ()
    """Files of the folder with names of weights that hold something else: they are copied to the output."""
    below: Below | None = None
    """What the pickles of all files below the folder ask for."""
    of_config: tuple[str, ...] = ()
    """Notes about the config beside it."""

    @property
    def told(self) -> tuple[str, ...]:
        """What people are told of the other files of the folder."""
        return (*(self.below.told if self.below else ()), *self.of_config)

    @property
    def twins(self) -> tuple[str, ...]:
        """The files of copies that have tensors in common with this set."""
        return tuple(file.path for copy in self.copies if copy.pairs for file in copy.checkpoint.files)

    @property
    def other_tensors(self) -> tuple[str, ...]:
        """Those of `more` that are no state of a training by their names."""
        return tuple(path for path in self.more if not is_training_state(os.path.basename(path)))

    @property
    def forms(self) -> tuple[str, ...]:
        """The names of files that have the model for another framework by their names: nothing of them is compared."""
        return tuple(os.path.basename(copy.path) for copy in self.copies if not copy.pairs)


def of_file(path: str) -> WeightsName:
    """The names of an output whose input is the weights file or the index at `path`.

    >>> [of_file(n).file for n in ("pytorch_model.bin", "adapter_model.bin", "pytorch_model.fp16.bin")]
    ['model.safetensors', 'adapter_model.safetensors', 'model.fp16.safetensors']
    >>> of_file("diffusion_pytorch_model.bin.index.fp16.json").variant
    'fp16'
    """
    name = os.path.basename(path)
    base, variant = index_parts(name) or (name, "")
    plain, suffix = os.path.splitext(base)
    stem = _NUMBER.sub("", plain) + (f".{variant}" if variant else "")
    if suffix != ".safetensors":
        for old, new in SAFE_STEMS:
            if found := re.fullmatch(rf"{old}(\.[^.]+)?", stem):
                stem = found.expand(new) + (found[found.re.groups] or "")
                break
    if not variant and (known := _KNOWN.fullmatch(stem)):
        variant = known["variant"] or ""
    return WeightsName(stem, variant) if _is_usable(stem) else WeightsName()


def index_parts(name: str) -> tuple[str, str] | None:
    """The file name that an index is named for, and its variant; None where no index is called so.

    >>> index_parts("model.safetensors.index.json"), index_parts("model.safetensors.index.fp16.json")
    (('model.safetensors', ''), ('model.safetensors', 'fp16'))
    >>> index_parts("model.safetensors.fp16.index.json"), index_parts("config.json"), index_parts("a.index.b.json")
    (('model.safetensors', 'fp16'), None, None)
    """
    if not name.endswith(".json"):
        return None
    head, _, variant = name.removesuffix(".json").rpartition(".index")
    if not head or (variant and not variant.startswith(".")):
        return None
    plain, last = os.path.splitext(head)
    if variant:
        return (head, variant[1:]) if last in SUFFIXES and "." not in variant[1:] else None
    if last and last not in SUFFIXES and os.path.splitext(plain)[1] in SUFFIXES:
        return plain, last[1:]
    return head, ""


def is_index_name(path: str) -> bool:
    """Whether the name of a file says that it is an index."""
    return index_parts(os.path.basename(path)) is not None


def is_index(head: bytes, path: str) -> bool:
    """Whether a file is the index of a sharded checkpoint: JSON with a weight_map, or with the name of an index."""
    return head.lstrip()[:1] == b"{" and (b'"weight_map"' in head or is_index_name(path))


def _is_usable(stem: str) -> bool:
    """Whether output files can have this stem on every system, and in the JSON of an index."""
    try:
        nbytes = len(stem.encode())
    except UnicodeEncodeError:
        return False
    return 0 < nbytes <= _MAX_STEM_NBYTES and stem[0] != "." and not any(c in "/\\:" or ord(c) < 32 for c in stem)
