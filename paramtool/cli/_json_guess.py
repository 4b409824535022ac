"""Guesses as JSON data; the schema is docs/schema/guess-1.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paramtool.commands.guess import Considered, Guessed
    from paramtool.guessing.candidates import Guess


def guessed(found: Guessed, at: str | None) -> dict[str, Any]:
    """`paramtool guess --json`."""
    return {
        "schema": "paramtool.guess/2",
        "path": found.path,
        "format": found.checkpoint.format,
        "at": at,
        "commands": list(found.commands),
        "places": [_place(place, candidates) for place, candidates in found.places()],
    }


def _place(place: Considered, candidates: tuple[Guess, ...]) -> dict[str, Any]:
    return {
        "at": place.at,
        "what": place.what,
        "tensors": list(place.tensors),
        "fits": place.fits,
        "looked": place.looked,
        "decide": list(place.decide),
        "candidates": [_candidate(one) for one in candidates],
    }


def _candidate(one: Guess) -> dict[str, Any]:
    return {
        "layout": one.layout,
        "alike": list(one.alike),
        "spec": one.spec,
        "sure": one.sure,
        "score": one.score,
        "reasons": list(one.reasons),
        "tensors": dict(one.tensors),
        "own_names": bool(one.cell),
    }
