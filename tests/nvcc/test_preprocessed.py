"""Line numbers of a preprocessed text that its code can depend on."""

from __future__ import annotations

import pytest

from archsplit.nvcc.preprocessed_text import (
    strip_unused_line_markers,
    with_assert_locations,
    without_markers,
    without_working_folder,
)

KIT = '"/opt/cuda/include/'
HEAD = f'# 0 "k.cu"\n# 1 {KIT}cuda_runtime.h" 1\nstruct dim3;\n'
PLACE = (
    "namespace cuda { class source_location { public:\n"
    "static source_location current(int line = __builtin_LINE()) { return {line}; } }; }\n"
)
FAILS = "void __fail(const char *api = {}, source_location where = source_location::current());\n"


def text(*, place: str = PLACE, kit: str = FAILS, own: str = "", at: int = 1) -> bytes:
    """A text of the user's with what a header of the toolkit says, its own code in some line."""
    headers = f'# 1 {KIT}place" 1 3\n{place}# 1 {KIT}fail.h" 1 3\n\n{kit}'
    return f'{HEAD}{headers}# {at} "k.cu" 2\n\n__global__ void k();\n{own}'.encode()


def matters(*, place: str = PLACE, kit: str = FAILS, own: str = "") -> bool:
    """Return True if the line number of the user's own code is part of the key."""
    first, second = (text(place=place, kit=kit, own=own, at=line) for line in (1, 2))
    return strip_unused_line_markers(first) != strip_unused_line_markers(second)


def test_line_markers_stay_only_in_units_using_them() -> None:
    assert not matters(place="class source_location;\n")
    assert strip_unused_line_markers(text(place="", kit="")) == without_markers(
        text(place="", kit="")
    )
    assert matters(own="int n = __builtin_LINE();\n")


def test_line_of_a_toolkit_header_counts_without_its_folder() -> None:
    assert not matters()
    assert not matters(kit=f"{FAILS}inline void f() {{ __fail(); }}\n")
    # Their own lines count; where they lie doesn't.
    moved = text().replace(f'# 1 {KIT}fail.h"'.encode(), f'# 2 {KIT}fail.h"'.encode())
    assert strip_unused_line_markers(text()) != strip_unused_line_markers(moved)
    elsewhere = text().replace(b"/opt/cuda/include/", b"/usr/include/")
    assert strip_unused_line_markers(text()) == strip_unused_line_markers(elsewhere)


def test_shortened_folder_of_cccl_is_of_the_toolkit() -> None:
    def spelled(own: str) -> bytes:
        found = text(own=own).replace(f'{KIT}place"'.encode(), b'"/opt/real/cccl/cuda/std/place"')
        return found.replace(f'{KIT}fail.h"'.encode(), b'"/opt/real/cccl/cuda/std/fail.h"')

    lines, moved = "int a;\n", "\n\nint a;\n"
    assert strip_unused_line_markers(spelled(lines)) == strip_unused_line_markers(spelled(moved))
    lines, moved = (f"{own}void f() {{ __fail(); }}\n" for own in (lines, moved))
    assert strip_unused_line_markers(spelled(lines)) != strip_unused_line_markers(spelled(moved))


@pytest.mark.parametrize(
    "own",
    [
        "auto n = cuda::source_location::current();\n",
        "auto n = cuda::place::current();\n",
        "void f() { __fail(); }\n",
    ],
)
def test_unit_with_the_line_macro_keeps_its_lines(own: str) -> None:
    assert matters(own=own)


@pytest.mark.parametrize(
    ("name", "kit"),
    [
        ("__error", f"struct __error {{ {FAILS.replace('void __fail', '__error')} }};\n"),
        ("fail", FAILS.replace("__fail", "fail")),
    ],
)
def test_macro_with_an_argument_keeps_the_callers_line(name: str, kit: str) -> None:
    assert not matters(kit=kit)
    # A caller of that one needn't name what its argument is made to.
    assert matters(kit=f'{kit}# 1 {KIT}user.h" 1 3\nvoid use({name} what);\n')


def test_without_a_toolkit_or_markers_lines_count() -> None:
    bare = b"int n = __builtin_LINE();\n"
    assert strip_unused_line_markers(bare) == bare
    own = f'# 1 "k.cu"\n{PLACE}'.encode()
    assert strip_unused_line_markers(own) == own


