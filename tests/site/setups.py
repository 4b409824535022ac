"""The files that a page supposes: each public function makes those of one `<!-- files made by: NAME -->`.

Models are built from configs of a few layers; their numbers are functions of their positions, or seeded, so that every
machine prints the same.  A file `before.py` is put before the page's Python, and `make.py` is run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from tests.site.environment import ENVIRONMENT, ROOT
from tests.site.models import Speech, pretrained, tied, trained


def speech(folder: Path) -> None:
    """Numbers that neither float16 nor bfloat16 has."""
    model = Speech()
    with torch.no_grad():
        for k, tensor in enumerate(model.state_dict().values()):
            if tensor.is_floating_point():
                numbers = (torch.arange(tensor.numel()) + 7919 * (k + 1)) * 40503 % 65521
                tensor.copy_(((numbers - 32760.25) / 65536).view(tensor.shape))
    torch.save(model.state_dict(), folder / "speech.pt")


def fp8(folder: Path) -> None:
    """Codes of FP8 with a scale for each block of 128 x 128, and a norm."""
    state = {
        "mlp.up_proj.weight": (torch.arange(256 * 128) % 251 / 64).view(256, 128).to(torch.float8_e4m3fn),
        "mlp.up_proj.weight_scale_inv": torch.tensor([[0.013], [0.007]]),
        "norm.weight": torch.ones(128, dtype=torch.bfloat16),
    }
    save_file(state, folder / "fp8.safetensors", {"format": "pt"})


def tied_model(folder: Path) -> None:
    """A tied GPT-2, the names of one without a head, and an untied config."""
    small = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 96}
    model = pretrained(folder / "tied", "GPT2", **small)
    pretrained(folder / "untied", "GPT2", **small, tie_word_embeddings=False)
    torch.save(model.state_dict(), folder / "model.pt")
    (folder / "names.txt").write_text("\n".join(name for name in model.state_dict() if name != "lm_head.weight") + "\n")
    (folder / "before.py").write_text(
        "from transformers import AutoConfig, AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained('tied'))\n"
    )


def several(folder: Path) -> None:
    """A file, a folder of transformers, and a base with two fine-tunes."""
    torch.save(tied(), folder / "model.pt")
    pretrained(folder / "hf-folder", "Llama", tie_word_embeddings=True)
    for name, factor in {"base": 1, "tuned-a": 1.5, "tuned-b": 2}.items():
        pretrained(folder / name, "Llama", scaled=factor)


def fine_tuned(folder: Path) -> None:
    """Two models, a fine-tune of the first under two names, and a file."""
    for name in ("llama-a", "base", "base-1"):
        pretrained(folder / name, "Llama")
    for name in ("llama-b", "base-2"):
        pretrained(folder / name, "Llama", seed=1)
    for name in ("tuned", "finetuned"):
        pretrained(folder / name, "Llama", scaled=1.05)
    torch.save(tied(), folder / "model.pt")


def checkpoints(folder: Path) -> None:
    """A tied checkpoint, one whose tie was lost, a training run, and a folder of transformers."""
    torch.save(tied(), folder / "a.pt")
    torch.save({name: one.clone() for name, one in tied().items()}, folder / "b.pt")
    torch.save({"model": tied(), "epoch": 3}, folder / "run.ckpt")
    pretrained(folder / "model", "Llama", tie_word_embeddings=True)


def checked(folder: Path) -> None:
    """A locked model whose tie was lost, and one with unused bytes that its configuration allows."""
    import paramtool

    (folder / "models").mkdir()
    torch.save(tied(), folder / "models" / "head.pt")
    torch.save({"w": torch.zeros(800_000)[:10]}, folder / "models" / "body.pt")
    paramtool.lock([*sorted((folder / "models").glob("*.pt"))], folder / "paramtool.lock")
    torch.save({name: one.clone() for name, one in tied().items()}, folder / "models" / "head.pt")
    (folder / "paramtool.toml").write_text(
        'max-unused = "1MB"\n[severity]\nfile-changed = "off"\n'
        '[[allow]]\nrule = "unused-bytes"\nreason = "old exporter"\nuntil = 2099-01-31\n'
    )


def repository(folder: Path) -> None:
    """Two commits of model.safetensors, between which a bias was trained, and a folder of models."""
    (folder / "models").mkdir()
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True, env={**os.environ, **ENVIRONMENT})
    (folder / ".gitignore").write_text("/fixtures\n/docs\n/.out\n/.err\n")
    for number in (0.0, 1.0):
        state = {"wte.weight": torch.ones(100, 32), "lm_head.bias": torch.full((100,), number)}
        save_file(state, folder / "model.safetensors")
        save_file(state, folder / "models" / "gpt2.safetensors")
        for words in (["add", "."], ["commit", "--quiet", "--message", "Weights"]):
            subprocess.run(["git", *words], cwd=folder, check=True, env={**os.environ, **ENVIRONMENT})


def locked(folder: Path) -> None:
    """model.safetensors, and its model."""
    save_file(Speech().state_dict(), folder / "model.safetensors")
    (folder / "before.py").write_text("from tests.site.models import Speech\n\nmodel = Speech()\n")


def mixtral(folder: Path) -> None:
    """A small Mixtral, the same for vLLM, a GPT-NeoX, and a fused MLP without a config."""
    import paramtool

    pretrained(folder / "mixtral", "Mixtral", num_local_experts=4)
    paramtool.convert(folder / "mixtral", folder / "mixtral-vllm", target="vllm")
    pretrained(folder / "gpt-neox", "GPTNeoX")
    state = {f"model.layers.{k}.mlp.gate_up_proj.weight": torch.zeros(96, 32) for k in range(2)}
    down = {f"model.layers.{k}.mlp.down_proj.weight": torch.zeros(32, 48) for k in range(2)}
    save_file({**state, **down}, folder / "model.safetensors")


def llama(folder: Path) -> None:
    """A small Llama of transformers, and one of Meta's."""
    import paramtool

    pretrained(folder / "model", "Llama", intermediate_size=64)
    paramtool.convert(folder / "model", folder / "Llama3-8B", target="meta")
    os.remove(folder / "Llama3-8B" / "config.json")


