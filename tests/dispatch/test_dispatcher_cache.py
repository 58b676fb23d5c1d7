"""The dispatcher from the second call on: cache, counters, log, threads, explanations."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kda_lab import runtime
from kda_lab.contracts.facts import alignment_of
from kda_lab.dispatch import dispatcher as module
from kda_lab.dispatch.dispatcher import Dispatcher
from kda_lab.errors import ContractError, KernelLoadError, ParameterError
from kda_lab.ops.protocol import OpSpec

Write = Callable[..., Path]
Run = Callable[..., Any]


def x(rows: int = 4, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """An input [rows, 8]."""
    return torch.zeros(rows, 8, dtype=dtype)


def test_same_static_properties_are_decided_once(write_kernel: Write, run: Run, gpu: Any) -> None:
    """A second call with other tensors of the same geometry takes the cached selection."""
    write_kernel("alpha")
    assert [run(), run(), run()] == ["alpha"] * 3
    assert gpu.asked == 1


def placed(rows: int, columns: int, offset_bytes: int = 0) -> torch.Tensor:
    """BF16 [rows, columns] at `offset_bytes` behind a multiple of 256 bytes, where the good call's x lies too."""
    base = torch.zeros(rows * columns + 256, dtype=torch.bfloat16)
    start = (-base.data_ptr() % 256 + offset_bytes) // 2
    return base[start : start + rows * columns].view(rows, columns)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"rows": 9}, "x.shape[0] (T)"),
    "dtype": ({"x": placed(4, 8).view(torch.float16)}, "x.dtype"),
    "strides": ({"x": placed(4, 16)[:, ::2]}, "x.strides"),
    "alignment": ({"x": placed(4, 8, offset_bytes=2)}, "x.alignment"),
    "scalar": ({"factor": 0}, "factor"),
    "scalar-bool-for-int": ({"factor": True}, "factor"),
    "scalar-float-for-int": ({"factor": 2.0}, "factor"),
    "scalar-nan": ({"factor": float("nan")}, "factor"),
    "scalar-a-list": ({"factor": [2]}, "factor"),
    "scalar-a-tensor": ({"factor": torch.tensor(2)}, "factor"),
    "out-dtype": ({"out": torch.zeros(4, 8)}, "out.dtype"),
    "not-a-tensor": ({"x": [[0.0] * 8] * 4}, "x"),
    "sparse": ({"x": torch.zeros(4, 8, dtype=torch.bfloat16).to_sparse()}, "x"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_changed_property_is_judged_anew(case: str, write_kernel: Write, run: Run) -> None:
    """After a good call was cached, a call that differs in one static property is refused for that property, and the good one still runs."""
    write_kernel("alpha")
    arguments, field = CHANGES[case]
    assert run(factor=1 if case == "scalar-bool-for-int" else 2) == "alpha"
    with pytest.raises(ContractError) as caught:
        run(**arguments)
    assert [reason.field for reason in caught.value.reasons] == [field]
    assert run() == "alpha"


class Proxy:
    """Answers like the tensor it holds, and is none."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor, name)


def test_a_proxy_of_a_tensor_never_shares_its_selection(write_kernel: Write, run: Run) -> None:
    """A proxy is refused after a good call, and a good call runs after a proxy was refused."""
    write_kernel("alpha")
    good = placed(4, 8)
    for _ in range(2):
        with pytest.raises(ContractError, match=r"x is a Proxy; allowed: a strided torch\.Tensor"):
            run(x=Proxy(good))
        assert run(x=good) == "alpha"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused_each_time(write_kernel: Write, run: Run, layout: torch.layout) -> None:
    """It is named as what it is, not an error from inside torch."""
    write_kernel("alpha")
    nested = torch.nested.nested_tensor([torch.zeros(2, 8), torch.zeros(4, 8)], layout=layout)
    for _ in range(2):
        with pytest.raises(ContractError, match=r"x is a nested tensor; allowed: a strided torch\.Tensor"):
            run(x=nested)


def test_devices_are_part_of_the_key(dispatcher: Dispatcher, spec: OpSpec) -> None:
    """Two tensors that differ only in their device have different keys."""
    tensors = placed(4, 8), torch.zeros(4, 8, dtype=torch.bfloat16, device="meta")
    keys = [dispatcher._key(spec, (tensor,), {}, {}, None) for tensor in tensors]
    assert keys[0] != keys[1]


def test_a_buffer_given_twice_has_its_own_key(dispatcher: Dispatcher, spec: OpSpec) -> None:
    """Which of the tensors begin at one address is part of the key, and where there are none without elements."""
    one, two, three = (placed(1, 4) for _ in range(3))

    def key(*tensors: torch.Tensor, out: torch.Tensor) -> Any:
        return dispatcher._key(spec, tensors, {}, {"out": out}, None)

    patterns = [(one, two, three), (one, one, three), (one, two, one), (one, two, two), (one, one, one)]
    assert len({key(a, b, out=out) for a, b, out in patterns}) == len(patterns)
    assert key(one, one, out=three) == key(two, two, out=one)
    empty, another = torch.zeros(0, 3), torch.zeros(0, 3)
    assert key(empty, empty, out=one) == key(empty, another, out=two)


def test_alignments_are_those_of_the_facts() -> None:
    """The table that a key is made with says of every address what the facts of a call say."""
    assert all(module.ALIGNMENTS[n & module.LOW_BITS] == alignment_of(n) for n in (*range(1024), 2**47 + 6))


def test_cache_is_bounded(
    write_kernel: Write, run: Run, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache never holds more than its limit, and calls stay right when it is emptied."""
    monkeypatch.setattr(module, "CACHE_ENTRIES", 5)
    write_kernel("alpha")
    for factor in range(1, 13):
        assert run(factor=factor) == "alpha"
        assert dispatcher.statistics().cached <= 5
    assert dispatcher.statistics().hits == {"toy.scale: alpha": 12}


def test_refresh_reads_the_folder_anew(write_kernel: Write, run: Run, dispatcher: Dispatcher) -> None:
    """A kernel exported while the process runs is served after `refresh`, not before."""
    write_kernel("alpha")
    assert run() == "alpha"
    write_kernel("alpha", source="def scale(x, w, *, factor, out): return 'second'\n", version=2)
    assert run() == "alpha"
    dispatcher.refresh()
    assert run() == "second"


def test_prepare_imports_the_kernels_of_one_op(
    write_kernel: Write, run: Run, dispatcher: Dispatcher, spec: OpSpec
) -> None:
    """`prepare` imports all kernels of the op and none of another op, and checks their hashes."""
    folder = write_kernel("alpha")
    write_kernel("other", op="toy.other", source="raise SystemExit\n")
    assert dispatcher.prepare(spec) == ("alpha",)
    (folder / "kernel.py").write_text("changed")
    assert run() == "alpha"
    dispatcher.refresh()
    with pytest.raises(KernelLoadError, match="sha256"):
        dispatcher.prepare(spec)


def test_statistics_count_hits_and_misses(write_kernel: Write, run: Run, dispatcher: Dispatcher) -> None:
    """Hits are counted a kernel, misses a distinct refusal, cached or not; a reset starts at zero."""
    write_kernel("alpha")
    for factor in (1, 2, 2, 0, 0, -1):
        if factor > 0:
            run(factor=factor)
        else:
            with pytest.raises(ContractError):
                run(factor=factor)
    statistics = dispatcher.statistics()
    assert statistics.hits == {"toy.scale: alpha": 3}
    assert statistics.misses == {
        "toy.scale: factor is 0; allowed: an int >= 1 and <= 100. (kernel alpha)": 2,
        "toy.scale: factor is -1; allowed: an int >= 1 and <= 100. (kernel alpha)": 1,
    }
    dispatcher.reset_statistics()
    assert (dispatcher.statistics().hits, dispatcher.statistics().misses) == ({}, {})
    run()
    assert dispatcher.statistics().hits == {"toy.scale: alpha": 1}


def test_log_has_one_line_a_kernel_and_a_refusal(
    write_kernel: Write, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Each kernel's first dispatch and each distinct refusal is logged once, however many calls there are."""
    write_kernel("alpha")
    with caplog.at_level(logging.INFO, logger="kda_lab.dispatch"):
        for factor in (1, 2, 2, 3):
            run(factor=factor)
        for _ in range(3):
            with pytest.raises(ContractError):
                run(factor=0)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "toy.scale: dispatched to kernel alpha"),
        ("WARNING", "toy.scale: factor is 0; allowed: an int >= 1 and <= 100. (kernel alpha) -> raised"),
    ]


