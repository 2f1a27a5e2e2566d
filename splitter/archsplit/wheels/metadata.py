"""METADATA: core metadata 2.4, checked and written by packaging.

Source: https://packaging.python.org/en/latest/specifications/core-metadata/

The file WHEEL: who made the archive, and for which interpreters, ABIs and platforms.

Source: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.errors import MessageError
from email.headerregistry import Address
from email.parser import Parser
from typing import TYPE_CHECKING, cast

from packaging.errors import ExceptionGroup
from packaging.markers import Marker
from packaging.metadata import Metadata, RawMetadata, RFC822Message, parse_email
from packaging.requirements import InvalidRequirement, Requirement

from archsplit.errors import WheelError
from archsplit.wheels.filename import distribution_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from email.message import Message

__pure__ = True

METADATA_VERSION = "2.4"

_FIELDS = (
    "Metadata-Version",
    "Name",
    "Version",
    "Summary",
    "Keywords",
    "Author",
    "Author-email",
    "License-Expression",
    "License-File",
    "Classifier",
    "Project-URL",
    "Requires-Python",
    "Requires-Dist",
    "Provides-Extra",
    "Description-Content-Type",
)
"""The fields that we write, spelled and ordered as the specification does.

packaging writes them in lower case and in the order of a class body. Readers that are more than a
line's prefix don't mind; the bytes should not change with packaging's next release.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataAuthor:
    """A person or a group: a name, an address, or both."""

    name: str = ""
    email: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreMetadata:
    """What a distribution says about itself; the constructor refuses what the index would refuse.

    Attributes:
        name: as its authors spell it.
        version: PEP 440.
        summary: one line.
        description: the text of the project's page.
        description_content_type: such as ``text/markdown``; "" for none.
        license_expression: SPDX.
        license_files: paths below ``<dist-info>/licenses/``.
        authors: in the order in which they want to be named.
        keywords: words without commas.
        classifiers: trove classifiers.
        urls: addresses by label.
        requires_python: such as ``>=3.10``; "" for any.
        requires: requirements (PEP 508) that always hold.
        extras: requirements by the name of the extra that brings them.
    """

    name: str
    version: str
    summary: str = ""
    description: str = ""
    description_content_type: str = ""
    license_expression: str = ""
    license_files: tuple[str, ...] = ()
    authors: tuple[MetadataAuthor, ...] = ()
    keywords: tuple[str, ...] = ()
    classifiers: tuple[str, ...] = ()
    urls: Mapping[str, str] = field(default_factory=dict)
    requires_python: str = ""
    requires: tuple[str, ...] = ()
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        content = encode_metadata(self)
        meant, read = _validated(_raw(self)), decode_metadata(content)
        changed = sorted(key for key in _raw(self) if getattr(meant, key) != getattr(read, key))
        if changed:
            raise WheelError(
                f"the metadata of {self.name} would be read back differently: {', '.join(changed)}",
                hint="look for line breaks, commas in keywords and labels, and spaces at the ends",
            )


def encode_metadata(core: CoreMetadata) -> bytes:
    """Write METADATA, in UTF-8, with the description as its body."""
    raw = _raw(core)
    fields = _validated(raw).as_rfc822()
    message = RFC822Message()
    for name in _FIELDS:
        for key, value in fields.raw_items():
            if key == name.lower():
                message[name] = value
    message.set_payload(raw.get("description", ""))
    try:
        return bytes(message)
    except UnicodeEncodeError:
        raise WheelError(f"the metadata of {core.name!r} is not valid Unicode") from None


def decode_metadata(content: bytes) -> Metadata:
    """Read METADATA, as strictly as the index does.

    Raises:
        WheelError: fields are unknown, repeated or wrong; the message lists all of those.
    """
    try:
        return Metadata.from_email(content)
    except ExceptionGroup as group:
        raise _refused(group) from None


def read_name_and_version(content: bytes) -> tuple[str, str]:
    """The name and the version in METADATA, both "" where missing, whatever the rest is like.

    Finished wheels of others have fields that their metadata version doesn't know; that is no
    reason not to read them.
    """
    raw, _ = parse_email(content)
    return raw.get("name", ""), raw.get("version", "")


