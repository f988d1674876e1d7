"""Damaged files: intact ones, changed at random in every way that damage or malice may take.

The seed decides everything, so that an input that found a fault can be reproduced.
"""

from __future__ import annotations

import copy
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

TOKENS = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"0", b"1e-999", b"9" * 30, b"9" * 5000, b"1e308", b"null",
    b"true", b'""', b"[]", b"{}", b"[" * 300, b"[" * 20_000, b'{"a":' * 20_000, b"[" * 30 + b"]" * 30, b"\xff\xfe",
    b"\xc3", b"\x00", b"\n", b"\r", b"\t", b" ", b",", b":", b"- ", b"? ", b"| ", b"&a ", b"*a", b"&a [*a]", b"<<: *a",
    b"!!python/object/apply:os.system [true]", b"!!int x", b"!!timestamp x", b"!!bool x", b"!!binary x", b"2001-99-99",
    b"---\n", b"...\n", b"%YAML 9.9\n", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000", b'"\\ud800"',
    b"\x1b[31m", b"</script>", b"../../x", b"x" * 3000, b"(", b"'", b'"', b"\\", b"-" * 4000 + b"1", b"0x" + b"f" * 400,
    struct.pack("<Q", 10**12), struct.pack("<q", -1), struct.pack("<I", 2**31), b"\xff" * 8, b"PK\x03\x04", b"PAR1",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 10**6, 2**31, 2**32, 10**12, 2**63, 2**64, 10**30, 10**400, 0.5, -0.5, 1e-320,
    1e308, float("nan"), float("inf"), "", "0", "nan", "x", "x" * 3000, "../../x", "/etc/x", "\x00", "\ud800",
    "\n\x1b[31m", "U8", "F64", "BF16", "|O", "<U100000", "V9", [], [[]], [None], [-1], [1, 2, 3], ["a"],
    [[1], [2, 3]], [10**12, 1], {}, {"a": 1}, {"": []},
    {"shape": [10**12], "dtype": "F32", "data_offsets": [0, 4 * 10**12]}, [0] * 2000,
]  # fmt: skip


# Bytes --------------------------------------------------------------------------------------------------------------


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with one to three changes."""
    for _ in range(int(rng.integers(1, 4))):
        data = _BYTE_CHANGES[int(rng.integers(len(_BYTE_CHANGES)))](data, rng)
    return data


def _range(data: bytes, rng: np.random.Generator) -> tuple[int, int]:
    """Somewhere in the bytes; short more often than long."""
    begin = int(rng.integers(0, len(data) + 1))
    return begin, min(len(data), begin + int(2 ** rng.uniform(0, 8)))


def _flip(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for place in rng.integers(0, max(1, len(data)), int(rng.integers(1, 9))):
        if place < len(changed):
            changed[place] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _any_byte(data: bytes, rng: np.random.Generator) -> bytes:
    begin, _ = _range(data, rng)
    return data[:begin] + bytes([int(rng.integers(256))]) + data[begin + 1 :]


def _cut(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: int(rng.integers(0, len(data) + 1))]


def _without(data: bytes, rng: np.random.Generator) -> bytes:
    begin, end = _range(data, rng)
    return data[:begin] + data[end:]


def _twice(data: bytes, rng: np.random.Generator) -> bytes:
    begin, end = _range(data, rng)
    return data[:end] + data[begin:end] * int(rng.integers(1, 4)) + data[end:]


def _insert(data: bytes, rng: np.random.Generator) -> bytes:
    begin, _ = _range(data, rng)
    return data[:begin] + TOKENS[int(rng.integers(len(TOKENS)))] + data[begin:]


def _overwrite(data: bytes, rng: np.random.Generator) -> bytes:
    begin, _ = _range(data, rng)
    token = TOKENS[int(rng.integers(len(TOKENS)))][: max(0, len(data) - begin)]
    return data[:begin] + token + data[begin + len(token) :]


def _splice(data: bytes, rng: np.random.Generator) -> bytes:
    (a, b), (c, d) = sorted((_range(data, rng), _range(data, rng)))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:] if b <= c else data[:a] + data[c:]


def _zeros(data: bytes, rng: np.random.Generator) -> bytes:
    begin, end = _range(data, rng)
    return data[:begin] + (b"\x00", b"\xff")[int(rng.integers(2))] * (end - begin) + data[end:]


def _larger_number(data: bytes, rng: np.random.Generator) -> bytes:
    """A digit in the text becomes many."""
    digits = [place for place, byte in enumerate(data) if 48 <= byte <= 57]
    if not digits:
        return data
    place = digits[int(rng.integers(len(digits)))]
    return data[:place] + data[place : place + 1] * int(rng.choice([2, 5, 12, 400])) + data[place + 1 :]


def _word_for_word(data: bytes, rng: np.random.Generator) -> bytes:
    """One of the file's own words in the place of another."""
    words = [word for word in data.replace(b'"', b" ").replace(b",", b" ").split() if 0 < len(word) < 40]
    if len(words) < 2:
        return data
    one, other = (words[int(i)] for i in rng.integers(0, len(words), 2))
    return data.replace(one, other, 1)


