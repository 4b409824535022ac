"""Ties that `convert --untie` and `--tie` change: the record of them, and the same again for `verify`.

Files of transformers lack a name that config.json ties to another: then the config says whose tensor it is, and that of
the output does not tie it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paramtool.commands import config_ties
from paramtool.commands.optimizer_carry import Carried
from paramtool.errors import LayoutError, UsageError
from paramtool.formats import hf_config
from paramtool.formats.config_names import with_names
from paramtool.formats.record import edits
from paramtool.model.checkpoint import Checkpoint
from paramtool.model.config import TEXT, WORDS, Config
from paramtool.model.optimizer import Move, StateChoice
from paramtool.passes.config_ties import declared
from paramtool.passes.retied import Retied, applied, retied


def carried(found: Carried, ties: Retied, choice: StateChoice) -> Carried:
    """A checkpoint with its new ties, the record of them, and what they require."""
    if not ties.moves and (found.state is None or not any(choice)):
        return found
    made = applied(found.checkpoint, ties)
    known = edits.RecordedTies(ties.untied, ties.tied, {key: one for key, one in choice._asdict().items() if one})
    made = replace(made, metadata={**made.metadata, edits.TIES: edits.ties_text(known)})
    return found._replace(checkpoint=made, requires=ties.requires)


def again(found: Checkpoint, source: Checkpoint) -> tuple[Checkpoint, tuple[Move, ...], StateChoice]:
    """A source with the ties of an output that was made of it, the parameters that changed, and the choices."""
    known = edits.ties_of(found.path, found.metadata)
    choice = StateChoice(known.state.get("untied", ""), known.state.get("tied", ""))
    if known == edits.ties_of(source.path, source.metadata):
        return source, (), choice
    lacks = {n: first for n, first in known.untied.items() if n not in source.entries and first in source.entries}
    source = with_names(source, lacks) or source  # `dedup --ties` gave it these
    try:
        ties = retied(source, [*known.untied], known.tied)
    except (UsageError, LayoutError):  # the source has these ties already, or is another file: comparing will tell
        return source, (), choice
    return (applied(source, ties) if ties.moves else source), ties.moves, choice


def untied_config(checkpoint: Checkpoint, names: Sequence[str]) -> dict[str, bytes]:
    """{config.json: its text} as it is beside the names that are untied, where the one of the input ties them."""
    config = config_ties.config_beside(checkpoint.path) if names else None
    if config is None or not _rows(config, checkpoint, names):
        return {}
    made = _saying(config, False)
    return {} if _rows(made, checkpoint, names) else _text(made)  # else something else ties them


def tied_config(checkpoint: Checkpoint, tie: Mapping[str, str]) -> dict[str, bytes]:
    """{config.json: its text} as it is beside the names that are tied, where the one of the input can say that."""
    config = config_ties.config_beside(checkpoint.path) if tie else None
    if config is None or not _unsaid(config, checkpoint, tie):
        return {}
    made = _saying(config, True)
    others = [row for row in _rows(made, checkpoint, [*checkpoint.entries]) if not _is_tied(row, checkpoint, tie)]
    return {} if others or _unsaid(made, checkpoint, tie) else _text(made)


def new_config(checkpoint: Checkpoint, untie: Sequence[str], tie: Mapping[str, str]) -> dict[str, bytes]:
    """{config.json: its text} where ties are changed and it can say so; of both, what is untied counts."""
    return untied_config(checkpoint, untie) or ({} if untie else tied_config(checkpoint, tie))


def unsaid(checkpoint: Checkpoint, tie: Mapping[str, str] | None, files: Mapping[str, str]) -> Iterator[str]:
    """A line for each tied name that the config beside the output does not tie; `files` are copied there."""
    place = files.get(hf_config.NAME)
    for name, other in _unsaid(hf_config.read(place), checkpoint, tie) if tie and place is not None else ():
        yield (
            f"{hf_config.NAME} does not tie {name!r} to {other!r}, and from_pretrained will not find it: "
            "--new-config CONFIG.json gives the config of a model that ties them; without --tie both are stored"
        )


def _saying(config: Config, ties_words: bool) -> Config:
    """A config with another setting of tied embeddings, in its text config, too, if that has one."""
    text = [key for key in TEXT if f"{key}.{WORDS}" in config.said]
    return replace(config, said={**config.said, WORDS: ties_words, **{f"{key}.{WORDS}": ties_words for key in text}})


def _text(config: Config) -> dict[str, bytes]:
    """{config.json: its text} with the setting of a config."""
    whole = {**hf_config.whole(config.path), WORDS: config.said[WORDS]}
    whole |= {key: {**whole[key], WORDS: config.said[WORDS]} for key in TEXT if f"{key}.{WORDS}" in config.said}
    return {hf_config.NAME: f"{json.dumps(whole, indent=2)}\n".encode()}


def _unsaid(config: Config, checkpoint: Checkpoint, tie: Mapping[str, str]) -> list[tuple[str, str]]:
    """The pairs that a config does not tie."""
    said = [{*row.tie.names} for row in _rows(config, checkpoint, [*tie])]
    return [(name, other) for name, other in tie.items() if not any({name, other} <= names for names in said)]


def _is_tied(row: declared.Declared, checkpoint: Checkpoint, tie: Mapping[str, str]) -> bool:
    """Whether the names of a row are one tensor in the file, or become one."""
    views = checkpoint.views()
    firsts = [tie.get(name, name) for name in row.tie.names]
    return len({views.get(name, name) for name in firsts}) == 1


def _rows(config: Config, checkpoint: Checkpoint, names: Sequence[str]) -> list[declared.Declared]:
    """What a config ties of some names."""
    rows = declared.expected(config, dict.fromkeys([*checkpoint.entries, *names]))
    return [row for row in rows if row.says and not {*row.tie.names}.isdisjoint(names)]
