"""Read-back check: an index serves the uploaded files, byte by byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.errors import ConflictError, VerifyError
from archsplit.index.client import comparable, sha256_hex
from archsplit.index.retry import RetryableError
from archsplit.system.fs import read_blocks
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archsplit.index.client import Index, IndexFile
    from archsplit.index.release import Artifact
    from archsplit.index.retry import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """The read-back check of one index.

    Attributes:
        patience: how long the index's caches may hide what was uploaded.
        download: read every byte; else an index is believed in what it says of digests.
    """

    index: Index = field(repr=False)
    patience: RetryPolicy
    download: bool = True

    def prove(self, artifacts: Sequence[Artifact]) -> dict[str, IndexFile]:
        """Wait until all files are on the index, and compare them.

        Raises:
            ConflictError: one has other content, or was yanked.
            VerifyError: its metadata or its bytes aren't what the page says.
            IndexUnreachableError: they didn't appear.
        """
        if not artifacts:
            return {}
        what = f"waiting until {self.index.address} shows {len(artifacts)} files"
        served = self.patience.keep_trying(what, lambda: self._listed(artifacts))
        for one in artifacts:
            self._prove(one, served[one.path.name])
        return served

    def is_same(self, artifact: Artifact, served: IndexFile) -> bool:
        """Return True if a file on the index has the content of the local one.

        Raises:
            IndexUnreachableError: the index gives no digest, and the file can't be downloaded.
        """
        algorithm = comparable(served.digests)
        if algorithm is None:
            return self.index.digest(served.url) == artifact.sha256
        expected = served.digests[algorithm].lower()
        if algorithm == "sha256":
            return expected == artifact.sha256
        return expected == sha256_hex(read_blocks(artifact.path), algorithm)

    def find(self, artifact: Artifact) -> bool:
        """Return True if the index has a file now.

        Raises:
            ConflictError: something else is.
        """
        served = self.index.project(artifact.project).files.get(artifact.path.name)
        if served is None:
            return False
        self._refuse_others(artifact, served)
        return True

    def _listed(self, artifacts: Sequence[Artifact]) -> dict[str, IndexFile]:
        projects = self.index.projects(dict.fromkeys(one.project for one in artifacts))
        found = {name: file for page in projects.values() for name, file in page.files.items()}
        missing = [one.path.name for one in artifacts if one.path.name not in found]
        if missing:
            raise RetryableError(f"not there: {', '.join(missing)}")
        return found

    def _prove(self, artifact: Artifact, served: IndexFile) -> None:
        self._refuse_others(artifact, served)
        if self.download:
            self._compare(served.url, artifact.sha256, "other bytes than were uploaded")
        if served.metadata is not None and artifact.path.suffix == ".whl":
            with open_wheel(artifact.path, same_tags=False) as wheel:
                own = sha256_hex([wheel.read(f"{wheel.dist_info}/METADATA")])
            listed = served.metadata.get("sha256", own)
            if listed != own:
                raise VerifyError(f"{served.name}: the index lists other metadata than it has")
            self._compare(served.metadata_url, own, "other metadata than the wheel has")

    def _compare(self, url: str, expected: str, what: str) -> None:
        found = self.index.digest(url)
        if found != expected:
            raise VerifyError(
                f"{url} has {what}: SHA-256 {found}, expected {expected}",
                hint="nothing that needs it was uploaded; a cache may need time, so run it again",
            )

    def _refuse_others(self, artifact: Artifact, served: IndexFile) -> None:
        if not self.is_same(artifact, served):
            raise ConflictError(
                f"{artifact.path.name} is on the index with other content than here",
                hint="a file can't be exchanged: publish another version",
            )
        if served.yanked is not None:
            raise ConflictError(f"{artifact.path.name} is on the index, but was yanked")
