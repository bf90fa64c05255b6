"""What the units share: the command line, run in this process."""

import csv
import io
import json
import sys

import pytest

from memcore import cli


class Ran:
    """What one call of the command gave."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        """Of one answer a line; none has a number that JSON has not."""
        return [json.loads(line, parse_constant=_refuse) for line in self.out.splitlines()]

    @property
    def csv(self):
        return list(csv.DictReader(io.StringIO(self.out)))


def _refuse(word):
    raise AssertionError(f"{word} in the output")


@pytest.fixture
def memplan(capsys, monkeypatch):
    """Runs the command; `given` is on its standard input."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def run(*arguments, given=""):
        data = given.encode() if isinstance(given, str) else given
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        try:
            status = cli.main([str(a) for a in arguments])
        except SystemExit as e:  # argparse
            status = int(e.code or 0)
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture
def refused(memplan):
    """Runs the command, which has to refuse what it is given; what it says."""

    def run(*arguments, given=""):
        ran = memplan(*arguments, given=given)
        assert (ran.status, ran.out) == (2, "")
        assert "Traceback" not in ran.err
        return ran.err

    return run
