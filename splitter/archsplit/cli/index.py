"""``archsplit index``: a simple index as a folder that any web server or object store serves."""

from __future__ import annotations

import argparse
import os
import re
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.verbs import add_verb
from archsplit.errors import UsageError, WheelError
from archsplit.system.env import output_time
from archsplit.system.units import count_text, parse_size, short_size

if TYPE_CHECKING:
    from rich.console import Console

    from archsplit.index.static_folder import IndexFolder
    from archsplit.index.static_model import IndexRelease, RetentionLimits
    from archsplit.index.static_update import IndexChange, IndexUpdate

_SCHEMA = 1
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGE = re.compile(r"([0-9]+)([smhdw])")
_GRACE = "1h"
_LIMIT_HINT = "write age=14d, in s, m (minutes), h, d, w; or size=20GB, in B, kB, MB, GB, TB"


_OPTIONS = f"""
folder DIR       the index; made by --add
--add PATH+      add wheels, folders of wheels, or folders that `archsplit build` or
                 `archsplit split` wrote to
--prune LIMIT+   remove releases by age=14d (also s, m, h, w) and size=20GB (also k, M, T): the
                 oldest first, a core and its plugins together, never the newest of any project
--yank NAME==VERSION+  yank a release (PEP 592)
--unyank NAME==VERSION+  list a yanked release again
--reason TEXT    the reason, for --yank
{options.WITHOUT}
--grace TIME     time for which removed wheels stay, for readers of older pages (default: 1h)
--check          hash every file, compare every page
{options.JSON}
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "index",
        "archsplit index /srv/index --add dist",
        "archsplit index /srv/index --prune age=14d size=20GB",
    )
    options.add_options(parser, _OPTIONS, types={"TIME": _age}, reason="", grace=_age(_GRACE))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Change the index, or check it."""
    from archsplit.index.static_folder import check_index, open_folder

    if arguments.add:
        from archsplit.release.merge import require_all_cells

        require_all_cells((path for path in arguments.add if path.is_dir()), arguments.without)
    chosen = (arguments.add, arguments.prune, arguments.yank, arguments.unyank)
    # An ignored reason would be missing on the pages, unnoticed.
    if arguments.reason and not arguments.yank:
        raise UsageError("--reason needs --yank")
    if any(chosen) or not arguments.check:
        _update(arguments, console)
    if arguments.check:
        wheels = check_index(open_folder(arguments.folder))
        if not arguments.json:
            options.show(
                f"{count_text(wheels, 'wheel matches', 'wheels match')} the pages of the index"
            )
        # After a change its own document was printed; two documents are not valid JSON.
        elif not any(chosen):
            options.show(options.json_text({"schema": _SCHEMA, "wheels": wheels, "sound": True}))
    return 0


def _update(arguments: argparse.Namespace, console: Console) -> None:
    """Carry out a change, and print what was done."""
    from archsplit.index.static_folder import lock_folder, open_folder
    from archsplit.index.static_update import update_index
    from archsplit.mirror.model import STATE_FILE

    # Only wheels make an index; a typo in the folder's name must not make an empty one.
    if not arguments.add:
        open_folder(arguments.folder)
    if arguments.prune and (arguments.folder / STATE_FILE).exists():
        raise UsageError(
            f"{arguments.folder} is a mirror, and its locks need all of its wheels",
            hint="run `archsplit mirror` again: it removes what no lock needs",
        )
    change = _change(arguments)
    note = partial(options.say, console)
    with lock_folder(arguments.folder, note) as folder:
        done = update_index(folder, change)
    options.show(_as_json(folder, done) if arguments.json else _as_text(done, change))
    limit = change.limits.size if change.limits else None
    # No error: the newest release of a project is never removed.
    if limit is not None and done.size is not None and done.size > limit:
        options.say(
            console,
            f"warning: the newest wheels of all projects take {short_size(done.size)}, more than"
            f" the limit of {short_size(limit)}",
        )


def _change(arguments: argparse.Namespace) -> IndexChange:
    from archsplit.index.static_update import IndexChange

    return IndexChange(
        add=tuple(arguments.add),
        yank={_release(text): arguments.reason for text in arguments.yank},
        unyank=tuple(map(_release, arguments.unyank)),
        limits=_limits(arguments.prune),
        grace=arguments.grace,
        now=output_time(os.environ),
    )


def _limits(texts: list[str]) -> RetentionLimits:
    from archsplit.index.static_model import RetentionLimits

    readers = {"age": _age, "size": parse_size}
    found: dict[str, int] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = readers[name](value)
        # The hint has the form of a whole limit.
        except (KeyError, UsageError, argparse.ArgumentTypeError):
            raise UsageError(f"{text!r} is not a limit", hint=_LIMIT_HINT) from None
    return RetentionLimits(seconds=found.get("age"), size=found.get("size"))


def _age(text: str) -> int:
    match = _AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, such as 30m or 1h")
    return int(match[1]) * _SECONDS[match[2]]


def _release(text: str) -> IndexRelease:
    from packaging.version import InvalidVersion, Version

    from archsplit.index.static_model import IndexRelease
    from archsplit.wheels.filename import distribution_name

    name, operator, version = text.partition("==")
    # Both faults have the same hint, below.
    with suppress(WheelError, InvalidVersion):
        if operator:
            return IndexRelease(project=distribution_name(name), version=str(Version(version)))
    raise UsageError(f"{text!r} is not a release", hint="give NAME==VERSION")


def _as_text(done: IndexUpdate, change: IndexChange) -> str:
    lines = [f"yanked {release}" for release in change.yank]
    lines += [f"not yanked any more: {release}" for release in change.unyank]
    lines += [f"added {name}" for name in done.added]
    lines += [
        f"{'restored' if name in done.restored else 'was there'} {name}" for name in done.unchanged
    ]
    lines += [f"pruned {release}" for one in done.pruned for release in one.releases]
    if done.size is not None and done.wheels is not None:
        lines.append(f"the index has {count_text(done.wheels, 'wheel')}, {short_size(done.size)}")
    if done.waiting:
        lines.append(f"files that wait to be deleted: {len(done.waiting)}")
    return "\n".join(lines)


def _as_json(folder: IndexFolder, done: IndexUpdate) -> str:
    content = {
        "schema": _SCHEMA,
        "added": done.added,
        "known": done.unchanged,
        "restored": done.restored,
        "pruned": [[str(release) for release in one.releases] for one in done.pruned],
        "waiting": done.waiting,
        "wheels": done.wheels,
        "bytes": done.size,
        "put": list(dict.fromkeys(folder.written)),
        "delete": folder.deleted,
    }
    return options.json_text(content)
