"""`memplan link`: a plan as a link that opens it in the app."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memcore.cli.arguments import HOME
from memcore.cli.printing import json_text
from memcore.cli.reading import given_plan, measured_of
from memcore.errors import Issue, PlanError
from memcore.words.jobs import VIEWS

if TYPE_CHECKING:
    from memcore.plan.measured import Measured
    from memcore.plan.plan import Plan


def link_to(
    plans: Sequence[Plan],
    base: str = HOME,
    long: bool = False,
    measured: Measured | None = None,
) -> str:
    """One link to a plan, on the page of what it is about, with up to five others pinned beside
    it, and a step or a server that was measured."""
    from memcore.plan.keys import PINS
    from memcore.plan.link import encode_pin, query_text

    query = _query(plans[0], long, measured)
    query |= dict(zip(PINS, map(encode_pin, plans[1:]), strict=False))
    if "?" in base:  # leads to a page already
        return f"{base}&{query_text(query)}"
    view = VIEWS.get(plans[0].about, "")
    return f"{base}{'/' * bool(view and not base.endswith('/'))}{view}?{query_text(query)}"


def _query(plan: Plan, long: bool, measured: Measured | None) -> dict[str, str]:
    from memcore.plan.link import encode, encode_measured

    return {**encode(plan, short=not long), **(encode_measured(measured) if measured else {})}


def run(args: argparse.Namespace) -> int:
    from memcore.plan.link import NOT_HELD, is_held

    plan, measured = given_plan(args), measured_of(args)
    if not is_held(plan):
        raise PlanError([Issue("model", NOT_HELD)])
    link = link_to([plan], args.base, args.long, measured)
    if args.json:
        query = _query(plan, args.long, measured)
        print(json_text({"link": link, "query": query}, indent=1))
    else:
        print(link)
    return 0