def test_threads_count_every_call_and_import_once(write_kernel: Write, run: Run, dispatcher: Dispatcher) -> None:
    """Eight threads that start at once import the kernel once and lose no count."""
    write_kernel(
        "alpha",
        source="import sys\nsys.kda_imports = getattr(sys, 'kda_imports', 0) + 1\ndef scale(x, w, *, factor, out): return factor\n",
    )
    import_count = 0
    barrier, wrong = threading.Barrier(8), []

    def work(seed: int) -> None:
        barrier.wait()
        for i in range(200):
            factor = 1 + (i + seed) % 50
            if run(factor=factor) != factor:
                wrong.append(factor)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    import_count = vars(sys).pop("kda_imports")
    assert wrong == []
    assert import_count == 1
    assert dispatcher.statistics().hits == {"toy.scale: alpha": 1600}


def test_wrong_number_of_tensors_is_said(write_kernel: Write, dispatcher: Dispatcher, spec: OpSpec) -> None:
    """A door that passes too few tensors is an error that lists them."""
    write_kernel("alpha")
    with pytest.raises(ParameterError, match=r"toy\.scale: number of tensors is 1; allowed: 2: x, w\."):
        dispatcher.call(spec, (x(),), {"factor": 1}, {"out": None})


def test_cached_call_runs_no_operator(write_kernel: Write, dispatcher: Dispatcher, spec: OpSpec) -> None:
    """Once selected, a call runs no torch operator of its own, so that nothing can read a device or join a captured graph."""
    write_kernel("alpha")
    arguments = (spec, (x(), torch.zeros(8)), {"factor": 2}, {"out": None})
    dispatcher.call(*arguments)
    with torch.autograd.profiler.profile(use_cpu=True) as profile:
        dispatcher.call(*arguments)
    assert [event.name for event in profile.function_events] == []


