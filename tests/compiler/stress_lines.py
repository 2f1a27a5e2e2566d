"""Random command lines of nvcc, drawn from what people and build systems write."""

from __future__ import annotations

import random
import shlex
from dataclasses import dataclass, field

from stress_sources import FAILING, GOOD

TARGETS = (
    "",
    "-arch=sm_80",
    "-arch=sm_90a",
    "-arch=compute_80 -code=sm_80,sm_86,compute_80",
    "-gencode arch=compute_80,code=sm_80",
    "--gpu-architecture=sm_86",
    "-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90",
    "-gencode arch=compute_80,code=[sm_80,sm_86] -gencode arch=compute_90,code=[sm_90,compute_90]",
    "--generate-code=arch=compute_90,code=sm_90 --generate-code=arch=compute_80,code=compute_80",
    "-gencode arch=compute_90a,code=sm_90a -gencode arch=compute_100f,code=sm_100f",
    "-gencode arch=compute_90,code=compute_90",
    "-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80"
    " -gencode arch=compute_90,code=sm_90",
)
TWO = TARGETS[6]
_ONE = ("", "-arch=sm_80", "-arch=sm_90a", "-gencode arch=compute_80,code=sm_80")

FLAGS = (
    "-O3",
    "-g",
    "-G",
    "-lineinfo",
    "-std=c++17",
    "-std=c++20",
    "--use_fast_math",
    "-maxrregcount=32",
    "--extended-lambda --expt-relaxed-constexpr",
    "-Xcompiler -fPIC",
    "-Xcompiler -fPIC,-Wall",
    "-Xcompiler=-fPIC -Xcompiler '-O1 -fno-rtti'",
    "-Xcompiler '-DPAIR=1\\,2'",
    "-Xptxas -O2",
    "-Xptxas -v",
    "-res-usage",
    "-Xptxas --warn-on-spills",
    "-Xfatbin -compress-all",
    "--compress-mode=size",
    "--no-compress",
    "-Xcudafe --diag_suppress=177",
    "-diag-suppress 177",
    "-w",
    "-Werror all-warnings",
    "--Wno-deprecated-gpu-targets",
    "-DTEXT='\"a b\"'",
    "'-DTEXT=\"it'\\''s, so\"'",
    "'-DBOX=std::map<int\\,float>'",
    "'-DSHELL=`echo 1`'",
    "'-DMONEY=$HOME'",
    "-I. '-Isub folder' -isystem sub",
    "-include k.h",
    "-D ONE_MORE=1 -U NOTHING",
    "-optf flags.txt",
    "-forward-unknown-to-host-compiler -fno-strict-aliasing",
    "--default-stream per-thread",
    "-m64",
    "-split-compile 2",
    "-dopt=on",
    "-lineinfo -src-in-ptx",
    "-ccbin g++",
    "-ccbin /usr/bin/g++",
    "-ccbin=/usr/bin",
    "-frandom-seed=seven",
    "--objdir-as-tempdir",
    "-v",
    "--no-such-flag",
)
PLACES = (
    "--keep",
    "--keep --keep-dir sub",
    "-save-temps",
    "-t 2",
    "--threads=0",
    "-t 1",
    "-objtemp",
    "--time times.csv",
    "-dryrun",
)
DEPENDENCIES = (
    "-MD",
    "-MMD",
    "-MD -MF deps.d",
    "-MMD -MP -MT 'the target' -MF 'sub folder/deps.P'",
    "-MD -MP",
    "-MD -MT k.o -MF k.o.d",
    "-MD -MF null",
    "-MMD -MF pipe -MT k.o",
    "-MMD -MT one -MT 'two\\ words'",
    "--generate-dependencies-with-compile",
    "--generate-nonsystem-dependencies-with-compile --generate-dependency-targets",
    "-MD --dependency-output=deps.d --dependency-target-name 'a target'",
)
SPECIAL = ("null", "pipe")
"""A device and a FIFO, which every run's folder has as outputs."""
SETTINGS = (
    {"NVCC_APPEND_FLAGS": "-DLATE -lineinfo"},
    {"NVCC_PREPEND_FLAGS": "-DEARLY=1"},
    {"NVCC_PREPEND_FLAGS": "-O1", "NVCC_APPEND_FLAGS": "-DLATE=2"},
    {"NVCC_CCBIN": "/usr/bin/g++"},
)
_SHARE_OF_FAILURES = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command line.

    Attributes:
        name: the seed and the number that draw it again.
        words: the arguments, as a shell reads them.
        environment: what is set besides what every run has.
        files: the files of options that the words name, with their texts.
    """

    name: str
    words: str
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def lines(seed: int, count: int) -> tuple[Line, ...]:
    """The first ``count`` command lines of a seed."""
    return tuple(line(seed, number) for number in range(count))


def line(seed: int, number: int) -> Line:
    """Return a command line of a seed, independent of the seed's other lines."""
    draw = _Draw(random.Random(f"{seed}:{number}"))
    words, environment = draw.words(), draw.environment()
    words, files = draw.moved_into_files(words)
    return Line(name=f"{seed}:{number}", words=words, environment=environment, files=files)


