"""Pairs that hold other weights, though some of their bytes are the same; torch and safetensors write them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from paramtool.commands.diff.diff import Diffed, diff
from paramtool.model.diff import ADDED, CAST, CHANGED, LAYOUT, REMOVED, RENAMED, SAME
from tests.hostile.command import quick

ZEROS, ONES = np.zeros((16, 64), "f4"), np.ones((16, 64), "f4")
RANDOM = np.random.default_rng(7)
W, V = (RANDOM.normal(size=(16, 16)).astype("f4") for _ in range(2))
COMPLEX = torch.from_numpy(W[:8, :8] + 1j * V[:8, :8])


def quantised(scale: float) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.from_numpy(np.round(W * 3) * scale), scale, 0, torch.qint8)


def sparse(size: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, 2.0]), (size, size))


def of_torch(place: Path, a: object, b: object) -> Diffed:
    torch.save(a, place / "a.pt")
    torch.save(b, place / "b.pt")
    return diff(place / "a.pt", place / "b.pt")


def of_numpy(place: Path, a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> Diffed:
    for name, tensors in (("a", a), ("b", b)):
        save_file({key: np.ascontiguousarray(one) for key, one in tensors.items()}, place / f"{name}.safetensors")
    return diff(place / "a.safetensors", place / "b.safetensors")


def kinds(found: Diffed) -> dict[str, str]:
    return {(one.b or one.a)[0]: one.kind for one in found.tensors}


OTHER: dict[str, Callable[[Path], Diffed]] = {
    "another scale": lambda at: of_torch(at, {"q": quantised(0.1)}, {"q": quantised(0.2)}),
    "another dense shape": lambda at: of_torch(at, {"s": sparse(2)}, {"s": sparse(3)}),
    "a conjugate that is pending": lambda at: of_torch(at, {"x": COMPLEX.clone()}, {"x": COMPLEX.clone().conj()}),
    "a conjugate that is no more": lambda at: of_torch(at, {"x": COMPLEX.clone().conj()}, {"x": COMPLEX.clone()}),
    "two tensors exchanged": lambda at: of_numpy(at, {"x": W, "y": V}, {"x": V, "y": W}),
    "three tensors exchanged": lambda at: of_numpy(
        at, {"x": W, "y": V, "z": W + V}, {"x": V, "y": W + V, "z": W}
    ),
    "an exchange of transposes": lambda at: of_numpy(at, {"x": W, "y": V}, {"x": V.T, "y": W.T}),
    "bytes with a sign": lambda at: of_numpy(
        at, {"x": np.arange(256, dtype="u1")}, {"x": np.arange(256, dtype="u1").view("i1")}
    ),
    "integers that wrap around": lambda at: of_numpy(
        at, {"x": np.arange(64) + (1 << 40)}, {"x": (np.arange(64) + (1 << 40)).astype("i4")}
    ),
    "the real part": lambda at: of_torch(at, {"x": COMPLEX}, {"x": COMPLEX.real.clone()}),
    "more zeros": lambda at: of_numpy(at, {"k": W, "a": ZEROS}, {"k": W, "z": np.zeros((64, 64), "f4")}),
    "zeros of the other sign": lambda at: of_numpy(at, {"k": W, "a": ZEROS}, {"k": W, "a": -ZEROS}),
    "ones of the other sign": lambda at: of_numpy(at, {"k": W, "a": ONES}, {"k": W, "z": -ONES}),
    "a tie that a cast loses": lambda at: of_torch(
        at, dict.fromkeys(("e", "h"), torch.from_numpy(W).bfloat16()),
        {name: torch.from_numpy(W).bfloat16().float() for name in ("e", "h")},
    ),
    "a part that a tensor's name hides": lambda at: of_torch(
        at, {"x": sparse(2), "x/indices": torch.arange(64.0)}, {"x": sparse(2).to_dense().to_sparse() * 3,
                                                                   "x/indices": torch.arange(64.0)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER)
@pytest.mark.filterwarnings("ignore:.*[Ss]parse.*", "ignore:.*quantiz.*", "ignore:.*TypedStorage.*")
def test_other_weights_are_never_the_same(case: str, tmp_path: Path) -> None:
    found = OTHER[case](tmp_path)
    assert not found.is_same, kinds(found)


def test_an_exchange_says_whose_bytes_a_name_has(tmp_path: Path) -> None:
    found = of_numpy(tmp_path, {"x": W, "y": V}, {"x": V, "y": W})
    assert kinds(found) == {"x": CHANGED, "y": CHANGED}
    assert {one.how for one in found.tensors} == {"the same bytes as 'y' of A", "the same bytes as 'x' of A"}
    assert all(one.change is not None and one.change.elements for one in found.tensors)


def test_a_sign_that_is_carried_out_changes_nothing(tmp_path: Path) -> None:
    """torch's own resolve_conj makes the other side."""
    found = of_torch(tmp_path, {"x": COMPLEX.clone().conj()}, {"x": COMPLEX.clone().conj().resolve_conj()})
    assert kinds(found) == {"x": SAME} and found.judge(strict=True)


