"""The zoo: architectures of transformers that a small config can build, and models of timm, through paramtool.

    python zoo.py [--jobs 2] [--minutes 60] [--state build/zoo.jsonl] [--only gemma3,resnet18]
                  [-o docs/proofs-models.md] [--json build/zoo.json]

Each model gets random values, is saved, deduplicated and opened again, in a process of its own with a limit of time and
of memory; LEGS says what is asked.  Every value is compared bit for bit, and which names share memory.  What was judged
is written to the state file at once, so that a run that was cut short goes on where it stopped; another version of a
library begins anew.  Nothing is downloaded.  Exit status 1 where a verdict is wrong, 3 where the time was over before
the last model.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import logging
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import huggingface_hub.constants  # noqa: E402 - the folder has to be on the path first
import torch  # noqa: E402
import transformers  # noqa: E402
from torch import nn  # noqa: E402

import paramtool  # noqa: E402
import paramtool.torch  # noqa: E402
from paramtool.commands import dedup as dedup_command  # noqa: E402
from paramtool.errors import TieError  # noqa: E402
from tests.laws.sharing import raw  # noqa: E402
from tests.oracles import zoo_models  # noqa: E402

BEGIN, END = "<!-- zoo -->", "<!-- /zoo -->"
SECONDS = 150
"""For one model."""
NBYTES = 16 << 30
"""Of memory, for one model."""
LEGS = {
    "file": "`torch.save`, `dedup` to safetensors, `load_model` into a model with other values",
    "`.pt`": "`dedup` to `.pt`, `torch.load(weights_only=True)`, `load_state_dict`",
    "folder": "`save_pretrained`, `dedup` of the folder, `from_pretrained`: as it opens the folder that was saved",
    "`load_model`": "the same folder by `load_model`, into a model on the meta device: as it was saved",
    "config": "`variants` and `inspect --fail-on config-ties` of the folder find nothing",
    "flipped": "`tie_word_embeddings` inverted: the untied model takes the file of the tied one, and the folder "
    "after `dedup`; the tied model refuses the untied file with `TieError`",
    "base": "the base model alone, from the file of the whole and from the folder",
}
OK, NONE = "ok", "-"
NO_TIE = "no tie"


class Wrong(Exception):
    """A verdict that should not be."""


@dataclass
class Case:
    """A model, and where it is saved."""

    model: nn.Module
    fresh: Callable[..., nn.Module]
    """The same model with other values; `device`."""
    folder: Path
    config: Any = None
    opens: bool = True
    """Whether transformers opens the folder that it saved, and misses nothing."""

    @property
    def file(self) -> Path:
        """The state dict, deduplicated."""
        return self.folder / "m.safetensors"


# --- what is asked ---------------------------------------------------------------------------------------------------


def sharing(tensors: Mapping[str, torch.Tensor]) -> set[tuple[tuple[str, int, tuple[int, ...]], ...]]:
    """Names whose spans of memory overlap, directly or not, with where each begins and its strides.

    `tests.laws.sharing.partition` looks at every byte, which takes a minute for the models of timm.
    """
    spans = []
    for name, tensor in tensors.items():
        if tensor.numel():
            reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            spans.append((start, start + (reach + 1) * tensor.element_size(), name, tensor.stride()))
    spans.sort()
    found: list[list[tuple[str, int, tuple[int, ...]]]] = []
    first = end = -1
    for start, stop, name, strides in spans:
        if start >= end:
            found.append([])
            first = start
        found[-1].append((name, start - first, strides))
        end = max(end, stop)
    return {tuple(sorted(one)) for one in found if len(one) > 1}


def same(
    expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor], what: str, shared: bool = True
) -> None:
    """Wrong, where names, types, values or who shares memory differ."""
    if expected.keys() != found.keys():
        lacks, more = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        raise Wrong(f"{what}: lacks {lacks[:3]}, has {more[:3]}")
    for name, tensor in expected.items():
        other = found[name]
        if tensor.dtype != other.dtype or tensor.shape != other.shape or raw(tensor) != raw(other):
            raise Wrong(f"{what}: {name!r} differs")
    if shared and sharing(expected) != sharing(found):
        raise Wrong(f"{what}: other names share memory")


def file(case: Case) -> str:
    torch.save(case.model.state_dict(), case.folder / "m.pt")
    paramtool.dedup(case.folder / "m.pt", case.file, min_equal_bytes=1)
    target = case.fresh(seed=1)
    paramtool.torch.load_model(target, case.file)
    same(case.model.state_dict(), target.state_dict(), "load_model")
    return OK


def pt(case: Case) -> str:
    paramtool.dedup(case.folder / "m.pt", case.folder / "small.pt", min_equal_bytes=1)
    state = torch.load(case.folder / "small.pt", weights_only=True)
    same(case.model.state_dict(), state, "torch.load")
    target = case.fresh(seed=1)
    target.load_state_dict(state)
    same(case.model.state_dict(), target.state_dict(), "load_state_dict")
    return OK


def opened(kind: Any, folder: Path) -> tuple[nn.Module, dict[str, list[str]]]:
    """What from_pretrained makes of a folder, and what it complains of."""
    model, told = kind.from_pretrained(folder, output_loading_info=True)
    return model, {key: sorted(map(str, names)) for key, names in told.items() if names}


def folder(case: Case) -> str:
    kind: Any = type(case.model)
    case.model.save_pretrained(case.folder / "hf")  # type: ignore[operator]
    report = paramtool.dedup(case.folder / "hf", case.folder / "small", min_equal_bytes=1)
    try:
        before, told = opened(kind, case.folder / "hf")
    except Exception as error:
        case.opens = False
        return f"{NONE} (transformers does not open its own folder: {_line(error)})"
    case.opens = not told
    after, says = opened(kind, case.folder / "small")
    if told != says:
        raise Wrong(f"from_pretrained says {says} of the output, and {told} of the input")
    missed = set(told.get("missing_keys", ()))  # a bug of transformers' own: random in both
    one, other = ({n: t for n, t in m.state_dict().items() if n not in missed} for m in (before, after))
    same(one, other, "from_pretrained", shared=not missed)
    # that the table has no ties of a class is said, and is no fault of the output
    if warned := [text for text in report.warnings if "are not in the table" not in text]:
        raise Wrong(f"dedup warns: {warned[0]}")
    return OK if not told else f"{OK}; transformers does not open its own folder without complaints: {list(told)}"


def own_folder(case: Case) -> str:
    try:
        _, told = opened(type(case.model), case.folder / "hf")
    except Exception:  # `folder` tells of it
        told = {}
    given = set(told.get("missing_keys", ()))
    target = case.fresh(device="meta")
    loaded = paramtool.torch.load_model(target, case.folder / "small", strict=not told)
    if not set(loaded.missing) <= given:
        raise Wrong(f"load_model misses {sorted(set(loaded.missing) - given)[:3]}")
    one, other = ({n: t for n, t in m.state_dict().items() if n not in given} for m in (case.model, target))
    same(one, other, "load_model of the folder", shared=not given)
    return OK


def config(case: Case) -> str:
    path = case.folder / "hf"
    names = paramtool.torch.names_from_config(path)
    state = case.model.state_dict()
    if {n: shape for n, (shape, _) in names.items()} != {n: tuple(t.shape) for n, t in state.items()}:
        raise Wrong("names_from_config: other names or shapes")
    (variant,) = paramtool.variants(case.folder / "small", [path / "config.json"])
    if not variant.loads:
        raise Wrong(f"variants: lacks {variant.lacks[:3]}, {variant.shapes[:1]}, {variant.apart[:1]}")
    ties = paramtool.inspect(path, config="").config
    assert ties is not None
    if broken := list(ties.broken):
        raise Wrong(f"config-ties: {broken[0].tie.names} {broken[0].result}")
    tied = groups(case.model)
    for row in ties.rows:
        if row.says and {*row.tie.names} <= state.keys() and not any({*row.tie.names} <= group for group in tied):
            raise Wrong(f"config-ties: {row.tie.names} share nothing in the model")
    return OK


def flip(config: Any) -> bool:
    """Turn the words' tie round in a config and those in it; what it was."""
    before = bool(getattr(config, "tie_word_embeddings", False))
    todo = [config]
    while todo:
        one = todo.pop()
        if hasattr(one, "tie_word_embeddings"):
            one.tie_word_embeddings = not before
        todo += [value for value in vars(one).values() if isinstance(value, transformers.PretrainedConfig)]
    return before


