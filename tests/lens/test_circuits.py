"""QK and OV circuits: factored equals dense equals what the model does; planted copying and composition are found."""

import pytest
import torch
from lens.small_models import SHAPES, VOCAB, text
from parity.tolerance import randomise
from torch.testing import assert_close

from regard import config as C
from regard.config.errors import ConfigError
from regard.lens import composition_scores, copying_score, ov_matrix, ov_words, qk_matrix
from regard.lens.circuits.attention_circuits import composition_score
from regard.lens.circuits.factored_matrix import CircuitMatrix
from regard.lens.circuits.vocabulary_circuits import vocabulary_circuit
from regard.lens.prompt import read_prompt
from regard.lens.residual import recording


def planted():
    """Two layers of three heads, 8 wide each, norms without gains; the words are the axes of the stream."""
    torch.manual_seed(0)
    attention = C.Attention(heads=3, bias=())
    model = text(embed=C.TextEmbedding(vocab=24), head=C.LMHead(tied=False), dim=24, attention=attention, mask="causal",
                 norm=C.Norm(gain=False, bias=False))()  # fmt: skip
    with torch.no_grad():
        model.embed.tokens.weight.copy_(torch.eye(24))
        model.head.weight.copy_(torch.eye(24))
    return model


def parts(model, layer):
    """The weights of q, k, v, (24, 24) each with 8 rows a head, and the output projection."""
    attention = model.trunk.blocks[layer].attn
    return {name: weight for name, (weight, _) in attention.qkv.named_parts().items()} | {"out": attention.out.weight}


# ---------------------------------------------------------------- the matrices


