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
# # Replay a state instead of writing it
# **Question:** is a state that is replayed from a ring the state that was written, and when is it cheaper?
#
# A recurrent state cannot be cut back, so a verification of drafted tokens keeps either the state behind each token
# (snapshots) or what the tokens were (a ring), and `kda.fold` makes the state of the accepted ones again. Decode can do
# the same and write its state every L-th token only. Two signs are published: with raw keys the replay is slower than
# packed decode, because every key channel decays by itself; with keys that are kept pre-decayed it is faster. The
# identities are checked everywhere, on synthetic tokens; the signs need a GPU, and the run passes whichever way they fall.

# %% tags=["parameters"]
tokens = 4  # drafted tokens a request, verified at once
places = 4  # L, places of the ring in the identities, 2 to 16; timed rows have 16
heads = 12  # value heads of the timed rows: those of one rank of eight
batch = 32  # requests of the timed rows: 1, 2, 4, … 128
seed = 2026  # of the synthetic tokens
trials = 5  # timed trials an arm, at least 5 for a verdict
device = "auto"  # auto, cpu, cuda or cuda:N
run_dir = ""  # folder of this run's records; empty: reports/local/33_replay_ssm

# %%
from kda_lab import runtime

runtime.use_interpreter_on_cpu()
from kda_lab.notebook import Session
from kda_lab.notebook.ssm_session import SsmSession

session = Session.open("33_replay_ssm", run_dir, device)
session.provenance()

# %%
ssm = SsmSession.open(session, places, seed)
ssm.arm_table()

# %% [markdown]
# **Verification.** With or without a ring the outputs have the same bits. The fold of n tokens is snapshot n; of none,
# the state keeps its bits, and so does every slot that no request names. One request is padding.

# %%
ssm.verify(tokens)

# %% [markdown]
# **Decode.** Two rings full of tokens and one more, one by one, against packed decode on the same tokens. Records are
# rounded to BF16, the state is not. A ring of one place keeps nothing, and is packed decode bit for bit.

# %%
ssm.replay()

# %% [markdown]
# **Time**, on a GPU only: every op on the same shapes, cold, with an A/A control of each.

# %%
ssm.time(heads, batch, tokens, trials)

# %% [markdown]
# The published signs beside what this machine says. A ratio above one is the published way round.

# %%
ssm.signs()

# %% tags=["verdict"]
verdict = ssm.verdict()
print(verdict.sentence)
verdict.raise_if_failed()
