"""The current state of an index, as far as a plan depends on it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from archsplit.errors import ArchsplitError
from archsplit.index.journal import registered
from archsplit.index.plan import IndexState, NameStatus

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.index.client import Index, IndexPage
    from archsplit.index.read_back import ReadBack
    from archsplit.index.release import UploadRelease

_MEASURED = 200
"""Most requests for sizes of files in a project whose page lists none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStateReader:
    """A reader of the state of an index.

    Attributes:
        tells_owners: whether the index has PyPI's JSON besides.
        journal: the file.
    """

    index: Index = field(repr=False)
    prover: ReadBack = field(repr=False)
    journal: Path
    tells_owners: bool = False

    def at(self, release: UploadRelease) -> IndexState:
        """Return the state of a release's projects on the index.

        Raises:
            IndexUnreachableError: it can't be read.
            IndexRefusedError: it may not be read.
        """
        pages = self.index.projects(release.projects)
        projects = {name: self._measured(page) for name, page in pages.items()}
        same = {
            one.path.name: self.prover.is_same(one, served)
            for one in release.artifacts
            if (served := projects[one.project].files.get(one.path.name)) is not None
        }
        view = IndexState(projects=projects, same=same, registered=registered(self.journal))
        return replace(view, owners=self._owners(view))

    def _measured(self, project: IndexPage) -> IndexPage:
        """Return a project with the sizes that its page lacks, unless too many are missing."""
        if not 0 < project.unmeasured <= _MEASURED:
            return project
        files = {
            name: file if file.size is not None else replace(file, size=self.index.size(file.url))
            for name, file in project.files.items()
        }
        return replace(project, files=files)

    def _owners(self, view: IndexState) -> dict[str, tuple[str, ...]]:
        """Return the owners of names that are taken."""
        found = {}
        for name in view.projects if self.tells_owners else ():
            if view.standing(name) is NameStatus.TAKEN:
                address = urljoin(self.index.address, f"/pypi/{name}/json")
                # It would be good to know, and nothing depends on it.
                with contextlib.suppress(ArchsplitError):
                    found[name] = _owners_in(self.index.document(address))
        return found


def _owners_in(document: object) -> tuple[str, ...]:
    """The owners that PyPI's JSON names: ``ownership.roles`` and ``ownership.organization``."""
    ownership = document.get("ownership") if isinstance(document, dict) else None
    if not isinstance(ownership, dict):
        return ()
    roles = ownership.get("roles") or []
    users = [one.get("user") for one in roles if isinstance(one, dict)]
    return tuple(str(one) for one in (ownership.get("organization"), *users) if one)
