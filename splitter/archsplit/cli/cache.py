"""``archsplit cache``: explain, count, trim, check and move the compile cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from archsplit.cache.stats import MISS_TIER, WHOLE_STEP, read_counts
from archsplit.cli import options
from archsplit.cli.verbs import add_verb
from archsplit.errors import InputError, OutputError, VerifyError
from archsplit.system.fs import input_errors, output_errors, put_file, temporary_dir
from archsplit.system.outputs import is_replaceable
from archsplit.system.units import short_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console

    from archsplit.cache.config import Settings
    from archsplit.cache.local import LocalStore
    from archsplit.cache.stats import LookupCount
    from archsplit.cli.options import Verbs

    Verb = Callable[[argparse.Namespace, Settings, LocalStore], None]


def add_to(verbs: Verbs) -> None:
    """Add the verb to the command line."""
    parser = add_verb(
        verbs,
        "cache",
        "archsplit cache stats",
        "archsplit cache explain src/sort.cu --target sm_90",
    )
    what = parser.add_subparsers(required=True, metavar="WHAT")
    explain = _add(what, "explain", _explain, "print the miss reasons of a source")
    options.add_options(explain, f"file FILE  the source\n{options.TARGETS}")
    stats = _add(what, "stats", _stats, "hits, misses, seconds saved, size")
    options.add_options(stats, options.JSON)
    _add(what, "trim", _trim, "remove the least recently used entries, down to the maximum size")
    _add(what, "clear", _clear, "remove all entries")
    verify = _add(what, "verify", _verify, "check every entry, and remove damaged ones")
    options.add_options(verify, options.JSON)
    export = _add(what, "export", _export, "write all entries into one tar file")
    options.add_options(export, "file FILE  the tar file")
    imports = _add(what, "import", _import, "add the entries of such a file")
    options.add_options(imports, "file FILE  the tar file")


def _add(what: Verbs, name: str, verb: Verb, text: str) -> argparse.ArgumentParser:
    parser = what.add_parser(name, help=text, description=text)
    parser.set_defaults(run=_run, verb=verb)
    return parser


def _run(arguments: argparse.Namespace, console: Console) -> int:
    from archsplit.cache.config import resolve_settings
    from archsplit.cache.local import LocalStore

    def warn(text: str) -> None:
        options.say(console, f"warning: {text}")

    settings = resolve_settings(os.environ)
    # Mode `read-only` is for shared caches of CI jobs, which must not change.
    store = LocalStore(settings.folder, warn=warn, writable=settings.mode != "read-only")
    arguments.verb(arguments, settings, store)
    return 0


def _explain(arguments: argparse.Namespace, settings: Settings, _: LocalStore) -> None:
    from archsplit.cache.stats import MissLog

    lines = MissLog(settings.folder).read_reasons(str(arguments.file.absolute()))
    if not lines:
        raise InputError(
            f"the cache has no record of {arguments.file}",
            hint="archsplit nvcc records a source when one of its steps was a miss",
        )
    # Steps without a target, such as the preprocessor of the host, count for all targets.
    wanted = {"", *_step_targets(arguments.targets)}
    for target, line in lines:
        if arguments.targets is None or target in wanted:
            options.show(line)


def _step_targets(text: str | None) -> Iterator[str]:
    """Return both names of each target, because SASS is made from PTX."""
    for target in options.targets(text) or ():
        number = str(target).rpartition("_")[2]
        yield f"sm_{number}"
        yield f"compute_{number}"


def _stats(arguments: argparse.Namespace, settings: Settings, _: LocalStore) -> None:
    from archsplit.cache.local import downloads_size, store_size

    counts = read_counts(settings.folder)
    files, size = store_size(settings.folder)
    wheels, wheel_bytes = downloads_size(settings.folder)
    saved = sum(count.seconds for count in counts if count.tier != MISS_TIER)
    if arguments.json:
        rows = [count._asdict() for count in counts]
        facts = {"schema": 1, "folder": str(settings.folder), "files": files, "bytes": size}
        facts |= {"wheels": wheels, "wheel_bytes": wheel_bytes}
        options.show(options.json_text({**facts, "saved_cpu_seconds": saved, "counts": rows}))
        return
    options.show(_hit_rate(counts, saved))
    options.show(f"{'step':<26}{'target':<14}{'where':<32}{'times':>8}{'CPU s':>10}")
    for step, target, tier, number, seconds in counts:
        options.show(f"{step:<26}{target:<14}{tier:<32}{number:>8}{seconds:>10.1f}")
    most = short_size(settings.max_size)
    options.show(f"files: {files}, {short_size(size)} of at most {most}, in {settings.folder}")
    if wheels:
        options.show(f"downloaded wheels: {wheels}, {short_size(wheel_bytes)} of at most {most}")


def _hit_rate(counts: Iterable[LookupCount], saved: float) -> str:
    """Return the shares of compilations and of steps that came from the cache."""
    totals = {"compilations": [0, 0], "steps of the others": [0, 0]}
    for step, _, tier, number, _ in counts:
        total = totals["compilations" if step == WHOLE_STEP else "steps of the others"]
        total[0] += number if tier != MISS_TIER else 0
        total[1] += number
    rates = [
        f"{what} {hits / number:.0%} of {number}"
        for what, (hits, number) in totals.items()
        if number
    ]
    return f"hit rate: {', '.join(rates) or 'no lookups yet'}; {saved:.0f} CPU seconds saved"


def _trim(_: argparse.Namespace, settings: Settings, store: LocalStore) -> None:
    from archsplit.cache.local import EvictionResult, evict, trim_downloads

    wheels = trim_downloads(settings.folder, maximum=settings.max_size)
    done = evict(settings.folder, maximum=settings.max_size, warn=store.warn)
    # Another process trims: an error, because a script may need the space now.
    if done is None and settings.folder.exists():
        fault = f"{settings.folder} can't be trimmed, or is being trimmed right now"
        raise InputError(fault, hint=f"try again, or see its permissions: ls -ld {settings.folder}")
    done = done or EvictionResult(files=0, size=0, removed=0, freed=0)
    options.show(f"files removed: {done.removed} ({short_size(done.freed)}), left: {done.files}")
    if wheels.removed or wheels.files:
        freed = short_size(wheels.freed)
        options.show(f"downloaded wheels removed: {wheels.removed} ({freed}), left: {wheels.files}")


def _clear(_: argparse.Namespace, settings: Settings, store: LocalStore) -> None:
    from archsplit.cache.local import clear_store, trim_downloads

    done = clear_store(settings.folder)
    options.show(f"files removed: {done.removed} ({short_size(done.freed)})")
    if done.files:
        store.warn(f"files in other users' folders, which can't be deleted: {done.files}")
    wheels = trim_downloads(settings.folder, maximum=0)
    if wheels.removed:
        options.show(f"downloaded wheels removed: {wheels.removed} ({short_size(wheels.freed)})")


def _verify(arguments: argparse.Namespace, settings: Settings, store: LocalStore) -> None:
    from archsplit.cache.local import verify_store

    checked = verify_store(store)
    if arguments.json:
        facts = {"schema": 1, "folder": str(settings.folder), **checked._asdict()}
        options.show(options.json_text(facts))
    else:
        good = checked.files - len(checked.damaged)
        options.show(f"intact files in {settings.folder}: {good} of {checked.files}")
    if checked.damaged:
        raise VerifyError(
            "the cache had damaged files, which are removed:\n  " + "\n  ".join(checked.damaged),
            hint="a disk or memory may be faulty",
        )


def _export(arguments: argparse.Namespace, _: Settings, store: LocalStore) -> None:
    import tarfile

    from archsplit.cache.local import export_store

    if arguments.file.is_file() and not tarfile.is_tarfile(arguments.file):
        raise OutputError(f"{arguments.file} isn't an export", hint="remove it, or name another")
    # An interrupted export leaves no half file, which an import would refuse. After a killed one,
    # the next removes the marked folder. Beside a device (/dev) nothing is made.
    beside = arguments.file.parent if is_replaceable(arguments.file) else None
    with output_errors(arguments.file), temporary_dir(beside) as folder:
        with (folder / "cache.tar").open("wb") as file:
            count = export_store(store, file)
        put_file(folder / "cache.tar", arguments.file)
    options.show(f"files written to {arguments.file}: {count}")


def _import(arguments: argparse.Namespace, settings: Settings, store: LocalStore) -> None:
    from archsplit.cache.local import import_store

    with input_errors(arguments.file), arguments.file.open("rb") as file:
        count, total = import_store(store, file, where=str(arguments.file))
    if count < total:
        store.warn(f"damaged files: {total - count}")
    options.show(f"files imported into {settings.folder}: {count} of {total}")
