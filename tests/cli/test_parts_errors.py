"""fuse, unfuse and convert on bad input of attention, gated MLPs and experts: it is named, and nothing is written.

`refused` checks what every refusal keeps to: the exit code, one error, no traceback, a folder that stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests import attention
from tests.attention import folder_of
from tests.hostile.command import quick, refused

Tensors = dict[str, torch.Tensor]
AT = "model.layers.0.self_attn"
EXPERTS = "model.layers.0.block_sparse_moe.experts"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 24, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 10, "num_hidden_layers": 1, "vocab_size": 7,
}  # fmt: skip
MIXTRAL = {**CONFIG, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 3}


def apart() -> Tensors:
    """A layer of a small Llama, with a bias on each of its projections."""
    found = {"model.embed_tokens.weight": torch.randn(7, 24)}
    for part, heads in (("q", 6), ("k", 2), ("v", 2)):
        found[f"{AT}.{part}_proj.weight"] = torch.randn(heads * 4, 24)
        found[f"{AT}.{part}_proj.bias"] = torch.randn(heads * 4)
    for part in ("gate", "up"):
        found[f"model.layers.0.mlp.{part}_proj.weight"] = torch.randn(10, 24)
    return found


def experts() -> Tensors:
    """The experts of a layer of a small Mixtral."""
    shapes = {"w1": (10, 24), "w3": (10, 24), "w2": (24, 10)}
    return {f"{EXPERTS}.{e}.{part}.weight": torch.randn(shape) for e in range(3) for part, shape in shapes.items()}


def fused() -> Tensors:
    """One fused attention."""
    return {"h.0.attn.query_key_value.weight": torch.randn(72, 24), "h.0.attn.query_key_value.bias": torch.randn(72)}


def saved(folder: Path, tensors: Tensors, config: Any = None, metadata: Mapping[str, str] | None = None) -> Path:
    at = folder / "m"
    at.mkdir()
    save_file(tensors, at / "model.safetensors", dict(metadata or {}))
    if config is not None:
        (at / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return at


def without(*names: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return change


def with_(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: make(tensors[name])})


WRONG_PARTS: dict[str, tuple[Callable[[Tensors], None], int, tuple[str, ...]]] = {
    "no v": (without(f"{AT}.v_proj.weight", f"{AT}.v_proj.bias"), 5, (AT, "v_proj")),
    "a bias on two of three": (without(f"{AT}.k_proj.bias"), 5, (f"{AT}.k_proj.bias",)),
    "another type": (with_(f"{AT}.k_proj.weight", torch.Tensor.half), 5, ("float16", "float32", f"{AT}.k_proj.weight")),
    "another width": (with_(f"{AT}.k_proj.weight", lambda t: t[:, :8].clone()), 5, ("_proj.weight", "24")),
    "another number of heads": (with_(f"{AT}.k_proj.weight", lambda t: t[:4].clone()), 5, ("kv_heads", "4")),
    "three axes": (with_(f"{AT}.k_proj.weight", lambda t: t[None].clone()), 5, (f"{AT}.k_proj.weight", "[1, 8, 24]")),
    "no rows": (with_(f"{AT}.k_proj.weight", lambda t: t[:0].clone()), 5, (f"{AT}.k_proj.weight",)),
    "an unknown companion": (lambda t: t.update({f"{AT}.q_proj.magic": torch.ones(3)}), 5, ("magic",)),
}


@pytest.mark.parametrize("case", WRONG_PARTS)
@pytest.mark.parametrize("command", [("fuse", "--layout", "qkv-per-group"), ("convert", "--to", "megatron")])
def test_parts_that_do_not_fit(case: str, command: tuple[str, ...], tmp_path: Path) -> None:
    change, code, says = WRONG_PARTS[case]
    tensors = apart()
    change(tensors)
    saved(tmp_path, tensors, CONFIG)
    if case == "an unknown companion" and command[0] == "convert":
        says = ("magic",)
    refused(quick, command[0], "m", *command[1:], "-o", "out", cwd=tmp_path, code=code, says=says)


def test_an_empty_file(tmp_path: Path) -> None:
    saved(tmp_path, {"x": torch.zeros(0, 3)}, CONFIG)
    refused(quick, "fuse", "m", "--layout", "qkv", "-o", "out", cwd=tmp_path, code=5, says=("q_proj k_proj v_proj",))


def test_names_that_are_taken(tmp_path: Path) -> None:
    """A file that has parts and a fused tensor of the same name."""
    saved(tmp_path, {**apart(), f"{AT}.qkv_proj.weight": torch.ones(3)}, CONFIG)
    fuse = ("fuse", "m", "--layout", "qkv", "-o", "out")
    refused(quick, *fuse, cwd=tmp_path, code=5, says=(f"{AT}.qkv_proj.weight", "mixes two forms"))
    refused(quick, *fuse, "--at", "*.self_attn", cwd=tmp_path, code=6, says=(f"{AT}.qkv_proj.weight",))


WRONG_FLAGS: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    "--at without a match": (("--layout", "qkv", "--at", "encoder.*"), 5, ("encoder.*", "q_proj")),
    "a spec of another kind": (("--layout", "qkv", "--spec", "gate-up chunks=2"), 2, ("gate-up", "qkv")),
    "a spec of a network": (("--layout", "qkv", "--spec", "lstm layers=2"), 2, ("lstm",)),
    "an unknown word": (("--layout", "qkv", "--spec", "qkv hats=3"), 2, ("hats",)),
    "no number": (("--layout", "qkv", "--spec", "qkv heads=many"), 2, ("heads=many",)),
    "a huge number": (("--layout", "qkv", "--spec", "qkv heads=1099511627776"), 2, ("1099511627776",)),
    "another number than the config": (("--layout", "qkv", "--spec", "qkv heads=3"), 5, ("heads", "3", "6")),
    "an unknown name": (("--layout", "qkv", "--rename", "hats=caps"), 2, ("hats", "qkv_proj")),
    "--stack": (("--layout", "qkv", "--stack", "a,b=c"), 2, ("--stack",)),
    "an unknown layout": (("--layout", "qkv-per-hed"), 2, ("'qkv-per-hed'", "did you mean qkv-per-head")),
    "an unknown layout of the parts": (("--layout", "qkv", "--from", "qkv-per-hed"), 2, ("did you mean qkv-per-head",)),
    "a dialect": (("--layout", "vllm"), 2, ("is a dialect", "paramtool convert SRC --to vllm -o DST")),
    "a dialect of the parts": (("--layout", "qkv", "--from", "meta"), 2, ("--from meta", "--to transformers-4 -o DST")),
    "options of a layout": (("--layout", "qkv:heads=3"), 2, ("--spec",)),
    "values that change": (("--layout", "zero-centred-norm"), 2, ("changes values",)),
    "one head each": (("--layout", "qkv-per-head"), 5, ("heads=6", "kv_heads=2")),
}


@pytest.mark.parametrize("case", WRONG_FLAGS)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_flags(case: str, form: tuple[str, ...], tmp_path: Path) -> None:
    flags, code, says = WRONG_FLAGS[case]
    saved(tmp_path, apart(), CONFIG)
    refused(quick, "fuse", "m", *flags, "-o", "out", *form, cwd=tmp_path, code=code, says=() if form else says)


WRONG_LINES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a dialect of another number": (("convert", "m", "--to", "transformers-6"), ("did you mean transformers-5, tr",)),
    "a dialect without its s": (("convert", "m", "--to", "transformer-5"), ("did you mean transformers-5, tr",)),
    "a dialect that it is of": (("convert", "m", "--from", "megatorn", "--to", "vllm"), ("did you mean megatron?",)),
    "layouts": (("layouts", "vlm"), ("did you mean vllm?",)),
    "layouts, like nothing": (("layouts", "nosuch"), ("hint: `paramtool layouts` lists them\n",)),
    "a library": (("convert", "m", "--to", "HF"), ("did you mean transformers-4, transformers-5?",)),
    "a model": (("convert", "m", "--to", "qwen"), ("did you mean transformers-4, transformers-5?",)),
    "a program": (("convert", "m", "--to", "mcore"), ("did you mean megatron?",)),
    "a program and a suffix": (("convert", "m", "--to", "NeMo"), ("did you mean megatron?",)),
    "a library of networks": (("convert", "m", "--to", "tensorflow"), ("did you mean keras, tf1.basic?",)),
    "a library of libraries": (("layouts", "jax"), ("did you mean flax.linen, flax.nnx, haiku, equinox?",)),
    "a program and its format": (("convert", "m", "--to", "llama.cpp"), ("llama.cpp is a format", ".safetensors")),
    "unfuse": (("unfuse", "m", "--layout", "gateup"), ("did you mean gate-up?",)),
    "unfuse, a dialect": (("unfuse", "m", "--layout", "vllm"), ("is a dialect", "--from vllm --to transformers-4")),
    "unfuse, to a dialect": (("unfuse", "m", "--layout", "qkv", "--to", "meta"), ("--to meta: is a dialect",)),
}


@pytest.mark.parametrize("case", WRONG_LINES)
def test_names_that_nothing_has(case: str, tmp_path: Path) -> None:
    """What is near is found among layouts of networks, of parts, and dialects, and said once."""
    args, says = WRONG_LINES[case]
    saved(tmp_path, apart(), CONFIG)
    ran = refused(quick, *args, *(() if args[0] == "layouts" else ("-o", "out")), cwd=tmp_path, code=2, says=says)
    assert "?;" not in ran.err and "torch" not in ran.err and "tensorrt" not in ran.err


def test_nothing_to_take_apart(tmp_path: Path) -> None:
    """In words of attention, gated MLPs and experts, and not of recurrent networks."""
    saved(tmp_path, {**apart(), **experts()}, MIXTRAL)
    says = ("nothing is fused", "model.layers: 1 layer: q, k, v apart", "experts as a list of 3", "--layout qkv")
    ran = refused(quick, "unfuse", "m", "-o", "out", cwd=tmp_path, code=5, says=says)
    assert "recurrent" not in ran.err


def test_biases_that_a_dialect_has_not(tmp_path: Path) -> None:
    """They are no quantisation."""
    saved(tmp_path, apart(), CONFIG)
    says = (f"'{AT}.k_proj.bias' is a bias, and meta has no place for it",)
    ran = refused(quick, "convert", "m", "--to", "meta", "-o", "out", cwd=tmp_path, code=5, says=says)
    assert "quantis" not in ran.err


def test_stacks_of_another_orientation(tmp_path: Path) -> None:
    """The hint has layouts that fit, and not the one that was refused; each of them works."""
    stacks = {"m.experts.gate_up_proj": torch.randn(2, 64, 64), "m.experts.down_proj": torch.randn(2, 64, 32)}
    saved(tmp_path, stacks)
    args = ("unfuse", "m", "-o", "out", "--layout")
    ran = refused(
        quick, *args, "experts-transposed", cwd=tmp_path, code=5, says=("hint: the shapes of the stacks fit",)
    )
    fits = ran.err.rpartition(" fit ")[2].strip().split(", ")
    assert fits and "experts-transposed" not in fits
    for layout in fits:
        assert quick(*args, layout, "--force", cwd=tmp_path).code == 0


WRONG_CONFIGS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "damaged": ("{", ("config.json",)),
    "a list": ([], ("config.json",)),
    "heads as text": ({**CONFIG, "num_attention_heads": "6"}, ("num_attention_heads",)),
    "negative heads": ({**CONFIG, "num_attention_heads": -6}, ("num_attention_heads",)),
    "heads that are true": ({**CONFIG, "num_attention_heads": True}, ("num_attention_heads",)),
    "half a head": ({**CONFIG, "num_attention_heads": 1.5}, ("num_attention_heads",)),
    "heads that do not divide": ({**CONFIG, "num_key_value_heads": 4}, ("heads=6", "kv_heads=4")),
    "other heads": ({**CONFIG, "num_key_value_heads": 3}, ("kv_heads=3", f"{AT}.k_proj")),
}


@pytest.mark.parametrize("case", WRONG_CONFIGS)
def test_configs(case: str, tmp_path: Path) -> None:
    config, says = WRONG_CONFIGS[case]
    saved(tmp_path, apart(), config)
    code = 3 if case in ("damaged", "a list") else 5
    refused(quick, "fuse", "m", "--layout", "qkv-per-group", "-o", "out", cwd=tmp_path, code=code, says=says)


def test_chunks_from_the_wrong_level(tmp_path: Path) -> None:
    """Chunks that the layer's KV heads do not divide by: the count is the model's."""
    saved(tmp_path, apart(), CONFIG)
    flags = ("--layout", "qkv-per-chunk", "--spec", "qkv chunks=4")
    refused(quick, "fuse", "m", *flags, "-o", "out", cwd=tmp_path, code=5, says=("chunks=4",))


WRONG_EXPERTS: dict[str, tuple[Callable[[Tensors], None], tuple[str, ...]]] = {
    "no second": (
        lambda t: (
            [t.pop(f"model.layers.0.block_sparse_moe.experts.1.{part}.weight") for part in ("w1", "w2", "w3")] and None
        ),
        ("expert", "1"),
    ),
    "no up of the second": (without(f"{EXPERTS}.1.w3.weight"), ("w3.weight",)),
    "no last": (
        lambda t: (
            [t.pop(f"model.layers.0.block_sparse_moe.experts.2.{part}.weight") for part in ("w1", "w2", "w3")] and None
        ),
        ("experts", "3"),
    ),
}


@pytest.mark.parametrize("case", WRONG_EXPERTS)
@pytest.mark.parametrize(
    "command",
    [("fuse", "--layout", "experts"), ("convert", "--to", "transformers-5"), ("convert", "--to", "vllm")],
    ids=lambda words: words[-1],
)
def test_missing_experts(case: str, command: tuple[str, ...], tmp_path: Path) -> None:
    change, says = WRONG_EXPERTS[case]
    tensors = experts()
    change(tensors)
    saved(tmp_path, tensors, MIXTRAL)
    refused(quick, command[0], "m", *command[1:], "-o", "out", cwd=tmp_path, code=5, says=says)


def test_two_dialects_in_one_file(tmp_path: Path) -> None:
    """Some experts stacked, some apart."""
    at = "model.layers.1.mlp.experts"
    mixed = {f"{at}.gate_up_proj": torch.randn(3, 20, 24), f"{at}.down_proj": torch.randn(3, 24, 10)}
    saved(tmp_path, {**experts(), **mixed}, {**MIXTRAL, "num_hidden_layers": 2})
    refused(
        quick, "convert", "m", "--to", "vllm", "-o", "out", cwd=tmp_path, code=5, says=("transformers-4", at)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (("--layout", "qkv"), 5, ("heads",)),
        (("--layout", "qkv", "--spec", "qkv heads=5"), 5, ("kv_heads",)),
        (("--layout", "qkv", "--spec", "qkv heads=5 kv_heads=5"), 5, ("72",)),
        (("--layout", "qkv-per-head", "--spec", "qkv heads=7"), 5, ("72",)),
        (("--layout", "qkv-per-head", "--at", "h.1.*"), 5, ("h.1.*",)),
        ((), 5, ("query_key_value",)),
    ],
)
def test_fused_without_the_fact(flags: tuple[str, ...], code: int, says: tuple[str, ...], tmp_path: Path) -> None:
    """No shape says how a fused tensor is divided."""
    saved(tmp_path, fused())
    refused(quick, "unfuse", "m", *flags, "-o", "out", cwd=tmp_path, code=code, says=says)


def test_dialects_need_a_config(tmp_path: Path) -> None:
    saved(tmp_path, apart())
    refused(quick, "convert", "m", "--to", "vllm", "-o", "out", cwd=tmp_path, code=2, says=("config.json",))


def test_dialects_need_a_known_model(tmp_path: Path) -> None:
    saved(tmp_path, apart(), {**CONFIG, "architectures": ["HatForCausalLM"], "model_type": "hat"})
    refused(quick, "convert", "m", "--to", "vllm", "-o", "out", cwd=tmp_path, code=5, says=("HatForCausalLM",))


def test_copies_that_differ(tmp_path: Path) -> None:
    """A gate that is repeated over its head goes back only if the copies are equal; the bytes say."""
    from paramtool import fuse

    scalar = {**{n: t for n, t in apart().items() if "bias" not in n}, f"{AT}.g_proj.weight": torch.randn(6, 24)}
    at = saved(tmp_path, scalar, CONFIG)
    fuse(at, tmp_path / "out", layout="qkv-scalar-gate-expanded")
    from safetensors.torch import load_file

    made = load_file(tmp_path / "out" / "model.safetensors")
    weight = made[f"{AT}.linear_qkv.weight"]
    assert weight.shape == (24 + 24 + 8 + 8, 24)
    weight[13, 5] += 1  # the second copy of the first head's gate, in the first group
    save_file(made, tmp_path / "out" / "model.safetensors")
    flags = ("--layout", "qkv-scalar-gate-expanded", "-o", "back")
    refused(quick, "unfuse", "out", *flags, cwd=tmp_path, code=5, says=("repeats", "g_proj"))


RECORD = {
    "tensor": "x.weight", "layout": "qkv", "along": 0, "pattern": "q[q_rows in] k[k_rows in] v[v_rows in]",
    "sizes": {"q_rows": 2, "k_rows": 2, "v_rows": 2, "in": 3},
    "parts": {"q": ["q.weight"], "k": ["k.weight"], "v": ["v.weight"]}, "positions": {},
}  # fmt: skip
HOSTILE: dict[str, Any] = {
    "no JSON": "{",
    "another version": {"version": 9},
    "fused is a number": {"version": 1, "fused": 3},
    "no pattern": {"version": 1, "fused": [{**RECORD, "pattern": 3}]},
    "a pattern that is none": {"version": 1, "fused": [{**RECORD, "pattern": "q[[["}]},
    "many braces": {"version": 1, "fused": [{**RECORD, "pattern": "{heads: " * 5000 + "q[in]" + "}" * 5000}]},
    "a long pattern": {"version": 1, "fused": [{**RECORD, "pattern": "q[in] " * 100_000}]},
    "huge sizes": {
        "version": 1,
        "fused": [{**RECORD, "sizes": {"q_rows": 1 << 62, "k_rows": 1, "v_rows": 1, "in": 9}}],
    },
    "more heads than fit": {
        "version": 1,
        "fused": [
            {
                **RECORD,
                "pattern": "{heads: q.rot[(half two) in] q.rest[rest in]}",
                "sizes": {"heads": 1 << 40, "head_dim": 4, "rotary": 2, "in": 3},
                "parts": {"q": ["q.weight"]},
            }
        ],
    },
    "an axis that is none": {"version": 1, "fused": [{**RECORD, "along": 7}]},
    "sizes that are none": {"version": 1, "fused": [{**RECORD, "sizes": {"q_rows": -1}}]},
    "no such part": {"version": 1, "fused": [{**RECORD, "parts": {"hat": ["q.weight"]}}]},
    "other parts": {"version": 1, "fused": [{**RECORD, "parts": {"q": [], "k": [], "v": []}}]},
    "another shape": {"version": 1, "fused": [{**RECORD, "sizes": {"q_rows": 3, "k_rows": 2, "v_rows": 2, "in": 3}}]},
    "no such tensor": {"version": 1, "fused": [{**RECORD, "tensor": "y.weight"}]},
}


DAMAGED = ("no JSON", "another version", "fused is a number", "no pattern", "sizes that are none")
"""What is no record at all."""


@pytest.mark.parametrize("case", HOSTILE)
def test_records(case: str, tmp_path: Path) -> None:
    """A record is foreign data: damaged or hostile, it is refused at once."""
    record = HOSTILE[case]
    text = record if isinstance(record, str) else json.dumps(record)
    saved(tmp_path, {"x.weight": torch.randn(6, 3)}, metadata={"paramtool.parts": text})
    code = 3 if case in DAMAGED else 5
    refused(quick, "unfuse", "m", "-o", "out", cwd=tmp_path, code=code, says=("m/model.safetensors",))


@pytest.mark.parametrize("layout", ["qkv", "qkv-per-group"])
@pytest.mark.parametrize("who", ["--spec", "config.json"])
def test_a_record_that_is_contradicted(layout: str, who: str, tmp_path: Path) -> None:
    """Also where its pattern needs no heads, as that of plain qkv."""
    saved(tmp_path, apart(), CONFIG)
    assert quick("fuse", "m", "--layout", layout, "-o", "n", cwd=tmp_path).code == 0
    flags = ("--spec", "qkv kv_heads=3") if who == "--spec" else ()
    if who == "config.json":
        (tmp_path / "n" / "config.json").write_text(json.dumps({**CONFIG, "num_key_value_heads": 3}))
    else:
        (tmp_path / "n" / "config.json").unlink()
    refused(quick, "unfuse", "n", *flags, "-o", "out", cwd=tmp_path, code=5, says=(who, "3"))


def test_another_layout_than_the_config_says(tmp_path: Path) -> None:
    """With --at the user knows better: a folder that was rearranged by another program has its old config."""
    name = "gpt_neox.layers.0.attention.query_key_value"
    saved(tmp_path, {f"{name}.weight": torch.randn(72, 24)}, {**CONFIG, "model_type": "gpt_neox"})
    command = ("unfuse", "m", "--layout", "qkv", "-o", "out")
    says = ("qkv-per-head", "gpt_neox.layers.*.attention", "--at")
    refused(quick, *command, cwd=tmp_path, code=5, says=says)
    ran = quick(*command, "--at", "*.attention", cwd=tmp_path)
    assert ran.code == 0 and "says layout qkv-per-head; taken apart as qkv, because --at chooses it" in ran.err, ran


# --- what a message says ---------------------------------------------------------------------------------------------


def adapter(folder: Path, **change: torch.Tensor) -> None:
    """An adapter of queries, keys and values of one layer, with one A; `change` are other factors of its keys."""
    at, same = "base_model.model.model.layers.0.self_attn", torch.randn(2, 24)
    tensors = {}
    for part, rows in (("q", 24), ("k", 8), ("v", 8)):
        tensors[f"{at}.{part}_proj.lora_A.weight"] = same.clone()
        tensors[f"{at}.{part}_proj.lora_B.weight"] = torch.randn(rows, 2)
    tensors |= {f"{at}.k_proj.{name}.weight": tensor for name, tensor in change.items()}
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")


@pytest.mark.parametrize(
    ("change", "says"),
    [({"lora_B": torch.ones(9, 2)}, "k_proj.lora_B.weight' has 9 rows; expected kv_heads=2 x head_dim=4 = 8"),
     ({"lora_A": torch.ones(2, 12)}, "k_proj.lora_A.weight' is of a weight of shape [8, 12]; expected in=24")],
)  # fmt: skip
def test_the_factor_that_is_wrong_is_named(change: dict[str, torch.Tensor], says: str, tmp_path: Path) -> None:
    """Rows of a weight are rows of B, and its inputs those of A."""
    adapter(tmp_path / "m", **change)
    flags = ("--layout", "qkv-per-group", "--spec", "qkv heads=6 kv_heads=2 head_dim=4")
    refused(quick, "fuse", "m", *flags, "-o", "out", cwd=tmp_path, code=5, says=(says,))


@pytest.mark.parametrize("source", ["vllm", "megatron", "meta"])
def test_another_dialect_than_from_says(source: str, tmp_path: Path) -> None:
    folder_of(tmp_path / "m", attention.LLAMA)
    says = (f"--from {source}, and its names are those of transformers-4", "hint: --from transformers-4, or none")
    refused(
        quick, "convert", "m", "--from", source, "--to", "transformers-5", "-o", "out", cwd=tmp_path, code=5, says=says
    )


def test_the_prefix_of_a_section_and_of_an_adapter(tmp_path: Path) -> None:
    """The hint is what works: one section alone, and no renaming of an adapter's names."""
    state = attention.state_of(attention.LLAMA)
    folder_of(tmp_path / "m", attention.LLAMA, {f"base_model.model.{name}": t for name, t in state.items()})
    says = ("begin with 'base_model.model.', as those of a PEFT adapter do", "hint: merge the adapter into its model")
    refused(quick, "convert", "m", "--to", "megatron", "-o", "out", cwd=tmp_path, code=5, says=says)
    nested = tmp_path / "n"
    nested.mkdir()
    torch.save({"model": state, "ema": state}, nested / "pytorch_model.bin")
    (nested / "config.json").write_text(json.dumps(attention.LLAMA))
    says = ("has this layer of LlamaForCausalLM at model.layers.*", "hint: ", "--only model converts it alone")
    refused(quick, "convert", "n", "--to", "megatron", "-o", "out", cwd=tmp_path, code=5, says=says)
    ran = quick("convert", "n", "--only", "model", "--to", "megatron", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and "untouched" not in ran.out, ran
    refused(quick, "convert", "n", "--to", "lama", "-o", "o", cwd=tmp_path, code=2, says=("hint: did you mean meta?",))


def test_a_config_without_architectures(tmp_path: Path) -> None:
    config = {key: value for key, value in attention.LLAMA.items() if key != "architectures"}
    folder_of(tmp_path / "m", config, attention.state_of(attention.LLAMA))
    says = ("`architectures` is missing", 'as in "architectures": ["LlamaForCausalLM"]')
    refused(quick, "convert", "m", "--to", "vllm", "-o", "out", cwd=tmp_path, code=5, says=says)


def test_a_copy_says_which_dialect_it_is_in_and_which_others_there_are(tmp_path: Path) -> None:
    folder_of(tmp_path / "m", attention.LLAMA, attention.state_of(attention.LLAMA))
    ran = quick("convert", "m", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and "transformers-4 (LlamaForCausalLM), unchanged" in ran.out and "network" not in ran.out, ran
    assert "--to converts it to transformers-5, vllm, megatron or meta" in ran.out


@pytest.mark.parametrize(
    "target, architecture, says",
    [
        ("vllm", "ViTForImageClassification", ("give it the folder as it is", "`paramtool layouts vllm` lists")),
        ("vllm", "BertModel", ("bert.py", "give it the folder as it is")),
        ("meta", "BertModel", ("lacks BertModel", "it has one for LlamaForCausalLM")),
        ("meta", "Phi3ForCausalLM", ("\nhint: it has one for LlamaForCausalLM\n",)),
        ("megatron", "GPTNeoXForCausalLM", ("\nhint: `paramtool layouts megatron` lists the ",)),
        ("megatron", "Gemma4ForCausalLM", ("similar names that it has: GemmaForCausalLM, Gemma3ForCausalLM",)),
    ],
)
def test_a_model_without_a_table(target: str, architecture: str, says: tuple[str, ...], tmp_path: Path) -> None:
    config = {**attention.LLAMA, "architectures": [architecture]}
    folder_of(tmp_path / "m", config, attention.state_of(attention.LLAMA))
    words = ("--from", "transformers-4", "--to", target)
    refused(quick, "convert", "m", *words, "-o", "out", cwd=tmp_path, code=5, says=says)


def test_an_mlp_without_a_gate_holds_no_gate(tmp_path: Path) -> None:
    """Falcon's first matrix has as many rows as its config says, and is no gate above up."""
    config = {"model_type": "falcon", "architectures": ["FalconForCausalLM"], "hidden_size": 24, "ffn_hidden_size": 96,
              "num_attention_heads": 6}  # fmt: skip
    saved(tmp_path, {"transformer.h.0.mlp.dense_h_to_4h.weight": torch.randn(96, 24)}, config)
    says = ("dense_h_to_4h.weight' has shape [96, 24], which is that of an MLP without a gate",)
    refused(quick, "unfuse", "m", "--layout", "gate-up", "-o", "out", cwd=tmp_path, code=5, says=says)
    says = ("has no parts called gate_proj", "such as '*.mlp'")
    refused(quick, "fuse", "m", "--layout", "gate-up", "-o", "out", cwd=tmp_path, code=5, says=says)


@pytest.mark.parametrize(("output", "code"), [("out", 2), ("out/", 7)])
def test_a_folder_for_a_file(output: str, code: int, tmp_path: Path) -> None:
    folder_of(tmp_path / "m", attention.LLAMA)
    says = ("a folder is written where the input is one",)
    path = "m/model.safetensors"
    refused(quick, "convert", path, "--to", "vllm", "-o", output, cwd=tmp_path, code=code, says=says)


def test_all_layouts_that_a_record_takes_apart_are_named(tmp_path: Path) -> None:
    folder_of(tmp_path / "m", attention.LLAMA)
    for source, layout, output in (("m", "qkv", "one"), ("one", "gate-up", "both")):
        assert quick("fuse", source, "--layout", layout, "-o", output, cwd=tmp_path).code == 0
    ran = quick("unfuse", "both", "-o", "apart", cwd=tmp_path)
    assert "layout  qkv, gate-up -> separate tensors  4 modules" in ran.out


@pytest.mark.parametrize(("size", "are"), [(64, 0), (63, 1)])
def test_notes_that_do_not_concern_a_model_are_no_warnings(size: int, are: int, tmp_path: Path) -> None:
    folder_of(tmp_path / "m", {**attention.LLAMA, "vocab_size": size})
    ran = quick("convert", "m", "--to", "vllm", "-o", "out", cwd=tmp_path)
    assert ran.code == 0 and ran.err.count("warning") == are


def test_no_flag_contradicts_the_record(tmp_path: Path) -> None:
    """The record of a file is true of its tensors: --at chooses among them, and does not make it another layout."""
    saved(tmp_path, apart(), CONFIG)
    assert quick("fuse", "m", "--layout", "qkv-per-group", "-o", "fused", cwd=tmp_path).code == 0
    command = ("unfuse", "fused", "--layout", "qkv", "-o", "out", "--at", "*.self_attn")
    refused(quick, *command, cwd=tmp_path, code=5, says=("its record says layout qkv-per-group",))
    assert quick("unfuse", "fused", "-o", "out", cwd=tmp_path).code == 0
