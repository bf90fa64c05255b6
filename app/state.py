"""State: the session's plan, in step with the address bar.

The session holds a `draft` (what the widgets show) and the last valid `plan` (what the page shows);
they differ only while `problems` says why. The address always decodes to the plan. It is written
here and nowhere else, and a change of it that was not written here (a link, Back, Forward) is read.

A browser that has not heard of the newest address sends an older one along with whatever it asks.
So an address that this session has seen before is read again only where the browser says that
somebody went Back or Forward to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import streamlit as st

from app import places, shared
from app.controls import Controls, Take
from memcore import PlanError
from memcore.errors import Issue
from memcore.explain.book import Book
from memcore.formats import Text, machines, read_files
from memcore.formats.benches import bench_of, closed
from memcore.formats.memory import RunMemory
from memcore.formats.snapshot import read_memory
from memcore.models.families.drafts import family_of
from memcore.plan.field import described
from memcore.plan.keys import BENCHED, LOOK, MEASURED, NAME, PINS, VERSION
from memcore.plan.link import (
    MAX_NAME,
    begun,
    decode,
    decode_measured,
    decode_pin,
    encode,
    encode_measured,
    encode_pin,
    form_of,
    name_of,
    nearest,
    pin_name,
)
from memcore.plan.measured import Measured
from memcore.plan.models import draft_from
from memcore.plan.plan import Plan, change_texts, get, value_text
from memcore.plan.repair import followed, repair
from memcore.report import Report
from memcore.search.change import differences
from memcore.search.levers import Lever
from memcore.search.measured import Calibrated, refused
from memcore.search.measured import calibrated as calibrate
from memcore.search.solve import Answer
from memcore.search.waterfall import Change
from memcore.stream import Load, Stream, read_lengths
from memcore.stream.lengths import Lengths
from memcore.units import GiB, bytes_text
from memcore.words.training import COPIES

Query = dict[str, list[str]]
MOST_ADDRESSES = 1000  # that a session remembers; a browser is behind by a few
DEFAULT = Plan()  # where everybody starts
MOST_LOOK = 200  # characters of what a page shows


@dataclass(frozen=True, slots=True)
class Pin:
    """A plan that is kept to compare with, and what somebody calls it, or ''."""

    plan: Plan
    name: str = ""


@dataclass(frozen=True, slots=True)
class Says:
    """What an address decodes to: its plan, in the form of which link, with its name, those beside
    it, what its page shows of them, and the step and the server that somebody measured."""

    plan: Plan
    form: int
    pins: tuple[Pin, ...] = ()
    name: str = ""
    look: str = ""
    measured: Measured | None = None
    benched: Measured | None = None


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
    adjusted: list[Issue] = field(default_factory=list)
    adjusted_to: str = ""
    pins: tuple[Pin, ...] = ()
    name: str = ""  # of the plan, until it changes
    measured: Measured | None = None  # a step, of this plan or of another
    benched: Measured | None = None  # a server, likewise
    looks: dict[str, str] = field(default_factory=dict)  # by page, what it shows of the plan
    link_issues: list[Issue] = field(default_factory=list)
    fresh: bool = False  # it began without a plan in its address
    applied: list[tuple[Plan, Plan, str]] = field(default_factory=list)  # before, after, lever
    page: str = ""
    query: Query = field(default_factory=dict)  # the address that was read or written last
    says: Says | None = None  # what it decodes to
    behind: bool = False  # whether the browser showed another when it asked for this run
    written: int = 0  # the run that wrote it
    known: dict[int, None] = field(default_factory=dict)  # all addresses so far, the newest last
    controls: Controls = field(default_factory=Controls)
    later: tuple[Any, Callable[[], None]] | None = None  # what this run draws last, and where
    rested: Plan | None = None  # the plan of which that was drawn last

    @property
    def pin(self) -> Plan | None:
        """The plan that every figure is held against: the first that was pinned."""
        return self.pins[0].plan if self.pins else None

    @property
    def now(self) -> Says:
        """What the address ought to say."""
        look = self.looks.get(self.page, "")
        return Says(self.plan, self.form, self.pins, self.name, look, self.measured, self.benched)


def session() -> Session:
    """This session's; there is one from `begin` on."""
    found: Session = st.session_state.memplan
    return found


