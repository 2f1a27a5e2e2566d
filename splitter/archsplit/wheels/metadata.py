"""Files METADATA and WHEEL of a wheel: written, read and edited.

In: records, or the bytes of such a file. Out: bytes, or records with every fault in one error.

A new METADATA goes through ``packaging``, which refuses what the index would refuse. The files of
other builders are edited line by line, because a parser would lose fields that it doesn't know.

Sources: https://packaging.python.org/en/latest/specifications/core-metadata/
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
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
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from email.message import Message

__pure__ = True

METADATA_VERSION = "2.4"
"""Oldest version with License-Expression (PEP 639)."""

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
"""Fields of a new METADATA, spelled and ordered as in the specification.

``packaging`` writes them in lower case and in the order of a class body: valid, but the bytes could
change with its next release.
"""

# A header may end with the file: METADATA without a description.
_HEADER_END = re.compile(rb"(?:\r?\n){2}|\Z")
_EXTRA_LINE = re.compile(rb"^Provides-Extra:\s*(\S+)", re.MULTILINE | re.IGNORECASE)
# Before metadata 2.1 the description was a field with indented lines.
_OLD_DESCRIPTION = re.compile(rb"^Description:", re.MULTILINE | re.IGNORECASE)

_ROOT_VALUES = {"true": True, "false": False}
_ROOT_FIELD = "Root-Is-Purelib"
_NAME_LINES = re.compile(rb"^(Build|Tag):.*(\r?\n|\Z)", re.MULTILINE)
_ROOT_LINE = re.compile(rb"^Root-Is-Purelib:.*(\r?\n|\Z)", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataAuthor:
    """A person or a group: a name, an address, or both."""

    name: str = ""
    email: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreMetadata:
    """Core metadata of a distribution.

    The constructor refuses values that the index would refuse.

    Attributes:
        name: as its authors spell it.
        version: PEP 440.
        summary: one line.
        description: the text of the project's page.
        description_content_type: such as ``text/markdown``; "" for none.
        license_expression: SPDX.
        license_files: paths below ``<dist-info>/licenses/``.
        authors: in the order of the file.
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
        # Written and read once, because that is what the index does with it.
        expected, read = _validate(_raw_metadata(self)), decode_metadata(content)
        # A line break in a value would begin another field.
        changed = sorted(
            key for key in _raw_metadata(self) if getattr(expected, key) != getattr(read, key)
        )
        if changed:
            raise WheelError(
                f"the metadata of {self.name} would be read back differently: {', '.join(changed)}",
                hint="look for line breaks, commas in keywords and labels, and spaces at the ends",
            )


def encode_metadata(core: CoreMetadata) -> bytes:
    """Write METADATA, in UTF-8, with the description as its body."""
    raw = _raw_metadata(core)
    fields = _validate(raw).as_rfc822()
    message = RFC822Message()
    for name in _FIELDS:
        # A field may occur several times, so a dictionary would lose lines.
        for key, value in fields.raw_items():
            if key == name.lower():
                message[name] = value
    message.set_payload(raw.get("description", ""))
    try:
        return bytes(message)
    # A lone surrogate, as in a file name that isn't UTF-8.
    except UnicodeEncodeError:
        raise WheelError(f"the metadata of {core.name!r} is not valid Unicode") from None


def decode_metadata(content: bytes) -> Metadata:
    """Read METADATA, as strictly as the index does.

    Raises:
        WheelError: fields are unknown, repeated or wrong; the message lists all of those.
    """
    return _checked(lambda: Metadata.from_email(content))


def decode_upstream_metadata(content: bytes) -> Metadata:
    """Read METADATA of another builder as an index gets it from twine.

    Many builders wrote License-File before metadata 2.4 had that field; twine leaves it out.

    Raises:
        WheelError: see `decode_metadata`.
    """
    raw, unknown = parse_email(content)
    # A text comparison: there are no other versions before 2.4 than 1.0 to 2.3.
    if unknown or "license_files" not in raw or raw.get("metadata_version", "") >= "2.4":
        return decode_metadata(content)
    del raw["license_files"]
    return _validate(raw)


def read_name_and_version(content: bytes) -> tuple[str, str]:
    """Return the name and the version in METADATA, "" where missing.

    Wheels of other builders have fields that their metadata version doesn't have: no reason to
    refuse the wheel.
    """
    raw, _ = parse_email(content)
    return raw.get("name", ""), raw.get("version", "")