def test_signs_of_zeros_and_nans_are_told(tmp_path: Path) -> None:
    nan = np.array([0x7FC00000, 0x7FC00001], "u4").view("f4")
    found = of_numpy(
        tmp_path, {"n": nan, "z": np.array([0.0, 1], "f4")}, {"n": nan[::-1], "z": np.array([-0.0, 1], "f4")}
    )
    assert kinds(found) == {"n": CHANGED, "z": CHANGED}
    assert {one.how for one in found.tensors} == {"bits differ, and no number"}
    assert [one.change.elements for one in found.tensors if one.change] == [2, 1]


def test_a_tiny_tensor_that_moved_is_named(tmp_path: Path) -> None:
    found = of_numpy(tmp_path, {"a": W[0, :3]}, {"b": W[0, :3]})
    assert kinds(found) == {"b": ADDED, "a": REMOVED}
    assert all("the same bytes as" in one.how and "to be a proof" in one.how for one in found.tensors)


def test_lossless_casts_of_integers(tmp_path: Path) -> None:
    """Values that both types have."""
    found = of_numpy(tmp_path, {"x": np.arange(100, dtype="i8")}, {"x": np.arange(100, dtype="u1")})
    assert kinds(found) == {"x": CAST}


def test_a_transposed_view_is_a_transpose(tmp_path: Path) -> None:
    found = of_torch(tmp_path, {"w": torch.from_numpy(W)}, {"w": torch.from_numpy(W.T.copy()).t().contiguous().t()})
    assert kinds(found) == {"w": LAYOUT}


def test_a_config_that_unties_is_told(tmp_path: Path) -> None:
    for name, tied in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": tied}
        (tmp_path / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file({"model.embed_tokens.weight": W, "lm_head.weight": W}, tmp_path / name / "model.safetensors")
    found = diff(tmp_path / "a", tmp_path / "b")
    assert not found.is_same and any("config.json" in text for text in found.ties), found.ties
    assert diff(tmp_path / "a", tmp_path / "a").judge(strict=True)


def test_a_bias_that_stays_while_the_rows_of_its_matrix_move(tmp_path: Path) -> None:
    order, bias = RANDOM.permutation(16), RANDOM.normal(size=16).astype("f4")
    a = {"m.weight": W, "m.bias": bias}
    stays = of_numpy(tmp_path, a, {"m.weight": W[order], "m.bias": bias})
    assert kinds(stays) == {"m.weight": LAYOUT, "m.bias": CHANGED}
    assert "does not follow the rows of 'm.weight'" in {one.how for one in stays.tensors}
    zeros = {"m.weight": W, "m.bias": np.zeros(16, "f4")}
    for one, other in ((a, {"m.weight": W[order], "m.bias": bias[order]}), (zeros, {**zeros, "m.weight": W[order]})):
        assert of_numpy(tmp_path, one, {f"x.{name}": value for name, value in other.items()}).is_same
        assert of_numpy(tmp_path, one, other).verdict == "same bytes, undecided values"


def test_packed_codes_are_found_by_tables_alone(tmp_path: Path) -> None:
    codes = RANDOM.integers(0, 1 << 31, (16, 16)).astype("i4")
    scales = RANDOM.normal(size=(4, 16)).astype("f2")
    found = of_numpy(tmp_path, {"m.qweight": codes, "m.scales": scales}, {"m.qweight": codes[::-1], "m.scales": scales})
    assert not found.is_same


def test_another_shape_of_the_same_bytes(tmp_path: Path) -> None:
    found = of_numpy(tmp_path, {"w": W}, {"w": W.reshape(4, 64)})
    assert kinds(found) == {"w": LAYOUT} and found.tensors[0].how == "reshaped"


def test_rows_in_another_order_and_a_wider_type(tmp_path: Path) -> None:
    half = W.astype("f2")
    found = of_numpy(tmp_path, {"w": half}, {"w": half.astype("f4")[RANDOM.permutation(16)]})
    assert kinds(found) == {"w": CAST} and found.verdict == "undecided"


def test_a_tie_that_both_have_in_another_layout(tmp_path: Path) -> None:
    w = torch.from_numpy(W.copy())
    turned = torch.from_numpy(W.T.copy())
    found = of_torch(tmp_path, {"x": w, "y": w}, {"x": turned, "y": turned})
    assert kinds(found) == {"x": LAYOUT, "y": LAYOUT} and found.doubts and not found.ties


def test_objects_are_compared_in_both_directions(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.from_numpy(W)}, "epoch": 3}, tmp_path / "a.pt")
    save_file({"model.w": W}, tmp_path / "b.safetensors")
    for one, other in (("a.pt", "b.safetensors"), ("b.safetensors", "a.pt")):
        found = diff(tmp_path / one, tmp_path / other)
        assert found.is_same and not found.objects
        assert any("'epoch'" in note and "no room" in note for note in found.notes)


