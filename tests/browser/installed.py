"""Checks a `memplan` installed somewhere, away from any checkout: installed.py MEMPLAN FOLDER.

Runs in FOLDER, prints a line for each check, exits with 1 at the first that fails. For .ci/run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import rig


def main(memplan: str, folder: str) -> None:
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


if __name__ == "__main__":
    main(*sys.argv[1:])