def _option_text(words: list[str]) -> str:
    """Words for a file of options: some quoted, some with backslashes before what is special."""
    texts = []
    for number, word in enumerate(words):
        escaped = word.replace("\\", "\\\\").replace('"', '\\"')
        plain = escaped.replace(" ", "\\ ").replace("'", "\\'")
        texts.append(f'"{escaped}"' if number % 2 else plain)
    return "\n".join(texts) + "\n"


class _Draw:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def words(self) -> str:
        kinds = {
            self._compile: 34,
            self._relocatable: 10,
            self._device: 14,
            self._executable: 10,
            self._shared: 5,
            self._archive: 5,
            self._linked: 8,
            self._preprocess: 4,
            self._listing: 5,
            self._host: 5,
        }
        (kind,) = self._chance.choices(list(kinds), list(kinds.values()))
        parts = kind()
        self._chance.shuffle(parts)
        return " ".join(part for part in parts if part)

    def environment(self) -> dict[str, str]:
        return dict(self._chance.choice(SETTINGS)) if self._often(0.08) else {}

    def moved_into_files(self, words: str) -> tuple[str, dict[str, str]]:
        """Some of the words, behind each other, go into a file, or into one that it names."""
        if not self._often(0.15):
            return words, {}
        given = shlex.split(words)
        first = self._chance.randrange(len(given))
        last = self._chance.randrange(first, len(given)) + 1
        moved = given[first:last]
        files = {"given.rsp": _option_text(moved)}
        if self._often(0.3):
            middle = self._chance.randrange(len(moved) + 1)
            files = {
                "given.rsp": _option_text([*moved[:middle], "--options-file", "sub folder/in.rsp"]),
                "sub folder/in.rsp": _option_text(moved[middle:]),
            }
        option = self._one_of("--options-file given.rsp", "-optf=given.rsp", "-optf given.rsp")
        return " ".join((shlex.join(given[:first]), option, shlex.join(given[last:]))), files

    def _often(self, share: float) -> bool:
        return self._chance.random() < share

    def _one_of(self, *choices: str) -> str:
        return self._chance.choice(choices)

    def _maybe(self, share: float, *choices: str) -> str:
        return self._chance.choice(choices) if self._often(share) else ""

    def _flags(self) -> list[str]:
        wanted = self._chance.choice((0, 0, 1, 1, 1, 2, 2, 3))
        return self._chance.sample(FLAGS, wanted)

    def _sources(self, *, at_most: int, extra: tuple[str, ...] = ()) -> list[str]:
        good = [name for name in GOOD if name.endswith(".cu")]
        wanted = self._chance.choice((1, 1, 1, min(2, at_most), at_most))
        names = self._chance.sample([*good, *extra], wanted)
        if self._often(_SHARE_OF_FAILURES):
            names.insert(self._chance.randrange(len(names) + 1), self._failing())
            names = names[-max(1, at_most) :]
        return [f"'{name}'" for name in dict.fromkeys(names)]

    def _failing(self) -> str:
        return self._chance.choice([*FAILING, "missing.cu"])

    def _output(self, sources: list[str], suffix: str) -> str:
        if len(sources) == 1 and self._often(0.15):
            return f"-o {self._chance.choice(SPECIAL)}"
        if len(sources) == 1:
            return self._maybe(
                0.7,
                f"-o k{suffix}",
                f"-o sub/k{suffix}",
                f"-o 'sub folder/k k{suffix}'",
                f"--output-file=out{suffix}",
                "-odir sub",
            )
        return self._maybe(0.3, "-odir sub")

    def _compile(self) -> list[str]:
        sources = self._sources(at_most=3, extra=("c.c", "p.cpp"))
        return [
            self._one_of("-c", "-c", "-c", "--compile"),
            " ".join(sources),
            self._output(sources, ".o"),
            self._one_of(*TARGETS),
            self._maybe(0.35, *DEPENDENCIES),
            self._maybe(0.2, *PLACES),
            self._maybe(0.1, "-rdc=true", "-rdc=false", "-x cu"),
            *self._flags(),
        ]

    def _relocatable(self) -> list[str]:
        sources = self._sources(at_most=2, extra=("d.cu", "u.cu"))
        lto = self._often(0.25)
        targets = ("-arch=lto_80", "-gencode arch=compute_80,code=[lto_80,sm_80]")
        return [
            self._one_of("-dc", "-rdc=true -c", "-dc", "-dw"),
            " ".join(sources),
            self._output(sources, ".o"),
            self._one_of(*targets, "-dlto -arch=sm_80") if lto else self._one_of(*TARGETS),
            self._maybe(0.3, *DEPENDENCIES),
            self._maybe(0.15, *PLACES),
            *self._flags(),
        ]

    def _device(self) -> list[str]:
        kind = self._one_of("-ptx", "-cubin", "-fatbin", "-cuda", "-optix-ir")
        many = kind in {"-fatbin", "-cuda"} or self._often(0.1)
        sources = self._sources(at_most=2)
        return [
            kind,
            " ".join(sources),
            self._output(sources, "." + kind.removeprefix("-")),
            self._one_of(*(TARGETS if many else _ONE)),
            self._maybe(0.2, *DEPENDENCIES),
            self._maybe(0.15, *PLACES),
            self._maybe(0.15, "-rdc=true"),
            *self._flags(),
        ]

    def _executable(self) -> list[str]:
        others = self._chance.sample(["k.cu", "c.c", "p.cpp", "q.cc", "n.cu", "b/k.cu"], 1)
        main = self._one_of("m.cu", "m.cu", "m.cu", "u.cu d.cu -rdc=true")
        failing = self._maybe(_SHARE_OF_FAILURES, "unresolved.cu", "u.cu", self._failing())
        return [
            failing or main,
            self._maybe(0.5, *others),
            self._maybe(0.7, "-o app", "-o sub/app"),
            self._one_of(*TARGETS[1:7]),
            self._maybe(0.3, "-rdc=true", "-cudart shared", "-dlto -arch=sm_80", "-lm"),
            self._maybe(0.15, *DEPENDENCIES),
            self._maybe(0.15, *PLACES),
            "-L${LIBRARIES}",
            *self._flags(),
        ]

    def _shared(self) -> list[str]:
        return [
            "-shared -Xcompiler -fPIC",
            self._one_of("k.cu", "k.cu n.cu", "n.cu p.cpp", "k.cu b/k.cu"),
            self._maybe(0.7, "-o lib.so", "-o sub/lib.so.1"),
            self._one_of(*TARGETS[1:7]),
            self._maybe(0.3, "-rdc=true", "-cudart shared", "-cudart none"),
            self._maybe(0.15, *DEPENDENCIES, *PLACES),
            "-L${LIBRARIES}",
            *self._flags(),
        ]

    def _archive(self) -> list[str]:
        return [
            "-lib",
            self._one_of("k.cu", "k.cu n.cu c.c", "k.cu b/k.cu", "d.cu u.cu -rdc=true", "r.o s.o"),
            "-o l.a",
            self._one_of(*TARGETS[1:7]),
            self._maybe(0.2, *DEPENDENCIES, *PLACES),
            *self._flags(),
        ]

    def _linked(self) -> list[str]:
        """From the objects r.o and s.o, made of d.cu and u.cu for sm_80 and sm_90."""
        kind = self._one_of("-dlink", "-dlink", "-dlink -fatbin", "-dlink -cubin", "", "-lib")
        failing = self._often(_SHARE_OF_FAILURES)
        return [
            kind,
            self._one_of("s.o", "r.o missing.o", "r.o -arch=sm_75") if failing else "r.o s.o",
            {"": "-o app", "-lib": "-o l.a"}.get(kind, "-o linked.o"),
            "-arch=sm_80" if kind == "-dlink -cubin" or self._often(0.4) else TWO,
            self._maybe(0.2, "-Xcompiler -fPIC", "-Xnvlink -v", "-G", "-rdc=true"),
            self._maybe(0.2, *PLACES),
            "-L${LIBRARIES}",
        ]

    def _preprocess(self) -> list[str]:
        sources = self._sources(at_most=2, extra=("p.cpp", "c.c"))
        return [
            "-E",
            " ".join(sources),
            self._output(sources, ".ii"),
            self._one_of(*TARGETS),
            *self._flags(),
        ]

    def _listing(self) -> list[str]:
        sources = self._sources(at_most=2, extra=("p.cpp", "c.c"))
        return [
            self._one_of(
                *("-M", "-MM", "-M -c"),
                *("--generate-dependencies", "--generate-nonsystem-dependencies"),
            ),
            " ".join(sources),
            self._maybe(0.4, "-MF deps.d", "-MF null", "-MF pipe"),
            self._maybe(0.4, "-MT target", "-MT 'a target'", "-MP", "-odir sub"),
            self._maybe(0.3, "-o k.d", "-o null", "-o pipe", "-o sub/none"),
            self._one_of(*TARGETS),
        ]

    def _host(self) -> list[str]:
        names = [name for name in (*GOOD, *FAILING) if not name.endswith(".cu")]
        chosen = [
            f"'{name}'" for name in self._chance.sample(names, self._chance.choice((1, 1, 2)))
        ]
        return [
            "-c",
            " ".join(chosen),
            self._output(chosen, ".o"),
            self._maybe(0.4, *DEPENDENCIES),
            self._maybe(0.5, *TARGETS),
            *self._flags(),
        ]
