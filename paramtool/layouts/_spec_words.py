"""What other libraries call the facts of a spec: their words are read as paramtool's own.

    LSTM hidden_size=128 num_layers=2      lstm hidden=128 layers=2
    rnn relu, rnn_relu, nonlinearity=relu  rnn activation=relu

The names are those of the constructors' arguments: torch.nn.LSTM and RNN, keras.layers.LSTM and GRU,
mxnet.gluon.rnn.LSTM and mx.sym.RNN, tf.nn.rnn_cell.LSTMCell, the ONNX operators, and cuDNN's descriptors.
"""

from __future__ import annotations

KINDS = {
    "lstm": ("lstm", ""), "lstmcell": ("lstm", ""), "gru": ("gru", ""), "grucell": ("gru", ""), "rnn": ("rnn", ""),
    "rnncell": ("rnn", ""), "simplernn": ("rnn", ""), "elman": ("rnn", ""), "vanillarnn": ("rnn", ""),
    "rnn_relu": ("rnn", "relu"), "rnn_tanh": ("rnn", "tanh"), "relu": ("", "relu"), "tanh": ("", "tanh"),
}  # fmt: skip
"""{a word, in small letters: (kind, activation) that it says, "" for neither}."""
FIELDS = {
    "input_size": "input", "input_dim": "input", "n_in": "input", "in_features": "input",
    "hidden_size": "hidden", "hidden_dim": "hidden", "units": "hidden", "num_units": "hidden", "n_units": "hidden",
    "state_size": "hidden", "num_hidden": "hidden", "n_hidden": "hidden", "cell_size": "hidden",
    "num_layers": "layers", "n_layers": "layers", "nlayers": "layers", "num_stacked_layers": "layers",
    "proj_size": "projection", "projection_size": "projection", "num_proj": "projection",
    "nonlinearity": "activation", "use_bias": "bias", "recurrent_activation": "gate_activation",
    "use_peepholes": "peephole", "peepholes": "peephole", "bidir": "bidirectional",
}  # fmt: skip
"""{another library's word, in small letters: the field of a spec}."""
VALUES = {
    "num_directions": {"1": ("bidirectional", "no"), "2": ("bidirectional", "yes")},
    "directions": {"1": ("bidirectional", "no"), "2": ("bidirectional", "yes")},
    "direction": {"bidirectional": ("bidirectional", "yes")},
    "reset_after": {"true": ("reset", "after"), "false": ("reset", "before")},
    "linear_before_reset": {"1": ("reset", "after"), "0": ("reset", "before")},
    "nonlinearity": {"rnn_relu": ("activation", "relu"), "rnn_tanh": ("activation", "tanh")},
}
"""{another library's word: {its value, in small letters: the field of a spec and its value}}."""
KIND_FIELDS = {"kind", "mode", "rnn_type", "cell_type", "rnn_mode"}
"""Words whose value is a kind, as in `mode=lstm`."""
NO_WEIGHTS = {
    "dropout", "recurrent_dropout", "batch_first", "return_sequences", "return_state", "stateful", "unroll", "seq_len",
    "batch_size", "layout", "time_major", "device", "dtype", "name", "p",
}  # fmt: skip
"""Arguments of constructors that do not change which weights there are."""


def same(word: str) -> list[str]:
    """The words of a spec that mean the same as one word of another library; the word itself where it is none.

    >>> same("LSTM"), same("hidden_size=128"), same("rnn_relu"), same("linear_before_reset=1"), same("hidden=4")
    (['lstm'], ['hidden=128'], ['rnn', 'activation=relu'], ['reset=after'], ['hidden=4'])
    """
    name, equals, value = word.partition("=")
    small = _bare(name)
    said = _bare(value) if small in KIND_FIELDS else "" if equals else small
    if said in KINDS:
        kind, activation = KINDS[said]
        return [*([kind] if kind else []), *([f"activation={activation}"] if activation else [])]
    if (pair := VALUES.get(small, {}).get(value.lower())) is not None:
        return ["=".join(pair)]
    return [f"{FIELDS[small]}{equals}{value}"] if small in FIELDS else [word]


def near(word: str, fields: dict[str, str]) -> str:
    """The words of a spec that a wrong one could have meant, `fields` with what stands behind each; else all of them.

    >>> near("hiden=4", {"hidden": "hidden=...", "layers": "layers=..."})
    'do you mean hidden=...?'
    """
    from difflib import get_close_matches

    name = _bare(word.partition("=")[0])
    if name in NO_WEIGHTS:
        return f"leave it out: {name} does not change which weights there are"
    known = {**{kind: kind for kind, (said, _) in KINDS.items() if said == kind}, **fields}
    known |= {other: fields[own] for other, own in FIELDS.items() if own in fields}
    found = [known[one] for one in get_close_matches(name, known, 3, 0.75)]
    if name in known:
        found = [known[name]]
    if found:
        return f"do you mean {' or '.join(dict.fromkeys(found))}?"
    return f"lstm, gru or rnn, then {', '.join(fields.values())}"


def _bare(name: str) -> str:
    """A word in small letters, without the module before a class and the dashes before a flag.

    >>> _bare("torch.nn.LSTM"), _bare("--Hidden-Size")
    ('lstm', 'hidden_size')
    """
    return name.lower().rpartition(".")[2].lstrip("-").replace("-", "_")
