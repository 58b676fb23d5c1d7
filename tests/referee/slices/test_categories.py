"""Kernel names are told apart by a table that a user may extend but not break."""

from __future__ import annotations

import re

import pytest

from kda_lab.errors import RefereeError
from kda_lab.referee.slices.categories import DEFAULT, OTHER, Categories, Category


@pytest.mark.parametrize(
    ("kernel", "category"),
    [
        ("nvjet_tst_128x64_64x4_2x1_v_bz_TNT", "projection"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(float const*)", "projection"),
        ("moe_grouped_gemm_up_kernel", "moe"),
        ("void moe_fused_gate_kernel<float, 8>", "moe"),
        ("causal_conv1d_update_kernel", "kda"),
        ("fused_recurrent_kda_fwd", "kda"),
        ("concat_MLA_absorb", "mla"),
        ("attn_res_combine_kernel", "residual"),
        ("ncclDevKernel_AllReduce_Sum_bf16", "communication"),
        ("formlating_kernel", OTHER),
        ("vectorized_elementwise_kernel", OTHER),
    ],
)
def test_names_of_serving_engines_find_their_category(kernel: str, category: str) -> None:
    """The first pattern that matches decides, whatever the case."""
    assert Categories().of(kernel) == category


def test_own_categories_are_asked_first_and_replace_those_of_their_name() -> None:
    """`gemm` becomes mine; the default `moe` is gone where mine has its name."""
    table = Categories.extended([Category("mine", ("GEMM",)), Category("moe", ("gate$",))])
    assert (table.of("moe_grouped_gemm"), table.of("fused_gate"), table.of("moe_permute")) == ("mine", "moe", OTHER)
    assert table.names[:2] == ("mine", "moe")
    assert len(table.names) == len(DEFAULT) + 2
    assert table.names[-1] == OTHER


@pytest.mark.parametrize(
    ("name", "patterns", "message"),
    [
        ("other", ("a",), "category name is 'other'; allowed: a word other than 'other'."),
        (" ", ("a",), "category name is ' '"),
        ("x", (), "patterns of x is (); allowed: at least one."),
        ("x", ("a(",), "pattern of x is 'a('; allowed: a regular expression."),
        ("x", ("",), "pattern of x is ''; allowed: a text that not every name has."),
    ],
)
def test_a_category_that_cannot_work_is_refused(name: str, patterns: tuple[str, ...], message: str) -> None:
    """Its name, or the pattern at fault, is in the message."""
    with pytest.raises(RefereeError, match=re.escape(message)):
        Category(name, patterns)


def test_a_name_given_twice_is_refused() -> None:
    """Two categories of one name would share a sum."""
    with pytest.raises(RefereeError, match=re.escape("categories named twice is ['a']; allowed: each name once.")):
        Categories((Category("a", ("x",)), Category("a", ("y",))))
