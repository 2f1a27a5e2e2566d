"""The state of an index: the names and files before an upload, and the files served after it.

The first is all that a plan depends on; the second is compared with the uploaded files, byte by
byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.errors import ConflictError, VerifyError
from archsplit.index.plan import IndexState
from archsplit.index.retry import RetryableError
from archsplit.system.fs import hex_digest
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archsplit.index.client import Index, IndexFile
    from archsplit.index.release import Artifact, UploadRelease
    from archsplit.index.retry import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """Read-back check of one index.

    Attributes:
        retry: bridges the index's caches, which may hide a new file for a while.
        download: True to read every byte; False trusts the digests of the index.
    """

    index: Index = field(repr=False)
    retry: RetryPolicy
    download: bool = True

    def verify(self, artifacts: Sequence[Artifact]) -> dict[str, IndexFile]:
        """Wait until all files are on the index, and compare them.

        Raises:
            ConflictError: a file has other content, or was yanked.
            VerifyError: the metadata or bytes of a file differ from its page.
            IndexUnreachableError: a file didn't appear in time.
        """
        what = f"waiting until {self.index.address} shows all files ({len(artifacts)})"
        served = self.retry.keep_trying(what, lambda: self._listed(artifacts))
        for one in artifacts:
            self._verify_file(one, served[one.path.name])
        return served

    def is_same(self, artifact: Artifact, served: IndexFile) -> bool:
        """Return True if a file on the index has the content of the local one.

        Raises:
            IndexUnreachableError: the index lists no SHA-256, and the file can't be downloaded.
        """
        # An index with older digests or none: only a download shows the content.
        digest = served.digests.get("sha256") or self.index.digest(served.url)
        # Hexadecimal digits may be in upper case.
        return digest.lower() == artifact.sha256

    def has(self, artifact: Artifact) -> bool:
        """Return True if the index has a file now.

        Raises:
            ConflictError: the index has another content under that name.
        """
        served = self.index.project(artifact.project).find(artifact.path.name)
        if served is not None:
            self._refuse_others(artifact, served)
        return served is not None

    def _listed(self, artifacts: Sequence[Artifact]) -> dict[str, IndexFile]:
        projects = self.index.projects(dict.fromkeys(one.project for one in artifacts))
        listed = {one.path.name: projects[one.project].find(one.path.name) for one in artifacts}
        found = {name: file for name, file in listed.items() if file is not None}
        missing = [name for name in listed if name not in found]
        # Pages of a CDN may be some minutes old, so a missing file is not an error yet.
        if missing:
            raise RetryableError(f"not there: {', '.join(missing)}")
        return found

    def _verify_file(self, artifact: Artifact, served: IndexFile) -> None:
        # A file of that name may have been uploaded by an earlier, different build.
        self._refuse_others(artifact, served)
        # The page has the digest of the upload; only a download shows the served bytes.
        if self.download:
            self._compare(served.url, artifact.sha256, "different bytes than were uploaded")
        if served.metadata is not None and artifact.path.suffix == ".whl":
            # Installers resolve with only the metadata file (PEP 658), so a wrong one breaks
            # installs.
            with open_wheel(artifact.path, same_tags=False) as wheel:
                own = hex_digest([wheel.read(f"{wheel.dist_info}/METADATA")])
            listed = served.metadata.get("sha256", own)
            if listed != own:
                raise VerifyError(f"{served.name}: the index lists other metadata than it has")
            self._compare(served.metadata_url, own, "other metadata than the wheel has")

    def _compare(self, url: str, expected: str, what: str) -> None:
        found = self.index.digest(url)
        if found != expected:
            raise VerifyError(
                f"{url} has {what}: SHA-256 {found}, expected {expected}",
                hint="nothing that requires it was uploaded; run it again: a cache may be old",
            )

    def _refuse_others(self, artifact: Artifact, served: IndexFile) -> None:
        if not self.is_same(artifact, served):
            raise ConflictError(
                f"{artifact.path.name} is on the index with other content than here",
                hint="an uploaded file can't be replaced: publish another version",
            )
        # Installers skip a yanked file, so the release would be incomplete.
        if served.yanked is not None:
            raise ConflictError(f"{artifact.path.name} is on the index, but was yanked")


def read_index_state(release: UploadRelease, read_back: ReadBack) -> IndexState:
    """Return the state of a release's projects on the index.

    Raises:
        IndexUnreachableError: the index can't be read.
        IndexRefusedError: the index denies access.
    """
    projects = read_back.index.projects(release.projects)
    same = {
        one.path.name: read_back.is_same(one, served)
        for one in release.artifacts
        # Only files of the release are compared: other versions on the page don't matter.
        if (served := projects[one.project].find(one.path.name)) is not None
    }
    return IndexState(projects=projects, same=same)
