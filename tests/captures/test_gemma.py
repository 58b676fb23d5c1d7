"""Reading a text with the model: Q, K and V are what attention sees, and a missing extra is explained."""

from __future__ import annotations

import pytest
import torch

from kda_lab import runtime
from kda_lab.captures import gemma
from kda_lab.errors import ParameterError, UnavailableError


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each missing package is listed, and nothing is run."""
    absent = runtime.OptionalModule("gguf", None, "unavailable, because importing gguf raised ImportError: none")
    real = runtime.import_optional
    monkeypatch.setattr(gemma.runtime, "import_optional", lambda name: absent if name == "gguf" else real("json"))
    with pytest.raises(UnavailableError, match=r"importing gguf raised .* pip install 'kda_lab\[capture\]'"):
        gemma.read_text("text", (5,), 8)


def test_nothing_is_missing_when_all_packages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty reason means that the model can be run."""
    real = runtime.import_optional
    monkeypatch.setattr(gemma.runtime, "import_optional", lambda name: real("json"))
    assert gemma.missing_extra() == ""


@pytest.mark.capture
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_kept_tensors_are_those_that_attention_receives() -> None:
    """A small random model: Q, K and V of the hook equal those of the attention function, rounded to BF16."""
    from transformers import AttentionInterface, Gemma3TextConfig  # lazy: transformers
    from transformers.models.gemma3.modeling_gemma3 import Gemma3TextModel  # lazy: transformers

    seen: dict[int, tuple[torch.Tensor, ...]] = {}

    def spy(module, q, k, v, mask, **named):  # type: ignore[no-untyped-def]
        seen[module.layer_idx] = (q, k, v)
        return torch.zeros_like(q).transpose(1, 2), None

    AttentionInterface.register("kda_lab_spy", spy)
    config = Gemma3TextConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=7,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        attn_implementation="kda_lab_spy",
    )
    torch.manual_seed(0)
    model = Gemma3TextModel(config).eval()
    steps: list[str] = []
    kept = gemma._run(model, torch.arange(9)[None], (2, 5), steps.append)
    assert sorted(kept) == [2, 5] and max(seen) == 5 and steps == [f"layer {i}" for i in range(6)]
    for index, found in kept.items():
        q, k, v = (t[0].transpose(0, 1).bfloat16() for t in seen[index])
        assert torch.equal(found.q, q) and torch.equal(found.k, k[:, 0]) and torch.equal(found.v, v[:, 0])


@pytest.mark.capture
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_short_text_is_refused_before_the_model_is_loaded() -> None:
    """The refusal says how many tokens there are and how many are needed."""
    with pytest.raises(ParameterError, match=r"text is \d tokens; allowed: at least 100. Give a longer text"):
        gemma.read_text("a few words", (5,), 100)
