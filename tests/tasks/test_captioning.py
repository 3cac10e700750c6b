"""The text that goes with a picture: read through an encoder, or before the text in one sequence."""

import pytest
import torch
import torch.nn.functional as F
from tasks.image_text_models import SMALL, TEXTS, N, asked, batch, crossing, lively, pictures, prefixed, towers, words
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError
from regard.data.packing import IGNORE_INDEX
from regard.generation import cuda_graphs
from regard.inference.images import ImageConditionedModel

V = len(words(C.Captioning()))
SHAPES = {"an encoder": (crossing(V), {"cross": True}), "one sequence": (prefixed(V), {})}
both = pytest.mark.parametrize("shape", SHAPES)


def built(shape, **how):
    c, cross = SHAPES[shape]
    return asked(C.Captioning(), c, **cross, **how), lively(c)


@both
def test_words_are_read_behind_a_start_and_told_up_to_the_end(shape):
    (task, tokenizer), _ = built(shape)
    given = batch(task, tokenizer)
    end = tokenizer.special_ids["eos"]
    for row, text in enumerate(TEXTS):
        ids = tokenizer.encode(text)
        assert given["ids"][row, : len(ids) + 1].tolist() == [tokenizer.special_ids["bos"], *ids]
        assert given["labels"][row][given["labels"][row] != IGNORE_INDEX].tolist() == [*ids, end]

    assert torch.equal(given["source" if shape == "an encoder" else "seen"], pictures())


@both
@pytest.mark.parametrize("chunk", [None, 3])
def test_the_loss_is_the_surprise_at_the_words_alone(shape, chunk):
    (task, tokenizer), model = built(shape, chunk=chunk)
    given = batch(task, tokenizer)
    logits = model(given["ids"], real=given["real"], **{"source" if shape == "an encoder" else "seen": pictures()})
    said = logits[:, -given["ids"].shape[1] :]
    want = F.cross_entropy(said.flatten(0, 1), given["labels"].flatten(), ignore_index=IGNORE_INDEX, reduction="sum")

    assert_close(task.loss_sums(model, given)["loss"], want)
    assert task.count_parts(given)["loss"].count == sum(map(len, TEXTS)) + len(TEXTS)


@both
def test_another_picture_changes_what_is_said(shape):
    (task, tokenizer), model = built(shape)
    given, name = batch(task, tokenizer), "source" if shape == "an encoder" else "seen"
    other = given | {name: given[name].flip(0)}

    assert not torch.allclose(task.loss_sums(model, given)["loss"], task.loss_sums(model, other)["loss"])


@both
def test_later_words_change_nothing_before_them(shape):
    (task, tokenizer), model = built(shape)
    given = batch(task, tokenizer)
    for place in range(1, 4):
        ids = given["ids"].clone().requires_grad_(False)
        ids[:, place] = (ids[:, place] + 1) % V
        first = {**given, "labels": given["labels"].clone()}
        first["labels"][:, place:] = IGNORE_INDEX
        assert_close(task.loss_sums(model, first | {"ids": ids}), task.loss_sums(model, first))


@pytest.mark.spec("S063")
@pytest.mark.slow
@both
def test_a_few_pictures_are_learned_by_heart_and_told_again(shape):
    (task, tokenizer), model = built(shape)
    given, optimizer = batch(task, tokenizer), torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss = task.loss_sums(model, given)["loss"] / task.count_parts(given)["loss"].count
        loss.backward()
        optimizer.step()
    model.tokenizer, model.context = tokenizer, N

    assert float(loss.detach()) < 0.05
    assert model.caption(list(pictures())) == TEXTS
    assert model.caption(list(pictures().flip(0)), num_beams=1) == TEXTS[::-1]
    assert model.caption(list(pictures()), temperature=0.0) == TEXTS


@pytest.mark.parametrize(
    "model, sentence",
    [
        (towers(), "model: task 'captioning' needs an image encoder and a decoder"),
        (C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=C.Trunk(mask="causal")), "give it model.encoder.embed"),
        (
            prefixed(V, "full"),
            r"model.trunk.mask: 'full' sees the token it should predict; write 'prefix\(4\)'",
        ),
        (prefixed(V, "prefix(5)"), r"model.trunk.mask: 'prefix\(5\)' shows labels before prediction"),
        (prefixed(3), "model.embed.vocab: 3, and the tokenizer has"),
        (
            C.Transformer(embed=prefixed(V).embed, trunk=prefixed(V).trunk, head=C.PoolingHead()),
            "model.head.kind: 'pooling'",
        ),
        (
            C.Transformer(
                embed=C.MultimodalEmbedding(prefix=C.AudioEmbedding(), text=C.TextEmbedding(vocab=V)),
                trunk=C.Trunk(mask="prefix(2)"),
            ),
            "has 0 tokens at least; write 'causal'",
        ),
    ],
)
def test_models_that_cannot_be_asked_are_refused(model, sentence):
    with pytest.raises(ConfigError, match=sentence):
        asked(C.Captioning(), model)


def test_a_model_that_sees_nothing_writes_no_captions():
    model = lively(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=C.Trunk(mask="causal", **SMALL)))
    model.tokenizer = words(C.Captioning())
    with pytest.raises(ConfigError, match="this model takes no images"):
        model.caption(list(pictures()))


@pytest.fixture
def recorded(monkeypatch):
    """The steps that are recorded, on a CPU and for short captions too."""
    found, prepare = [], cuda_graphs.make_contiguous
    monkeypatch.setattr(cuda_graphs, "make_contiguous", lambda model: found.append(model) or prepare(model))
    monkeypatch.setattr("regard.generation.session.MIN_STEPS", 2)
    cuda_graphs.GRAPH_DEVICES.append("cpu")
    yield found
    cuda_graphs.GRAPH_DEVICES.remove("cpu")


def test_a_recorded_step_finds_what_it_uses_of_a_model_with_an_image_before_it(recorded):
    (_, tokenizer), model = built("one sequence")
    model.tokenizer, model.context, seen = tokenizer, N, list(pictures())
    found = model.caption(seen, temperature=1.0, seed=3)
    cuda_graphs.GRAPH_DEVICES.remove("cpu")
    plain = model.caption(seen, temperature=1.0, seed=3)
    cuda_graphs.GRAPH_DEVICES.append("cpu")

    assert [type(one) for one in recorded] == [ImageConditionedModel] and found == plain
    with pytest.raises(AttributeError, match="'ImageConditionedModel' object has no attribute 'genreate'"):
        recorded[0].genreate(3)


@both
def test_captions_in_batches_are_those_of_one_batch_and_in_order(shape, monkeypatch):
    (_, tokenizer), model = built(shape)
    model.tokenizer, model.context = tokenizer, N
    seen = [*pictures(), *pictures().flip(0)]
    found, drawn = model.caption(seen, num_beams=2), model.caption(seen, temperature=1.0, seed=3)
    monkeypatch.setattr("regard.inference.images.IMAGES_AT_ONCE", 2)

    assert model.caption(seen, num_beams=2) == found and len(set(found)) > 1
    assert model.caption(seen, temperature=1.0, seed=3) == drawn and model.caption([]) == []