def recurrent(folder: Path) -> None:
    """Weights of Keras' LSTM, a language model with an LSTM, and an LSTM."""
    shutil.copy(ROOT / "fixtures" / "guess" / "keras_lstm.weights.h5", folder / "m.weights.h5")
    torch.manual_seed(0)
    lstm = {f"rnn.{name}": one for name, one in nn.LSTM(6, 8).state_dict().items()}
    torch.save(lstm, folder / "lstm.pt")
    torch.save({"encoder.weight": torch.randn(20, 6), **lstm}, folder / "lm.pt")


def lstm_and_keras(folder: Path) -> None:
    """An LSTM of torch, and a model of Keras for it."""
    recurrent(folder)
    (folder / "make.py").write_text(
        "import os\nos.environ['KERAS_BACKEND'] = 'torch'\nimport keras\n"
        "keras.Sequential([keras.Input((None, 6)), keras.layers.LSTM(8, name='rnn')]).save('model.keras')\n"
    )


def training(folder: Path) -> None:
    """A model with AdamW, and the two in a script."""
    trained(folder / "last.pt")
    (folder / "before.py").write_text(
        "import torch\nfrom tests.site.models import Speech\n\nmodel = Speech()\n"
        "optimizer = torch.optim.AdamW([{'params': model.head.parameters()}, {'params': model.conv.parameters()}])\n"
    )


def trainer(folder: Path) -> None:
    """A folder of transformers' Trainer, and the config of the fused model."""
    pretrained(folder / "phi3", "Phi3", pad_token_id=0)
    model = pretrained(folder / "run" / "checkpoint-500", "Llama")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "run" / "checkpoint-500" / "optimizer.pt")


def tied_training(folder: Path) -> None:
    """A tied Llama with AdamW."""
    trained(folder / "train.pt")
