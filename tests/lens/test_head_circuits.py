"""Circuits of all heads at once: the numbers of one head at a time, and of dense matrices that nobody factored."""

import json

import pytest
import torch
from lens.planted_circuit import DIM, INDUCTION, PREVIOUS, planted_model
from lens.planted_circuit import HEADS as PLANTED_HEADS
from lens.small_models import SHAPES, VOCAB, N
from safetensors.torch import load_file

from regard import config as C
from regard import lens
from regard.config.errors import ConfigError
from regard.core.layers import Norm
from regard.lens.circuits.head_circuits import KINDS, circuit_heads, composition_table, copying_scores, head_directions
from regard.lens.head_census.census_circuits import load_circuits

WORDLESS = {"encoder", "shared", "vit", "stages", "towers"}  # classes, or a dense layer before the words


@pytest.mark.parametrize("name", SHAPES)
def test_copying_scores_are_those_of_the_dense_matrix_of_words(name):
    model = SHAPES[name].model().double()
    found = copying_scores(model)

    for where, scores in found.items():
        for head, score in enumerate(scores.tolist()):
            dense = dense_words(model, where, head)
            values = torch.linalg.eigvals(dense)
            assert score == pytest.approx(float(values.real.sum() / values.abs().sum()), rel=1e-6)
            assert score == pytest.approx(lens.copying_score(model, where, head), abs=1e-6)
    for where in circuit_heads(model).keys() - found.keys():
        with pytest.raises(ConfigError):
            lens.copying_score(model, where, 0)
    assert bool(found) == (name not in WORDLESS)


def dense_words(model, where, head):
    """W_U W_OV W_E as a matrix of words by words."""
    from regard.lens.circuits.vocabulary_circuits import vocabulary_circuit

    circuit, embed, unembed = vocabulary_circuit(model, where, head)
    count = min(len(embed), len(unembed))
    return unembed[:count] @ circuit.dense() @ embed[:count].mT


@pytest.mark.parametrize("name", SHAPES)
def test_composition_of_all_heads_is_that_of_each_pair_of_attentions(name):
    model, start = SHAPES[name].model(), {}
    for where, heads in circuit_heads(model).items():
        start[where] = slice(sum(each.stop - each.start for each in start.values()), None)
        start[where] = slice(start[where].start, start[where].start + heads)
    found = composition_table(model)

    for kind in KINDS:
        for earlier, rows in start.items():
            for later, columns in start.items():
                scores = found[kind][rows, columns]
                try:
                    wanted = lens.composition_scores(model, earlier, later, kind).scores
                except ConfigError:
                    assert scores.isnan().all()
                else:
                    assert torch.allclose(scores, wanted, atol=1e-5)


def test_the_pair_of_a_planted_induction_circuit_composes_most():
    model = planted_model()
    for block in model.trunk.blocks:  # norms without gains, where the planted model has none
        block.attn_norm = Norm(C.Norm(kind="rms", gain=False), DIM)
    scores = composition_table(model)["K"].nan_to_num()
    earlier, later = (layer * PLANTED_HEADS + head for layer, head in (PREVIOUS, INDUCTION))

    assert divmod(int(scores.argmax()), 2 * PLANTED_HEADS) == (earlier, later)


@pytest.mark.parametrize("kind", ["QK", "OV"])
@pytest.mark.parametrize("name", ["decoder", "grouped", "translator", "vit", "encoder"])
def test_leading_directions_are_those_of_the_dense_matrix(name, kind):
    model = SHAPES[name].model().double()
    make = {"QK": lens.qk_matrix, "OV": lens.ov_matrix}[kind]
    for where in circuit_heads(model):
        found = head_directions(model, where, kind, 2)
        for head in range(len(found.values)):
            dense = make(model, where, head).dense()
            assert torch.allclose(found.values[head], torch.linalg.svdvals(dense)[: found.values.shape[1]], atol=1e-9)
            strengths = torch.stack([u @ dense @ v for u, v in zip(found.written[head], found.read[head], strict=True)])
            assert torch.allclose(strengths, found.values[head, :2], atol=1e-9)


# ---------------------------------------------------------------- in a census


def test_a_census_names_the_words_of_frequent_tokens(tmp_path):
    model = SHAPES["decoder"].model()
    ids = torch.tensor([5] * 9 + [7] * 5 + [3])
    found = lens.census(model, ids, out=tmp_path / "census")
    words = found.circuits.words
    effects = lens.ov_words(model, "trunk.1.attn", 2, 7, top_k=5)
    promoted = words["attentions"]["trunk.1.attn"]["promoted"][2][1]

    assert words["tokens"] == [[5, "5"], [7, "7"], [3, "3"]]
    assert [word for word, _ in promoted["plus"]] == [word for word, _ in effects.promoted]
    assert [number for _, number in promoted["minus"]] == pytest.approx([number for _, number in effects.suppressed])


def test_the_ends_of_a_direction_are_the_words_that_read_or_are_read():
    model = SHAPES["decoder"].model()
    torch.nn.init.zeros_(model.trunk.blocks[1].attn_norm.bias)
    found = lens.census(model, torch.randint(VOCAB, (3 * N,))).circuits
    qk = lens.qk_matrix(model, "trunk.1.attn", 0)
    u, _, v = qk.singular_vectors()
    embed = model.embed.tokens.weight.double()
    ends = found.words["attentions"]["trunk.1.attn"]["QK"]

    for side, direction in (("written", u[:, 0]), ("read", v[0])):
        values = embed @ direction
        best = {str(int(values.argmax())), str(int(values.argmin()))}
        assert {ends[side][0][0][end][0][0] for end in ("plus", "minus")} == best


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "towers"])
def test_the_circuits_of_every_shape_are_in_its_folder(name, tmp_path):
    shape = SHAPES[name]
    model, (first,) = shape.model(), shape.reads()
    found = lens.census(model, [lens.Prompt(first, (), shape.named)], out=tmp_path)
    read, tensors = load_circuits(tmp_path), load_file(tmp_path / "circuits.safetensors")

    assert bool(found.metric("copying").isnan().all()) == (name in WORDLESS)
    assert read.words == json.loads(json.dumps(found.circuits.words)) and read.attentions == circuit_heads(model)
    assert {f"OV/{where}/values" for where in read.attentions} <= tensors.keys()
    assert torch.equal(lens.Census.load(tmp_path).metric("copying").nan_to_num(), found.metric("copying").nan_to_num())
