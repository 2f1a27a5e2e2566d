"""``archsplit publish`` and ``archsplit gather``: a release on its way to a package index.

``gather`` puts the parts of a release, built on several machines, into one folder. ``publish``
uploads such a folder: plugins first, the core last.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import check_folder
from archsplit.cli.verbs import add_verb
from archsplit.errors import InterruptedByUserError, UsageError
from archsplit.system.installers import check_extra

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.index.plan import PublishPlan
    from archsplit.index.publish import Publication, Publisher
    from archsplit.index.release import UploadRelease
    from archsplit.index.upload import Twine
    from archsplit.release.context import Effects


_REPOSITORY_VARIABLES = ("TWINE_REPOSITORY", "TWINE_REPOSITORY_URL")
_PATIENCE, _PLAN_PATIENCE = 300.0, 30.0
"""Seconds for the retries of one request; somebody waits for a plan, which has nothing to lose."""


_OPTIONS = f"""
folders DIR+      a folder that build or split wrote to; several for the parts of one release
--index-url URL   the simple index (default: found from the upload address)
--extra-index-url URL...  another index, for the core's other dependencies
--max-file-size SIZE  size limit of a file (default: 100 MB on PyPI and TestPyPI, elsewhere none)
--max-project-size SIZE  size limit of a project, with its files on the index (default: 10 GB on
                  PyPI and TestPyPI, elsewhere none)
--source FILE     a source distribution to publish with the wheels
--plan {options.DRY_RUN}
--only NAME...    upload only the files of this project, as the first release of a trusted
                  publisher; the core still waits for its plugins; may be repeated
