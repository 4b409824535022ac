"""Files of training state, and files that belong to a model beside its weights, by their names.

Training state with suffixes of weights is no candidate when a folder is searched for weights.  Nothing is opened.
"""

from __future__ import annotations

import re

TRAINING_STATE = (
    r"optimizer(_\d+)?(_rank\d+)?\.(pt|bin)"  # Trainer, accelerate
    r"|rank\d+-of-\d+-optimizer\.pt"  # Trainer, torch_xla with FSDP
    r"|scheduler(_\d+)?\.(pt|bin)"  # Trainer, accelerate
    r"|scaler\.pt"  # both
    r"|rng_state(_\d+)?\.pth"  # Trainer
    r"|(training_args|user_content)\.(bin|pt)"  # Trainer
    r"|(sampler|dl_state_dict)(_\d+)?\.bin"  # accelerate
    r"|(random_states|custom_checkpoint)_\d+\.pkl"  # accelerate
    r"|.*optim_states\.pt"  # DeepSpeed
)
"""Names of transformers 5.23 (trainer.py: `OPTIMIZER_NAME` and the names next to it, `_save_rng_state`) and of
accelerate 1.15 (checkpointing.py, `save_accelerator_state` and `save_custom_state`; utils/fsdp_utils.py), and of
DeepSpeed 0.17 (runtime/engine.py, `_get_zero_ckpt_name`)."""

OPTIMIZER = r"optimizer(_\d+)?\.(pt|bin)|[^/]+\.states"
"""Names of files that hold an optimizer alone, beside the model: transformers 5.23 (trainer.py, `OPTIMIZER_NAME`),
accelerate 1.15 (utils/constants.py), MXNet 1.9.1 (module/module.py, `save_checkpoint`; its guides for Gluon)."""
OPTIMIZER_FOLDER = r"optimizer_\d+"
"""Names of folders that hold one, in the format of torch.distributed.checkpoint: accelerate 1.15 with FSDP
(utils/fsdp_utils.py, `save_fsdp_optimizer`)."""


def is_training_state(name: str) -> bool:
    """Whether a file of this name holds training state, and no weights.

    >>> [is_training_state(name) for name in ("optimizer.bin", "rng_state_3.pth", "model_1.safetensors")]
    [True, True, False]
    """
    return re.fullmatch(TRAINING_STATE, name) is not None


def optimizer_of(name: str) -> str:
    """The file or the folder of an optimizer that a file is, or is in, given its name in a folder, with `/`.

    >>> [optimizer_of(name) for name in ("optimizer.pt", "optimizer_0/.metadata", "scheduler.pt", "a/optimizer.pt")]
    ['optimizer.pt', 'optimizer_0', '', '']
    """
    first, slash, _ = name.partition("/")
    found = re.fullmatch(OPTIMIZER_FOLDER if slash else OPTIMIZER, first)
    return first if found else ""


_OF_TRAINING = (
    r"(.*/)?(trainer_state\.json|training_args\.bin|latest(_universal)?|zero_to_fp32\.py|[^/]*\.distcp|\.metadata)"
    r"|(optimizer_\d+|pytorch_model_fsdp_\d+|global_step\d+(_universal)?|zero|runs)/.*"
)
"""What only a training reads: transformers 5.23 (trainer.py), accelerate 1.15, DeepSpeed 0.19 (runtime/engine.py), and
logs of TensorBoard."""
_OF_MODEL = (
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab"
    r"|(video_|image_)?(pre)?processor_config|chat_template)\.json"
    r"|vocab\.txt|merges\.txt|chat_template\.jinja|[^/]*\.(model|tiktoken)|(configuration|modeling|tokenization)_\w+\.py"
)
"""What from_pretrained of models, tokenizers and processors opens beside weights: transformers 5.23
(utils/__init__.py, tokenization_utils_base.py and the `vocab_files_names` of its tokenizers)."""


def is_of_training(name: str) -> bool:
    """Whether a file of a folder, given its name there with `/`, is of a training, and not of its model.

    >>> [is_of_training(name) for name in ("optimizer_0/.metadata", "rng_state_1.pth", "config.json")]
    [True, True, False]
    """
    return is_training_state(name.rpartition("/")[2]) or re.fullmatch(_OF_TRAINING, name) is not None


def is_of_model(name: str) -> bool:
    """Whether a file beside weights is one that opens with the model: its config, its tokenizer.

    >>> [is_of_model(name) for name in ("config.json", "tokenizer.model", "trainer_state.json")]
    [True, True, False]
    """
    return re.fullmatch(_OF_MODEL, name) is not None
