"""Makes text safe to show: secrets masked, control characters escaped.

Every text for a person or a log file goes through here once: error messages, log values, printed settings. In doubt
masking hides more. Escaping keeps a hostile value from forging a line or controlling a terminal. A process that has
opened a password calls `hide`: from then on the process masks that password in every text.
"""

from __future__ import annotations

import json
import re
from urllib.parse import quote

MASK = "***"

# What a name of a secret has in it; dataflow._secret_names() is the same list.
SECRET_NAMES = (
    *("password", "passwd", "passphrase", "secret", "token"),
    *("private[_-]?key", "access[_-]?key", "api[_-]?key", "credential", "encryptedpass"),
)
_NAME = rf"[a-z0-9_]*(?:{'|'.join(SECRET_NAMES)})"
_SECRET_NAME = re.compile(rf"[a-z0-9_-]*(?:{'|'.join(SECRET_NAMES)})[a-z0-9_-]*", re.IGNORECASE)
# scheme://user:password@host. Greedy, because the password may hold an unescaped @. The match begins at the start of a
# word: otherwise a long word takes time in the square of its length.
_URL_PASSWORD = re.compile(r"(?P<head>(?<![a-z0-9+.-])[a-z0-9+.-]+://[^\s:/@]*:)\S+(?=@)", re.IGNORECASE)
# password=x, password='x y', "password": "x": libpq's form, query strings, and dumps of mappings. But not
# "INVALID_CREDENTIAL: reason", which is one of our codes.
_NAMED_VALUE = re.compile(
    rf"(?P<head>\b(?!INVALID_CREDENTIAL\b){_NAME}[\"']?\s*[=:]\s*)"
    r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|(?:\\.|[^\s\\,;)}\]\"'])+)",
    re.IGNORECASE,
)
# C0, DEL and C1 controls; line and paragraph separators; marks that reorder the text around them.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Passwords that this process has opened, longest first, because one may be a part of another. A password shorter than
# HIDDEN_CHARACTERS is not masked: it would mask parts of ordinary words.
_hidden: list[str] = []
HIDDEN_CHARACTERS = 4
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t", "\x1b": r"\x1b"}
_TWO_DIGITS = 0xFF


def is_secret_name(name: str) -> bool:
    return _SECRET_NAME.fullmatch(name) is not None


def hide(secret: str) -> None:
    """Masks this text from now on, also as URLs and JSON write it."""
    forms = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1]}
    added = [form for form in forms if len(form) >= HIDDEN_CHARACTERS and form not in _hidden]
    _hidden[:] = sorted([*_hidden, *added], key=len, reverse=True)


def hidden(text: str) -> str:
    """The text with every opened password masked, and otherwise unchanged."""
    for secret in _hidden:
        text = text.replace(secret, MASK)
    return text


def mask(text: str) -> str:
    """The text with three things masked: opened passwords, passwords in URLs, and values with a secret's name."""
    text = hidden(text)
    return _NAMED_VALUE.sub(rf"\g<head>{MASK}", _URL_PASSWORD.sub(rf"\g<head>{MASK}", text))


def printable(text: str, *, keep: str = "") -> str:
    """The text with every control character written as an escape, except those in `keep`."""
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code <= _TWO_DIGITS else f"\\u{code:04x}")
