"""What a core takes over from its fat wheel: who it is, where the loader goes, the licences."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from archsplit.errors import WheelError
from archsplit.wheels.filename import distribution_name
from archsplit.wheels.member_place import installed_place
from archsplit.wheels.rewrite import with_build

if TYPE_CHECKING:
    from archsplit.release.request import SplitRequest
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel

"""The folders of ``.data`` that become one when they are installed."""
_LICENSES = ("LICENSE", "LICENCE", "COPYING", "NOTICE")


BUILD_TAG = "split"
"""The words of a core's build tag, as those of a slimmed wheel begin with ``slim``."""


def core_name(request: SplitRequest, fat: WheelName) -> WheelName:
    """Name the core's wheel.

    A core of the fat wheel's name and version has a build tag, unless it is to be published in the
    fat wheel's place: on a tie pip takes the index's wheel, and that is the fat one.
    """
    name = replace(fat, project=distribution_name(request.name or fat.project))
    return name if request.release or name != fat else with_build(name, BUILD_TAG)


def build_id_of(request: SplitRequest, source: str, name: WheelName) -> str:
    """Hash all that decides which wheels a split writes."""
    targets = None if request.targets is None else sorted(map(str, request.targets))
    facts = [source, name.project, name.build, request.by.value, targets, version("archsplit")]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def import_package(wheel: Wheel) -> str:
    """The import package that the loader's folder goes into: the one with the project's own name.

    Where there is none the core gets it: another package may belong to several projects, as
    ``nvidia`` does.
    """
    own = wheel.name.project.replace("-", "_")
    places = {place for name in wheel.names if (place := installed_place(wheel, name))}
    there = any(place.startswith(f"{own}/") for place in places)
    if there and f"{own}/__init__.py" not in places:
        raise WheelError(f"{own}/ in {wheel.path} is no package, so the loader has no place in it")
    return own


def licenses_of(wheel: Wheel) -> dict[str, bytes]:
    """The original's licence files, wherever its build tool put them."""
    own, found = f"{wheel.dist_info}/", {}
    for name in wheel.names:
        inner = name.removeprefix(own).removeprefix("licenses/")
        is_one = name.startswith(f"{own}licenses/") or (
            name.startswith(own) and inner.upper().startswith(_LICENSES)
        )
        if is_one:
            found[inner] = wheel.read(name)
    return found
