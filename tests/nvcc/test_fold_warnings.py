"""Folding of compilers' warnings, on texts that gcc 12 and nvcc 13.0 have printed."""

from __future__ import annotations

from archsplit.nvcc.warnings import fold_warnings

GCC = """\
In file included from src/a.cu:1:
src/old.h: In function 'int old_{0}()':
src/old.h:{0}:12: warning: 'int gone()' is deprecated [-Wdeprecated-declarations]
    {0} |   return gone();
      |          ~~~~^~
src/old.h:1:26: note: declared here
"""
EDG = """\
src/a.cu({0}): warning #177-D: variable "unused" was declared but never referenced
    int unused;
        ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

"""
ERROR = "src/a.cu:9:1: error: expected ';'\n    9 | }\n"


def test_the_first_warning_of_a_kind_is_kept_with_its_lines() -> None:
    texts = ["".join(GCC.format(line) for line in range(1, 41)), GCC.format(50)]
    assert fold_warnings(texts) == (
        GCC.format(1).strip(),
        "more warnings of the kind -Wdeprecated-declarations: 40",
    )


def test_kinds_of_nvidias_front_end_are_numbers() -> None:
    folded = fold_warnings([EDG.format(3) + EDG.format(4), "src/b.cu:1:1: warning: x [-Wunused]"])
    assert folded[0].startswith("src/a.cu(3): warning #177-D")
    assert folded[1:] == (
        "src/b.cu:1:1: warning: x [-Wunused]",
        "more warnings of the kind #177-D: 1",
    )


def test_errors_and_other_texts_are_kept() -> None:
    text = GCC.format(1) + ERROR + GCC.format(2) + ERROR + "nvcc says something\n"
    folded = fold_warnings([text])
    assert folded[0].count("error: expected") == 2
    assert folded[0].count("deprecated") == 2, folded[0]
    assert "nvcc says something" in folded[0]
    assert fold_warnings(["ptxas info    : 0 bytes gmem\n"] * 3) == (
        "ptxas info    : 0 bytes gmem",
    )
    assert fold_warnings(["", "In file included from a:1:\n"]) == ("In file included from a:1:",)
