"""Probes: what is linear is read to the last, noise is not, and the solutions are those of scikit-learn."""

import time

import pytest
import torch
from lens.small_models import SHAPES
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.inference.model import Model
from regard.lens import fit_probe, fit_probes
from regard.lens.features.linear_fit import cross_validate, fit_map
from regard.lens.features.probes import assign_folds, control_labels
from regard.lens.prompt import read_prompt

VOCAB, DIM, ADDRESS = 31, 12, "trunk.1.residual"


@pytest.fixture
def model() -> Model:
    trunk = C.Trunk(dim=DIM, depth=2, mask="causal", attention=C.Attention(heads=3), dropout=C.NO_DROPOUT)
    return Model(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk)).eval()


def corpus(count: int = 23) -> list[torch.Tensor]:
    return [torch.randint(VOCAB, (9 + i % 5,)) for i in range(count)]


@torch.no_grad()
def activations(model: Model, texts: list[torch.Tensor], address: str = ADDRESS) -> list[torch.Tensor]:
    found = []
    for ids in texts:
        with looking(model, address) as seen:
            model(ids[None])
        found.append(seen[address][0])
    return found


# ---------------------------------------------------------------- laws


@pytest.mark.parametrize("kind", ["classes", "three classes", "numbers"])
def test_what_is_linear_in_the_activations_is_learned(model, kind):
    texts, ray = corpus(70), torch.randn(3, DIM)
    values = [x @ ray.mT for x in activations(model, texts)]
    mean, std = torch.cat(values).mean(0), torch.cat(values).std(0)
    values = [each if kind == "numbers" else (each - mean) / std for each in values]
    labels = {
        "classes": [(each[:, 0] > 0).long().tolist() for each in values],
        "three classes": [each.argmax(-1).tolist() for each in values],
        "numbers": [each[:, 0].tolist() for each in values],
    }[kind]
    found = fit_probe(model, texts, labels, address=ADDRESS, penalty=1e-2)

    assert found.mean > (0.999 if kind == "numbers" else 0.95) > float(found.baseline.mean()) + 0.2
    assert found.examples == sum(map(len, texts)) and len(found.scores) == 5
    if kind == "numbers":
        assert_close(found.direction[0], ray[0].double(), atol=1e-2, rtol=0)


def test_random_labels_give_no_more_than_chance(model):
    texts = corpus(60)
    dice = torch.Generator().manual_seed(7)
    labels = [torch.randint(2, (len(ids),), generator=dice) for ids in texts]
    found = fit_probe(model, texts, labels, address=ADDRESS)
    numbers = [torch.randn(len(ids), generator=dice) for ids in texts]

    assert abs(found.mean - 0.5) < 0.08
    assert fit_probe(model, texts, numbers, address=ADDRESS).mean < 0.05


def test_a_label_of_the_token_type_is_no_more_selective_than_its_control_task(model):
    """Where a label is a random one of each type already, the control task is as easy."""
    texts = corpus(60)
    label_of = torch.randint(2, (VOCAB,))
    label_of[:2] = torch.tensor([0, 1])
    found = fit_probe(model, texts, [label_of[ids] for ids in texts], address="trunk.embed")
    ray, values = torch.randn(DIM), activations(model, texts, "trunk.1.residual")
    other = fit_probe(model, texts, [(x @ ray > 0).long() for x in values], address=ADDRESS)

    assert abs(found.selectivity) < 0.25 < other.selectivity
    assert other.selectivity == pytest.approx(other.mean - float(other.control.mean()))


def test_the_control_task_has_one_label_for_each_type_as_often_as_they_occur():
    y, types = torch.arange(4000) % 5 // 4, torch.randint(700, (4000,))
    control = control_labels(y, types, seed=3)

    assert all(len(control[types == each].unique()) == 1 for each in types.unique().tolist())
    assert abs(float(control.float().mean()) - 0.2) < 0.05
    assert torch.equal(control, control_labels(y, types, seed=3))
    assert not torch.equal(control, control_labels(y, types, seed=4))


