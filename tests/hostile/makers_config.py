"""Makers of a folder with an honest checkpoint and a config.json that is damaged, or says two things of one tie."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from tests.hostile.makers_safetensors import HONEST


def config(data: object) -> Callable[[Path], Path]:
    """A maker of the folder; `data` is bytes, text, or what JSON can hold."""

    def make(folder: Path) -> Path:
        (folder / "model").mkdir()
        (folder / "model/model.safetensors").write_bytes(HONEST)
        raw = data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
        (folder / "model/config.json").write_bytes(raw)
        return folder / "model"

    return make


def _instead(by: Callable[[Path], None]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = config("")(folder)
        (path / "config.json").unlink()
        by(path / "config.json")
        return path

    return make


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)


YES, NO = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
CONFIGS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "empty": (config(""), ("JSON",)),
    "not_json": (config("hello"), ("JSON",)),
    "cut_off": (config('{"tie_word_embeddings": tr'), ("JSON",)),
    "not_utf8": (config(b'{"model_type": "\xff"}'), ("JSON",)),
    "a_list": (config([YES]), ("a list", "expected an object")),
    "a_number": (config("5"), ("5", "expected an object")),
    "nothing": (config("null"), ("null", "expected an object")),
    "a_text": (config('"\\u001b[2J"'), ("expected an object",)),
    "deep": (config('{"a_config":' * 100_000), ("deep",)),
    "key_twice": (config('{"tie_word_embeddings": true, "tie_word_embeddings": false}'), ("tie_word_embeddings", "twice")),  # noqa: E501
    "huge": (_instead(_huge), ("16777217", "16777216")),
    "words_a_text": (config({"tie_word_embeddings": "yes"}), ("'tie_word_embeddings'", "'yes'", "true or false")),
    "words_a_number": (config({"tie_word_embeddings": 1}), ("'tie_word_embeddings'", "1", "true or false")),
    "words_null": (config({"tie_word_embeddings": None}), ("'tie_word_embeddings'", "null", "true or false")),
    "words_a_list": (config({"tie_word_embeddings": [True]}), ("'tie_word_embeddings'", "a list", "true or false")),
    "words_endless": (config({"tie_word_embeddings": "y" * 10**6}), ("'tie_word_embeddings'",)),
    "sides_a_text": (config({"tie_encoder_decoder": "true"}), ("'tie_encoder_decoder'", "'true'")),
    "share_a_number": (config({"share_encoder_decoder_embeddings": 0}), ("'share_encoder_decoder_embeddings'", "0")),
    "nested_a_text": (config({"text_config": {"tie_word_embeddings": "no"}}),
                      ("'text_config.tie_word_embeddings'", "'no'")),
    "text_config_a_text": (config({"text_config": "llama"}), ("'text_config'", "'llama'", "expected an object")),
    "model_type_a_number": (config({"model_type": 5}), ("'model_type'", "5", "expected a string")),
    "sides_contradict": (config({"tie_encoder_decoder": True, "share_encoder_decoder_embeddings": False}),
                         ("'tie_encoder_decoder' is true", "'share_encoder_decoder_embeddings' is false")),
    "a_folder": (_instead(lambda path: path.mkdir()), ()),
    "a_fifo": (_instead(lambda path: os.mkfifo(path)), ("not a regular file",)),
    "a_device": (_instead(lambda path: path.symlink_to("/dev/zero")), ("not a regular file",)),
}  # fmt: skip
HONEST_CONFIGS = {
    "text_agrees": {**YES, "text_config": YES},
    "text_differs": {**YES, "text_config": NO},  # transformers 5 writes such configs, and the outer setting counts
    "llm_differs": {**NO, "llm_config": YES},
    "nested_differs": {"thinker_config": {**YES, "text_config": NO}},
    "another_model_differs": {**YES, "vision_config": NO, "text_encoder": NO},
    "decoder_has_its_own": {**NO, "decoder": YES},
    "text_config_null": {**YES, "text_config": None},
    "decoder_a_text": {**YES, "decoder": "transducer"},
    "no_ties": {"hidden_size": 8},
}
