"""Model cards: what a card said stays, as far as it is still true, and says what the model was made from."""

import json
import os
from dataclasses import replace

import pytest
import transformers as hf
from hub.builders import gpt2, model, nobodys, words
from hub.text_folders import bert

import regard
from regard import config
from regard.cli import main
from regard.hub import locate, write_folder
from regard.hub.model_card import BEGIN
from regard.hub.provenance import format_card, parse_card, read_card

THEIRS = """---
language:
- en
- de
license: other
license_name: some-licence
license_link: LICENSE
datasets: [squad, "my: own"]
model-index:
- name: x
  results:
  - task: {type: text-classification}
# a remark
metrics: [accuracy]
---
# A model of somebody

Be careful with it.

---

license: not this one
"""
LABELS = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}


@pytest.fixture
def published(tmp_path):
    bert("ForSequenceClassification", tmp_path / "some-bert", **LABELS)
    (tmp_path / "some-bert/README.md").write_text(THEIRS)
    (tmp_path / "some-bert/LICENSE").write_text("You may.")
    (tmp_path / "some-bert/USE_POLICY.md").write_text("You may not.")
    (tmp_path / "some-bert/run.py").write_text("print(1)")
    return tmp_path / "some-bert"


def metadata(path):
    return read_card(path).metadata


def test_a_card_is_split_and_put_together_to_the_letter():
    card = parse_card(THEIRS)

    assert format_card(card) == THEIRS
    assert list(card.metadata) == ["language", "license", "license_name", "license_link", "datasets", "model-index",
                                   "metrics"]  # fmt: skip
    assert card.metadata["language"] == "language:\n- en\n- de\n"
    assert parse_card("no metadata").text == "no metadata" and parse_card("---\n---\nx").text == "x"
    assert parse_card("\ufeff---\r\nlicense: mit\r\n---\r\nx").metadata == {"license": "license: mit\n"}


def test_a_model_that_is_saved_as_it_was_keeps_its_card_and_is_told_where_it_is_from(published, tmp_path):
    regard.load(published, device="cpu").save(tmp_path / "again")
    card, before = read_card(tmp_path / "again"), parse_card(THEIRS)

    assert {key: card.metadata.get(key) for key in before.metadata} == before.metadata
    assert card.metadata["base_model"] == "base_model: some-bert\n" and "regard" in card.metadata["tags"]
    assert card.metadata["pipeline_tag"] == "pipeline_tag: text-classification\n"
    assert card.text.startswith(before.text.strip()) and "regard.load" in card.text
    assert (tmp_path / "again/LICENSE").read_text() == "You may."
    assert (tmp_path / "again/USE_POLICY.md").exists() and not (tmp_path / "again/run.py").exists()


def test_saving_again_and_again_adds_nothing(published, tmp_path):
    regard.load(published, device="cpu").save(tmp_path / "one")
    regard.load(tmp_path / "one", device="cpu").save(tmp_path / "two")
    regard.load(tmp_path / "two", device="cpu").save(tmp_path / "three")
    two, three = (read_card(tmp_path / name) for name in ("two", "three"))

    assert two.metadata == three.metadata == metadata(tmp_path / "one")
    assert two.text.count(BEGIN) == 1 and two.text.replace("`one`", "`two`") == three.text


def test_another_head_keeps_the_terms_and_not_the_praise(published, tmp_path):
    ours = regard.load(published, device="cpu")
    other = regard.build(replace(ours.c, head=config.LMHead(transform=True, bias=True)))
    other.tokenizer, other.source_folder = ours.tokenizer, ours.source_folder
    other.save(tmp_path / "other")
    card = read_card(tmp_path / "other")

    assert {"license", "license_name", "license_link", "language", "datasets"} <= card.metadata.keys()
    assert not {"metrics", "model-index"} & card.metadata.keys() and "somebody" not in card.text
    assert card.metadata["base_model"] == "base_model: some-bert\n" and "made from `some-bert`" in card.text
    assert (tmp_path / "other/LICENSE").exists()


