"""Which picture belongs to which text: the loss of CLIP, and what it means to find the partner."""

import math

import pytest
import torch
import torch.nn.functional as F
from parity.images import V, pair
from sklearn.metrics import top_k_accuracy_score
from tasks.image_text_models import FRONT, LABELS, asked, batch, lively, pictures, towers, words
from torch.testing import assert_close

import regard
from regard import config as C
from regard import tasks
from regard.config.errors import ConfigError, DataError
from regard.data.records import Record
from regard.inputs.processors import build_processor
from regard.tasks.contrastive import fill_contrastive_classes, gather_in_batch, recall_at, refuse_accumulation
from regard.text.trainers import train_tokenizer

SORTED = C.Contrastive(label="label", classes=("animal", "food", "sign", "thing"), prompt="a {}")


@pytest.mark.spec("S062", "S091")
def test_the_loss_is_the_one_that_transformers_has_for_clip():
    theirs, ours, _ = pair("clip")
    images, ids = torch.randn(5, 3, 24, 24), torch.randint(2, V - 1, (5, 9))
    ids[:, -1] = V - 1
    want = theirs(input_ids=ids, pixel_values=images, return_loss=True)
    task, _ = asked(C.Contrastive(), None)
    given = {"seen": images, "ids": ids, "match": torch.eye(5, dtype=torch.bool)}
    got = task.loss_sums(ours, given)["loss"] / task.count_parts(given)["loss"].count

    assert_close(got, want.loss)
    got.backward()
    want.loss.backward()
    assert_close(ours.scale.grad, theirs.logit_scale.grad)


COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
SHAPES = {"square": [1] * 16, "cross": [0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0], "bar": [1, 1, 0, 0] * 4}


def drawn(colour, shape, chance):
    """A shape of 4 x 4 somewhere in a picture of 8 x 8, as bright as chance has it."""
    image = torch.randint(40, (3, 8, 8), generator=chance)
    top, left = torch.randint(5, (2,), generator=chance).tolist()
    bright = 0.6 + 0.4 * torch.rand(1, generator=chance)
    form = torch.tensor(SHAPES[shape], dtype=torch.bool).view(4, 4)
    there = image[:, top : top + 4, left : left + 4]
    there[:, form] = (torch.tensor(COLOURS[colour])[:, None] * bright).long()
    return image.to(torch.uint8)


@pytest.mark.slow
@pytest.mark.spec("S062")
def test_pairs_of_words_that_were_never_together_are_told_apart():
    """Zero-shot: red crosses and blue bars are known, green crosses and red bars are not, but by their words."""
    held = list(zip(COLOURS, SHAPES, strict=True))
    known = [(colour, shape) for colour in COLOURS for shape in SHAPES if (colour, shape) not in held]
    tokenizer = train_tokenizer(C.WordTokenizer(byte_fallback=False), [" ".join([*COLOURS, *SHAPES])] * 3)
    c = towers(len(tokenizer))
    task = tasks.build_task(C.Contrastive(), tokenizer, c, rows=tasks.RowPadding(4), sense=build_processor(FRONT))
    model, chance = regard.build(c), torch.Generator().manual_seed(0)
    model.tokenizer = tokenizer

    def examples(pairs):
        return [task.example(Record({"image": drawn(*pair, chance), "text": " ".join(pair)}, "made"), tokenizer)
                for pair in pairs]  # fmt: skip

    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(400):
        loss = task.loss_sums(model, task.collate_eval(examples(known), chance))["loss"] / len(known)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    images = [drawn(*held[place % 3], chance) for place in range(120)]
    said = model.match(images, [" ".join(pair) for pair in held]).argmax(-1)
    right = (said == torch.arange(120) % 3).float().mean()

    assert right > 1 / 3 + 5 * (2 / 9 / 120) ** 0.5, "five deviations above chance"


def test_a_pair_that_is_told_for_certain_costs_nothing_and_a_guess_the_log_of_the_batch():
    task, _ = asked(C.Contrastive(), towers())

    class Fake(regard.DualEncoderModel):
        def forward(self, *inputs, compare=True):
            return self.said, self.said, self.logit_scale

    model, match = Fake(towers()), {"match": torch.eye(5, dtype=torch.bool), "seen": torch.empty(0), "ids": 0}
    model.said = F.normalize(torch.eye(5, 7), dim=-1)
    with torch.no_grad():
        model.scale.fill_(math.log(100))
        assert task.loss_sums(model, match)["loss"] < 1e-3
        model.said = torch.ones(5, 7) / 7**0.5
        assert_close(task.loss_sums(model, match)["loss"] / 5, torch.tensor(math.log(5)))


def test_a_verb_that_two_towers_lack_says_what_to_ask_and_a_typo_is_an_attribute_error():
    model = regard.build(towers())

    assert hasattr(model, "generate") and not hasattr(model, "generte")  # to look is no mistake yet
    for verb in (model.generate, model.classify, model.session):
        with pytest.raises(ConfigError, match="use match, embed_images or embed_texts"):
            verb(["a dog"], top_k=3)


def test_the_scale_is_brought_back_to_its_limit_and_never_beyond_it():
    task, tokenizer = asked(C.Contrastive(), towers())
    model = regard.build(towers())
    with torch.no_grad():
        model.scale.fill_(9.0)

    assert_close(model.logit_scale, torch.tensor(100.0))
    task.loss_sums(model, batch(task, tokenizer))["loss"].backward()
    assert float(model.scale.detach()) == pytest.approx(math.log(100))
    assert model.scale.grad != 0, "at the limit it still learns"