def test_the_same_file_is_not_read(tmp_path: Path) -> None:
    """Nor is a hard link to it, whatever protects its bytes."""
    torch.save({"w": torch.from_numpy(W)}, tmp_path / "a.pt")
    (tmp_path / "b.pt").hardlink_to(tmp_path / "a.pt")
    assert diff(tmp_path / "a.pt", tmp_path / "b.pt").nbytes_read == 0


def test_rows_that_moved_under_one_name_are_undecided(tmp_path: Path) -> None:
    """The same numbers: each is `layout`, and a loader gets another model."""
    found = of_numpy(tmp_path, {"w": W}, {"w": W[RANDOM.permutation(16)]})
    assert not found.is_same and found.verdict == "same bytes, undecided values" and "'w'" in found.doubts[0]
    assert of_numpy(tmp_path, {"w": W}, {"v": W[RANDOM.permutation(16)]}).is_same


def test_one_layer_with_a_map_of_its_own_is_undecided(tmp_path: Path) -> None:
    """The other layers hold their rows in the places of A: one of them is wrong."""
    layers = {f"layers.{k}.w": RANDOM.standard_normal((16, 16)).astype("f4") for k in range(3)}
    found = of_numpy(tmp_path, layers, {**layers, "layers.1.w": layers["layers.1.w"][RANDOM.permutation(16)]})
    assert any(
        "another map than those of other layers" in text and text.endswith("'layers.1.w'") for text in found.doubts
    )
    assert not found.is_same
    assert of_numpy(tmp_path, layers, {name.replace("layers", "h"): one for name, one in layers.items()}).is_same


def test_scalars_that_changed(tmp_path: Path) -> None:
    found = of_numpy(tmp_path, {"s": np.float32(1.5), "w": W}, {"s": np.float32(2.5), "w": W})
    assert [one.kind for one in found.tensors] == ["changed", "same"]


def test_a_tie_that_only_a_config_names(tmp_path: Path) -> None:
    """transformers writes one name of a tied head, and torch.save both: the same weights, in both directions."""
    transformers = pytest.importorskip("transformers")

    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=40, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "hub")
    torch.save(model.state_dict(), tmp_path / "all.pt")
    for a, b in (("hub", "all.pt"), ("all.pt", "hub")):
        found = diff(tmp_path / a, tmp_path / b)
        assert found.is_same and found.judge(strict=True), found


def test_attributes_of_a_state_dict_are_no_objects(tmp_path: Path) -> None:
    """torch keeps versions of modules beside the tensors; safetensors has no room for them, and nobody loads them."""
    module = torch.nn.Linear(16, 16)
    torch.save(module.state_dict(), tmp_path / "a.pt")
    save_file({name: one.numpy() for name, one in module.state_dict().items()}, tmp_path / "b.safetensors")
    for one, other in (("a.pt", "b.safetensors"), ("b.safetensors", "a.pt")):
        assert diff(tmp_path / one, tmp_path / other).judge(strict=True)


def test_a_name_that_only_the_content_of_another_left(tmp_path: Path) -> None:
    """q has what k had, and k is another tensor: it is changed, and not only in B."""
    found = of_numpy(tmp_path, {"k": W}, {"q": W, "k": V})
    assert kinds(found) == {"q": RENAMED, "k": CHANGED} and not found.is_same
    (changed,) = (one for one in found.tensors if one.kind == CHANGED)
    assert changed.a == ("k",) and changed.change is not None and changed.change.elements == W.size


def test_renamed_tensors_beside_objects(tmp_path: Path) -> None:
    """Where a tensor is in a torch file is its name, and no object; what is beside it is one."""
    one, two = torch.from_numpy(W), torch.from_numpy(V)
    a = {"model": {"x.weight": one, "y.weight": two}, "epoch": 3}
    for b in ({"state": {"x.weight": one, "z.weight": two}, "epoch": 3}, {"m.x": one, "m.z": two, "epoch": 3}):
        found = of_torch(tmp_path, a, b)
        assert found.is_same and not found.objects and set(kinds(found).values()) == {RENAMED}
    found = of_torch(tmp_path, a, {"m.x": one, "m.z": two, "epoch": 4})
    assert found.objects == ("object 'epoch': is 4; A has 3",) and not found.is_same


