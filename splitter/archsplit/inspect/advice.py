"""Advice on a terminal, and as JSON (schema 1: keys are only ever added)."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from rich.table import Table

from archsplit.arch.compat import capability_text
from archsplit.arch.target import CodeKind
from archsplit.devicecode.select import Coverage
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from archsplit.inspect.advise import Advice, TargetListEffect
    from archsplit.inspect.target_search import Proposal

ADVICE_SCHEMA = 1
_STEP = 0.01
"""Lists that are better by less are shown on request."""

_ADVICE_WORDS = {
    Coverage.NATIVE: "native",
    Coverage.OLDER_MINOR: "an older minor's code",
    Coverage.PTX: "PTX",
    Coverage.NONE: "nothing",
}
_STRANGERS = 5


def advice_text(advice: Advice, *, subject: str, everything: bool) -> Iterator[RenderableType]:
    """What ``archsplit advise`` prints.

    Args:
        subject: as it was named, for commands.
        everything: show all lists that nothing beats.
    """
    yield _headline(advice)
    yield from _strangers(advice)
    yield _lists(advice, everything=everything)
    if not advice.proposals.exact:
        yield "there are too many targets to weigh all lists: a better one may exist"
    yield _fates(advice)
    if advice.too_big:
        yield (
            f"plugins would have more than {size_text(advice.wish.max_wheel or 0)} for "
            + ", ".join(str(fate.capability) for fate in advice.too_big)
        )
    if advice.best is not None:
        if not any(target.kind is CodeKind.PTX for target in advice.best.targets):
            yield "there is no PTX in it: GPUs that are newer than all of it find nothing"
        yield f"\n# {_summary(advice, advice.best)}\n{advice.snippet()}"
    for arguments in (advice.split_arguments(subject), advice.slim_arguments(subject)):
        if arguments:
            yield shlex.join(arguments)


def advice_json(advice: Advice, *, subject: str) -> str:
    """What ``archsplit advise --json`` prints."""
    offer, best = advice.offer, advice.best
    content = {
        "schema": ADVICE_SCHEMA,
        "subject": subject,
        "unit": "wheel_bytes" if offer.in_download else "file_bytes",
        "size": offer.size,
        "fixed": offer.fixed,
        "targets": {str(target): size for target, size in offer.sizes.items()},
        "budget": advice.wish.budget,
        "max_wheel": advice.wish.max_wheel,
        "exact": advice.proposals.exact,
        "everything": _proposal(advice.proposals.everything),
        "front": [_proposal(one) for one in advice.proposals.front],
        "best": None if best is None else _proposal(best),
        "gpus": [_fate(advice, fate) for fate in advice.fates],
        "unknown": [
            {"gpu": one.gpu, "share": one.share, "line": one.line} for one in advice.users.strangers
        ],
        "policy": advice.snippet(),
        "slim": list(advice.slim_arguments(subject)),
        "split": list(advice.split_arguments(subject)),
    }
    return json.dumps(content, indent=2)


def _proposal(one: Proposal) -> dict[str, Any]:
    return {
        "targets": [str(target) for target in one.targets],
        "size": one.size,
        "machine_code": one.machine_code,
        "served": one.served,
    }


def _fate(advice: Advice, fate: TargetListEffect) -> dict[str, Any]:
    return {
        "capability": str(fate.capability),
        "share": fate.share,
        "names": list(advice.users.gpus.get(fate.capability, ())),
        "before": fate.before.value,
        "after": None if advice.best is None else fate.after.value,
        "plugin": fate.plugin,
        "gaps": fate.gaps,
    }


def _headline(advice: Advice) -> str:
    offer = advice.offer
    what = "to download" if offer.in_download else "in all"
    kind = "the core" if offer.is_release else "no device code that could be left out"
    sizes = size_text(offer.size), size_text(offer.fixed)
    return f"{offer.name}: {sizes[0]} {what}, of which {sizes[1]} are {kind}"


def _strangers(advice: Advice) -> Iterator[str]:
    strangers = sorted(advice.users.strangers, key=lambda one: -one.share)
    if strangers:
        shown = ", ".join(
            f"{one.gpu} (line {one.line}, {_percent(one.share)})" for one in strangers[:_STRANGERS]
        )
        more = len(strangers) - _STRANGERS
        yield (
            f"{_percent(advice.users.unknown)} of the table are GPUs whose capability isn't known;"
            f" they count nowhere: {shown}{f' and {more} more' if more > 0 else ''}"
        )


def _lists(advice: Advice, *, everything: bool) -> Table:
    table = Table(title="lists of targets that no smaller one equals")
    table.add_column("targets", overflow="fold")
    table.add_column("size", justify="right")
    table.add_column("machine code", justify="right")
    table.add_column("and PTX", justify="right")
    table.add_column("")
    shown: list[Proposal] = []
    for one in advice.proposals.front:
        if everything or one == advice.best or _is_step(one, shown):
            shown.append(one)
            _add(table, one, "<- proposed" if one == advice.best else _fit(advice, one))
    _add(table, advice.proposals.everything, "everything")
    return table


def _is_step(one: Proposal, shown: list[Proposal]) -> bool:
    """Whether it is better by enough than each one that was shown."""
    return all(
        one.machine_code >= other.machine_code + _STEP or one.served >= other.served + _STEP
        for other in shown
    )


def _fit(advice: Advice, one: Proposal) -> str:
    budget = advice.wish.budget
    return "" if budget is None or one.size <= budget else "over the budget"


def _add(table: Table, one: Proposal, note: str) -> None:
    table.add_row(
        " ".join(map(str, one.targets)),
        size_text(one.size),
        _percent(one.machine_code),
        _percent(one.served),
        note,
    )


def _fates(advice: Advice) -> Table:
    table = Table(title="what each GPU runs")
    table.add_column("GPU", overflow="fold")
    table.add_column("users", justify="right")
    table.add_column("of everything")
    table.add_column("of the proposal" if advice.best else "")
    table.add_column("its own plugin", justify="right")
    for fate in advice.fates:
        before = _ADVICE_WORDS[fate.before]
        if fate.gaps and fate.before is not Coverage.NONE:
            before += f"; nothing in {fate.gaps} containers"
        after = _ADVICE_WORDS[fate.after] if advice.best else ""
        users, plugin = _percent(fate.share), size_text(fate.plugin)
        table.add_row(capability_text(fate.capability), users, before, after, plugin)
    return table


def _summary(advice: Advice, best: Proposal) -> str:
    sizes = f"{size_text(best.size)} of {size_text(advice.offer.size)}"
    compiling, without = best.served - best.machine_code, 1 - best.served
    return (
        f"{sizes}; {_percent(best.machine_code)} of the users run machine code,"
        f" {_percent(compiling)} PTX, {_percent(without)} nothing"
    )


def _percent(share: float) -> str:
    return f"{100 * abs(share):.1f} %"
