"""Makes the checkpoints that the benchmarks read: real files of torch.save and safetensors with random values.

python inputs.py aliases FILE.pt NBYTES          ~200 names: a tie, its transpose, a slice, a fused LSTM
python inputs.py distinct FILE.pt NBYTES COUNT   COUNT tensors of one shape, no two equal
python inputs.py many FILE COUNT                 COUNT tensors of 4 values; .pt or .safetensors
python inputs.py ties FILE COUNT                 COUNT names, a hundred on each storage
python inputs.py content FILE NBYTES KIND        pairs of tensors: equal, slice, transpose, cast; or none, all different
python inputs.py family FOLDER NBYTES COUNT      COUNT checkpoints of one family: a fifth of each is its own
python inputs.py lstm FILE NBYTES                an LSTM of 4 layers beside an embedding of the same size
python inputs.py experts FOLDER NBYTES RUN COUNT a Qwen3-MoE of COUNT experts, each matrix RUN bytes
python inputs.py training FILE.pt NBYTES         layers with queries, keys and values apart, and AdamW's state of them
python inputs.py ranks FOLDER NBYTES COUNT       the same in a folder of torch.distributed.checkpoint, by COUNT ranks
python inputs.py typed FILE.pt NBYTES MODEL      an `lstm` (5,000 wide at 2 GB), a `llama`, or 100,000 `small` tensors
python inputs.py attention FOLDER NBYTES         queries, keys and values of 32 heads, each a matrix of 2048 x 2048
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import torch
from safetensors.torch import save_file

WIDTH = 1024
RANDOM = np.random.default_rng(0)


def values(*shape: int) -> torch.Tensor:
    """Random float32 on a storage of its own."""
    return torch.from_numpy(RANDOM.random(shape, dtype=np.float32))


def aliases(nbytes: int) -> dict[str, torch.Tensor]:
    """A model of `nbytes` bytes whose aliases are all by storage."""
    unit = nbytes // 224 // (4 * WIDTH)
    emb = values(32 * unit, WIDTH)
    state = {"emb.weight": emb, "head.weight": emb, "unembed": emb.t(), "short.weight": emb[: 4 * unit]}
    flat = values(8 * unit * WIDTH)
    state |= {f"rnn.weight_{k}": window.view(unit, WIDTH) for k, window in enumerate(flat.split(unit * WIDTH))}
    return state | {f"layer.{k}.weight": values(unit, WIDTH) for k in range(184)}


def distinct(nbytes: int, count: int) -> dict[str, torch.Tensor]:
    """`count` tensors of one shape, so that any two could be equal."""
    return {f"layer.{k}.weight": values(nbytes // count // 4) for k in range(count)}


def many(count: int) -> dict[str, torch.Tensor]:
    """Tiny tensors, each on a storage of its own."""
    return {f"model.layers.{k // 10}.block.{k % 10}.weight": values(4) for k in range(count)}


def ties(count: int) -> dict[str, torch.Tensor]:
    """Names that share storages: a hundred on each."""
    shared = [values(4) for _ in range(max(1, count // 100))]
    return {f"l.{k // 100}.{k % 100}": shared[k // 100 % len(shared)] for k in range(count)}


def lstm(nbytes: int) -> dict[str, torch.Tensor]:
    """An LSTM of 4 layers of about half of `nbytes`, input as wide as hidden, and an embedding."""
    hidden = max(16, int((nbytes / 2 / 4 / 4 / 8) ** 0.5) // 16 * 16)
    state = {"emb.weight": values(nbytes // 2 // 4 // hidden, hidden)}
    for layer in range(4):
        state |= {f"rnn.weight_{side}_l{layer}": values(4 * hidden, hidden) for side in ("ih", "hh")}
        state |= {f"rnn.bias_{side}_l{layer}": values(4 * hidden) for side in ("ih", "hh")}
    return state


def typed(nbytes: int, model: str) -> dict[str, torch.Tensor]:
    """Shapes of real models, of about `nbytes` bytes."""
    if model == "small":
        return {f"h.{k // 10}.{k % 10}.weight": values(max(1, nbytes // 400_000)) for k in range(100_000)}
    if model == "llama":
        wide, inner = (4096, 11008) if nbytes >= 1e9 else (2048, 5632)
        shapes = {f"self_attn.{part}_proj": (wide, wide) for part in "qkvo"}
        shapes |= {"mlp.gate_proj": (inner, wide), "mlp.up_proj": (inner, wide), "mlp.down_proj": (wide, inner)}
        layers = max(1, nbytes // (2 * wide * (4 * wide + 3 * inner)))
        return {
            f"model.layers.{k}.{name}.weight": values(*shape).to(torch.bfloat16)
            for k in range(layers)
            for name, shape in shapes.items()
        }
    hidden = int((nbytes * 0.8 / 64) ** 0.5)
    state = {"emb.weight": values(int(nbytes * 0.2) // 4 // hidden, hidden)}
    for layer in range(2):
        state |= {f"rnn.weight_{side}_l{layer}": values(4 * hidden, hidden) for side in ("ih", "hh")}
        state |= {f"rnn.bias_{side}_l{layer}": values(4 * hidden) for side in ("ih", "hh")}
    return state | {"head.weight": state["emb.weight"]}


SIDE = 4096


def content(nbytes: int, kind: str) -> dict[str, torch.Tensor]:
    """Pairs of a matrix of 64 MB and a tensor derived from it; `none` is a transformer with different tensors."""
    if kind == "none":
        width = 2048
        layers = max(1, nbytes // 4 // (14 * width**2))
        shapes = {
            "qkv": (3 * width, width),
            "out": (width, width),
            "up": (4 * width, width),
            "down": (width, 4 * width),
        }
        state = {f"{k}.{name}.weight": values(*shape) for k in range(layers) for name, shape in shapes.items()}
        state |= {f"{k}.{name}.bias": values(shape[0]) for k in range(layers) for name, shape in shapes.items()}
        return state | {"wte.weight": values(50257, width), "wpe.weight": values(1024, width)}
    state = {}
    make = {
        "equal": lambda tensor: tensor.clone(),
        "slice": lambda tensor: tensor[13:].clone(),
        "transpose": lambda tensor: tensor.t().contiguous(),
        "cast": lambda tensor: tensor.bfloat16(),
    }[kind]
    pair = SIDE * SIDE * (6 if kind == "cast" else 8)
    for k in range(max(1, nbytes // pair)):
        state[f"layer{k}.weight"] = values(SIDE, SIDE)
        state[f"other{k}.weight"] = make(state[f"layer{k}.weight"])
    return state


def family(folder: str, nbytes: int, count: int) -> None:
    """Fine-tunes of one model, `nbytes` in total; tensors that differ do so only in their last element."""
    side = max(8, int((nbytes / count / 40 / 4) ** 0.5))
    state = {f"layer{k}.weight": values(side, side) for k in range(40)}
    for number in range(count):
        own = {name: tensor.clone() for k, (name, tensor) in enumerate(state.items()) if k % 5 == number % 5}
        for tensor in own.values():
            tensor[-1, -1] += number + 1
        save_file(state | own, f"{folder}/model{number}.safetensors")


SHARD_NBYTES = 1_000_000_000
"""The largest shard, as save_pretrained(max_shard_size="1GB") makes them."""


def numbers(*shape: int) -> torch.Tensor:
    """Random bfloat16 between 1 and 2."""
    bits = RANDOM.integers(0x3F80, 0x4000, shape, dtype=np.uint16)
    return torch.from_numpy(bits).view(torch.bfloat16)


def experts(folder: str, nbytes: int, run: int, count: int) -> None:
    """A Qwen3-MoE of `nbytes` bytes as transformers 4 writes it: a list of `count` experts in each layer."""
    width = 1024 if run >= 1 << 20 else 160
    ffn = run // 2 // width
    layers = max(1, nbytes // (3 * count * ffn * width * 2))
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": width, "head_dim": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": layers, "num_experts": count,
        "num_experts_per_tok": 2, "moe_intermediate_size": ffn, "intermediate_size": ffn, "vocab_size": 1000,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (1000, width)}
    for k in range(layers):
        at = f"model.layers.{k}"
        for child, rows in (("q", 128), ("k", 64), ("v", 64)):
            shapes[f"{at}.self_attn.{child}_proj.weight"] = (rows, width)
        shapes[f"{at}.self_attn.o_proj.weight"] = (width, 128)
        shapes |= {f"{at}.self_attn.{child}_norm.weight": (32,) for child in "qk"}
        shapes[f"{at}.mlp.gate.weight"] = (count, width)
        for expert in range(count):
            own = f"{at}.mlp.experts.{expert}"
            shapes |= {f"{own}.{child}_proj.weight": (ffn, width) for child in ("gate", "up")}
            shapes[f"{own}.down_proj.weight"] = (width, ffn)
        shapes |= {f"{at}.{child}_layernorm.weight": (width,) for child in ("input", "post_attention")}
    shapes |= {"model.norm.weight": (width,), "lm_head.weight": (1000, width)}
    _folder(folder, config, shapes)


def attention(folder: str, nbytes: int) -> None:
    """Queries, keys and values of layers with 32 heads of 64, apart."""
    at = [f"model.layers.{k}.self_attn" for k in range(max(1, nbytes // (3 * 2048 * 2048 * 2)))]
    shapes: dict[str, tuple[int, ...]] = {f"{one}.{child}_proj.weight": (2048, 2048) for one in at for child in "qkv"}
    _folder(folder, None, shapes)


def training(nbytes: int) -> dict[str, object]:
    """A model of a third of `nbytes`, and the state of AdamW after one step: matrices of 2048 x 2048 in float32."""
    children = [f"self_attn.{child}_proj" for child in "qkvo"] + ["mlp.up_proj", "mlp.down_proj"]
    layers = max(1, nbytes // (len(children) * 3 * 4 * 2048 * 2048))
    names = [f"model.layers.{k}.{child}.weight" for k in range(layers) for child in children]
    state = {k: {"step": torch.tensor(1.0), **{slot: _ramp(2048, 2048) for slot in SLOTS}} for k in range(len(names))}
    (group,) = torch.optim.AdamW([torch.zeros(1)]).state_dict()["param_groups"]
    group["params"] = list(state)
    return {
        "model": {name: _ramp(2048, 2048) for name in names},
        "optimizer": {"state": state, "param_groups": [group]},
    }


SLOTS = ("exp_avg", "exp_avg_sq")


def _ramp(*shape: int) -> torch.Tensor:
    """Random values that are quick to make: the same rows, in another order each time."""
    return BASE[torch.randperm(BASE.shape[0], generator=ORDER)][: shape[0], : shape[1]].clone()


BASE = values(2048, 2048)
ORDER = torch.Generator().manual_seed(0)


def ranks(folder: str, nbytes: int, count: int) -> None:
    """The same, each tensor split by rows among `count` ranks, as each rank would write its file.

    The metadata is what torch.distributed.checkpoint's planner makes of as many processes.
    """
    import pickle

    from torch.distributed.checkpoint import metadata as dm
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    whole = training(nbytes)
    tensors = {f"model.{name}": value for name, value in whole["model"].items()}
    moments = whole["optimizer"]["state"].values()
    for name, state in zip(whole["model"], moments, strict=True):
        tensors |= {f"optim.state.{name}.{slot}": state[slot] for slot in SLOTS}
    os.makedirs(folder)
    described: dict[str, object] = {}
    places = {}
    for rank in range(count):
        file = f"__{rank}_0.distcp"
        with open(f"{folder}/{file}", "wb") as out:
            for name, tensor in tensors.items():
                part = tensor.chunk(count)[rank].clone()
                start = out.tell()
                torch.save(part, out)
                at = torch.Size((rank * part.shape[0], 0))
                places[dm.MetadataIndex(name, at, rank)] = _StorageInfo(file, start, out.tell() - start)
                known = described.setdefault(
                    name, dm.TensorStorageMetadata(dm.TensorProperties(dtype=tensor.dtype), tensor.shape, [])
                )
                known.chunks.append(dm.ChunkStorageMetadata(at, part.shape))
    split = {name: tuple(name.split(".", 1)) if name.startswith("model.") else _place(name) for name in tensors}
    with open(f"{folder}/.metadata", "wb") as out:
        pickle.dump(dm.Metadata(described, split, places, None, "1.0.0"), out)


def _place(name: str) -> tuple[str, ...]:
    """The keys of a moment: `optim`, `state`, the parameter, the slot."""
    top, kind, rest = name.split(".", 2)
    return (top, kind, *rest.rsplit(".", 1))


def _folder(folder: str, config: dict[str, object] | None, shapes: dict[str, tuple[int, ...]]) -> None:
    """A folder with a config, shards and their index."""
    os.makedirs(folder)
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        own = 2 * int(np.prod(shape))
        if shards[-1] and size + own > SHARD_NBYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += own
    index: dict[str, str] = {}
    for k, names in enumerate(shards):
        file = f"model-{k + 1:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        save_file({name: numbers(*shapes[name]) for name in names}, f"{folder}/{file}", {"format": "pt"})
        index |= dict.fromkeys(names, file)
    if config is not None:
        with open(f"{folder}/config.json", "w") as out:
            json.dump(config, out)
    if len(shards) > 1:
        total = sum(2 * int(np.prod(shape)) for shape in shapes.values())
        with open(f"{folder}/model.safetensors.index.json", "w") as out:
            json.dump({"metadata": {"total_size": total}, "weight_map": index}, out)


def main() -> None:
    """Make one file, or the files of a family."""
    kind, path, *words = sys.argv[1:]
    if kind in ("experts", "attention", "ranks"):
        {"experts": experts, "attention": attention, "ranks": ranks}[kind](path, *map(int, words))
        return
    if kind == "family":
        family(path, *map(int, words))
        return
    values_of = (int(word) if word.isdecimal() else word for word in words)
    state = {"aliases": aliases, "distinct": distinct, "many": many, "ties": ties, "lstm": lstm, "content": content,
             "training": training, "typed": typed}[kind](*values_of)  # fmt: skip
    if path.endswith(".safetensors"):
        save_file(state, path)
    else:
        torch.save(state, path)


if __name__ == "__main__":
    main()