def test_a_model_of_the_hub_is_named_by_its_id(published, tmp_path):
    snapshot = tmp_path / "models--org--name/snapshots" / ("8d" * 20)
    snapshot.parent.mkdir(parents=True)
    os.rename(published, snapshot)
    card = THEIRS.replace("license: other", "license: other\nbase_model: org/grandparent")
    (snapshot / "README.md").write_text(card)
    regard.load(snapshot, device="cpu").save(tmp_path / "again")

    assert metadata(tmp_path / "again")["base_model"] == "base_model: org/name\n"
    regard.load(tmp_path / "again", device="cpu").save(tmp_path / "more")
    assert metadata(tmp_path / "more")["base_model"] == "base_model: org/name\n"  # a folder between is nobody's


@pytest.mark.slow
def test_a_fine_tuned_model_says_what_it_began_with(published, tmp_path, capsys):
    lines = [json.dumps({"text": one, "label": 1.5}) for one in ("the cat sat", "a dog", "a mat", "big man")] * 4
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert (
        main(
            [
                "train",
                "finetune-regress",
                "--init-from",
                str(published),
                f"data.source={tmp_path / 'a.jsonl'}",
                "train.steps=1",
                "train.minutes=none",
                "train.batch_size=2",
                "train.context=16",
                "train.device=cpu",
                "--quiet",
                "--out",
                str(tmp_path / "run"),
            ]
        )
        == 0
    ), capsys.readouterr().err
    card = read_card(locate.newest_checkpoint(tmp_path / "run"))

    assert card.metadata["base_model"] == "base_model: some-bert\n" and card.metadata["license"] == "license: other\n"
    assert "- de" in card.metadata["language"] and "squad" in card.metadata["datasets"]
    said = json.loads((locate.newest_checkpoint(tmp_path / "run") / "config.json").read_text())
    assert said["problem_type"] == "regression"
    [theirs] = hf.pipeline("text-classification", model=str(locate.newest_checkpoint(tmp_path / "run")), device="cpu")(
        "the cat"
    )
    [ours] = regard.load(tmp_path / "run", device="cpu").classify(["the cat"])
    assert ours == pytest.approx(theirs["score"], abs=1e-5)


@pytest.mark.parametrize("name", ["a folder", "x: y", "née"])
def test_a_name_that_cannot_stand_in_a_card_is_left_out(name, tmp_path):
    write_folder.save_model(tmp_path / name, model(gpt2()), words())
    regard.load(tmp_path / name, device="cpu").save(tmp_path / "again")

    assert "base_model" not in metadata(tmp_path / "again")


def test_what_somebody_writes_on_our_own_card_stays(tmp_path):
    write_folder.save_model(tmp_path / "mine", model(nobodys()))
    path = tmp_path / "mine/README.md"
    card = path.read_text().replace("---\nlibrary", "---\nlicense: mit\nlibrary")
    path.write_text(f"{card}\nTrained on a rainy day.\n")
    (tmp_path / "mine/MANIFEST.json").unlink()
    regard.load(tmp_path / "mine", device="cpu").save(tmp_path / "again")
    card = read_card(tmp_path / "again")

    assert card.metadata["license"] == "license: mit\n" and "rainy" in card.text and card.text.count(BEGIN) == 1


def test_a_model_for_several_classes_at_a_time_stays_one_in_our_own_words(tmp_path, capsys):
    bert("ForSequenceClassification", tmp_path / "m", problem_type="multi_label_classification", **LABELS)
    want = regard.load(tmp_path / "m", device="cpu").classify(["a cat"])
    assert main(["convert", str(tmp_path / "m"), str(tmp_path / "own"), "--as", "regard"]) == 0

    assert regard.load(tmp_path / "own", device="cpu").classify(["a cat"]) == [pytest.approx(want[0], abs=1e-5)]
