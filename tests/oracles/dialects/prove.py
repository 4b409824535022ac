"""Proves the conversions of dialects by transformers, torch, timm and MXNet, and writes down what was found.

    python prove.py [--environments .venv-oracles] [--only llama,mixtral] [-o docs/proofs-dialects.md]
                    [--json build/proofs-dialects.json] [--evidence paramtool/parts/proofs.json]

It is run by the Python of the environment `zoo`, which has timm and scipy; MXNet's is asked by its own.  Exit status 1
where a verdict is wrong.  Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402 - the folder has to be on the path first
import transformers  # noqa: E402

from tests.oracles.dialects import converting, families, forms, hybrid, mxnet_operators, proofs, systems  # noqa: E402
from tests.oracles.dialects._page import evidence, page  # noqa: E402
from tests.oracles.dialects.models import FAMILIES, Family, saved, tensors  # noqa: E402
from tests.oracles.dialects.proofs import Case, Proof  # noqa: E402
from tests.oracles.dialects.reference import sizes  # noqa: E402
from tests.oracles.dialects.sources import Ours, Paramtool  # noqa: E402

OK = "ok"
TORCH = ("BERT", "BART", "ViT", "CLIP")
Line = dict[str, Any]


def versions() -> str:
    found = {"torch": torch.__version__, "transformers": transformers.__version__}
    if systems.has_timm():
        import timm

        found["timm"] = timm.__version__
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()).replace(tempfile.gettempdir(), "...")
    return f"WRONG: {type(error).__name__}: {text}"[:300]


def asked(ask: Callable[[], str]) -> str:
    """A verdict, or what went wrong."""
    try:
        return ask()
    except Exception as error:
        return _line(error)


def of_proof(proof: Proof, **more: str) -> Line:
    """A line of the table of families."""
    return {
        "family": proof.family, "what": proof.what, "judge": proof.judge, "error": proof.error, "wrong": proof.wrong,
        "refuses": [*proof.refused], "holds": proof.holds(), **more,
    }  # fmt: skip


# --- attention, gated MLPs, experts ----------------------------------------------------------------------------------


def bytes_of(case: Case, ours: Ours, theirs: Paramtool) -> str:
    """The bytes of our equations, and the same file again on the way back, which the same class opens as it was."""
    layout = case.family.attention[0].layout
    forms.same(ours.in_file(ours.apart(layout)), theirs.apart(layout), f"unfuse {layout}")
    again = theirs.fused_again(layout)
    forms.same(tensors(theirs.input), tensors(again), "there and back")
    forms.opens(case.model, again, "there and back")
    return OK


def refused(case: Case, theirs: Paramtool, folder: Path) -> str:
    """Without config.json, and without a layout that is named."""
    bare = converting.without_facts(theirs.input, folder / "bare")
    converting.refusal(converting.unfuse, bare, out=folder / "out")
    return OK


def fused_family(family: Family, folder: Path) -> Iterator[Line]:
    """A family whose attention is one weight."""
    case = Case(family)
    theirs = Paramtool(family, case.model, folder)
    ours = Ours(family, case.model)
    more = {
        "bytes": asked(lambda: bytes_of(case, ours, theirs)),
        "refused": asked(lambda: refused(case, theirs, folder)),
    }
    for source, name in ((theirs, "paramtool"), (ours, "equations")):
        if name == "equations" or more["bytes"] == OK:
            yield of_proof(proofs.unfused(case, source), source=name, **more)


def fused_by_us(family: Family, folder: Path, mxnet: Path | None) -> Iterator[Line]:
    """A family whose q, k and v are apart, and who runs them when they are fused."""
    case = Case(family)
    theirs = Paramtool(family, case.model, folder)
    ours = Ours(family, case.model)

    def compared(layout: str) -> str:
        found = theirs.together(layout)
        forms.same(ours.of_attention(ours.together(layout)), ours.of_attention(found), f"fuse {layout}")
        forms.same(tensors(theirs.input), tensors(theirs.apart_again(layout)), "there and back")
        return OK

    layout = "qkv" if family.name in TORCH else "qkv-per-group"
    more = {"bytes": asked(lambda: compared(layout)), "refused": "-"}
    source, name = (theirs, "paramtool") if more["bytes"] == OK else (ours, "equations")
    if family.name in TORCH:
        yield of_proof(proofs.fused_for_torch(case, source), source=name, **more)
    else:
        yield of_proof(proofs.fused_for_groups(case, source, layout), source=name, **more)
    if mxnet is not None and family.name == "BERT":
        made = mxnet_operators.self_attention(case, source, mxnet, folder)
        yield of_proof(made, source=name, bytes="-", refused="-")
    if mxnet is not None and family.name == "BART":
        made = mxnet_operators.to_encoder(case, mxnet, folder)
        yield of_proof(made, source="paramtool", bytes="-", refused="-")


def others(family: Family, folder: Path) -> Iterator[Line]:
    """Gated MLPs, experts, and JetMoE's keys and values."""
    case = Case(family)
    theirs = Paramtool(family, case.model, folder / "others")
    asks: list[tuple[str, Callable[..., Proof]]] = []
    if family.gated:
        asks.append(("gate-up" if family.gated.fused else "", proofs.gates))
    if own := family.experts:
        asks.append((f"{own.layout} {own.orientation}", proofs.experts))
    if family.name == "JetMoE":
        asks.append(("kv", proofs.kv))
    for words, prove in asks:
        if not words:
            yield of_proof(prove(case), source="equations", bytes="-", refused="-")
            continue
        verdict = asked(partial(restored, theirs, words))
        refusal = asked(partial(refused_alone, theirs, words, folder / words.replace(" ", "-")))
        source, states = ("paramtool", theirs.unfused) if verdict == OK else ("equations", None)
        yield of_proof(prove(case, states), source=source, bytes=verdict, refused=refusal)


