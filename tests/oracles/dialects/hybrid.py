"""OLMo-Hybrid: its three convolutions are one tensor in memory, of parts that are not equal.

transformers' class gives the logits of a file that paramtool converted, and of the way back.  The file of version 4 is
that which people have: transformers itself writes three equal parts (`forms`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.oracles.dialects import converting, forms
from tests.oracles.dialects.models import BY_NAME, opened, results, tensors
from tests.oracles.dialects.proofs import Case, Proof

FAMILY = BY_NAME["OLMo-Hybrid"]
CONVS = "linear_attn.conv1d.weight"
ORDERS = ("kqv", "vqk", "vkq")
"""Of the parts in a tensor of the same shape; the right one is qkv."""


def logits(folder: Path, case: Case) -> torch.Tensor:
    """Those of the class, from a folder that it opens without complaints."""
    return results(opened(FAMILY, folder), case.given)


def reordered(tensor: torch.Tensor, order: str, config: Any) -> torch.Tensor:
    """The convolutions in another order."""
    of_k = config.linear_num_key_heads * config.linear_key_head_dim
    of_v = config.linear_num_value_heads * config.linear_value_head_dim
    parts: Mapping[str, torch.Tensor] = dict(zip("qkv", tensor.split([of_k, of_k, of_v]), strict=True))
    return torch.cat([parts[one] for one in order])


def proof(folder: Path) -> Proof:
    """Converted to version 5 and back; AssertionError or `forms.Wrong` where the file that comes back is another."""
    case = Case(FAMILY)
    four = forms.people_have(forms.both(case.model, folder), "olmo_hybrid", folder / "people")
    five = converting.convert(four, folder / "made 5", forms.FIVE)
    back = converting.convert(five, folder / "made 4", forms.FOUR)
    forms.same(tensors(four), tensors(back), "there and back")
    made = tensors(five)
    assert any(name.endswith(CONVS) for name in made), "nothing was joined"
    wrong = {}
    for order in ORDERS:
        shutil.copytree(five, where := folder / order)
        changed = {n: reordered(t, order, case.model.config) for n, t in made.items() if n.endswith(CONVS)}
        save_file({**made, **changed}, where / "model.safetensors", {"format": "pt"})
        wrong[order] = case.off(logits(where, case))
    error = max(case.off(logits(where, case)) for where in (five, back))
    judge = f"transformers' {FAMILY.architecture}"
    return Proof(FAMILY.name, "convert --to transformers-5, and back (convs)", judge, error, wrong)