def test_folds_are_seeded_and_never_part_a_text():
    texts = [i // 7 for i in range(7 * 13)]
    folds = assign_folds(texts, 5, seed=1)

    assert torch.equal(folds, assign_folds(texts, 5, seed=1)) and not torch.equal(folds, assign_folds(texts, 5, seed=2))
    assert bool((folds.view(13, 7) == folds.view(13, 7)[:, :1]).all())
    assert sorted(folds.bincount().tolist()) == [14, 14, 21, 21, 21]
    assert assign_folds([0] * 11, 3, 0).bincount().tolist() == [4, 4, 3]  # one text alone is parted by its tokens


def test_what_is_tested_on_is_not_seen_while_fitting():
    """Labels that are noise are learned by heart by many features, and no fold knows of the others' noise."""
    x, y = torch.randn(50, 80).double(), torch.randint(2, (50,))
    scores, _ = cross_validate(x, y, torch.arange(50) % 5, 2, 1e-3)
    learned = fit_map(x, y, 2, 1e-3).predict(x)

    assert torch.equal(learned, y) and abs(float(scores.mean()) - 0.5) < 0.25


# ---------------------------------------------------------------- beside scikit-learn


@pytest.mark.parametrize("width", [7, 60])
def test_ridge_is_that_of_scikit_learn(width):
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    x, y = torch.randn(41, width).double() * torch.rand(width) + 3, torch.randn(41).double()
    found = fit_map(x, y, 0, 2.5)
    scaled = StandardScaler().fit_transform(x.numpy())

    wanted = torch.from_numpy(Ridge(alpha=2.5).fit(scaled, y.numpy()).predict(scaled))
    assert_close(found.predict(x), wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("penalty", [0.3, 5.0])
def test_logistic_regression_is_that_of_scikit_learn(classes, penalty):
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    x = torch.randn(97, 7).double() * 3 + 1
    y = ((x[:, :classes] if classes > 2 else x[:, :2]) + torch.randn(97, classes)).argmax(-1)
    found, scaler = fit_map(x, y, classes, penalty), StandardScaler()
    peer = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10_000).fit(scaler.fit_transform(x.numpy()), y.numpy())
    theirs = torch.from_numpy(peer.decision_function(scaler.transform(x.numpy()))).view(97, -1)

    assert_close(x @ found.weight.mT + found.bias, theirs, atol=1e-4, rtol=0)


def test_a_feature_that_never_changes_has_no_weight():
    x = torch.randn(20, 3).double()
    x[:, 1] = 0.1
    found = fit_map(x, x[:, 0].clone(), 0, 1e-6)

    assert found.weight[0, 1].abs() < 1e-9 and found.weight.isfinite().all()


# ---------------------------------------------------------------- what is read


def test_a_label_of_a_text_is_read_at_its_last_token_or_from_the_mean(model):
    texts, ray = corpus(40), torch.randn(DIM)
    values = activations(model, texts)
    last, mean = [float(x[-1] @ ray) for x in values], [float(x.mean(0) @ ray) for x in values]

    assert fit_probe(model, texts, last, address=ADDRESS, penalty=1e-4).mean > 0.999
    assert fit_probe(model, texts, mean, address=ADDRESS, position="mean", penalty=1e-4).mean > 0.999
    found = fit_probe(model, texts, ["far" if value > sum(last) / 40 else "near" for value in last], address=ADDRESS)
    assert found.classes == ("far", "near") and found.control is None and found.selectivity is None


def test_tokens_without_a_label_are_left_out(model):
    texts, ray = corpus(), torch.randn(DIM)
    labels = [[float(x @ ray) if i % 2 else None for i, x in enumerate(each)] for each in activations(model, texts)]
    found = fit_probe(model, texts, labels, address=ADDRESS, penalty=1e-4)

    assert found.mean > 0.999 and found.examples == sum(len(ids) // 2 for ids in texts)


def test_a_sweep_has_a_probe_for_each_layer_and_that_of_each_alone(model):
    texts = corpus()
    labels = [ids % 3 for ids in texts]
    sweep = fit_probes(model, texts, labels)
    alone = fit_probe(model, texts, labels, address="trunk.0.residual")

    assert [each.address for each in sweep.probes] == ["trunk.embed", "trunk.0.residual", "trunk.1.residual"]
    assert_close(sweep.probes[1].scores, alone.scores)
    assert sweep.picture().values.shape == (3, 3) and len(sweep.table().rows) == 3 and "±" in str(alone)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "towers"])
def test_every_shape_can_be_probed(name):
    shape = SHAPES[name]
    model = shape.model()
    torch.manual_seed(1)
    (first,) = shape.reads()
    prompts = [read_prompt(model, row[None], **{k: v[:1] for k, v in shape.named.items()}) for row in first] * 4
    labels = ["a", "b", "c"] * 4
    found = fit_probe(model, prompts, labels, address=ADDRESS, position="mean", folds=3)

    assert found.mean == 1.0  # the same three again and again
    assert model.hooks == () and not model.training


@pytest.mark.slow(seconds=4)
def test_ten_thousand_tokens_are_probed_in_seconds():
    x, y = torch.randn(10_000, 128).double(), torch.randint(3, (10_000,))
    began = time.perf_counter()
    cross_validate(x, y, torch.arange(10_000) % 5, 3, 1.0)

    assert time.perf_counter() - began < 20


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("labels", "rest", "words"),
    [
        ([1, 0], {}, "2 for 3 texts"),
        ([1, 1, 1], {}, "1 classes in 3 examples"),
        ([1, 0.5, "a"], {}, "some are floats and some are not"),
        ([[1] * 5, [0] * 5, [1] * 4], {}, "text 3 has 4 labels and 5 tokens"),
        ([[1] * 5, [0] * 5, [1] * 6], {}, "text 3 has 6 labels and 5 tokens"),
        ([1, 0, 1], {"folds": 4}, "folds: 4 of 3 examples"),
        ([1, 0, 1], {"folds": 1}, "expected at least two"),
        ([1, 0, 1], {"position": 7}, "text 1 has 5 tokens"),
        ([1, 0, 1], {"address": "trunk.1.attn.scores"}, "reads a vector for each token"),
        ([1, 0, 1], {"address": "trunk.5.residual"}, "no address"),
    ],
)
def test_labels_that_do_not_fit_are_refused_in_a_sentence(model, labels, rest, words):
    texts = [torch.randint(VOCAB, (5,)) for _ in range(3)]
    with pytest.raises((ConfigError, DataError), match=words):
        fit_probe(model, texts, labels, **{"address": ADDRESS, "folds": 3} | rest)