--yes -y          upload without a confirmation
{options.JSON}
{options.QUIET}
{options.RELEASE_EXCEPTIONS}
--no-download     trust the digests that the index lists, instead of reading every byte back
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "publish",
        "archsplit publish dist --repository testpypi --plan",
        "archsplit publish dist --repository-url https://index.example/simple --yes",
        description="Files that the index has already are skipped, so the same command continues"
        " after a failure. twine finds the credentials: TWINE_USERNAME, TWINE_PASSWORD,"
        " ~/.pypirc, a keyring, trusted publishing.",
    )
    options.add_options(parser, _OPTIONS)
    options.add_options(
        parser.add_mutually_exclusive_group(),
        """
--repository NAME     pypi, testpypi, or a section of ~/.pypirc
--repository-url URL  the address for uploads
""",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Publish, and print the files that are live."""
    from archsplit.index.client import find_repository, index_address
    from archsplit.index.plan import (
        FILE_BYTES,
        PROJECT_BYTES,
        PublishPlan,
        Rules,
        plan_document,
        plan_text,
    )
    from archsplit.index.preflight import preflight_check
    from archsplit.index.publish import Publisher, refuse
    from archsplit.index.release import read_release
    from archsplit.index.retry import Clock, RetryPolicy
    from archsplit.release.completeness import CheckOptions
    from archsplit.wheels.filename import distribution_name

    for folder in arguments.folders:
        check_folder(folder)
    # Before the first request, which may already need a password.
    check_extra("publish", "twine", "pypi_simple")
    with options.effects(console, quiet=arguments.quiet) as effects:
        effects.progress.begin_stage("checking the release", 0, "Checked the release")
        # Faults of the command line are reported before the first request.
        extra_indexes = tuple(map(index_address, arguments.extra_index_url))
        index = index_address(arguments.index_url) if arguments.index_url else None
        release = read_release(arguments.folders, source=arguments.source)
        twine = _twine(arguments, effects)
        address = twine.where()
        check_options = CheckOptions(
            allowed=tuple(arguments.allow_missing_kernels), without=tuple(arguments.without)
        )
        for warning in preflight_check(release, effects, check_options):
            options.say(console, f"warning: {warning}")
        effects.progress.begin_stage("asking the index", 0, "Asked the index")
        seconds = _PLAN_PATIENCE if arguments.plan else _PATIENCE
        retry = RetryPolicy(seconds=seconds, clock=Clock(), note=effects.progress.note)
        repository = find_repository(address, index, retry)
        limits = (FILE_BYTES, PROJECT_BYTES) if repository.is_public else (None, None)
        publisher = Publisher(
            effects=effects,
            twine=twine,
            repository=repository,
            rules=Rules(
                is_public=repository.is_public,
                file_bytes=arguments.max_file_size or limits[0],
                project_bytes=arguments.max_project_size or limits[1],
            ),
            retry=retry,
            extra_indexes=extra_indexes,
            only=frozenset(map(distribution_name, arguments.only)),
            download=not arguments.no_download,
        )
        done = (
            publisher.plan(release)
            if arguments.plan
            else _publish(publisher, release, arguments, console)
        )
    # Printed after the display of the progress has ended: it would draw over the text.
    if isinstance(done, PublishPlan):
        text = options.json_text(plan_document(done)) if arguments.json else plan_text(done)
        options.show(text)
        refuse(done)
        return 0
    if arguments.json:
        options.show(done.as_json(), end="")
    else:
        options.show(done.text())
    return 0


def _publish(
    publisher: Publisher, release: UploadRelease, arguments: argparse.Namespace, console: Console
) -> Publication:
    try:
        return publisher.publish(
            release, partial(_confirm_plan, arguments=arguments, console=console)
        )
    # Each uploaded file is complete, so nothing has to be removed.
    except KeyboardInterrupt:
        raise InterruptedByUserError(
            "interrupted; uploaded files stay on the index",
            hint="run the same command again to continue",
        ) from None


def _twine(arguments: argparse.Namespace, effects: Effects) -> Twine:
    from archsplit.index.upload import Twine

    named = arguments.repository or arguments.repository_url
    # twine would choose PyPI, and an upload there can't be undone.
    if not named and not any(effects.environment.get(name) for name in _REPOSITORY_VARIABLES):
        raise UsageError(
            "no index to publish to", hint="--repository testpypi, or --repository-url URL"
        )
    return Twine(
        runner=effects.runner,
        environment=effects.environment,
        python_path=effects.python_path,
        repository=arguments.repository,
        repository_url=arguments.repository_url,
    )


def _confirm_plan(plan: PublishPlan, arguments: argparse.Namespace, console: Console) -> None:
    """Print the plan, and confirm it at a terminal."""
    from archsplit.index.plan import plan_text
    from archsplit.index.publish import refuse

    if not arguments.quiet:
        options.say(console, plan_text(plan))
    refuse(plan)
    # A CI job has no terminal: its command line is the confirmation.
    if arguments.yes or not plan.uploads or not sys.stdin.isatty():
        return
    try:
        answer = console.input("upload? [y/N] ", markup=False)
    # Ctrl-D doesn't confirm.
    except EOFError:
        answer = ""
    if answer.strip().lower() not in {"y", "yes"}:
        raise InterruptedByUserError("nothing was uploaded")


def add_gather(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "gather",
        "archsplit gather out-x86 out-arm --out dist",
        "archsplit gather ci/* --out dist --json",
    )
    table = f"""
folders DIR+  a folder that build or split wrote to; several for the parts of one release
{options.OUT}
{options.WITHOUT}
--partial     more parts come later: any cell may be missing
{options.JSON}
"""
    options.add_options(parser, table)
    parser.set_defaults(run=run_gather)


def run_gather(arguments: argparse.Namespace, _: Console) -> int:
    """Gather, and print the wheels."""
    from archsplit.release.merge import gather

    # All folders are checked before the first file is copied.
    for folder in arguments.folders:
        check_folder(folder)
    report = gather(
        arguments.folders, out=arguments.out, without=arguments.without, partial=arguments.partial
    )
    if arguments.json:
        options.show(report.as_json(), end="")
    else:
        for wheel in report.wheels:
            options.show(f"{wheel.sha256}  {wheel.file}")
    return 0
