# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Suites of QSA packed decode: laws, states and lifetimes
# **Question:** does the kernel stay right where no capture looks: at every batch, at the edges, over thousands of launches?
#
# Captures show what production asked for. The suites ask for the rest: each batch to 128, empty and padded rows, answers
# known without an oracle, graphs replayed at other lengths and beside each other, counters, memory, one kernel a call.

# %% tags=["parameters"]
capture_set = "data/captures/qsa.packed_decode"  # captures of the stress suite; their op chooses the suites
kernel = "grouped"  # candidate file stem, exported kernel name, or an arm of the op such as upstream_schedule
suites = []  # names of suites to run; empty: all
seconds = 0.5  # after which a suite begins no further case; 60 is enough for all of them on an H200
stress_launches = 10000  # launches of each capture on a GPU
seed = 2026  # of the synthetic calls
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/28_suites_qsa

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session
from kda_lab.notebook.suite_session import SuiteSession

session = Session.open("28_suites_qsa", run_dir, device)
session.provenance()

# %% [markdown]
# The arm and what every suite demands of it.

# %%
chosen = SuiteSession.open(session, capture_set, kernel, suites, stress_launches, seed)
chosen.geometry()

# %% [markdown]
# Each suite runs its cases in order until they are done or its time is up: *of* says how many there are. On a CPU the
# kernel is interpreted, so most suites are cut short, and those of streams, memory and the profiler are not run.

# %%
chosen.run(seconds)

# %% [markdown]
# What was wrong, and what was seen beside it: bits that agree where only values must, graphs that overlapped.

# %%
chosen.remarks()

# %% tags=["verdict"]
verdict = chosen.verdict()
print(verdict.sentence)
verdict.raise_if_failed()
