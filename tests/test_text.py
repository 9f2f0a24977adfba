"""Readings of what agents and their code wrote, and how it is shown."""

import pytest

from coachrl.text import (
    brief,
    brief_output,
    clip_middle,
    clip_tokens,
    counted,
    dollars,
    error_told,
    estimated_tokens,
    extract_code,
    first_line,
    holds_password,
    names_secret,
    nearest,
    one_line,
    printable,
    rounded,
    said,
    shown,
    visible,
    without_passwords,
    written_code,
)
from coachrl.types import Execution


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```\nassert f(1) == 1\nassert f(2) == 2\n```", "assert f(1) == 1\nassert f(2) == 2\n"),
        ("```python\nassert f(1) == 1\n```\nThat is all.", "assert f(1) == 1\n"),
        ("```py3\nx = 1", "x = 1\n"),
        ("Like this:\n```python\nx = 1\n```\nwhich prints\n```\n1\n```", "x = 1\n"),
        ("```\na = 1\n```\nand\n```\nb = 2\n```", "a = 1\nb = 2\n"),
        ("def f(x):\n    return x", "def f(x):\n    return x\n"),
        ("<think>```python\nx = 0\n```</think>x = 1", "x = 1\n"),
    ],
)
def test_no_line_of_the_code_is_lost(reply, code):
    assert written_code(reply) == code


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\na = 1\n\n```\ntext\n```py\nb = 2\n```", "a = 1\nb = 2\n"),
        ("```\na = 1\n```", None),
        ("```python\na = 1", None),
        ("<think>```python\na = 0\n```</think>", None),
    ],
)
def test_code_that_is_run_stands_in_closed_blocks_of_python(reply, code):
    assert extract_code(reply) == code


@pytest.mark.parametrize(
    ("text", "seen"),
    [(" x ", "x"), ("<think>a</think> b ", "b"), ("  <think>a", ""), ("a </think> b</think>c", "c"), ("", "")],
)
def test_hidden_thinking_is_not_seen(text, seen):
    assert visible(text) == seen


def test_what_is_too_long_keeps_both_ends_and_says_how_much_is_gone():
    assert clip_middle("abcd", 4) == "abcd"
    for limit in (4, 5):
        assert clip_middle("abcdefghij", limit) == "ab\n[... 6 characters cut ...]\nij"
    words = "one two three four five six"
    assert clip_tokens(words, 6) == words and estimated_tokens(words) == 6
    assert clip_tokens(words, 4) == "one two\n[... about 2 tokens cut ...]\n five six"
    assert [estimated_tokens(text) for text in ("abcdefghijk", "12345", "a+b", "")] == [2, 2, 3, 0]
    assert one_line("abcdefghij", 6) == "abc … hij" and one_line(" a\n b\t c ") == "a b c"


def test_both_streams_are_shown_and_of_a_failure_the_last_line_is_told():
    assert shown(Execution("ok", stdout="a\n", stderr="b")) == "a\nb" and shown(Execution("ok")) == "(no output)"
    assert brief_output(Execution("ok", stdout=" 7\n", stderr="warned")) == "7"
    assert brief_output(Execution("error", stdout="7", stderr="Traceback\nb: c\n")) == "error: b: c"
    assert brief_output(Execution("timeout")) == "timeout: no message"


class Mute:
    def __init__(self, error=LookupError):
        self.error = error

    def __repr__(self):
        raise self.error("its session is closed")


class MuteError(BaseException):
    def __str__(self):
        raise GeneratorExit


def test_numbers_and_names_in_messages():
    assert [counted(1, "call"), counted(0, "reply"), counted(1000, "task")] == ["1 call", "0 replies", "1,000 tasks"]
    told = [dollars(amount) for amount in (0, 0.00312, 0.01, 1234.5)]
    assert told == ["$0.00", "$0.0031", "$0.01", "$1,234.50"], "what costs something is not free"
    assert nearest("planer", ["coder", "planner"]) == ", did you mean 'planner'?" and nearest("xyz", ["coder"]) == ""
    assert nearest("OPENRLHF", ["vllm", "openrlhf"]) == ", did you mean 'openrlhf'?"
    assert nearest("MODEL", ["model", "Model"]) == ", did you mean 'Model'?"
    assert brief("x") == "'x'" and brief(10**5000) == "a int too large to show"
    assert brief(Mute()) == "a Mute (its text cannot be made: LookupError)"
    assert brief(Mute(GeneratorExit)) == "a Mute (its text cannot be made: GeneratorExit)"
    assert first_line(MuteError()) == "(its text cannot be made: GeneratorExit)"
    assert first_line(ValueError("a\nb")) == "a" and first_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (999, "999"),
        (10_752, "10,800"),
        (999_400, "999,000"),
        (999_600, "1.00 million"),
        (355_991_552, "356 million"),
        (1_012_703_232, "1.01 billion"),
    ],
)
def test_an_estimate_has_three_digits(number, shown):
    assert rounded(number) == shown