def test_rows_of_a_tensor_of_which_a_table_explains_others(tmp_path: Path) -> None:
    """Two rows of q and k are exchanged in a fused tensor: v is found by a table, and the search finds q and k."""
    q, k, v = (RANDOM.normal(size=(8, 16)).astype("f4") for _ in range(3))
    fused = np.concatenate([q, k, v])
    fused[[3, 12]] = fused[[12, 3]]
    parts = {f"h.0.attn.{name}_proj.weight": one for name, one in zip("qkv", (q, k, v), strict=True)}
    found = of_numpy(tmp_path, {"h.0.attn.qkv_proj.weight": fused}, parts)
    assert found.doubts and set(kinds(found).values()) == {LAYOUT}
    assert {one.layout for one in found.tensors} == {"qkv", ""}


@pytest.mark.parametrize("suffix, shape", [("weight", (6,)), ("bias", ())])
def test_values_of_another_width_for_each_group(suffix: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Rows too short for a search: only the table finds them (MiMo-V2-Flash in Megatron)."""
    q, k, v = (RANDOM.normal(size=(rows, *shape)).astype("f4") for rows in (48, 16, 12))
    groups = [np.concatenate([q[24 * g : 24 * g + 24], k[8 * g : 8 * g + 8], v[6 * g : 6 * g + 6]]) for g in range(2)]
    parts = {f"h.0.attn.{name}_proj.{suffix}": one for name, one in zip("qkv", (q, k, v), strict=True)}
    fused = {f"h.0.attn.linear_qkv.{suffix}": np.concatenate(groups)}
    for found in (of_numpy(tmp_path, parts, fused), of_numpy(tmp_path, fused, parts)):
        assert found.is_same and {one.layout for one in found.tensors} == {"qkv-per-group"}, kinds(found)
        assert all("value_dim=6" in one.how and "head_dim=8" in one.how for one in found.tensors)


def layers(count: int, prefix: str = "model") -> dict[str, np.ndarray]:
    """Layers with a matrix and two norms each, between an embedding and a norm."""
    found = {f"{prefix}.embed.weight": RANDOM.normal(size=(20, 16)).astype("f4")}
    for k in range(count):
        found[f"{prefix}.layers.{k}.attn.q.weight"] = RANDOM.normal(size=(16, 16)).astype("f4")
        found |= {f"{prefix}.layers.{k}.ln_{n}.weight": RANDOM.normal(size=16).astype("f4") for n in (1, 2)}
    return found


def under(a: dict[str, np.ndarray], *others: tuple[str, str]) -> dict[str, np.ndarray]:
    """Tensors under other names: `old -> new` in each name, all at once."""
    every, pattern = dict([("model.", "x."), *others]), "|".join(re.escape(old) for old, _ in [("model.", ""), *others])
    return {re.sub(pattern, lambda found: every[found[0]], name): one for name, one in a.items()}


LAYERS = [("layers.1.", "layers.2."), ("layers.2.", "layers.1.")]
NORMS = [("layers.3.ln_1", "layers.3.ln_2"), ("layers.3.ln_2", "layers.3.ln_1")]
ALL_NORMS = [("ln_1", "ln_2"), ("ln_2", "ln_1")]


@pytest.mark.parametrize("pairs, count", [(LAYERS, 6), (NORMS, 2), (ALL_NORMS, 8)], ids=["layers", "norms", "all"])
def test_an_exchange_under_new_names_is_undecided(pairs: list[tuple[str, str]], count: int, tmp_path: Path) -> None:
    """The rename that the other tensors show has another tensor in their places; the weights are the same."""
    a = layers(4)
    b = under(a, *pairs)
    for found in (of_numpy(tmp_path, a, b), of_numpy(tmp_path, b, a)):
        assert set(kinds(found).values()) == {RENAMED} and not found.is_same
        (doubt,) = found.doubts
        assert doubt.startswith(f"{count} tensors are in the place of another one")
    wide = {name: one.astype("f8") for name, one in b.items()}
    assert len(of_numpy(tmp_path, a, wide).doubts) == 1


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [("layers.", "h."), ("attn.q", "self.query"), ("ln_1", "norm_in")],
        [("layers.1.", "layers.4."), ("layers.2.", "layers.7."), ("layers.3.", "layers.9.")],
        [(f"layers.{k}.", f"layers.{k - 1}.") for k in (1, 2, 3)],
        [("layers.0.", "first."), ("ln_1", "ln_0"), ("ln_2", "ln_1")],
    ],
    ids=["prefix", "dialect", "gaps", "numbered from 0", "words that move up"],
)
def test_a_rename_that_exchanges_nothing_gives_no_warning(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    a = layers(4)
    if pairs and pairs[0] == ("layers.1.", "layers.0."):
        a = {name: one for name, one in a.items() if "layers.0." not in name}
    found = of_numpy(tmp_path, a, under(a, *pairs))
    assert found.is_same and not found.notes, found.notes


def test_an_exchange_of_fused_tensors_is_undecided(tmp_path: Path) -> None:
    a, b = {}, {}
    for k in range(4):
        q, key, v = (RANDOM.normal(size=(16, 16)).astype("f4") for _ in range(3))
        a |= {f"model.layers.{k}.attn.{name}_proj.weight": one for name, one in zip("qkv", (q, key, v), strict=True)}
        b[f"x.layers.{k}.attn.qkv_proj.weight"] = np.concatenate([q, key, v])
    assert of_numpy(tmp_path, a, b).is_same and of_numpy(tmp_path, b, a).is_same
    names = list(b)
    b[names[0]], b[names[1]] = b[names[1]], b[names[0]]
    for one, other in ((a, b), (b, a)):
        assert any("in the place of another one" in text for text in of_numpy(tmp_path, one, other).doubts)


@pytest.mark.parametrize("side", "AB")
def test_nans_of_one_side_are_counted(side: str, tmp_path: Path) -> None:
    damaged = W.copy()
    damaged[0, :3], damaged[5, 5] = np.nan, 7
    a, b = (damaged, W) if side == "A" else (W, damaged)
    (one,) = of_numpy(tmp_path, {"w": a}, {"w": b}).tensors
    assert one.change is not None
    assert (one.change.nan_only_a, one.change.nan_only_b) == ((3, 0) if side == "A" else (0, 3))
    paths = [str(tmp_path / f"{name}.safetensors") for name in "ab"]
    assert f"4 of 256 elements, 3 elements are NaN only in {side}\n" in quick("diff", *paths, cwd=tmp_path).out
    change = json.loads(quick("diff", "--json", *paths, cwd=tmp_path).out)["tensors"][0]["change"]
    assert change["nan_only_a"] + change["nan_only_b"] == 3 and change["finite"] is False


def test_a_pending_sign_is_measured(tmp_path: Path) -> None:
    (one,) = of_torch(tmp_path, {"x": COMPLEX.clone()}, {"x": COMPLEX.clone().conj()}).tensors
    assert one.change is not None and one.change.elements == one.change.numel == 64
    assert one.change.largest == pytest.approx(2 * np.abs(V[:8, :8]).max())
    assert one.dtypes == ("complex64", "complex64") and one.shapes == ((8, 8), (8, 8))


def test_the_bytes_of_another_tensor_are_told_by_a_name(tmp_path: Path) -> None:
    """Of several tensors alike: that of the first, and no pattern."""
    every = [RANDOM.normal(size=(8, 8)).astype("f4") for _ in range(4)]
    names = [f"optimizer.state.{k}.exp_avg" for k in range(4)]
    of_numpy(tmp_path, dict(zip(names, every, strict=True)), dict(zip(names, every[1:] + every[:1], strict=True)))
    made = quick("diff", *(str(tmp_path / f"{name}.safetensors") for name in "ab"), cwd=tmp_path).out
    assert f"optimizer.state.*.exp_avg  {names[0]!r} has the same bytes as {names[1]!r} of A, " in made


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_large_integers_have_an_exact_difference(kind: str, tmp_path: Path) -> None:
    """Above 2**53, where float64 has no room for odd numbers."""
    one, other = (np.array([7, 2**53 + more], kind) for more in (1, 0))
    (found,) = of_numpy(tmp_path, {"w": one}, {"w": other}).tensors
    assert found.change is not None
    assert (found.kind, found.change.elements, found.change.largest) == (CHANGED, 1, 1)
    assert "bits differ" not in found.how


def test_fresh_biases_under_names_with_another_separator(tmp_path: Path) -> None:
    """As one model of Flax saved by Flax, and flattened with `.` into safetensors."""
    a = {"params/Dense_0/kernel": W, "params/Dense_1/kernel": V, "params/Dense_0/bias": ZEROS[:1]}
    found = kinds(of_numpy(tmp_path, a, {name.replace("/", "."): one for name, one in a.items()}))
    assert {*found.values()} == {RENAMED}
