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
# # Record QSA captures from a real model
# **Question:** can the committed captures be recorded again, and does a new recording agree with them?
#
# Gemma 3 270M reads 8192 tokens of real text on the CPU. The queries, keys and values of its global layers 5 and 11 are
# folded to the op's shape and kept as fifteen calls. Without the extra `capture` (`pip install 'kda_lab[capture]'`)
# nothing is recorded, and the notebook describes the committed set instead. All fifteen take minutes on a laptop.

# %% tags=["parameters"]
committed = "data/captures/qsa.packed_decode"  # folder of the committed set; never written
out = "build/captures/qsa.packed_decode"  # folder of the new set; replaced when it is there
topologies = ["tp1", "tp2r0", "tp2r1"]  # tp1: both layers; tp2r0: layer 5; tp2r1: layer 11; five captures each
rerecord = "auto"  # auto: where the extra is installed; always: fail without it; never: only open the committed set
pictured = "tp1-q4-saturated"  # capture whose selection is drawn
run_dir = ""  # folder of this run's records; empty: reports/local/10_capture_qsa

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook.capture_session import CaptureSession

session = CaptureSession.open("10_capture_qsa", run_dir, committed)
session.provenance()

# %% [markdown]
# Record. The bar counts: text, model, twelve layers, then the captures with their pinned outputs.

# %%
print(session.record(out, topologies, rerecord))

# %%
session.capture_table()

# %% [markdown]
# What was folded to meet the op's contract, word for word as the manifest has it.

# %%
print(session.folded())

# %% [markdown]
# Against the committed set. Another CPU may round low bits otherwise: at least 0.99 of the selected rows must be the same,
# and no tensor may differ by more than 1e-2 in relative L2.

# %%
session.agreement_table()

# %% [markdown]
# Which blocks of the text each layer selected. *Effective* keys is exp(entropy) of a head's softmax, the median of twelve
# heads: the smaller, the peakier the attention, and the harder a wrong row is to hide.

# %%
session.selection_picture(pictured)

# %% tags=["verdict"]
verdict = session.verdict()
print(verdict.sentence)
verdict.raise_if_failed()