def test_what_moves_a_cursor_is_spelled_out_and_passwords_are_starred():
    assert printable("a\x1b[31m\tb\r\nc\u202e") == "a\\x1b[31m\tb\nc\\u202e"
    secret = "http://u:p@h/x?api_key=1&b=2"
    assert without_passwords(secret) == "http://***@h/x?api_key=***&b=2"
    assert holds_password(secret) and not holds_password(without_passwords(secret)) and not holds_password("http://h/x")


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("\x7f\x00", "\\x7f\\x00"),
        ("é\x9b1m", "é\\x9b1m"),
        ("a\u200bb\u2028c", "a\\u200bb\\u2028c"),
        ("\ud800", "\\ud800"),
        ("\U000e0041\U0001f600", "\\U000e0041\U0001f600"),
        ("\r\n\r", "\n\\x0d"),
        ("\xff\xad", "\xff\\xad"),
    ],
)
def test_what_a_reader_does_not_see_is_spelled_out_and_nothing_else(text, spelled):
    assert printable(text) == spelled


@pytest.mark.parametrize(
    ("text", "starred"),
    [
        ("see http://u:p@ss@h:1/x", "see http://***@h:1/x"),
        ("http://token@h", "http://***@h"),
        ("http:/u:p@h/x https:/t@h", "http:/***@h/x https:/***@h"),  # as a path has it
        ("postgresql:/u:p@h/x redis:/:p@h C:/x@y s3:/me@b", "postgresql:/***@h/x redis:/***@h C:/x@y s3:/me@b"),
        ("c:/u:p@h", "c:/u:p@h"),
        ("http://h/a@b", "http://h/a@b"),
        ("http://h?q=a@b", "http://h?q=a@b"),
        (
            "https://h/?a=1&X-Amz-Signature=ab#access_token=cd 'x'",
            "https://h/?a=1&X-Amz-Signature=***#access_token=*** 'x'",
        ),
        ("?Password=a;b&page=2", "?Password=***&page=2"),
        ("?monkey=1", "?monkey=***"),
        ("key=1", "key=1"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_passwords_and_keys_of_urls_are_starred_and_nothing_else(text, starred):
    assert without_passwords(text) == starred == without_passwords(starred)
    assert printable(text) == starred and holds_password(text) == (text != starred)


def test_one_line_is_no_longer_than_it_may_be():
    assert one_line("a" * 300) == "a" * 300 and one_line("a" * 150 + "-" + "b" * 150) == "a" * 150 + " … " + "b" * 150
    assert one_line("abcdef", 6) == "abcdef" and one_line("abcdefg", 5) == "ab … efg"
    assert one_line("a" + " " * 20_000 + "b" + " " * 20_000 + "c") == "a … c"  # of megabytes the ends are read
    assert first_line(ValueError(" \n a\nb")) == "a"


def test_half_a_block_and_blocks_of_other_languages_are_no_program():
    assert extract_code("```Python \na = 1\n```") == "a = 1\n"
    assert extract_code("```python3\na = 1\n```") is None and extract_code("```python a = 1\n```") is None
    assert extract_code("</think>\n```py\na\n```\n<think>") == "a\n"
    assert written_code("```c++\na = 1\n") == "a = 1\n" and written_code("a```b") == "a```b\n"


def test_the_end_of_a_text_that_is_clipped_is_its_end_whatever_the_limit():
    assert clip_tokens("abcdefgh" * 3, 3) == "abcdefgh" * 3
    assert clip_tokens("a b c d e", 3) == "a\n[... about 3 tokens cut ...]\n e"
    assert clip_tokens("a b c d e", 1) == "\n[... about 5 tokens cut ...]\n"
    assert clip_middle("x" * 2001).count("x") == 2000 and clip_middle("x" * 2000) == "x" * 2000
    assert estimated_tokens("a\n\n\n\nb" + " " * 17) == 5


def test_streams_that_are_long_lose_their_middle_each():
    both = shown(Execution("error", stdout="a" * 2001, stderr="b" * 2002))
    assert [part for part in both.split("\n") if part.startswith("[")] == [
        "[... 1 characters cut ...]",
        "[... 2 characters cut ...]",
    ]
    told = brief_output(Execution("error", stderr="x" * 500))
    assert told == f"error: {'x' * 200}\n[... 100 characters cut ...]\n{'x' * 200}"


def test_what_an_error_says_holds_no_key_of_the_environment(monkeypatch):
    """As of a coach of one's own whose client was refused: it is written into the run's files."""
    monkeypatch.setenv("MY_JUDGE_API_KEY", "sk-0123456789abcdef")
    assert said(ValueError("wrong key: sk-0123456789abcdef.")) == "wrong key: [MY_JUDGE_API_KEY]."


@pytest.mark.parametrize(
    "headers",
    [
        "X-Org: me\nX-Api-Key: sk-0123456789abcdef",
        "Authorization=Bearer sk-0123456789abcdef,x=y",
        '{"Proxy-Authorization": "Bearer sk-0123456789abcdef"}',
    ],
)
def test_one_of_several_headers_is_a_key_by_itself(monkeypatch, headers):
    """A server repeats the key that it was sent, and not the variable with all headers."""
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", headers)
    assert said(ValueError("sk-0123456789abcdef has no right")) == "[OPENAI_CUSTOM_HEADERS] has no right"
    assert said(ValueError("no Proxy-Authorization in it")) == "no Proxy-Authorization in it"


@pytest.mark.parametrize("name", ["HF_TOKEN_PATH", "PASSWORD_STORE_DIR"])
def test_a_path_is_no_key_whatever_its_variable_is_called(monkeypatch, tmp_path, name):
    monkeypatch.setenv(name, str(tmp_path))
    assert said(OSError(f"{tmp_path}/x.csv is missing")) == f"{tmp_path}/x.csv is missing"
    monkeypatch.setenv(name, "/" + "k" * 5000)
    assert said(OSError(f"no {'/' + 'k' * 5000}")) == f"no [{name}]"


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("", ""),
        ("so far\nso good\n", "so good"),
        ("warning: odd\nerror: no such folder\nbye\n", "error: no such folder"),
        (
            "[rank0]: Traceback (most recent call last):\n[rank0]:   File 'a.py', line 1\n[rank0]:     engine()\n"
            "[rank0]: coachrl.errors.EngineLost: it is gone\n[rank0]:[W1] Warning: destroy_process_group()\n",
            "coachrl.errors.EngineLost: it is gone",
        ),
        (
            "Traceback (most recent call last):\n  File 'a.py'\nKeyError: 'a'\n\nWhile handling it, another\n\n"
            "Traceback (most recent call last):\n  File 'b.py'\nValueError: b\nException ignored in: <function f>\n"
            "Traceback (most recent call last):\n  File 'c.py'\nTypeError: c\n",
            "ValueError: b",
        ),
        (
            "(EngineCore pid=3) Traceback (most recent call last):\n(EngineCore pid=3) RuntimeError: no\nend\n",
            "RuntimeError: no",
        ),
        ("Traceback (most recent call last):\n  File 'a.py'\n", "File 'a.py'"),
    ],
)
def test_the_error_that_a_program_ended_with_is_told_whatever_is_said_after_it(output, told):
    assert error_told(output) == told


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "hf_token",
        "X_PASSWORD",
        "PGPASSWORD",
        "MYSQL_PWD",
        "SMTP_PASS",
        "GH_PAT",
        "NPM_AUTH",
        "OPENAI_CUSTOM_HEADERS",
        "GPG_PASSPHRASE",
        "DB_PASSWD",
        "AWS_CREDENTIALS",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "PATH", "LD_LIBRARY_PATH", "PATTERN", "AUTHOR", "COMPASS", "HOME"])
def test_names_of_no_secrets(name: str) -> None:
    assert not names_secret(name)
