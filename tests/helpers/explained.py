"""Explanations held against the report that they explain, and against each other."""

import math

from memcore.quantity.formula import CERTAINTIES

ROUNDING = 1e-9  # of floating-point sums in another order
VIRTUAL = (  # what pages compute from the report
    *("memory.room_bytes", "memory.overhead_bytes.0", "memory.overhead_bytes.1"),
    *("time.tokens", "time.traffic.hbm", "time.traffic.nvlink", "time.hidden.compute"),
    *("serve.asked_bytes", "serve.replica_bytes", "serve.wasted_bytes", "serve.running"),
    *("serve.asked_kv_bytes", "serve.asked_state_bytes"),
)


def numbers(value, path=""):
    """Every number and yes or no of a report, by its path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from numbers(inner, f"{path}.{i}")
    elif isinstance(value, (int, float)):
        yield path, value


def agree(ours, theirs):
    if isinstance(ours, float) or isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=ROUNDING, abs_tol=1e-30) or ours == theirs
    return ours == theirs


MANY = ("time.operations.", "ledger.", "serve.rows.", "memory.timeline.")


def checked(book, share=0):
    """Explanations of a report, and of their parts, held against the report and each other.

    Of what a report has many of, every tenth from `share` on; the others with the sums they are in.
    """
    document = book.report.to_dict()
    reported = {p: v for p, v in numbers(document) if not p.startswith("plan.")}
    paths = set(book.paths())
    missing = [p for p in reported if p not in paths]
    assert not missing, missing[:5]
    many = [p for p in reported if p.startswith(MANY)]
    left_out = set(many) - set(many[share::10])
    reported = {p: value for p, value in reported.items() if p not in left_out}
    for path, value in reported.items():
        assert agree(book.explain(path).value, value), path
    words = {"memory": ("verdict",), "time": ("bound_by",), "serve": ("prefill_bound_by",)}
    for part, fields in words.items():
        for field in fields:
            if field in document.get(part, {}):  # nothing is served where nothing fits
                assert book.explain(f"{part}.{field}").value == document[part][field]
    known_paths, open_ = set(), [*reported, *(v for v in VIRTUAL if v.split(".")[0] in document)]
    while open_:
        path = open_.pop()
        if path in known_paths:
            continue
        known_paths.add(path)
        e = book.explain(path)
        assert e.what
        assert e.certainty in CERTAINTIES
        assert e.formula is not None or e.sources, path
        if e.formula is None:
            continue
        assert agree(e.formula.value, e.value), path
        assert e.formula.words
        for term in e.parts:
            assert term.path or term.source, (path, term)
            if term.path:
                part = book.explain(term.path)
                assert part.value == term.value, (path, term.path)
                assert CERTAINTIES.index(part.certainty) <= CERTAINTIES.index(e.certainty)
                open_.append(term.path)
    return known_paths
