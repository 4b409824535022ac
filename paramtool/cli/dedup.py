"""`paramtool dedup`: every byte once, every name recorded."""

from __future__ import annotations

from collections.abc import Iterator

import click

from paramtool import jobs
from paramtool.cli import _render
from paramtool.cli._text import Size, plural, size
from paramtool.jobs import Deduped
from paramtool.jobs._progress import MIN_EQUAL_NBYTES
from paramtool.model.alias import Member


@click.command("dedup", epilog="Exit codes: 0 fine, 2 usage, 3 bad file, 4 unsafe file, 6 no form, 7 output.")
@click.argument("ckpt", type=click.Path(readable=False))
@click.option(
    "-o", "--output", type=click.Path(readable=False), help="Default: <stem>.dedup.safetensors beside the input."
)
@click.option("--keep", default="first", show_default=True, metavar="first|last|GLOB",
              help="Which name owns what several share, in file order; GLOB is matched as by fnmatch.")  # fmt: skip
@click.option("--only", metavar="SECTION", help="One section of a training checkpoint, its prefix stripped.")
@click.option("--max-shard-size", type=Size(), help="Write a folder of shards of at most this size, such as 5GB.")
@click.option("--no-equal", is_flag=True, help="Do not look for equal bytes under different names.")
@click.option("--min-equal-bytes", type=Size(), default=MIN_EQUAL_NBYTES, show_default=True,
              help="Smaller tensors are not joined for being equal.")  # fmt: skip
@click.option("--skip-unsupported", is_flag=True, help="Leave out tensors that safetensors has no form for.")
@click.option("--allow-unknown", is_flag=True, help="Go on although the pickle calls unknown names (they are not run).")
@click.option("--no-verify", is_flag=True, help="Do not read the result back.")
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document (docs/json.md has its schema).")
@click.option("--force", is_flag=True, help="Overwrite the output if it exists.")
def command(
    ckpt: str, output: str | None, keep: str, only: str | None, max_shard_size: int | None, no_equal: bool,
    min_equal_bytes: int, skip_unsupported: bool, allow_unknown: bool, no_verify: bool, dry_run: bool, as_json: bool,
    force: bool,
) -> None:  # fmt: skip
    """Write a checkpoint with every byte once and every name recorded.

    \b
    $ paramtool dedup model.pt
    $ paramtool dedup training.pt --only model --keep '*embed*' -o model.safetensors
    """
    if max_shard_size is not None and max_shard_size < 1:
        raise click.BadParameter("a shard needs at least one byte", param_hint="--max-shard-size")
    options = jobs.Options(
        keep=keep,
        only=only,
        max_shard_nbytes=max_shard_size,
        equal=not no_equal,
        min_equal_nbytes=min_equal_bytes,
        skip_unsupported=skip_unsupported,
        allow_unknown=allow_unknown,
        verify=not no_verify,
        dry_run=dry_run,
        force=force,
    )
    found = jobs.dedup(ckpt, output, options, progress=_render.progress)
    for warning in found.warnings:
        _render.warn(warning)
    if as_json:
        from paramtool.cli import _json

        _render.json_text(_json.deduped(found))
    else:
        _render.rows(_rows(found))


def _rows(found: Deduped) -> Iterator[_render.Row]:
    yield ("dedup" if found.written else "dry run", f"{found.input} -> {found.output}")
    for owner, members in found.graph.groups():
        yield from _group(owner, members, found)
    if found.unused_nbytes:
        yield ("unused", size(found.unused_nbytes), "that no tensor uses, left behind")
    yield from (("left out", text) for text in found.left_out)
    change = 100 * (found.nbytes_after - found.nbytes_before) / max(found.nbytes_before, 1)
    yield ("size", f"{size(found.nbytes_before)} -> {size(found.nbytes_after)} ({change:+.0f}%)")
    read_back = "all read back and equal" if found.verified else "not verified"
    stored = plural(len(found.plan.targets), "stored tensor")
    yield (
        "names",
        f"{plural(len(found.plan.order), 'name')} on {stored}",
        read_back,
        f"{found.seconds:.1f} s",
    )
    if found.equal is None:
        yield ("not done", "equal bytes under different names were not looked for (--no-equal)")
    if found.written:
        yield ("load it", f"paramtool.torch.load_model(model, {found.output!r})")
        yield ("next", f"paramtool export {found.output} --names names.txt -o plain.safetensors",
               "for programs without paramtool")  # fmt: skip


def _group(owner: str, members: tuple[Member, ...], found: Deduped) -> Iterator[_render.Row]:
    constants = {name for equal in found.equal or () if equal.constant for name in equal.names}
    shared = [m for m in members if m.evidence != "content" and m.name != owner]
    equal = [m for m in members if m.evidence == "content"]
    what = "one span" if owner in found.graph.anonymous else owner
    if shared:
        saved = size(sum(m.window.nbytes for m in shared))
        names = ", ".join(f"{m.name} ({found.graph.relation(m)})" for m in shared[:4]) + _more(shared)
        yield ("shared", what, names, f"{saved} follow their owner")
    if equal:
        saved = size(sum(m.window.nbytes for m in equal if m.memory == m.name))
        kind = "constant, " if equal[0].name in constants else ""
        names = ", ".join(m.name for m in equal[:4]) + _more(equal)
        yield ("equal", what, names, f"{saved}, {kind}stored once, separate on load")


def _more(members: list[Member]) -> str:
    return f" and {len(members) - 4} more" if len(members) > 4 else ""
