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
# # Two profiles, the same four layers
# **Question:** did the fusion save time, when the sum of all kernel durations grew?
#
# A profile of a decode step holds thousands of kernels. Here two profiles are cut at a marker kernel into steps, each step into the
# slice between two launches of the marker, and the slice with the median wall of each arm is laid beside the other's. The pair below is
# made up. Its totals are those that a thread on projection fusion prints for four layers (sglang PR 36206): five projections of
# a KDA layer become three, two of which move to a side stream. For two profiles of your own, change the parameters.

# %% tags=["parameters"]
baseline = "data/traces/made_up_unfused.pt.trace.json.gz"  # torch-profiler JSON (.gz) or Nsight Systems SQLite
candidate = "data/traces/made_up_fused.pt.trace.json.gz"  # the same of the other arm
marker = "moe_fused_gate"  # name, or part of it, of a kernel launched equally often in every step
per_step = 12  # launches of the marker in a step
first = 4  # launch that begins the slice, from 0
last = 8  # launch that ends it: its start is the slice's end
settings = ""  # YAML of categories and limits; empty: the default table
printed_wall_us = [1977.695, 1951.731]  # expected of baseline and candidate in µs; [] for profiles of your own
printed_summed_us = [2190.766, 2363.971]  # the same of the summed durations
printed_kernels = [114, 105]  # the same of the number of kernels
run_dir = ""  # folder of this run's records; empty: reports/local/61_trace_slices

# %%
from kda_lab.notebook import Session, display
from kda_lab.referee.judge import judge
from kda_lab.referee.slices import comparison, outputs, pair, pictures, tables
from kda_lab.referee.slices.settings import SliceSettings, read_settings
from kda_lab.referee.slices.steps import Marker
from kda_lab.runtime import project_path
from kda_lab.verify.verdict import Verdict

session = Session.open("61_trace_slices", run_dir, "cpu")

# %%
session.provenance()

# %% [markdown]
# Times of the representative slices. *Union* is the time in which at least one kernel ran, *overlap* what the sum counts again, *idle*
# what no kernel filled.

# %%
given = read_settings(project_path(settings)) if settings else SliceSettings()
bounds = Marker(marker, per_step, first, last)
found = pair.compare_files(project_path(baseline), project_path(candidate), bounds, given)
display.shown(tables.PART_HEADS, tables.part_lines(found))

# %% [markdown]
# The wall shrinks while the sum grows: work that moved to the side stream runs beside other work, and longer than it would alone. Only
# the wall is time that somebody waits.

# %%
pictures.parts_figure(found)

# %% [markdown]
# Where the kernels are: a lane a stream, both slices from their own start on.

# %%
pictures.lanes_figure(found)

# %% [markdown]
# The sum of each kind of kernel, told from its name. A table that no longer fits the names would show as `other`, and above 10 % the
# comparison would be refused.

# %%
display.shown(tables.CATEGORY_HEADS, tables.category_lines(found))

# %% [markdown]
# Every step of both arms: how far one step differs from the next, beside how far the arms differ.

# %%
display.shown(tables.STEP_HEADS, tables.step_lines(found))

# %% [markdown]
# What a reader has to know before quoting a number, and what the referee makes of it: one trace is one run of an arm, however many steps
# it holds, so a pair of traces shows where time went and decides nothing.

# %%
judgement = judge(comparison.claim_of([found], "slice"))
notes = [*found.findings(), *(f"{f.check}: {f.sentence}" for f in judgement.findings), str(judgement)]
display.shown(("note",), [(note,) for note in notes])

# %%
written = outputs.write_outputs(found, session.run.path, pictures.drawn_files(found))
[path.name for path in written]

# %% tags=["verdict"]
printed = {"wall_us": printed_wall_us, "summed_kernel_us": printed_summed_us, "kernels": printed_kernels}
faults = comparison.disagreements(found, {name: values for name, values in printed.items() if values})
if judgement.verdict not in ("inconclusive", "invalid"):
    faults.append(f"the referee says {judgement} of one pair of traces")
evidence = {"slices": sum(len(a.measures) for a in found.arms), "printed_values": sum(map(len, printed.values()))}
verdict = Verdict.of(f"{pictures.title(found)}; {judgement}", evidence, faults)
verdict.write(session.run)
print(verdict.sentence)
verdict.raise_if_failed()
