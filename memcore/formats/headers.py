"""Headers: which tensors files of weights have, without a byte of the weights.

safetensors as its README and safetensors/src/tensor.rs have the format, GGUF as ggml/docs/gguf.md
and ggml/src/gguf.cpp. Files are a stranger's: every length is checked before anything of that
length is read, and the work is bounded.
"""

from __future__ import annotations

import json
import math
import struct
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from memcore.errors import refusal, shown
from memcore.shipped import PRESETS
from memcore.units import bytes_text

MOST_JSON = (
    2**24
)  # bytes of safetensors' header; of DeepSeek-V3's 91,000 tensors it were 11 million
MOST_HEADER = 2**27  # bytes of GGUF's; the largest vocabularies take 20 million
MOST_STRINGS = 2_000_000  # in GGUF's lists; the largest vocabularies have 800,000
MOST_NAME, MOST_KEYS, MOST_TENSORS, MOST_DIMS = 2**16, 2**16, 2**18, 8
MOST_KEPT = 2**12  # numbers of a list that are read; of a longer one its length alone
MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file: its path and type, as the file has them, its values and its bytes."""

    path: str
    type: str
    values: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself. metadata: GGUF's keys, of a long list its length as a Count."""

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, Any]


class Count(int):
    """The length of a list whose values were not read."""


# ---- safetensors

BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


def safetensors_header(file: BinaryIO, size: int) -> Header:
    """The header of a safetensors file of so many bytes. Raises PlanError, which names what is
    wrong."""
    start = file.read(8)
    if len(start) < 8:
        raise refusal("", f"no safetensors file: {len(start)} bytes, and its length alone takes 8")
    (length,) = struct.unpack("<Q", start)
    if length > size - 8:
        raise refusal(
            "",
            f"the header's length is {length:,} bytes, and the file has {size:,}: it "
            "is cut off, or no safetensors file",
        )
    if length > MOST_JSON:
        raise refusal("", f"the header's length is {length:,} bytes; {MOST_JSON:,} are read")
    text = file.read(length)
    if (objects := text.count(b"{")) > MOST_TENSORS:
        raise refusal("", f"the header has {objects:,} objects; {MOST_TENSORS:,} are read")
    try:
        document = json.loads(text.decode(), object_pairs_hook=_no_repeats)
    except RecursionError:
        raise refusal("", "the header is nested too deeply") from None
    except UnicodeDecodeError:
        raise refusal("", "the header is no text in UTF-8") from None
    except json.JSONDecodeError as e:
        raise refusal("", f"the header is not JSON: {e.msg} (column {e.colno})") from None
    except ValueError as e:
        raise refusal("", f"the header has {e}") from None
    if not isinstance(document, dict):
        raise refusal("", "the header is no JSON object, in braces")
    metadata = document.pop("__metadata__", {})
    places = [(*_place(name, said), name) for name, said in document.items()]
    _check_places(((begin, end, name) for _, begin, end, name in places), size - 8 - length, 1)
    tensors = tuple(tensor for tensor, *_ in places)
    return Header(tensors, metadata if isinstance(metadata, dict) else {})


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{shown(twice)} twice")
    return found


