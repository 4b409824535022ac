"""The names that other libraries use for the fields of a spec.  They are accepted as synonyms.

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
"""{a word in lower case: (kind, activation) that it means, "" for neither}."""
FIELDS = {
    "input_size": "input", "input_dim": "input", "n_in": "input", "in_features": "input",
    "hidden_size": "hidden", "hidden_dim": "hidden", "units": "hidden", "num_units": "hidden", "n_units": "hidden",
    "state_size": "hidden", "num_hidden": "hidden", "n_hidden": "hidden", "cell_size": "hidden",
    "num_layers": "layers", "n_layers": "layers", "nlayers": "layers", "num_stacked_layers": "layers",
    "proj_size": "projection", "projection_size": "projection", "num_proj": "projection",
    "nonlinearity": "activation", "use_bias": "bias", "recurrent_activation": "gate_activation",
    "use_peepholes": "peephole", "peepholes": "peephole", "bidir": "bidirectional",
}  # fmt: skip
"""{another library's word in lower case: the field of a spec}."""
VALUES = {
    "num_directions": {"1": ("bidirectional", "no"), "2": ("bidirectional", "yes")},
    "directions": {"1": ("bidirectional", "no"), "2": ("bidirectional", "yes")},
    "direction": {"bidirectional": ("bidirectional", "yes")},
    "reset_after": {"true": ("reset", "after"), "false": ("reset", "before")},
    "linear_before_reset": {"1": ("reset", "after"), "0": ("reset", "before")},
    "nonlinearity": {"rnn_relu": ("activation", "relu"), "rnn_tanh": ("activation", "tanh")},
}
"""{another library's word: {its value in lower case: the field of a spec and its value}}."""
KIND_FIELDS = {"kind", "mode", "rnn_type", "cell_type", "rnn_mode"}
"""Words whose value is a kind of network, as in `mode=lstm`."""
NO_WEIGHTS = {
    "dropout", "recurrent_dropout", "batch_first", "return_sequences", "return_state", "stateful", "unroll", "seq_len",
    "batch_size", "layout", "time_major", "device", "dtype", "name", "p",
}  # fmt: skip
"""Arguments of constructors that do not change which weights a network has."""


def same(word: str) -> list[str]:
    """The words of a spec for one word of another library; the word itself if no other library uses it.

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
    """A hint for a wrong word: the nearest words of a spec, or all.  `fields` maps each field to how it is shown.

    >>> near("hiden=4", {"hidden": "hidden=...", "layers": "layers=..."})
    'did you mean hidden=...?'
    """
    from difflib import get_close_matches

    name = _bare(word.partition("=")[0])
    if name in NO_WEIGHTS:
        return f"leave it out: {name} does not change which weights a network has"
    known = {**{kind: kind for kind, (said, _) in KINDS.items() if said == kind}, **fields}
    known |= {other: fields[own] for other, own in FIELDS.items() if own in fields}
    found = [known[one] for one in get_close_matches(name, known, 3, 0.75)]
    if name in known:
        found = [known[name]]
    if found:
        return f"did you mean {' or '.join(dict.fromkeys(found))}?"
    return f"write lstm, gru or rnn, then any of {', '.join(fields.values())}"


def _bare(name: str) -> str:
    """A word in lower case, without the module of a class name and the dashes of a flag.

    >>> _bare("torch.nn.LSTM"), _bare("--Hidden-Size")
    ('lstm', 'hidden_size')
    """
    return name.lower().rpartition(".")[2].lstrip("-").replace("-", "_")
