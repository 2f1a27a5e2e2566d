"""Inline assembly that makes the assembler read further files; pure.

The assembler is told of a file by ``.incbin`` and ``.include``. A source can put these words
together out of strings, escapes, macros of the preprocessor and macros of the assembler.
"""

from __future__ import annotations

import re

_STRING = rb'R"(?P<raw>\w{0,16})\((?s:.*?)\)(?P=raw)"|"[^"\\]*(?:\\.[^"\\]*)*"'
_STATEMENT = re.compile(rb'asm(?:__)?\b(?:[^;"R]+|%s|R(?!"))*' % _STRING)
_READS = re.compile(
    rb'\.incbin\b[ \t]*(?:\\*"([^"\\\n]*))?|\.include[ \t]*\\*"|\.(?:macro|irpc?|altmacro)\b',
    re.IGNORECASE,
)
"""An assembler macro can build any directive, so that none is parsed."""
_MENTIONED = re.compile(rb"\.(?:inc|irp|macro|altmacro)")
_JOINT = re.compile(rb'(?:\)\w{0,16})?"(?:\s|^#[^\n]*\n)*(?:u8)?(?:R"\w{0,16}\(|")', re.MULTILINE)
"""Strings beside each other are one, also with a line marker between them."""
_ESCAPE = re.compile(
    rb"\\(?:x([0-9a-fA-F]{1,4})|([0-7]{1,3})|u00([0-9a-fA-F]{2})|U000000([0-9a-fA-F]{2}))"
)
_TEMPLATE = re.compile(
    rb"(?<!\w)(?:__)?asm(?:__)?\b\s*(?:(?:__)?(?:volatile|goto|inline)(?:__)?\s*)*\(((?:%s|[^\":;])*)"
    % _STRING
)
_WORD = re.compile(rb"%s|(?P<word>[A-Za-z_]\w*)" % _STRING)
_COMMENT = re.compile(rb'//[^\n]*|/\*(?s:.*?)\*/|("(?:\\.|[^"\\\n])*")')


def reads_more(text: bytes, own: str = "") -> bool:
    """Tell if the assembler will read files that no marker names.

    Args:
        text: of a source, preprocessed or not, or assembly.
        own: what the paths of those begin with that are known all the same.
    """
    # Of lower case: a pattern that ignores case can't look for its first characters alone.
    if _MENTIONED.search(text.lower()) and _reads(text, own):
        return True
    # Nearly no text has inline assembly, and the patterns below are slow.
    if b"asm" not in text:
        return False
    statements = b";".join(found[0] for found in _STATEMENT.finditer(text))
    return _reads(_JOINT.sub(b"", _ESCAPE.sub(_character, statements)), own)


def has_macro_in_assembly(text: bytes) -> bool:
    """Tell if an unpreprocessed source has macros in its inline assembly."""
    if b"asm" not in text:
        return False
    plain = _COMMENT.sub(rb"\1 ", text)
    templates = (found[1] for found in _TEMPLATE.finditer(plain))
    return any(word["word"] for each in templates for word in _WORD.finditer(each))


def _reads(text: bytes, own: str) -> bool:
    found = _READS.finditer(text)
    return not all(own and (name[1] or b"").startswith(own.encode()) for name in found)


def _character(escape: re.Match[bytes]) -> bytes:
    digits = escape[1] or escape[3] or escape[4]
    character = chr(int(digits, 16) if digits else int(escape[2], 8))
    # What is no character of a directive, a quote above all, shall end nothing here.
    return character.encode() if character.isascii() and character not in '"\\' else b"?"