def _raw(core: CoreMetadata) -> RawMetadata:
    named = [author.name for author in core.authors if not author.email]
    addressed = [_address(author) for author in core.authors if author.email]
    raw: RawMetadata = {
        "metadata_version": METADATA_VERSION,
        "name": core.name,
        "version": core.version,
        "summary": core.summary,
        "description": core.description.replace("\r\n", "\n").replace("\r", "\n"),
        "description_content_type": core.description_content_type,
        "keywords": list(core.keywords),
        "author": ", ".join(named),
        "author_email": ", ".join(addressed),
        "license_expression": core.license_expression,
        "license_files": list(core.license_files),
        "classifiers": list(core.classifiers),
        "project_urls": dict(core.urls),
        "requires_python": core.requires_python,
        "requires_dist": _requirements(core),
        "provides_extra": sorted(map(distribution_name, core.extras)),
    }
    return cast("RawMetadata", {key: value for key, value in raw.items() if value})


def _address(author: MetadataAuthor) -> str:
    try:
        return str(Address(display_name=author.name, addr_spec=author.email))
    except (ValueError, IndexError, MessageError):
        raise WheelError(f"{author.email!r} is not an e-mail address") from None


def _requirements(core: CoreMetadata) -> list[str]:
    in_extras = [
        _requirement(text, extra) for extra in sorted(core.extras) for text in core.extras[extra]
    ]
    return [*(_requirement(text) for text in core.requires), *in_extras]


def _requirement(text: str, extra: str = "") -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise WheelError(f"{text!r} is not a requirement: {error}") from None
    if extra:
        within = f'extra == "{distribution_name(extra)}"'
        always = requirement.marker
        requirement.marker = Marker(f"({always}) and {within}" if always else within)
    return str(requirement)


def _validated(raw: RawMetadata) -> Metadata:
    try:
        return Metadata.from_raw(raw)
    except ExceptionGroup as group:
        raise _refused(group) from None


def _refused(group: ExceptionGroup) -> WheelError:
    faults = sorted(str(fault) for fault in group.exceptions)
    return WheelError("the metadata is not valid: " + "; ".join(faults))


