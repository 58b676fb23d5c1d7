"""The suites of `qsa.packed_decode`, in the order in which they are run: values first, then what outlives a launch."""

from __future__ import annotations

from kda_lab.suites import qsa_lifetime, qsa_values
from kda_lab.suites.suite import Suite

SUITES: tuple[Suite, ...] = (
    Suite("known_shapes", "The recorded and tested lengths of the source thread are right.", qsa_values.known_shapes),
    Suite("every_batch", "Each batch from 1 to 128 on both topologies is right.", qsa_values.every_batch),
    Suite("padded_rows", "A row of one key returns its value bit for bit.", qsa_values.padded_rows),
    Suite("empty_rows", "A row without keys returns exactly zero.", qsa_values.empty_rows),
    Suite("guard_bands", "All of the output is written and nothing else.", qsa_values.guard_bands),
    Suite("permutations", "The order of keys and of rows does not matter.", qsa_values.permutations),
    Suite("shifts", "A vector added to every key changes nothing; big scores do not overflow.", qsa_values.shifts),
    Suite("analytic", "Where the answer is known without an oracle, it is given.", qsa_values.analytic),
    Suite("ranks_agree", "Two ranks together return what one computes.", qsa_values.ranks_agree),
    Suite("graph_lengths", "A graph replayed at other lengths gives the new answer.", qsa_lifetime.graph_lengths),
    Suite(
        "lengths_each_replay",
        "A graph stays right while a device-side write changes its lengths a thousand times.",
        qsa_lifetime.lengths_each_replay,
    ),
    Suite("alternating_batches", "Batches in turn do not disturb one another.", qsa_lifetime.alternating_batches),
    Suite("two_graphs", "Two graphs side by side are right, or forbidden.", qsa_lifetime.two_graphs, needs_gpu=True),
    Suite("counters", "A hundred split launches leave every counter at zero.", qsa_lifetime.counters),
    Suite("stressed_captures", "Thousands of launches give the same bits.", qsa_lifetime.stressed_captures),
    Suite("flat_memory", "A thousand launches allocate nothing that stays.", qsa_lifetime.flat_memory, needs_gpu=True),
    Suite("one_activity", "A call is one device activity.", qsa_lifetime.one_activity, needs_gpu=True),
)
