"""Opens a file that paramtool wrote in timm or open_clip, and runs it: `python run_libraries.py LIBRARY FOLDER`.

FOLDER has model.safetensors, sizes.json and inputs.safetensors; outputs.safetensors is written.  The names of the file
must be those of the model, all of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, no_grad

Model = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


def vit(sizes: Mapping[str, Any], state: Mapping[str, Tensor]) -> Model:
    """timm's VisionTransformer."""
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(**sizes).eval()
    model.load_state_dict(state)
    return lambda inputs: {"logits": model(inputs["pixels"])}


def deit(sizes: Mapping[str, Any], state: Mapping[str, Tensor]) -> Model:
    """timm's VisionTransformerDistilled, whose result is the mean of both heads."""
    from timm.models.deit import VisionTransformerDistilled

    model = VisionTransformerDistilled(**sizes).eval()
    model.load_state_dict(state)
    return lambda inputs: {"logits": model(inputs["pixels"])}


def clip(sizes: Mapping[str, Any], state: Mapping[str, Tensor]) -> Model:
    """open_clip's CLIP."""
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    model = CLIP(sizes["projection"], CLIPVisionCfg(**sizes["image"]), CLIPTextCfg(**sizes["text"])).eval()
    model.load_state_dict(state)
    return lambda inputs: {"image": model.encode_image(inputs["pixels"]), "text": model.encode_text(inputs["words"])}


LIBRARIES = {"vit": vit, "deit": deit, "clip": clip}


def main(library: str, folder: Path) -> None:
    """Run one model."""
    sizes = json.loads((folder / "sizes.json").read_text())
    try:
        model = LIBRARIES[library](sizes, load_file(folder / "model.safetensors"))
    except ModuleNotFoundError as error:
        sys.exit(f"absent: {error.name}")
    with no_grad():
        save_file(model(load_file(folder / "inputs.safetensors")), folder / "outputs.safetensors")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