def begin(page: str) -> None:
    """Take what was chosen, and the plan from the address when somebody else changed it. Call
    before any widget."""
    query = {key: st.query_params.get_all(key) for key in st.query_params}
    if "memplan" not in st.session_state:
        s = Session(Plan(), page=page, fresh=not query)
        _load(s, query)
        s.controls.run = 1
        st.session_state.memplan = s
    else:
        _go_on(session(), page, query)


def _go_on(s: Session, page: str, query: Query) -> None:
    """One more run of a session that there is already."""
    s.controls.run += 1
    s.later = None
    s.behind = query != s.query
    seen = s.controls.seen()
    # A click in the navigation drops the query: the plan of this session goes on.
    moved = page != s.page and not query
    s.page = page
    # Who has drawn the run that wrote the newest address, and has another, went Back or Forward.
    # Who has not may only not have heard of it, unless nobody here has ever seen that address.
    if s.behind and not moved and (seen >= s.written or _named(query) not in s.known):
        _load(s, query)  # and then what was pressed there
    elif s.behind:
        seen = min(seen, s.written - 1)  # who has not the address has nothing else of that run
    s.controls.chosen(seen)


def publish() -> None:
    """Write the plan into the address where the browser shows another, or soon will."""
    s = session()
    if not s.behind and s.says == s.now:
        return
    if s.says != s.now:
        query = _written(s.now)
        _at(s, {key: [value] for key, value in query.items()}, s.now)
        s.written = s.controls.run
    # Also one that the browser has: an older one may be under way to it.
    st.query_params.from_dict(s.query)
    s.behind = False


def query() -> dict[str, str]:
    """The plan, and those beside it, as the query that every link to another view carries."""
    return {key: values[-1] for key, values in session().query.items() if key != LOOK}


def _at(s: Session, query: Query, says: Says) -> None:
    """The address is now this one."""
    s.query, s.says = query, says
    s.known.pop(_named(query), None)
    s.known[_named(query)] = None
    for oldest in list(s.known)[:-MOST_ADDRESSES]:
        del s.known[oldest]


def _named(query: Query) -> int:
    """What an address is remembered by: with a config.json in it, it is long."""
    return hash(urlencode(query, doseq=True))


def written() -> Callable[[], dict[str, str]]:
    """What writes the plan, and those beside it, as the query of an address."""
    says = session().now
    return lambda: _written(says)


def _written(says: Says) -> dict[str, str]:
    query = encode(says.plan, short=True, form=says.form)
    named = {NAME: says.name, LOOK: says.look}
    for each in filter(None, (says.measured, says.benched)):
        named |= encode_measured(each)
    query |= {key: text for key, text in named.items() if text}
    pins = zip(PINS, says.pins, strict=False)
    return query | {key: encode_pin(pin.plan, pin.name) for key, pin in pins}


def _load(s: Session, query: Query) -> None:
    plan, s.link_issues = decode(query) if query else (Plan(), [])
    s.form = form_of(query) if query else VERSION
    found = []
    for key in PINS:
        if text := query.get(key, [""])[0]:
            pinned, issues = decode_pin(text)
            found.append(Pin(pinned, pin_name(text)))
            said = [Issue(key, f"in the plan pinned there, {issue}") for issue in issues]
            s.link_issues = [*s.link_issues, *said]
    s.pins, s.measured, s.benched = tuple(found), None, None
    if text := query.get(MEASURED, [""])[0]:
        s.measured, issues = decode_measured(MEASURED, text)
        s.link_issues = [*s.link_issues, *issues]
    if text := query.get(BENCHED, [""])[0]:
        s.benched, issues = decode_measured(BENCHED, text)
        s.link_issues = [*s.link_issues, *issues]
    _accept(s, plan)
    s.name = name_of(query.get(NAME, [""])[0])
    s.looks.pop(s.page, None)
    if look := query.get(LOOK, [""])[0]:
        s.looks[s.page] = look[:MOST_LOOK]
    _at(s, query, s.now)


def _accept(s: Session, plan: Plan) -> None:
    if plan != s.plan:
        s.name = ""  # it was another's
    s.plan, s.draft, s.problems, s.suggested = plan, plan.document(), (), ()
    s.asked, s.adjusted = (), []


