"""For people with torch: load any readable checkpoint into tensors or into a model, every alias name resolved.

    paramtool.torch.load_file(path)           {name: tensor}; names that share memory in the file share it here
    paramtool.torch.load_model(model, path)   fills a model; what it ties stays tied, what it does not stays apart
    paramtool.torch.save_model(model, path)   writes a model's state with every byte once and every name recorded
    paramtool.torch.save_file(tensors, path)  the same of {name: tensor}
    paramtool.torch.variants(models, path)    what would happen: what is lacking, what clashes, which ties do not hold
    paramtool.torch.names_from_config(path)   names, shapes and ties of the model of a config.json of transformers

The only room of the package that imports torch.
"""

from __future__ import annotations

from paramtool.torch._models import Loaded, load_model
from paramtool.torch._saving import Saved, save_file, save_model
from paramtool.torch._variants import variants
from paramtool.torch.tensors import load_file
from paramtool.torch.transformers_models import names_from_config

__all__ = [
    "Loaded", "Saved", "load_file", "load_model", "names_from_config", "save_file", "save_model", "variants",
]  # fmt: skip
