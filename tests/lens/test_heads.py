"""What heads do in a model of any shape: a role is found where it was planted, and asked where it means something."""

import json
import math
from dataclasses import replace

import pytest
import torch
from core.builders import model, padded
from lens.small_models import SHAPES, SOURCE, VOCAB, B, Shape, translator
from parity.tolerance import randomise
from torch import Tensor
from torch.testing import assert_close

import regard
from regard import config as C
from regard import lens
from regard.core.kernels import KERNELS
from regard.lens.attention_maps import AttentionView, TrunkInput
from regard.lens.heads import head_entropy, mean_distance, relative_entropy
from regard.lens.roles import ROLES, score_role

N = 22  # halves of eleven different ids
NAMES = [role.name for role in ROLES]
every = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


def onto(places: Tensor) -> Tensor:
    """A pattern (N, N) that looks at one place from each token."""
    return torch.nn.functional.one_hot(places, len(places)).float()


def text() -> Tensor:
    """Ids with copies in every row, and zeros, which are the delimiters."""
    ids = torch.stack([torch.randperm(VOCAB - 1)[:11] + 1 for _ in range(3)]).repeat(1, 2)
    ids[:, [0, 5, 9, 16]] = torch.tensor([1, 0, 0, 0])
    return ids


def read(count: int, batch: int = 2, ids: Tensor | None = None) -> TrunkInput:
    order = torch.arange(count).expand(batch, -1)
    return TrunkInput(order, torch.ones(batch, count, dtype=torch.bool), order[..., None].float(), ids)


def looked(pattern: Tensor, visible: Tensor | None = None, ids: Tensor | None = None) -> AttentionView:
    """A view of tokens in a line, all of which see everything before them, unless said."""
    tokens = read(pattern.shape[-1], len(pattern), ids)
    past = torch.ones(pattern.shape[-2:]).tril().bool().expand(len(pattern), -1, -1)
    marks = None if ids is None else ids == 0
    return AttentionView("trunk.0.attn", pattern, past if visible is None else visible, tokens, tokens, True, marks)


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
    made = model(
        mask="causal", dim=24, depth=1, attention=C.Attention(heads=len(NAMES)), embed=C.TextEmbedding(vocab=VOCAB)
    )
    ids, asked = text(), []
    forward = made.embed.forward
    made.embed.forward = lambda x, **rest: (asked.append(x), forward(x, **rest))[1]

    def plant(name: str, pattern: Tensor) -> Tensor:
        return planted(asked[-1], asked[-1] == 0 if torch.equal(asked[-1], ids) else asked[-1] < 0)

    with regard.looking(made, "trunk.0.attn.pattern", edit=plant):
        found = lens.summarize_heads(made, ids, marks={0})

    assert [head.role for head in found] == NAMES
    for head, name in zip(found, NAMES, strict=True):
        assert head.scores[name].value > 0.75, name  # delimiters are not there yet for the first tokens


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_looking_everywhere_alike_is_chance(role):
    ids = text()
    allowed = torch.ones(len(ids), N, N).tril().bool()
    alike = (allowed / allowed.sum(-1, keepdim=True))[:, None].expand(-1, 2, -1, -1)

    for found in score_role(role, looked(alike, allowed, ids)):
        assert found.value == pytest.approx(found.chance, abs=1e-6)
        assert found.lift == pytest.approx(0, abs=1e-5)
        assert 0 < found.chance < 0.5


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_looking_only_where_a_role_says_is_always(role):
    ids = text()
    view = looked(torch.zeros(3, 1, N, N), ids=ids)
    says = role.says(view) & view.visible
    pattern = says / says.sum(-1, keepdim=True).clamp(min=1)

    (found,) = score_role(role, replace(view, pattern=pattern[:, None]))
    assert found.value == pytest.approx(1) and found.lift == pytest.approx(1)


def test_a_role_that_applies_to_no_token_has_no_score():
    ids = torch.arange(1, N + 1)[None]  # no copies, no delimiters
    view = looked(onto(torch.arange(N))[None, None], ids=ids)

    assert {role.name for role in ROLES if score_role(role, view) is None} == {"same", "delimiter", "induction"}


def test_a_fresh_model_has_no_roles():
    torch.manual_seed(3)
    c = C.Transformer(
        embed=C.TextEmbedding(vocab=VOCAB), init="gpt2",
        trunk=C.Trunk(dim=24, depth=2, mask="causal", attention=C.Attention(heads=3), position=C.RotaryPosition()),
    )  # fmt: skip
    found = lens.summarize_heads(regard.Model(c), text(), marks={0})

    assert len(found) == 6 and [(head.where, head.layer, head.head) for head in found[2:4]] == [
        ("trunk.0.attn", 0, 2), ("trunk.1.attn", 1, 0)
    ]  # fmt: skip
    assert all(head.role is None and head.relative > 0.95 and list(head.scores) == NAMES for head in found)


