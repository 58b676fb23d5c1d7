"""Suites: an op's own laws, states and lifetimes, beyond the replay of captures. Each is bounded in time and judged."""
