"""The page of a checkpoint: what it says is what NumPy and torch see, and it is a page that anybody can open."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file

import paramtool
from paramtool.commands.report.compared import changes, move_figures
from paramtool.commands.report.differences import CellMap, heat
from paramtool.commands.report.modules import MAX_NODES, StoredTensor, parts, separator_of, stored, tree
from paramtool.commands.report.page import buffers, network_figures, parts_figures
from paramtool.commands.report.sharing import equal_groups, part_of, shared_groups
from paramtool.commands.report.write import default_output
from paramtool.engine.compare.changes import WindowPair
from paramtool.engine.compare.sides import Sides
from paramtool.errors import OutputError, UnsafeError
from paramtool.model.dtype import DTYPES
from paramtool.model.view import View, contiguous
from tests.commands.report_pages import STRANGE, Parsed, headers_only, tied
from tests.examples import IS_HARD, IS_WHOLE


def page_of(path: Path, other: Path | None = None, **options: object) -> str:
    """The page of a checkpoint."""
    output = path.parent / "page.html"
    made = paramtool.report(path, other, output=output, force=True, **options)  # type: ignore[arg-type]
    assert made.nbytes == output.stat().st_size
    return output.read_text(encoding="utf-8")


def check(page: str) -> Parsed:
    """A page that is whole, refers to nothing outside, and can be used without a mouse."""
    found = Parsed(page)
    assert found.wrong == []
    ids = [one["id"] for _, one in found.elements if "id" in one]
    assert len(ids) == len(set(ids))
    for name, one in found.elements:
        assert not any(key.startswith("on") or key in ("style", "src", "srcset", "action") for key in one), (name, one)
        assert all(value in ids for value in one.get("aria-labelledby", "").split())
        if "href" in one:
            assert one["href"].startswith("#") and one["href"][1:] in ids
    assert not re.search(r"url\((?!#p-)", page) and "@import" not in page
    assert found.all("html")[0]["lang"] == "en" and len(found.all("main")) == len(found.all("h1")) == 1
    levels = [int(name[1]) for name, _ in found.elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels))
    for one in found.all("svg"):
        assert one.get("aria-hidden") == "true" or (one["role"] == "img" and one["aria-label"])
    for section in found.all("section"):
        assert section["id"] and section["aria-labelledby"]
    policy(found)
    return found


def policy(found: Parsed) -> None:
    """The one script and the one style are those whose digests the policy has."""
    said = next(one["content"] for one in found.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    programs = [text for (name, text) in found.texts if name == "script" and not text.startswith("[")]
    kinds = [one.get("type") for one in found.all("script")]
    assert kinds.count(None) == len(programs) == 1 and {*kinds} <= {None, "application/json"}
    for kind, text in (("script", programs[0]), ("style", found.text_of("style")[0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in said
    assert said.startswith("default-src 'none'") and "unsafe" not in said and "http" not in said


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tied(tmp_path_factory.mktemp("report") / "tied.pt")


def test_a_page_is_whole(checkpoint: Path) -> None:
    found = check(page_of(checkpoint, equal=True))
    titles = found.text_of("h2")
    assert titles == ["Findings", "Where the bytes are", "Which names share memory", "Tensors inside one storage",
                      "Gates of recurrent networks", "All tensors"]  # fmt: skip
    text = "".join(text for _, text in found.texts)
    for name in ("emb.weight", "head.weight", "unembed", "rnn.weight_hh_l0", "transposed", "a slice"):
        assert name in text
    assert "optimizer state" in text


def test_two_checkpoints(checkpoint: Path, tmp_path: Path) -> None:
    other = torch.load(checkpoint)
    other["model"]["h.0.mask"][3] += 1
    other["model"]["new"] = torch.ones(3)
    del other["model"]["part"]
    other["model"]["rnn.bias_ih_l0"] = other["model"]["rnn.bias_ih_l0"].clone()
    torch.save(other, tmp_path / "other.pt")
    found = check(page_of(checkpoint, tmp_path / "other.pt"))
    assert found.text_of("h2") == [
        "How B differs from A", "Where numbers changed", "What moved, came or went", "Findings (A)", "Findings (B)",
        "Where the bytes are (A)", "Where the bytes are (B)", "Which names share memory (A and B)",
        "Tensors inside one storage (A)", "Tensors inside one storage (B)", "Gates of recurrent networks (A and B)",
        "All tensors (A)", "All tensors (B)",
    ]  # fmt: skip
    text = " ".join(text for _, text in found.texts)
    assert "not the same weights" in text and "only in B" in text and "only in A" in text
    strip = next(one["aria-label"] for one in found.all("svg") if one.get("class") == "heat")
    assert "h.0.mask" in strip and "1 row differs" in strip and "row 3: 64 elements" in strip
    assert not any(one.get("class") == "heat cells" for one in found.all("svg"))


def test_weights_that_are_tied_otherwise_are_the_same(tmp_path: Path) -> None:
    """The page says what differs, as the command line does."""
    words = torch.randn(8, 8)
    torch.save({"a": words, "b": words}, tmp_path / "a.pt")
    torch.save({"a": words, "b": words.clone()}, tmp_path / "b.pt")
    text = " ".join(text for _, text in check(page_of(tmp_path / "a.pt", tmp_path / "b.pt")).texts)
    assert "A and B hold the same weights, but their ties differ." in text and "not the same weights" not in text


def test_the_same_twice_is_shown_once(checkpoint: Path) -> None:
    titles = check(page_of(checkpoint, checkpoint)).text_of("h2")
    assert titles[0] == "How B differs from A" and all(one.endswith(" (A and B)") for one in titles[1:])


@pytest.mark.slow
def test_columns_that_changed_are_drawn_as_cells(tmp_path: Path) -> None:
    """The keys of GPT-2's c_attn are a third of its columns: rows alone would show that all of it changed."""
    a = {"c_attn.weight": torch.zeros(96, 288), "rows.weight": torch.zeros(50, 20)}
    b = {name: one.clone() for name, one in a.items()}
    b["c_attn.weight"][:, 96:192] += 1
    b["rows.weight"][3] += 1
    for side, state in (("a", a), ("b", b)):
        save_file(state, tmp_path / f"{side}.safetensors")
    found = check(page_of(tmp_path / "a.safetensors", tmp_path / "b.safetensors"))
    (cells,) = (one for one in found.all("svg") if one.get("class") == "heat cells")
    assert cells["viewbox"] == "0 0 64 64" and "c_attn.weight: 96 rows differ" in cells["aria-label"]
    column = int(re.search(r"most in columns (\d+) to", cells["aria-label"])[1])  # type: ignore[index]
    assert 92 <= column < 192