# --- what the page reads -------------------------------------------------------------------------


def plan() -> Plan:
    """The last valid plan."""
    return session().plan


def compute_dtype() -> str:
    """The dtype in which the plan's matrix products run."""
    train = plan().train
    precision = COPIES.get((train.framework, train.precision))
    if precision and precision.eight_bit:
        return "fp8"
    return "bf16" if precision is None or precision.autocast else precision.compute


def report() -> Report:
    """What the engine says about the plan."""
    return shared.report(plan())


def pinned() -> Report | None:
    """The report of the pinned plan, if one is pinned."""
    pin = session().pin
    return shared.report(pin) if pin else None


def book() -> Book:
    """Why the numbers of the report are what they are."""
    return shared.book(plan())


def measured() -> Measured | None:
    """The step that somebody measured."""
    return session().measured


def calibrated(of: Plan | None = None) -> Calibrated | None:
    """The plan on the page, or another, beside the measured step; None without one, or where it
    says nothing of the plan."""
    by, now = session().measured, of or plan()
    if by is None or refused_measured(now):
        return None
    then = shared.report(by.plan)
    try:
        return calibrate(now, by, shared.report(now), then)
    except PlanError:
        return None


def refused_measured(of: Plan | None = None) -> list[Issue]:
    """Why the measured step says nothing of the plan on the page, or of another."""
    by = session().measured
    return refused(of or plan(), by) if by else []


def benched() -> Measured | None:
    """The server that somebody measured."""
    return session().benched


def benched_moves() -> Measured | None:
    """The same, where something is predicted of it, so that it can move others."""
    by = session().benched
    serve = shared.report(by.plan).serve if by else None
    return by if serve and serve.tpot_seconds else None


def beside_server(of: Plan | None = None) -> Calibrated | None:
    """The server of the plan on the page, or of another, beside the measured one; None without one,
    or where it says nothing of the plan's."""
    found = _beside_server(of or plan())
    return found if isinstance(found, Calibrated) else None


def refused_server() -> Sequence[Issue]:
    """Why the measured server says nothing of that of the plan on the page."""
    found = _beside_server(plan())
    return () if found is None or isinstance(found, Calibrated) else found


def _beside_server(now: Plan) -> Calibrated | Sequence[Issue] | None:
    """A plan's server beside the measured one, or why it is not; None without one."""
    if (by := session().benched) is None:
        return None
    here, then = shared.report(now), shared.report(by.plan)
    try:
        return calibrate(now, by, here, then)
    except PlanError as e:
        return e.issues


def pins() -> tuple[Pin, ...]:
    """The plans that are kept to compare with, in the order in which they were pinned."""
    return session().pins


def can_pin() -> bool:
    """Whether there is room for this plan beside them, and it is not one of them."""
    s = session()
    return len(s.pins) < len(PINS) and all(pin.plan != s.plan for pin in s.pins)


def name() -> str:
    """What somebody calls the plan, or ''."""
    return session().name


def looks() -> str:
    """What this page is to show of the plan, as the address has it, or ''."""
    s = session()
    return s.looks.get(s.page, "")


def stream() -> Stream | None:
    """The plan's stream of requests, simulated."""
    return shared.stream(plan(), lengths())


def loads() -> tuple[Load, ...]:
    """The plan's stream at one arrival rate after another."""
    return shared.loads(plan(), lengths())


def answers() -> tuple[Answer, ...]:
    """How far the plan can go within its targets: its length, sequences, and GPUs for its requests
    where somebody has set how many come, else for its users at once."""
    return shared.answers(plan(), "serve.arrival_rate" in changed())


def lengths() -> Lengths | None:
    """Those of a file, in place of the plan's own."""
    given: Lengths | None = st.session_state.get("lengths")
    return given


def lengths_file() -> str:
    """The name of the file that the stream's lengths come from, or ''."""
    return str(st.session_state.get("lengths_name", ""))


def lengths_issues() -> tuple[Issue, ...]:
    """Why the file that was given last is none of lengths."""
    found: tuple[Issue, ...] = st.session_state.get("lengths_issues", ())
    return found


def waterfall() -> tuple[Change, ...]:
    """What lies between the pinned plan and this one."""
    pin = session().pin
    return shared.waterfall(pin, plan().model_dump_json()) if pin else ()


