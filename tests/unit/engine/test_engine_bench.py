"""The benchmark's keys and its figures that depend on no clock."""

from agentrl.bench.engine import bench


async def test_the_engine_benchmark_counts_prefills():
    result = await bench(repeats=1, requests=16)
    assert result["bench"] == "engine"
    assert set(result["ratios"]) == {"vs_generate_ragged"}
    # Each turn after the first computes one sampled token of the turn before; each member after the first, the prompt's last token.
    assert result["figures"]["prefill_per_unique_token_8_turns"] <= 1.1
    assert 1.0 <= result["figures"]["prompt_prefills_group_16"] <= 1 + 15 / 512