def refused_alone(theirs: Paramtool, words: str, folder: Path) -> str:
    """Without config.json, and without a layout that is named; only these modules are looked at."""
    bare = converting.without_facts(theirs.input, folder / "bare")
    more = {} if theirs.family.name == "JetMoE" else {"at": ["*.mlp" if words == "gate-up" else "*experts*"]}
    converting.refusal(converting.unfuse, bare, out=folder / "out", **more)  # JetMoE's names say nothing without it
    return OK


def restored(theirs: Paramtool, words: str) -> str:
    """Taken apart and fused again, it is the same file."""
    theirs.unfused(words)
    forms.same(tensors(theirs.input), tensors(theirs.restored(words)), "there and back")
    return OK


def of_family(family: Family, mxnet: Path | None) -> Iterator[Line]:
    """Every line of a family."""
    with tempfile.TemporaryDirectory(prefix="dialects-") as name:
        folder = Path(name)
        if family.attention and family.attention[0].fused:
            yield from fused_family(family, folder)
        elif family.attention:
            yield from fused_by_us(family, folder, mxnet)
        yield from others(family, folder)


def of_system(system: systems.System) -> Iterator[Line]:
    """A dialect of another system."""
    case = Case(system.family)
    with tempfile.TemporaryDirectory(prefix="dialects-") as name:
        folder = Path(name)
        file = saved(case.model, folder / "in", "transformers-4")
        given = tensors(saved(case.model, folder / "given", system.form))
        expected = system.expected(given, sizes(system.family.attention[0]))

        def compared() -> str:
            out = converting.convert(file, folder / "out", system.dialect)
            forms.same(expected, {k: v for k, v in tensors(out).items() if k in expected or not system.partly}, "out")
            back = converting.convert(out, folder / "back", "transformers-4")
            forms.same(tensors(file), tensors(back), "there and back")
            forms.opens(case.model, back, "there and back")
            return OK

        verdict = asked(compared)
        found = tensors(folder / "out") if verdict == OK else expected
        source = "paramtool" if verdict == OK else "equations"
        for proof in systems.proofs(system, case, found):
            yield of_proof(proof, bytes=verdict, refused="-", source=source)


def of_hybrid() -> Iterator[Line]:
    """OLMo-Hybrid, by its own class."""
    with tempfile.TemporaryDirectory(prefix="dialects-") as name:
        yield of_proof(hybrid.proof(Path(name)), bytes=OK, refused="-", source="paramtool")


