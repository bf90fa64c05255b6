"""Arrival rates: what requests feel of one replica, from few a second to more than it can take."""

from app import measured, parts, rest, simulated, state

if state.report().serve:
    parts.latency_targets()
    measured.as_predicted("The engine's speeds are")
    rest.later(simulated.rates, "Arrival rates are simulated")
else:
    parts.absent("A stream of requests")
