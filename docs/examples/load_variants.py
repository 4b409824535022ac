"""One deduplicated file, three models: with the tied decoder, without a decoder, and with an untied one.

    python docs/examples/load_variants.py [FILE]

FILE is what `paramtool dedup fixtures/torch/tied_flattened/tied_flattened.pt` wrote; without it, one is made in a
temporary folder.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import paramtool
import paramtool.torch

FIXTURE = Path(__file__).parents[2] / "fixtures/torch/tied_flattened/tied_flattened.pt"
VOCABULARY, WIDTH, LAYERS = 50, 24, 2


class Encoder(nn.Module):
    """Embedding and LSTM, and no decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)


class Untied(Encoder):
    """With a decoder and a projection that have weights of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.reduce = nn.Linear(VOCABULARY, WIDTH, bias=False)


class Tied(Untied):
    """The decoder is the embedding, the projection its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder.weight = self.emb.weight
        self.reduce.weight = nn.Parameter(self.emb.weight.detach().t())


def is_tied(model: nn.Module) -> bool:
    """Whether the decoder trains with the embedding: change one, look at the other."""
    weights = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        before = weights["decoder.weight"].clone()
        weights["emb.weight"][3] += 1
        moved = not torch.equal(before, weights["decoder.weight"])
        weights["emb.weight"][3] -= 1
    return moved


def show(path: Path) -> None:
    """Load the file into each variant and compare with what torch reads from the original."""
    original = torch.load(FIXTURE, weights_only=True)
    for model in (Tied(), Encoder(), Untied()):
        paramtool.torch.load_model(model, path)
        state = model.state_dict()
        assert all(torch.equal(tensor, original[name]) for name, tensor in state.items())
        decoder = "no decoder" if "decoder.weight" not in state else "tied" if is_tied(model) else "not tied"
        print(
            f"{type(model).__name__:8}  {len(state):2} of {len(original)} names, all equal to the original; {decoder}"
        )


def main() -> None:
    """Show the file that was named, or one made here."""
    if len(sys.argv) > 1:
        show(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tied_flattened.dedup.safetensors"
        paramtool.dedup(FIXTURE, path)
        show(path)


if __name__ == "__main__":
    main()
