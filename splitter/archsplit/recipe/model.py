"""Tables of ``recipe.toml`` as records, and the types of their values.

In: tables that a TOML parser has read; out: records, which pydantic checks. A key of the file is
the attribute's name with ``-`` for ``_``, and the docstrings are the schema's descriptions. Paths
are checked against the recipe's folder, which pydantic passes on as the validation's context. A
pattern stays a pattern here; `archsplit.recipe.load.load` replaces it by the matching files.
"""

# ruff: noqa: TC001, TC003 (pydantic reads the annotations when it runs)

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from packaging.licenses import canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import AfterValidator, Field, StrictBool, ValidationInfo

from archsplit.errors import InputError, WheelError
from archsplit.nvcc.dryrun import unusable_character
from archsplit.recipe.policy import Policy
from archsplit.recipe.values import (
    RELOCATABLE_FLAGS,
    CppStandard,
    CudaLibraryName,
    CudaMajor,
    GlibcPolicy,
    HostFlag,
    InvalidValue,
    LibraryFile,
    LibraryName,
    MacroDefinition,
    Matching,
    NvccFlag,
    OneOrMore,
    PackageName,
    ProvidedLibrary,
    Ptx,
    RecipeTable,
    Sass,
    SymbolName,
    TextValidator,
    Unique,
    matching_files,
)
from archsplit.system.fs import read_file
from archsplit.wheels.filename import distribution_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from archsplit.arch.target import Target

__pure__ = True

_T = TypeVar("_T")


def _relative(value: object) -> PurePosixPath:
    value = str(value) if isinstance(value, PurePosixPath) else value  # a default of ours
    if not isinstance(value, str):
        raise InvalidValue(f"must be text, not {value!r}")
    if not value or not value.isprintable() or "\\" in value:
        raise InvalidValue(f"{value!r} is not a path", hint="write it with '/' between its parts")
    path = PurePosixPath(value)
    # A recipe must build the same in every folder, so no path may leave its own.
    if path.is_absolute() or ".." in path.parts:
        raise InvalidValue(
            f"{value!r} leads out of the recipe's folder",
            hint="write it relative to the recipe's folder, and put the file there",
        )
    return path


def _include_folder(value: object, info: ValidationInfo) -> PurePosixPath:
    return _for_nvcc(_folder(value, info), "rename the folder")


def _folder(value: object, info: ValidationInfo) -> PurePosixPath:
    path = _relative(value)
    # Path.is_dir raises for a folder that can't be looked into, but not from Python 3.14 on.
    if not os.path.isdir(_root(info) / path):  # noqa: PTH112
        raise InvalidValue(
            f"the folder {path} is not there", hint=f"it is looked for in {_root(info)}"
        )
    return path


def _file(value: object, info: ValidationInfo) -> PurePosixPath:
    path = _relative(value)
    _read(path, info)
    return path


def _text_file(value: object, info: ValidationInfo) -> PurePosixPath:
    path = _relative(value)
    try:
        _read(path, info).decode()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    return path


def _pattern(value: object, info: ValidationInfo) -> PurePosixPath:
    return _check_pattern(value, _root(info))


def _source_pattern(value: object, info: ValidationInfo) -> PurePosixPath:
    pattern = _check_pattern(value, _root(info))
    # The text of a pattern can be harmless while a matched name is not.
    for file in matching_files(_root(info), pattern):
        _for_nvcc(file, "rename the file")
    return pattern


def _for_nvcc(path: PurePosixPath, hint: str) -> PurePosixPath:
    text = str(path)
    # nvcc would read "-…" as an option, and the host compiler "@…" as a file of options.
    invalid = unusable_character(text) or next(
        (first for first in "-@" if text.startswith(first)), None
    )
    if invalid:
        raise InvalidValue(f"nvcc can't have the {invalid} in {text!r}", hint=hint)
    return path


def _python_pattern(value: object, info: ValidationInfo) -> PurePosixPath:
    # pydantic leaves out a root that was refused; only the form of the pattern is checked then.
    if "root" in info.data:
        return _check_pattern(value, _root(info) / info.data["root"])
    return parse_file_pattern(value)


def parse_file_pattern(value: object) -> PurePosixPath:
    """Return a valid pattern, not yet matched with files, or raise `InvalidValue`."""
    path = _relative(value)
    # The pattern "." has no parts.
    if not path.parts:
        raise InvalidValue(
            f"{value!r} is a folder, not a pattern of files", hint="write it like *.cu"
        )
    # Python's own globs changed the meaning of `a**` between versions, so it is refused.
    if any("**" in part and part != "**" for part in path.parts):
        raise InvalidValue(
            f"in {value!r}, '**' is only a part of a name", hint="write it like **/*.cu"
        )
    return path