def test_ties_that_only_one_of_two_has(tmp_path: Path) -> None:
    """As torch itself ties them: lost, gained, the same in both, and moved to another name."""
    w, v, u = torch.ones(4, 4), torch.zeros(3, 3), torch.full((2, 2), 7.0)
    a = {"emb": w, "head": w, "left": v, "right": v.clone(), "same": u, "also": u, "old": torch.arange(6.0)}
    b = {"emb": w, "head": w.clone(), "left": v, "right": v, "same": u, "also": u, "old": a["old"], "more": a["old"]}
    for side, state in (("a", a), ("b", b)):
        torch.save(state, tmp_path / f"{side}.pt")
    first, second = (paramtool.inspect(tmp_path / f"{side}.pt") for side in "ab")
    diffs = paramtool.diff(tmp_path / "a.pt", tmp_path / "b.pt").tensors
    drawn = {
        made.owner: [
            [(group.owner, *((wire.name, wire.mark) for wire in group.wires)) for group in side]
            for side in (one.a, one.b)
        ]
        for one in changes(first.graph, second.graph, diffs)
        for made in one.a[:1]
    }
    assert drawn == {
        "emb": [[("emb", ("emb", ""), ("head", "tied in A only"))], [("emb",), ("head",)]],
        "left": [[("left",), ("right",)], [("left", ("left", ""), ("right", "tied in B only"))]],
        "old": [[("old",)], [("old", ("old", ""), ("more", "in B only"))]],
    }
    text = page_of(tmp_path / "a.pt", tmp_path / "b.pt")
    assert "What changed in sharing" in text and text.count("tied in A only") == 1
    check(text)


