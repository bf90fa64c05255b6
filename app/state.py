"""State: the session's plan, in step with the address bar.

What it guarantees, and by what:
- No edit is lost, whatever a run is stopped by: choices are read from the widgets when a run begins
  (controls.py), and a choice that nobody took is still there in the next.
- No old value comes back: a widget's value that a later run changed is no choice of anybody's.
- The page never shows what is no plan: `draft` is what the widgets show, `plan` the last valid one;
  they differ only while `problems` says why.
- The address always decodes to the plan, its name, the pinned plans and what was measured; it is
  written in `publish` and nowhere else.
- A link that is opened, Back and Forward are read. A browser that has not heard of the newest
  address sends an older one along with whatever it asks: one that this session has seen before is
  read again only where the browser has drawn the run that wrote the newest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode

import streamlit as st

from app import address, shared
from app.address import MOST_LOOK, Content, Pin, Query
from app.controls import Controls, Take
from memcore import PlanError
from memcore.errors import Issue
from memcore.plan.keys import BENCHED, LOOK, MEASURED, VERSION
from memcore.plan.link import begun, nearest
from memcore.plan.measured import Measured
from memcore.plan.plan import Plan, change_texts, get, put, value_text
from memcore.plan.repair import followed, repair
from memcore.report import Report
from memcore.search.change import differences

DEFAULT = Plan()  # where everybody starts


@dataclass
class Session:
    """All that a session knows of its plan.

    One object, since at every use of `st.session_state` a run may be stopped for the next: it is
    asked for first, and then changed, so that none finds half of a change.
    """

    plan: Plan
    form: int = VERSION  # of the link that it began with: what it does not say is no change
    draft: dict[str, Any] = field(default_factory=dict)
    problems: tuple[Issue, ...] = ()
    asked: tuple[str, ...] = ()  # fields that were set since the draft was last a plan
    suggested: Sequence[str] = ()  # models that may have been meant
    adjusted: Sequence[Issue] = ()  # what gave way to what was done last, or was assumed for it
    applied: list[tuple[Plan, Plan, str]] = field(default_factory=list)  # before, after, by what
    pins: tuple[Pin, ...] = ()
    name: str = ""  # of the plan, until it changes
    measured: dict[str, Measured] = field(default_factory=dict)  # by its key in the address
    looks: dict[str, str] = field(default_factory=dict)  # by page, what it shows of the plan
    link_issues: list[Issue] = field(default_factory=list)
    fresh: bool = False  # it began without a plan in its address
    page: str = ""
    query: Query = field(default_factory=dict)  # the address that was read or written last
    content: Content | None = None  # what it decodes to
    behind: bool = False  # whether the browser showed another when it asked for this run
    written: int = 0  # the run that wrote it
    known: set[int] = field(default_factory=set)  # all addresses so far
    controls: Controls = field(default_factory=Controls)
    # What this run draws last: where, the line that it comes, and it.
    later: tuple[Any, Any, Callable[[], None]] | None = None
    rested: Plan | None = None  # the plan of which that was drawn last

    @property
    def pin(self) -> Plan | None:
        """The plan that every figure is held against: the first that was pinned."""
        return self.pins[0].plan if self.pins else None

    @property
    def now(self) -> Content:
        """What the address ought to say."""
        look, measured = self.looks.get(self.page, ""), tuple(self.measured.values())
        return Content(self.plan, self.form, self.pins, self.name, look, measured)


def session() -> Session:
    """This session's; there is one from `begin` on."""
    s: Session = st.session_state.memplan
    return s


# --- the address ---------------------------------------------------------------------------------


def begin(page: str) -> None:
    """Take what was chosen, and the plan from the address when somebody else changed it. Call
    before any widget."""
    query = {key: st.query_params.get_all(key) for key in st.query_params}
    if "memplan" not in st.session_state:
        s = Session(Plan(), page=page, fresh=not query)
        _load(s, query)
        s.controls.run = 1
        st.session_state.memplan = s
        return
    s = session()
    s.controls.run += 1
    s.later = None
    s.behind = query != s.query
    seen = s.controls.seen()
    # A click in the navigation drops the query: the plan of this session goes on.
    moved = page != s.page and not query
    s.page = page
    # Who has drawn the run that wrote the newest address, and has another, went Back or Forward.
    # Who has not may only not have heard of it, unless nobody here has ever seen that address.
    if s.behind and not moved and (seen >= s.written or _hash(query) not in s.known):
        _load(s, query)  # and then what was pressed there
    elif s.behind:
        seen = min(seen, s.written - 1)  # who has not the address has nothing else of that run
    s.controls.chosen(seen)


def publish() -> None:
    """Write the plan into the address where the browser shows another, or soon will."""
    s = session()
    now = s.now
    if not s.behind and s.content == now:
        return
    if s.content != now:
        s.query, s.content = {key: [value] for key, value in now.query().items()}, now
        s.known.add(_hash(s.query))
        s.written = s.controls.run
    # Also one that the browser has: an older one may be under way to it.
    st.query_params.from_dict(s.query)
    s.behind = False


