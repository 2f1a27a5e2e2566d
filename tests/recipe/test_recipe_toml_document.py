from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from archsplit.recipe.document import KeyPath, locate_keys
from archsplit.system.toml import loads

EXAMPLE = """\
# a comment with [brackets] and key = 1
top.dotted."quo.ted" = 1

[project] # after a header
name = "a # no comment"
list = [ # here
  "one", 'two',

  # between
  [3, 4], { a = 1, "b" = [2] },
]
text = \"\"\"
[not.a.table]
escaped \\\""" quote""\"\"\"
raw = '''
x = 1'''

[[project.authors]]
name = "A"
[project.authors.home]
city = "B"
[[project.authors]]
name = "C"
"""


def test_tables_and_keys_have_their_lines() -> None:
    expected: dict[KeyPath, int] = {
        ("top",): 2,
        ("top", "dotted"): 2,
        ("top", "dotted", "quo.ted"): 2,
        ("project",): 4,
        ("project", "name"): 5,
        ("project", "list"): 6,
        ("project", "text"): 12,
        ("project", "raw"): 15,
        ("project", "authors"): 18,
        ("project", "authors", 0): 18,
        ("project", "authors", 0, "name"): 19,
        ("project", "authors", 1): 22,
        ("project", "authors", 1, "name"): 23,
    }
    found = locate_keys(EXAMPLE)
    assert {path: line for path, line in found.items() if "home" not in path} == expected


def test_windows_line_ends_count_once() -> None:
    text = 'a = """\r\n"""\r\nb = 1\r\n[[c]] # d\r\n'
    assert locate_keys(text) == {("a",): 1, ("b",): 3, ("c",): 4, ("c", 0): 4}


def test_an_empty_text_has_no_places() -> None:
    assert locate_keys("") == locate_keys(" \n# comment = 1\n# [table]") == {}


names = st.sampled_from(["a", "b-1", "files", '"q r"'])
scalars = st.sampled_from(
    ["1", "true", "[1, 2]", "{ x = 1 }", '"a#]=b"', "[\n  1,\n]", '"""x\n[y]\nz = 1"""', '"b"']
)
tables = st.dictionaries(names, scalars, max_size=3)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["one", "two", "three"]), tables, max_size=3), st.booleans())
def test_each_key_at_the_start_of_a_line_is_found(
    content: dict[str, dict[str, str]], listed: bool
) -> None:
    text, expected = "", dict[KeyPath, int]()
    for table, keys in content.items():
        place: KeyPath = (table, 0) if listed else (table,)
        expected |= dict.fromkeys({(table,), place}, text.count("\n") + 1)
        text += f"[[{table}]] # 1\n" if listed else f"[{table}]\n"
        for key, value in keys.items():
            expected[(*place, key.strip('"'))] = text.count("\n") + 1
            text += f"{key} = {value}\n"
    loads(text)
    assert locate_keys(text) == expected