def applied() -> str:
    """The lever that was applied last, while the plan is what it made of it."""
    done = session().applied
    return done[-1][2] if done and done[-1][1] == plan() else ""


def fresh() -> bool:
    """Whether the session began on the first screen, and not with somebody's link."""
    return session().fresh


def default() -> Plan:
    """What the plan's changes are counted from: what its link means where it says nothing."""
    return begun(session().form)


def changed() -> dict[str, Any]:
    """What of the plan is not the default, by field."""
    return differences(default(), plan())


def of_old_form() -> dict[str, Any]:
    """Defaults that were others when the form of the plan's link was today's, and still are in the
    plan: what they are today, by field."""
    was = differences(DEFAULT, default())
    here = plan().document()
    today = DEFAULT.document()
    return {path: get(today, path) for path, value in was.items() if get(here, path) == value}


def to_todays_form(changes: Mapping[str, Any]) -> None:
    """Go on with today's defaults."""
    session().form = VERSION
    change(changes)


def draft() -> Mapping[str, Any]:
    """What the widgets show."""
    return session().draft


def drafted(path: str) -> Any:
    """What the widget of a field shows."""
    return get(session().draft, path)


def with_followers(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes, and what of the framework's own words must follow them, as the rules have it."""
    return followed(session().draft, changes)


def problems() -> tuple[Issue, ...]:
    """Why the draft is not a plan."""
    return session().problems


def suggested() -> Sequence[str]:
    """Models that may have been meant by what is no model's name."""
    return session().suggested


def asked() -> tuple[str, ...]:
    """Fields that were set since the draft was last a plan."""
    return session().asked


def adjusted() -> list[Issue]:
    """What gave way to the model, or to the setting, that was chosen last."""
    return session().adjusted


def adjusted_to() -> str:
    """What it gave way to."""
    return session().adjusted_to


def is_unchanged() -> bool:
    """Whether the draft is the plan: what was not valid did not enter it."""
    return session().draft == plan().document()


def link_issues() -> list[Issue]:
    """What of the link that was opened could not be used."""
    return session().link_issues


def repaired() -> tuple[Plan, list[Issue]]:
    """The nearest valid plan to the draft that keeps what was set last, and what it changes."""
    s = session()
    return nearest(s.draft, s.asked)


# --- what widgets call ---------------------------------------------------------------------------


def control(key: str, value: Any, take: Take) -> str:
    """Let the widget with this key show `value`; what is chosen in it, `take` takes."""
    return session().controls.show(key, value, take)


def drawn() -> None:
    """The run has drawn all there is. Call it last."""
    session().controls.drawn()


def change(changes: Mapping[str, Any]) -> None:
    """Change fields of the draft; the plan follows when the draft is valid."""
    s = session()
    s.link_issues = []
    s.draft = _with(s.draft, changes)
    try:
        _accept(s, Plan.of(s.draft))
    except PlanError as e:
        s.problems = e.issues
        s.asked = tuple(dict.fromkeys([*(p for p in s.asked if p not in changes), *changes]))
        _follow(s, changes)


def _with(draft: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Another draft, of which no more is new than what leads to a change."""
    draft = dict(draft)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = draft
        for name in parents:
            place[name] = dict(place[name])
            place = place[name]
        place[last] = value
    return draft


def _follow(s: Session, changes: Mapping[str, Any]) -> None:
    """Show the nearest valid plan that has what was just chosen, where there is one: what it cannot
    have beside it gives way, the page says what, and `undo` takes it all back."""
    before = s.plan
    if "model" in changes:  # it brings its own limits
        found, mended = repair(s.draft, given=("model",))
        wish = "this model"
    else:
        found, mended = nearest(s.draft, s.asked)
        wish = " and ".join(change_texts(changes))
    document = found.document()
    if all(get(document, path) == value for path, value in changes.items()):
        _accept(s, found)
        s.adjusted, s.adjusted_to = mended, wish
        s.applied.append((before, found, wish))


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
        s.adjusted_to = " and ".join(change_texts(changes))
        s.applied.append((before, s.plan, s.adjusted_to))


GUESSES = 3  # tokens that a head guesses where nobody says how many


def use_model(config: Mapping[str, Any] | PlanError, near: Sequence[str] = ()) -> None:
    """Switch to a config.json that somebody gave; one that is no model leaves the draft alone, and
    those that are `near` are suggested. That of what guesses tokens for a model guesses them for
    this one."""
    s = session()
    before = s.draft
    if isinstance(config, PlanError):
        s.problems, s.suggested = config.issues, near
        return
    changes: dict[str, Any] = {"model": config}
    if family_of(config):
        text = described(config)
        changes = {"serve.draft_model": text, "serve.draft_tokens": _guesses(text)}
    change(changes)
    if any(issue.field.startswith(("model", "serve.draft_model")) for issue in s.problems):
        s.draft = before


def _guesses(text: str) -> int:
    """How many tokens a draft guesses: a block, or as many as are asked for."""
    try:
        found = draft_from(text).draft
    except ValueError:  # is said when it is read
        found = None
    return (found.most if found else 0) or drafted("serve.draft_tokens") or GUESSES


def open_files(texts: Sequence[Text]) -> None:
    """Show the plan that files of other programs say, where they name no GPU on the chosen one and,
    where they name no model, of the chosen one; and what they do not say. What is no plan leaves
    the draft alone."""
    s = session()
    before = plan()
    gpu = before.cluster.gpu
    try:
        named = any(machines.asked(text.content)[2] for text in texts)
        chosen = gpu if isinstance(gpu, str) and not named else ""
        found = read_files(texts, gpu=chosen, otherwise=before.model)
    except PlanError as e:
        s.problems = e.issues
        return
    begin_with(found.plan)
    places.lead_to(found.plan, s.page)
    ran_out = [Issue("", f"Memory ran out: {each}.") for each in found.failures]
    wants = [Issue("", f"Not read, since it is not here: {name}.") for name in found.wants]
    rest = (each for each in found.assumed if each not in found.decides)
    told = (
        *found.unsure,
        *found.differs,
        *found.decides,
        *wants,
        *rest,
        *found.changed,
        *found.left,
    )
    s.adjusted = [*ran_out, *told]
    s.adjusted_to = " and ".join(f"{name} ({kind})" for name, kind in found.kinds.items())
    s.applied.append((before, found.plan, s.adjusted_to))


def open_link(address: str) -> None:
    """Show what a link says that somebody pasted."""
    s = session()
    link = urlsplit(address.strip())
    _load(s, parse_qs(link.query, keep_blank_values=True))
    s.says, s.written = None, s.controls.run + 1  # the address bar has another until the next run
    view = link.path.rpartition("/")[2]
    if view in places.ADDRESSES:
        places.lead(view)
    else:
        places.lead_to(s.plan, s.page)


def use_lengths(data: bytes, name: str) -> None:
    """Take the stream's lengths from a file; one that has none leaves them as they are."""
    s = st.session_state
    try:
        s.lengths, s.lengths_name, s.lengths_issues = read_lengths(data), name, ()
    except PlanError as e:
        s.lengths_issues = e.issues


def drop_lengths() -> None:
    """Back to the plan's own lengths."""
    s = st.session_state
    s.lengths, s.lengths_name, s.lengths_issues = None, "", ()


def replace(plan: Plan) -> None:
    """Show another plan, that was made of this one."""
    _replace(session(), plan)


def begin_with(plan: Plan) -> None:
    """Show another plan altogether."""
    s = session()
    _replace(s, plan)
    s.form = VERSION


def _replace(s: Session, plan: Plan) -> None:
    s.link_issues = []
    _accept(s, plan)


def use_nearest(plan: Plan, mended: list[Issue]) -> None:
    """Show the nearest valid plan to a draft, and say what it changed."""
    s = session()
    asked = " and ".join(change_texts({p: get(plan, p) for p in s.asked}))
    _replace(s, plan)
    s.adjusted, s.adjusted_to = mended, asked


def undo_draft() -> None:
    """Forget what was not valid."""
    replace(plan())


def apply(lever: Lever) -> None:
    """Change the plan as a lever says; `undo` takes it back."""
    s = session()
    s.applied.append((s.plan, lever.plan, lever.label))
    _replace(s, lever.plan)


def undo() -> None:
    """Take back the lever that was applied last."""
    label, s = applied(), session()
    if label:
        before, _, _ = s.applied.pop()
        _replace(s, before)


def measure(seconds: float, size: int) -> None:
    """Keep that a step of the plan on the page took so long, and so many bytes at its peak (0: not
    known)."""
    s = session()
    s.measured = Measured(s.plan, seconds, size)


def use_snapshot(data: bytes) -> None:
    """Keep what a memory snapshot or a text says that a run held; of what is none, why not."""
    s = st.session_state
    try:
        if len(data) > places.MOST_HELD:
            raise PlanError([Issue("", f"it has more than {bytes_text(places.MOST_HELD)}")])
        s.held, s.held_issues = read_memory(data), ()
    except PlanError as e:
        s.held, s.held_issues = None, e.issues
        return
    device = s.held.fullest
    s.measured_gib = device.allocated_bytes / GiB or None
    s.measured_seconds = device.step_seconds or None


def held() -> RunMemory | None:
    """What a run held, by what was dropped last that says it."""
    found: RunMemory | None = st.session_state.get("held")
    return found


def held_issues() -> Sequence[Issue]:
    """Why what was dropped last does not say what a run held."""
    found: Sequence[Issue] = st.session_state.get("held_issues", ())
    return found


def bench(token: float, first: float) -> None:
    """Keep that the server of the plan on the page took so many seconds per token, and so many to
    the first one; 0: not known."""
    s = session()
    s.benched = Measured(closed(s.plan), token=token, first=first)
    st.session_state.bench_issues = ()


def use_bench(text: str) -> None:
    """Keep what a benchmark says of the server of the plan on the page, whose load becomes that of
    the benchmark; where it says nothing, or of another server, why."""
    s = session()
    try:
        found, told = bench_of(text.encode()).of(s.plan)
    except PlanError as e:
        st.session_state.bench_issues = e.issues
        return
    st.session_state.bench_issues = ()
    replace(found.plan)
    s.benched, s.adjusted = found, told
    s.adjusted_to = "the benchmark"


def bench_issues() -> Sequence[Issue]:
    """Why what was dropped last says nothing of a server."""
    found: Sequence[Issue] = st.session_state.get("bench_issues", ())
    return found


def forget_bench() -> None:
    """Back to predictions alone."""
    s = session()
    s.benched = None


def forget_measured() -> None:
    """Back to predictions alone."""
    s = session()
    s.measured = None


def pin() -> None:
    """Keep the plan as it is beside those that are kept already, if there is room for it."""
    s = session()
    if can_pin():
        s.pins = (*s.pins, Pin(s.plan, s.name))


def pin_levers(most: int) -> None:
    """Keep the plan, and beside it so many of its best changes that fit, named after them."""
    s = session()
    others = [Pin(lever.plan, _short(lever.label)) for lever in shared.levers(plan()) if lever.fits]
    s.pins = (Pin(s.plan, s.name), *others[:most])[: len(PINS)]


def _short(label: str) -> str:
    """A lever's label as a plan's name: what is set alone, where both are too long."""
    return (label if len(label) <= MAX_NAME else label.rpartition(": ")[2])[:MAX_NAME]


def unpin(i: int | None = None) -> None:
    """Let go the plan that was pinned as number `i`, or all of them."""
    s = session()
    s.pins = tuple(pin for n, pin in enumerate(s.pins) if i is not None and n != i)


def take(i: int) -> None:
    """Go on with the plan that was pinned as number `i`; the one on the page has its place, where
    it is not pinned itself."""
    s = session()
    chosen, here = s.pins[i], Pin(s.plan, s.name)
    if any(pin.plan == here.plan for pin in s.pins):
        _replace(s, chosen.plan)
    else:
        s.pins = (*s.pins[:i], here, *s.pins[i + 1 :])
        _replace(s, chosen.plan)
    s.name = chosen.name


def rename(i: int | None, name: str) -> None:
    """Call a pinned plan so, or the one on the page."""
    s = session()
    name = name_of(name)
    if i is None:
        s.name = name
    else:
        s.pins = tuple(Pin(p.plan, name) if n == i else p for n, p in enumerate(s.pins))


def look(text: str) -> None:
    """Let the address say what this page shows of the plan."""
    s = session()
    if text:
        s.looks[s.page] = text[:MOST_LOOK]
    else:
        s.looks.pop(s.page, None)
