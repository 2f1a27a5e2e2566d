"""Command lines of nvcc of which there is a recorded transcript; data, and its reader.

`record_transcripts.py` asks a real nvcc about each of them; the answers are in ``transcripts``, a
folder for each release. The command lines are written as a shell would read them.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path

TRANSCRIPTS = Path(__file__).parent / "transcripts"
KEPT = ("--keep", "--keep-dir", "${FOLDER}")
"""The prefix of a command line with --keep; the private folder is absolute."""

_TWO = "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90"
_MANY = (
    "-gencode arch=compute_75,code=sm_75 -gencode arch=compute_80,code=sm_80"
    " -gencode arch=compute_86,code=sm_86 -gencode arch=compute_90,code=sm_90"
    " -gencode arch=compute_90,code=compute_90"
)

SOURCES = {
    "k.cu": '#include "k.h"\n__global__ void fill(float* x) { x[threadIdx.x] = ONE; }\n',
    "k.h": "#define ONE 1.0f\n",
    "b/k.cu": "__global__ void other(float* x) { *x = 2.0f; }\n",
    "m.cu": "__global__ void main_kernel() {}\nint main() { main_kernel<<<1, 1>>>(); }\n",
    "c.c": "int c(void) { return 1; }\n",
    "p.cpp": "int p() { return 1; }\n",
    "q.cc": "int q() { return 1; }\n",
    "plain.txt": "__global__ void text() {}\n",
    "two words.cu": "__global__ void spaced() {}\n",
    "it's.cu": "__global__ void quoted() {}\n",
    "a,b.cu": "__global__ void listed() {}\n",
    "dotted.name.cu": "__global__ void dotted() {}\n",
    "flags.txt": '-gencode arch=compute_80,code=sm_80\n-DFROM_FILE="a b" -O2\n',
    "x.o": "",
    "y.o": "",
    "l.a": "",
    "k.ptx": "",
    "k.cubin": "",
    "k.fatbin": "",
    "sub folder/z.h": "#define Z 1\n",
}
"""The files of nvcc's folder; objects may be empty, because a dry run compiles nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A command line for a dry run.

    Attributes:
        name: of the recorded file.
        line: the arguments, in a shell's quotes.
        environment: what is set besides PATH.
        is_kept: nvcc is asked with ``--keep --keep-dir`` and a private folder.
    """

    name: str
    line: str
    environment: dict[str, str] = field(default_factory=dict)
    is_kept: bool = True

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments after ``nvcc --dryrun``, with a placeholder for the private folder."""
        return (*(KEPT if self.is_kept else ()), *shlex.split(self.line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The recorded output of a dry run, with placeholders for folders."""

    returncode: int
    stdout: str
    stderr: str

    def at(self, **folders: Path) -> Recorded:
        """The same, with the placeholders TOOLKIT, FOLDER and CWD replaced."""
        texts = [self.stdout, self.stderr]
        for name, folder in folders.items():
            texts = [text.replace(f"${{{name}}}", str(folder)) for text in texts]
        return Recorded(returncode=self.returncode, stdout=texts[0], stderr=texts[1])


def recorded(release: str, name: str) -> Recorded:
    """Read the recorded output of a release, "13.0", for a situation."""
    text = (TRANSCRIPTS / release / f"{name}.txt").read_text()
    head, _, rest = text.partition("\n--- stdout\n")
    stdout, _, stderr = rest.partition("--- stderr\n")
    for short, long in repeated(release).items():
        stderr = stderr.replace(short, long)
    returncode = int(head.rpartition("exit ")[2])
    return Recorded(returncode=returncode, stdout=stdout, stderr=stderr)


def repeated(release: str) -> dict[str, str]:
    """Return the long texts that most transcripts of a release share, by placeholder."""
    texts: dict[str, str] = json.loads((TRANSCRIPTS / release / "repeated.json").read_text())
    return texts


def written(situation: Situation, answer: Recorded) -> str:
    """Return the text of the file that `recorded` reads."""
    settings = [f"{name}={shlex.quote(text)}" for name, text in situation.environment.items()]
    kept = KEPT if situation.is_kept else ()
    command = " ".join((*settings, "nvcc", "--dryrun", *kept, situation.line))
    answers = f"--- stdout\n{answer.stdout}--- stderr\n{answer.stderr}"
    return f"$ {command}\nexit {answer.returncode}\n{answers}"


def _group(prefix: str, *, is_kept: bool = True, **lines: str) -> tuple[Situation, ...]:
    return tuple(
        Situation(
            name="-".join(filter(None, (prefix, name.replace("_", "-").strip("-")))),
            line=line,
            is_kept=is_kept,
        )
        for name, line in lines.items()
    )


COMPILING = (
    *_group(
        "compile",
        default="-c k.cu",
        arch="-c k.cu -o k.o -arch=sm_80",
        arch_a="-c k.cu -o k.o -arch=sm_90a",
        arch_f="-c k.cu -o k.o -arch=sm_100f",
        arch_all="-c k.cu -o k.o -arch=all",
        arch_all_major="-c k.cu -o k.o -arch=all-major",
        arch_and_code="-c k.cu -o k.o -arch=compute_80 -code=sm_80,sm_86",
        arch_and_virtual="-c k.cu -o k.o -arch=compute_80 -code=sm_80,compute_80",
        one="-c k.cu -o k.o -gencode arch=compute_80,code=sm_80",
        two=f"-c k.cu -o k.o {_TWO}",
        many=f"-c k.cu -o k.o {_MANY}",
        families="-c k.cu -o k.o -gencode arch=compute_90a,code=sm_90a"
        " -gencode arch=compute_100f,code=sm_100f -gencode arch=compute_120a,code=sm_120a",
        code_list="-c k.cu -o k.o -gencode arch=compute_80,code=[sm_80,sm_86]",
        code_list_with_ptx="-c k.cu -o k.o"
        " -gencode 'arch=compute_80,code=[sm_80,sm_86,compute_80]'",
        code_lists="-c k.cu -o k.o -gencode arch=compute_80,code=[sm_80,sm_86]"
        " -gencode arch=compute_90,code=[sm_90,compute_90]",
        gencode_long="-c k.cu -o k.o --generate-code=arch=compute_80,code=sm_80"
        " --generate-code arch=compute_90,code=sm_90",
        gencode_quoted="-c k.cu -o k.o '-gencode=arch=compute_80,code=\"sm_80,compute_80\"'",
        gencode_order="-c k.cu -o k.o -gencode arch=compute_90,code=sm_90"
        " -gencode arch=compute_80,code=sm_80",
        gencode_twice="-c k.cu -o k.o -gencode arch=compute_80,code=sm_80"
        " -gencode arch=compute_80,code=sm_80",
        same_virtual_apart="-c k.cu -o k.o -gencode arch=compute_80,code=sm_80"
        " -gencode arch=compute_80,code=sm_86",
        ptx_only="-c k.cu -o k.o -gencode arch=compute_80,code=compute_80",
        ptx_only_new="-c k.cu -o k.o -gencode arch=compute_90,code=compute_90",
        ptx_only_two="-c k.cu -o k.o -gencode arch=compute_80,code=compute_80"
        " -gencode arch=compute_90,code=compute_90",
        sass_and_other_ptx="-c k.cu -o k.o -gencode arch=compute_80,code=sm_80"
        " -gencode arch=compute_120,code=compute_120",
        debug=f"-c k.cu -o k.o -G -g {_TWO}",
        lineinfo=f"-c k.cu -o k.o -lineinfo {_TWO}",
        optimised="-c k.cu -o k.o -O3 --use_fast_math -maxrregcount=32 --extended-lambda"
        " --expt-relaxed-constexpr -arch=sm_80",
        ptxas_flags="-c k.cu -o k.o -Xptxas -v,-O2 -Xptxas --warn-on-spills -arch=sm_80",
        res_usage="-c k.cu -o k.o -res-usage -arch=sm_80",
        cudafe_flags="-c k.cu -o k.o -Xcudafe --diag_suppress=177 -diag-suppress 20012"
        " -Werror all-warnings -arch=sm_80",
        nvlink_flags="k.cu -o app -rdc=true -Xnvlink -v -Xlinker -rpath,. -arch=sm_80",
        archive_flags="-lib k.cu -o l.a -Xarchive -v -arch=sm_80",
        fatbin_flags="-c k.cu -o k.o -Xfatbin -compress-all,-compress-level=1 -arch=sm_80",
        compress_mode="-c k.cu -o k.o --compress-mode=size -arch=sm_80",
        no_compress="-c k.cu -o k.o --no-compress -arch=sm_80",
        host_flags="-c k.cu -o k.o -Xcompiler -fPIC,-Wall -Xcompiler '-O1 -g' -arch=sm_80",
        host_comma="-c k.cu -o k.o -Xcompiler '-DPAIR=1\\,2' -arch=sm_80",
        forward_unknown="-c k.cu -o k.o -forward-unknown-to-host-compiler -fno-rtti"
        " -forward-unknown-opts -march=x86-64 -arch=sm_80",
        split_compile=f"-c k.cu -o k.o -split-compile 2 {_TWO}",
        split_compile_all=f"-c k.cu -o k.o -split-compile=0 {_TWO}",
        standard="-c k.cu -o k.o -std=c++20 -arch=sm_80",
        standard_14="-c k.cu -o k.o -std=c++14 -arch=sm_80",
        machine="-c k.cu -o k.o -m64 -arch=sm_80",
        frandom_seed="-c k.cu -o k.o -frandom-seed seven -arch=sm_80",
        static_stub="-c k.cu -o k.o -static-global-template-stub=false -arch=sm_80",
        device_visible="-c k.cu -o k.o -device-entity-has-hidden-visibility=false -arch=sm_80",
        default_stream="-c k.cu -o k.o --default-stream per-thread -arch=sm_80",
        extra_device="-c k.cu -o k.o -extra-device-vectorization -dopt=on -arch=sm_80",
        includes="-c k.cu -o k.o -I. '-Isub folder' -isystem 'sub folder' -include k.h -arch=sm_80",
        into_folder="-c k.cu -o sub/dir/k.o -arch=sm_80",
        into_missing_folder="-c k.cu -o no/such/k.o -arch=sm_80",
        output_dir="-c k.cu -odir sub -arch=sm_80",
        dotted_name="-c dotted.name.cu -arch=sm_80",
        as_cu="-c -x cu plain.txt -o k.o -arch=sm_80",
        as_cu_cpp="-c -x cu p.cpp -o k.o -arch=sm_80",
        as_cpp="-c -x c++ k.cu -o k.o -arch=sm_80",
        without_output="-c b/k.cu -arch=sm_80",
        object_name="-c k.cu -o k -arch=sm_80",
        run_too="-run m.cu -o app -arch=sm_80",
        no_device_link="m.cu -o app -nodlink -rdc=true -arch=sm_80",
        no_host_device_initialiser="-c k.cu -o k.o --no-host-device-initializer-list -arch=sm_80",
        ofast="-c k.cu -o k.o --Ofast-compile max -arch=sm_80",
        time_trace="-c k.cu -o k.o -fdevice-time-trace trace.json -arch=sm_80",
        jobserver=f"-c k.cu -o k.o --jobserver {_TWO}",
        device_syntax_only="-c k.cu -fdevice-syntax-only -arch=sm_80",
        sanitize="-c k.cu -o k.o -fdevice-sanitize=memcheck -arch=sm_80",
        relocatable_ptx="-c k.cu -o k.o -rdc=true -relocatable-ptx"
        " -gencode arch=compute_80,code=compute_80",
        optimization_info="-c k.cu -o k.o -opt-info inline -arch=sm_80",
        entries="-c k.cu -o k.o -e fill -arch=sm_80",
        astoolspatch="-cubin k.cu -o k.cubin -astoolspatch -arch=sm_80",
        trace_of_includes="-c k.cu -o k.o -Xcompiler -H -arch=sm_80",
        warnings_off="-c k.cu -o k.o -w -Wno-deprecated-gpu-targets -arch=sm_75",
        werror="-c k.cu -o k.o -Werror cross-execution-space-call -Wreorder -arch=sm_80",
        profile="-c k.cu -o k.o -pg -arch=sm_80",
        undefine="-c k.cu -o k.o -UNDEBUG -DNDEBUG=1 -arch=sm_80",
        allow_unsupported="-c k.cu -o k.o -allow-unsupported-compiler -arch=sm_80",
        verbose="-c k.cu -o k.o -v -arch=sm_80",
    ),
)
DEFINES = _group(
    "define",
    spaces="-c k.cu -o k.o '-DTEXT=\"a b\"' -arch=sm_80",
    apostrophe='-c k.cu -o k.o "-DTEXT=it\'s" -arch=sm_80',
    commas="-c k.cu -o k.o '-DBOX=std::map<int,float>' -arch=sm_80",
    escaped='-c k.cu -o k.o \'-DTEXT="a\\n\\\\b, \\"c\\""\' -arch=sm_80',
    shell_signs="-c k.cu -o k.o '-DALL=( a|b;c&d )' -arch=sm_80",
    dollar="-c k.cu -o k.o '-DHOME_IS=$HOME' -arch=sm_80",
    backticks="-c k.cu -o k.o '-DNAME=`uname`' -arch=sm_80",
    substitution="-c k.cu -o k.o '-DNAME=$(uname)' -arch=sm_80",
    host_only="-c p.cpp -o p.o '-DTEXT=\"a b\"' '-DBOX=std::map<int,float>'",
    host_only_dollar="-c p.cpp -o p.o '-DHOME_IS=$HOME'",
    separate="-c k.cu -o k.o -D ONE=1 -U TWO -I . -arch=sm_80",
    empty="-c k.cu -o k.o -DEMPTY= -arch=sm_80",
)
PATHS = _group(
    "path",
    spaces="-c 'two words.cu' -o 'two words.o' -arch=sm_80",
    spaces_two=f"-c 'two words.cu' -o 'sub folder/two words.o' {_TWO}",
    apostrophe='-c "it\'s.cu" -arch=sm_80',
    comma="-c a,b.cu -arch=sm_80",
    escaped_comma="-c 'a\\,b.cu' -o 'a\\,b.o' -arch=sm_80",
    absolute="-c ${CWD}/k.cu -o ${CWD}/k.o -arch=sm_80",
    dotted="-c ./b/../b/k.cu -o ./k.o -arch=sm_80",
    missing="-c missing.cu -o k.o -arch=sm_80",
    two_to_one="-c k.cu m.cu -o k.o -arch=sm_80",
    two_to_many="-c k.cu m.cu -odir sub -arch=sm_80",
)
RELOCATABLE = _group(
    "rdc",
    compile="-dc k.cu -o k.o -arch=sm_80",
    compile_two=f"-dc k.cu -o k.o {_TWO}",
    compile_many=f"-rdc=true -c k.cu -o k.o {_MANY}",
    compile_inputs=f"-dc k.cu m.cu {_TWO}",
    dw="-dw k.cu -o k.o -arch=sm_80",
    debug="-dc -G k.cu -o k.o -arch=sm_80",
    dlink="-dlink x.o y.o -o d.o -arch=sm_80",
    dlink_two=f"-dlink x.o y.o -o d.o {_TWO}",
    dlink_many=f"-dlink x.o y.o -o d.o {_MANY}",
    dlink_default="-dlink x.o y.o -arch=sm_80",
    dlink_archive=f"-dlink x.o l.a -L. -lz -lcudadevrt -o d.o {_TWO}",
    dlink_pic=f"-dlink x.o -o d.o -Xcompiler -fPIC {_TWO}",
    dlink_debug="-dlink x.o -o d.o -G -arch=sm_80",
    dlink_sources=f"-dlink k.cu m.cu -rdc=true -o d.o {_TWO}",
    dlink_cubin="-dlink x.o -cubin -o d.cubin -arch=sm_80",
    dlink_fatbin=f"-dlink x.o -fatbin -o d.fatbin {_TWO}",
    link=f"x.o y.o -o app -rdc=true {_TWO}",
    link_one="x.o y.o -o app -rdc=true -arch=sm_80",
    link_without="x.o y.o -o app -arch=sm_80",
    link_two_without=f"x.o y.o -o app {_TWO}",
    executable=f"-rdc=true m.cu k.cu -o app {_TWO}",
    executable_one="-rdc=true m.cu k.cu -o app -arch=sm_80",
    shared=f"-rdc=true -shared -Xcompiler -fPIC k.cu m.cu -o l.so {_TWO}",
)
LTO = _group(
    "lto",
    code="-c k.cu -o k.o -gencode arch=compute_80,code=lto_80",
    code_rdc="-dc k.cu -o k.o -gencode arch=compute_80,code=lto_80",
    code_and_sass="-dc k.cu -o k.o -gencode arch=compute_80,code=lto_80"
    " -gencode arch=compute_90,code=sm_90",
    code_list="-dc k.cu -o k.o -gencode arch=compute_80,code=[lto_80,sm_80]",
    two="-dc k.cu -o k.o -gencode arch=compute_80,code=lto_80 -gencode arch=compute_90,code=lto_90",
    arch="-dc k.cu -o k.o -arch=lto_80",
    dlto_compile="-dlto -dc k.cu -o k.o -arch=sm_80",
    dlto_compile_two=f"-dlto -dc k.cu -o k.o {_TWO}",
    dlto_whole="-dlto -c k.cu -o k.o -arch=sm_80",
    dlto_dlink="-dlto -dlink x.o y.o -o d.o -arch=sm_80",
    dlto_dlink_two=f"-dlto -dlink x.o y.o -o d.o {_TWO}",
    dlto_executable="-dlto m.cu k.cu -o app -arch=sm_80",
    dlto_link_two=f"-dlto -rdc=true x.o y.o -o app {_TWO}",
    dlto_ptx="-dlto -dlink x.o -o d.o -ptx -arch=sm_80",
    ltoir="-ltoir -dlto k.cu -o k.ltoir -arch=lto_80",
    ltoir_alone="-ltoir k.cu -o k.ltoir -arch=lto_80",
    ltoir_rdc="-ltoir -dlto -rdc=true k.cu -arch=sm_80",
    gen_opt_lto="-dlink -gen-opt-lto x.o -o d.o -arch=sm_80",
    split="-dlto -dlink -split-compile-extended=2 x.o -o d.o -arch=sm_80",
)
LINKING = _group(
    "link",
    executable="m.cu -o app -arch=sm_80",
    executable_two=f"m.cu k.cu -o app {_TWO}",
    executable_default="m.cu",
    mixed=f"m.cu c.c p.cpp q.cc x.o l.a -o app {_TWO}",
    shared=f"-shared -Xcompiler -fPIC k.cu -o libk.so {_TWO}",
    shared_objects="-shared x.o y.o -o libk.so -arch=sm_80",
    objects="x.o y.o -o app",
    objects_and_libraries="x.o -o app -L. -lz -lm -Xlinker -rpath,. -Xlinker --as-needed",
    cudart_shared="m.cu -o app -cudart shared -arch=sm_80",
    cudart_none="m.cu -o app -cudart none -arch=sm_80",
    host_only="c.c p.cpp -o app",
    linker_flags="x.o -o app -Xlinker '-rpath=${CWD}/a b' -Xcompiler -pthread",
)
ARCHIVES = _group(
    "lib",
    one="-lib k.cu -o l.a -arch=sm_80",
    mixed=f"-lib k.cu c.c p.cpp x.o -o l.a {_TWO}",
    objects="-lib x.o y.o -o l.a",
    default="-lib k.cu -arch=sm_80",
    rdc=f"-lib -rdc=true k.cu m.cu -o l.a {_TWO}",
    same_name="-lib k.cu b/k.cu -o l.a -arch=sm_80",
)
INPUTS = _group(
    "inputs",
    cu_two=f"-c k.cu m.cu {_TWO}",
    mixed="-c k.cu c.c p.cpp q.cc -arch=sm_80",
    host_only="-c c.c p.cpp",
    c="-c c.c -o c.o",
    cpp="-c p.cpp -o p.o",
    cpp_optimised="-c p.cpp -o p.o -O2 -g -std=c++17 -Xcompiler -fPIC -arch=sm_80",
    same_name=f"-c k.cu b/k.cu {_TWO}",
    same_name_executable="m.cu k.cu b/k.cu -o app -arch=sm_80",
    same_name_rdc=f"-rdc=true m.cu k.cu b/k.cu -o app {_TWO}",
    ptx="-dc k.ptx -o k.o -arch=sm_80",
    ptx_whole="-c k.ptx -o k.o -arch=sm_80",
    ptx_to_cubin="-cubin k.ptx -o k.cubin -arch=sm_80",
    ptx_to_fatbin="-fatbin k.ptx -o k.fatbin -arch=sm_80",
    cubin_to_fatbin="-fatbin k.cubin -o k.fatbin -arch=sm_80",
    standard_input="-x cu -c - -o k.o -arch=sm_80",
    none="-c -o k.o -arch=sm_80",
)
DEVICE = _group(
    "device",
    ptx="-ptx k.cu -o k.ptx -arch=sm_80",
    ptx_default="-ptx k.cu -arch=compute_80",
    ptx_many=f"-ptx k.cu m.cu {_TWO}",
    ptx_inputs="-ptx k.cu m.cu -arch=sm_80",
    ptx_gencode="-ptx k.cu -gencode arch=compute_80,code=compute_80",
    cubin="-cubin k.cu -o k.cubin -arch=sm_80",
    cubin_default="-cubin k.cu -gencode arch=compute_80,code=sm_80",
    cubin_inputs="-cubin k.cu m.cu -arch=sm_80",
    cubin_rdc="-cubin -rdc=true k.cu -arch=sm_80",
    cubin_two=f"-cubin k.cu {_TWO}",
    fatbin="-fatbin k.cu -o k.fatbin -arch=sm_80",
    fatbin_two=f"-fatbin k.cu -o k.fatbin {_TWO}",
    fatbin_many=f"-fatbin k.cu {_MANY}",
    fatbin_rdc=f"-fatbin -rdc=true k.cu {_TWO}",
    fatbin_inputs=f"-fatbin k.cu m.cu {_TWO}",
    cuda="-cuda k.cu -arch=sm_80",
    cuda_two=f"-cuda k.cu -o k.cu.cpp.ii {_TWO}",
    optix_ir="-optix-ir k.cu -arch=sm_80",
)
PREPROCESSING = _group(
    "preprocess",
    one="-E k.cu -arch=sm_80",
    two=f"-E k.cu {_TWO}",
    to_file="-E k.cu -o k.ii -arch=sm_80",
    inputs="-E k.cu p.cpp c.c -arch=sm_80",
    host="-E p.cpp",
    rdc="-E -rdc=true k.cu -arch=sm_80",
    lines_off="-E -Xcompiler -P k.cu -arch=sm_80",
)
DEPENDENCIES = _group(
    "depend",
    M="-M k.cu -arch=sm_80",
    M_two=f"-M k.cu {_TWO}",
    M_to_file=f"-M k.cu -o k.d {_TWO}",
    M_MF=f"-M k.cu -MF k.d {_TWO}",
    M_MT=f"-M k.cu -MT 'a target' {_TWO}",
    M_inputs=f"-M k.cu p.cpp c.c {_TWO}",
    MM=f"-MM k.cu {_TWO}",
    MM_host="-MM p.cpp",
    MD="-MD -c k.cu -o k.o -arch=sm_80",
    MD_two=f"-MD -c k.cu -o k.o {_TWO}",
    MD_many=f"-MD -c k.cu -o sub/k.o {_MANY}",
    MMD_two=f"-MMD -c k.cu -o k.o {_TWO}",
    MD_MF=f"-MD -MF 'sub folder/k.d' -c k.cu -o k.o {_TWO}",
    MD_MT=f"-MD -MT k.o -MF k.o.d -MP -c k.cu -o k.o {_TWO}",
    MD_MQ="-MD -MT k.o -MQ k.o -MF k.o.d -c k.cu -o k.o -arch=sm_80",
    MD_inputs=f"-MD -c k.cu m.cu p.cpp c.c {_TWO}",
    MD_same_name="-MD -c k.cu b/k.cu -arch=sm_80",
    MD_rdc=f"-MD -dc k.cu -o k.o {_TWO}",
    MD_ptx="-MD -ptx k.cu -arch=sm_80",
    MD_cubin="-MD -cubin k.cu -arch=sm_80",
    MD_fatbin=f"-MD -fatbin k.cu {_TWO}",
    MD_host="-MD -c p.cpp -o p.o",
    MD_c="-MMD -MP -MF c.d -c c.c -o c.o",
    MD_executable=f"-MD m.cu k.cu -o app {_TWO}",
    MD_lib=f"-MD -lib k.cu c.c -o l.a {_TWO}",
    MD_only_ptx="-MD -c k.cu -o k.o -gencode arch=compute_90,code=compute_90",
    MD_E="-MD -E k.cu -arch=sm_80",
    MD_threads=f"-MD -t 2 -c k.cu -o k.o {_TWO}",
    torch="-MD -MF k.o.d -c k.cu -o k.o -D__CUDA_NO_HALF_OPERATORS__"
    " --expt-relaxed-constexpr -gencode=arch=compute_80,code=compute_80"
    " -gencode=arch=compute_80,code=sm_80 --compiler-options '-fPIC' -std=c++17",
    cmake="-forward-unknown-to-host-compiler -I. -O3 -DNDEBUG -std=c++17"
    " --generate-code=arch=compute_80,code=[compute_80,sm_80] -Xcompiler=-fPIC"
    " -MD -MT CMakeFiles/k.dir/k.cu.o -MF CMakeFiles/k.dir/k.cu.o.d -x cu -c k.cu"
    " -o CMakeFiles/k.dir/k.cu.o",
)
PLACES = (
    *_group(
        "place",
        is_kept=False,
        plain="-c k.cu -o k.o -arch=sm_80",
        plain_two=f"-c k.cu -o k.o {_TWO}",
        plain_same_name=f"-c k.cu b/k.cu {_TWO}",
        plain_inputs="-c k.cu c.c p.cpp -arch=sm_80",
        plain_link="m.cu k.cu -o app -arch=sm_80",
        plain_rdc=f"-rdc=true m.cu k.cu -o app {_TWO}",
        plain_dlink=f"-dlink x.o y.o -o d.o {_TWO}",
        plain_lib=f"-lib k.cu c.c -o l.a {_TWO}",
        plain_ptx="-ptx k.cu -arch=sm_80",
        plain_fatbin=f"-fatbin k.cu {_TWO}",
        plain_depend=f"-MD -c k.cu -o k.o {_TWO}",
        keep="--keep -c k.cu -o k.o -arch=sm_80",
        keep_two=f"--keep -c k.cu -o sub/k.o {_TWO}",
        keep_dir=f"--keep --keep-dir sub -c k.cu -o k.o {_TWO}",
        keep_same_name=f"--keep -c k.cu b/k.cu {_TWO}",
        keep_rdc=f"--keep -rdc=true m.cu k.cu -o app {_TWO}",
        save_temps="--save-temps -c k.cu -o k.o -arch=sm_80",
        save_temps_single="-save-temps -c k.cu -o k.o -arch=sm_80",
        objtemp="-objtemp -c k.cu -o sub/k.o -arch=sm_80",
        objtemp_executable="-objtemp m.cu k.cu -o sub/app -arch=sm_80",
        threads=f"-t 2 -c k.cu -o k.o {_TWO}",
        threads_long=f"--threads=0 -c k.cu m.cu {_TWO}",
        clean="-clean --keep -c k.cu -o k.o -arch=sm_80",
        ccbin="-ccbin /usr/bin/g++ -c k.cu -o k.o -arch=sm_80",
    ),
    *_group(
        "place",
        kept_twice=f"--keep -c k.cu -o k.o {_TWO}",
        kept_elsewhere=f"--keep --keep-dir sub -c k.cu -o k.o {_TWO}",
        kept_save_temps="--save-temps -c k.cu -o k.o -arch=sm_80",
        kept_objtemp="-objtemp -c k.cu -o sub/k.o -arch=sm_80",
        kept_threads=f"-t 2 -c k.cu -o k.o {_TWO}",
        kept_threads_inputs=f"-t 0 -c k.cu m.cu {_TWO}",
        kept_clean="-clean -c k.cu -o k.o -arch=sm_80",
    ),
)
HOSTS = _group(
    "host",
    ccbin="-ccbin /usr/bin/g++ -c k.cu -o k.o -arch=sm_80",
    ccbin_name="-ccbin g++ -c k.cu -o k.o -arch=sm_80",
    ccbin_gcc="-ccbin gcc m.cu c.c -o app -arch=sm_80",
    ccbin_long="--compiler-bindir=/usr/bin/g++ m.cu p.cpp -o app -arch=sm_80",
    ccbin_folder="-ccbin /usr/bin -c k.cu -o k.o -arch=sm_80",
    ccbin_rdc=f"-ccbin /usr/bin/g++ -rdc=true m.cu -o app {_TWO}",
    ccbin_lib="-ccbin /usr/bin/g++ -lib k.cu -o l.a -arch=sm_80",
)
WORDS = (
    *_group(
        "words",
        options_file="-optf flags.txt -c k.cu -o k.o",
        options_file_long="--options-file flags.txt -c k.cu -o k.o",
        at_file="-c k.cu -o k.o @flags.txt",
        time="--time times.csv -c k.cu -o k.o -arch=sm_80",
        time_stdout="--time - -c k.cu -o k.o -arch=sm_80",
        unknown="-c k.cu -o k.o --no-such-flag",
        unknown_target="-c k.cu -o k.o -arch=sm_19",
        repeated_output="-c k.cu -o a.o -o b.o",
        native="-c k.cu -o k.o -arch=native",
        help="--help-me",
        list_codes="--list-gpu-code",
        version="--version",
        dry_quiet="-Xcompiler -w -c k.cu -o k.o -arch=sm_80",
        old_target="-c k.cu -o k.o -arch=sm_70",
    ),
    Situation(
        name="words-prepended",
        line="-c k.cu -o k.o",
        environment={"NVCC_PREPEND_FLAGS": '-DBEFORE="ab" -arch=sm_80'},
    ),
    Situation(
        name="words-prepended-spaces",
        line="-c k.cu -o k.o",
        environment={"NVCC_PREPEND_FLAGS": "-DBEFORE='a b' -arch=sm_80"},
    ),
    Situation(
        name="words-appended",
        line="-c k.cu -o k.o",
        environment={"NVCC_APPEND_FLAGS": "-arch=sm_80 -lineinfo"},
    ),
    Situation(
        name="words-both",
        line="-c k.cu -o k.o -DHERE",
        environment={"NVCC_PREPEND_FLAGS": "-DFIRST", "NVCC_APPEND_FLAGS": "-DLAST -arch=sm_80"},
    ),
    Situation(
        name="words-ccbin-variable",
        line="-c k.cu -o k.o -arch=sm_80",
        environment={"NVCC_CCBIN": "/usr/bin/g++"},
    ),
    Situation(
        name="place-tmpdir",
        line="-c k.cu -o k.o -arch=sm_80",
        environment={"TMPDIR": "${CWD}/sub"},
        is_kept=False,
    ),
    Situation(
        name="place-kept-tmpdir",
        line="-c k.cu -o k.o -arch=sm_80",
        environment={"TMPDIR": "${CWD}/sub"},
    ),
)

_SHAPES = """
compile: default arch arch-a arch-f arch-and-code two many families code-list code-lists
compile: gencode-order ptx-only ptx-only-new debug split-compile host-flags into-missing-folder
compile: as-cu run-too jobserver
define: spaces dollar backticks host-only
path: spaces comma missing
rdc: compile compile-two dlink dlink-two dlink-archive dlink-cubin dlink-fatbin link link-without
rdc: executable shared
lto: code-rdc code-and-sass code-list two dlto-compile dlto-dlink dlto-dlink-two dlto-executable
lto: dlto-ptx ltoir
link: executable-two mixed shared objects-and-libraries cudart-shared host-only
lib: one mixed objects
inputs: cu-two mixed c cpp same-name ptx ptx-to-cubin ptx-to-fatbin standard-input none
device: ptx ptx-inputs cubin cubin-two fatbin fatbin-many fatbin-rdc cuda-two optix-ir
preprocess: one two inputs
depend: M M-two M-to-file MM-host MD MD-two MMD-two MD-MF MD-MT MD-inputs MD-rdc MD-ptx MD-fatbin
depend: MD-executable cmake torch
place: plain plain-two plain-same-name plain-rdc keep-dir kept-elsewhere save-temps objtemp
place: kept-objtemp threads kept-threads tmpdir
host: ccbin ccbin-rdc
words: options-file time time-stdout unknown unknown-target prepended appended
"""
SITUATIONS = (
    *COMPILING,
    *DEFINES,
    *PATHS,
    *RELOCATABLE,
    *LTO,
    *LINKING,
    *ARCHIVES,
    *INPUTS,
    *DEVICE,
    *PREPROCESSING,
    *DEPENDENCIES,
    *PLACES,
    *HOSTS,
    *WORDS,
)

SHAPES = tuple(
    next(situation for situation in SITUATIONS if situation.name == f"{group}-{name}")
    for group, _, names in (line.partition(": ") for line in _SHAPES.split("\n") if line)
    for name in names.split()
)
"""Situations with a transcript of every release; the others have one of 13.0."""

TILE = tuple(
    Situation(name=f"tile-{name}", line=line)
    for name, line in {
        "two": f"-enable-tile {_TWO} -c k.cu -o k.o",
        "only": "--tile-only -arch=sm_100 -c k.cu -o k.o",
        "rdc": "-enable-tile -rdc=true -arch=sm_100 -c k.cu -o k.o",
        "MMD": "-enable-tile -MMD -MF k.d -arch=sm_100 -c k.cu -o k.o",
    }.items()
)
"""Tile kernels, which nvcc compiles since 13.3; there is a transcript of 13.4."""