def groups(model: nn.Module) -> set[frozenset[str]]:
    """Names of one memory."""
    found: dict[int, set[str]] = {}
    for name, tensor in model.state_dict().items():
        if tensor.numel():
            found.setdefault(tensor.data_ptr(), set()).add(name)
    return {frozenset(names) for names in found.values() if len(names) > 1}


def flipped(case: Case) -> str:
    other = copy.deepcopy(case.config)
    flip(other)
    try:
        target = type(case.model)(other).eval()
    except Exception as error:
        return f"{NONE} (transformers builds no other: {type(error).__name__})"
    zoo_models.fill(target, 1)
    mine, theirs = groups(case.model), groups(target)
    if mine == theirs or case.model.state_dict().keys() != target.state_dict().keys():
        return NO_TIE
    before = {name: raw(tensor) for name, tensor in target.state_dict().items()}
    tied = [names for names in theirs if not any(names <= group for group in mine)]
    if tied:
        try:
            paramtool.torch.load_model(target, case.file)
        except TieError:
            if before != {name: raw(tensor) for name, tensor in target.state_dict().items()}:
                raise Wrong("load_model refused, and changed values") from None
            return f"{OK}: refused"
        raise Wrong(f"load_model ties {sorted(tied[0])}, which the file holds with different values")
    paramtool.torch.load_model(target, case.file)
    same(case.model.state_dict(), target.state_dict(), "the untied model", shared=False)
    if groups(target) != theirs:
        raise Wrong("load_model changed who shares memory in the untied model")
    if not case.opens:
        return f"{OK}: untied, from the file"
    dedup_command.dedup(case.folder / "hf", case.folder / "with_ties", min_equal_bytes=1)
    again = type(case.model)(other).eval()
    paramtool.torch.load_model(again, case.folder / "with_ties")
    same(case.model.state_dict(), again.state_dict(), "the untied model, from the folder", shared=False)
    return f"{OK}: untied"


