"""Random pairs of checkpoints whose truth is known, judged by NumPy: `python -m tests.laws.diff_trials COUNT [START]`.

pairs           a pair of checkpoints, and what is true of it
kinds_values    what is done to values and types;  kinds_names: to names;  kinds_rows: rows, columns and axes
kinds_parts     layouts of attention, gated MLPs, experts and state spaces;  kinds_networks: recurrent networks
kinds_memory    what torch's files alone have
files           safetensors and torch write them
judge           which verdicts are false, and which maps were not found;  judge_maps: maps, made anew
__main__        runs many
"""

from tests.laws.diff_trials import (  # noqa: F401  (each adds its kinds)
    kinds_memory,
    kinds_names,
    kinds_networks,
    kinds_parts,
    kinds_rows,
    kinds_values,
)
