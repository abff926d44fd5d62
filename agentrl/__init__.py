"""agentrl: train language-model agents by reinforcement learning on multi-turn episodes."""
