"""Serve: what inference needs, how many sequences fit and how fast they answer."""

import streamlit as st

from app import charts, parts, state, stream, tables

report, plan = state.report(), state.plan()

if report.serve:
    concurrency = plan.serve.concurrency
    parts.chart(
        charts.serving(report.serve, concurrency),
        key="serving",
        alt="Memory of one serving GPU, against its budget",
    )
    rows = tables.serving(report.serve, concurrency)
    parts.table(rows, key="serve_table", alt="Memory of one serving GPU, line by line", height=458)
    parts.download("Serving (CSV)", rows, "memplan-serving.csv")
    parts.small(
        "Concurrency, lengths, dtypes and the cache's form are in the sidebar, at Serving; "
        "the stream below at Request stream."
    )
else:
    parts.absent("Serving")

found = state.stream()
if report.serve and not found:
    parts.absent("A stream of requests")
if report.serve and found:
    st.markdown("##### A stream of requests, by how the cache is handed out")
    parts.latency_targets()
    parts.small(parts.plain(stream.asked(found, plan, state.lengths_file())))
    for note in found.notes:
        parts.small(parts.plain(note))
    parts.lengths_upload()
if report.serve and found and stream.served(found):
    parts.stream_metrics(stream.metrics(stream.of_plan(found, plan), plan))
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**What the cache was for**")
        parts.chart(
            stream.shares(found),
            key="stream_shares",
            alt="Shares of the KV cache by use under each strategy, averaged over time",
        )
    with right:
        quantity = st.segmented_control(
            "Over time",
            stream.QUANTITIES,
            format_func=stream.title,
            default="held_tokens",
            required=True,
            key="stream_quantity",
        )
        parts.chart(
            stream.over_time(found, quantity),
            key="stream_over_time",
            alt="The chosen quantity over the time of the simulation, by strategy",
        )
    compared = stream.rows(found)
    parts.table(
        compared,
        key="stream_table",
        alt="The figures of each strategy",
        columns=stream.shown(found),
    )
    parts.small(stream.legend(found))
    with st.container(horizontal=True):
        parts.download("Strategies (CSV)", compared, "memplan-stream.csv")
        parts.download("Over time (CSV)", stream.moments(found), "memplan-stream-timeline.csv")

    st.markdown("##### Throughput and latency")
    speeds, loads = state.speeds(), state.loads()
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**Against how many run at once**")
        parts.chart(
            stream.speed(speeds, found),
            key="stream_speed",
            alt="Time per output token against output tokens per second",
        )
    with right:
        felt = st.segmented_control(
            "Against the arrival rate",
            stream.load_choices(plan),
            format_func=stream.load_title,
            default="ttft",
            required=True,
            key="stream_load",
        )
        parts.chart(
            stream.load(loads, felt, plan),
            key="stream_load_chart",
            alt="Latency of the plan's own cache against the arrival rate",
        )
    parts.small(stream.SPEED_LEGEND)
    parts.small(stream.load_legend(loads, plan))
    with st.container(horizontal=True):
        parts.download(
            "Throughput and latency (CSV)", stream.speeds(speeds), "memplan-throughput.csv"
        )
        parts.download("Arrival rates (CSV)", stream.load_rows(loads), "memplan-rates.csv")

if report.serve:
    st.markdown("##### How far it can go")
    if not found:
        parts.latency_targets()
    answers = state.answers()
    rows = tables.limits(answers, plan.serve.arrival_rate)
    parts.table(
        rows,
        key="limits",
        alt="The longest sequence, the most sequences, the fewest GPUs",
        columns=(
            "question",
            "answer",
            "what forbids more",
            "first token",
            "per token",
            "tensor parallel",
        ),
    )
    parts.use_answers(rows, answers)
    parts.small(
        "Within the targets above. Each changes one field of the plan and leaves the others; GPUs: "
        "tensor parallelism within a node and replicas, in steady state. Found by evaluating "
        "plans, step by step."
    )