def test_ties_of_renamed_tensors_are_the_same(tmp_path: Path) -> None:
    w = torch.randn(8, 8)
    torch.save({"wte": w, "head": w}, tmp_path / "a.pt")
    torch.save({"model.wte": w, "model.head": w}, tmp_path / "b.pt")
    assert "What changed in sharing" not in page_of(tmp_path / "a.pt", tmp_path / "b.pt")


def test_maps_are_bands_from_rows_to_rows(tmp_path: Path) -> None:
    """q, k and v to one tensor, in three layers that look alike: one figure, and its ends are torch.cat's."""
    torch.manual_seed(0)
    a = {f"layers.{k}.self_attn.{n}_proj.weight": torch.randn(32 if n == "q" else 16, 48)
         for k in range(3) for n in "qkv"}  # fmt: skip
    b = {f"layers.{k}.self_attn.qkv_proj.weight":
         torch.cat([a[f"layers.{k}.self_attn.{n}_proj.weight"] for n in "qkv"]) for k in range(3)}  # fmt: skip
    for side, state in (("a", a), ("b", b)):
        save_file(state, tmp_path / f"{side}.safetensors")
    (figure,) = move_figures(paramtool.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").tensors)
    assert (figure.alike, figure.above, figure.below) == (2, (32, 16, 16), (64,))
    ends = [(one.here, one.there, one.length) for one in figure.ribbons]
    assert ends == [((0, 0), (0, 0), 32), ((1, 0), (0, 32), 16), ((2, 0), (0, 48), 16)]
    found = check(page_of(tmp_path / "a.safetensors", tmp_path / "b.safetensors"))
    assert sum(one.get("class") == "ribbons" for one in found.all("svg")) == 1


@pytest.mark.parametrize("state", [{}, {"a": torch.zeros(0, 4)}])
def test_a_checkpoint_without_bytes_has_no_empty_figures(state: dict[str, torch.Tensor], tmp_path: Path) -> None:
    save_file(state, tmp_path / "a.safetensors")
    for other in (None, tmp_path / "a.safetensors"):
        found = check(page_of(tmp_path / "a.safetensors", other, equal=True))
        assert not [one for one in found.all("svg") if "role" in one]
        assert any("No tensor has bytes" in text for _, text in found.texts)


@pytest.mark.parametrize("equal", [False, True])
def test_the_bytes_of_the_treemap_are_those_of_the_storages(checkpoint: Path, equal: bool) -> None:
    """Every byte once: torch's own storages, which the file has, are as large together."""
    loaded = torch.load(checkpoint)
    tensors = [*loaded["model"].values(), *loaded["ema"].values(), loaded["optimizer"]["state"][0]["exp_avg"]]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    found = paramtool.inspect(checkpoint, equal=equal)
    assert sum(parts(stored(found)).values()) == sum(storages.values())
    root = tree(stored(found), separator_of(found.checkpoint.entries))
    assert root.nbytes == sum(storages.values())
    marks = {one.marks for one in stored(found)}
    assert marks == {"", "shared", "unused"} | ({"equal"} if equal else set())


def test_equal_modules_are_in_the_order_of_their_numbers() -> None:
    """Squares of one size are drawn in the order of their children, which files sort as strings."""
    names = [*(f"h.{k}.w" for k in (0, 1, 10, 11, "9" * 5000, "\N{SUPERSCRIPT TWO}", 2)), "e"]
    root = tree([StoredTensor(name, 4, "blue") for name in names], ".")
    first, blocks = root.children
    assert (first.name, blocks.name) == ("e", "h")
    assert [one.name for one in blocks.children] == ["0", "1", "2", "10", "11", "9" * 5000, "\N{SUPERSCRIPT TWO}"]


def test_names_that_share_memory(checkpoint: Path) -> None:
    found = paramtool.inspect(checkpoint, equal=True)
    (group,) = shared_groups(found)
    wires = {wire.name.removeprefix("model."): wire for wire in group.wires}
    assert wires.keys() == {"emb.weight", "head.weight", "unembed", "rows", "columns"}
    assert wires["rows"].window == (0, 0.25, 1, 0.5) and wires["columns"].window == (0.125, 0, 0.375, 1)
    assert wires["unembed"].is_turned and wires["unembed"].window == (0, 0, 1, 1)
    (equal,) = equal_groups(found)
    assert {wire.kind for wire in equal.wires} == {"content"} and equal.names == 2
    (buffer,) = (one for one in buffers(found) if "cudnn" in one.words)
    assert [one.stop - one.start for one in buffer.segments] == [2048, 4096, 256, 256] and not buffer.unused


@given(st.data())
def test_a_window_is_inside_its_rectangle(data: st.DataObject) -> None:
    """Every element that NumPy finds of a slice is in the rectangle that is drawn; of boxes, nothing else is."""
    rows, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    bottom, right = data.draw(st.integers(top + 1, rows)), data.draw(st.integers(left + 1, columns))
    owner = contiguous(0, DTYPES["float32"], (rows, columns))
    window = View("w", DTYPES["float32"], top * columns + left, (bottom - top, right - left), (columns, 1))
    a, b, c, d = part_of(window, owner)
    drawn = {
        (row, column)
        for row in range(rows)
        for column in range(columns)
        if b <= (row + 0.5) / rows <= d and a <= (column + 0.5) / columns <= c
    }
    if rows == 1 or columns == 1:
        assert {(row, column) for row in range(top, bottom) for column in range(left, right)} <= drawn or rows == 1
    else:
        assert drawn == {(row, column) for row in range(top, bottom) for column in range(left, right)}


# --- gates and heads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "gates"), [(torch.nn.LSTM, "ifgo"), (torch.nn.GRU, "rzn")])
def test_gates_are_the_rows_of_the_equations(module: type[torch.nn.RNNBase], gates: str, tmp_path: Path) -> None:
    """torch's documentation has the order of gates; bands tile each tensor from the first row to the last."""
    save_file(module(5, 4).state_dict(), tmp_path / "rnn.safetensors")
    (figure,) = network_figures(paramtool.inspect(tmp_path / "rnn.safetensors"))
    assert [one.name for one in figure.grids] == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    for one in figure.grids:
        assert "".join(band.label[0] for band in one.bands) == gates
        edges = [(band.top, band.bottom) if one.rows > 1 else (band.left, band.right) for band in one.bands]
        assert np.allclose(edges, [(k / len(gates), (k + 1) / len(gates)) for k in range(len(gates))])
        assert [band.tint for band in one.bands] == [tint for tint, _ in figure.gates]


@pytest.mark.parametrize(("model_type", "name"), [("gpt2", "h.0.attn.c_attn"), ("gpt_neox", "query_key_value")])
def test_heads_are_those_that_transformers_splits(model_type: str, name: str, tmp_path: Path) -> None:
    """GPT-2's columns are [q; k; v] (Conv1D); GPT-NeoX's rows are q, k and v of each head in turn."""
    heads, size = 4, 16
    config = {"model_type": model_type, "n_head": heads, "n_embd": size, "num_attention_heads": heads,
              "hidden_size": size, "n_layer": 1, "num_hidden_layers": 1}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    at = "transformer.h.0.attn.c_attn" if model_type == "gpt2" else "gpt_neox.layers.0.attention.query_key_value"
    shape = (size, 3 * size) if model_type == "gpt2" else (3 * size, size)
    save_file({f"{at}.weight": torch.zeros(shape), f"{at}.bias": torch.zeros(3 * size)}, tmp_path / "model.safetensors")
    (figure,) = parts_figures(paramtool.inspect(tmp_path / "model.safetensors"))
    (grid,) = figure.grids
    labels = [band.label for band in grid.bands]
    if model_type == "gpt2":
        assert labels == ["q", "k", "v"] and [band.left for band in grid.bands] == [0, 1 / 3, 2 / 3]
    else:
        assert labels == ["q", "k", "v"] * heads
        assert np.allclose([band.top for band in grid.bands], np.arange(12) / 12)
    assert name in figure.at.replace("*", "0")


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [2.0, float("nan"), True, 2 + 1j])
def test_a_number_without_axes_that_changed(other: complex, tmp_path: Path) -> None:
    """As counters, temperatures and scales are."""
    save_file({"scale": torch.tensor(1, dtype=torch.tensor(other).dtype), "w": torch.ones(3)}, tmp_path / "a")
    save_file({"scale": torch.tensor(other) * 0, "w": torch.ones(3)}, tmp_path / "b")
    page = page_of(tmp_path / "a", tmp_path / "b")
    check(page)
    assert "scale" in page


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 300), st.lists(st.integers(1, 9), max_size=2), st.integers(1, 40), st.integers(1, 7),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_bins_have_the_differences_that_numpy_finds(
    tmp_path_factory: pytest.TempPathFactory, rows: int, rest: list[int], most: int, cells: int, random: object
) -> None:
    folder = tmp_path_factory.mktemp("bins")
    made = np.random.default_rng(random.randrange(2**32))  # type: ignore[attr-defined]
    shape = (rows, *rest)
    a = made.standard_normal(shape).astype("f4")
    b = a + (made.random(shape) < 0.2) * made.standard_normal(shape).astype("f4")
    if rows > 2:
        a.reshape(rows, -1)[1, 0] = b.reshape(rows, -1)[1, 0] = np.nan
        b.reshape(rows, -1)[2, 0] = np.inf
    save_file({"w": torch.from_numpy(a)}, folder / "a.safetensors")
    save_file({"w": torch.from_numpy(b)}, folder / "b.safetensors")
    one, other = (paramtool.read(folder / f"{side}.safetensors") for side in "ab")
    with Sides(one, other, 1 << 26) as sides:
        (found,) = heat([WindowPair(one.views()["w"], other.views()["w"])], sides, most, cells)
    bins = found.rows
    assert len(bins) == min(rows, most) and [bins[0].start, bins[-1].stop] == [0, rows]
    for bin_, after in pairwise(bins):
        assert bin_.stop == after.start > bin_.start
    x, y = a.reshape(rows, -1).astype("f8"), b.reshape(rows, -1).astype("f8")
    for bin_ in bins:
        assert (bin_.elements, bin_.largest) == differences(x[bin_.start : bin_.stop], y[bin_.start : bin_.stop])
    same_cells(found.cells, x, y, cells)


