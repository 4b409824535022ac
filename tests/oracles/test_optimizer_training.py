"""Training that goes on in a module with other parameters, from the state that paramtool moved, by torch's own loader.

Twenty steps, a save, a command, `load_state_dict` of the other module and of its optimizer, twenty more: all in
float64, and compared with forty steps without a stop.  Controls without the state, and with the state of two
parameters exchanged, end elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from paramtool.commands.relayout import fuse, unfuse
from tests.examples import IS_HARD

STEPS = 20
NEAR = 1e-9
FAR = 1e-4

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "adamw-amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "radam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2, t0=0),
}
IN_EVERY_RUN = ("adam",)
"""Those that `make test` trains with; `make hard` takes all."""
CHOSEN = [
    name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.skipif(
        not IS_HARD, reason="make hard trains with every optimizer"))
    for name in OPTIMIZERS
]  # fmt: skip


class Recurrent(nn.Module):
    """An LSTM between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.lstm = nn.LSTM(5, 4, num_layers=2)
        self.last = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs of all steps."""
        found: Tensor = self.last(self.lstm(self.first(inputs))[0])
        return found


class Vector(nn.Module):
    """The parameters of an LSTM as the one vector of cuDNN: all weights, then all biases."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        named = dict(lstm.named_parameters())
        self.kinds = [(name, one.shape) for kind in ("weight", "bias") for name, one in named.items() if kind in name]
        self.flat_weights = nn.Parameter(torch.cat([named[name].detach().flatten() for name, _ in self.kinds]))
        self.template = [lstm]

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """The LSTM with windows of the vector."""
        parts = torch.split(self.flat_weights, [shape.numel() for _, shape in self.kinds])
        own = {name: part.view(shape) for (name, shape), part in zip(self.kinds, parts, strict=True)}
        found: tuple[Tensor, Any] = functional_call(self.template[0], own, (inputs,))
        return found


class Flat(Recurrent):
    """The same with the vector."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = Vector(self.lstm)  # type: ignore[assignment]


class Conv1D(nn.Module):
    """GPT-2's linear layer, whose weight is [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Its outputs."""
        return inputs @ self.weight + self.bias


