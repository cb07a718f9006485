"""What a model says of trained tokens: entropies with a gradient where asked for, and any policy will do."""

import pytest
import torch
from torch import nn

from agentrl.policy.base import Output, Policy
from agentrl.policy.transformer import TinyTransformer, TransformerShape
from agentrl.train.losses import supervised
from agentrl.train.packing import count, pack
from agentrl.train.scoring import score_samples, score_tokens
from agentrl.train.trainer import OptimizerSettings, Trainer
from agentrl.types import Sample

SHAPE = TransformerShape(vocab_size=12, layers=1, width=16, heads=2, mlp_width=32, context=32)


def sample(ids, trained):
    return Sample(
        token_ids=tuple(ids),
        weights={"ce": tuple(map(float, trained))},
        logprobs=(None,) * len(ids),
        advantages=(0.0,) * len(ids),
        trace_id=str(ids),
        group_id="g",
    )


SAMPLES = [sample([1, 2, 3, 4], [0, 0, 1, 1]), sample([1, 2, 5], [0, 0, 1])]


class Bigrams(Policy):
    """The smallest policy: the next token depends on the last alone. With a bias, and nothing for Muon."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(12, 4)
        self.out = nn.Linear(4, 12)
        self.value = None

    def forward(self, batch):
        hidden_KD = self.rows(batch.token_ids_M.index_select(0, batch.predictor_K))
        return Output(hidden_KD=hidden_KD, projection_VD=self.out.weight, bias_V=self.out.bias)

    @property
    def context(self):
        return 32

    def advance(self, ids_M, previous_ids_M, positions_M, attend, last_B):
        return self.out(self.rows(ids_M[last_B]))


def test_entropies_carry_a_gradient_only_where_it_is_asked_for():
    model = TinyTransformer(SHAPE, seed=0)
    batch = pack([SAMPLES], count(SAMPLES))
    assert not score_tokens(model, batch).entropy_K.requires_grad
    scored = score_tokens(model, batch, 0.7, entropy_gradient=True)
    expected = torch.distributions.Categorical(logits=model(batch).logits_KV / 0.7).entropy()
    torch.testing.assert_close(scored.entropy_K, expected)
    mine, theirs = (torch.autograd.grad(x.sum(), model.embedding.weight)[0] for x in (scored.entropy_K, expected))
    torch.testing.assert_close(mine, theirs)
    assert mine.abs().max() > 0


def test_asking_for_the_gradient_changes_no_value_to_the_bit():
    model, batch = TinyTransformer(SHAPE, seed=0), pack([SAMPLES], count(SAMPLES))
    plain, asked = score_tokens(model, batch), score_tokens(model, batch, entropy_gradient=True)
    assert torch.equal(plain.logprobs_K, asked.logprobs_K)
    assert torch.equal(plain.entropy_K, asked.entropy_K)


def test_any_policy_can_be_scored_and_trained():
    model = Bigrams()
    table = (model.rows.weight @ model.out.weight.T + model.out.bias).log_softmax(-1)
    found = score_samples(model, SAMPLES, lambda s: s.logprobs_K, temperature=1.0, max_tokens=100)
    # Tokens 3 and 4 of the first follow 2 and 3; token 5 of the second follows 2.
    assert found[0][2:] == pytest.approx([table[2, 3].item(), table[3, 4].item()])
    assert found[1][2] == pytest.approx(table[2, 5].item())
    settings = OptimizerSettings(learning_rate=0.1, matrix_learning_rate=0.0, total_steps=100, warmup_steps=1)
    trainer = Trainer(model, settings)
    losses = [trainer.step(SAMPLES, supervised)["loss"] for _ in range(20)]
    # After 2 come 3 and 5, as often: ln 2 for two of three tokens, and 4 after 3 is sure.
    assert losses[-1] == pytest.approx(2 / 3 * 0.6931, abs=0.05)


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest():
    model = TinyTransformer(SHAPE, seed=0)
    adamw, muon = Trainer(model, OptimizerSettings(learning_rate=0, matrix_learning_rate=0, total_steps=1)).optimizers
    held = [id(p) for optimizer in (adamw, muon) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())  # each once
    # qkv 16 x 48, out 16 x 16, up and down 16 x 32
    assert sum(p.numel() for p in muon.param_groups[0]["params"]) == 16 * 48 + 16 * 16 + 2 * 16 * 32
