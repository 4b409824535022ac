"""`diff`, `verify`, `lock` and `check` of files whose truth torch knows: the same weights, or one that is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.golden.works import Facts, Jobs
from tests.golden.works import loads as forms
from tests.golden.works.files import done
from tests.golden.works.modules import MODULES
from tests.oracles import library_models
from tests.oracles.real_models import examples


def of(build: Callable[[], nn.Module]) -> Callable[[Path], Facts]:
    """The job of a model: every form beside `m.pt`, and `m.pt` beside what is not it."""

    def job(folder: Path) -> Facts:
        torch.manual_seed(0)
        model = build()
        state = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
        torch.save(state, folder / "m.pt")
        done("lock", "m.pt", "-o", "lock", cwd=folder)
        for form, (write, options) in forms.files(model, folder, few=False).items():
            try:
                write(folder / form)
            except Exception:
                continue
            only = ["--only", "model"] if options else []
            if options.keys() <= {"only"}:
                yield f"{form}, diff with m.pt", partial(same, form, "m.pt", folder, only=only)
                yield f"{form}, diff of m.pt", partial(same, "m.pt", form, folder, only=only)
                if not only:
                    yield f"{form}, verify", partial(done, "verify", form, "--against", "m.pt", cwd=folder)
                    check = ("check", form, "--lock", "lock", "--content-only")
                    yield f"{form}, check", partial(done, *check, cwd=folder)
        for what, other in others(state).items():
            torch.save(other, folder / "other.pt")
            yield f"{what}, diff", partial(done, "diff", "m.pt", "other.pt", "--exit-code", cwd=folder, codes=(1,))
            yield f"{what}, verify", partial(done, "verify", "other.pt", "--against", "m.pt", cwd=folder, codes=(1,))

    return job


def same(a: str, b: str, folder: Path, only: list[str]) -> int:
    return done("diff", a, b, "--exit-code", *only, cwd=folder)


def others(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{what is other: a state dict that has it}."""
    floats = [name for name, value in state.items() if value.is_floating_point() and value.numel() > 1]
    if not floats:
        return {}
    name = max(floats, key=lambda name: state[name].numel())
    moved = state[name].detach().clone().contiguous()
    moved.view(-1).view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[moved.element_size()])[-1] ^= 1
    tied = [one for one in state if state[one].data_ptr() == state[name].data_ptr()]
    return {
        "one bit": {**state, **dict.fromkeys(tied, moved)},
        "one name less": {one: value for one, value in state.items() if one not in tied},
        "one name more": {**state, "more": torch.ones(3)},
    }


JOBS: Jobs = {
    **{f"module {name}": of(forms.seeded(build)) for name, build in MODULES.items()},
    **{f"model {name}": of(spec.build) for name, spec in examples.MODELS.items()},
    **{
        f"diffusers {name}": of(partial(library_models.diffusers_model, name))
        for name in ("UNet2DConditionModel", "AutoencoderKL", "FluxTransformer2DModel", "UNet1DModel")
    },
}
