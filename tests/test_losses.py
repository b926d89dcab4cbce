"""Each formula against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfplay.losses import clipped, importance, k3, surrogate, token_weights


def test_the_surrogate_by_hand():
    """Range 0.8 to 1.28: the upper end binds for gains only, the lower for losses only."""
    ratio = torch.tensor([1.0, 1.5, 1.5, 0.5, 0.5, 1.28, 1.1])
    advantage = torch.tensor([2.0, 2.0, -2.0, 2.0, -2.0, 1.0, -3.0])
    wanted = torch.tensor([2.0, 2.56, -3.0, 1.0, -1.6, 1.28, -3.3])
    assert torch.allclose(surrogate(ratio, advantage, 0.2, 0.28), wanted)
    assert clipped(ratio, advantage, 0.2, 0.28).tolist() == [False, True, False, False, True, False, False]


@given(st.floats(0.01, 5), st.floats(-3, 3))
def test_the_gradient_is_gone_exactly_where_it_says_clipped(ratio, advantage):
    if min(abs(ratio - 0.8), abs(ratio - 1.28)) < 1e-3 or abs(advantage) < 1e-3:
        return
    k = torch.tensor([ratio], requires_grad=True)
    a = torch.tensor([advantage])
    surrogate(k, a, 0.2, 0.28).sum().backward()
    assert (k.grad.item() == 0) == clipped(k, a, 0.2, 0.28).item()
    assert k.grad.item() in (0, pytest.approx(advantage, rel=1e-6))


def test_k3_by_hand():
    """exp(d) - d - 1 at d = ln 2, 0, -1."""
    found = k3(torch.tensor([-1 - math.log(2), -1.0, -1.0]), torch.tensor([-1.0, -1.0, -2.0]))
    assert torch.allclose(found, torch.tensor([2 - math.log(2) - 1, 0.0, math.exp(-1)]))


def test_importance_is_capped_and_constant():
    trainer = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    found = importance(trainer, torch.tensor([-1.0, -3.0, 0.0]), 2.0)
    assert torch.allclose(found, torch.tensor([1.0, 2.0, math.exp(-1)]))
    assert not found.requires_grad


def test_denominators_by_hand():
    """Three completions of 1, 3 and 4 tokens."""
    assert token_weights([1, 3, 4], "token", 10) == pytest.approx([1 / 8] * 3)
    assert token_weights([1, 3, 4], "sequence", 10) == pytest.approx([1 / 3, 1 / 9, 1 / 12])
    assert token_weights([1, 3, 4], "constant", 10) == pytest.approx([1 / 30] * 3)


def test_loss_values_at_ratio_one():
    """Rewards and lengths of three groups, advantages by GRPO (ddof 1) and Dr. GRPO: the loss values that are known for them."""
    from selfplay.advantages import advantages

    rewards = [1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1]
    groups = [0] * 4 + [1] * 4 + [2] * 4
    lengths = [3, 5, 2, 4, 1, 2, 3, 4, 6, 1, 1, 2]

    def loss(variant, how):
        a = advantages(rewards, groups, variant)
        return -sum(x * w * n for x, w, n in zip(a, token_weights(lengths, how, 8), lengths, strict=True))

    assert loss("grpo", "sequence") == pytest.approx(0, abs=1e-9)
    assert loss("grpo", "token") == pytest.approx(0.029406, abs=1e-5)
    assert loss("dr_grpo", "constant") == pytest.approx(0.005208, abs=1e-5)
