"""``archsplit split`` and ``archsplit join``: a fat wheel in parts, and whole again.

``split`` writes a core and one small wheel per kind of GPU; ``join`` makes the fat libraries again
out of them, byte for byte.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import check_folder, copy_unchanged, find_file, record_hint
from archsplit.cli.verbs import add_verb
from archsplit.errors import BinaryFormatError, NothingToDoError, UsageError
from archsplit.system.fs import input_errors

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from archsplit.release.report import Release
    from archsplit.split.model import SplitRequest

JOIN_SCHEMA = 1


_OPTIONS = f"""
wheel FILE+     a wheel or a library with device code, which stays as it is; NAME==VERSION or a URL
                is downloaded. Several wheels of a release, for several Pythons and platforms, share
                packs
{options.OUT}
{options.TARGETS}
--name NAME     the core's name (default: the fat wheel's)
--version VERSION  the core's version (default: the fat wheel's; 0 for a library)
--by {{capability,target}}  one pack for each kind of GPU, with all that it takes; or one for each
                target, with extras that bring all targets that a GPU takes (default: %(default)s)
--install {{core,all,meta}}  what comes with the core: packs by extras only; all of them; or by
                extras, and one more wheel, NAME-all, requires core and packs (default: %(default)s)
--release       name the core as the fat wheel, to publish it in its place; without, its build tag
                makes pip and uv prefer it to the fat wheel of the same version
{options.IGNORE_RECORD}
{options.RECOMPRESS}
--dropped EXTRAS  extras of earlier releases that this one has no packs for, as in cc70,cc75: an
                update leaves these users the earlier core and pack
{options.COPY}
{options.VARIANTS}
{options.JSON}
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "split",
        "archsplit split foo.whl --out split",
        "archsplit split foo-1.0-cp310-*.whl foo-1.0-cp311-*.whl --out split",
    )
    options.add_options(
        parser,
        _OPTIONS,
        types={"EXTRAS": _dropped, "NAME": _name, "VERSION": _version},
        by="capability",
        install="core",
        dropped=(),
        recompress="9",
    )
    parser.set_defaults(run=run)


def _dropped(text: str) -> tuple[str, ...]:
    """Read a list of extras."""
    from archsplit.wheels.filename import DROPPED_EXTRA

    extras = tuple(filter(None, (one.strip() for one in text.split(","))))
    for one in extras:
        if not DROPPED_EXTRA.fullmatch(one):
            raise argparse.ArgumentTypeError(f"{one!r} is not an extra of a pack, such as cc70")
    return extras


def _name(text: str) -> str:
    """Read the name of a project."""
    from archsplit.wheels.filename import distribution_name

    with options.value_of("--name"):
        distribution_name(text)
    return text


def _version(text: str) -> str:
    """Read a version, and return its normal form."""
    from archsplit.wheels.filename import normalized_version

    with options.value_of("--version"):
        return normalized_version(text)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Split, and print the report."""
    from archsplit.devicecode.partition import PackBy
    from archsplit.devicecode.recompress import recompress_level
    from archsplit.release.summary import split_summary
    from archsplit.split.model import InstallDefaults, SplitRequest

    source, *others = arguments.wheel = [find_file(path, console) for path in arguments.wheel]
    _check_inputs(arguments)
    request = SplitRequest(
        source=source,
        others=tuple(others),
        out=arguments.out,
        name=arguments.name,
        version=arguments.version,
        by=PackBy(arguments.by),
        targets=options.targets(arguments.targets),
        install=InstallDefaults(arguments.install),
        release=arguments.release,
        ignore_record=arguments.ignore_record,
        recompress=recompress_level(arguments.recompress),
        dropped=arguments.dropped,
    )
    try:
        report = _split(request, arguments, console)
    except NothingToDoError as nothing:
        # With several wheels it would be unclear which one to copy.
        if others or not arguments.copy:
            raise
        options.show(copy_unchanged(request.source, request.out, nothing, console))
        return 0
    if arguments.variants:
        options.write_split_variants(report, request.out, console)
    options.show(report.as_json() if arguments.json else split_summary(report))
    return 0


def _check_inputs(arguments: argparse.Namespace) -> None:
    """Refuse inputs that can't be split together."""
    others = arguments.wheel[1:]
    for path in arguments.wheel:
        # Wheels are checked by their reader.
        if path.suffix == ".whl":
            continue
        _check_library(path)
        if others:
            raise UsageError(
                f"{path.name} is a library, and several wheels are split together",
                hint="split each library by itself",
            )


def _check_library(path: Path) -> None:
    """Refuse a file that is not a library, before its project matters."""
    from archsplit.devicecode.file_forms import HEAD_SIZE, Form, detect_form

    with input_errors(path), path.open("rb") as file:
        head = file.read(HEAD_SIZE)
    # The suffix is not enough: a library may be called foo.so.1.2.
    if detect_form(head) is not Form.ELF:
        raise BinaryFormatError(
            f"{path} is neither a wheel nor a library: it begins with {head[:8]!r}",
            hint="split a .whl or .so file",
        )


def _split(request: SplitRequest, arguments: argparse.Namespace, console: Console) -> Release:
    from archsplit.split.sources import minimal_project, split_library
    from archsplit.split.split import split_wheel

    with options.effects(console) as effects:
        if request.source.suffix == ".whl":
            with record_hint(request.source, *request.others):
                return split_wheel(request, effects)
        owner = minimal_project(arguments.name, arguments.version or "0")
        return split_library(request, effects, owner)


def add_join(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "join",
        "archsplit join split --out joined",
        "archsplit join split --out joined --json",
    )
    table = (
        f"folder DIR  the folder with all wheels that split wrote\n{options.OUT}\n{options.JSON}"
    )
    options.add_options(parser, table)
    parser.set_defaults(run=run_join)


def run_join(arguments: argparse.Namespace, _: Console) -> int:
    """Join, and print the written files."""
    from dataclasses import asdict

    from archsplit.split.restore import join_split

    check_folder(arguments.folder)
    libraries = join_split(arguments.folder, arguments.out)
    if arguments.json:
        files = [{**asdict(one), "path": str(one.path)} for one in libraries]
        text = options.json_text({"schema": JOIN_SCHEMA, "libraries": files})
    else:
        text = "\n".join(f"{one.sha256}  {one.path}" for one in libraries)
    options.show(text)
    return 0
