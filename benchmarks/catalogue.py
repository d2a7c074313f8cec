"""The workloads by name, with what each needs of its server.

Owns which settings a workload changes, whether the peer takes part, and whether it is run
once for each layout of the cells.  Must not know figures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import workloads
import workloads_kv
import workloads_structured
from load import Outcome, warm_up
from processes import Launcher, Server, Setup


@dataclass(frozen=True, slots=True)
class Workload:
    """`run` starts its servers itself; `in_layouts`: worth a run for every layout of ours."""

    run: Callable[[Launcher, int], Awaitable[Outcome]]
    has_peer: bool = True
    in_layouts: bool = False


def _on_warm_server(
    work: Callable[[Server, int], Awaitable[Outcome]],
    setup: Setup | None = None,
    in_layouts: bool = False,
) -> Workload:
    """A workload of one fresh server that has answered one short request."""

    async def run(launch: Launcher, round_number: int) -> Outcome:
        async with launch(setup) as server:
            await warm_up(server)
            return await work(server, round_number)

    return Workload(run, in_layouts=in_layouts)


WORKLOADS: dict[str, Workload] = {
    "single": _on_warm_server(workloads.single, in_layouts=True),
    "distinct": _on_warm_server(workloads.distinct, in_layouts=True),
    "distinct_long": _on_warm_server(workloads.distinct_long, in_layouts=True),
    "churn": _on_warm_server(workloads.churn, in_layouts=True),
    "prefix": _on_warm_server(workloads.prefix, in_layouts=True),
    "arrival": _on_warm_server(workloads.arrival, in_layouts=True),
    "turns": _on_warm_server(workloads.turns, in_layouts=True),
    "choices": _on_warm_server(workloads.choices, in_layouts=True),
    # Fewer places than agents, so that their prefixes cannot all stay where they were computed.
    "agents": _on_warm_server(workloads_kv.agents, Setup(parallel=4), in_layouts=True),
    "restart": Workload(workloads_kv.restart, has_peer=False, in_layouts=True),
    # Cells for fewer than all their contexts: only `auto` and `shared` can be started so.
    "oversubscribed": Workload(workloads_kv.oversubscribed),
    "schema": _on_warm_server(workloads_structured.schema, Setup(parallel=8)),
    "start": Workload(workloads_kv.start),
}