def test_the_second_half_of_a_repeated_sequence_says_the_first_again():
    ids = lens.repeated_ids(torch.arange(5, 29), 11, batch=3)

    assert torch.equal(ids[:, :11], ids[:, 11:]) and ids.shape == (3, 22)
    assert all(len(set(row[:11])) == 11 and min(row) >= 5 for row in ids.tolist())
    assert lens.repeated_ids(torch.arange(3), 7).shape == (4, 14)  # few words come again, but all of them come


def test_delimiters_are_marks_spaces_and_what_parts_texts():
    class Tokenizer:
        special_ids = {"bos": 0, "eos": 1, "sep": 2, "pad": 3}
        pieces = ["", "", "", "", "a", " ", ",\n", " b", "…", "c.", "«"]

        def __len__(self) -> int:
            return len(self.pieces)

        def decode(self, ids: list[int]) -> str:
            return "".join(self.pieces[ident] for ident in ids)

    assert lens.delimiter_ids(Tokenizer()) == {1, 2, 5, 6, 8, 10}


# ---------------------------------------------------------------- every shape

WANTED = {  # which roles are asked where
    "decoder": {"trunk": set(NAMES)},
    "windowed decoder": {"trunk.0": set(NAMES), "trunk.1": set(NAMES) - {"induction"}},  # too far back for a window
    "encoder": {"trunk": set(NAMES) - {"induction"}},
    "shared": {"trunk": set(NAMES) - {"induction"}},
    "vit": {"trunk": {"itself", "first"}},
    "stages": {"embed": {"itself"}, "trunk": {"itself"}},
    "towers": {"towers.0": {"itself", "first"}, "towers.1": set(NAMES)},
    "captioner": {"encoder": {"itself"}, "trunk": set(NAMES), "cross": set()},
    "translator": {"encoder": set(NAMES) - {"induction"}, "trunk": set(NAMES), "cross": {"first", "delimiter"}},
}


def all_heads(shape: Shape) -> list[lens.HeadSummary]:
    torch.manual_seed(1)
    return lens.summarize_heads(shape.model(), *shape.reads(), marks=range(1, 6), **shape.named)


@every
@pytest.mark.spec("S150", "S156")
def test_every_shape_has_its_heads_by_the_walk_of_the_model(shape: Shape):
    found, model = all_heads(shape), shape.model()
    counts = {where: sum(head.where == where for head in found) for where in dict.fromkeys(h.where for h in found)}

    assert tuple(counts) == shape.places
    assert {f"{head.where}.pattern" for head in found} <= set(model.addresses())
    assert all(0 <= head.relative <= 1.0001 and 0 <= head.entropy < math.log2(40) for head in found)
    assert all((head.distance is None) == head.where.endswith("cross") for head in found)


@pytest.mark.spec("S149")
@pytest.mark.parametrize("kernel", ["fused", "tiled_flash", "auto"])
def test_one_call_has_all_maps_of_every_kernel_as_the_reference_makes_them(kernel):
    def maps(name):
        made = translator({"attention": C.Attention(heads=3, kernel=name)}, attention=C.Attention(heads=3, kernel=name))
        torch.manual_seed(3)
        whole = made().eval()
        randomise(whole)
        return lens.attention_views(whole, torch.arange(1, 8)[None], source=torch.arange(2, 7)[None])

    fused, eager = maps(kernel), maps("reference")

    assert [view.where for view in fused] == list(SHAPES["translator"].places)  # self and across, all layers
    for ours, theirs in zip(fused, eager, strict=True):
        assert_close(ours.pattern, theirs.pattern, atol=1e-5, rtol=0)


@pytest.mark.spec("S149", "S183")
def test_the_maps_of_a_trained_model_are_exported_as_a_picture_and_as_numbers(tmp_path):
    trained = regard.load("en-fr")
    prompt = lens.read_prompt(trained, "Le chat", source="The cat is black.")
    view = next(each for each in lens.attention_views(trained, prompt.first, **prompt.given)
                if each.where == "trunk.1.cross")  # fmt: skip
    view.plot(str(tmp_path / "map.png"))
    view.plot(str(tmp_path / "map.json"))
    rows = json.loads((tmp_path / "map.json").read_text())["rows"]
    weights = torch.tensor([row["attention"] for row in rows]).view(view.pattern[0].shape)

    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert torch.equal(weights, view.pattern[0])
    assert torch.equal(view.picture().values, view.pattern[0].mean(0))
    assert torch.equal(view.picture(2).values, view.pattern[0, 2])
    with pytest.raises(C.ConfigError, match="trunk.1.cross has 4 heads, and 4 was asked for"):
        view.picture(4)


