"""Seeded damage to what users write: configurations, overrides, prompts and task files."""

# ruff: noqa: E501
from coachrl.config import RunConfig
from coachrl.config.section import sections_in

# What a YAML value may be that no setting expects, and what YAML's own constructors stumble over.
VALUES = (
    *("2001-13-45", "2001-01-01 99:99:99", "0x_", "0b_", "0o9", "1_000", "1e999", ".inf", "-.inf", ".nan", "-0", "~", "null"),
    *("!!bool maybe", "!!int ''", "!!int x", "!!float x", "!!timestamp never", "!!binary '%'", "!!python/object:os.system x"),
    *("!!set {a, b}", "!!omap [a]", "!!pairs [a]", "!unknown x", "*nowhere", "&a [*a]", "{a: b", "[1, 2", "'open", '"\\xZZ"'),
    *("? [a, b]\n: c", "{[a]: b}", "{{a: b}: c}", "{1: 2}", "{null: 2}", "{2001-01-01: 2}", "<<: 3", "{<<: [1]}", "a: b: c"),
    *('"a\\0b"', '"\\e[2J"', '"\\u202e"', '"\\ud800"', "a\x00b", "\ud800", "\udcff", "\x1b[31m", "\u2028", "[red]", "[/link]"),
    *("~root/x", "~nobody-here/x", "../../etc/passwd", "/etc/passwd", "/", ".", "..", "", " ", "%s%n", "{0}", "{x.__class__}"),
    *("9" * 30, "-" + "9" * 30, "9" * 5000, "0x" + "f" * 5000, "1:" * 900 + "1", "x" * 300, "x/" * 3000 + "x", "[" * 90, "[" * 3000),
    *("[" * 70 + "]" * 70, "[" * 900 + "]" * 900, "{a: " * 80 + "1" + "}" * 80, "true", "[]", "{}", "[[]]", "[a, 1, null]"),
    "{a: &a [x,x,x,x,x,x,x,x,x], b: &b [*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c], "
    "e: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]}",
    *("http://user:secret@host/v1", "http://[::1", "http://", "latest", "no_such.module:Name", "coachrl.nowhere:X", "os:path", ":"),
)  # fmt: skip

JSON_VALUES = (
    *('"\\ud800"', '"\\u0000"', "NaN", "-Infinity", "1e999", "9" * 5000, "-1", "0.1", "true", "null", "[]", "{}", '""', '" "'),
    *("[" * 70 + "]" * 70, "[" * 100_000, '{"a":' * 2000, '"' + "x" * 5000 + '"', '["a", 1]', '{"a": 1}', '"../../etc/passwd"'),
    *('"/etc/passwd"', '"data_resplit/../../etc/passwd"', '"a\\u0000b"', '"' + "y/" * 3000 + '"', '"\\u001b[2J"', "'x'", "tru", "1_0"),
)  # fmt: skip


def setting_keys(section=RunConfig, prefix=""):
    """Dotted keys of all settings and sections."""
    keys = []
    for name, field in section.model_fields.items():
        keys.append(prefix + name)
        for part in sections_in(field.annotation):
            keys += setting_keys(part, f"{prefix}{name}.")
    return keys


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def damaged_override(rng, keys):
    """`key.sub=value` with a value that is odd, or a key that is."""
    key = pick(rng, keys)
    if rng.random() < 0.1:
        key += pick(rng, (".", ".x", "..y", ".\x00", "[0]", ".\ud800", "\n", "." + "k" * 5000))
    return f"{key}={pick(rng, VALUES)}"


def damaged_text(rng, text, values):
    """`text` with one to three changes of the category that a slip, a torn copy or a hostile hand makes."""
    data = text.encode()
    for _ in range(int(rng.integers(1, 4))):
        data = pick(rng, (_bytes_changed, _cut, _lines_moved, _value_changed, _value_changed))(rng, data, values)
    return data


def _bytes_changed(rng, data, values):
    place = int(rng.integers(len(data) + 1))
    odd = pick(
        rng,
        (
            b"\0",
            b"\xff",
            b"\xed\xa0\x80",
            b"\x1b[2J",
            b"\t",
            b":",
            b"{",
            b"]",
            b'"',
            b"&",
            b"*",
            b"\xef\xbb\xbf",
            b"\n---\n",
        ),
    )
    return data[:place] + odd + data[place + int(rng.integers(3)) :]


def _cut(rng, data, values):
    return data[: int(rng.integers(len(data) + 1))]


def _lines_moved(rng, data, values):
    lines = data.splitlines(keepends=True) or [b""]
    source, target = (int(rng.integers(len(lines))) for _ in range(2))
    return b"".join([*lines[:target], lines[source], *lines[target:]])


def _value_changed(rng, data, values):
    """The value behind one colon becomes another."""
    places = [place for place in range(len(data)) if data[place : place + 1] == b":"]
    if not places:
        return data
    start = pick(rng, places) + 1
    ends = [data.find(mark, start) for mark in (b"\n", b',"', b', "', b"}")]
    end = min((end for end in ends if end >= 0), default=len(data))
    return data[:start] + b" " + pick(rng, values).encode("utf-8", "surrogatepass") + data[end:]
