"""regard lens: each verb prints what `regard.lens` finds, writes it in the form that is asked for, and refuses in a
sentence."""

import json
import lzma

import pytest
import torch

from regard import lens
from regard.inference.load import load_model

PAIR = ["--source", "The cat is black.", "--corrupted-source", "The dog is black."]
WORDS = ["--token", " chat", "--against", " chien"]


@pytest.fixture
def texts(desk):
    (desk / "lines.txt").write_text("the cat sat\na dog ran off\n")
    return "lines.txt"


def test_the_logit_lens_prints_the_numbers_of_the_library(say, checkpoint):
    shown = say("lens", "logit-lens", checkpoint, "the cat", "--watch", "s", "--json")
    read = lens.logit_lens(load_model(str(checkpoint)), "the cat", watch=["s"], top_k=3)

    assert shown.code == 0 and json.loads(shown.out) == json.loads(json.dumps(read.to_json()))
    assert say("lens", "logit-lens", checkpoint, "the cat", "--watch", "s").out == f"{read}\n"


def test_a_scan_is_a_page_of_findings_and_one_object_of_json(say, checkpoint):
    page, object = say("lens", "scan", checkpoint, "the cat"), say("lens", "scan", checkpoint, "the cat", "--json")
    read, names = json.loads(object.out), {}
    findings = {finding["name"]: finding for finding in read["findings"]}
    exec(f"{read['setup']}\nfound = {findings['parts']['code']}", names)

    assert list(findings) == ["decision", "inputs", "parts", "heads", "surprise"]
    assert all(finding["sentence"] in page.out and finding["code"] in page.out for finding in findings.values())
    assert findings["parts"]["rows"] == names["found"].to_json()["rows"][:5]


def test_the_parts_of_a_logit_sum_to_it(say, checkpoint):
    shown = say("lens", "attribute", checkpoint, "the cat", "--token", "s", "--json")
    rows = json.loads(shown.out)["rows"]
    model = load_model(str(checkpoint))
    [wanted] = model.tokenizer.encode("s")
    with torch.no_grad():
        logit = float(model(torch.tensor([model.tokenizer.encode("the cat")]))[0, -1, wanted])
    parts = [row for row in rows if row["part"] not in ("sum", "logit")]

    assert sum(row["contribution"] for row in parts) == pytest.approx(logit, rel=1e-4)


@pytest.mark.parametrize("method", ["integrated_gradients", "occlusion", "attention_rollout"])
def test_every_token_has_its_share(say, checkpoint, method):
    rows = json.loads(say("lens", "inputs", checkpoint, "the cat", "--method", method, "--json").out)["rows"]

    assert [row["token"] for row in rows] == [*"the·cat"]


def test_patching_the_translator_finds_the_noun(say, desk):
    shown = say("lens", "patch", "en-fr", "Le", "Le", *PAIR, *WORDS, "--part", "encoder.residual", "--json")
    best = json.loads(shown.out)["rows"][0]

    assert shown.code == 0 and best["at"] == "1 ·cat/·dog" and best["effect"] > 0.9


def test_noise_on_the_subject_is_undone_where_the_subject_is(say, desk):
    shown = say("lens", "trace", "en-fr", "Le", *PAIR[:2], "--subject", "cat", *WORDS[:2], "--part", "encoder.mlp",
                "--window", 3, "--json")  # fmt: skip

    assert shown.code == 0 and json.loads(shown.out)["rows"][0]["at"] == "1 ·cat"


def test_a_tuned_lens_is_fitted_saved_and_read(say, checkpoint, texts):
    fitted = say("lens", "tune", checkpoint, texts, "--steps", 3, "--out", "lens.safetensors", "--no-halves")
    shown = say("lens", "logit-lens", checkpoint, "the cat", "--tuned", "lens.safetensors", "--no-halves")

    assert fitted.out == "lens.safetensors   2 places, 3 steps\n" and shown.code == 0
    assert shown.out != say("lens", "logit-lens", checkpoint, "the cat", "--no-halves").out


def test_the_induction_circuit_of_a_model_has_the_numbers_of_the_library(say, checkpoint):
    words = ["--length", 5, "--texts", 2, "--seed", 3, "--ablation", "zero"]
    shown = say("lens", "induction", checkpoint, *words, "--json")
    found = lens.find_induction_circuit(load_model(str(checkpoint)), length=5, texts=2, seed=3, ablation="zero")

    assert shown.code == 0 and json.loads(shown.out) == json.loads(json.dumps(found.to_json()))
    assert say("lens", "induction", checkpoint, *words).out == f"{found}\n"


def test_neurons_of_a_file_and_the_words_of_one(say, checkpoint, texts):
    rows = json.loads(say("lens", "neurons", checkpoint, texts, "--unit", 2, "--json").out)["rows"]
    shown = say("lens", "neuron", checkpoint, 1, 2, "--top-k", 4)

    assert {row["unit"] for row in rows} == {2} and {row["address"] for row in rows} == {
        "trunk.0.mlp.hidden", "trunk.1.mlp.hidden"
    }  # fmt: skip
    assert shown.code == 0 and shown.out.count("promotes") >= 4