_HEADER_END = re.compile(rb"(?:\r?\n){2}|\Z")
_EXTRA_LINE = re.compile(rb"^Provides-Extra:\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_OLD_DESCRIPTION = re.compile(rb"^Description:", re.MULTILINE | re.IGNORECASE)


def edit_metadata(
    content: bytes, *, name: str = "", version: str = "", fields: Sequence[str] = (), note: str = ""
) -> bytes:
    """Edit METADATA line by line; every other byte of the header stays.

    Wheels of other builders have fields that ``packaging`` doesn't know, or refuses; a parser would
    lose these.

    Args:
        content: the old file.
        name: the new name, or "" to leave the old one.
        version: the new version, or "" to leave the old one.
        fields: lines for the end of the header.
        note: text for the end of the description.
    """
    end = next(_HEADER_END.finditer(content))
    head, blank, body = content[: end.start()], end[0], content[end.end() :]
    for field_name, value in (("Name", name), ("Version", version)):
        if value:
            head = _replace_field(head, field_name, value)
    has_old_description = _OLD_DESCRIPTION.search(head)
    head = head.rstrip() + "".join(f"\n{line}" for line in fields).encode()
    if not note:
        return head + (blank + body or b"\n")
    if has_old_description:
        # A body would be a second description, so the note has no place.
        return head + b"\n" + (b"\n" + body if body else b"")
    body = body.rstrip()
    return head + b"\n\n" + (body + b"\n\n" if body else b"") + note.encode() + b"\n"


def read_extras(content: bytes) -> frozenset[str]:
    """Return the normalized names of the extras in METADATA, whatever the rest is like."""
    head = content[: next(_HEADER_END.finditer(content)).start()]
    return frozenset(distribution_name(name.decode()) for name in _EXTRA_LINE.findall(head))


def _replace_field(head: bytes, name: str, value: str) -> bytes:
    line = re.compile(rb"^%s:.*$" % name.encode(), re.MULTILINE | re.IGNORECASE)
    return line.sub(lambda _: f"{name}: {value}".encode(), head, count=1)


_ROOTS = {"true": True, "false": False}
_ROOT = "Root-Is-Purelib"
_NAME_LINES = re.compile(rb"^(Build|Tag):.*(\r?\n|\Z)", re.MULTILINE)
_ROOT_LINE = re.compile(rb"^Root-Is-Purelib:.*(\r?\n|\Z)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelInfo:
    """What WHEEL says.

    Attributes:
        generator: the program that made the archive, and its version.
        tags: expanded, such as ``py3-none-any``, sorted.
        purelib: whether the archive's root installs into purelib rather than platlib.
        build: the build tag, or "" for none.
        notes: what is odd in a file that installers take all the same.
    """

    generator: str
    tags: tuple[str, ...]
    purelib: bool = False
    build: str = ""
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.tags or list(self.tags) != sorted(set(self.tags)):
            raise WheelError(f"WHEEL needs a sorted set of tags, not {self.tags}")
        values = (self.generator, self.build, *self.tags)
        if not (self.generator and all(v.isascii() and v.isprintable() for v in values)):
            raise WheelError("WHEEL needs a generator, and holds printable ASCII alone")

    def encode(self) -> bytes:
        """Write WHEEL."""
        lines = [
            "Wheel-Version: 1.0",
            f"Generator: {self.generator}",
            f"Root-Is-Purelib: {str(self.purelib).lower()}",
            *(f"Tag: {tag}" for tag in self.tags),
            *([f"Build: {self.build}"] if self.build else []),
        ]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, content: bytes) -> WheelInfo:
        """Read WHEEL; of several lines Root-Is-Purelib the first counts, as for pip.

        Raises:
            WheelError: a field is missing, repeated or has another meaning than we know.
        """
        try:
            fields = Parser().parsestr(content.decode("ascii"))
        except UnicodeDecodeError as error:
            raise WheelError(f"WHEEL is not ASCII: {error}") from None
        version, root = _one(fields, "Wheel-Version"), _first(fields, _ROOT)
        if version.partition(".")[0] != "1":
            raise WheelError(f"WHEEL has the format version {version!r}; archsplit reads 1.x")
        if root.lower() not in _ROOTS:
            raise WheelError(f"WHEEL says Root-Is-Purelib: {root!r}, neither true nor false")
        return cls(
            generator=_one(fields, "Generator"),
            tags=tuple(sorted(set(fields.get_all("Tag", [])))),
            purelib=_ROOTS[root.lower()],
            build=_one(fields, "Build") if "Build" in fields else "",
            notes=tuple(_repeated(fields, _ROOT)),
        )


def edit_wheel_info(content: bytes, *, tags: Iterable[str], build: str) -> bytes:
    """Give WHEEL the tags and build tag of a file name, and one line Root-Is-Purelib."""
    text = _NAME_LINES.sub(b"", content)
    if roots := list(_ROOT_LINE.finditer(text)):
        end = roots[0].end()
        text = text[:end] + _ROOT_LINE.sub(b"", text[end:])
    lines = [f"Tag: {tag}\n" for tag in tags]
    lines += [f"Build: {build}\n"] if build else []
    return text.rstrip() + b"\n" + "".join(lines).encode()


def _first(fields: Message, name: str) -> str:
    values: list[str] = fields.get_all(name, [])
    return values[0].strip() if values else _one(fields, name)


def _repeated(fields: Message, name: str) -> Iterator[str]:
    values: list[str] = fields.get_all(name, [])
    if len(values) > 1:
        first = values[0].strip()
        yield f"WHEEL has {len(values)} lines {name}; the first, {first}, counts, as for pip"


def _one(fields: Message, name: str) -> str:
    values: list[str] = fields.get_all(name, [])
    if len(values) != 1:
        raise WheelError(f"WHEEL has {len(values)} lines {name}, not one")
    return values[0].strip()