@pytest.mark.parametrize("name", SHAPES)
def test_singular_values_norm_and_eigenvalues_are_those_of_the_dense_product(name):
    model = SHAPES[name].model().double()
    for where in SHAPES[name].places:
        for circuit in (ov_matrix(model, where, 1), qk_matrix(model, where, 1)):
            dense = circuit.dense()
            values, u = circuit.singular_values(), circuit.singular_vectors()

            assert dense.shape[0] == dense.shape[1]
            assert_close(values, torch.linalg.svdvals(dense)[: len(values)], rtol=1e-9, atol=1e-12)
            assert_close((u[0] * u[1]) @ u[2], dense, rtol=1e-9, atol=1e-12)
            assert_close(circuit.norm(), float(torch.linalg.matrix_norm(dense)), rtol=1e-9, atol=1e-12)
            assert_close(circuit.T.dense(), dense.mT)
            assert_close(circuit.eigenvalues().sum().real, dense.trace(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["decoder", "encoder", "grouped", "shared", "translator", "t5", "relative"])
def test_ov_is_what_a_head_adds_for_a_vector_that_it_attends_to(name):
    """head_out of two inputs differs as W_OV says, where each attends to one token alone: biases fall out."""
    model, where = SHAPES[name].model().double(), SHAPES[name].places[-1]
    across = where.endswith("cross")
    read = f"trunk.{int(where.split('.')[1]) - 1}.residual"
    rows = []
    for ident in (3, 4):
        one = torch.tensor([[ident]])
        prompt = read_prompt(model, one, **({"source": one} if SHAPES[name].named else {}))
        with recording(model, prompt, read, f"{where}.head_out") as run:
            x = run.memory.x[0, 0] if across else normed(model, run.seen[read][0, 0])
            rows.append((x, run.seen[f"{where}.head_out"][0, :, 0]))
    for head in range(len(rows[0][1])):
        moved = ov_matrix(model, where, head).dense() @ (rows[0][0] - rows[1][0])
        assert_close(rows[0][1][head] - rows[1][1][head], moved, rtol=1e-8, atol=1e-10)


def normed(model, x):
    """A vector divided by the scale of its norm, where there is one before attention: the rest is in the circuit."""
    c = model.c.trunk
    if c.norm_placement == "post":
        return x
    square = x.var(correction=0) if c.norm.kind == "layer" else x.square().mean()
    return x * (square + c.norm.eps).rsqrt()


@pytest.mark.parametrize(("said", "scaled"), [
    (dict(position=C.LearnedPosition(length=31)), True),
    (dict(position=C.RotaryPosition()), True),
    (dict(norm=C.Norm(kind="rms", offset=1.0)), True),
    (dict(norm_placement="post"), False),
    (dict(attention=C.Attention(heads=4, kv_heads=2, head_dim=6, bias=())), True),
])  # fmt: skip
def test_qk_is_the_score_of_a_token_with_itself(said, scaled):
    """At distance zero rotation turns nothing; without biases the score is x' M x."""
    torch.manual_seed(0)
    model = text(mask="causal", **(dict(attention=C.Attention(heads=3, bias=())) | said))().double().eval()
    randomise(model)
    for block in model.trunk.blocks:
        if scaled and block.attn_norm.bias is not None:
            torch.nn.init.zeros_(block.attn_norm.bias)  # it adds to q and k what the circuit leaves out
    read, where = "trunk.0.residual", "trunk.1.attn"
    with recording(model, read_prompt(model, torch.tensor([[5, 7, 6]])), read, f"{where}.scores") as run:
        x, scores = run.seen[read][0], run.seen[f"{where}.scores"][0]
    x = torch.stack([normed(model, each) for each in x])
    for head in range(len(scores)):
        made = (x @ qk_matrix(model, where, head).dense() * x).sum(-1)
        assert_close(made, scores[head].diagonal(), rtol=1e-6, atol=1e-8)  # rotation is in fp32 whatever the weights


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norms_on_q_and_k_and_shared_keys_are_in_the_qk_circuit(kind):
    torch.manual_seed(0)
    norm = C.Norm(kind=kind)
    attention = C.Attention(heads=4, kv_heads=2, head_dim=6, bias=(), qk_norm=norm)
    model = text(attention=attention, mask="causal", norm=norm)().double()
    randomise(model)
    layer = model.trunk.blocks[1].attn
    (q, _), (k, _) = (layer.qkv.named_parts()[name] for name in "qk")

    def normed(gain, rows):
        return (rows - rows.mean(0) * (kind == "layer")) * gain[:, None]

    q = normed(layer.q_norm.weight, q[3 * 6 : 4 * 6])
    k = normed(layer.k_norm.weight, k[6:12])  # heads 2 and 3 have the second key
    gain = model.trunk.blocks[1].attn_norm.weight
    made = gain[:, None] * (q.mT @ k) * gain * 6**-0.5
    if kind == "layer":
        made = made - made.mean(0) - made.mean(1, keepdim=True) + made.mean()

    assert_close(qk_matrix(model, "trunk.1.attn", 3).dense(), made.detach(), rtol=1e-9, atol=1e-12)


def test_the_factors_are_thin_and_the_notes_say_what_is_left_out():
    model = SHAPES["windowed decoder"].model()
    qk, ov = qk_matrix(model, "trunk.1.attn", 2), ov_matrix(model, "trunk.1.attn", 2)

    assert qk.left.shape == ov.left.shape == (12, 4) and qk.right.shape == ov.right.shape == (4, 12)
    assert "rotary" in qk.note and "distance zero" in qk.note and "rotary" not in ov.note
    assert "left out" not in qk_matrix(SHAPES["decoder"].model(), "trunk.1.attn", 0).note.split(".")[1]
    assert "t5" in qk_matrix(SHAPES["t5"].model(), "encoder.0.attn", 0).note
    assert "t5" not in qk_matrix(SHAPES["t5"].model(), "trunk.0.cross", 0).note
    assert "normed" in qk_matrix(SHAPES["grouped"].model(), "trunk.0.attn", 0).note
    assert len(qk.table().rows) == 4 and sum(row[2] for row in qk.table().rows) == pytest.approx(1)
    assert qk.picture().values.shape == (1, 4)


# ---------------------------------------------------------------- from words to words


def test_a_planted_copying_head_has_a_copying_score_of_one_and_its_reverse_of_minus_one():
    model = planted()
    weights = parts(model, 0)
    with torch.no_grad():
        weights["out"][:, :8].copy_(weights["v"][:8].mT)  # W_O = W_V': every word promotes itself
        weights["out"][:, 8:16].copy_(-weights["v"][8:16].mT)

    assert copying_score(model, "trunk.0.attn", 0) == pytest.approx(1, abs=1e-6)
    assert copying_score(model, "trunk.0.attn", 1) == pytest.approx(-1, abs=1e-6)
    assert abs(copying_score(model, "trunk.0.attn", 2)) < 0.9


@pytest.mark.parametrize("name", ["decoder", "windowed decoder", "grouped", "translator", "t5", "layerwise", "pixels"])
def test_the_copying_score_is_that_of_the_large_matrix_between_words(name):
    model = SHAPES[name].model().double()
    for where in SHAPES[name].places:
        if where.startswith("trunk"):
            circuit, embed, unembed = vocabulary_circuit(model, where, 1)
            count = min(len(embed), len(unembed))
            values = torch.linalg.eigvals(unembed[:count] @ circuit.dense() @ embed[:count].mT)
            share = float(values.real.sum() / values.abs().sum())

            assert copying_score(model, where, 1) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_the_words_of_an_ov_circuit_are_the_changes_of_the_logits(placement):
    """By a walk with every norm's scale at one: gains, centring and maps alone, from the table to the logits."""
    torch.manual_seed(0)
    model = text(
        embed=C.TextEmbedding(vocab=VOCAB, scale=2.0), embed_norm=True, norm_placement=placement,
        head=C.LMHead(tied=False, scale=0.5), embed_dim=7, position=C.LearnedPosition(length=9),
    )().double()  # fmt: skip
    randomise(model)
    trunk, block = model.trunk, model.trunk.blocks[1]

    def norm(module, x):
        return (x - x.mean()) * module.weight

    x = trunk.project(norm(trunk.embed_norm, model.embed.tokens.weight[4] * 2)) - trunk.project.bias
    if placement == "post":
        for module in (trunk.blocks[0].attn_norm, trunk.blocks[0].mlp_norm):
            x = norm(module, x)
    x = norm(block.attn_norm, x) if placement == "pre" else x
    v, out = block.attn.qkv.named_parts()["v"][0], block.attn.out.weight
    x = out[:, 4:8] @ (v[4:8] @ x)
    for module in (block.attn_norm, block.mlp_norm) if placement == "post" else (trunk.final_norm,):
        x = norm(module, x)
    logits = (model.head.weight @ x * 0.5).detach()
    found = ov_words(model, "trunk.1.attn", 1, 4, top_k=3)

    best = (logits - logits.mean()).sort(descending=True)
    assert [word for word, _ in found.promoted] == [str(i) for i in best.indices[:3].tolist()]
    assert [word for word, _ in found.suppressed] == [str(i) for i in best.indices.flip(0)[:3].tolist()]
    assert_close(torch.tensor([value for _, value in found.promoted], dtype=torch.float64), best.values[:3])
    assert len(found.table().rows) == 6 and "attends to '4'" in str(found)


# ---------------------------------------------------------------- composition


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_a_planted_composition_is_found_and_no_other(kind):
    """Head 2 of the second layer reads just the directions that head 1 of the first one writes."""
    model = planted()
    first, second = parts(model, 0), parts(model, 1)
    with torch.no_grad():
        wrote = first["out"][:, 8:16] - first["out"][:, 8:16].mean(0)  # what norms let through
        second[kind.lower()][16:24].copy_(wrote.mT)
    scores = composition_scores(model, "trunk.0.attn", "trunk.1.attn", kind)

    assert divmod(int(scores.scores.argmax()), 3) == (1, 2)
    assert float(scores.scores[1, 2]) > 1.3 * float(scores.scores.flatten().topk(2).values[1])
    for other in {"Q", "K", "V"} - {kind}:
        chance = composition_scores(model, "trunk.0.attn", "trunk.1.attn", other)
        assert float(chance.scores.max()) < 1.2 * chance.expected


@pytest.mark.parametrize(("name", "earlier", "later", "kinds"), [
    ("decoder", "trunk.0.attn", "trunk.1.attn", "QKV"),
    ("grouped", "trunk.0.attn", "trunk.1.attn", "QKV"),
    ("shared", "trunk.0.attn", "trunk.2.attn", "QKV"),
    ("translator", "trunk.0.attn", "trunk.0.cross", "Q"),
    ("translator", "trunk.0.cross", "trunk.1.attn", "QKV"),
    ("translator", "encoder.0.attn", "trunk.1.cross", "KV"),
    ("layerwise", "encoder.0.attn", "trunk.0.cross", "KV"),
    ("vit", "trunk.0.attn", "trunk.1.attn", "QKV"),
])  # fmt: skip
def test_composition_is_the_norm_of_the_dense_product(name, earlier, later, kinds):
    model = SHAPES[name].model().double()
    for kind in kinds:
        scores = composition_scores(model, earlier, later, kind)
        wrote = ov_matrix(model, earlier, 1).dense()
        if (across := later.endswith("cross") and kind != "Q") or model.c.trunk.norm_placement == "post":
            norm = model.encoder.final_norm if across else None
            wrote = wrote if norm is None else (wrote - wrote.mean(0)) * norm.weight[:, None]
        reads = ov_matrix(model, later, 2).dense() if kind == "V" else qk_matrix(model, later, 2).dense()
        reads = reads.mT if kind == "Q" else reads
        made = (reads @ wrote).norm() / reads.norm() / wrote.norm()

        assert_close(scores.scores[1, 2], made.detach(), rtol=1e-9, atol=1e-12)
        assert float(scores.scores.max()) <= 1


def test_between_two_heads_of_a_post_norm_model_their_norms_are_passed():
    model = SHAPES["encoder"].model().double()
    wrote = ov_matrix(model, "trunk.0.attn", 0).dense()
    for norm in (model.trunk.blocks[0].attn_norm, model.trunk.blocks[0].mlp_norm):
        wrote = (wrote - wrote.mean(0)) * norm.weight.detach()[:, None]
    reads = qk_matrix(model, "trunk.1.attn", 1).dense()

    found = composition_scores(model, "trunk.0.attn", "trunk.1.attn", "K").scores[0, 1]
    assert_close(found, (reads @ wrote).norm() / reads.norm() / wrote.norm(), rtol=1e-9, atol=1e-12)


def test_matrices_turned_at_random_compose_as_much_as_is_expected():
    torch.manual_seed(0)
    dim, rank, squares = 15, 4, []
    later = CircuitMatrix(*(torch.randn(size, dtype=torch.float64) for size in ((dim, rank), (rank, dim))))
    for _ in range(300):
        q = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64))[0]
        left = q[:, :rank] * torch.tensor([3.0, 1.0, 0.5, 0.1])
        earlier = CircuitMatrix(left, torch.eye(rank, dim, dtype=torch.float64))
        squares.append(composition_score(later, earlier) ** 2)
    model = planted()

    assert sum(squares) / len(squares) == pytest.approx(1 / dim, rel=0.1)
    assert composition_scores(model, "trunk.0.attn", "trunk.1.attn").expected == 24**-0.5