def _check_pattern(value: object, root: Path) -> PurePosixPath:
    pattern = parse_file_pattern(value)
    try:
        files = matching_files(root, pattern)
    except OSError as error:
        raise InvalidValue(f"can't list {error.filename}: {error.strerror}") from None
    if not files:
        raise InvalidValue(f"no file matches {pattern}", hint=f"it is looked for in {root}")
    invalid = [str(file) for file in files if not str(file).isprintable()]
    if invalid:
        raise InvalidValue(f"the file name {invalid[0]!r} can't be printed", hint="rename the file")
    return pattern


def _read(path: PurePosixPath, info: ValidationInfo) -> bytes:
    try:
        return read_file(_root(info) / path)
    except InputError as error:
        raise InvalidValue(error.args[0]) from None


def _root(info: ValidationInfo) -> Path:
    assert isinstance(info.context, Path), "recipes are read with their folder as the context"
    return info.context


Folder = Annotated[PurePosixPath, TextValidator(_folder)]
FilePath = Annotated[PurePosixPath, TextValidator(_file)]
TextFile = Annotated[PurePosixPath, TextValidator(_text_file)]
IncludeFolder = Annotated[PurePosixPath, TextValidator(_include_folder)]
FilePattern = Annotated[PurePosixPath, TextValidator(_pattern)]
SourcePattern = Annotated[PurePosixPath, TextValidator(_source_pattern)]
PythonPattern = Annotated[PurePosixPath, TextValidator(_python_pattern)]
"""A pattern relative to the field ``root`` of its table."""

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


def _parsed(parse: Callable[[str], _T], text: str, what: str, hint: str) -> _T:
    try:
        return parse(text)
    # The errors of `packaging` for versions, specifiers, requirements and licenses.
    except ValueError:
        raise InvalidValue(f"{text!r} is not {what}", hint=f"write it like {hint}") from None


def _version(text: str) -> str:
    version = _parsed(Version, text, "a version", "1.2.3 (PEP 440)")
    # A local version would be refused only at the upload, after the whole build.
    if version.local:
        raise InvalidValue(
            f"{text!r} has a local part, which the public index refuses",
            hint=f"write {version.public}; the CUDA version belongs in the project's name",
        )
    # Wheel names have the normalized form; two forms of one version would confuse the plugins'
    # pins.
    if str(version) != text:
        raise InvalidValue(f"{text!r} is not normalized", hint=f"write {version}")
    return text


def _license(text: str) -> str:
    samples = "Apache-2.0 or 'MIT AND BSD-3-Clause'; see https://spdx.org/licenses"
    return _parsed(canonicalize_license_expression, text, "an SPDX license expression", samples)


def _specifiers(text: str) -> str:
    return str(_parsed(SpecifierSet, text, "a set of versions", ">=3.10"))


def _requirement(text: str) -> str:
    requirement = _parsed(Requirement, text, "a requirement", "numpy>=2 (PEP 508)")
    # PyPI refuses direct references (PEP 508 URLs) at the upload.
    if requirement.url:
        raise InvalidValue(f"{text!r} names an address, which the public index refuses")
    return str(requirement)


def _classifier(text: str) -> str:
    if " :: " not in text:
        hint = "the trove-classifiers package lists them"
        raise InvalidValue(f"{text!r} is not a classifier", hint=hint)
    # PEP 639: an index refuses a license expression beside license classifiers.
    if text.startswith("License ::"):
        raise InvalidValue(
            f"{text!r} repeats project.license",
            hint="leave it out: the index refuses it together with a license expression",
        )
    return _one_line(text)


