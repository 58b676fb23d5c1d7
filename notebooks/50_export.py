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
# # Export a kernel with its contract
# **Question:** does the evidence carry this very source, and does the exported folder work on its own?
#
# The export re-reads the runs' records, re-checks every gate, compiles the source ahead of time for each architecture
# into an empty cache, imports it in a fresh process, compares it bit for bit with the candidate on every capture, and
# only then moves it into place. A gate that fails leaves the package as it was.
#
# Alone in its folder the kernel takes every batch that the runs prove. The package's own export of it leaves the small ones to
# another kernel: `kda-lab export … --leave-to qsa_packed_decode_clustered`.

# %% tags=["parameters"]
op = "qsa.packed_decode"  # operator
candidate = "notebooks/candidates/qsa.packed_decode/grouped.py"  # source to export
runs = ["reports/h200-replay-qsa-both", "reports/h200-sweep-qsa"]  # folders of GPU runs of this very source
capture_set = "data/captures/qsa.packed_decode"  # folder of a capture set
kernels_dir = "build/export/kernels"  # where the kernel goes; kda_lab/kernels is the package itself
evidence_dir = "build/export/evidence"  # where the evidence goes; reports/evidence is what the package cites
run_dir = ""  # folder of this run's records; empty: reports/local/50_export

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import ExportSession

session = ExportSession.open("50_export", run_dir, op, kernels_dir)
session.provenance()

# %% [markdown]
# What the runs prove for this source: replays, killed mutants, rows beyond noise.

# %%
session.evidence_table(runs, candidate, capture_set)

# %% [markdown]
# The export itself, gate by gate.

# %%
folder = session.export(runs, candidate, capture_set, evidence_dir)
sorted(path.name for path in folder.iterdir())

# %% [markdown]
# The contract: architectures and how far each is supported. Compiled for SM120 and SM121 is not validated there.

# %%
session.architecture_table()

# %% [markdown]
# Which shapes production dispatches, and on what basis.

# %%
session.dispatch_table()

# %% [markdown]
# The decision for one call, without launching anything: on the H200 it is dispatched, on an SM121 it is refused.

# %%
print(session.explain(capture_set, "tp1-q4-saturated", capability=(9, 0)))
print(session.explain(capture_set, "tp1-q4-saturated", capability=(12, 1)))

# %% [markdown]
# A call through the public facade with one capture's tensors, against its pinned output.

# %%
facade = session.call_facade(capture_set, "tp2r0-q3")
facade

# %% tags=["verdict"]
verdict = session.verdict()
verdict.raise_if_failed()
