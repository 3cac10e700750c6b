"""What heads do: every role found where it was planted, and nowhere else."""

import math

import pytest
import torch
from core.made import model, translator
from torch import Tensor

import regard
from regard import config as C
from regard import lens
from regard.lens.heads import distance, entropy, relative, visible
from regard.lens.roles import ROLES, score

VOCAB, N = 23, 22  # halves of eleven different ids
NAMES = [role.name for role in ROLES]


def onto(places: Tensor) -> Tensor:
    """A pattern (N, N) that looks at one place from each token."""
    return torch.nn.functional.one_hot(places, len(places)).float()


def text() -> tuple[Tensor, Tensor]:
    """Ids with copies and delimiters in every row, and which of them are delimiters."""
    ids = torch.stack([torch.randperm(VOCAB - 1)[:11] + 1 for _ in range(3)]).repeat(1, 2)
    ids[:, [0, 5, 9, 16]] = torch.tensor([1, 0, 0, 0])
    return ids, ids == 0


def planted(ids: Tensor, marks: Tensor) -> Tensor:  # (B, 6, N, N), a head for each role in its order
    rows = []
    for tokens, mark in zip(ids.tolist(), marks.tolist(), strict=True):
        last = {role: list(range(len(tokens))) for role in ("same", "delimiter", "induction")}
        for i, token in enumerate(tokens):
            before = [j for j in range(i) if tokens[j] == token]
            ends = [j for j in range(i + 1) if mark[j]]
            last["same"][i] = before[-1] if before else i
            last["delimiter"][i] = ends[-1] if ends else i
            last["induction"][i] = before[-1] + 1 if before else i
        own = torch.arange(len(tokens))
        places = {"previous": (own - 1).clamp(min=0), "itself": own, "first": 0 * own}
        places |= {role: torch.tensor(found) for role, found in last.items()}
        rows.append(torch.stack([onto(places[name]) for name in NAMES]))
    return torch.stack(rows)


@pytest.mark.spec("S150")
def test_every_role_is_found_in_the_head_it_was_planted_in():
    made = model(mask="causal", dim=24, depth=1, attention=C.Attention(heads=len(NAMES)), embed=C.Embed(vocab=VOCAB))
    ids, marks = text()
    asked = []
    forward = made.embed.forward
    made.embed.forward = lambda x, **rest: (asked.append(x), forward(x, **rest))[1]

    def plant(name: str, pattern: Tensor) -> Tensor:
        return planted(asked[-1], marks if torch.equal(asked[-1], ids) else asked[-1] < 0)

    with regard.looking(made, "trunk.0.attn.pattern", edit=plant):
        found = lens.heads(made, ids, marks)

    assert [head.role for head in found] == NAMES
    for head, name in zip(found, NAMES, strict=True):
        assert head.scores[name].value > 0.75, name  # delimiters are not there yet for the first tokens


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_looking_everywhere_alike_is_chance(role):
    ids, marks = text()
    allowed = torch.ones(len(ids), N, N).tril().bool()
    alike = (allowed / allowed.sum(-1, keepdim=True))[:, None].expand(-1, 2, -1, -1)

    for found in score(role, alike, allowed, ids, marks):
        assert found.value == pytest.approx(found.chance, abs=1e-6)
        assert found.lift == pytest.approx(0, abs=1e-5)
        assert 0 < found.chance < 0.5


@pytest.mark.parametrize("role", [role for role in ROLES if role.name != "induction"], ids=NAMES[:-1])
def test_looking_only_where_a_role_says_is_always(role):
    ids, marks = text()
    allowed = torch.ones(len(ids), N, N).tril().bool()
    says = role.says(ids, marks) & allowed
    pattern = says / says.sum(-1, keepdim=True).clamp(min=1)

    (found,) = score(role, pattern[:, None], allowed, ids, marks)
    assert found.value == pytest.approx(1) and found.lift == pytest.approx(1)


def test_a_role_that_applies_to_no_token_scores_nothing():
    ids = torch.arange(N)[None]  # no copies
    allowed = torch.ones(1, N, N).tril().bool()
    same = next(role for role in ROLES if role.name == "same")

    (found,) = score(same, onto(torch.arange(N))[None, None], allowed, ids, ids < 0)
    assert (found.value, found.lift) == (0, 0)


def test_a_fresh_model_has_no_roles():
    torch.manual_seed(3)
    c = C.Transformer(
        embed=C.Embed(vocab=VOCAB), init="gpt2",
        trunk=C.Trunk(dim=24, depth=2, mask="causal", attention=C.Attention(heads=3), position=C.Rotary()),
    )  # fmt: skip
    found = lens.heads(regard.Transformer(c), *text())

    assert len(found) == 6 and [(head.layer, head.head) for head in found[2:4]] == [(0, 2), (1, 0)]
    assert all(head.role is None and head.relative > 0.95 for head in found)


