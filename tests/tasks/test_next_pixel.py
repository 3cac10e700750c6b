"""The next pixel as an objective: what is counted, what bits are, and which models can be asked."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from regard import config as C
from regard import data, tasks
from regard.config.errors import ConfigError
from regard.core.model import Transformer
from regard.inputs.processors import build_processor
from regard.tasks.task import LossPart

FRONT = C.PixelEmbedding(palette=13, grid=(3, 5), channels=1, values="levels")
MODEL = C.Transformer(
    embed=FRONT, head=C.LMHead(tied=False, vocab=13),
    trunk=C.Trunk(dim=12, depth=2, mask="causal", position=C.LearnedPosition(length=15), attention=C.Attention(heads=3),
                  dropout=C.NO_DROPOUT),
)  # fmt: skip


def task(front=FRONT, model=MODEL):
    return tasks.build_input_task(C.NextPixel(input="image"), build_processor(front), replace(model, embed=front))


def examples(asked, count=4):
    records = [data.Record({"image": torch.randint(256, (3, 5))}, "here:1") for _ in range(count)]
    return [asked.example(record) for record in records]


class Uniform(nn.Module):
    """Knows nothing."""

    def forward(self, ids):
        return torch.zeros(len(ids), ids[0].numel(), 13)


@pytest.mark.spec("S061")
def test_who_knows_nothing_needs_the_logarithm_of_the_palette():
    asked = task()
    batch = asked.collate_eval(examples(asked), torch.Generator())

    assert asked.count_parts(batch) == {"loss": LossPart(4 * 15)}
    assert_close(asked.loss_sums(Uniform(), batch)["loss"], torch.tensor(60 * math.log(13)))
    score = asked.score(asked.answers(Uniform(), batch), asked.expected_answers(batch))
    assert score["bits per dimension"] == pytest.approx(math.log2(13))


def test_bits_are_the_loss_in_another_unit():
    asked, model = task(), Transformer(MODEL).eval()
    batch = asked.collate_eval(examples(asked), torch.Generator())
    loss = float(asked.loss_sums(model, batch)["loss"].detach()) / 60

    assert asked.score(asked.answers(model, batch), {})["bits per dimension"] == pytest.approx(loss / math.log(2))


@pytest.mark.spec("S060", "S061")
@pytest.mark.parametrize("mask", ["causal", "causal & window(4)"])
@pytest.mark.parametrize("place", [0, 4, 7, 14])
def test_no_value_is_said_with_knowledge_of_itself_or_of_later_ones(place, mask):
    model = Transformer(replace(MODEL, trunk=replace(MODEL.trunk, mask=mask))).eval()
    ids = torch.randint(13, (1, 3, 5))
    before = model(ids)
    ids.view(-1)[place] = (ids.view(-1)[place] + 1) % 13
    changed = (model(ids) - before).abs().amax(-1)[0] > 0

    assert not changed[: place + 1].any()
    reach = 15 if mask == "causal" else place + 2 + 2 * 4  # two layers, four back each
    assert place == 14 or changed[place + 1 : reach].all()
    assert not changed[reach:].any()


def test_the_loss_is_that_of_the_values_in_raster_order():
    asked, model = task(), Transformer(MODEL).eval()
    batch = asked.collate_eval(examples(asked), torch.Generator())
    ids = batch["ids"].flatten(1)
    said = model(torch.cat([torch.full((4, 1), 13), ids[:, :-1]], 1))  # in ids, as text is read

    assert_close(asked.loss_sums(model, batch)["loss"], F.cross_entropy(said.mT, ids, reduction="sum"))


def test_batches_to_learn_from_may_be_flipped_and_others_are_not():
    asked = tasks.build_input_task(C.NextPixel(input="image"), build_processor(FRONT, C.ImageAugment(flip=True)), MODEL)
    some = examples(asked, 16)
    plain = asked.collate_eval(some, torch.Generator())["ids"]
    flipped = asked.collate(some, torch.Generator().manual_seed(0))["ids"]

    assert not torch.equal(plain, flipped)
    assert all(torch.equal(one, two) or torch.equal(one.flip(-1), two) for one, two in zip(plain, flipped, strict=True))


@pytest.mark.parametrize(("model", "why"), [
    (replace(MODEL, trunk=replace(MODEL.trunk, mask="full")), "model.trunk.mask: 'full' attends to the label"),
    (replace(MODEL, head=C.LMHead(tied=False, vocab=9)), "model.head.vocab: 9, and the palette has 13; set it to 13"),
    (replace(MODEL, head=C.PoolingHead(out=3, pooling="mean")),
     "model.head.kind: 'pooling', and task 'next_pixel' needs"),
    (replace(MODEL, embed=C.TextEmbedding(vocab=14)), "model.embed.kind: 'text' has no sequence of pixel values"),
])  # fmt: skip
def test_a_model_that_cannot_be_asked_is_refused_by_the_setting(model, why):
    with pytest.raises(ConfigError, match=why):
        tasks.build_input_task(C.NextPixel(), build_processor(FRONT), model)
