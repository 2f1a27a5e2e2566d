"""Command lines whose dependency files were recorded from real runs; data, and its reader.

A file of ``transcripts/dependencies`` has what nvcc wrote and, as the input of it, the line markers
of each file that was preprocessed, in nvcc's order. An almost empty ``cuda_runtime.h`` beside the
sources is found before the toolkit's, so that the lists are short.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nvcc_situations import TRANSCRIPTS, Situation

_TWO = "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90"
_PART = re.compile(r"^--- (markers|file|stdout) ?(.*)\n", re.MULTILINE)

SOURCES = {
    "cuda_runtime.h": "\n",
    "k.cu": '#include "k.h"\n#include <s.h>\n#include "sub folder/z.h"\n'
    '#include "./inc/../inc/i.h"\n#include "inc/i.h"\n#include "k.h"\n'
    "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 800\n"
    '#include "only80.h"\n'
    "#elif defined(__CUDA_ARCH__)\n"
    '#include "only90.h"\n'
    "#else\n"
    '#include "host.h"\n'
    "#endif\n"
    '#include "last.h"\nint f() { return 0; }\n',
    "k.h": '#include "k2.h"\n',
    "k2.h": "\n",
    "sys/s.h": '#include "s2.h"\n',
    "sys/s2.h": "\n",
    "sub folder/z.h": "\n",
    "inc/i.h": "\n",
    "only80.h": "\n",
    "only90.h": "\n",
    "host.h": "\n",
    "last.h": "\n",
    "signs.c": "".join(
        f'#include "{name}.h"\n'
        for name in ("dollar$x", "hash#x", "col:on", "per%c", "it's", "tab\tx", "back\\slash", "é")
    ),
    "dollar$x.h": "\n",
    "hash#x.h": "\n",
    "col:on.h": "\n",
    "per%c.h": "\n",
    "it's.h": "\n",
    "tab\tx.h": "\n",
    "back\\slash.h": "\n",
    "é.h": "\n",
    "c.c": '#include "k.h"\nint c;\n',
    "p.cpp": '#include "k.h"\nint p;\n',
    "a b/c.c": '#include "x.h"\n',
    "a b/x.h": "\n",
    "made.c": '# 1 "made.y" 1\n# 2 "made.c" 2\n# 3 "later.y" 1\n# 4 "made.c" 2\n#include "k2.h"\n',
    "system.c": '#include "marked.h"\n#include "k2.h"\n#include <s.h>\n#include "sys/s2.h"\n',
    "marked.h": '#pragma GCC system_header\n#include "k2.h"\n',
    "broken.c": '#include "k2.h"\n#include "none.h"\n',
    "broken90.cu": '#include "k2.h"\n#if __CUDA_ARCH__ == 900\n#error stop\n#endif\n',
    "later.c": '#include "k2.h"\nint c = ;\n',
}
"""The files of the folder before nvcc runs."""

CASES = tuple(
    Situation(name=name.replace("_", "-"), line=line)
    for name, line in {
        "M": f"-M k.cu -isystem sys {_TWO}",
        "MM": f"-MM k.cu -isystem sys {_TWO}",
        "MM_MP": f"-MM -MP k.cu -isystem sys {_TWO}",
        "M_order": "-M k.cu -isystem sys -gencode arch=compute_90,code=sm_90"
        " -gencode arch=compute_80,code=sm_80",
        "M_inputs": "-M c.c p.cpp",
        "M_MP_inputs": "-M -MP c.c p.cpp",
        "M_output": "-M c.c -o rules.d",
        "M_MF": "-M c.c -MF rules.d",
        "M_MF_output": "-M c.c -MF rules.d -o others.d",
        "M_MT": "-MM c.c -MT '$x a'",
        "M_odir": "-MM c.c -odir sys",
        "M_compile_output": "-MM -c c.c -o c.o",
        "MD": "-MD -c c.c -o c.o",
        "MMD": "-MMD -c c.c",
        "MMD_MD": "-MD -MMD -c c.c",
        "MMD_MP": "-MMD -MP -c p.cpp",
        "MMD_signs": "-MMD -MP -c signs.c",
        "MMD_spaces": "-MMD -MP -c 'a b/c.c' -odir 'a b'",
        "MMD_spaces_output": "-MMD -c 'a b/c.c' -o 'a b/d e.o'",
        "MMD_MT": "-MMD -c c.c -MT 'a b'",
        "odir_MT": "-MMD -c c.c -odir sys -MT x",
        "odir_MT_absolute": "-MMD -c c.c -odir sys/ -MT /x/y",
        "odir_MM_MT": "-MM c.c -odir sys -MT ./y",
        "odir_MF": "-MMD -c c.c -odir sys -MF f.d",
        "odir_output": "-MMD -c c.c -odir sys -o x.o",
        "odir_lib": "-MMD -lib c.c -odir sys -o l.a",
        "MMD_cuda": "-MMD -cuda k.cu -isystem sys -arch=sm_80",
        "MMD_MT_twice": "-MMD -c c.c -MT a -MT b,c",
        "MMD_MF": "-MMD -MF 'sub folder/c.P' -c c.c",
        "MMD_MF_dash": "-MMD -MF - -c c.c",
        "MMD_MF_missing": "-MMD -MF no/such.d -c c.c",
        "MMD_dotted": "-MMD -c c.c -o sys/c.x.o",
        "MMD_undotted": "-MMD -c c.c -o sys/c",
        "MMD_hidden": "-MMD -c c.c -o .c",
        "MMD_folder": "-MMD -c ./c.c -odir sys",
        "MMD_inputs": "-MMD -c c.c p.cpp",
        "MMD_inputs_MF": "-MMD -c c.c p.cpp -MF all.d",
        "MMD_inputs_MT": "-MMD -c c.c p.cpp -MT t",
        "MMD_lib": "-MMD -lib c.c p.cpp -o l.a",
        "MMD_shared": "-MMD -shared c.c p.cpp -cudart none -nodlink -Xcompiler -fPIC -o sys/l.so.1",
        "MMD_ptx": "-MMD -ptx k.cu -isystem sys -arch=sm_80",
        "MMD_ptx_output": "-MMD -ptx k.cu -o s.ptx -isystem sys -arch=sm_80",
        "MMD_cubin": "-MMD -cubin k.cu -isystem sys -arch=sm_80",
        "MMD_fatbin": f"-MMD -fatbin ./k.cu -isystem sys {_TWO}",
        "MD_system": "-MD -c system.c -isystem sys",
        "MMD_system": "-MMD -c system.c -isystem sys",
        "MMD_made": "-MMD -c made.c",
        "MMD_without_markers": "-MMD -c c.c -Xcompiler -P",
        "fail_preprocess": "-MMD -c broken.c",
        "fail_one_target": f"-MMD -fatbin broken90.cu {_TWO}",
        "fail_later": "-MMD -c later.c",
        "fail_second": "-MMD -c c.c broken.c",
    }.items()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The outputs of a run.

    Attributes:
        returncode: of nvcc.
        markers: the line markers of each preprocessed file, by its name, in nvcc's order.
        files: what it wrote that isn't the result of a compilation, by path.
        stdout: what it printed.
    """

    returncode: int
    markers: dict[str, str]
    files: dict[str, str]
    stdout: str


def recorded_run(name: str) -> Written:
    """Read the recorded outputs of a case."""
    text = (TRANSCRIPTS / "dependencies" / f"{name}.txt").read_text()
    head, *parts = _PART.split(text)
    found: dict[str, dict[str, str]] = {"markers": {}, "files": {}, "stdout": {}}
    for kind, path, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        found["files" if kind == "file" else kind][path] = body
    return Written(
        returncode=int(head.rpartition("exit ")[2]),
        markers=found["markers"],
        files=found["files"],
        stdout=found["stdout"].get("", ""),
    )


def run_text(case: Situation, run: Written) -> str:
    """Return the text of the file that `recorded_run` reads."""
    parts = [f"$ nvcc {case.line}\nexit {run.returncode}\n"]
    parts += [f"--- markers {name}\n{text}" for name, text in run.markers.items()]
    parts += [f"--- file {path}\n{text}" for path, text in run.files.items()]
    parts += [f"--- stdout\n{run.stdout}"] if run.stdout else []
    return "".join(parts)