@pytest.mark.parametrize("name", WANTED)
def test_roles_are_asked_only_where_they_mean_something(name):
    for head in all_heads(SHAPES[name]):
        place = next(place for place in (*("cross",) * head.where.endswith("cross"), *WANTED[name])
                     if place in head.where)  # fmt: skip
        assert set(head.scores) == WANTED[name][place], head.where


@every
def test_the_model_is_left_as_it_was(shape: Shape):
    made = shape.model().train()
    part = next(part for part in made.modules() if not list(part.children()))
    part.eval()
    torch.manual_seed(1)
    before = made(*shape.reads(), **shape.named)
    lens.attention_views(made, *(torch.zeros_like(x) for x in shape.reads()), **shape.named)
    torch.manual_seed(1)
    after = made(*shape.reads(), **shape.named)

    assert made.training and not part.training and not made.hooks
    assert not any(part._forward_pre_hooks for part in made.modules())
    pairs = zip(before, after, strict=True) if isinstance(before, tuple) else [(before, after)]
    assert all(torch.equal(x, y) for x, y in pairs)


def test_what_is_raised_while_looking_leaves_the_model_as_it_was():
    made = SHAPES["decoder"].model().train()
    with pytest.raises(ValueError, match="ids must be"):
        lens.attention_views(made, torch.zeros(3).long())

    assert made.training and not made.hooks and not any(part._forward_pre_hooks for part in made.modules())


# ---------------------------------------------------------------- padding


@pytest.mark.parametrize("name", ["encoder", "decoder", "translator"])
@pytest.mark.parametrize("left, right", [(0, 4), (3, 0)])
@pytest.mark.spec("S156")
def test_padding_rows_and_columns_never_count(name, left, right):
    shape = SHAPES[name]
    made, (ids,) = shape.model(), (torch.randint(1, VOCAB, (B, 11)),)
    wide, real, _ = padded(ids, left, right, fill=0)
    named = {} if name != "translator" else {"source": SOURCE["source"][:, :4]}  # rows without padding
    longer = {} if name != "translator" else {"source": padded(named["source"], left, right, fill=0)[0]}
    alone = lens.summarize_heads(made, ids, marks={3, 4}, **named)
    beside = lens.summarize_heads(made, wide, real=real, marks={3, 4}, **longer)

    for one, other in zip(alone, beside, strict=True):
        assert (one.where, one.head) == (other.where, other.head)
        assert other.entropy == pytest.approx(one.entropy, abs=1e-4)
        assert other.relative == pytest.approx(one.relative, abs=1e-4)
        assert other.distance == (None if one.distance is None else pytest.approx(one.distance, abs=1e-4))
        for role in one.scores.keys() - {"induction"}:  # asked of other ids where there are more
            assert other.scores[role].value == pytest.approx(one.scores[role].value, abs=1e-4)
            assert other.scores[role].chance == pytest.approx(one.scores[role].chance, abs=1e-4)
    likeness = [lens.head_similarity(lens.attention_views(made, ids, **named))]
    likeness.append(lens.head_similarity(lens.attention_views(made, wide, real=real, **longer)))
    assert torch.allclose(*likeness, atol=1e-3, equal_nan=True)


# ---------------------------------------------------------------- how wide, how far


@pytest.mark.spec("S156")
def test_entropy_counts_the_tokens_looked_at():
    alike = torch.full((2, 1, 8, 8), 1 / 8)
    one = onto(torch.arange(8))[None, None].expand(2, 1, -1, -1)
    view = looked(torch.cat([alike, one], 1), torch.ones(2, 8, 8).bool())

    assert head_entropy(view).tolist() == pytest.approx([3, 0])  # bits: eight tokens, one token


@pytest.mark.spec("S156")
def test_relative_entropy_is_one_for_looking_at_all_that_may_be_seen():
    allowed = torch.ones(2, 7, 7).tril().bool()
    alike = allowed / allowed.sum(-1, keepdim=True)
    both = torch.stack([alike, onto(torch.arange(7)).expand(2, -1, -1)], 1)

    assert relative_entropy(looked(both, allowed)).tolist() == pytest.approx([1, 0])


def test_distance_is_counted_in_tokens():
    pattern = onto((torch.arange(9) - 3).clamp(min=0))[None, None]

    assert mean_distance(looked(pattern)).item() == pytest.approx((0 + 1 + 2 + 3 * 6) / 9)