def base(case: Case) -> str:
    prefix = getattr(case.model, "base_model_prefix", "")
    inner = getattr(case.model, prefix, None) if prefix else None
    if not isinstance(inner, nn.Module) or inner is case.model:
        return NONE
    target = copy.deepcopy(inner)
    zoo_models.fill(target, 2)
    paramtool.torch.load_model(target, case.file, prefix=prefix)
    same(inner.state_dict(), target.state_dict(), "the base model")
    if not isinstance(inner, transformers.PreTrainedModel):
        return OK
    before, told = opened(type(inner), case.folder / "hf")
    after, says = opened(type(inner), case.folder / "small")
    if told != says:
        raise Wrong(f"from_pretrained of the base model says {says} of the output, and {told} of the input")
    missed = set(told.get("missing_keys", ()))
    one, other = ({n: t for n, t in m.state_dict().items() if n not in missed} for m in (before, after))
    same(one, other, "from_pretrained of the base model", shared=not missed)
    return OK


ASKED = dict(zip(LEGS, (file, pt, folder, own_folder, config, flipped, base), strict=True))


# --- one model, in a process of its own ------------------------------------------------------------------------------


def of_transformers(model_type: str, where: Path) -> Case:
    model: Any = zoo_models.small(model_type)
    config = copy.deepcopy(model.config)  # save_pretrained changes it
    return Case(model, lambda **how: zoo_models.like(type(model), copy.deepcopy(config), **how), where, config)


def of_timm(name: str, where: Path) -> Case:
    model = zoo_models.of_timm(name)
    return Case(model, lambda **how: zoo_models.of_timm(name, **how), where)


def timm_folder(case: Case) -> str:
    import timm

    try:
        timm.models.save_for_hf(case.model, case.folder / "hf", safe_serialization=True)
        what = OK
    except RuntimeError:  # "Some tensors share memory"
        timm.models.save_for_hf(case.model, case.folder / "hf", safe_serialization=False)
        what = f"{OK}; timm saves it as a pickle alone, since its tensors share memory"
    paramtool.dedup(case.folder / "hf", case.folder / "small", min_equal_bytes=1)
    again = timm.create_model(f"local-dir:{case.folder / 'small'}", pretrained=True)
    same(case.model.state_dict(), again.state_dict(), "timm's create_model of the folder")
    return what


def timm_own_folder(case: Case) -> str:
    target = case.fresh(device="meta")
    paramtool.torch.load_model(target, case.folder / "small")
    same(case.model.state_dict(), target.state_dict(), "load_model of the folder")
    return OK


def timm_base(case: Case) -> str:
    target = case.fresh(seed=2, num_classes=0)
    mine = target.state_dict().keys()
    loaded = paramtool.torch.load_model(target, case.file, strict=False)
    if loaded.missing:
        return f"{NONE} (without its head it has other names: {loaded.missing[0]})"
    same({n: t for n, t in case.model.state_dict().items() if n in mine}, target.state_dict(), "the headless model")
    return OK


