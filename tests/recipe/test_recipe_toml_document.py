from __future__ import annotations

from hypothesis import HealthCheck, given, settings
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


def test_every_kind_of_place_is_found() -> None:
    lines = locate_keys(EXAMPLE)
    expected: dict[KeyPath, int] = {
        ("top",): 2,
        ("top", "dotted"): 2,
        ("top", "dotted", "quo.ted"): 2,
        ("project",): 4,
        ("project", "name"): 5,
        ("project", "list"): 6,
        ("project", "list", 0): 7,
        ("project", "list", 1): 7,
        ("project", "list", 2): 10,
        ("project", "list", 2, 0): 10,
        ("project", "list", 2, 1): 10,
        ("project", "list", 3): 10,
        ("project", "list", 3, "a"): 10,
        ("project", "list", 3, "b"): 10,
        ("project", "list", 3, "b", 0): 10,
        ("project", "text"): 12,
        ("project", "raw"): 15,
        ("project", "authors"): 18,
        ("project", "authors", 0): 18,
        ("project", "authors", 0, "name"): 19,
        ("project", "authors", 0, "home"): 20,
        ("project", "authors", 0, "home", "city"): 21,
        ("project", "authors", 1): 22,
        ("project", "authors", 1, "name"): 23,
    }
    assert lines == expected


def test_windows_line_ends_count_once() -> None:
    assert locate_keys('a = """\r\n"""\r\nb = 1\r\n') == {("a",): 1, ("b",): 3}


def test_an_empty_text_has_no_places() -> None:
    assert locate_keys("") == locate_keys(" \n# comment") == {}


# Generated documents: a piece is a text, with the offset of each place in it.
Piece = tuple[str, dict[KeyPath, int]]

SCALARS = ["1", "-1.5e3", "true", "0x1F", "inf", "1979-05-27 07:32:00", "07:32:00", '"a#]}b"', '""']
SCALARS += [
    r'"\"\\"',
    "'c:\\'",
    "''",
    '""""""',
    '"""a"""""',
    '"""x\n"" \\""" y\n"""',
    "'''\n'a''b'''",
]
KEYS = {"a": "a", "b-1": "b-1", '"q.r"': "q.r", "'s t'": "s t", r'"é\n"': "é\n", "4": "4"}

gaps = st.sampled_from(["", " ", "\n", "  # ], } = \n\t"])
flat_gaps = st.sampled_from(["", " ", "\t"])
key_tokens = st.lists(st.sampled_from(sorted(KEYS)), unique=True, max_size=3)


def joined(*parts: Piece | str) -> Piece:
    text, places = "", {}
    for part in parts:
        piece, inner = (part, {}) if isinstance(part, str) else part
        places.update({path: len(text) + at for path, at in inner.items()})
        text += piece
    return text, places


def below(key: str | int, piece: Piece) -> Piece:
    text, places = piece
    return text, {(key,): 0} | {(key, *path): at for path, at in places.items()}


@st.composite
def lists(draw: st.DrawFn, inner: st.SearchStrategy[Piece]) -> Piece:
    result: Piece = joined("[", draw(gaps))
    for index, piece in enumerate(draw(st.lists(inner, max_size=3))):
        comma = joined(",", draw(gaps)) if index else ""
        result = joined(result, comma, below(index, piece), draw(gaps))
    return joined(result, "]")


@st.composite
def pairs(draw: st.DrawFn, token: str, inner: st.SearchStrategy[Piece]) -> Piece:
    text, places = draw(inner)
    equals = f"{token}{draw(flat_gaps)}={draw(flat_gaps)}"
    shifted = {path: at + len(equals) for path, at in places.items()}
    return below(KEYS[token], (equals + text, shifted))


@st.composite
def inline_tables(draw: st.DrawFn, inner: st.SearchStrategy[Piece]) -> Piece:
    result: Piece = joined("{", draw(flat_gaps))
    for index, token in enumerate(draw(key_tokens)):
        comma = joined(",", draw(flat_gaps)) if index else ""
        result = joined(result, comma, draw(pairs(token, inner)), draw(flat_gaps))
    return joined(result, "}")


values: st.SearchStrategy[Piece] = st.recursive(
    st.sampled_from(SCALARS).map(lambda text: (text, {})),
    lambda inner: lists(inner) | inline_tables(inner),
    max_leaves=8,
)


@st.composite
def documents(draw: st.DrawFn) -> Piece:
    result: Piece = ("", {})
    for token in draw(key_tokens):
        result = joined(result, draw(pairs(token, values)), draw(flat_gaps), "\n")
    for number in range(draw(st.integers(0, 2))):
        is_list = draw(st.booleans())
        name = f"table{number}"
        for entry in range(draw(st.integers(1, 2)) if is_list else 1):
            header = f"[[{name}]]\n" if is_list else f"[ {name} ] # x\n"
            at: KeyPath = (name, entry) if is_list else (name,)
            table: Piece = (header, {at: 0} | ({(name,): 0} if entry == 0 else {}))
            for token in draw(key_tokens):
                text, places = draw(pairs(token, values))
                piece = text, {(*at, *path): offset for path, offset in places.items()}
                table = joined(table, piece, "\n")
            result = joined(result, table)
    return result


# A document is made of many small choices, which takes its time on a busy machine.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_generated_documents_have_every_place_on_its_line(document: Piece) -> None:
    text, places = document
    loads(text)
    assert locate_keys(text) == {path: text.count("\n", 0, at) + 1 for path, at in places.items()}