@pytest.mark.parametrize(
    "literal",
    [
        'R"(%s)"',
        'u8R"a-+b(%s)a-+b"',
        # The start of one may be in what looks like another's.
        '"R"R"(%s)"',
        'R"(%s)" R"x(\n)x"',
        'R"x(\n)x" R"(%s)" "ER"',
        'a = "R\\"y(";\nb = R"(%s)"',
        'R"((\n" R"(%s)"',
        'R"(%s',
    ],
)
def test_lines_in_raw_strings_count(literal: str) -> None:
    def key(inner: str, *, place: str = "", at: int = 1) -> bytes:
        own = f"const char *c = {literal % inner};\nint after;\n"
        return strip_unused_line_markers(text(place=place, kit="", own=own, at=at))

    for place in ("", PLACE):
        keys = {key(inner, place=place) for inner in ("\n", "\n\n", '\n# 1 "a"\n', '\n# 2 "a"\n')}
        assert len(keys) == 4
        # Those before a literal don't.
        assert key("\n", place=place, at=2) == key("\n", place=place, at=3)
    # Nothing becomes one word with a literal.
    assert b";\nint after;" in key("\n")


def test_lines_before_a_raw_string_of_one_line_dont_count() -> None:
    first, second = (
        text(place="", kit="", own='const char *c = R"(a)";\nint after;\n', at=line)
        for line in (2, 3)
    )
    assert strip_unused_line_markers(first) == strip_unused_line_markers(second)


def test_toolkit_header_named_only_by_a_raw_string_is_no_header() -> None:
    own = f'const char *c = R"(\n{HEAD})";\nint n = __builtin_LINE();\n'.encode()
    assert strip_unused_line_markers(own) == own


def test_unterminated_parameter_list_counts() -> None:
    endless = f"void __fail({'int, ' * 3000}source_location where);\n"
    assert matters(kit=endless)
    assert not matters(kit=f"void __fail({'int, ' * 30}source_location where);\n")


def test_braces_in_parameters_dont_end_them() -> None:
    kit = "void __fail(int a = f({1, 2}), (g)(int), source_location w = source_location());\n"
    assert not matters(kit=kit)
    assert matters(kit=kit, own="void f() { __fail(); }\n")
    assert not matters(kit="inline int f() { int n; return (source_location()).line; }\n")


def test_working_folder_is_left_out_of_a_text() -> None:
    text = b'# 0 "k.cu"\n# 1 "/home/me/build//"\n# 0 "<built-in>"\n# 1 "/home/me//"\nint a;\n'
    found = without_working_folder(text)
    assert found == b'# 0 "k.cu"\n# 0 "<built-in>"\n# 1 "/home/me//"\nint a;\n'
    assert without_working_folder(found) == found


def test_assertions_have_their_places_and_no_other_question() -> None:
    literal = '__assert_fail ("a > 0 && \\"b\\"", %s, %s, __PRETTY_FUNCTION__);'
    ask = literal % ("__builtin_FILE ()", "__builtin_LINE ()")
    text = f'# 0 "k.cu"\n# 7 "k.h" 1 3\n\n\n{ask}\n# 2 "k.cu" 2\n{ask} {ask}\nint a;\n'
    found = with_assert_locations(text.encode(), bytes.upper).decode()
    one, two = literal % ('"K.H"', 9), literal % ('"K.CU"', 2)
    assert found == f'# 0 "k.cu"\n# 7 "k.h" 1 3\n\n\n{one}\n# 2 "k.cu" 2\n{two} {two}\nint a;\n'

    # A line that moves counts where it has an assertion, and nowhere else.
    def key(text: str) -> bytes:
        return strip_unused_line_markers(text.encode())

    assert key(text) == key(text.replace("\nint a", "\n\n\nint a"))
    assert key(text) != key(text.replace("# 2 ", "# 3 "))
    assert b"# " not in key(text)
    other = text + "int n = __builtin_LINE();\n"
    assert key(other) != key(other.replace("\nint a", "\n\n\nint a"))
    # Without a marker, or in another form, it is not known what the answer is.
    for bare in (ask, '# 1 "k.cu"\nvoid f(const char *a = __builtin_FILE ());\n'):
        assert with_assert_locations(bare.encode()) == bare.encode()


def test_assertions_of_a_system_header_have_their_places() -> None:
    """GCC writes markers around what comes from the macro."""
    marker = '\n# 4 "k.cu" 3 4\n'
    text = f"""{marker}(static_cast <bool> (
# 4 "k.cu"
a && b{marker}) ? void (0) : __assert_fail (
# 4 "k.cu"
"a && b"{marker}, __builtin_FILE (), __builtin_LINE (), __extension__ __PRETTY_FUNCTION__))
# 5 "k.cu"
;
"""
    found = with_assert_locations(text.encode()).decode()
    assert found == text.replace("__builtin_FILE (), __builtin_LINE ()", '"k.cu", 4')