def test_composition_has_a_row_for_each_pair_and_a_grid():
    scores = composition_scores(planted(), "trunk.0.attn", "trunk.1.attn", "V")

    assert len(scores.table().rows) == 9
    assert scores.table().rows[5][:2] == ("trunk.0.attn head 1", "trunk.1.attn head 2")
    assert scores.picture().values.shape == (3, 3)


# ---------------------------------------------------------------- what is refused


def test_what_has_no_circuit_is_refused_in_a_sentence():
    shape = {name: SHAPES[name].model() for name in ("decoder", "translator", "vit", "shared", "captioner")}
    mixed, reversible = text(mixer=C.NoMixer())(), text(kind="reversible", mask="causal")()
    plain, pair = text(residual=False)(), ("trunk.1.attn", "trunk.0.attn")
    encoder, cross = "encoder.0.attn", "trunk.1.cross"

    for words, call in [
        ("no attention 'trunk.7.attn'", lambda: ov_matrix(shape["decoder"], "trunk.7.attn", 0)),
        ("did you mean 'trunk.1.attn'", lambda: qk_matrix(shape["decoder"], "trunk.1.atn", 0)),
        ("has 3 heads, and 3 was asked for", lambda: qk_matrix(shape["decoder"], "trunk.1.attn", 3)),
        ("this model has none", lambda: ov_matrix(mixed, "trunk.0.attn", 0)),
        ("no residual stream", lambda: ov_matrix(plain, "trunk.0.attn", 0)),
        ("does not go to a vocabulary", lambda: copying_score(shape["vit"], "trunk.0.attn", 0)),
        ("does not go to a vocabulary", lambda: copying_score(shape["translator"], encoder, 0)),
        ("head.transform", lambda: ov_words(shape["shared"], "trunk.0.attn", 0, 3)),
        ("front end of its own", lambda: copying_score(shape["captioner"], "trunk.0.cross", 0)),
        ("outside the vocabulary of 23", lambda: ov_words(shape["decoder"], "trunk.0.attn", 0, 99)),
        ("top_k: 0", lambda: ov_words(shape["decoder"], "trunk.0.attn", 0, 9, top_k=0)),
        ("writes after", lambda: composition_scores(shape["decoder"], *pair)),
        ("two streams", lambda: composition_scores(reversible, *pair[::-1])),
        ("none of Q, K, V", lambda: composition_scores(shape["decoder"], *pair[::-1], "X")),
        ("reads its K from encoder", lambda: composition_scores(shape["translator"], "trunk.0.attn", cross, "K")),
        ("reads its Q from trunk", lambda: composition_scores(shape["translator"], encoder, "trunk.1.attn", "Q")),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            call()
