"""Readings of what agents and their code wrote, alike for agents, coaches, graders and people."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:  # coachrl.types imports what imports this module
    from coachrl.types import Execution

_CODE_BLOCK = re.compile(r"```(?:python|py)[^\S\n]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_ANY_BLOCK = re.compile(r"```[\w+-]*[^\S\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)
_SHOWN_CHARS = 2000  # of each stream of an execution
_LISTED = 24  # names in one list
_FILES_CHARS = 1000  # of names of files in a list
# Pieces of text, some 5 to 20 % more than a byte-pair tokenizer makes of English, code and mathematics.
_PIECE = re.compile(r"\s?(?:[A-Za-z]{1,8}|[0-9]{1,3}|[^\sA-Za-z0-9])|\s{1,16}")

_TRACEBACK = "Traceback (most recent call last):"
_IGNORED = ("Exception ignored in", "Exception in thread", "Error in ")  # of a traceback that ends no program
_OF_PROCESS = re.compile(r"^(?:\[rank\d+\]: ?|\(\w+ pid=\d+\) )")  # which of several processes wrote the line
KEY_CHARS = 16  # a shorter value of the environment is no provider's key
_SHOWN_IN_LINE = 300  # characters of a value, or of somebody's words, in one line of an error
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_READ_FOR_ONE = 100  # characters that are looked at for one that is shown: the others may be blanks
# Controls (C0, C1), format characters (bidi overrides, zero widths, tags), halves of characters, and separators of
# lines that no `\n` ends: what a terminal obeys, or a reader does not see.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Of a URL, also one that was taken for a path, which has one slash where the URL has two. To the last @: a password may
# hold one.
_PASSWORD = re.compile(
    r"((?<=://)|(?<=https:/)|(?<=http:/)|(?<=\w\w:/)(?=[^\s/?#'\":@]*:))(?!\*\*\*@)[^\s/?#'\"]+(?=@)"
)
_KEY_NAMES = "key|token|secret|password|passwd|pwd|pass|auth|signature|sig|credential"
# Of environment variables. The short ones are words of their own: PATH, PATTERN, and the shell's PWD hold no secret.
_SECRET_NAMES = re.compile(
    r"(?i)KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|_PWD(_|$)|(^|_)(AUTH|HEADERS|PASS|PAT)(_|$)"
)
_QUERY_KEY = re.compile(rf"(?i)([?&#][\w.-]*(?:{_KEY_NAMES})=)(?!\*\*\*)[^\s&#'\"]+")
# Where a token begins by which chat models tell turns apart: <|im_start|>, <|turn> and <turn|> of Gemma, <｜User｜> of
# DeepSeek, <seed:bos>, <SPECIAL_11> and <extra_id_1> of Nemotron, <reserved_106> of Baichuan, <BOS_TOKEN> of Command R,
# [INST], ]~b] and [e~[ of MiniMax. A judge's server takes one that is spelled out in a message for the token. Ends of
# thoughts (</think>) too: where a coach quotes one, what it said before would be taken for its thoughts.
_BEGIN_OF_CONTROL = re.compile(
    r"<(?=[|\uff5c][\w\u2581]{1,40}[|\uff5c]?>|\w{1,40}\|>|(?:start|end)_of_turn>|(?:seed:)?[be]os>"
    r"|[BE]OS_TOKEN>|(?:SPECIAL|extra_id|reserved)_\d{1,4}>|/(?:\w{1,20}:)?(?i:think|thinking|thoughts?) ?>)"
    r"|\[(?=\|\w{1,40}\|\]|/(?i:think)\]|/?(?:INST|SYSTEM_PROMPT|TOOL_RESULTS|TOOL_CALLS|AVAILABLE_TOOLS)\]|gMASK\]|e~\[)"
    r"|\](?=~!?b[\[\]])"
)


def printable(text: str) -> str:
    """`text` for a terminal or a log: what would move the cursor, colour, hide or turn round text is spelled out
    (`\\x1b`, `\\u202e`), and passwords and keys in URLs are starred. Line ends and tabs stay.

    Everything that models, their programs, task files and servers wrote goes through here before it is printed.
    """
    text = without_passwords(text.replace("\r\n", "\n"))
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(map(_spelled, text))


def one_line(text: str, limit: int = _SHOWN_IN_LINE) -> str:
    """`text` on one line, printable, without what is beyond `limit` characters in its middle."""
    if len(text) > (most := _READ_FOR_ONE * limit):  # of megabytes, all the rest would take seconds
        text = f"{text[: most // 2]} … {text[-most // 2 :]}"
    line = printable(" ".join(text.split()))
    return line if len(line) <= limit else f"{line[: limit // 2]} … {line[-limit // 2 :]}"


def unbroken(text: str) -> str:
    """`text` with a blank for each line end: what agents and task files call something begins no line of its own."""
    return re.sub(r"\r?\n", " ", text)


def logged(text: str) -> str:
    """`printable(text)` with keys of the environment redacted: for logs and tracebacks, where libraries repeat them."""
    return printable(redacted(text, secrets_of(KEY_CHARS)))


def said(error: BaseException) -> str:
    """`str(error)`, with keys of the environment redacted: clients of providers repeat them. Says so where the error's
    class, which may be anybody's, raises in place of giving a text."""
    try:
        return redacted(str(error), secrets_of(KEY_CHARS))
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001  the boundary to that class
        return f"(its text cannot be made: {type(raised).__name__})"