TIMM = {"file": file, "`.pt`": pt, "folder": timm_folder, "`load_model`": timm_own_folder, "base": timm_base}


def judged(kind: str, name: str) -> dict[str, Any]:
    """The verdicts of one model, or why it was not built."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="zoo-") as where, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case = (of_timm if kind == "timm" else of_transformers)(name, Path(where))
        except Exception as error:
            return {"built": "", "why": _line(error)}
        verdicts = {}
        for leg, ask in (TIMM if kind == "timm" else ASKED).items():
            try:
                verdicts[leg] = ask(case)
            except Wrong as wrong:
                verdicts[leg] = f"WRONG: {wrong}"
            except Exception as error:
                at = traceback.extract_tb(error.__traceback__)[-1]
                verdicts[leg] = f"WRONG: {_line(error)} ({Path(at.filename).name}:{at.lineno})"
    count = sum(parameter.numel() for parameter in case.model.parameters())
    return {"built": type(case.model).__name__, "parameters": count, "tied": bool(groups(case.model)),
            "verdicts": verdicts, "seconds": round(time.monotonic() - began, 1)}  # fmt: skip


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def started(kind: str, name: str) -> tuple[int, int]:
    """(process, the pipe that its verdicts come through)."""
    ours, theirs = os.pipe()
    process = os.fork()
    if process:
        os.close(theirs)
        return process, ours
    status = 1
    try:
        os.close(ours)
        resource.setrlimit(resource.RLIMIT_AS, (NBYTES, NBYTES))
        signal.alarm(SECONDS)
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            found = judged(kind, name)
        with os.fdopen(theirs, "w") as pipe:
            json.dump(found, pipe)
        status = 0
    finally:
        os._exit(status)


@dataclass
class Running:
    """A process that judges a model."""

    kind: str
    name: str
    process: int
    pipe: int
    began: float
    text: bytes = b""

    def ended(self) -> dict[str, Any]:
        """Its verdicts, or how it ended."""
        os.close(self.pipe)
        _, status = os.waitpid(self.process, 0)
        try:
            return json.loads(self.text)  # type: ignore[no-any-return]
        except ValueError:
            seconds = round(time.monotonic() - self.began)
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
            return {"built": "", "why": f"its process ended with {how} after {seconds} s", "seconds": seconds}


def run(todo: list[tuple[str, str]], jobs: int, until: float) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(kind, name, verdicts) of each, as they come; nothing is begun after `until`."""
    running: dict[int, Running] = {}
    waiting = iter(todo)
    while True:
        while len(running) < jobs and time.monotonic() < until and (one := next(waiting, None)):
            process, pipe = started(*one)
            running[pipe] = Running(*one, process, pipe, time.monotonic())
        if not running:
            return
        for pipe in select.select(list(running), [], [])[0]:
            if text := os.read(pipe, 1 << 16):
                running[pipe].text += text
                continue
            done = running.pop(pipe)
            yield done.kind, done.name, done.ended()


# --- the state, and the page -----------------------------------------------------------------------------------------


def versions() -> str:
    found = [("torch", torch.__version__), ("transformers", transformers.__version__)]
    with contextlib.suppress(ImportError):
        import timm

        found.append(("timm", timm.__version__))
    return ", ".join(f"{name} {version}" for name, version in found)


