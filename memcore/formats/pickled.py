"""A pickle as plain values: numbers, texts, lists, tuples and dictionaries. Nothing is called.

Python's own Unpickler makes room for as many memoized values as a file says it has, hashes tuples
of any depth, and builds what a file names. Here a file takes no more than its own bytes allow.
"""

from __future__ import annotations

import struct
from typing import Any

MAX_CONTAINERS = 4_000_000  # lists, tuples and dictionaries of one file: some hundred MiB

# Opcodes, as Python's pickletools name them.
PROTO, FRAME, STOP, MARK = 0x80, 0x95, ord("."), ord("(")
EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE = ord("]"), ord("}"), ord(")")
APPEND, APPENDS, SETITEM, SETITEMS = ord("a"), ord("e"), ord("s"), ord("u")
TUPLE, TUPLES = ord("t"), {0x85: 1, 0x86: 2, 0x87: 3}
BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET = ord("q"), ord("r"), 0x94, ord("h"), ord("j")
CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False}
NUMBERS = {ord("K"): "<B", ord("M"): "<H", ord("J"): "<i", ord("G"): ">d"}
LONGS = {0x8A: 1, 0x8B: 4}  # with how many bytes say their length
TEXTS = {0x8C: 1, ord("X"): 4, 0x8D: 8, ord("U"): 1, ord("T"): 4, ord("C"): 1, ord("B"): 4}


def plain_values(data: bytes) -> Any:
    """What a pickle holds. Raises ValueError where it is damaged, where it would build more than
    plain values, or where these are too many."""
    try:
        return _values(data)
    except (LookupError, TypeError, AttributeError, struct.error):
        raise ValueError("it is damaged, or it was not written to its end") from None


def _values(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    at = made = 0

    def taken(size: int) -> bytes:
        nonlocal at
        found = data[at : at + size]
        if size > len(data) or len(found) < size:
            raise IndexError
        at += size
        return found

    def since_mark() -> list[Any]:
        start = marks.pop()
        found = stack[start:]
        del stack[start:]
        return found

    while True:
        code = data[at]
        at += 1
        if code == BINGET:
            stack.append(memo[data[at]])
            at += 1
        elif code == LONG_BINGET:
            stack.append(memo[int.from_bytes(taken(4), "little")])
        elif code == MEMOIZE:
            memo[len(memo)] = stack[-1]
        elif code == BINPUT:
            memo[data[at]] = stack[-1]
            at += 1
        elif code == LONG_BINPUT:
            memo[int.from_bytes(taken(4), "little")] = stack[-1]
        elif code in NUMBERS:
            form = NUMBERS[code]
            stack.append(struct.unpack(form, taken(struct.calcsize(form)))[0])
        elif code in LONGS:
            size = int.from_bytes(taken(LONGS[code]), "little")
            stack.append(int.from_bytes(taken(size), "little", signed=True))
        elif code in TEXTS:
            size = int.from_bytes(taken(TEXTS[code]), "little")
            stack.append(taken(size).decode("utf-8", "replace"))
        elif code in CONSTANTS:
            stack.append(CONSTANTS[code])
        elif code == MARK:
            marks.append(len(stack))
        elif code == APPEND:
            value = stack.pop()
            stack[-1].append(value)
        elif code == APPENDS:
            values = since_mark()
            stack[-1].extend(values)
        elif code in (SETITEM, SETITEMS):
            values = since_mark() if code == SETITEMS else [stack.pop(-2), stack.pop()]
            _put(stack[-1], values)
        elif code in (EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE, TUPLE) or code in TUPLES:
            made += 1
            if made > MAX_CONTAINERS:
                raise ValueError(f"it holds more than {MAX_CONTAINERS:,} lists and dictionaries")
            if code in (EMPTY_LIST, EMPTY_DICT):
                stack.append([] if code == EMPTY_LIST else {})
            elif code in TUPLES:
                values = [stack.pop() for _ in range(TUPLES[code])]
                stack.append(tuple(reversed(values)))
            else:
                stack.append(tuple(since_mark()) if code == TUPLE else ())
        elif code == STOP:
            return stack.pop()
        elif code == PROTO:
            at += 1
        elif code == FRAME:
            at += 8
        else:
            raise ValueError(f"it would build more than plain values ({_name(code)})")


def _put(into: Any, values: list[Any]) -> None:
    """Keys and values in turn into a dictionary. Only texts and numbers are keys: a tuple may be
    too deep to be hashed."""
    keys = values[::2]
    if type(into) is not dict or len(values) % 2 or not all(type(k) in (str, int) for k in keys):
        raise TypeError
    into.update(zip(keys, values[1::2], strict=True))


def _name(code: int) -> str:
    import pickletools

    known = {op.code: op.name for op in pickletools.opcodes}
    return known.get(chr(code), f"the unknown opcode {code}")