def first_line(error: BaseException) -> str:
    """Of what a library says, which may go on for pages, without its full stop; the error's name where it says
    nothing."""
    lines = [line.strip().rstrip(".") for line in said(error).splitlines() if line.strip()] or [type(error).__name__]
    # pydantic's first line counts errors, and its third says what was wrong.
    return " ".join(lines[:3]) if "validation error" in lines[0] else lines[0]


def error_told(output: str) -> str:
    """The line of what a program wrote that names the error it ended with. Libraries say more as a process ends, of
    errors of theirs too. Without such a line it is the last, and "" where there is none."""
    lines = [_OF_PROCESS.sub("", line) for line in output.splitlines() if line.strip()]
    found = ""
    for place, line in enumerate(lines):
        if line.startswith("error: "):
            found = line
        elif line == _TRACEBACK and not (place and lines[place - 1].startswith(_IGNORED)):
            found = next((later for later in lines[place + 1 :] if not later.startswith(" ")), found)
    return (found or (lines[-1] if lines else "")).strip()


def brief(value: Any) -> str:
    """`repr(value)` for one line of an error, whatever the value: a number of 5,000 digits has no repr, and a class of
    somebody else's may raise where it makes one."""
    try:
        return one_line(repr(value))
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001  the boundary to that class
        return f"a {type(value).__name__} (its text cannot be made: {type(raised).__name__})"


def nearest(word: str, known: Iterable[str]) -> str:
    """', did you mean …?' where a known word is close, in whatever case it is written, else an empty string."""
    names = list(known)
    alike = {name.lower(): name for name in names}
    matches = difflib.get_close_matches(word[:100], names, n=1, cutoff=0.5)
    matches = matches or difflib.get_close_matches(word[:100].lower(), alike, n=1, cutoff=0.5)
    return f", did you mean '{alike.get(matches[0], matches[0])}'?" if matches else ""


def holds_password(text: str) -> bool:
    """Whether a URL in `text` names a user or a password (http://user:password@host), or a key in its query
    (http://host?api_key=…)."""
    return without_passwords(text) != text


def without_passwords(text: str) -> str:
    """`text` with what `holds_password` finds starred."""
    return _QUERY_KEY.sub(r"\1***", _PASSWORD.sub("***", text))


def names_secret(variable: str) -> bool:
    """Whether an environment variable of that name looks as if it held a secret."""
    return _SECRET_NAMES.search(variable) is not None


def secrets_of(chars: int) -> dict[str, str]:
    """The values of secret-looking environment variables that have so many characters or more, with their names, also
    as URLs and JSON spell them; the longest first, since one may be the beginning of another. A path of this machine
    (HF_TOKEN_PATH) is no secret. Of headers (OPENAI_CUSTOM_HEADERS) each value is one by itself."""
    named = {name: value for name, value in os.environ.items() if names_secret(name)}
    found = {part: name for name, value in named.items() if "HEADERS" in name.upper() for part in _keys_among(value)}
    found |= {value.strip(): name for name, value in named.items()}
    long = {value: name for value, name in found.items() if len(value) >= chars and not _is_path(value)}
    spelled = {spelling: name for value, name in long.items() for spelling in _spellings(value)}
    return {value: spelled[value] for value in sorted(spelled, key=len, reverse=True)}


def _keys_among(headers: str) -> list[str]:
    """What of headers, in whatever form, is as long as a key and holds a digit, as few of their names do."""
    parts = re.split(r"[\s,;:='\"{}]+", headers)
    return [part for part in parts if len(part) >= KEY_CHARS and re.search(r"\d", part)]


def _spellings(value: str) -> tuple[str, ...]:
    in_json = json.dumps(value)[1:-1]
    in_url = os.fsencode(value)  # a variable may hold any bytes
    return value, in_json, in_json.replace("/", "\\/"), quote(in_url), quote(in_url, safe="")


def _is_path(value: str) -> bool:
    return value.startswith("/") and os.path.exists(value)  # noqa: PTH110  a pathlib.Path refuses what is too long


def redacted(text: str, secrets: Mapping[str, str]) -> str:
    """`text` with the name of each secret in place of its value. secrets: as `secrets_of` gives them."""
    for value, name in secrets.items():
        text = text.replace(value, f"[{name}]")
    return text


def whole_characters(text: str) -> str:
    """`text` with U+FFFD for halves of characters, which JSON can spell, and which nothing can be sent or kept with."""
    return text if text.isascii() else _HALF_CHARACTER.sub("\ufffd", text)  # of most text this is known at once