_BYTE_CHANGES: list[Callable[[bytes, np.random.Generator], bytes]] = [
    _flip, _any_byte, _cut, _without, _twice, _insert, _overwrite, _splice, _zeros, _larger_number, _word_for_word,
]  # fmt: skip


# Values -------------------------------------------------------------------------------------------------------------


def other_value(value: Any, rng: np.random.Generator) -> Any:
    """A plain value with one or two changes somewhere inside: a part missing, of another kind, or far too large."""
    value = copy.deepcopy(value)
    for _ in range(int(rng.integers(1, 3))):
        places = list(_places(value))
        if not places:
            return value
        holder, key = places[int(rng.integers(len(places)))]
        change = int(rng.integers(6))
        if change == 0:
            del holder[key]
        elif change == 1 and isinstance(holder[key], int | float):
            holder[key] = holder[key] * 10 ** int(rng.integers(1, 14)) * int(rng.choice([1, -1]))
        elif change == 2 and isinstance(holder, dict):
            holder[str(VALUES[int(rng.integers(len(VALUES)))])[:50]] = holder.pop(key)
        elif change == 3 and isinstance(holder[key], list):
            holder[key] = holder[key][: int(rng.integers(len(holder[key]) + 1))] * int(rng.integers(1, 4))
        elif change == 4:
            other, name = places[int(rng.integers(len(places)))]
            holder[key] = copy.deepcopy(other[name]) if name in _keys(other) else None
        else:
            holder[key] = copy.deepcopy(VALUES[int(rng.integers(len(VALUES)))])
    return value


def _keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in _keys(value) if isinstance(value, dict | list) else ():
        yield value, key
        yield from _places(value[key])


# Files --------------------------------------------------------------------------------------------------------------


class View(NamedTuple):
    """A file as a plain value, and back: so that changes reach what lies behind lengths and checksums."""

    unpack: Callable[[bytes], Any]
    pack: Callable[[Any], bytes]


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


JSON = View(json.loads, _dump)
JSON_LINES = View(
    lambda data: [json.loads(line) for line in data.splitlines()],
    lambda lines: b"\n".join(map(_dump, lines)) if isinstance(lines, list) else _dump(lines),
)


def _split_safetensors(data: bytes) -> dict[str, Any]:
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    said = header.get("__metadata__", {})
    for name, text in said.items():  # values inside texts, one level
        try:
            said[name] = {"json": json.loads(text)}
        except ValueError:
            continue
    return {"header": header, "body": data[8 + length :].hex()}


def _join_safetensors(parts: Any) -> bytes:
    header, body = parts.get("header"), parts.get("body")
    said = header.get("__metadata__") if isinstance(header, dict) else None
    if isinstance(said, dict):
        for name, text in said.items():
            said[name] = json.dumps(text["json"]) if isinstance(text, dict) and "json" in text else text
    text = _dump(header)
    try:
        rest = bytes.fromhex(body)
    except (TypeError, ValueError):
        rest = b""
    return struct.pack("<Q", len(text)) + text + rest


SAFETENSORS = View(_split_safetensors, _join_safetensors)


def _split_npz(data: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name).hex() for name in archive.namelist()}


def _join_npz(members: Any) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(str(name).replace("\x00", "") or "x", content)
    return packed.getvalue()


def npz_with_damaged_arrays(data: bytes, rng: np.random.Generator) -> bytes:
    """An intact zip archive of damaged arrays: zip's own checksums would otherwise catch most changes."""
    members = {name: bytes.fromhex(content) for name, content in _split_npz(data).items()}
    name = sorted(members)[int(rng.integers(len(members)))]
    head, body = members[name][:128], members[name][128:]
    if rng.integers(3):
        for old, new in ((b"<f8", b"|O"), (b"<i8", b"V9"), (b"(", b"(1000000000000, "), (b"(", b"(-3, "), (b"<", b">")):
            if not rng.integers(4):
                head = head.replace(old, new)
        members[name] = damaged(head, rng) + body
    else:
        members[name] = head + damaged(body, rng)
    return _join_npz(members)


def mutated(data: bytes, count: int, seed: int, views: Sequence[Any]) -> Iterator[bytes]:
    """``count`` changed versions of an intact file: half of them in its bytes, half in each of its views in turn."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        view = views[number // 2 % len(views)] if views and number % 2 else None
        if view is None:
            yield damaged(data, rng)
        elif isinstance(view, View):
            yield view.pack(other_value(view.unpack(data), rng))
        else:
            yield view(data, rng)
