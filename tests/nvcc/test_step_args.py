from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.nvcc.dryrun import shell_variables, shell_words, unusable_character


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("g++ -c 'a;b.cu' -o x", ("g++", "-c", "a;b.cu", "-o", "x")),
        ('g++ -D "BOX=std::vector<int>" "a&b.cu"', ("g++", "-D", "BOX=std::vector<int>", "a&b.cu")),
        (r'"T=\"a|b\"" -DX=\"\;\"', ('T="a|b"', '-DX=";"')),
        ("'$HOME `x`'", ("$HOME `x`",)),
    ],
)
def test_quotes_protect_characters(line: str, words: tuple[str, ...]) -> None:
    assert shell_words(line) == words


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("rm x; true", ";"),
        ("a 2> b", ">"),
        ('"it\'s $HOME" "it\'s"', "$"),
        ('-D "X=`date`"', "`"),
        (r'"a\\" ; "b"', ";"),
    ],
)
def test_shell_syntax_is_refused(line: str, found: str) -> None:
    with pytest.raises(ValueError, match="the shell syntax") as caught:
        shell_words(line)
    assert str(caught.value) == f"the shell syntax {found!r}"


VARIABLES = {"b": 'x" $c\\', "c": "y"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('"a$b.cu"', ('ax" $c\\.cu',)),
        ('"${c}d" -DX="$gone"', ("yd", "-DX=")),
        ("'$b'", ("$b",)),
        (r'"\$b\`\\$c"', (r"$b`\y",)),
    ],
)
def test_variables_in_double_quotes_are_replaced(line: str, words: tuple[str, ...]) -> None:
    assert shell_words(line, VARIABLES) == words


@pytest.mark.parametrize(
    "line", ["$b", '"$(date)"', '"$1"', '"$$"', '"`date`"', '"${b:-x}"', '"$"']
)
def test_other_expansions_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match="the shell syntax"):
        shell_words(line, VARIABLES)


def test_names_of_variables_are_found() -> None:
    assert shell_variables(["a$b/${c}", "$b", "$1"]) == ("b", "c")


@pytest.mark.parametrize("line", ["g++ 'x", 'g++ "x', "g++ x\\"])
def test_a_quote_without_its_end_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"its quotes \(No"):
        shell_words(line)


@given(st.text(st.sampled_from("abc '\"\\${}`;<"), max_size=12))
def test_accepted_lines_are_split_as_by_a_shell(line: str) -> None:
    try:
        words = shell_words(line, VARIABLES)
    except ValueError:
        return
    command = ["/bin/sh", "-fc", f"printf '%s\\0' x {line}"]
    done = subprocess.run(command, env=VARIABLES, capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[1:-1] == list(words)


def test_path_characters_nvcc_cannot_handle_are_found() -> None:
    assert unusable_character("/tmp/it's a; folder") is None
    assert [unusable_character(f"/tmp/{odd}") for odd in ',"$`\\\n'] == list(',"$`\\\n')
