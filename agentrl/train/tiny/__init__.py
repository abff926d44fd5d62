"""A policy of a hundred thousand parameters, made for one environment in a minute, so that a laptop can train end to end."""