# --- the two forms of transformers -----------------------------------------------------------------------------------


def of_key(key: str) -> Line:
    """Both variants of a key of conversion_mapping."""
    line: Line = {"key": key, "experts": key in families.of_experts(), "class": "", "verdicts": {}, "changed": 0}
    for variant in families.VARIANTS:
        with tempfile.TemporaryDirectory(prefix="dialects-") as name:
            try:
                model = families.build(key, variant)
            except Exception as error:
                line["why"] = _line(error).removeprefix("WRONG: ")
                return line
            one = forms.both(model, Path(name))
            line["class"] = type(model).__name__
            line["changed"] = max(line["changed"], one.changed)

            def between(one: Any = one, where: Path = Path(name)) -> str:
                return forms.between(one, key, where)

            line["verdicts"][variant] = asked(between)
    return line


def is_wrong(line: Line) -> bool:
    verdicts = line["verdicts"].values() if "verdicts" in line else (line["bytes"], line["refused"])
    return any(text.startswith("WRONG") for text in verdicts) or not line.get("holds", True)


def told(name: str, line: Line) -> None:
    """A line on the terminal."""
    if line.get("why"):
        print(f"{name}: not built: {line['why']}", flush=True)
        return
    if "verdicts" in line:
        print(f"{name}: {line['verdicts']}", flush=True)
        return
    far = f"{min(line['wrong'].values()):.2g}" if line["wrong"] else "-"
    print(f"{name}: {line['what']}: {line['error']:.1e}, wrong {far}; bytes {line['bytes']}, refused {line['refused']} "
          f"({line['source']})", flush=True)  # fmt: skip


def main() -> int:
    """Prove everything, and write it down."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--environments", type=Path, default=ROOT / ".venv-oracles")
    arguments.add_argument("--only", default="", help="families, dialects or keys of the table, by name")
    arguments.add_argument("-o", type=Path, metavar="docs/proofs-dialects.md")
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--evidence", type=Path, metavar="paramtool/parts/proofs.json")
    asked_for = arguments.parse_args()
    only = {name.lower() for name in asked_for.only.split(",") if name}
    python = asked_for.environments / "mxnet1/bin/python"
    mxnet = python if python.exists() else None
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    began = time.monotonic()
    result: dict[str, Any] = {"versions": versions(), "mxnet": mxnet is not None, "families": [], "keys": []}
    for family in FAMILIES:
        if not only or family.name.lower() in only:
            result["families"] += _told(family.name, of_family(family, mxnet))
    for system in systems.SYSTEMS:
        if not only or system.dialect in only:
            result["families"] += _told(f"{system.dialect} {system.family.name}", of_system(system))
    if not only or hybrid.FAMILY.name.lower() in only:
        result["families"] += _told(hybrid.FAMILY.name, of_hybrid())
    for key in families.converted():
        if not only or key.lower() in only:
            result["keys"] += _told(key, iter([of_key(key)]))
    lines = [*result["families"], *result["keys"]]
    wrong = sum(map(is_wrong, lines))
    if asked_for.json:
        asked_for.json.parent.mkdir(parents=True, exist_ok=True)
        asked_for.json.write_text(json.dumps(result, indent=1) + "\n")
    if asked_for.evidence:
        asked_for.evidence.write_text(json.dumps(evidence(result), indent=1) + "\n", encoding="utf-8")
    if asked_for.o:
        asked_for.o.write_text(page(result), encoding="utf-8")
    print(f"{len(lines)} lines, {wrong} wrong, {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if wrong else 0


def _told(name: str, lines: Iterator[Line]) -> list[Line]:
    found = []
    try:
        for line in lines:
            told(name, line)
            found.append(line)
    except Exception as error:
        broken = {"family": name, "what": "", "judge": "", "error": float("nan"), "wrong": {}, "source": ""}
        found.append({**broken, "bytes": _line(error), "refused": "-", "holds": False})
        told(name, found[-1])
    return found


if __name__ == "__main__":
    sys.exit(main())
