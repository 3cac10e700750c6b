"""GLUE: every task's files as they are published, and the averages that were published for them."""

import csv
import lzma
import re
from pathlib import Path

import pytest

from regard import config, data, tasks, zoo
from regard.config.errors import ConfigError
from regard.data.records import BadRecordPolicy
from regard.evaluation import glue
from regard.evaluation.glue import GLUE_COLUMNS, GLUE_TASKS, bert_average, official_score
from regard.tasks import metrics

SHARED = Path(__file__).parents[2].parent / "shared"
LECTURE, REAL = SHARED / "seeds" / "004_41a63b0c23723d00.txt", SHARED / "data" / "glue"

# A header as published (CoLA has none), and two rows: one of each of two classes, with the quotes that are in them.
MNLI = ["index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse",
        "sentence2_parse", "sentence1", "sentence2"]  # fmt: skip
PUBLISHED = {
    "CoLA": (None, [["gj04", "1", "", 'They said "no.'], ["clc95", "0", "*", "In which way is Sandy very anxious?"]],
             [(['They said "no.'], "acceptable"), (["In which way is Sandy very anxious?"], "unacceptable")]),
    "SST-2": (["sentence", "label"], [["it 's a charming journey . ", "1"], ["unflinchingly bleak ", "0"]],
              [(["it 's a charming journey . "], "positive"), (["unflinchingly bleak "], "negative")]),
    "MRPC": (["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
             [["1", "702876", "702977", '" It fits , " he said .', '" It fits .'], ["0", "1", "2", "One .", "Two ."]],
             [(['" It fits , " he said .', '" It fits .'], "equivalent"), (["One .", "Two ."], "not_equivalent")]),
    "STS-B": (["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2",
               "score"],
              [["0", "main-captions", "MSRvid", "2012test", "0001", "none", "none", "A plane.", "A jet.", "4.750"],
               ["1", "main-news", "headlines", "2013", "24", "none", "none", "One.", "Two.", "0.000"]],
              [(["A plane.", "A jet."], 4.75), (["One.", "Two."], 0.0)]),
    "QQP": (["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
            [["133273", "213221", "213222", "How?", 'What is "it"?', "1"], ["402555", "7", "8", "Why?", "Who?", "0"]],
            [(["How?", 'What is "it"?'], "duplicate"), (["Why?", "Who?"], "not_duplicate")]),
    "MNLI": ([*MNLI, "label1", "gold_label"],
             [["0", "31193", "31193n", "government", "(a)", "(b)", "(A)", "(B)", "Ada sat.", "Who?", "neutral",
               "neutral"],
              ["1", "1", "1c", "telephone", "(a)", "(b)", "(A)", "(B)", "yes", "no", "contradiction",
               "contradiction"]],
             [(["Ada sat.", "Who?"], "neutral"), (["yes", "no"], "contradiction")]),
    "QNLI": (["index", "question", "sentence", "label"],
             [["0", "Who?", "Ada.", "entailment"], ["1", "Why?", "Then.", "not_entailment"]],
             [(["Who?", "Ada."], "entailment"), (["Why?", "Then."], "not_entailment")]),
    "RTE": (["index", "sentence1", "sentence2", "label"],
            [["0", "It is.", "It was.", "not_entailment"], ["1", "Yes.", "Yes!", "entailment"]],
            [(["It is.", "It was."], "not_entailment"), (["Yes.", "Yes!"], "entailment")]),
    "WNLI": (["index", "sentence1", "sentence2", "label"],
             [["0", "I stuck a pin in it.", "It had a hole.", "1"], ["1", "Ann met Bo.", "Bo sat.", "0"]],
             [(["I stuck a pin in it.", "It had a hole."], "entailment"), (["Ann met Bo.", "Bo sat."],
                                                                         "not_entailment")]),
}  # fmt: skip


def write(path, header, rows):
    lines = ["\t".join(row) + "\n" for row in ([] if header is None else [header]) + rows]
    path.write_text("".join(lines), encoding="utf8")


def read(files, how, task):
    """(texts, label by its name) of each record, as the objective reads them; and the tally of bad lines."""
    asked = tasks.TASKS[task.kind](task)
    tally = BadRecordPolicy(how.on_bad_record)
    texts = (task.input,) if task.input_pair is None else (task.input, task.input_pair)
    found = []
    for table in data.find_records(files, how):
        for record in table.records(tally):
            label = asked.label(record)
            found.append(
                ([record[name] for name in texts], task.classes[label] if task.kind == "classification" else label)
            )
    return found, tally


@pytest.mark.spec("S165")
@pytest.mark.parametrize("name", GLUE_TASKS)
def test_the_files_of_every_task_are_read_as_they_are_published(name, tmp_path):
    header, rows, expected = PUBLISHED[name]
    how = glue.glue_data(name, tmp_path)
    for file in (how.source, how.validation):
        write(Path(file), header, rows)

        assert read([file], how, GLUE_TASKS[name].task)[0] == expected


def test_mnli_is_validated_on_either_of_its_two_files_which_have_more_columns(tmp_path):
    _, rows, expected = PUBLISHED["MNLI"]
    header = [*MNLI, *(f"label{n}" for n in range(1, 6)), "gold_label"]
    files = [glue.glue_data("MNLI", tmp_path, matched).validation for matched in (True, False)]
    assert [Path(file).name for file in files] == ["dev_matched.tsv", "dev_mismatched.tsv"]
    for file in files:
        write(Path(file), header, [[*row[:10], *[row[-1]] * 5, row[-1]] for row in rows])

        assert read([file], config.Data(), GLUE_TASKS["MNLI"].task)[0] == expected


def test_the_broken_lines_that_qqp_was_published_with_are_passed_over_and_counted(tmp_path):
    header, rows, expected = PUBLISHED["QQP"]
    how = glue.glue_data("QQP", tmp_path)
    write(Path(how.source), header, [rows[0], ["133274", "213223", "213224", "How do I"], rows[1]])
    found, tally = read([how.source], how, GLUE_TASKS["QQP"].task)

    assert found == expected and tally.count == 1 and "train.tsv:3: 4 fields, expected 6" in tally.summary


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_overrides_say_the_task_to_any_recipe(name, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[data]\non_bad_record = "skip"\ncolumn_names = ["a", "b"]\n[task]\nkind = "classification"\ninput_pair = "b"\n'
    )
    made = zoo.read_recipe(recipe, glue.glue_overrides(name, "glue_data"))

    assert (made.data, made.task) == (glue.glue_data(name, "glue_data"), GLUE_TASKS[name].task)


@pytest.mark.parametrize("name", GLUE_TASKS)
def test_the_metrics_that_count_are_among_those_that_the_objective_gives(name):
    task = GLUE_TASKS[name].task
    answers = {"loss": [0, 1, 1, 0] if task.kind == "classification" else [0.5, 1.0, 2.0, 0.1]}
    scores = tasks.TASKS[task.kind](task).score(answers, answers)

    assert [scores[metric] for metric in GLUE_TASKS[name].metrics] == pytest.approx(
        [1.0] * len(GLUE_TASKS[name].metrics)
    )


def test_f1_is_of_the_pairs_that_mean_the_same():
    """In MRPC and QQP the label 1 is positive; F1 is of the second class."""
    assert GLUE_TASKS["MRPC"].task.classes[1] == "equivalent" and GLUE_TASKS["QQP"].task.classes[1] == "duplicate"


def test_a_task_that_there_is_not_is_told_with_what_was_meant():
    with pytest.raises(ConfigError, match="COLA: no task of GLUE; did you mean 'CoLA'"):
        glue.glue_data("COLA", ".")


@pytest.mark.skipif(not REAL.exists(), reason="the GLUE files are not on this machine")
@pytest.mark.parametrize("name, count", [
    ("CoLA.dev", 1043), ("SST-2.dev", 872), ("MRPC.dev", 408), ("STS-B.dev", 1500), ("QNLI.dev", 5463),
    ("RTE.dev", 277), ("WNLI.dev", 71), ("RTE.train", 2490), ("MRPC.train", 3668), ("STS-B.train", 5749),
])  # fmt: skip
def test_real_files_give_the_published_number_of_rows_and_their_very_texts(name, count):
    """Whoever rewrote them put the label first and named the columns alike; quotes are still characters."""
    task, path = GLUE_TASKS[name.split(".")[0]].task, REAL / f"{name}.tsv.xz"
    with lzma.open(path, "rt", encoding="utf8", newline="\n") as file:
        names, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    pair = {} if task.input_pair is None else {"input_pair": names[2]}
    found, _ = read([str(path)], config.Data(), config.from_dict(type(task), config.to_dict(task) | pair | {
        "label": names[0], "input": names[1]}))  # fmt: skip

    assert len(found) == count and [texts for texts, _ in found] == [row[1:] for row in rows]


# ---------------------------------------------------------------- one number

TABLE = {  # Devlin et al. 2019, table 1: nine columns, and the average beside them
    "Pre-OpenAI SOTA": ([80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7], 74.0),
    "BiLSTM+ELMo+Attn": ([76.4, 76.1, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8], 71.0),
    "OpenAI GPT": ([82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0], 75.1),
    "BERT base": ([84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4], 79.6),
    "BERT large": ([86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1], 82.1),
}


@pytest.mark.spec("S165")
@pytest.mark.parametrize("system", TABLE)
def test_the_average_of_the_published_table_is_the_published_average(system):
    columns, published = TABLE[system]

    # the second row's is 70.94: printed from columns of more digits
    assert bert_average(dict(zip(GLUE_COLUMNS, columns, strict=True))) == pytest.approx(published, abs=0.06)


@pytest.mark.spec("S165")
@pytest.mark.skipif(not LECTURE.exists(), reason="the lecture's own table is not on this machine")
def test_the_table_here_is_the_lecture_s():
    rows = [re.findall(r"(?<![\w.-])\d+\.\d", line) for line in LECTURE.read_text(encoding="utf8").splitlines()
            if re.match(r"(Pre-OpenAI|BiLSTM|OpenAI GPT|BERT _)", line)]  # fmt: skip

    assert [list(map(float, row)) for row in rows] == [[*columns, mean] for columns, mean in TABLE.values()]


OFFICIAL = {  # what GLUE's own table shows for BERT large: 80.5, the figure in the paper's abstract
    "CoLA": {"matthews": 60.5}, "SST-2": {"accuracy": 94.9}, "MRPC": {"f1": 89.3, "accuracy": 85.4},
    "STS-B": {"pearson": 87.6, "spearman": 86.5}, "QQP": {"f1": 72.1, "accuracy": 89.3}, "MNLI-m": {"accuracy": 86.7},
    "MNLI-mm": {"accuracy": 85.9}, "QNLI": {"accuracy": 92.7}, "RTE": {"accuracy": 70.1}, "WNLI": {"accuracy": 65.1},
}  # fmt: skip


def test_the_official_score_is_the_published_one():
    assert official_score(OFFICIAL) == pytest.approx(80.5, abs=0.05)


def test_the_two_averages_see_the_same_columns():
    """The paper's columns of the official table give the paper's average."""
    columns = {name: OFFICIAL[name][metric] for name, metric in GLUE_COLUMNS.items()}

    assert columns == dict(zip(GLUE_COLUMNS, TABLE["BERT large"][0], strict=True))


@pytest.mark.spec("S165")
def test_an_average_is_refused_where_a_column_is_missing_or_strange():
    scores = dict.fromkeys(GLUE_COLUMNS, 80.0)

    assert bert_average(scores) == pytest.approx(80.0)
    for wrong in ({**scores, "WNLI": 65.1}, {name: scores[name] for name in list(GLUE_COLUMNS)[1:]}):
        with pytest.raises(ValueError, match="WNLI" if "WNLI" in wrong else "MNLI-m"):
            bert_average(wrong)
    with pytest.raises(ValueError, match="WNLI"):
        official_score({name: each for name, each in OFFICIAL.items() if name != "WNLI"})
    with pytest.raises(ValueError, match="MRPC: accuracy"):
        official_score({**OFFICIAL, "MRPC": {"f1": 89.3}})


def test_every_column_has_a_metric_of_its_own():
    for name, metric in GLUE_COLUMNS.items():
        assert metric in GLUE_TASKS[name.partition("-m")[0]].metrics
        score = getattr(metrics, {"matthews": "matthews_correlation"}.get(metric, metric))
        assert score([0, 1, 1, 0, 1], [0, 1, 1, 0, 1]) == pytest.approx(1.0), name