def differences(x: np.ndarray, y: np.ndarray) -> tuple[int, float]:
    """How many elements differ, and the largest difference."""
    differs = ~((x == y) | (np.isnan(x) & np.isnan(y)))
    with np.errstate(invalid="ignore"):
        far = np.nan_to_num(np.abs(x - y)[differs], nan=np.inf, posinf=np.inf)
    return int(differs.sum()), far.max() if differs.any() else 0


def same_cells(found: CellMap, x: np.ndarray, y: np.ndarray, cells: int) -> None:
    assert (len(found.rows), len(found.columns)) == tuple(min(side, cells) + 1 for side in x.shape)
    assert (found.rows[-1], found.columns[-1]) == x.shape
    for k, (top, bottom) in enumerate(pairwise(found.rows)):
        for j, (left, right) in enumerate(pairwise(found.columns)):
            assert top < bottom and left < right
            part = slice(top, bottom), slice(left, right)
            assert (found.elements[k][j], found.largest[k][j]) == differences(x[part], y[part])


def test_blocks_of_a_long_row_are_put_together(tmp_path: Path) -> None:
    """A row of more elements than are compared at a time, in a tensor of three axes."""
    a = np.zeros((2, 3, 200_000), "f4")
    b = a.copy()
    b[1, 2, 150_000] = 3.0
    for side, array in (("a", a), ("b", b)):
        save_file({"w": torch.from_numpy(array)}, tmp_path / f"{side}.safetensors")
    one, other = (paramtool.read(tmp_path / f"{side}.safetensors") for side in "ab")
    with Sides(one, other, 1 << 26) as sides:
        (found,) = heat([WindowPair(one.views()["w"], other.views()["w"])], sides)
    assert [bin_.largest for bin_ in found.rows] == [0, 3]
    same_cells(found.cells, a.reshape(2, -1).astype("f8"), b.reshape(2, -1).astype("f8"), 64)


