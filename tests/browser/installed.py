"""Checks a `memplan` installed somewhere, away from any checkout:
installed.py MEMPLAN FOLDER [--core].

Runs in FOLDER, prints a line for each check, exits with 1 at the first that fails. `--core`: of an
installation without the extra `app`. For .ci/run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COMMANDS = (
    *("check p.json", "levers p.json", "compare p.json p.json", "link p.json"),
    *("search p.json --set cluster.gpus=1", "simulate p.json --set serve.requests=20"),
    *("explain p.json memory.allocated_bytes", "sweep p.json --axis train.micro_batch=1,2"),
)


def main(memplan: str, folder: str, core: str = "") -> None:
    def run(*arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [memplan, *arguments], input=given, capture_output=True, text=True, cwd=folder
        )
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stderr}"
        return done.stdout

    print(run("--version").strip())
    assert "parameters" in run("evaluate", "-", given="{}")
    report = json.loads(run("evaluate", "-", "--json", given="{}\n"))
    print(f"memplan evaluate: {report['memory']['allocated_bytes']:,} bytes allocated")
    for what in ("models", "gpus", "plans"):
        print(f"memplan {what}: {len(json.loads(run(what, '--json')))}")
    if core:
        of_the_engine_alone(memplan, folder, run)
        return

    import rig  # needs Playwright, which the engine alone does not

    log = Path(folder) / "app.log"

    def app(port: int) -> list[str]:
        return [memplan, "app", "--no-browser", "--port", str(port)]

    watch = rig.Watch()
    with rig.serving(app, log, cwd=Path(folder)) as server, rig.launched() as browser:
        assert browser, rig.NO_CHROMIUM
        page = watch.over(browser.new_context(viewport=rig.VIEWPORT)).new_page()
        page.goto(server.url)
        page.wait_for_selector(".st-key-chart_over_time .js-plotly-plot")
        text = rig.settled(page).inner_text('[data-testid="stMain"]')
        rig.eventually(lambda: server.url in server.log(), "memplan app does not print its address")
    complaints = watch.complaints(server.log())
    assert not complaints, "\n".join(complaints)
    print("memplan app: " + re.sub(r"\s+", " ", text)[:200])


def of_the_engine_alone(memplan: str, folder: str, run: Callable[..., str]) -> None:
    """Commands that work without the page, and what `memplan app` says."""
    Path(folder, "p.json").write_text("{}", encoding="utf-8")
    for command in COMMANDS:
        assert run(*command.split()), command
    print(f"without the page: {', '.join(c.split()[0] for c in COMMANDS)}")
    site = Path(memplan).parents[1] / "lib"
    names = {p.name for p in site.glob("*/site-packages/*") if "-" not in p.name}
    assert not names & {"app", "presets", "tests", "streamlit", "pandas", "plotly"}, names
    done = subprocess.run([memplan, "app"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 1, done
    assert "pip install 'memplan[app]'" in done.stderr, done
    print(done.stderr.strip())


if __name__ == "__main__":
    main(*sys.argv[1:])
