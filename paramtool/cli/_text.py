"""Numbers and names as people read them.  Escapes in names are shown, not obeyed."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence

import click

from paramtool.cli._paths import Path
from paramtool.cli._streams import quoted as quoted
from paramtool.cli._streams import shown as shown
from paramtool.commands.sizes import parse_size as parse_size
from paramtool.commands.sizes import size as size
from paramtool.errors import plural as plural

_FOLDER = "a folder becomes a folder"
OUTPUT = f"The suffix is the format: .safetensors, .h5, or .pt, .pth, .bin, .ckpt of torch; {_FOLDER}."
"""What `dedup` says of its output."""
OUTPUT_ANY = f"The suffix is the format: .safetensors, .pt, .npz, .params, .msgpack, .h5, .onnx; {_FOLDER}."
"""What the commands say whose output need not store shared tensors once."""
BESIDE = "; of a file in a model's folder, beside that folder"
NEXT = "next"
"""The row with the command that comes next."""
MANY = 8
"""How many files a row names."""


def count(number: int) -> str:
    """A count with three digits: 124 M."""
    return size(number).removesuffix("B").rstrip()


def named(name: str) -> str:
    """A tensor's name as a report shows it: an empty one would not be seen.

    >>> print(named("w"), named(""))
    w ''
    """
    return name or "''"


def evidence_in_short(evidence: Sequence[str]) -> str:
    """The strongest evidence for a layout in one word or two; all of it is long.

    >>> evidence_in_short(["oracle: torch", "asked: cuDNN 9.1, without a GPU", "not verified on a GPU"])
    'asked cuDNN'
    """
    for begin, words in EVIDENCE.items():
        if any(one.startswith(begin) for one in evidence):
            return words
    return evidence[0].partition(":")[0] if evidence else ""


EVIDENCE = {"verified on ": "verified on GPU", "asked: cuDNN": "asked cuDNN", "oracle": "oracle"}
"""{how evidence begins: the same in short}, the strongest first."""


def load_line(path: str, names: Collection[str], only: str = "", *, is_plain: bool = False) -> str:
    """The line of Python that loads a file, or a folder that is written, into a model.

    `names` are those of the model, in the section `only` of the file.

    PEFT gives the tensors of an adapter other names than its files have (`get_peft_model_state_dict`, 0.21).  It opens
    the folder itself where `is_plain` says that every name is stored.

    >>> print(load_line("a.safetensors", ["module.weight"]))
    paramtool.torch.load_model(model, 'a.safetensors', prefix='module.')
    """
    from paramtool.commands.adapter_config import NAME
    from paramtool.passes import select

    is_folder = os.path.isfile(os.path.join(path, NAME))
    if is_folder and is_plain:
        return f"peft.PeftModel.from_pretrained(base, {path!r})"
    if is_folder or (names and all(name.startswith("base_model.model.") for name in names)):
        return f"peft.set_peft_model_state_dict(model, paramtool.torch.load_file({path!r}))"
    said = {"only": only, "prefix": select.wrapper(names)}
    more = "".join(f", {key}={value!r}" for key, value in said.items() if value)
    return f"paramtool.torch.load_model(model, {path!r}{more})"


def wrapped(prefix: str) -> str:
    """Why a line that loads a file names a prefix."""
    return f"the names begin with {prefix}, as a wrapper saves them; the model is the one inside" if prefix else ""


FILE = Path()
"""A path of something that is read."""
FILES = click.Path(readable=False)
"""One of several, of which each is checked when its turn comes, and has an error of its own."""
FILE_OR_STDIN = Path(stdin=True)
"""The same, or `-` for standard input."""
OUTPUT_FILE = Path(output=True)
"""A path of something that is written."""


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """A number of bytes on the command line."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """5GB to 5000000000."""
        if isinstance(value, int):
            return value
        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def verify_line(output: str, source: str, only: str | None = None, flag: str = "", *, each: bool = False) -> str:
    """The command that compares an output with what it was made from; `flag` says what it does not hold.

    It repeats the --allow-class, --allow-unknown, --new-config and --weights that the user gave.
    """
    given = context.params if (context := click.get_current_context(silent=True)) else {}
    one = {"--weights": given.get("weights"), "--new-config": given.get("new_config")}  # not of --each
    words = [
        "paramtool verify",
        quoted(output),
        quoted(source),
        *(["--only", quoted(only)] if only is not None else []),
    ]
    words += [f"{key} {quoted(value)}" for key, value in one.items() if value and not each]
    words += ["--each"] * each + [flag] * bool(flag)
    words += (f"--allow-class {shlex.quote(name)}" for name in given.get("allow_class", ()))
    words += ["--allow-unknown"] * bool(given.get("allow_unknown"))
    return " ".join(words)
