"""The page of `dpmix drift`: one self-contained HTML file for all recordings, the worst first."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from dpmix.inputs.recording import Recording
from dpmix.report import templates

HEAD = ("Channel", "Verdict", "Range", "90% interval", "Limit", "Change points", "Unsteady events")


def render(
    recordings: Sequence[Recording],
    summaries: Sequence[str],
    problems: Sequence[str],
    figures: Sequence[bytes],
) -> str:
    """Return the page.

    Parameters
    ----------
    recordings : sequence of Recording
        The worst first.
    summaries : sequence of str
        A line for each.
    problems : sequence of str
        A line for each file that was not judged.
    figures : sequence of bytes
        A PNG for each recording.
    """
    sections = [
        {
            "name": one.name,
            "line": line,
            "rows": _rows(one),
            "figure": f"data:image/png;base64,{base64.b64encode(figure).decode()}",
        }
        for one, line, figure in zip(recordings, summaries, figures, strict=True)
    ]
    return templates.render("drift.html", head=HEAD, sections=sections, problems=problems)


def _rows(recording: Recording) -> list[dict[str, object]]:
    """Return the rows of a table: channels that count, then others, each with the clearest drift first."""
    order = sorted(
        zip(recording.channels, recording.shares, recording.counted, strict=True),
        key=lambda row: (not row[2], -row[0].low / row[0].limit),
    )
    return [
        {
            "found": one.verdict in ("drift", "steps"),
            "name": one.name if counted else f"{one.name} (not counted)",
            "cells": (
                one.verdict,
                f"{one.range:.2f}",
                f"{one.low:.2f} to {one.high:.2f}",
                f"{one.limit:g}",
                str(len(one.changes)),
                f"{share:.1%}",
            ),
        }
        for one, share, counted in order
    ]
