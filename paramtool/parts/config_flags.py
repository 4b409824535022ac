"""Model types whose sizes hang on flags of their configs, or are constants of their code."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paramtool.parts.config_reader import ConfigReader


def by_flags(model_type: str, reader: ConfigReader) -> None:
    """Take the sizes of a model type of `MODEL_TYPES`."""
    rules = MODEL_TYPES[model_type](reader)
    for rule in rules.split():
        reader.take(*rule.split("=", 1))


def _falcon(reader: ConfigReader) -> str:
    """transformers 5.23, modeling_falcon.py 200-245: heads of k and v are num_kv_heads in the new architecture or
    without multi_query, else one.
    """
    flag = reader.config.get
    is_one = flag("new_decoder_architecture", False) is not True and flag("multi_query", True) is True
    kv_heads = ":1" if is_one else "num_kv_heads|n_head_kv:heads"
    return (
        f"heads=num_attention_heads|n_head:71 hidden=hidden_size|n_embed:4544 kv_heads={kv_heads} "
        f"head_dim=:hidden/heads{_without_alibi(reader)}"
    )


def _refined_web(reader: ConfigReader) -> str:
    """The first files of Falcon, with their own code: n_head_kv is there in 40B, which has no flag, and multi_query
    in the others.
    """
    multi_query = reader.config.get("multi_query")
    rules = "heads=n_head|num_attention_heads: hidden=hidden_size|n_embed: head_dim=:hidden/heads"
    if "n_head_kv" in reader.config or "num_kv_heads" in reader.config:
        rules += " kv_heads=n_head_kv|num_kv_heads:"
    elif isinstance(multi_query, bool):
        rules += f" kv_heads={':1' if multi_query else ':heads'}"
    return rules + _without_alibi(reader)


def _without_alibi(reader: ConfigReader) -> str:
    return "" if reader.config.get("alibi", False) is not False else " rotary=:head_dim"


def _gpt_bigcode(reader: ConfigReader) -> str:
    """modeling_gpt_bigcode.py 90-110: one head of k and v with multi_query."""
    kv_heads = ":heads" if reader.config.get("multi_query", True) is False else ":1"
    return (
        f"heads=n_head|num_attention_heads:12 hidden=n_embd|hidden_size:768 kv_heads={kv_heads} head_dim=:hidden/heads"
    )


def _chatglm(reader: ConfigReader) -> str:
    """Its own configuration_chatglm.py: multi_query_group_num counts only with multi_query_attention (read so by vLLM
    0.33, models/chatglm.py 61-80).
    """
    kv_heads = "multi_query_group_num:" if reader.config.get("multi_query_attention") is True else ":heads"
    return f"heads=num_attention_heads: kv_heads={kv_heads} head_dim=kv_channels:"


def _codegen(reader: ConfigReader) -> str:
    """modeling_codegen.py 145-160: 4 blocks of q, v and k, a constant of the code."""
    reader.add("chunks", 4, "4 blocks in every model of codegen")
    return (
        "heads=n_head|num_attention_heads:16 hidden=n_embd|hidden_size:4096 kv_heads=:heads head_dim=:hidden/heads "
        "rotary=rotary_dim:64"
    )


def _dbrx(reader: ConfigReader) -> str:
    """modeling_dbrx.py 173-181: heads of k and v are in attn_config; num_key_value_heads beside it is not read."""
    return (
        "heads=n_heads|num_attention_heads:16 hidden=d_model|hidden_size:2048 kv_heads=attn_config.kv_n_heads:1 "
        "head_dim=:hidden/heads rotary=:head_dim experts=ffn_config.moe_num_experts:4"
    )


def _jetmoe(reader: ConfigReader) -> str:
    """configuration_jetmoe.py, __post_init__: each expert that a token takes has num_key_value_heads heads of q."""
    return (
        "kv_heads=num_key_value_heads:16 group=num_experts_per_tok:2 head_dim=kv_channels:128 "
        "experts=num_local_experts|num_experts:8"
    )


MODEL_TYPES: Mapping[str, Callable[[ConfigReader], str]] = {
    "falcon": _falcon,
    "RefinedWeb": _refined_web,
    "RefinedWebModel": _refined_web,
    "gpt_bigcode": _gpt_bigcode,
    "chatglm": _chatglm,
    "codegen": _codegen,
    "dbrx": _dbrx,
    "jetmoe": _jetmoe,
}
"""{model type: what gives its rules}"""