@pytest.mark.parametrize(
    ("a", "b", "counts", "largest"),
    [
        (np.array([1 << 60, 7]), np.array([(1 << 60) + 1, 7]), [1, 0], [1, 0]),
        (
            np.array([0x7FC00000, 0x7FC00001], "u4").view("f4"),
            np.array([0x7FC00001] * 2, "u4").view("f4"),
            [1, 0],
            [0, 0],
        ),
        (np.array([0.0, 2], "f2"), np.array([-0.0, 3], "f2"), [1, 1], [0, 1]),
    ],
)
def test_heat_counts_what_diff_counts(
    a: np.ndarray, b: np.ndarray, counts: list[int], largest: list[float], tmp_path: Path
) -> None:
    """Integers that float64 has no room for, NaNs of other bits, zeros of the other sign."""
    for side, array in (("a", a), ("b", b)):
        save_numpy({"w": array}, tmp_path / f"{side}.safetensors")
    paths = [tmp_path / f"{side}.safetensors" for side in "ab"]
    one, other = map(paramtool.read, paths)
    with Sides(one, other, 1 << 26) as sides:
        (found,) = heat([WindowPair(one.views()["w"], other.views()["w"])], sides)
    assert [bin_.elements for bin_ in found.rows] == counts and [bin_.largest for bin_ in found.rows] == largest
    (changed,) = paramtool.diff(*paths).tensors
    assert changed.change is not None and changed.change.elements == sum(counts)