def test_explain_launches_and_counts_nothing(write_kernel: Write, dispatcher: Dispatcher, spec: OpSpec) -> None:
    """An explanation gives the decision of the call without importing a kernel or counting a call."""
    write_kernel("alpha", source="raise SystemExit\n")
    explanation = dispatcher.explain(spec, (x(), torch.zeros(8)), {"factor": 2}, {"out": None})
    assert (explanation.kernel, explanation.outcome) == ("alpha", "kernel alpha")
    assert (dispatcher.statistics().hits, dispatcher.statistics().misses) == ({}, {})


def test_explain_says_what_would_happen(
    write_kernel: Write, dispatcher: Dispatcher, spec: OpSpec, chain_spec: OpSpec
) -> None:
    """The outcome is the kernel, the fallback that would run, or the error that would be raised."""
    write_kernel("alpha")
    bad = ((x(), torch.zeros(8)), {"factor": 0}, {"out": None})
    assert dispatcher.explain(spec, *bad).outcome == "raises ContractError (unsupported toy call)"
    assert dispatcher.explain(chain_spec, *bad).outcome == "fallback plain"
    assert dispatcher.explain(chain_spec, *bad, kernel="alpha").outcome == "raises ContractError (unsupported toy call)"


def test_default_folder_is_the_packages_own() -> None:
    """Without an argument the kernels that the package ships are served."""
    assert Dispatcher().kernels_dir == Path(module.__file__).parents[1] / "kernels"
    assert module.DISPATCHER.kernels_dir.is_dir()


def test_contract_file_is_read_once(write_kernel: Write, run: Run) -> None:
    """After the first call the folder is not looked at again, so a serving process touches no disk."""
    folder = write_kernel("alpha")
    assert run() == "alpha"
    (folder / "contract.json").write_text(json.dumps({}))
    (folder / "kernel.py").unlink()
    assert run(rows=5) == "alpha"


def test_cache_key_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of the environment changes with each documented variable and comes back with it."""
    for name in runtime.ENVIRONMENT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    empty = runtime.environment_token()
    for name in runtime.ENVIRONMENT_VARIABLES:
        monkeypatch.setenv(name, "1")
        assert runtime.environment_token() != empty
        monkeypatch.delenv(name)
        assert runtime.environment_token() == empty


def test_environment_token_works_on_any_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `os.environ` has no backing mapping, as on another Python, the documented way is used."""
    monkeypatch.setattr(runtime.os, "environ", {"KDA_LAB_KERNEL": "alpha"})
    # Behind the variables may stand that the interpreter was proved in this process.
    assert runtime.environment_token()[:5] == ("alpha", None, None, None, None)


def test_two_specs_of_one_name_do_not_share_selections(
    write_kernel: Write, run: Run, spec: OpSpec, chain_spec: OpSpec
) -> None:
    """A selection made for a spec with a fallback is not used for one without, though their names are equal."""
    write_kernel("alpha")
    assert run(chain_spec, factor=0) == "plain"
    with pytest.raises(ContractError, match="factor is 0"):
        run(spec, factor=0)


def test_names_are_part_of_the_key(write_kernel: Write, dispatcher: Dispatcher, spec: OpSpec) -> None:
    """The same value under another scalar's name is another call, and is refused by that name."""
    write_kernel("alpha")
    tensors = (placed(4, 8), placed(1, 16).view(torch.float32)[0])
    assert dispatcher.call(spec, tensors, {"factor": 2}, {"out": None}) == "alpha"
    with pytest.raises(ContractError, match=r"bias is 2; allowed: one of factor\."):
        dispatcher.call(spec, tensors, {"bias": 2}, {"out": None})


def test_a_dtype_is_part_of_the_key(write_kernel: Write, dispatcher: Dispatcher, spec: OpSpec, gpu: Any) -> None:
    """A scalar that is a dtype is cached, two dtypes apart, and never confused with its name."""
    write_kernel("alpha", scalars={"factor": {"kind": "dtype", "allowed": ["bfloat16", "float32"]}})
    tensors = (placed(4, 8), placed(1, 16).view(torch.float32)[0])

    def call(factor: Any) -> Any:
        return dispatcher.call(spec, tensors, {"factor": factor}, {"out": None})

    assert [call(torch.bfloat16), call(torch.bfloat16), call(torch.float32)] == ["alpha"] * 3
    assert gpu.asked == 2
    for wrong, shown in ((torch.float16, "torch.float16"), ("bfloat16", "'bfloat16'")):
        with pytest.raises(ContractError, match=f"factor is {shown}; allowed: torch.bfloat16, torch.float32"):
            call(wrong)
