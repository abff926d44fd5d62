"""Torn, foreign and newer blobs are refused by name; a journal's torn tail is the end of it."""

import io

import msgspec
import networkx as nx
import pytest

from agentrl.episode import (
    AgentRunRecord,
    EpisodeKey,
    EpisodeRecord,
    Parent,
    ToolCallRecord,
    encode_record,
    encode_turn,
    graph,
    read_record,
    read_turns,
)
from agentrl.errors import StoreError
from tests.unit.episode.test_trie import turn

RECORD = EpisodeRecord(id="e", key=EpisodeKey(0, "t", 0), split="train", env="x", env_version="1", task={})


def test_a_torn_blob_is_refused_and_a_torn_journal_ends() -> None:
    frames = encode_turn(turn("a", None, [1], [2])) + encode_turn(turn("b", Parent("a", 2), [3], [4]))
    with pytest.raises(StoreError, match="torn"):
        list(read_turns(io.BytesIO(frames[:-3])))
    assert [t.id for t in read_turns(io.BytesIO(frames[:-3]), torn_tail=True)] == ["a"]


def test_a_flipped_bit_is_refused() -> None:
    frame = bytearray(encode_record(RECORD))
    frame[-1] ^= 1
    with pytest.raises(StoreError, match="checksum"):
        read_record(io.BytesIO(bytes(frame)))


def test_a_newer_schema_is_refused_with_what_to_do() -> None:
    newer = encode_record(msgspec.structs.replace(RECORD, schema=99))
    with pytest.raises(StoreError, match="agentrl that wrote it"):
        read_record(io.BytesIO(newer))


def test_the_graph_joins_agent_runs_turns_and_tool_calls() -> None:
    record = msgspec.structs.replace(
        RECORD,
        agent_runs=(
            AgentRunRecord(id="r", agent="main", task_id="t", group="t/main"),
            AgentRunRecord(id="s", agent="helper", task_id="t2", group="t2/helper", source="r"),
        ),
        tool_calls=(ToolCallRecord(id="c", agent_run="r", turn="a", name="calc", arguments="{}"),),
    )
    g = graph(record, [turn("a", None, [1], [2]), turn("b", Parent("a", 2), [3], [4])])
    assert sorted(g.edges(data="kind")) == [("a", "b", "continues"), ("a", "c", "asks"), ("r", "a", "starts"), ("r", "s", "message")]
    assert nx.descendants(g, "r") == {"a", "b", "c", "s"}
