"""An episode as a graph, for analysis and for the episode view.

Nodes are ids with a `kind` (agent_run, turn, tool_call); edges have a `kind` too: agent_run → its first turns (starts), turn → turn
(continues, with the prefix_len), turn → tool_call (asks), agent_run → agent_run (message).
"""

from collections.abc import Iterable

import networkx as nx

from agentrl.episode.record import EpisodeRecord
from agentrl.episode.turn import Turn


def graph(record: EpisodeRecord, turns: Iterable[Turn]) -> "nx.DiGraph[str]":
    """Nodes carry the record or turn under `data`."""
    g: nx.DiGraph[str] = nx.DiGraph(episode=record.id)
    for run in record.agent_runs:
        g.add_node(run.id, kind="agent_run", data=run)
        if run.source is not None:
            g.add_edge(run.source, run.id, kind="message")
    for message in record.messages:
        g.add_edge(message.source, message.target, kind="message", text=message.text)
    for turn in turns:
        g.add_node(turn.id, kind="turn", data=turn)
        if turn.parent is None:
            g.add_edge(turn.agent_run, turn.id, kind="starts")
        else:
            g.add_edge(turn.parent.turn, turn.id, kind="continues", prefix_len=turn.parent.prefix_len)
    for call in record.tool_calls:
        g.add_node(call.id, kind="tool_call", data=call)
        if call.turn:
            g.add_edge(call.turn, call.id, kind="asks")
    return g