def test_the_second_half_of_a_repeated_sequence_says_the_first_again():
    ids = lens.repeated(torch.arange(5, 29), 11, batch=3)

    assert torch.equal(ids[:, :11], ids[:, 11:]) and ids.shape == (3, 22)
    assert all(len(set(row[:11])) == 11 and min(row) >= 5 for row in ids.tolist())
    assert lens.repeated(torch.arange(3), 7).shape == (4, 14)  # few words come again, but all of them come


# ---------------------------------------------------------------- how wide, how far


@pytest.mark.spec("S156")
def test_entropy_counts_the_tokens_looked_at():
    alike = torch.full((2, 1, 5, 8), 1 / 8)
    one = onto(torch.arange(8))[None, None].expand(2, 1, -1, -1)
    both = torch.cat([alike, one[:, :, :5]], 1)

    assert entropy(both).tolist() == pytest.approx([3, 0])  # bits: eight tokens, one token


@pytest.mark.spec("S156")
def test_relative_entropy_is_one_for_looking_at_all_that_may_be_seen():
    allowed = torch.ones(2, 7, 7).tril().bool()
    alike = allowed / allowed.sum(-1, keepdim=True)
    both = torch.stack([alike, onto(torch.arange(7)).expand(2, -1, -1)], 1)

    assert relative(both, allowed).tolist() == pytest.approx([1, 0])


def test_distance_is_counted_in_tokens():
    pattern = onto((torch.arange(9) - 3).clamp(min=0))[None, None]

    assert distance(pattern).item() == pytest.approx((0 + 1 + 2 + 3 * 6) / 9)


def test_patterns_are_rows_that_sum_to_one_and_leave_the_model_as_it_was():
    made = model(mask="causal & window(4)", depth=3, precision="mixed").train()
    found = lens.patterns(made, torch.randint(23, (2, 11)))

    assert made.training and not made.lookers and len(found) == 3
    for pattern, allowed in zip(found, visible(made, torch.randint(23, (2, 11))), strict=True):
        assert torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-5)
        assert not pattern[~allowed[:, None].expand_as(pattern)].any()


def test_what_is_visible_follows_the_mask_of_each_layer():
    made = model(mask=("causal & window(2)", "everything"), depth=3)
    near, all_of_it, again = visible(made, torch.randint(23, (2, 7)))

    assert torch.equal(near[0], torch.ones(7, 7).tril().triu(-2).bool()) and torch.equal(near, again)
    assert all_of_it.all()


def test_a_translator_is_refused_in_a_sentence():
    made = translator()

    assert "encoder" in lens.refusal(made)
    with pytest.raises(ValueError, match="encoder"):
        lens.patterns(made, torch.randint(1, 23, (2, 7)))


def test_fewer_than_four_tokens_say_nothing_about_heads():
    with pytest.raises(ValueError, match="four tokens"):
        lens.heads(model(mask="causal"), torch.zeros(1, 3).long(), torch.zeros(1, 3).bool())


# ---------------------------------------------------------------- likeness


def by_hand(p: list[float], q: list[float]) -> float:
    """One minus the Jensen-Shannon distance of two rows, in plain Python."""
    mix = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
    divergence = sum(
        (a * math.log2(a / m) if a else 0) / 2 + (b * math.log2(b / m) if b else 0) / 2
        for a, b, m in zip(p, q, mix, strict=True) if m
    )  # fmt: skip
    return 1 - math.sqrt(max(divergence, 0))


@pytest.mark.spec("S191")
def test_likeness_is_one_minus_the_jensen_shannon_distance():
    first, second = torch.rand(2, 3, 5, 7).softmax(-1), (3 * torch.rand(2, 2, 5, 7)).softmax(-1)
    found, every = lens.similarity([first, second]), torch.cat([first, second], 1).tolist()

    assert found.shape == (5, 5)
    for i in range(5):
        for j in range(5):
            rows = [by_hand(every[b][i][n], every[b][j][n]) for b in range(2) for n in range(1, 5)]
            assert found[i, j].item() == pytest.approx(sum(rows) / len(rows), abs=1e-3)  # a root amplifies near zero


@pytest.mark.spec("S191")
def test_heads_that_never_look_at_the_same_token_have_nothing_in_common():
    previous, own = onto((torch.arange(9) - 1).clamp(min=0)), onto(torch.arange(9))
    found = lens.similarity([torch.stack([previous, own, own])[None]])

    assert found.tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