def _raw_metadata(core: CoreMetadata) -> RawMetadata:
    # The specification has bare names in one field, and names with addresses in another.
    names = [author.name for author in core.authors if not author.email]
    addresses = [_address(author) for author in core.authors if author.email]
    raw: RawMetadata = {
        "metadata_version": METADATA_VERSION,
        "name": core.name,
        "version": core.version,
        "summary": core.summary,
        # A body has plain line feeds; others would be read back changed.
        "description": core.description.replace("\r\n", "\n").replace("\r", "\n"),
        "description_content_type": core.description_content_type,
        "keywords": list(core.keywords),
        "author": ", ".join(names),
        "author_email": ", ".join(addresses),
        "license_expression": core.license_expression,
        "license_files": list(core.license_files),
        "classifiers": list(core.classifiers),
        "project_urls": dict(core.urls),
        "requires_python": core.requires_python,
        "requires_dist": _requirements(core),
        # PEP 685: names of extras are normalized.
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
        in_extra = f'extra == "{distribution_name(extra)}"'
        always = requirement.marker
        # In brackets, because `and` binds closer than the `or` of a requirement's own marker.
        requirement.marker = Marker(f"({always}) and {in_extra}" if always else in_extra)
    return str(requirement)


def _validate(raw: RawMetadata) -> Metadata:
    return _checked(lambda: Metadata.from_raw(raw))


def _checked(read: Callable[[], Metadata]) -> Metadata:
    try:
        return read()
    except ExceptionGroup as group:
        # All at once, in the same order on every run.
        faults = sorted(str(fault) for fault in group.exceptions)
        raise WheelError("the metadata is not valid: " + "; ".join(faults)) from None


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
    # New lines go to the end of the header; the index reads fields in any order.
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
    # A function, because a backslash in the value would be taken for a group.
    return line.sub(lambda _: f"{name}: {value}".encode(), head, count=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelInfo:
    """Content of the file WHEEL.

    Attributes:
        generator: the program that made the archive, and its version.
        tags: expanded, such as ``py3-none-any``, sorted.
        purelib: True if the archive's root is installed into purelib, not platlib.
        build: the build tag, or "" for none.
        notes: faults of a file that installers take in spite of them.
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
            raise WheelError("WHEEL needs a generator, and printable ASCII in all values")

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
        """Read WHEEL; the first of several lines Root-Is-Purelib counts, as for pip.

        Raises:
            WheelError: a field is missing, repeated, or has an unknown value.
        """
        try:
            fields = Parser().parsestr(content.decode("ascii"))
        except UnicodeDecodeError as error:
            raise WheelError(f"WHEEL is not ASCII: {error}") from None
        version = _only_value(fields, "Wheel-Version")
        roots: list[str] = fields.get_all(_ROOT_FIELD, [])
        root = roots[0].strip() if roots else _only_value(fields, _ROOT_FIELD)
        # The specification: refuse another major version, accept a newer minor one.
        if version.partition(".")[0] != "1":
            raise WheelError(f"WHEEL has the format version {version!r}, expected 1.x")
        if root.lower() not in _ROOT_VALUES:
            raise WheelError(f"WHEEL has Root-Is-Purelib: {root!r}, expected true or false")
        lines = f"WHEEL has {len(roots)} lines {_ROOT_FIELD}"
        notes = (f"{lines}; the first one counts, as for pip: {root}",)
        return cls(
            generator=_only_value(fields, "Generator"),
            tags=tuple(sorted(set(fields.get_all("Tag", [])))),
            purelib=_ROOT_VALUES[root.lower()],
            build=_only_value(fields, "Build") if "Build" in fields else "",
            notes=() if len(roots) == 1 else notes,
        )


def edit_wheel_info(content: bytes, *, tags: Iterable[str], build: str) -> bytes:
    """Return WHEEL with the tags and build tag of a file name, and one Root-Is-Purelib."""
    text = _NAME_LINES.sub(b"", content)
    # Some public wheels have two such lines with different values, and pip goes by the first.
    if roots := list(_ROOT_LINE.finditer(text)):
        end = roots[0].end()
        text = text[:end] + _ROOT_LINE.sub(b"", text[end:])
    lines = [f"Tag: {tag}\n" for tag in tags]
    lines += [f"Build: {build}\n"] if build else []
    return text.rstrip() + b"\n" + "".join(lines).encode()


def _only_value(fields: Message, name: str) -> str:
    values: list[str] = fields.get_all(name, [])
    if len(values) != 1:
        raise WheelError(f"WHEEL has {len(values)} lines {name}, not one")
    return values[0].strip()