# --- bounds, strangers' names, places ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_tensors_are_two_megabytes(tmp_path: Path) -> None:
    page = page_of(headers_only(tmp_path / "a.safetensors", 1000))
    assert len(page.encode()) < 2_000_000
    check(page)


@pytest.mark.slow
def test_very_many_tensors_become_one_in_their_module(tmp_path: Path) -> None:
    """All are counted, the smallest are one rectangle that says how many, and the page stays small."""
    count = 100_000 if IS_HARD else 20_000
    path = headers_only(tmp_path / "a.safetensors", count)
    page = page_of(path)
    assert len(page.encode()) < 5_000_000
    found = check(page)
    (text,) = (text for text in found.text_of("script") if text.startswith("["))
    root = json.loads(text)
    drawn, stack = 0, [root]
    while stack:
        drawn += 1
        stack += stack.pop()[6]
    assert root[5] == count and MAX_NODES <= drawn <= 2 * MAX_NODES and " more tensors of this module" in text
    assert f"the first 2,000 of {count:,}" in page


def test_names_of_strangers_are_text(tmp_path: Path) -> None:
    """At the places of names, of modules, of owners, and of what two files have: no element and no attribute more."""
    plain = {f"m{k}.n{k}.weight": torch.full((8, 8), float(k)) for k in range(len(STRANGE))}
    plain |= {f"alias{k}": plain[f"m{k}.n{k}.weight"] for k in range(len(STRANGE))}
    names = iter(STRANGE * 3)
    hostile = {
        f"{one}.{one}.weight": plain[f"m{k}.n{k}.weight"] for k, one in enumerate(STRANGE)
    } | {f"{next(names)} alias": plain[f"alias{k}"] for k in range(len(STRANGE))}  # fmt: skip
    pages = []
    for name, state in (("plain", plain), ("hostile", hostile)):
        torch.save(state, tmp_path / f"{name}.pt")
        changed = {key: one + (one == 3.0) for key, one in state.items()}
        torch.save(changed, tmp_path / f"{name}2.pt")
        pages.append(check(page_of(tmp_path / f"{name}.pt", tmp_path / f"{name}2.pt", equal=True)))
    plain_page, page = pages
    assert {name for name, _ in page.elements} <= {name for name, _ in plain_page.elements} | {"text"}
    kinds = [{(name, key) for name, one in found.elements for key in one} for found in pages]
    assert kinds[1] <= kinds[0] | {("text", "class")}
    text = "".join(text for _, text in page.texts)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
    assert "\\u202e" in text and "\\x1b[31m" in text


