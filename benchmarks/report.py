"""Turns the outcomes of all rounds into medians, ratios, goals met or missed, and a table.

Owns what each figure is called, which way is better and what it must reach.  A figure whose
workload went wrong in any round, on either side, is withheld with the reason.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from load import Outcome


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure must reach: a limit on the ratio ours/peer or on our own value."""

    of: Literal["ratio", "ours"]
    sense: Literal["at least", "at most"]
    limit: float

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.sense == "at least" else value <= self.limit

    def shown(self) -> str:
        return f"{self.of} {'>=' if self.sense == 'at least' else '<='} {self.limit:g}"


GOALS: dict[tuple[str, str], Goal] = {
    ("single", "tok_s"): Goal("ratio", "at least", 1.0),
    ("distinct", "tok_s"): Goal("ratio", "at least", 1.1),
    ("distinct_long", "tok_s"): Goal("ratio", "at least", 1.0),
    ("churn", "tok_s"): Goal("ratio", "at least", 1.1),
    ("prefix", "wall_s"): Goal("ratio", "at most", 0.16),
    ("prefix", "computed_commons"): Goal("ours", "at most", 1.25),
    ("arrival", "gap_ms"): Goal("ours", "at most", 400),
    ("arrival", "newcomer_slowdown"): Goal("ours", "at most", 1.6),
    ("turns", "ttft_ms"): Goal("ratio", "at most", 1.0),
    ("choices", "wall_s"): Goal("ratio", "at most", 0.9),
    ("agents", "cached_share"): Goal("ours", "at least", 0.95),
    ("restart", "cached_share"): Goal("ours", "at least", 0.95),
    ("restart", "ttft_ratio"): Goal("ours", "at most", 0.25),
    ("restart", "unexplained_texts"): Goal("ours", "at most", 0),
    ("oversubscribed", "complete"): Goal("ours", "at least", 16),
    ("oversubscribed", "undisturbed_share"): Goal("ours", "at least", 0.6),
    ("oversubscribed", "unexplained_texts"): Goal("ours", "at most", 0),
    ("schema", "share_1"): Goal("ours", "at least", 0.85),
    ("schema", "share_8"): Goal("ours", "at least", 0.85),
    ("start", "ready_s"): Goal("ratio", "at most", 0.35),
    ("start", "rss_mb"): Goal("ratio", "at most", 0.3),
    ("start", "rss_after_idle_ratio"): Goal("ours", "at most", 1.5),
    ("start", "beyond_buffers_mb"): Goal("ours", "at most", 90),
}


# Of faults the worst round counts, not the median.
WORST_COUNTS = frozenset({"unexplained_texts"})


@dataclass(frozen=True, slots=True)
class Row:
    """One figure over all rounds; `peer` and `ratio` are None where the peer has no such figure.

    `label` is the workload's name, and the layout where ours was run in several.
    """

    workload: str
    label: str
    figure: str
    ours: float
    peer: float | None
    ours_rounds: tuple[float, ...]
    peer_rounds: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        return self.ours / self.peer if self.peer else None

    @property
    def goal(self) -> Goal | None:
        return GOALS.get((self.workload, self.figure))

    @property
    def is_met(self) -> bool | None:
        value = self.ratio if self.goal and self.goal.of == "ratio" else self.ours
        return None if self.goal is None or value is None else self.goal.is_met(value)

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"ours": _round(self.ours)}
        if self.peer is not None and self.ratio is not None:
            value |= {"peer": _round(self.peer), "ratio": round(self.ratio, 3)}
        if self.goal is not None:
            value |= {"goal": self.goal.shown(), "met": self.is_met}
        value["ours_rounds"] = [_round(number) for number in self.ours_rounds]
        if self.peer_rounds:
            value["peer_rounds"] = [_round(number) for number in self.peer_rounds]
        return value


Outcomes = Mapping[str, Sequence[Outcome]]


def find_problems(by_side: Outcomes) -> list[str]:
    """Why a workload's figures must not be believed; empty when they may."""
    problems = [
        f"{side}, round {index}: {problem}"
        for side, outcomes in by_side.items()
        for index, outcome in enumerate(outcomes)
        for problem in outcome.problems
    ]
    for index, outcomes in enumerate(zip(*by_side.values(), strict=True)):
        counts = [outcome.n_prompt for outcome in outcomes if outcome.figures]
        if counts and max(counts) - min(counts) > outcomes[0].prompt_slack * max(counts):
            problems.append(f"round {index}: the sides counted {counts} prompt tokens")
    return problems


def make_rows(workload: str, label: str, by_side: Outcomes) -> list[Row]:
    rows = []
    for figure in by_side["ours"][0].figures:
        ours, peer = (
            tuple(o.figures[figure] for o in by_side.get(side, ()) if figure in o.figures)
            for side in ("ours", "peer")
        )
        middle = max if figure in WORST_COUNTS else statistics.median
        theirs = middle(peer) if peer else None
        rows.append(Row(workload, label, figure, middle(ours), theirs, ours, peer))
    return rows


def make_json(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Label -> figure -> its values."""
    result: dict[str, dict[str, Any]] = {}
    for row in rows:
        result.setdefault(row.label, {})[row.figure] = row.as_json()
    return result


def make_table(rows: Sequence[Row], withheld: Mapping[str, Sequence[str]]) -> str:
    """A Markdown table; withheld workloads stand below it with their first reasons."""
    lines = [
        "| workload | figure | ours | peer | ours/peer | goal | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        peer = "" if row.peer is None else _shown(row.peer)
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        goal = row.goal.shown() if row.goal else ""
        verdict = {None: "", True: "met", False: "MISSED"}[row.is_met]
        lines.append(
            f"| {row.label} | {row.figure} | {_shown(row.ours)} | {peer} | {ratio}"
            f" | {goal} | {verdict} |"
        )
    for label, problems in withheld.items():
        lines += ["", f"{label}: withheld, {len(problems)} problems; first: {problems[0]}"]
    return "\n".join(lines)


def _round(value: float) -> float:
    return float(f"{value:.5g}")


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
