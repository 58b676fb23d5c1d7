"""Reading an MLP: its weights, and what its two products are given, are those of the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kda_lab.captures import gemma, nvfp4_models
from kda_lab.captures.nvfp4_models import MODELS, read_mlp
from kda_lab.errors import ParameterError, UnavailableError


def test_a_model_that_cannot_be_run_says_why() -> None:
    """Nothing is read."""
    source = replace(MODELS["smollm2"], missing=lambda: "unavailable, because of the test")
    with pytest.raises(UnavailableError, match="unavailable, because of the test"):
        read_mlp(source, "text", "calibration", 8)


def test_what_is_missing_is_collected_for_each_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2 needs the loader and its own file, but not Gemma's package."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(gemma, "missing_extra", lambda names=("all",): asked.append(names) or "no loader")
    monkeypatch.setattr(nvfp4_models.smollm, "missing_model", lambda: "no file")
    assert nvfp4_models._missing_smollm() == "no loader; no file"
    assert asked == [gemma.LOADER] and gemma.MODEL_PACKAGE not in gemma.LOADER


def test_a_short_text_is_refused() -> None:
    """The refusal names the text, its tokens and how many are needed."""

    class Tokens:
        input_ids = torch.zeros(1, 5, dtype=torch.long)

    with pytest.raises(ParameterError, match=r"calibration is 5 tokens; allowed: at least 9. Give a longer text"):
        nvfp4_models._ids(lambda words, return_tensors: Tokens(), "calibration", "words", 9)


@pytest.mark.capture
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_kept_operands_are_those_of_the_two_products() -> None:
    """A small random model: each product of the kept operand is what the module gave, up to the rounding to BF16."""
    from transformers import LlamaConfig, LlamaModel  # lazy: transformers

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = LlamaModel(config).eval()
    given: dict[str, torch.Tensor] = {}
    mlp = model.layers[2].mlp
    mlp.register_forward_hook(lambda module, arguments, out: given.update(x=arguments[0][0], out=out[0]))
    kept = nvfp4_models._run(model, torch.arange(9)[None], 2)
    assert len(model.layers) == 3
    assert torch.equal(kept["gate_up"], given["x"].bfloat16())
    with torch.inference_mode():
        hidden = mlp.act_fn(mlp.gate_proj(given["x"])) * mlp.up_proj(given["x"])
        assert torch.allclose(mlp.down_proj(hidden), given["out"])
    assert torch.equal(kept["down"], hidden.bfloat16()) and kept["down"].is_contiguous()
    assert not mlp.down_proj._forward_pre_hooks and not mlp.gate_proj._forward_pre_hooks
