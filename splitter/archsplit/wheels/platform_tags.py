"""Platform tags: what auditwheel found in a wheel's libraries, and the tag that follows from it."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from archsplit.errors import ToolFailedError, WheelError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__pure__ = True

OLDEST = (2, 17)
"""No tag of ours promises an older glibc, however old the symbols are that a library uses.

It is the oldest that anything here is built against, and a newer tag than need be is never wrong.
"""

LEGACY_NAMES = {(2, 17): "manylinux2014"}
"""Names from before PEP 600 with the same meaning, for the installers of that time."""

_POLICY = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_MUSL = re.compile(r"libc\.so|libc\.musl-.*|ld-musl-.*")
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTags:
    """The machines that a wheel runs on: an architecture, and the oldest glibc."""

    architecture: str
    glibc: tuple[int, int]

    @property
    def names(self) -> tuple[str, ...]:
        """The platform tags, all of one meaning, sorted as in a file name."""
        major, minor = self.glibc
        prefixes = [f"manylinux_{major}_{minor}", LEGACY_NAMES.get(self.glibc, "")]
        return tuple(sorted(f"{prefix}_{self.architecture}" for prefix in prefixes if prefix))


class Obstacles(BaseModel):
    """What keeps a wheel from one policy: libraries, and symbols by the library they are in."""

    model_config = _STRICT

    libs_to_eliminate: list[str] = Field(default_factory=list)
    blacklisted_symbols: dict[str, list[str]] = Field(default_factory=dict)

    def reasons(self, provided: Collection[str]) -> Iterator[str]:
        """What is left of them where there are libraries that match the patterns ``provided``."""
        for name in self.libs_to_eliminate:
            if _MUSL.fullmatch(name):
                yield f"it is linked against musl ({name}), and CUDA needs glibc"
            elif not any(fnmatch.fnmatchcase(name, pattern) for pattern in provided):
                yield f"it needs {name}, which is not part of every Linux"
        for name, symbols in self.blacklisted_symbols.items():
            yield f"it uses {', '.join(symbols)} of {name}, which no policy allows"


class AuditwheelVerdict(BaseModel):
    """What ``auditwheel show --json`` says of a wheel with libraries: version 1 of its schema.

    Source: ``show-schema.json`` in auditwheel, from 6.8.0 on.
    """

    model_config = _STRICT

    version: Literal[1]
    wheel: str
    pure: Literal[False]
    overall_tag: str
    sym_tag: str
    pyfpe: bool
    ucs2: bool
    unsupported_isa: bool
    versioned_symbols: dict[str, list[str]]
    external_libs: dict[str, str | None]
    policy_upgrades: dict[str, Obstacles]

    def tags(self, provided: Collection[str], *, of: str) -> PlatformTags:
        """The oldest glibc that the wheel runs on, where the ``provided`` libraries are.

        Args:
            provided: sonames, or patterns of them, of libraries that are neither in the wheel nor
                part of every Linux, but will be there where the wheel runs.
            of: what to call the wheel in an error.

        Raises:
            WheelError: the wheel runs on no Linux that has a tag; the message says why not.
        """
        symbols = _policy(self.sym_tag)
        fitting = [
            policy.glibc
            for policy, obstacles in self._policies()
            if symbols and policy.glibc >= symbols.glibc and not any(obstacles.reasons(provided))
        ]
        reasons = list(self._reasons(provided))
        if symbols is None or not fitting or reasons:
            raise WheelError(
                f"{of}: no platform tag fits; {'; '.join(reasons) or self.overall_tag}",
                hint="link libraries of others statically, and compile on the oldest distribution "
                "that you want to serve, such as in a manylinux image",
            )
        return PlatformTags(architecture=symbols.architecture, glibc=max(min(fitting), OLDEST))

    def _policies(self) -> list[tuple[PlatformTags, Obstacles]]:
        """The policies that the verdict names, each with what keeps the wheel from it."""
        found = {self.overall_tag: Obstacles(), **self.policy_upgrades}
        pairs = [(_policy(tag), obstacles) for tag, obstacles in found.items()]
        known = [(policy, obstacles) for policy, obstacles in pairs if policy]
        return sorted(known, key=lambda pair: pair[0].glibc)

    def _reasons(self, provided: Collection[str]) -> Iterator[str]:
        if self.sym_tag.startswith("musllinux_"):
            yield "it is linked against musl, and CUDA needs glibc"
        elif _policy(self.sym_tag) is None:
            symbols = [
                f"{name} ({', '.join(sorted(set(versions)))})"
                for name, versions in sorted(self.versioned_symbols.items())
            ]
            yield f"no policy has all the symbols that it uses of {'; '.join(symbols)}"
        if self.unsupported_isa:
            yield "it is marked as needing more than its architecture's oldest instructions"
        if self.pyfpe or self.ucs2:
            yield "it is an extension module of Python 2"
        for _, newest in self._policies()[-1:]:
            yield from newest.reasons(provided)


class Refusal(BaseModel):
    """What ``auditwheel show --json`` says where it finds nothing to analyse."""

    model_config = _STRICT

    version: Literal[1]
    wheel: str
    error: str


_ANSWER: TypeAdapter[AuditwheelVerdict | Refusal] = TypeAdapter(AuditwheelVerdict | Refusal)


def parse_verdict(text: str, *, of: str) -> AuditwheelVerdict:
    """Read what ``auditwheel show --json`` printed.

    Raises:
        ToolFailedError: something that we don't know; the message has all of it.
        WheelError: auditwheel found nothing to analyse in ``of``.
    """
    try:
        answer = _ANSWER.validate_json(text)
    except ValidationError as error:
        raise ToolFailedError(
            f"auditwheel said of {of} what archsplit doesn't know: {error}\n{text}",
            hint="archsplit reads version 1 of its schema: auditwheel 6.8 or a later 6.x",
        ) from None
    if isinstance(answer, Refusal):
        raise WheelError(f"{of}: {answer.error.strip()}")
    return answer


def _policy(tag: str) -> PlatformTags | None:
    match = _POLICY.fullmatch(tag)
    if match is None:
        return None
    return PlatformTags(architecture=match[3], glibc=(int(match[1]), int(match[2])))