def _place(name: str, said: Any) -> tuple[Tensor, int, int]:
    """A tensor, and where its bytes begin and end."""

    def whole(value: Any) -> bool:
        return type(value) is int and 0 <= value < 2**63

    of = f"tensor {shown(name)}"
    if not isinstance(said, dict) or not {"dtype", "shape", "data_offsets"} <= said.keys():
        raise refusal("", f"{of} has not dtype, shape and data_offsets")
    dtype, shape, ends = said["dtype"], said["shape"], said["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise refusal("", f"{of} has the dtype {shown(dtype)}, which safetensors has not")
    if not isinstance(shape, list) or len(shape) > 64 or not all(map(whole, shape)):
        raise refusal("", f"{of} has the shape {shown(shape)}")
    if not isinstance(ends, list) or len(ends) != 2 or not all(map(whole, ends)):
        raise refusal("", f"{of} has the data_offsets {shown(ends)}")
    values, (begin, end) = math.prod(shape), ends
    if values * BITS[dtype] != (end - begin) * 8:
        raise refusal("", f"{of} has {values:,} values in {dtype}, and {end - begin:,} bytes")
    return Tensor(name, dtype, values, end - begin), begin, end


def _check_places(places: Iterable[tuple[int, int, str]], size: int, alignment: int) -> None:
    """Refuses tensors that overlap, that leave more room than an alignment needs, or that end
    behind the file's end. size: bytes of the file behind its header."""
    at = 0
    for begin, end, name in sorted(places):
        of = f"tensor {shown(name)}"
        if begin < at:
            raise refusal(
                "", f"{of} begins at byte {begin:,}, in the bytes of another, which ends at {at:,}"
            )
        if begin - at >= alignment:
            raise refusal(
                "", f"{of} begins at byte {begin:,}, and what is before it ends at {at:,}"
            )
        if end > size:
            raise refusal(
                "",
                f"{of} ends at byte {end:,}, and the file has {size:,} behind its "
                "header: it is cut off",
            )
        at = end
    if alignment == 1 and size > at:
        raise refusal("", f"{bytes_text(size - at)} behind the last tensor are no tensor's")


# ---- GGUF

GGUF: dict[str, Any] = tomllib.loads(PRESETS.joinpath("gguf.toml").read_text(encoding="utf-8"))
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _LIST = 8, 9


class _Cursor:
    """What comes next in a file; refuses what would lie behind its end or the bound."""

    def __init__(self, file: BinaryIO, size: int):
        self.file, self.size, self.at, self.strings = file, size, 0, 0

    def take(self, n: int, what: str) -> bytes:
        if n > self.size - self.at:
            raise refusal(
                "",
                f"{what} takes {n:,} bytes, and {self.size - self.at:,} are left: the "
                "file is cut off, or no GGUF file",
            )
        if self.at + n > MOST_HEADER:
            raise refusal("", f"the header has more than {MOST_HEADER:,} bytes, with {what}")
        self.at += n
        data = self.file.read(n)
        if len(data) < n:
            raise refusal("", f"the file ended in {what}")
        return data

    def number(self, kind: int, what: str) -> Any:
        code = f"<{_NUMBERS[kind]}"
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def count(self, what: str, most: int) -> int:
        n: int = self.number(10, what)
        if n > most:
            raise refusal("", f"{what} is {n:,}; {most:,} are read")
        return n

    def string(self, what: str, most: int = MOST_HEADER) -> str:
        return self.take(self.count(f"the length of {what}", most), what).decode(errors="replace")

    def value(self, key: str) -> Any:
        kind, what = self.number(4, f"the type of {key}"), f"the value of {key}"
        if kind == _STRING:
            return self.string(what)
        if kind in _NUMBERS:
            return self.number(kind, what)
        if kind != _LIST:
            raise refusal("", f"{what} has the type {kind}, which GGUF has not")
        kind, n = self.number(4, what), self.number(10, f"the length of {key}")
        if kind == _STRING:
            self.strings += n
            if self.strings > MOST_STRINGS:
                raise refusal("", f"{what} has {n:,} texts; {MOST_STRINGS:,} are read in all")
            for _ in range(n):
                self.take(int.from_bytes(self.take(8, what), "little"), what)
            return Count(n)
        if kind not in _NUMBERS:
            raise refusal("", f"{what} is a list of the type {kind}, which is not read")
        data = self.take(n * struct.calcsize(_NUMBERS[kind]), what)
        return list(struct.unpack(f"<{n}{_NUMBERS[kind]}", data)) if n <= MOST_KEPT else Count(n)


def gguf_header(file: BinaryIO, size: int) -> Header:
    """The header of a GGUF file of so many bytes. Raises PlanError, which names what is wrong."""
    cursor = _Cursor(file, size)
    if cursor.take(4, "its first word") != MAGIC:
        raise refusal("", "no GGUF file: it does not begin with GGUF")
    version = cursor.number(4, "its version")
    if version not in (2, 3):
        more = ", of a machine with the other order of bytes" if version > 2**16 else ""
        raise refusal("", f"GGUF of version {version}{more}; 2 and 3 are read")
    tensors = cursor.count("the number of tensors", MOST_TENSORS)
    metadata: dict[str, Any] = {}
    for _ in range(cursor.count("the number of keys", MOST_KEYS)):
        key = cursor.string("a key", MOST_NAME)
        if key in metadata:
            raise refusal("", f"the key {shown(key)} is there twice")
        metadata[key] = cursor.value(shown(key))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 2**16 or alignment & (alignment - 1):
        raise refusal("", f"general.alignment is {shown(alignment)}, and no power of two")
    found: dict[str, tuple[Tensor, int]] = {}
    for _ in range(tensors):
        tensor, begin = _described(cursor)
        if tensor.path in found:
            raise refusal("", f"the tensor {shown(tensor.path)} is there twice")
        if begin % alignment:
            raise refusal(
                "",
                f"tensor {shown(tensor.path)} begins at byte {begin:,}, which does "
                f"not divide by {alignment}",
            )
        found[tensor.path] = tensor, begin
    places = ((at, at + tensor.bytes, tensor.path) for tensor, at in found.values())
    start = math.ceil(cursor.at / alignment) * alignment
    _check_places(places, max(0, size - start), alignment)
    return Header(tuple(tensor for tensor, _ in found.values()), metadata)


def _described(cursor: _Cursor) -> tuple[Tensor, int]:
    """The next tensor, and where its bytes begin."""
    name = cursor.string("a tensor's name", MOST_NAME)
    of = f"tensor {shown(name)}"
    dims = cursor.number(4, f"the dimensions of {of}")
    if dims > MOST_DIMS:
        raise refusal("", f"{of} has {dims:,} dimensions")
    shape = [cursor.number(10, f"the shape of {of}") for _ in range(dims)]
    number = cursor.number(4, f"the type of {of}")
    if str(number) not in GGUF["types"]:
        raise refusal("", f"{of} has the type {number}, which is not known")
    kind, block, size = GGUF["types"][str(number)]
    values, row = math.prod(shape), shape[0] if shape else 1
    if row % block or values >= 2**63:
        raise refusal("", f"{of} has rows of {row:,} values, and {kind} has blocks of {block}")
    begin = cursor.number(10, f"the offset of {of}")
    return Tensor(name, kind, values, values // block * size), begin
