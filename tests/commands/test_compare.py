"""What comparing joins and what it leaves alone: roles, quantised modules, small tensors, vectors of networks."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import paramtool
from paramtool.commands import inspect as inspect_command
from paramtool.commands.compare import Looking, compare
from paramtool.engine.compare import slices
from paramtool.model import alias
from tests.versions import needs


@pytest.fixture
def found(tmp_path):
    """What comparing finds among some tensors, saved by torch."""

    def look(tensors, **looking):
        path = tmp_path / "model.pt"
        torch.save(tensors, path)
        checkpoint = paramtool.read(path)
        return compare(checkpoint, alias.build(checkpoint), Looking(**looking))

    return look


def related(content):
    """{(name, owner, relation)} of all matches."""
    return {(match.name, match.owner, match.relation) for match in content.matches}


def test_roles_stay_apart_unless_asked(found):
    """Weights, optimizer state and EMA copies are equal at step 0, and are different things."""
    weights = torch.randn(64, 32)
    state = {
        "model": {"w": weights.clone()},
        "ema": {"w": weights.clone(), "low": weights.bfloat16()},
        "optimizer": {"state": {0: {"exp_avg": weights.clone(), "part": weights[:40].clone()}}, "param_groups": []},
    }
    apart = found(state)
    assert apart.equal == ()
    assert related(apart) == {
        ("ema.low", "ema.w", "cast"),
        ("optimizer.state.0.part", "optimizer.state.0.exp_avg", "slice"),
    }
    together = found(state, across_roles=True)
    assert [set(one.names) for one in together.equal] == [{"model.w", "ema.w", "optimizer.state.0.exp_avg"}]


@pytest.mark.parametrize(
    "name",
    [
        "momentum_encoder.w",
        "target_net.w",
        "m.target_network.w",
        "Target-Net.w",
        "net.ema_w",
        "net._ema_w",
        "ema_net.w",
    ],
)
def test_networks_that_follow_others_are_no_weights_of_the_model(found, name):
    """What is called a momentum encoder, a target network or an EMA copy is equal to the model at step 0 alone."""
    weights = torch.randn(64, 32)
    assert found({"encoder.w": weights.clone(), name: weights.clone()}).equal == ()
    assert len(found({"target_embedding.w": weights.clone(), "encoder_k.w": weights.clone()}).equal) == 1


QUANTISED = {
    "gptq": ("qweight", ("scales", "qzeros", "g_idx"), torch.int32),
    "compressed-tensors": ("weight_packed", ("weight_scale", "weight_zero_point"), torch.int32),
    "fp8": ("weight", ("weight_scale_inv",), torch.float8_e4m3fn),
    "bitsandbytes": (
        "weight",
        ("weight.absmax", "weight.quant_map", "weight.quant_state.bitsandbytes__nf4"),
        torch.uint8,
    ),
    "hqq": ("W_q", ("scale", "zero"), torch.uint8),
    "mlx": ("weight", ("scales", "biases"), getattr(torch, "uint32", torch.int32)),  # torch 2.3 has uint32
    "fp8 experts": ("gate_up_proj", ("gate_up_proj_scale_inv",), torch.float8_e4m3fn),
    "mxfp4": ("gate_up_proj_blocks", ("gate_up_proj_scales",), torch.uint8),
    "quantized": ("weight_quantized", ("weight_s",), torch.uint8),
    "comfyui": ("weight", ("scale_weight",), torch.float8_e4m3fn),
    "quanto": ("weight._data", ("weight._scale",), torch.int8),
    "torchao": ("weight.int_data", ("weight.scale", "weight.zero_point"), torch.int8),
    "torchao, flat": ("weight_qdata", ("weight_scale",), torch.int8),
    "exllama": ("q_weight", ("q_scale", "q_scale_max"), torch.int32),
    "packed": ("packed", ("scales",), torch.uint8),
    "w_scale": ("weight", ("w_scale",), torch.int8),
    "marlin": ("B", ("s",), torch.int32),
    "marlin, sparse": ("B_24", ("B_meta_s",), torch.int32),
    "modelopt": ("weight", ("weight_quantizer._scale",), torch.uint8),
    "aqlm": ("codes", ("codebooks", "scales"), torch.int16),
    "kernel": ("kernel", ("kernel_scale",), torch.int8),
    "slashes": ("dense/kernel", ("dense/kernel_scale",), torch.int8),
}


SAVED = [
    pytest.param(kind, marks=needs("torch", "2.8", "torch.save of float8, which 2.1 refuses"))
    if dtype == torch.float8_e4m3fn
    else kind
    for kind, (*_, dtype) in QUANTISED.items()
]


@pytest.mark.sample(22)
@pytest.mark.parametrize("kind", SAVED)
@pytest.mark.parametrize("differs", [True, False])
def test_packed_weights_match_only_with_their_scales(found, kind, differs):
    """Equal packed weights with one other scale are other weights; a slice of packed weights is nothing."""
    packed, scales, dtype = QUANTISED[kind]
    raw = torch.randint(0, 100, (64, 64), dtype=torch.uint8)
    state = {}
    for module in ("a", "b", "c"):
        state[f"{module}.{packed}"] = raw.view(torch.uint8).to(dtype).clone()
        for k, scale in enumerate(scales):
            state[f"{module}.{scale}"] = torch.arange(12.0) + k
    state["d.part"] = state[f"a.{packed}"][:40].clone()
    if differs:
        state[f"c.{scales[-1]}"] = torch.arange(12.0) + 99
    content = found(state)
    joined = {"a", "b"} if differs else {"a", "b", "c"}
    assert [set(one.names) for one in content.equal] == [{f"{module}.{packed}" for module in joined}]
    assert related(content) == set()


def test_ordinary_tensors_beside_a_scale_are_compared(found):
    """A normalisation layer has a `scale` and a float weight: nothing is quantised."""
    state = {f"{m}.{n}": torch.arange(2000.0) for m in "ab" for n in ("weight",)}
    state |= {"a.scale": torch.ones(3), "b.scale": torch.zeros(3)}
    assert [set(one.names) for one in found(state).equal] == [{"a.weight", "b.weight"}]


def test_every_packed_tensor_of_a_module_has_its_own_scale(found):
    """Experts, or all layers, in one module: what a scale belongs to is seen from its name."""
    raw = torch.randint(-100, 100, (64, 64), dtype=torch.int8)
    packed = {f"m.w{k}": raw.clone() for k in range(3)} | {f"layer{k}_weight": raw.clone() for k in range(40)}
    scales = {f"m.w{k}_scale": torch.arange(9.0) + k // 2 for k in range(3)}
    scales |= {f"layer{k}_scale": torch.arange(5.0) + k // 20 for k in range(40)}
    expected = [{"m.w0", "m.w1"}, *({f"layer{k}_weight" for k in some} for some in (range(20), range(20, 40)))]
    assert [set(one.names) for one in found(packed | scales).equal] == expected


def test_packed_weights_whose_scales_are_tied(found):
    """One scale under three names is the same scale."""
    raw, scale = torch.randint(-100, 100, (64, 64), dtype=torch.int8), torch.rand(2000)
    state = {f"{m}.weight": raw.clone() for m in "abc"} | {"a.scale": scale, "b.scale": scale, "c.scale": scale.clone()}
    expected = [{"a.weight", "b.weight", "c.weight"}, {"a.scale", "c.scale"}]
    assert [set(one.names) for one in found(state).equal] == expected


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("position_ids", torch.int64),
        ("relative_position_index", torch.int32),
        ("attn_mask", torch.uint8),
        ("causal", torch.bool),
        ("table", torch.int64),
        ("scale_net.weight", torch.int8),
    ],
)
def test_indexes_and_masks_have_no_scales(found, name, dtype):
    """What is no packed weight is compared by itself, whatever stands beside it."""
    values = (torch.arange(64 * 64).view(64, 64) % 3).to(dtype)
    scale = "b.scale" if "." not in name else "b.embed_scale"  # `b.scale` can be that of the module below
    state = {f"{m}.{name}": values.clone() for m in "ab"} | {"a.logit_scale": torch.ones(3), scale: torch.zeros(3)}
    assert [set(one.names) for one in found(state).equal] == [{f"a.{name}", f"b.{name}"}]


def test_small_and_0d_tensors_are_nobodys_partner(found):
    """Counters, scales and short biases are equal by chance."""
    state = {"a": torch.tensor(3), "b": torch.tensor(3), "c": torch.zeros(100), "d": torch.zeros(100)}
    content = found(state)
    assert (content.equal, dict(content.constants), content.matches) == ((), {}, ())


def test_padded_vocabulary_experts_and_qkv(found):
    """A shorter vocabulary, experts beside their stack, one row of a stack, q, k, v beside their fused one."""
    full, stack, qkv = torch.randn(1003, 48), torch.randn(5, 32, 40), torch.randn(3 * 64, 80)
    state = {"padded": full, "emb": full[:997].clone(), "experts": stack, "qkv": qkv, "biases": torch.randn(6, 1100)}
    state |= {f"expert{k}": stack[k].clone() for k in range(5)}
    state |= {name: qkv[64 * k : 64 * k + 64].clone() for k, name in enumerate("qkv")} | {"qkv": qkv}
    state |= {"bias4": state["biases"][4].clone(), "odd": full[13:200].clone()}
    state = {("q_" if name == "q" else name): tensor for name, tensor in state.items()}
    content = found(state)
    expected = {(f"expert{k}", "experts", "slice") for k in range(5)}
    expected |= {("q_", "qkv", "slice"), ("k", "qkv", "slice"), ("v", "qkv", "slice"), ("bias4", "biases", "slice")}
    assert expected <= related(content)
    assert {("emb", "padded", "slice")} <= related(content)
    odd = next(match for match in content.matches if match.name == "odd")
    assert odd.owner in ("emb", "padded") and odd.window.offset == 13 * 48


def test_rows_of_zeros_hide_no_slice(found):
    """Where rows say nothing (padding), every place that they allow is tried."""
    large = torch.zeros(4000, 16)
    large[100] = large[3000] = torch.arange(16.0)
    large[3001] = -torch.arange(16.0)
    content = found({"large": large, "small": large[2500:3500].clone()})
    (match,) = content.matches
    assert (match.name, match.window.offset) == ("small", 2500 * 16)


def test_masks_are_searched_in_bounded_memory(tmp_path):
    """Where nearly all elements are alike, nearly every place is possible: found all the same, within bounds."""
    import tracemalloc

    large, small, other = torch.zeros(6_000_000), torch.zeros(500_000), torch.zeros(400_000)
    small[1000], other[7] = 3, 5
    large[2_000_000:2_500_000] = small
    save_file({"large": large, "small": small, "other": other}, tmp_path / "a.safetensors")
    checkpoint = paramtool.read(tmp_path / "a.safetensors")
    tracemalloc.start()
    content = compare(checkpoint, alias.build(checkpoint), Looking(memory=1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(m.name, m.owner, m.window.offset) for m in content.matches] == [("small", "large", 2_000_000)]
    assert peak < 24 << 20


def test_slices_of_what_the_source_holds_transposed(found):
    """A matrix whose file has its columns one after the other holds its rows all the same, and a stack its blocks."""
    matrix, stack = torch.randn(40, 300).t(), torch.randn(30, 8, 40).permute(1, 2, 0)
    rows, block = matrix[17:200].clone(), stack[5].contiguous()
    content = found({"matrix": matrix, "stack": stack, "rows": rows, "block": block}, min_nbytes=64)
    assert related(content) == {("rows", "matrix", "slice"), ("block", "stack", "slice")}


def test_one_shape_and_another(found):
    """The same elements in other shapes, of which the first gives the others, and the transpose of one of these."""
    line = torch.randn(24 * 60)
    state = {"line": line, "matrix": line.clone().view(24, 60), "tall": line.clone().view(60, 24)}
    state |= {
        "turned": state["matrix"].t().contiguous(),
        "other": torch.randn(60, 24),
        "rows": line[60:240].view(3, 60).clone(),
    }
    assert related(found(state, min_nbytes=64)) == {
        ("matrix", "line", "view"),
        ("tall", "line", "view"),
        ("turned", "matrix", "transpose"),
        ("rows", "matrix", "slice"),
    }


@pytest.mark.parametrize(("pitch", "count"), [(4, 10), (4, 10_000), (4096, 1), (4096, 3), (4096, 5000), (32, 700)])
def test_the_stride_of_looking_is_never_more_than_the_rows(pitch, count):
    """Otherwise a slice could fall between two rows that are looked at."""
    from paramtool.model.dtype import DTYPES
    from paramtool.model.match import Rows
    from paramtool.model.view import contiguous

    rows = Rows("a", contiguous(0, DTYPES["uint8"], (pitch * count,)), pitch)
    assert 1 <= slices.looked_at(rows)[0] <= rows.count


@pytest.mark.parametrize("target", ["keras", "mxnet", "torch"])
def test_parts_of_a_network_in_its_fused_vector(tmp_path, target):
    """A vector that cuDNN runs, beside named tensors of another library: the tables know where, the bytes decide."""
    parts, vector, both = (tmp_path / f"{name}.safetensors" for name in ("parts", "vector", "both"))
    network = torch.nn.LSTM(12, 20, 2, bidirectional=True)
    save_file({f"enc.{name}": value for name, value in network.state_dict().items()}, parts)
    paramtool.fuse(parts, vector, layout="cudnn")
    named = parts
    if target != "torch":
        named = tmp_path / "named.safetensors"
        paramtool.convert(parts, named, target=target)
    flat = next(value for value in load_file(vector).values() if value.dim() == 1)
    save_file({"flat": flat} | {n: v for n, v in load_file(named).items() if v.dtype == torch.float32}, both)
    content = inspect_command.inspect(both, equal=True, min_equal_bytes=64).content
    matrices = [name for name, value in load_file(named).items() if value.dim() == 2 and "bias" not in name]
    inside = {match.name: match.relation for match in content.matches if match.owner == "flat"}
    assert set(matrices) <= inside.keys() and len(matrices) == 8
    assert {inside[name] for name in matrices} == {"transpose" if target == "keras" else "slice"}
    # With one weight changed in the vector, the matrix that it belongs to is not found any more.
    changed = load_file(both)
    changed["flat"][0] += 1
    save_file(changed, both)
    again = inspect_command.inspect(both, equal=True, min_equal_bytes=64).content
    assert len({m.name for m in again.matches if m.owner == "flat"} & set(matrices)) == 7


def test_a_name_that_equals_a_transposed_one_is_loaded_row_by_row(tmp_path):
    """By content alone a transpose has no reason to come back with odd strides; by storage it has."""
    w = torch.randn(50, 40)
    torch.save({"w": w, "own": w.t().contiguous(), "tied": w.t()}, tmp_path / "a.pt")
    out = paramtool.dedup(tmp_path / "a.pt").output
    arrays = paramtool.load_file(out)
    assert arrays["own"].flags.c_contiguous and not np.shares_memory(arrays["own"], arrays["w"])
    assert not arrays["tied"].flags.c_contiguous and np.shares_memory(arrays["tied"], arrays["w"])
    assert np.array_equal(arrays["own"], w.t().numpy())


def test_what_stands_on_what_moves_is_found_again(tmp_path):
    """Slices of a transpose of a copy: that one stays, since others cross it, and all stand on one matrix."""
    w = torch.randn(60, 60)
    turned = w.t().contiguous()
    state = {"w": w, "turned": turned, "rows": turned[10:50], "column": turned[:, 3], "flat": turned.view(-1)[7:2000]}
    torch.save(state, tmp_path / "a.pt")
    report = paramtool.dedup(tmp_path / "a.pt", min_equal_bytes=64)
    arrays = paramtool.load_file(report.output)
    for name, tensor in state.items():
        assert np.array_equal(arrays[name], tensor.numpy()), name
    assert [target.name for target in report.plan.targets] == ["turned"]  # `flat` runs over the ends of its rows
    del state["flat"]
    torch.save(state, tmp_path / "b.pt")
    report = paramtool.dedup(tmp_path / "b.pt", min_equal_bytes=64)
    assert [target.name for target in report.plan.targets] == ["turned"]  # `column` crosses it, so it stays
    arrays = paramtool.load_file(report.output)
    assert all(np.array_equal(arrays[name], tensor.numpy()) for name, tensor in state.items())
    assert np.shares_memory(arrays["turned"], arrays["rows"]) and not np.shares_memory(arrays["turned"], arrays["w"])


def test_memory_of_comparing_stays_within_its_budget():
    """The blocks of all threads together, however many streams are compared."""
    from paramtool.engine.read.streams import MIN_BLOCK_NBYTES, THREADS, block_nbytes

    for budget in (1 << 20, 64 << 20, 512 << 20):
        for streams in (2, 50, 1000):
            held = THREADS * streams * block_nbytes(budget, streams)
            assert held <= max(budget, THREADS * streams * MIN_BLOCK_NBYTES)