def _without_comma(text: str) -> str:
    # METADATA joins keywords and authors with commas, so a comma would make two of one.
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
Address = Annotated[str, Matching(r"https?://[!-~]+", "an address, such as https://example.org")]
Email = Annotated[str, Matching(r"[^@\s,<>\"]+@[^@\s,<>\"]+", "an e-mail address")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Author(RecipeTable):
    """A person or a group.

    Attributes:
        name: the name, without commas.
        email: the e-mail address.
    """

    name: Person = ""
    email: Email = ""

    def __post_init__(self) -> None:
        if not (self.name or self.email):
            raise InvalidValue("has neither a name nor an e-mail address")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(RecipeTable):
    """Metadata of the core's distribution on the index.

    Attributes:
        name: the distribution's name; kept normalized (PEP 503).
        version: PEP 440, already normalized, without a local part.
        summary: one line about the project.
        license: an SPDX license expression.
        license_files: patterns of the license texts; each must match a file.
        readme: the text of the project's page, a .md, .rst or .txt file.
        requires_python: the versions of Python that the core runs on.
        authors: tables with a name, an email, or both.
        keywords: words for the index's search.
        classifiers: trove classifiers, but none about the license.
        urls: addresses by label.
        dependencies: requirements of the core, in the form of PEP 508.
    """

    name: ProjectName
    version: ProjectVersion
    summary: Summary
    license: License
    license_files: OneOrMore[FilePattern]
    readme: TextFile | None = None
    requires_python: Specifiers = ">=3.10"
    authors: tuple[Author, ...] = ()
    keywords: Unique[Keyword] = ()
    classifiers: Unique[Classifier] = ()
    urls: Mapping[Label, Address] = field(default_factory=dict)
    dependencies: Unique[Dependency] = ()

    def __post_init__(self) -> None:
        # The content type is derived from the suffix; an unknown type is shown as plain text.
        if self.readme is not None and self.readme.suffix not in _README_TYPES:
            raise InvalidValue(f"the readme {self.readme} is not a .md, .rst or .txt file")

    @property
    def readme_type(self) -> str:
        """Content type of the readme; "" without a readme."""
        return "" if self.readme is None else _README_TYPES[self.readme.suffix]


_PYTHON_ROOT = PurePosixPath("python")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGroup(RecipeTable):
    """Options for some of the sources, beside those for all.

    Attributes:
        files: patterns of the sources, each of which must match one of source.files.
        include: folders to search for headers, before source.include.
        defines: further macros, NAME or NAME=VALUE.
        nvcc_flags: further flags for nvcc, one argument an entry.
        host_flags: further flags for the host compiler, one an entry, without -Xcompiler.
    """

    files: OneOrMore[SourcePattern]
    include: Unique[IncludeFolder] = ()
    defines: Unique[MacroDefinition] = ()
    nvcc_flags: tuple[NvccFlag, ...] = ()
    host_flags: tuple[HostFlag, ...] = ()

    def __post_init__(self) -> None:
        # The device link needs the same kind of code from all sources.
        if relocatable := RELOCATABLE_FLAGS.intersection(self.nvcc_flags):
            raise InvalidValue(
                f"{min(relocatable)} is for all sources or for none", hint="write compile.rdc"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(RecipeTable):
    """Sources.

    Attributes:
        files: patterns of the sources; each must match a file. They are compiled sorted by path.
        include: folders to search for headers, in this order.
        defines: macros for all sources, NAME or NAME=VALUE.
        group: tables with options for some of the sources.
    """

    files: OneOrMore[SourcePattern]
    include: Unique[IncludeFolder] = ()
    defines: Unique[MacroDefinition] = ()
    group: tuple[SourceGroup, ...] = ()

    def groups_of(self, file: PurePosixPath) -> tuple[SourceGroup, ...]:
        """Return the groups with a source, in the recipe's order."""
        return tuple(group for group in self.group if file in group.files)

    def include_of(self, file: PurePosixPath) -> tuple[PurePosixPath, ...]:
        """Return the include folders of a source, its groups' folders first."""
        own = (folder for group in self.groups_of(file) for folder in group.include)
        return tuple(dict.fromkeys((*own, *self.include)))

    @property
    def all_include(self) -> tuple[PurePosixPath, ...]:
        """Include folders of all sources, and then the groups' folders."""
        own = (folder for group in self.group for folder in group.include)
        return tuple(dict.fromkeys((*self.include, *own)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile(RecipeTable):
    """Options of the compilation.

    Attributes:
        std: the C++ standard.
        nvcc_flags: further flags for nvcc, one argument an entry.
        host_flags: flags for the host compiler, one an entry, without -Xcompiler.
        host_pass: compile the host side once for all targets, or per target, for sources whose
            host code depends on the list of targets.
        rdc: relocatable device code: sources use each other's device functions and variables, and
            each target gets a device link of its own.
    """

    std: CppStandard = "c++17"
    nvcc_flags: tuple[NvccFlag, ...] = ()
    host_flags: tuple[HostFlag, ...] = ()
    host_pass: Literal["once", "per-target"] = "once"
    rdc: StrictBool = False

    @property
    def relocatable(self) -> bool:
        """True if there is a device link, by ``rdc`` or by a flag of nvcc."""
        return self.rdc or not RELOCATABLE_FLAGS.isdisjoint(self.nvcc_flags)

    @property
    def other_flags(self) -> tuple[str, ...]:
        """``nvcc_flags`` without those with the meaning of ``rdc``."""
        return tuple(flag for flag in self.nvcc_flags if flag not in RELOCATABLE_FLAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(RecipeTable):
    """Options of the link.

    Attributes:
        library: the file name of the library in every plugin; lib<package>.so if left out.
        libraries: system libraries to link with, by the name that follows -l.
        library_folders: folders to search for these libraries.
        cuda_libraries: libraries of CUDA, by the name that follows -l, as in cublas. They are found
            in the toolkit or in NVIDIA's wheels, and plugins require the wheels.
        provided: shared libraries that plugins need and that neither the wheels of this recipe nor
            every Linux have, as in libgomp.so.1.
    """

    library: LibraryFile = ""
    libraries: Unique[LibraryName] = ()
    library_folders: Unique[Folder] = ()
    cuda_libraries: Unique[CudaLibraryName] = ()
    provided: Unique[ProvidedLibrary] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets(RecipeTable):
    """Targets, each of which becomes a plugin of its own.

    Attributes:
        sass: machine code, as in sm_90, sm_90a or sm_120f.
        ptx: portable code that the driver compiles, as in compute_120.
        manylinux: the glibc that all wheels promise, as in 2_28; by default each wheel promises
            the oldest that its libraries run on.
        dropped: targets that were published once and are not built any more: an update leaves these
            users the earlier core and plugin.
    """

    sass: Unique[Sass] = ()
    ptx: Unique[Ptx] = ()
    manylinux: GlibcPolicy = ""
    dropped: Unique[Sass] = ()

    def __post_init__(self) -> None:
        if not (self.sass or self.ptx):
            raise InvalidValue("names no target", hint='write, for example, sass = ["sm_90"]')
        if both := sorted({*self.sass} & {*self.dropped}):
            raise InvalidValue(f"{both[0]} is built and dropped", hint="write it in one of both")

    @property
    def all(self) -> tuple[Target, ...]:
        """SASS and PTX, each ascending."""
        return tuple(sorted((*self.sass, *self.ptx)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda(RecipeTable):
    """Major versions of CUDA, each a release of its own.

    Attributes:
        majors: the majors, as in 12 and 13. Each is built with a toolkit of its own, as NAME-cu12;
            a package NAME without files has an extra for each.
    """

    majors: Unique[CudaMajor] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface(RecipeTable):
    """Functions that the library offers to the core; their hash ties plugins to cores.

    Attributes:
        header: the public C header.
        symbols: the functions that the library exports; each must be declared in the header, or in
            a header of the recipe's folder that it includes.
    """

    header: FilePath
    symbols: OneOrMore[SymbolName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Python(RecipeTable):
    """Python side of the core.

    Attributes:
        package: the import package; the project's name with "_" for "-" if left out.
        root: the folder of the package; files are installed relative to it.
        files: patterns of the core's files, relative to root; each must match a file. **/*.py if
            left out.
    """

    package: PackageName = ""
    root: Annotated[Folder, Field(validate_default=True)] = _PYTHON_ROOT
    files: Annotated[OneOrMore[PythonPattern], Field(validate_default=True)] = field(
        default_factory=lambda: (PurePosixPath("**/*.py"),)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Install(RecipeTable):
    """Wheels for users to install.

    Attributes:
        mode: core builds the core and the plugins; meta also builds a wheel that requires them all.
    """

    mode: Literal["core", "meta"] = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe without faults: all paths exist, names are valid, defaults are set.

    All paths but ``root`` are relative: paths of `Python` to its root, the others to ``root``.

    Attributes:
        root: the recipe's folder, absolute.
        file: the recipe's file, relative to ``root``.
        input_files: all files of the recipe that can change the build, sorted.
        policies: the policies by name.
        applied: the name of the applied policy; "" for releases.
        release: the targets of a release, which nvcc gets whatever a policy leaves out.
    """

    root: Path
    file: PurePosixPath
    project: Project
    source: Source
    compile: Compile
    link: Link
    targets: Targets
    interface: Interface
    python: Python
    install: Install
    input_files: tuple[PurePosixPath, ...]
    cuda: Cuda = field(default_factory=Cuda)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    applied: str = ""
    release: tuple[Target, ...] = ()

    @property
    def policy(self) -> Policy | None:
        """Policy that was applied, or None."""
        return self.policies[self.applied] if self.applied else None


LISTED_TABLES: dict[str, type] = {"authors": Author, "group": SourceGroup}
"""Record of the tables in a list, by the key of the list."""

RECIPE_TABLES: dict[str, type] = {
    "project": Project,
    "source": Source,
    "compile": Compile,
    "link": Link,
    "targets": Targets,
    "cuda": Cuda,
    "interface": Interface,
    "python": Python,
    "install": Install,
}
"""Record of each table by its name, in the order of the manual."""
