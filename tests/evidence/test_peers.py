"""Other calculators of step times on the same steps (presets/evidence/peers.toml)."""

from evidence.peers import THE_RULE, peer_errors, peers_table
from evidence.times import compared_times, times_table
from memcore.evidence.comparison import CHECK


def test_ahead_of_every_other_and_of_the_rule_in_every_framework():
    """On steps that nothing of ours was tuned on."""
    found = peer_errors(compared_times())
    assert {b.other for b in found} == {*peers_table(), THE_RULE}
    behind = [(b.framework, b.other) for b in found if b.half >= b.half_of_theirs]
    assert behind == []
    for b in found:
        assert b.closer < len(b.theirs) / 2, (b.framework, b.other)


def test_the_rule_stands_beside_every_checked_step():
    found = peer_errors(compared_times())
    checked = [r for r in times_table()["runs"] if r["used_for"] == CHECK]
    assert sum(len(b.theirs) for b in found if b.other == THE_RULE) == len(checked)


def test_what_others_say_is_of_runs_that_are_listed():
    runs = {r["id"] for r in times_table()["runs"]}
    for name, of in peers_table().items():
        assert len(of) >= 8, name
        assert of.keys() <= runs