def program() -> str:
    """The digest of what the verdicts are of: paramtool, and these two scripts."""
    digest = hashlib.sha256()
    here = Path(__file__)
    for path in sorted([*(ROOT / "paramtool").rglob("*.py"), here, here.with_name("zoo_models.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def earlier(state: Path, head: Mapping[str, str], keep: bool) -> dict[tuple[str, str], dict[str, Any]]:
    """Verdicts of a run with these versions that was cut short; the file begins anew where there is none.

    `keep` takes those of another state of paramtool, too.
    """
    lines = []
    if state.exists():
        lines = [json.loads(line) for line in state.read_text().splitlines() if line.endswith("}")]
    if lines and (lines[0] == head or (keep and lines[0]["versions"] == head["versions"])):
        return {(line["kind"], line["name"]): line for line in lines[1:]}
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(json.dumps(head) + "\n")
    return {}


def is_wrong(line: Mapping[str, Any]) -> bool:
    return any(text.startswith("WRONG") for text in line.get("verdicts", {}).values())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    return [f"| {' | '.join(map(_cell, row))} |" for row in (head, ["---"] * len(head), *rows)]


def page(lines: list[dict[str, Any]], versions: str, unasked: int) -> str:
    """The summary, what was asked, every model, and what could not be built."""
    built = [line for line in lines if line["built"]]
    summary = []
    for kind in ("transformers", "timm"):
        mine = [line for line in built if line["kind"] == kind]
        good = [sum(line["verdicts"].get(leg, NONE).startswith(OK) for line in mine) for leg in LEGS]
        every = sum(line["kind"] == kind for line in lines)
        counts = [str(count or NONE) for count in good]
        summary.append([kind, f"{len(mine)} of {every}", *counts, str(sum(map(is_wrong, mine)))])
    verdicts = (
        [line["name"], line["built"], f"{line['parameters']:,}", *(line["verdicts"].get(leg, NONE) for leg in LEGS)]
        for line in built
    )
    unreached = f" {unasked} models were not reached." if unasked else ""
    parts = [
        *table(["library", "built", *LEGS, "wrong"], summary),
        "",
        f"Run by `tests/oracles/zoo.py` with {versions}.{unreached}",
        "",
        *(f"- **{leg}**: {text}" for leg, text in LEGS.items()),
        "",
        "The numbers count verdicts that are `ok`.  `-` means that the question does not apply,",
        "`no tie` that the setting changes no tie of that class.",
        "",
        *table(["model", "class", "parameters", *LEGS], verdicts),
        "",
        "Not built:",
        "",
        *table(["model", "why"], ([line["name"], line["why"]] for line in lines if not line["built"])),
    ]
    return "\n".join(parts) + "\n"


def written(path: Path, text: str) -> None:
    """Put the zoo between its markers of a page."""
    before, found, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise SystemExit(f"{path}: lacks {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


def warm_up() -> None:
    """Judge two models here, so that each process that is forked has what most of them import."""
    zoo_models.warm_up()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        judged("transformers", "gpt2")
        judged("transformers", "llava")
        if zoo_models.has_timm():
            judged("timm", "lcnet_035")


def main() -> int:
    """Judge what is left, and write down what was found."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    arguments.add_argument("--minutes", type=float, default=60)
    arguments.add_argument(
        "--state", type=Path, default=ROOT / "build/zoo.jsonl", help="goes on where a run was cut short"
    )
    arguments.add_argument("--keep", action="store_true", help="also where paramtool was another then")
    arguments.add_argument("--wrong", action="store_true", help="ask again what was wrong or not built")
    arguments.add_argument("--only", default="", help="some models, by name")
    arguments.add_argument("-o", type=Path, metavar="docs/proofs-models.md")
    arguments.add_argument("--json", type=Path)
    asked = arguments.parse_args()
    began = time.monotonic()
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    huggingface_hub.constants.HF_HUB_OFFLINE = True
    head = {"versions": versions(), "program": program()}
    found = earlier(asked.state, head, asked.keep)
    every = [("transformers", name) for name in zoo_models.architectures()]
    every += [("timm", name) for name in zoo_models.TIMM if zoo_models.has_timm()]
    only = set(filter(None, asked.only.split(",")))
    again = {key for key, line in found.items() if asked.wrong and (is_wrong(line) or not line["built"])}
    found = {key: line for key, line in found.items() if key not in again or (only and key[1] not in only)}
    todo = [one for one in every if one not in found and (not only or one[1] in only)]
    warm_up()
    with open(asked.state, "a", encoding="utf-8") as state:
        for kind, name, line in run(todo, asked.jobs, began + 60 * asked.minutes):
            found[kind, name] = {"kind": kind, "name": name, **line}
            state.write(json.dumps(found[kind, name]) + "\n")
            state.flush()
            said = line.get("why") or Counter(text.split()[0].rstrip(":") for text in line["verdicts"].values())
            print(f"{kind} {name}: {dict(said) if isinstance(said, Counter) else 'not built: ' + said}", flush=True)
            for leg, text in line.get("verdicts", {}).items():
                if text.startswith("WRONG"):
                    print(f"  {leg}: {text}", flush=True)
    lines = [found[one] for one in every if one in found]
    left = len(every) - len(lines)
    if asked.json:
        asked.json.write_text(json.dumps({**head, "models": lines}, indent=1) + "\n")
    if asked.o:
        written(asked.o, page(lines, head["versions"], left))
    wrong = sum(map(is_wrong, lines))
    print(f"{len(lines)} models, {sum(bool(line['built']) for line in lines)} built, {wrong} wrong, {left} left, "
          f"{(time.monotonic() - began) / 60:.0f} minutes")  # fmt: skip
    return 1 if wrong else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