FIXTURES = Path(__file__).parents[2] / "fixtures"
WITHOUT_PAGES = {"cudnn", "foreign"}
"""Folders of fixtures that are no checkpoints, or of formats that are not read."""
NO_CHECKPOINT = {".py", ".md", ".json", ".txt"}


@pytest.mark.sample(4)
@pytest.mark.parametrize("folder", sorted(one.name for one in FIXTURES.iterdir() if one.is_dir()))
def test_every_fixture_has_a_page(folder: str, tmp_path: Path) -> None:
    """Of every format; what cannot be read alone, such as a sidecar file, is an error of ours.

    In `make test` a folder's first two files of each suffix have one.
    """
    seen: Counter[str] = Counter()
    made = 0
    every = sorted(FIXTURES.joinpath(folder).rglob("*"))
    for path in (one for one in every if "__pycache__" not in one.parts):
        seen[path.suffix] += 1
        if path.suffix in NO_CHECKPOINT or (not IS_WHOLE and seen[path.suffix] > 2):
            continue
        try:
            paramtool.report(path, output=tmp_path / "page.html", force=True, equal=True, allow_unknown=True)
        except paramtool.ParamtoolError:
            continue
        check((tmp_path / "page.html").read_text(encoding="utf-8"))
        made += 1
    assert made or folder in WITHOUT_PAGES


def test_where_a_page_goes(checkpoint: Path, tmp_path: Path) -> None:
    assert default_output(checkpoint) == str(checkpoint.with_name("tied.report.html"))
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        paramtool.report(checkpoint, output=tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "mine"
    with pytest.raises(OutputError, match="is an input"):
        paramtool.report(checkpoint, output=checkpoint, force=True)


def test_a_page_of_an_unsafe_file_is_asked_for(tmp_path: Path) -> None:
    class Calls:
        def __reduce__(self) -> tuple[object, ...]:
            return (print, ("called",))

    torch.save({"w": torch.ones(3), "x": Calls()}, tmp_path / "evil.pt")
    with pytest.raises(UnsafeError):
        paramtool.report(tmp_path / "evil.pt", output=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    found = check(page_of(tmp_path / "evil.pt", allow_unknown=True))
    assert any("builtins.print" in text for _, text in found.texts)


@pytest.mark.parametrize("equal", [False, True])
def test_a_page_says_what_was_not_compared(checkpoint: Path, equal: bool) -> None:
    assert ("were not searched for" in page_of(checkpoint, equal=equal)) != equal


def test_what_rules_find_is_on_the_page(checkpoint: Path) -> None:
    page = page_of(checkpoint, only="model", fail_on=["missing:absent"])
    assert "missing:absent" in page and "class=&quot;error" not in page and 'class="error"' in page