class Attention(nn.Module):
    """Self-attention of two heads, with q, k and v in one layer or in three.

    Later keys count more: without that, the bias of k has a gradient of rounding errors, of which Rprop and Adagrad
    make steps as large as any.
    """

    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        if is_fused:
            self.c_attn = Conv1D(6, 18)
        else:
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(6, 6) for _ in range(3))
        self.c_proj = Conv1D(6, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum of the values that each place asks for."""
        if hasattr(self, "c_attn"):
            parts = self.c_attn(inputs).split(6, -1)
        else:
            parts = self.q_proj(inputs), self.k_proj(inputs), self.v_proj(inputs)
        query, key, value = parts
        key = key * torch.linspace(1, 2, key.shape[-2], dtype=key.dtype)[:, None]
        parts = query, key, value
        heads = [one.unflatten(-1, (2, 3)).transpose(-2, -3) for one in parts]
        found = nn.functional.scaled_dot_product_attention(*heads)
        return self.c_proj(found.transpose(-2, -3).flatten(-2))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Two layers of attention."""

    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.wte = nn.Linear(3, 6)
        self.h = nn.ModuleList(nn.ModuleDict({"attn": Attention(is_fused)}) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        """With residuals."""
        found = self.wte(inputs)
        for layer in self.h:
            found = found + layer["attn"](found)  # type: ignore[index]
        return found  # type: ignore[no-any-return]


class Expert(nn.Module):
    """A gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            nn.Linear(a, b, bias=False) for a, b in ((6, 5), (6, 5), (5, 6))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Its outputs."""
        hidden = nn.functional.silu(self.gate_proj(inputs)) * self.up_proj(inputs)
        return self.down_proj(hidden)  # type: ignore[no-any-return]


class Stacked(nn.Module):
    """The same for all experts, in two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 10, 6))
        self.down_proj = nn.Parameter(torch.randn(4, 6, 5))

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs of each expert."""
        gate, up = torch.einsum("...i,eoi->e...o", inputs, self.gate_up_proj).chunk(2, -1)
        return torch.einsum("e...i,eoi->e...o", nn.functional.silu(gate) * up, self.down_proj)


class Moe(nn.Module):
    """Experts, each of which counts as much as the gate says."""

    def __init__(self, is_fused: bool) -> None:
        super().__init__()
        self.first = nn.Linear(3, 6)
        experts: nn.Module = Stacked() if is_fused else nn.ModuleList(Expert() for _ in range(4))
        self.mlp = nn.ModuleDict({"gate": nn.Linear(6, 4, bias=False), "experts": experts})

    def forward(self, inputs: Tensor) -> Tensor:
        """Their weighted sum."""
        found = self.first(inputs)
        experts: Any = self.mlp["experts"]
        each = experts(found) if isinstance(experts, Stacked) else torch.stack([one(found) for one in experts])
        return (self.mlp["gate"](found).softmax(-1).movedim(-1, 0)[..., None] * each).sum(0)  # type: ignore[no-any-return]


class Case(NamedTuple):
    """Two modules of one model, and the commands that lead from one to the other."""

    start: Callable[[], nn.Module]
    other: Callable[[], nn.Module]
    there: Callable[..., Any]
    back: Callable[..., Any]
    exchanged: tuple[int, int]
    """Entries of `other` of one shape, or the same entry twice: then it is turned around."""


_LSTM: dict[str, Any] = {
    "layout": "cudnn", "spec": "lstm layers=2 hidden=4 input=5", "at": ("model.lstm.flat_weights",),
}  # fmt: skip
_QKV: dict[str, Any] = {"layout": "qkv-conv1d", "spec": "qkv heads=2 kv_heads=2"}
_EXPERTS: dict[str, Any] = {"layout": "experts"}
CASES = {
    "lstm as one vector": Case(
        Recurrent, Flat, lambda a, b: fuse(a, b, layout="cudnn"), lambda a, b: unfuse(a, b, **_LSTM), (2, 2)
    ),
    "c_attn as q, k and v": Case(
        lambda: Gpt(True),
        lambda: Gpt(False),
        lambda a, b: unfuse(a, b, **_QKV),
        lambda a, b: fuse(a, b, **_QKV),
        (2, 4),
    ),
    "experts in stacks": Case(
        lambda: Moe(False),
        lambda: Moe(True),
        lambda a, b: fuse(a, b, **_EXPERTS),
        lambda a, b: unfuse(a, b, **_EXPERTS),
        (3, 3),
    ),
}


class Run:
    """A module that is trained."""

    def __init__(self, module: nn.Module, optimizer: str) -> None:
        self.module = module.double()
        self.optimizer = OPTIMIZERS[optimizer](self.module.parameters())

    def train(self, first: int) -> None:
        """Twenty steps, each with its own data."""
        for step in range(first, first + STEPS):
            random = torch.Generator().manual_seed(step)
            inputs = torch.randn(4, 2, 3, dtype=torch.float64, generator=random)
            self.optimizer.zero_grad()
            found = self.module(inputs)
            (found.square().mean() + found[..., 0].sin().mean()).backward()
            self.optimizer.step()

    def save(self, path: Path) -> None:
        """As training scripts do."""
        torch.save({"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": 3}, path)

    def load(self, path: Path) -> dict[str, Any]:
        """As training scripts do."""
        found: dict[str, Any] = torch.load(path, weights_only=True)
        self.module.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        return found


def _without_stop(case: Case, optimizer: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    run = Run(case.start(), optimizer)
    run.train(0)
    run.train(STEPS)
    return dict(run.module.state_dict())


def _saved(case: Case, optimizer: str, path: Path) -> None:
    torch.manual_seed(0)
    run = Run(case.start(), optimizer)
    run.train(0)
    run.save(path)


def _difference(path: Path, expected: dict[str, Tensor]) -> float:
    """The largest difference of a tensor in a file, relative to the largest number in that tensor."""
    found = torch.load(path, weights_only=True)["model"]
    assert found.keys() == expected.keys()
    pairs = ((found[name], one) for name, one in expected.items())
    return max(float((mine - one).abs().max() / one.abs().max().clamp(min=1e-3)) for mine, one in pairs)


def _continued(case: Case, optimizer: str, folder: Path, change: Callable[[Run], None]) -> float:
    """How far a run with the other module in its second half is from one without a stop."""
    a, b, c, d = (folder / f"{name}.pt" for name in "abcd")
    _saved(case, optimizer, a)
    case.there(a, b)
    run = Run(case.other(), optimizer)
    run.load(b)
    change(run)
    run.train(STEPS)
    run.save(c)
    case.back(c, d)
    return _difference(d, _without_stop(case, optimizer))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """Each pair of modules."""
    yield CASES[request.param]


@pytest.mark.sample(15)
@pytest.mark.parametrize("optimizer", CHOSEN)
def test_training_goes_on_in_the_other_module(case: Case, optimizer: str, tmp_path: Path) -> None:
    assert _continued(case, optimizer, tmp_path, lambda run: None) <= NEAR


@pytest.mark.sample(15)
@pytest.mark.parametrize("optimizer", CHOSEN)
def test_training_goes_on_after_there_and_back(case: Case, optimizer: str, tmp_path: Path) -> None:
    a, b, c, d = (tmp_path / f"{name}.pt" for name in "abcd")
    _saved(case, optimizer, a)
    case.there(a, b)
    case.back(b, c)
    before, run = torch.load(a, weights_only=True), Run(case.start(), optimizer)
    after = run.load(c)
    assert list(after["model"]) == list(before["model"])
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    run.train(STEPS)
    run.save(d)
    resumed = Run(case.start(), optimizer)  # NAdam's `mu_product` has another type after a load
    resumed.load(a)
    resumed.train(STEPS)
    assert _difference(d, dict(resumed.module.state_dict())) == 0


@pytest.mark.parametrize("optimizer", IN_EVERY_RUN)
def test_training_without_the_state_ends_elsewhere(case: Case, optimizer: str, tmp_path: Path) -> None:
    assert _continued(case, optimizer, tmp_path, lambda run: run.optimizer.state.clear()) >= FAR


@pytest.mark.sample(1)
@pytest.mark.parametrize("optimizer", IN_EVERY_RUN)
def test_training_with_the_state_of_another_parameter_ends_elsewhere(
    case: Case, optimizer: str, tmp_path: Path
) -> None:
    def exchanged(run: Run) -> None:
        one, other = (list(run.module.parameters())[k] for k in case.exchanged)
        state = run.optimizer.state
        if one is other:
            for key in ("exp_avg", "exp_avg_sq"):
                state[one][key] = state[one][key].flip(0).contiguous()
        else:
            state[one], state[other] = state[other], state[one]

    assert _continued(case, optimizer, tmp_path, exchanged) >= FAR