def _spelled(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in _UNSEEN:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def dollars(amount: float) -> str:
    """'$1,234.50'; of less than a cent its first digits, since what costs something is not free."""
    return f"${amount:,.2f}" if amount == 0 or amount >= 0.01 else f"${amount:.2g}"


def counted(number: int, noun: str) -> str:
    """'1 call', '2 calls', '1,000 replies'."""
    return f"{number:,} {noun if number == 1 else plural(noun)}"


def rounded(number: int) -> str:
    """A large number to three digits, for estimates: "950", "12,300", "4.56 million", "1.01 billion"."""
    for unit, word in ((10**9, "billion"), (10**6, "million")):
        if number >= unit * 0.9995:
            return f"{number / unit:#.3g}".rstrip(".") + f" {word}"
    step = 10 ** max(0, len(str(number)) - 3)
    return f"{round(number / step) * step:,}"


def plural(noun: str) -> str:
    """'calls', 'replies'."""
    return f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"


def visible(text: str) -> str:
    """A reply without its hidden thinking; empty where the thinking was never closed."""
    if "</think>" in text:
        return text.rsplit("</think>", 1)[1].strip()
    return "" if text.lstrip().startswith("<think>") else text.strip()


def extract_code(text: str) -> str | None:
    """The Python of a reply: its closed ```python blocks, joined in order. None where there is none."""
    blocks = _CODE_BLOCK.findall(visible(text))
    return "\n".join(block.rstrip() for block in blocks) + "\n" if blocks else None


def written_code(text: str) -> str:
    """What an agent wrote that is asked for code and runs none: its ```python blocks, else its blocks of whatever name
    or none, also one that was never closed, else the whole reply."""
    blocks = _ANY_BLOCK.findall(visible(text))
    plain = "\n".join(block.rstrip() for block in blocks) if blocks else visible(text)
    return extract_code(text) or plain.rstrip() + "\n"


def prose_in(text: str) -> str:
    """`text` without its code blocks, also one that was never closed."""
    return _FENCED.sub(" ", text)


def fences_in(text: str) -> int:
    """How many lines begin or end a code block."""
    return len(_FENCE.findall(text))


def defused(text: str) -> str:
    """`text` with a blank in each token that would end the message, or a model's thoughts."""
    return _BEGIN_OF_CONTROL.sub(r"\g<0> ", text)


def clip_middle(text: str, limit: int = _SHOWN_CHARS) -> str:
    """`text`, or its two ends with a note of how much was cut between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"


def listed(names: Sequence[str]) -> str:
    """Names for a prompt, separated by commas: "none", or the first ones and how many more there are."""
    return _and_more(names[:_LISTED], len(names))


def listed_files(names: Sequence[str], owed: Collection[str] = ()) -> str:
    """The same of files that agents wrote, whose names are theirs to choose: those of `owed` come before others, of
    which as many are shown as take _FILES_CHARS, so that no list fills another agent's prompt or hides what it needs.
    """
    first = sorted(names, key=lambda name: name not in owed)
    chars = itertools.accumulate(0 if name in owed else len(name) for name in first)
    shown = {name for name, taken in zip(first, chars, strict=True) if taken <= _FILES_CHARS}
    shown.intersection_update(first[:_LISTED])
    return _and_more([name for name in names if name in shown], len(names))


def _and_more(shown: Sequence[str], of: int) -> str:
    return (", ".join(shown) or "none") + (f" and {of - len(shown)} more" if of > len(shown) else "")


def estimated_tokens(text: str) -> int:
    """About how many tokens `text` has, where nobody has counted them."""
    return len(_PIECE.findall(text))


def clip_tokens(text: str, limit: int) -> str:
    """`text`, or its two ends, about `limit` tokens in all, with a note of how much was cut between them.

    Tokens are estimated, since each model counts in its own way: the same text is cut alike for all of them.
    """
    if len(text) <= limit:  # no piece is empty
        return text
    pieces = _PIECE.findall(text)
    if len(pieces) <= limit:
        return text
    half = limit // 2
    head, tail = "".join(pieces[:half]), "".join(pieces[len(pieces) - half :])
    return f"{head}\n[... about {len(pieces) - 2 * half} tokens cut ...]\n{tail}"


def shown(execution: Execution) -> str:
    """Both streams of an execution, as an agent reads them."""
    streams = [clip_middle(stream.strip()) for stream in (execution.stdout, execution.stderr)]
    return "\n".join(stream for stream in streams if stream) or "(no output)"


def brief_output(execution: Execution) -> str:
    """Standard output of a run that went well, else the last line of its error."""
    if execution.state == "ok":
        return clip_middle(execution.stdout.strip())
    lines = execution.stderr.strip().splitlines()
    return f"{execution.state}: {clip_middle(lines[-1], 400) if lines else 'no message'}"
