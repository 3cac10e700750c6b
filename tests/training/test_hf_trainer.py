"""A step of fine-tuning is that of the Hugging Face Trainer: the same loss, the same weights after it; and recipes."""

import copy
import json

import pytest
import transformers as hf
from hub.published import quiet
from parity.tolerance import NORM, assert_all_near, randomise

import regard
from regard import zoo
from regard.evaluation.glue import GLUE_TASKS, glue_data

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "was"]
SIZES = dict(vocab_size=len(WORDS), hidden_size=36, num_hidden_layers=2, num_attention_heads=4, intermediate_size=60,
             max_position_embeddings=50, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
NAMES = ["not_equivalent", "equivalent"]
PAIRS = [("the cat was good", "it was good"), ("the jug was bad", "it was fine"), ("a bee", "the bee was a bee"),
         ("the film was so long", "so long"), ("x", "the owl was old and cold"), ("the king", "the mat"),
         ("the dog was at the door", "dogs")]  # fmt: skip
# Adam divides a gradient by its own size, so eps must be above those that are rounding alone, as of the keys' biases
RATE, DECAY, CLIP, EPS, STEPS = 5e-4, 0.3, 0.05, 1e-6, 4
TASKS = {"glue-mrpc": [1, 0, 1, 0, 0, 1, 1], "glue-stsb": [4.75, 0.0, 3.2, 2.5, 1.0, 0.25, 5.0]}
FILES = {"glue-cola": "CoLA", "glue-sst2": "SST-2", "glue-mrpc": "MRPC", "glue-rte": "RTE", "glue-stsb": "STS-B"}


class Watched(hf.Trainer):
    """The Trainer, and what it says of every step."""

    def training_step(self, *given, **named):
        loss = super().training_step(*given, **named)
        self.losses = [*getattr(self, "losses", []), float(loss)]
        return loss


def published(name, folder):
    """A small random BERT with a head for the task, as `transformers` writes it."""
    names = {"num_labels": 1} if name == "glue-stsb" else {"id2label": dict(enumerate(NAMES))}
    theirs = hf.BertForSequenceClassification(hf.BertConfig(**SIZES, **names))
    randomise(theirs)
    tokenizer = hf.BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})
    with quiet():
        theirs.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return theirs, tokenizer


def by_the_trainer(theirs, tokenizer, labels, folder):
    rows = [tokenizer(*pair) | {"labels": label} for pair, label in zip(PAIRS, labels, strict=True)]
    said = hf.TrainingArguments(
        folder, num_train_epochs=STEPS, per_device_train_batch_size=len(PAIRS), learning_rate=RATE,
        lr_scheduler_type="linear", warmup_steps=0, weight_decay=DECAY, max_grad_norm=CLIP, adam_epsilon=EPS,
        use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Watched(theirs, said, hf.DataCollatorWithPadding(tokenizer), rows)
    with quiet():
        trainer.train()
    return trainer.losses


def by_us(name, source, last, labels, desk):
    """The same, from the recipe; `last` is the map that a head would begin anew."""
    recipe = zoo.read_recipe(name)
    columns = (recipe.task.input, recipe.task.input_pair, recipe.task.label)
    rows = [dict(zip(columns, (*pair, label), strict=True)) for pair, label in zip(PAIRS, labels, strict=True)]
    (desk / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run = regard.Run.from_recipe(name, [
        f"data.source={desk / 'rows.jsonl'}", "data.validation=0", f"train.init_from={source}",
        f"train.epochs={STEPS}", f"train.batch_size={len(PAIRS)}", "train.context=40", "train.schedule.warmup=0",
        f"train.max_grad_norm={CLIP}", f"train.optimizer.lr={RATE}", f"train.optimizer.weight_decay={DECAY}",
        f"train.optimizer.eps={EPS}", "train.device=cpu", "train.compile=false", "train.eval_every=none",
    ], notice=lambda line: None)  # fmt: skip
    run.model.head.out.load_state_dict(last)
    steps = list(regard.train(run))
    run.save(desk / "ours")
    return steps


@pytest.mark.slow
@pytest.mark.spec("S092")
@pytest.mark.parametrize("name", TASKS)
def test_steps_are_those_of_the_trainer(name, tmp_path):
    theirs, tokenizer = published(name, tmp_path / "source")
    before = {key: weight.clone() for key, weight in theirs.state_dict().items()}
    last = copy.deepcopy(theirs.classifier.state_dict())
    losses = by_the_trainer(theirs, tokenizer, TASKS[name], tmp_path / "theirs")
    steps = by_us(name, tmp_path / "source", last, TASKS[name], tmp_path)
    with quiet():
        ours = hf.BertForSequenceClassification.from_pretrained(tmp_path / "ours").state_dict()

    assert [float(step.loss) for step in steps] == pytest.approx(losses, abs=NORM) and len(losses) == STEPS
    assert all(step.norm > CLIP for step in steps)  # so that clipping is compared, too
    assert_all_near(ours, theirs.state_dict(), NORM)
    assert all((ours[key] - old).abs().max() > 100 * NORM for key, old in before.items() if old.dim() >= 2)


@pytest.mark.parametrize("name", FILES)
def test_a_recipe_of_glue_reads_the_published_files(name):
    recipe = zoo.read_recipe(name)

    assert recipe.task == GLUE_TASKS[FILES[name]].task
    assert recipe.data == glue_data(FILES[name], f"glue_data/{FILES[name]}")


def test_recipes_of_glue_differ_in_rate_and_length_alone():
    settings = [zoo.read_recipe(name).train for name in FILES]

    alike = {(c.batch_size, c.context, c.max_grad_norm, c.optimizer.weight_decay, c.optimizer.eps) for c in settings}
    assert len(alike) == 1
    assert all(2e-5 <= c.optimizer.lr <= 5e-5 and c.epochs in (3, 5) and not c.keep_best for c in settings)
