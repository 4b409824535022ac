"""Enum classes of other libraries: a call with one string or one integer looks up a member.

An enum's member is pickled as a call of its class with the member's value, `SchedulerType("linear")`, and by Python
3.11.0 to 3.11.3 as `getattr(SchedulerType, "LINEAR")` (Lib/enum.py, `Enum.__reduce_ex__`).  Looking up a member runs
nothing from the file.  The names are exact; calls of these classes with other arguments are calls like any other.

Each group names the file and the versions in which the classes were found.
"""

from __future__ import annotations

VALUE_CLASSES = frozenset(
    f"{module}.{name}"
    for module, names in (
        # transformers/trainer_utils.py of 5.23; EvaluationStrategy and ShardedDDPOption as of 4.10 and 4.40
        ("transformers.trainer_utils", (
            "IntervalStrategy", "SaveStrategy", "HubStrategy", "HPSearchBackend", "SchedulerType", "FSDPOption",
            "EvaluationStrategy", "ShardedDDPOption",
        )),
        # transformers/training_args.py of 4.10, 4.40 and 5.23
        ("transformers.training_args", ("OptimizerNames", "ParallelMode")),
        # transformers/debug_utils.py of 4.10, 4.40 and 5.23
        ("transformers.debug_utils", ("DebugOption",)),
        # transformers/utils/generic.py of 4.40 and 5.23, transformers/file_utils.py of 4.10
        ("transformers.utils.generic", ("PaddingStrategy", "TensorType")),
        ("transformers.file_utils", ("PaddingStrategy", "TensorType")),
        # transformers/tokenization_utils_base.py and transformers/generation/configuration_utils.py of 5.23
        ("transformers.tokenization_utils_base", ("TruncationStrategy",)),
        ("transformers.generation.configuration_utils", ("GenerationMode",)),
        # transformers/utils/quantization_config.py of 4.40 and 5.23
        ("transformers.utils.quantization_config", (
            "QuantizationMethod", "AWQLinearVersion", "AwqBackendPackingMethod", "AwqFormat", "AwqBackend",
            "ExllamaVersion",
        )),
        # accelerate/utils/dataclasses.py of 1.15
        ("accelerate.utils.dataclasses", (
            "DDPCommunicationHookType", "DistributedType", "SageMakerDistributedType", "FP8BackendType",
            "ComputeEnvironment", "DynamoBackend", "LoggerType", "PrecisionType", "RNGType", "CustomDtype",
        )),
        # accelerate/state.py and accelerate/utils.py of 0.5
        ("accelerate.state", ("DistributedType", "SageMakerDistributedType", "ComputeEnvironment")),
        ("accelerate.utils", ("RNGType",)),
        # peft/utils/peft_types.py and peft/tuners/*/config.py of 0.21
        ("peft.utils.peft_types", ("PeftType", "TaskType")),
        ("peft.tuners.prompt_tuning.config", ("PromptTuningInit",)),
        ("peft.tuners.multitask_prompt_tuning.config", ("MultitaskPromptTuningInit",)),
        ("peft.tuners.p_tuning.config", ("PromptEncoderReparameterizationType",)),
        # peft/utils/config.py and peft/tuners/*.py of 0.3
        ("peft.utils.config", ("PeftType", "TaskType")),
        ("peft.tuners.prompt_tuning", ("PromptTuningInit",)),
        ("peft.tuners.p_tuning", ("PromptEncoderReparameterizationType",)),
        # trainer/states.py, callbacks/*.py and utilities/enums.py of pytorch_lightning 1.9 and 2.6, lightning 2.6
        *(
            (f"{package}.{module}", names)
            for package in ("pytorch_lightning", "lightning.pytorch")
            for module, names in (
                ("trainer.states", ("TrainerStatus", "TrainerFn", "RunningStage")),
                ("callbacks.timer", ("Interval",)),
                ("callbacks.prediction_writer", ("WriteInterval",)),
                ("callbacks.early_stopping", ("EarlyStoppingReason",)),
                ("utilities.enums", ("GradClipAlgorithmType",)),
            )
        ),
        # torchmetrics/utilities/enums.py of 1.9, in the metrics that Lightning keeps
        ("torchmetrics.utilities.enums", ("DataType", "AverageMethod", "MDMCAverageMethod", "ClassificationTask")),
        # deepspeed/runtime/zero/config.py of 0.19
        ("deepspeed.runtime.zero.config", ("ZeroStageEnum",)),
        # omegaconf/base.py and omegaconf/_utils.py of 2.4
        ("omegaconf.base", ("SCMode",)),
        ("omegaconf._utils", ("ValueKind",)),
        # torch/distributed/fsdp/api.py, in the arguments of trainers, and torch/distributed/checkpoint/metadata.py and
        # torch/distributed/_shard/sharded_tensor/metadata.py, in `.metadata` and sharded tensors; of 2.13
        ("torch.distributed.fsdp.api", ("ShardingStrategy", "BackwardPrefetch", "StateDictType")),
        ("torch.distributed.checkpoint.metadata", ("_MEM_FORMAT_ENCODING",)),
        ("torch.distributed._shard.sharded_tensor.metadata", ("MEM_FORMAT_ENCODING",)),
        # torchao/quantization/quantize_/common/kernel_preference.py of 0.18, in its float8 tensors
        ("torchao.quantization.quantize_.common.kernel_preference", ("KernelPreference",)),
        # torchao/quantization/quant_primitives.py of 0.18, in its integer tensors
        ("torchao.quantization.quant_primitives", ("MappingType", "ZeroPointDomain")),
    )
    for name in names
)  # fmt: skip


def is_value(args: tuple[object, ...]) -> bool:
    """Whether these are the arguments of a value: one string or one integer."""
    return len(args) == 1 and type(args[0]) in (str, int)
