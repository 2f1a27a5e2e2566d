"""The table ``[project]``, which becomes the wheels' metadata: what the index takes of it."""

# ruff: noqa: TC001, TC003 (pydantic reads the annotations when it runs)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, with_config

from archsplit.errors import WheelError
from archsplit.recipe.paths import Pattern, TextFile
from archsplit.recipe.values import TABLE_CONFIG, InvalidValue, Matching, Some, Unique
from archsplit.wheels.filename import distribution_name

__pure__ = True

_SUMMARY_LIMIT = 512
_LABEL_LIMIT = 32
_README_TYPES = {".md": "text/markdown", ".rst": "text/x-rst", ".txt": "text/plain"}


def _one_line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise InvalidValue(f"{text!r} is not one line of text")
    return text


def _summary(text: str) -> str:
    if len(text) > _SUMMARY_LIMIT:
        raise InvalidValue(f"has {len(text)} characters; the index takes {_SUMMARY_LIMIT}")
    return _one_line(text)


def _name(text: str) -> str:
    try:
        return distribution_name(text)
    except WheelError as error:
        raise InvalidValue(error.args[0], hint=error.hint) from None


def _version(text: str) -> str:
    try:
        version = Version(text)
    except InvalidVersion:
        raise InvalidValue(
            f"{text!r} is not a version", hint="write it as in 1.2.3 (PEP 440)"
        ) from None
    if version.local:
        raise InvalidValue(
            f"{text!r} has a local part, which the public index refuses",
            hint=f"write {version.public}; the CUDA version belongs into the project's name",
        )
    if str(version) != text:
        raise InvalidValue(f"{text!r} is not normalized", hint=f"write {version}")
    return text


def _license(text: str) -> str:
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        raise InvalidValue(
            f"{text!r} is not an SPDX license expression",
            hint="write it as in Apache-2.0 or 'MIT AND BSD-3-Clause'; see https://spdx.org/licenses",
        ) from None


def _specifiers(text: str) -> str:
    try:
        return str(SpecifierSet(text))
    except InvalidSpecifier:
        raise InvalidValue(
            f"{text!r} is not a set of versions", hint="write it as in >=3.10"
        ) from None


def _requirement(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise InvalidValue(
            f"{text!r} is not a requirement", hint="write it as in numpy>=2 (PEP 508)"
        ) from None
    if requirement.url:
        raise InvalidValue(f"{text!r} names an address, which the public index refuses")
    return str(requirement)


def _classifier(text: str) -> str:
    if " :: " not in text:
        hint = "the trove-classifiers package lists them"
        raise InvalidValue(f"{text!r} is not a classifier", hint=hint)
    if text.startswith("License ::"):
        raise InvalidValue(
            f"{text!r} says again what project.license says",
            hint="leave it out: the index refuses it beside a license expression",
        )
    return _one_line(text)


def _without_comma(text: str) -> str:
    if "," in text:
        raise InvalidValue(f"{text!r} has a comma in it", hint="make it two entries")
    return _one_line(text)


def _label(text: str) -> str:
    if len(text) > _LABEL_LIMIT:
        raise InvalidValue(f"the label {text!r} is longer than {_LABEL_LIMIT} characters")
    return _without_comma(text)


Summary = Annotated[
    str, AfterValidator(_summary), Field(json_schema_extra={"maxLength": _SUMMARY_LIMIT})
]
ProjectName = Annotated[str, AfterValidator(_name)]
ProjectVersion = Annotated[str, AfterValidator(_version)]
License = Annotated[str, AfterValidator(_license)]
Specifiers = Annotated[str, AfterValidator(_specifiers)]
Dependency = Annotated[str, AfterValidator(_requirement)]
Classifier = Annotated[str, AfterValidator(_classifier)]
Keyword = Annotated[str, AfterValidator(_without_comma)]
Person = Annotated[str, AfterValidator(_without_comma)]
Label = Annotated[str, AfterValidator(_label)]
Address = Annotated[str, Matching(r"https?://[!-~]+", "an address, as in https://example.org")]
Email = Annotated[str, Matching(r"[^@\s,<>\"]+@[^@\s,<>\"]+", "an e-mail address")]


@with_config(TABLE_CONFIG)
@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """A person or a group.

    Attributes:
        name: what they are called, without commas.
        email: where to write to.
    """

    name: Person = ""
    email: Email = ""

    def __post_init__(self) -> None:
        if not (self.name or self.email):
            raise InvalidValue("has neither a name nor an e-mail address")


@with_config(TABLE_CONFIG)
@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What the index shows of the core's distribution.

    Attributes:
        name: the distribution's name; kept normalized (PEP 503).
        version: PEP 440, already normalized, without a local part.
        summary: one line about it.
        license: an SPDX license expression.
        license_files: patterns of the license texts; each must match a file.
        readme: the text of the project's page, a .md, .rst or .txt file.
        requires_python: the versions of Python that the core runs on.
        authors: tables with a name, an email, or both.
        keywords: words to find it by.
        classifiers: trove classifiers, but none about the license.
        urls: addresses by label.
        dependencies: what the core requires, as PEP 508 spells it.
    """

    name: ProjectName
    version: ProjectVersion
    summary: Summary
    license: License
    license_files: Some[Pattern]
    readme: TextFile | None = None
    requires_python: Specifiers = ">=3.10"
    authors: tuple[Author, ...] = ()
    keywords: Unique[Keyword] = ()
    classifiers: Unique[Classifier] = ()
    urls: Mapping[Label, Address] = field(default_factory=dict)
    dependencies: Unique[Dependency] = ()

    def __post_init__(self) -> None:
        if self.readme is not None and self.readme.suffix not in _README_TYPES:
            raise InvalidValue(f"the readme {self.readme} is not a .md, .rst or .txt file")

    @property
    def readme_type(self) -> str:
        """The content type of the readme; "" where there is none."""
        return "" if self.readme is None else _README_TYPES[self.readme.suffix]
