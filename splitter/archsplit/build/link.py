"""From objects to the plan of one library per target, with the descriptor inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.devicecode.library import read_library
from archsplit.devicecode.runtime_calls import device_runtime_calls
from archsplit.errors import StepError
from archsplit.formats.descriptor import NOTE_SECTION, Descriptor, Shape, encode_note
from archsplit.release.checks import plugin_faults
from archsplit.scheduler.graph import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.build.context import BuildContext
    from archsplit.release.identity import Identity

_RUNTIME = ("-lcudart_static", "-lrt", "-lpthread", "-ldl")
_ROW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """How the libraries come about.

    Attributes:
        steps: what must run.
        texts: files that must be there before, with their content.
        files: each target's library.
    """

    steps: tuple[Step, ...]
    texts: Mapping[Path, str]
    files: Mapping[Target, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Linker:
    """Turns each target's objects into the plan of a library that belongs to ``identity``."""

    site: BuildContext
    identity: Identity

    def plan(self, objects: Mapping[Target, tuple[Path, ...]]) -> Libraries:
        """Plan one shared library per target; only the recipe's symbols are visible in it."""
        exports = self.site.folder / "exports.map"
        texts = {exports: self._version_script()}
        steps: list[Step] = []
        files = {}
        for target, paths in objects.items():
            note = self.site.folder / f"descriptor.{target}.s"
            texts[note] = _note_source(self._descriptor(target))
            files[target] = self.site.folder / f"{target}-{self.site.recipe.link.library}"
            steps += self._link(target, note, paths, exports, files[target])
        return Libraries(steps=tuple(steps), texts=texts, files=files)

    def _descriptor(self, target: Target) -> Descriptor:
        return Descriptor(
            package=self.identity.package,
            version=self.identity.version,
            build_id=bytes.fromhex(self.identity.build_id),
            interface_hash=bytes.fromhex(self.identity.interface_hash),
            cuda_version=self.site.toolkit.cuda_version,
            shape=Shape.LIBRARY,
            targets=(target,),
        )

    def _version_script(self) -> str:
        symbols = "".join(f"    {symbol};\n" for symbol in self.site.recipe.interface.symbols)
        return f"{{\n  global:\n{symbols}  local:\n    *;\n}};\n"

    def _link(
        self, target: Target, note: Path, objects: tuple[Path, ...], exports: Path, library: Path
    ) -> Iterator[Step]:
        note_object = note.with_suffix(".o")
        assemble = (str(self.site.host.compiler), "-c", str(note), "-o", str(note_object))
        yield self._step(f"{target} descriptor", assemble, (), note_object, weight=0.1)
        inputs = (*objects, note_object)
        argv = (*self._flags(target, exports), *map(str, inputs), *self._libraries())
        link = (str(self.site.host.compiler), *argv, "-o", str(library))
        yield self._step(f"{target} link", link, inputs, library, weight=1.0)

    def _flags(self, target: Target, exports: Path) -> tuple[str, ...]:
        # ld.so knows libraries by their SONAME across packages: each plugin has one of its own.
        soname = f"{self.site.recipe.project.name}.{target}.{self.site.recipe.link.library}"
        linker = ("--no-undefined", "--strip-all", "--build-id=sha1", f"--version-script={exports}")
        return (
            "-shared",
            f"-Wl,-soname={soname}",
            *(f"-Wl,{option}" for option in (*linker, "-z,relro", "-z,now")),
        )

    def _libraries(self) -> tuple[str, ...]:
        return (
            *(f"-L{folder}" for folder in self.site.recipe.link.library_folders),
            f"-L{self.site.toolkit.library_folder}",
            *(f"-l{name}" for name in self.site.recipe.link.libraries),
            *_RUNTIME,
        )

    def _step(
        self,
        name: str,
        argv: tuple[str, ...],
        reads: tuple[Path, ...],
        writes: Path,
        *,
        weight: float,
    ) -> Step:
        command = self.site.command(argv)
        return Step(name=name, command=command, reads=reads, writes=(writes,), weight=weight)


def check_library(
    path: Path, target: Target, *, identity: Identity, symbols: tuple[str, ...]
) -> None:
    """Read what the linker made, and compare it with what was planned.

    Raises:
        StepError: lists what is different.
    """
    library = read_library(path)
    faults = [one.text for one in plugin_faults(library, target, identity)]
    faults += [f"doesn't define {name}" for name in sorted(set(symbols) - library.exports)]
    faults += [f"exports {name}" for name in sorted(library.exports - set(symbols))]
    if calls := device_runtime_calls(path):
        raise StepError(
            f"the library for {target} calls {', '.join(sorted(calls))} of CUDA's device"
            " runtime, without which drivers link its PTX",
            hint=f"take {target} out of targets.ptx, or the kernels that start kernels out of the"
            " sources",
        )
    if faults:
        raise StepError(
            f"the library for {target} is not as planned:\n  " + "\n  ".join(faults),
            hint="each of [interface] symbols must be defined by a source, and visible: everything"
            ' is hidden but what has __attribute__((visibility("default")))',
        )


def _note_source(descriptor: Descriptor) -> str:
    """Assembler text of the descriptor's note; the same for every machine type."""
    note = encode_note(descriptor)
    rows = [note[at : at + _ROW] for at in range(0, len(note), _ROW)]
    lines = [
        f'    .section {NOTE_SECTION}, "a", %note',
        "    .p2align 2",
        *(f"    .byte {', '.join(map(str, row))}" for row in rows),
        '    .section .note.GNU-stack, "", %progbits',
    ]
    return "\n".join(lines) + "\n"