def test_what_is_random_in_the_order_of_a_batch_does_not_matter():
    task, tokenizer = asked(C.Contrastive(), towers())
    model, given = lively(towers()), batch(task, tokenizer)
    turn = torch.tensor([3, 0, 4, 2, 1])
    turned = {name: table[turn] for name, table in given.items()} | {"match": given["match"]}

    assert_close(task.loss_sums(model, turned), task.loss_sums(model, given))


def test_rows_that_are_not_here_are_not_told_apart():
    task, tokenizer = asked(C.Contrastive(), towers())
    model = lively(towers())
    some = {name: table[1:4] for name, table in batch(task, tokenizer).items()}  # as a rank would have them
    few = batch(task, tokenizer, slice(1, 4))

    assert some["match"].shape == (3, 5)
    assert_close(task.loss_sums(model, some), task.loss_sums(model, few))


def test_vectors_go_to_their_places_and_one_that_is_there_twice_counts_once():
    match = torch.eye(4, dtype=torch.bool)[[2, 0, 2]]
    mine = torch.randn(3, 7)
    mine[2] = mine[0]

    whole = gather_in_batch(mine, match)
    assert_close(whole[2], mine[0])
    assert_close(whole[0], mine[1])
    assert not whole[[1, 3]].any()


@pytest.mark.parametrize("best", [1, 3])
def test_recall_is_that_of_scikit_learn(best):
    seen, told = (F.normalize(torch.randn(31, 5), dim=-1) for _ in range(2))
    want = top_k_accuracy_score(torch.arange(31), seen @ told.mT, k=best)

    assert recall_at(seen, told, best, rows=7) == pytest.approx(want)


def test_of_equal_ones_the_worse_counts():
    assert recall_at(torch.ones(6, 2), torch.ones(6, 2), 5) == 0


def test_an_evaluation_finds_partners_both_ways_and_sorts_by_the_names_of_classes():
    task, tokenizer = asked(SORTED, towers())
    model, given = lively(towers()), batch(task, tokenizer)
    said, meant = task.answers(model, given), task.expected_answers(given)
    found = task.score(said, meant)

    assert meant["class"] == [SORTED.classes.index(label) for label in LABELS]
    assert set(found) == {"image to text R@1", "image to text R@5", "text to image R@1", "text to image R@5",
                          "zero-shot"}  # fmt: skip
    assert found["image to text R@5"] == 1.0, "there are five"
    model.tokenizer = tokenizer
    names = [f"a {name}" for name in SORTED.classes]
    assert model.match(list(pictures()), names).argmax(-1).tolist() == said["class"]


def test_a_match_is_a_share_for_each_text():
    model = lively(towers())
    model.tokenizer = words()
    shares = model.match(list(pictures()[:2]), ["red heart", "a dog", "two"])

    assert shares.shape == (2, 3)
    assert_close(shares.sum(-1), torch.ones(2))
    assert_close(model.embed_texts(["a dog", "two"])[1], model.embed_texts(["two"])[0]), "padding is not read"
    with pytest.raises(ConfigError, match="generates nothing; use match"):
        model.generate("a dog")


def test_micro_batches_are_refused_in_a_sentence():
    refuse_accumulation(1)
    with pytest.raises(
        ConfigError, match="train.gradient_accumulation: 2, and task 'contrastive' contrasts each pair with all others"
    ):
        refuse_accumulation(2)


ONE = towers().towers[0]


@pytest.mark.parametrize(
    "model, sentence",
    [
        (ONE, "model.kind: task 'contrastive' needs two towers"),
        (C.DualEncoder(towers=towers().towers[::-1]), "model.towers: the first takes images or other inputs"),
        (towers(3), r"model.towers\[1\].embed.vocab: 3, and the tokenizer has"),
        (
            C.DualEncoder(towers=(C.Transformer(embed=ONE.embed, head=C.NoHead()), towers().towers[1])),
            "a head of kind 'none'",
        ),
        (
            C.DualEncoder(
                towers=(C.Transformer(embed=ONE.embed, trunk=ONE.trunk, head=C.PoolingHead(out=3)), towers().towers[1])
            ),
            "their vectors are 3 and 7 wide",
        ),
    ],
)
def test_models_that_cannot_be_asked_are_refused(model, sentence):
    with pytest.raises(ConfigError, match=sentence):
        asked(C.Contrastive(), model)


def test_towers_are_asked_nothing_else():
    with pytest.raises(ConfigError, match="model.kind: a dual_encoder is trained by task.kind contrastive"):
        C.from_dict(C.Recipe, {"model": {"kind": "dual_encoder", "towers": [{}, {}]}})


def test_classes_are_found_in_the_training_data():
    rows = [{"label": label} for label in LABELS]

    assert fill_contrastive_classes(C.Contrastive(label="label"), rows).classes == ("animal", "food", "sign", "thing")
    with pytest.raises(DataError, match="column 'label' names 1 class; expected two or more"):
        fill_contrastive_classes(C.Contrastive(label="label"), rows[2:4])


@pytest.mark.parametrize("said, sentence", [
    ({"prompt": "a picture"}, "prompt: 'a picture' has no place for the name of a class"),
    ({"classes": ("a", "b")}, "label: classes and prompt are for the column"),
    ({"image": "text"}, "column 'text' is also"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(said, sentence):
    with pytest.raises(ValueError, match=sentence):
        C.Contrastive(**said)


def test_the_names_of_classes_fit_into_a_row():
    with pytest.raises(ConfigError, match="task.prompt: 'a animal' is no text of 1 to 6 tokens"):
        asked(SORTED, towers(), length=6)


def test_a_caption_that_is_too_long_is_refused_with_its_place():
    task, tokenizer = asked(C.Contrastive(), towers(), length=5)

    with pytest.raises(DataError, match="pairs:1: column 'text' has 9 tokens, and there is room for 5"):
        batch(task, tokenizer)