def test_distance_in_an_image_is_a_straight_line_and_leaves_out_the_learned_token():
    made = SHAPES["vit"].model()
    far = onto(torch.tensor([0, 9, 9, 9, 9, 0, 0, 0, 0, 0])).expand(2, 3, -1, -1)  # half of them look at a corner
    with regard.looking(made, "trunk.1.attn.pattern", edit=lambda name, x: far):
        view = lens.attention_views(made, torch.randn(2, 3, 6, 6))[1]

    places = [(row, column) for row in range(3) for column in range(3)]
    by_hand = [math.dist(places[i], (2, 2)) for i in range(4)]
    assert mean_distance(view).tolist() == pytest.approx([sum(by_hand) / 4] * 3, abs=1e-5)


def test_patterns_are_rows_that_sum_to_one_where_looking_is_allowed():
    made = model(mask="causal & window(4)", depth=3, precision="mixed").train()
    found = lens.attention_views(made, torch.randint(23, (2, 11)))

    assert len(found) == len(lens.attention_patterns(made, torch.randint(23, (2, 11)))) == 3
    for view in found:
        assert torch.allclose(view.pattern.sum(-1), torch.ones(()), atol=1e-5)
        assert not view.pattern[~view.visible[:, None].expand_as(view.pattern)].any()


@every
def test_what_is_visible_is_where_the_scores_are_not_forbidden(shape: Shape):
    made = shape.model()
    torch.manual_seed(1)
    with regard.looking(made, "*.scores") as seen:
        found = lens.attention_views(made, *shape.reads(), **shape.named)

    for view in found:
        scores = seen[f"{view.where}.scores"][:, 0]
        assert torch.equal(view.visible, scores > -torch.inf), view.where


def test_what_is_visible_follows_the_mask_of_each_layer():
    made = model(mask=("causal & window(2)", "full"), depth=3)
    near, all_of_it, again = (view.visible for view in lens.attention_views(made, torch.randint(23, (2, 7))))

    assert torch.equal(near[0], torch.ones(7, 7).tril().triu(-2).bool()) and torch.equal(near, again)
    assert all_of_it.all()


def test_a_kernel_without_a_table_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setitem(KERNELS, "fused", replace(KERNELS["fused"], exact=False))
    made = model(mask="causal", attention=C.Attention(heads=3, kernel="fused"))

    with pytest.raises(C.ConfigError, match="^trunk.attention.kernel: 'fused' has no table of attention weights"):
        lens.summarize_heads(made, torch.randint(23, (2, 7)))


def test_fewer_than_four_tokens_say_nothing_about_heads():
    with pytest.raises(C.ConfigError, match="four tokens or more, got 3"):
        lens.summarize_heads(model(mask="causal"), torch.zeros(1, 3).long())


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
    allowed = torch.ones(2, 5, 7).bool()
    allowed[:, 0, 1:] = False  # the first row has no choice
    views = [replace(looked(first, allowed), q=(q := read(5)), k=(k := read(7))), looked(second, allowed)]
    found = lens.head_similarity([views[0], replace(views[1], q=q, k=k)])
    every = torch.cat([first, second], 1).tolist()

    assert found.shape == (5, 5)
    for i in range(5):
        for j in range(5):
            rows = [by_hand(every[b][i][n], every[b][j][n]) for b in range(2) for n in range(1, 5)]
            assert found[i, j].item() == pytest.approx(sum(rows) / len(rows), abs=1e-3)  # a root amplifies near zero


@pytest.mark.spec("S191")
def test_heads_that_never_look_at_the_same_token_have_nothing_in_common():
    previous, own = onto((torch.arange(9) - 1).clamp(min=0)), onto(torch.arange(9))
    found = lens.head_similarity([looked(torch.stack([previous, own, own])[None])])

    assert found.tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert lens.most_similar_heads(found) == [(1, 0), (2, 1), (1, 1)]


@pytest.mark.spec("S191")
def test_heads_that_look_at_different_things_are_not_compared():
    shape = SHAPES["translator"]
    torch.manual_seed(1)
    views = lens.attention_views(shape.model(), *shape.reads(), **shape.named)
    found = lens.head_similarity(views)
    groups = ["encoder" if "encoder" in where else where[-5:] for where in shape.places for _ in range(3)]

    same = torch.tensor([[one == other for other in groups] for one in groups])
    assert torch.equal(~found.isnan(), same) and torch.allclose(found[same], found.mT[same])
    assert all(same[head, twin] and head != twin for head, (twin, _) in enumerate(lens.most_similar_heads(found)))
    alone = lens.head_similarity([replace(views[0], pattern=views[0].pattern[:, :1])])
    assert lens.most_similar_heads(alone) == [None]