def query() -> dict[str, str]:
    """The plan, and those that are pinned, as the query that every link to another view carries."""
    return {key: values[-1] for key, values in session().query.items() if key != LOOK}


def _hash(query: Query) -> int:
    """What an address is remembered by: with a config.json in it, it is long."""
    return hash(urlencode(query, doseq=True))


def open_query(query: str) -> None:
    """Show what the query of a link says that somebody pasted."""
    s = session()
    _load(s, parse_qs(query, keep_blank_values=True))
    s.content, s.written = None, s.controls.run + 1  # the address bar has another until that run


def _load(s: Session, query: Query) -> None:
    content, s.link_issues = address.read(query)
    _accept(s, content.plan)
    s.form, s.pins, s.name = content.form, content.pins, content.name
    s.measured = {BENCHED if each.of_server else MEASURED: each for each in content.measured}
    s.looks = {**s.looks, s.page: content.look}
    s.query, s.content = query, s.now
    s.known.add(_hash(query))


def _accept(s: Session, plan: Plan) -> None:
    if plan != s.plan:
        s.name = ""  # it was another's
    s.plan, s.draft, s.problems, s.suggested = plan, plan.document(), (), ()
    s.asked, s.adjusted = (), ()


def plan() -> Plan:
    """The last valid plan."""
    return session().plan


def report() -> Report:
    """What the engine says about the plan."""
    return shared.report(plan())


def pinned() -> Report | None:
    """The report of the pinned plan, if one is pinned."""
    pin = session().pin
    return shared.report(pin) if pin else None


def applied() -> str:
    """What was applied last, while the plan is what it made of it."""
    done = session().applied
    return done[-1][2] if done and done[-1][1] == plan() else ""


def changed() -> dict[str, Any]:
    """What of the plan is not as its link means it where it says nothing, by field."""
    return differences(begun(session().form), plan())


def drafted(path: str) -> Any:
    """What the widget of a field shows."""
    return get(session().draft, path)


def looks() -> str:
    """What this page is to show of the plan, as the address has it, or ''."""
    s = session()
    return s.looks.get(s.page, "")


# --- what widgets call ---------------------------------------------------------------------------


def control(key: str, value: Any, take: Take) -> str:
    """Let the widget with this key show `value`; what is chosen in it, `take` takes."""
    return session().controls.show(key, value, take)


def change(changes: Mapping[str, Any]) -> None:
    """Change fields of the draft; the plan follows when the draft is valid. Where it is not, the
    nearest valid plan that has what was just chosen is shown, if there is one: what it cannot have
    with it gives way, the page says what, and `undo` takes it all back."""
    s = session()
    s.link_issues = []
    s.draft = _with(s.draft, changes)
    try:
        _accept(s, Plan.of(s.draft))
        return
    except PlanError as e:
        s.problems = e.issues
    s.asked = tuple(dict.fromkeys([*(p for p in s.asked if p not in changes), *changes]))
    model = "model" in changes  # it brings its own limits
    near, mended = repair(s.draft, given=("model",)) if model else nearest(s.draft, s.asked)
    document = near.document()
    if all(get(document, path) == value for path, value in changes.items()):
        replace(near, "this model" if model else " and ".join(change_texts(changes)), mended)


def _with(draft: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Another draft, of which no more is new than what leads to a change."""
    for path, value in changes.items():
        section = path.partition(".")[0]
        before = draft[section]
        draft = draft | {section: dict(before) if isinstance(before, dict) else before}
        put(draft, path, value)
    return draft


def with_followers(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes, and what of the framework's own words must follow them, as the rules have it."""
    return followed(session().draft, changes)


def change_with_followers(changes: Mapping[str, Any]) -> None:
    """Change fields, and what of the framework's own words must follow them; the page says what
    did, and `undo` takes it all back."""
    s = session()
    before, every = s.plan, with_followers(changes)
    change(every)
    was = before.document()
    moved = {p: v for p, v in every.items() if p not in changes and get(was, p) != v}
    if moved and not s.problems and not s.adjusted:
        s.adjusted = [
            Issue(p, f"{value_text(p, v)} is used in place of {value_text(p, get(was, p))}")
            for p, v in moved.items()
        ]
        s.applied.append((before, s.plan, " and ".join(change_texts(changes))))


def replace(plan: Plan, by: str = "", adjusted: Sequence[Issue] = ()) -> None:
    """Show another plan. What it was made `by`, and what gave way to that, the page says, and
    `undo` takes it back."""
    s = session()
    before, s.link_issues = s.plan, []
    _accept(s, plan)
    if by:
        s.applied.append((before, plan, by))
        s.adjusted = adjusted


def begin_with(plan: Plan, by: str = "", adjusted: Sequence[Issue] = ()) -> None:
    """Show another plan altogether: what it does not say is as it is today."""
    replace(plan, by, adjusted)
    session().form = VERSION


def undo() -> None:
    """Take back what was applied last."""
    if applied():
        before, _, _ = session().applied.pop()
        replace(before)


def look(text: str) -> None:
    """Let the address say what this page shows of the plan."""
    s = session()
    s.looks = {**s.looks, s.page: text[:MOST_LOOK]}