@pytest.mark.parametrize("name", ["corpus.txt", "corpus.txt.xz", "corpus.csv", "corpus.jsonl"])
def test_a_census_of_a_file_is_that_of_its_tokens(say, checkpoint, desk, name):
    words = "the cat sat on the mat.\nthe dog, too. " * 5
    form = {"csv": f'text\n"{words}"\n', "jsonl": json.dumps({"text": words})}.get(name.split(".")[1], words)
    (desk / name).write_bytes(lzma.compress(form.encode()) if name.endswith("xz") else form.encode())
    shown = say("lens", "census", checkpoint, name, "--context", 16, "--out", "census", "--json")
    model = load_model(str(checkpoint))
    found = lens.census(model, words, context=16)

    assert shown.code == 0 and json.loads(shown.out) == json.loads(json.dumps(found.to_json()))
    assert json.loads((desk / "census" / "census.json").read_text())["model"]["name"] == str(checkpoint)
    again = say("lens", "census", checkpoint, name, "--context", 16, "--out", "census")
    assert (again.err, again.out) == ("", f"{found}\n")


def test_a_census_of_a_translator_reads_lines_with_their_translations(say, desk):
    (desk / "lines.txt").write_text("The cat is black and the dog is white, but the bird is red.\nWe sleep.\n")
    shown = say("lens", "census", "en-fr", "lines.txt", "--out", "census", "--json")
    heads = json.loads((desk / "census" / "census.json").read_text())["heads"]
    sequences = json.loads((desk / "census" / "sequences.json").read_text())

    assert shown.code == 0 and {head["where"].split(".")[2] for head in heads} == {"attn", "cross"}
    assert all(head["previous"] is None for head in heads if head["where"].endswith("cross"))
    words = "".join(sequences["source_vocabulary"][str(i)] for i in sequences["sequences"]["0"]["source"])
    assert words.replace("·", " ").startswith("The cat is black and the dog")


def test_one_word_in_two_texts_has_a_cosine_for_every_layer(say, desk):
    shown = say("lens", "context", "en-fr", "We sat by the bank of the river.", "He put money in the bank.",
                "--word", "bank", "--json")  # fmt: skip
    rows = json.loads(shown.out)["rows"]

    assert rows[0]["cosine"] == pytest.approx(1) and rows[-1]["cosine"] < 0.9


def test_a_vector_from_pairs_steers_what_is_generated(say, checkpoint, desk):
    (desk / "pairs.jsonl").write_text('{"first": "sss", "second": "ttt"}\n{"first": "sas", "second": "tat"}\n')
    made = say("lens", "steer", checkpoint, "pairs.jsonl", "--address", "trunk.1.residual", "--out", "v.safetensors")
    spoken = [say("generate", checkpoint, "the", "--temperature", 0, "--max-new-tokens", 5, *rest).out
              for rest in ([], ["--steer", "v.safetensors:50"])]  # fmt: skip

    assert made.code == 0 and made.out.startswith("In which direction do the pairs differ at trunk.1.residual?")
    assert spoken[0] != spoken[1]


def test_explanations_are_compared_over_the_lines_of_a_file(say, checkpoint, texts):
    shown = say("lens", "agreement", checkpoint, texts)

    assert shown.code == 0 and "A conclusion takes at least 8 prompts" in shown.out


@pytest.mark.parametrize("suffix", ["svg", "html", "csv", "json"])
def test_what_is_found_is_written_in_the_form_that_the_suffix_says(say, checkpoint, suffix, desk):
    shown = say("lens", "logit-lens", checkpoint, "the cat", "--out", f"lens.{suffix}")
    start = {"svg": "<?xml", "html": "<!doctype", "csv": "place,", "json": "{"}[suffix]

    assert shown.code == 0 and (desk / f"lens.{suffix}").read_text().startswith(start)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["logit-lens", "nowhere", "a"], 3, "nowhere: no such folder"),
        (["logit-lens", "MODEL", ""], 3, "prompt"),
        (["logit-lens", "MODEL", "the cat", "--watch", "cat"], 2, "token 'cat' is 3 tokens (c a t)"),
        (["logit-lens", "MODEL", "the", "--out", "lens.gif"], 2, "lens.gif: a result is written as .svg"),
        (["logit-lens", "MODEL", "the", "--tuned", "text.txt"], 3, "text.txt"),
        (["attribute", "MODEL", "the", "--position", "9"], 3, "position: 9 is outside the prompt of 3 tokens"),
        (["inputs", "MODEL", "the", "--method", "gradents"], 2, "no attribution 'gradents'; did you mean 'gradient'?"),
        (["patch", "MODEL", "the", "them", "--token", "a", "--against", "b"], 3, "both need the same number"),
        (["neuron", "MODEL", "7", "0"], 2, "layer"),
        (["neurons", "MODEL", "missing.txt"], 3, "missing.txt"),
        (["census", "MODEL", "missing.txt"], 3, "missing.txt: no such file or folder"),
        (["census", "MODEL", "text.txt", "--tokens", "0"], 2, "tokens: 0 are too few"),
        (["census", "MODEL", "text.txt", "--out", "."], 2, "there are other files in it (model"),
        (["census", "MODEL", "text.txt", "--out", "text.txt"], 1, "text.txt: cannot be written (file exists)"),
        (["context", "MODEL", "the cat", "a dog", "--word", "cat"], 3, "cat"),
        (["steer", "MODEL", "text.txt", "--address", "trunk.9.residual", "--out", "v"], 3, "columns first and second"),
        (["logit-lens", "en-fr", "Le chat"], 2, "give source="),
        (["induction", "en-fr"], 2, "induction is looked for in a causal language model of two layers or more"),
        (["induction", "MODEL", "--ablation", "noise"], 2, "ablation: 'noise' is neither 'mean' nor 'zero'"),
        (["look"], 2, "no verb 'look'"),
    ],
)
def test_a_mistake_is_one_sentence(say, checkpoint, words, code, said):
    told = say("lens", *(checkpoint if word == "MODEL" else word for word in words))

    assert said in told.err and told.err.count("\n") == 1 and "Traceback" not in told.err
    assert told.code == code
