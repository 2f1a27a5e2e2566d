"""Report of ``archsplit advise``: text for a terminal, and JSON.

In goes an `Advice`; out come renderables for rich, or a document of schema 1, whose keys are only
ever added.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from archsplit.arch.compat import capability_text
from archsplit.arch.target import CodeKind
from archsplit.devicecode.select import Coverage
from archsplit.system.terminal import Column, FittingTable, name_column, word_column
from archsplit.system.units import count_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from archsplit.inspect.advise import Advice, TargetListEffect
    from archsplit.inspect.target_search import Proposal

ADVICE_SCHEMA = 1
_MAX_UNKNOWN = 5
_NO_PTX = "the list has no PTX: GPUs newer than all of it find no code, and need a new release"


def advice_text(advice: Advice, *, subject: str) -> Iterator[RenderableType]:
    """Yield the output of ``archsplit advise``.

    Args:
        advice: to show.
        subject: as the user named it, for commands.
    """
    yield _headline(advice)
    yield from _unknown_gpus(advice)
    yield from ("", _lists(advice))
    yield from ("", _gpu_effects(advice))
    if (best := advice.best) is not None:
        if all(one.kind is not CodeKind.PTX for one in best.targets):
            yield f"warning: {_NO_PTX}"
        yield f"\n# {_summarize(best, advice.costs.size)}\n{advice.snippet()}"
    for arguments in (advice.split_arguments(subject), advice.slim_arguments(subject)):
        if arguments:
            yield shlex.join(arguments)


def advice_json(advice: Advice, *, subject: str) -> str:
    """Return the output of ``archsplit advise --json``."""
    costs, best = advice.costs, advice.best
    content = {
        "schema": ADVICE_SCHEMA,
        "subject": subject,
        "unit": "wheel_bytes" if costs.in_download else "file_bytes",
        "size": costs.size,
        "fixed": costs.fixed,
        "targets": {str(target): size for target, size in costs.sizes.items()},
        "budget": advice.request.budget,
        "everything": _proposal_json(advice.proposals.everything),
        "front": [_proposal_json(proposal) for proposal in advice.proposals.front],
        "best": None if best is None else _proposal_json(best),
        "gpus": [_effect_json(advice, effect) for effect in advice.effects],
        "unknown": [
            {"gpu": row.gpu, "share": row.share, "line": row.line}
            for row in advice.users.unknown_gpus
        ],
        "policy": advice.snippet(),
        "slim": list(advice.slim_arguments(subject)),
        "split": list(advice.split_arguments(subject)),
    }
    return json.dumps(content, indent=2)


def _proposal_json(proposal: Proposal) -> dict[str, Any]:
    return {
        "targets": [str(target) for target in proposal.targets],
        "size": proposal.size,
        "machine_code": proposal.machine_code,
        "served": proposal.served,
    }


def _effect_json(advice: Advice, effect: TargetListEffect) -> dict[str, Any]:
    return {
        "capability": str(effect.capability),
        "share": effect.share,
        "names": list(advice.users.gpus.get(effect.capability, ())),
        "before": effect.before.value,
        # Without a proposal there is nothing that a GPU could run after it.
        "after": None if advice.best is None else effect.after.value,
        "plugin": effect.plugin,
        "gaps": effect.gaps,
    }


def _headline(advice: Advice) -> str:
    costs = advice.costs
    what = "to download" if costs.in_download else "in all"
    kind = "is the core" if costs.is_release else "is not device code and always stays"
    return f"{costs.name}: {size_text(costs.size)} {what}; {size_text(costs.fixed)} {kind}"


def _unknown_gpus(advice: Advice) -> Iterator[str]:
    unknown = sorted(advice.users.unknown_gpus, key=lambda row: -row.share)
    if unknown:
        shown = ", ".join(
            f"{row.gpu} (line {row.line}, {_percent(row.share)})" for row in unknown[:_MAX_UNKNOWN]
        )
        more = len(unknown) - _MAX_UNKNOWN
        yield (
            f"{_percent(advice.users.unknown_share)} of the table are GPUs whose capability isn't"
            f" known; they are not counted: {shown}{f' and {more} more' if more > 0 else ''}"
        )


def _lists(advice: Advice) -> FittingTable:
    """Return the lists of targets that no smaller one equals."""
    table = FittingTable(
        name_column("targets"),
        Column(heading="size"),
        Column(heading="machine code"),
        Column(heading="and PTX"),
        word_column(""),
    )
    rows = [(proposal, _note(advice, proposal)) for proposal in advice.proposals.front]
    for proposal, note in (*rows, (advice.proposals.everything, "everything")):
        table.add_row(
            " ".join(map(str, proposal.targets)),
            size_text(proposal.size),
            _percent(proposal.machine_code),
            _percent(proposal.served),
            note,
        )
    return table


def _note(advice: Advice, proposal: Proposal) -> str:
    if proposal == advice.best:
        return "<- proposed"
    budget = advice.request.budget
    return "" if budget is None or proposal.size <= budget else "over the budget"


def _gpu_effects(advice: Advice) -> FittingTable:
    """Return the code that each GPU of the users runs."""
    table = FittingTable(
        name_column("GPU"),
        Column(heading="users"),
        word_column("with everything"),
        word_column("with the proposal" if advice.best else ""),
        Column(heading="its own plugin", rank=1),
    )
    for effect in advice.effects:
        before = effect.before.words
        # A GPU that runs nothing at all has gaps everywhere.
        if effect.gaps and effect.before is not Coverage.NONE:
            before += f"; nothing in {count_text(effect.gaps, 'container')}"
        after = effect.after.words if advice.best else ""
        users, plugin = _percent(effect.share), size_text(effect.plugin)
        table.add_row(capability_text(effect.capability), users, before, after, plugin)
    return table


def _summarize(best: Proposal, whole: int) -> str:
    """Return the size of a list, and the users that it serves."""
    compiling, without = best.served - best.machine_code, 1 - best.served
    return (
        f"{size_text(best.size)} of {size_text(whole)}; {_percent(best.machine_code)} of the users"
        f" run machine code, {_percent(compiling)} PTX, {_percent(without)} nothing"
    )


def _percent(share: float) -> str:
    return f"{100 * abs(share):.1f} %"
