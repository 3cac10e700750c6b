"""The models that come with the package: whole, small, offline, and what is found inside."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regard
from regard import lens
from regard.files.manifest import verify_manifest
from regard.zoo.packaged import DEFAULT_TRANSLATOR, packaged_card, packaged_model, packaged_names

CATS = "The cat sat on the mat."
AREA = "The agreement on the European Economic Area was signed in August 1992."


@pytest.fixture(scope="module")
def translator():
    return regard.load(DEFAULT_TRANSLATOR)


def test_it_is_whole_and_small():
    folder = packaged_model(DEFAULT_TRANSLATOR)

    assert DEFAULT_TRANSLATOR in packaged_names() and verify_manifest(folder) == ""
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) <= 15_000_000


def test_a_model_of_that_name_on_the_disk_goes_before_it_and_any_other_folder_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / DEFAULT_TRANSLATOR).mkdir()
    assert packaged_model(DEFAULT_TRANSLATOR) is not None
    (tmp_path / DEFAULT_TRANSLATOR / "config.json").write_text("{}")

    assert packaged_model(DEFAULT_TRANSLATOR) is None and packaged_model("en-de") is None


@pytest.mark.parametrize(("english", "french"), {
    CATS: "Le chat s'assit sur le tapis.",
    "This course is fantastic.": "Ce cours est fantastique.",
    "My brother is taller than I am.": "Mon frère est plus grand que moi.",
    "Could you help me with my homework?": "Pourriez-vous m'aider pour mes devoirs ?",
    "Where is the nearest train station?": "Où se trouve la gare la plus proche ?",
}.items())  # fmt: skip
def test_it_gives_good_french(translator, english, french):
    assert translator.translate(english) == french


def looks(alignment, target):
    """The token of the source that a token of the target looks at most."""
    row = alignment.weights[alignment.target.index(target)]
    return alignment.source[int(row.argmax())]


@pytest.mark.spec("S172")
def test_while_it_says_chat_it_looks_at_the_cat(translator):
    assert looks(translator.align("The cat sat.", "Le chat s'assit."), "·chat") == "·cat"


@pytest.mark.spec("S173")
def test_the_agreement_on_the_european_economic_area_is_aligned_word_by_word(translator):
    """Also where French turns the order round: économique comes before européenne."""
    found = translator.align(AREA, "L'accord sur la zone économique européenne a été signé en août 1992.")
    meant = {"accord": "·agree", "·sur": "·on", "·éc": "·E", "·eu": "·Europe", "·sign": "·sign", "·19": "·19"}

    assert len(AREA.split()) == 12
    assert {piece: looks(found, piece) for piece in meant} == meant
    assert found.target.index("·éc") < found.target.index("·eu")
    assert found.source.index("·E") > found.source.index("·Europe")


@pytest.mark.spec("S155")
def test_the_induction_model_has_the_circuit_that_its_card_names():
    """And what its card shows: the text that it writes, and the losses."""
    model, card = regard.load("induction"), packaged_card("induction")
    found = lens.find_induction_circuit(model)
    second = f"{found.loss:.4f} in the second; {found.ablated['0.1']:.2f} without head 0.1"
    losses = f"{found.first_loss:.2f} in the first\n  half and {second}, {found.ablated['1.0']:.2f} without head 1.0"

    assert model.generate("The7quick9brownTh", max_new_tokens=13, temperature=0) == "e7quick9brown"
    assert (found.previous.name, found.stands_out) == ("0.1", True)
    assert {head.name for head in found.heads if head.induction.lift > 0.9} == {"1.0", "1.1"}
    assert found.ablated["0.0"] == pytest.approx(found.loss, abs=0.01)
    assert losses in card and "head 0.1 looks at the previous token" in card and "1.0 and 1.1 are induction" in card


def test_what_its_induction_heads_add_to_the_stream_nearly_cancels():
    """So a path into one of them alone seems to matter where a path into both does not (docs/induction.md)."""
    model = regard.load("induction")
    with torch.no_grad(), regard.looking(model, "trunk.1.attn.head_out") as seen:
        model(lens.repeated_ids(torch.arange(64), 24, 8, 0))
    written = seen["trunk.1.attn.head_out"][..., 24:, :]  # (B, H, N, D)

    assert written.norm(dim=-1).mean(dim=(0, 2)).tolist() == pytest.approx([2.0, 2.0], abs=0.1)
    assert float(written.sum(1).norm(dim=-1).mean()) == pytest.approx(0.3, abs=0.05)


@pytest.mark.slow
def test_the_command_needs_no_model_and_no_network(tmp_path):
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(regard.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-m", "regard", "translate", CATS, "--json"], cwd=tmp_path, env=offline,
                          capture_output=True, encoding="utf8", timeout=120)  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == "Le chat s'assit sur le tapis."
