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
# # Four threads before the referee
# **Question:** what do the numbers that four source threads printed carry, if nothing but them is used?
#
# Each thread's tables lie in `data/claims/`, every value as it was printed. The referee judges each claim by fixed checks
# and shows arithmetic that a person can redo. Nothing is measured here, and a verdict on a claim's evidence is none on
# the kernel: *inconclusive* says that the printed numbers do not decide, not that the change is without effect.

# %% tags=["parameters"]
threads = ["sglang-36865-nvfp4", "sglang-36845-qsa", "sglang-32890-kimi-k3", "sglang-36206-kda-fusion"]  # folders of data/claims
runs = [3, 4, 5, 7]  # runs an arm whose power is drawn, at the noise of the claim `throughput`
run_dir = ""  # folder of this run's records; empty: reports/local/60_referee

# %%
from kda_lab.notebook import Session
from kda_lab.notebook.referee_session import RefereeSession

session = Session.open("60_referee", run_dir, "cpu")
referee = RefereeSession.open(session, threads)
referee.tables()

# %% [markdown]
# Every claim and its verdict. What stands in parentheses is the margin, the smallest effect that could have been found
# (MDE), or the reason.

# %%
referee.verdicts()

# %% [markdown]
# **A gain that is occupancy.** Requests in flight follow from rate and latency (Little's law). The baseline held 23.1 of
# 24, the candidate 24.0. On its own line of constant latency the baseline would pass the candidate at the same number.

# %%
referee.occupancy_figure("c24-throughput-point")

# %%
referee.arithmetic("c24-throughput-point", "occupancy", "published")

# %% [markdown]
# **Three runs against three.** All runs of one arm lie above all runs of the other, and still two of the twenty ways to
# hand out the labels look as extreme. No effect, however large, would be found with three runs an arm at p ≤ 0.04; with
# four or five at this noise, far smaller ones than the printed one would.

# %%
referee.power_figure("throughput", runs)

# %% [markdown]
# **A cold compile.** Mean and tail of the first token are far apart in one arm alone, and the time per token is the same:
# throughput rebuilt from the two shows that the whole deficit is the first token's.

# %%
referee.arithmetic("c1-first-pass", "cache", "rebuilt throughput")

# %% [markdown]
# **A score of another denominator.** 1319 questions are declared; the six scores are whole numbers of 1314. Right answers
# are counted, so the smallest visible difference is known: 1.3 points.

# %%
referee.arithmetic("gsm8k", "scores")

# %% [markdown]
# Every change, ratio, mean and geometric mean that the threads print, computed again from what they print it from. A
# mark outside the band does not follow to its last digit; hollow ones would, if digits that were not printed are granted.

# %%
referee.published_figure()

# %%
referee.disagreements()

# %% tags=["verdict"]
expected = {"c1-first-pass": "invalid(cold JIT", "packed-decode-tolerance": "invalid(vacuous"}
expected |= {"c24-throughput-point": "not comparable(occupancy differs, -2.2 %"}
expected |= {"throughput": "inconclusive(separated, p = 0.10, n = 3)", "gsm8k": "inconclusive(MDE 1.3 points)"}
expected |= {"equality-normal": "invalid(A/A failed", "equality-deterministic": "identical(deterministic mode)"}
verdict = referee.verdict(expected)
print(verdict.sentence)
verdict.raise_if_failed()
