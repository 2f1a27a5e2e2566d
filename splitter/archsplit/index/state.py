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
        tells_owners: True if the index has PyPI's JSON API, which lists owners.
        journal: path of the journal.
    """

    index: Index = field(repr=False)
    read_back: ReadBack = field(repr=False)
    journal: Path
    tells_owners: bool = False

    def at(self, release: UploadRelease) -> IndexState:
        """Return the state of a release's projects on the index.

        Raises:
            IndexUnreachableError: the index can't be read.
            IndexRefusedError: the index denies access.
        """
        pages = self.index.projects(release.projects)
        projects = {name: self._measured(page) for name, page in pages.items()}
        same = {
            one.path.name: self.read_back.is_same(one, served)
            for one in release.artifacts
            # Only files of the release are compared: other versions on the page don't matter.
            if (served := projects[one.project].files.get(one.path.name)) is not None
        }
        state = IndexState(projects=projects, same=same, registered=registered(self.journal))
        return replace(state, owners=self._owners(state))

    def _measured(self, project: IndexPage) -> IndexPage:
        """Return a project with the sizes that its page lacks, unless too many are missing."""
        # Each size costs a request: for a project with thousands of files the plan warns instead.
        if not 0 < project.unmeasured <= _MEASURED:
            return project
        files = {
            name: file if file.size is not None else replace(file, size=self.index.size(file.url))
            for name, file in project.files.items()
        }
        return replace(project, files=files)

    def _owners(self, state: IndexState) -> dict[str, tuple[str, ...]]:
        """Return the owners of names that somebody registered before."""
        found = {}
        for name in state.projects if self.tells_owners else ():
            if state.standing(name) is NameStatus.TAKEN:
                address = urljoin(self.index.address, f"/pypi/{name}/json")
                # Owners are only shown to the user: without them the plan is the same.
                with contextlib.suppress(ArchsplitError):
                    found[name] = _owners_in(self.index.document(address))
        return found


def _owners_in(document: object) -> tuple[str, ...]:
    """Return the owners in PyPI's JSON: ``ownership.roles`` and ``ownership.organization``."""
    ownership = document.get("ownership") if isinstance(document, dict) else None
    # Another index, or an older PyPI, has no such field.
    if not isinstance(ownership, dict):
        return ()
    roles = ownership.get("roles") or []
    users = [one.get("user") for one in roles if isinstance(one, dict)]
    return tuple(str(one) for one in (ownership.get("organization"), *users) if one)
