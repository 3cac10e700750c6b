"""Steering: the mean difference of pairs, added at its address in every way in which a model generates."""

import threading

import pytest
import torch
from engine.clients import client, run
from lens.small_models import SHAPES
from torch import Tensor
from torch.testing import assert_close

import regard
from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.engine.engine import Engine
from regard.generation import cuda_graphs
from regard.inference.model import Model
from regard.lens import SteeringVector, steering, steering_vector
from regard.lens.prompt import read_prompt
from regard.lens.residual import Unembedding, recording
from regard.text import train_tokenizer

D, V, NEW = 32, 53, 21
ADDRESS = "trunk.0.residual"


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    trunk = C.Trunk(dim=D, depth=2, mask="causal", position=C.RotaryPosition(), attention=C.Attention(heads=4),
                    dropout=C.NO_DROPOUT)  # fmt: skip
    made = regard.Model(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk)).eval()
    for each in made.parameters():
        each.data = torch.randn_like(each) * 0.4
    return made


def some_vector(address: str = ADDRESS) -> SteeringVector:
    return SteeringVector(address, torch.randn(D, generator=torch.Generator().manual_seed(3)) * 5)


@torch.no_grad()
def plant(model: Model, token: int) -> SteeringVector:
    """The direction of a token at the end of the stream: no other one's is as near to it."""
    table, norm = model.embed.tokens.weight, model.trunk.final_norm
    table -= table.mean(1, keepdim=True)
    table /= table.norm(dim=1, keepdim=True)
    norm.weight.fill_(1), norm.bias.zero_()
    return SteeringVector(f"trunk.{model.c.trunk.depth - 1}.residual", table[token].clone())


def greedy(model: Model, **settings) -> list[list[int | None]]:
    return list(model.session([[1, 2, 3], [4, 5, 6, 7, 8]], temperature=0, max_new_tokens=NEW, **settings))


@torch.no_grad()
def without_a_cache(model: Model, ids: list[int], count: int = NEW) -> list[int]:
    """What is generated greedily where the whole text is read again for each token."""
    ids, new = list(ids), []
    for _ in range(count):
        new.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        ids.append(new[-1])
    return new


# ---------------------------------------------------------------- from pairs


@torch.no_grad()
@pytest.mark.parametrize("position", [-1, 1, "mean"])
def test_a_vector_is_the_mean_difference_of_the_activations(model, position):
    pairs = [([1, 2, 3], [4, 5]), ([7, 8, 9, 10], [11, 12, 13])]

    def activation(ids: list[int]) -> Tensor:
        with looking(model, ADDRESS) as seen:
            model(torch.tensor([ids]))
        return seen[ADDRESS][0].mean(0) if position == "mean" else seen[ADDRESS][0, position]

    found = steering_vector(model, pairs, address=ADDRESS, position=position)
    differences = torch.stack([activation(first) - activation(second) for first, second in pairs])

    assert_close(found.differences, differences, atol=1e-5, rtol=0)
    assert_close(found.vector, differences.mean(0), atol=1e-5, rtol=0)
    assert len(found.table().rows) == len(found.agreement) == 2


def test_pairs_that_differ_in_one_direction_agree(model):
    with torch.no_grad():
        model.trunk.blocks[0].attn.out.weight.zero_()
    pairs = [([first, 9], [first, 4]) for first in (1, 2, 3)]  # the last token is the same in every pair

    assert_close(steering_vector(model, pairs, address=ADDRESS).agreement, torch.ones(3))


def test_saved_and_loaded_it_is_the_same(model, tmp_path):
    found = steering_vector(model, [([1, 2], [3, 4])], address=ADDRESS)
    found.save(tmp_path / "v.safetensors")
    loaded = SteeringVector.load(tmp_path / "v.safetensors")

    assert loaded.address == ADDRESS and torch.equal(loaded.vector, found.vector)
    with steering(model, loaded, 3.0):
        again = greedy(model)
    with steering(model, found, 3.0):
        assert greedy(model) == again


# ---------------------------------------------------------------- what it does


@torch.no_grad()
def test_at_strength_zero_no_bit_changes(model):
    ids = torch.randint(V, (2, 7))
    before = model(ids)
    with steering(model, some_vector(), 0.0):
        assert torch.equal(model(ids), before) and model.hooks == ()


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "towers"])
def test_at_the_end_of_the_stream_logits_move_by_what_the_head_makes_of_it(name):
    shape = SHAPES[name]
    model = shape.model()
    (first,) = shape.reads()
    prompt = read_prompt(model, first, **shape.named)
    last = f"trunk.{model.c.trunk.depth - 1}.residual"
    vector = SteeringVector(last, torch.randn(model.c.trunk.dim))
    with recording(model, prompt, last) as run:
        wanted = Unembedding(model, run.tokens)(run.seen[last] + 2 * vector.vector)
    with steering(model, vector, 2.0), looking(model, last) as seen:
        out = prompt.run(model)
    out = out[0] if isinstance(out, tuple) else out

    assert_close(out, wanted[:, 0] if wanted.dim() > out.dim() else wanted)
    assert_close(seen[last], run.seen[last] + 2 * vector.vector)
    assert model.hooks == ()


@torch.no_grad()
def test_without_a_final_norm_the_logits_move_by_the_vector_through_the_head():
    """Exactly linear: logits + strength · W v."""
    trunk = C.Trunk(dim=D, depth=1, mask="causal", final_norm=False, attention=C.Attention(heads=4),
                    dropout=C.NO_DROPOUT)  # fmt: skip
    model = regard.Model(C.Transformer(embed=C.TextEmbedding(vocab=V), trunk=trunk)).double().eval()
    ids, vector = torch.randint(V, (2, 7)), SteeringVector(ADDRESS, torch.randn(D))
    before = model(ids)
    with steering(model, vector, -4.0):
        assert_close(model(ids) - before, (-4 * model.head.weight @ vector.vector.double()).expand(2, 7, V))


def test_a_planted_direction_is_what_the_model_then_says(model):
    token, vector = 17, plant(model, 17)
    with steering(model, vector, 100.0):
        told = greedy(model)
        assert model.generate(torch.tensor([1, 2]), num_beams=3, max_new_tokens=5).tolist() == [token] * 5

    assert told == [[token, token]] * NEW != greedy(model)


# ---------------------------------------------------------------- every way of generating


@pytest.mark.parametrize("way", ["cache", "recorded", "prompt lookup", "ids", "engine"])
def test_every_token_of_a_generation_is_steered(model, way, monkeypatch):
    """A cache, recorded steps, candidates and the engine's slots give what reading all of it again gives."""
    prompt, vector = [1, 2, 3], some_vector()
    with steering(model, vector, 1.0):
        wanted = without_a_cache(model, prompt)
    assert wanted != without_a_cache(model, prompt)
    if way == "recorded":
        monkeypatch.setattr(cuda_graphs, "GRAPH_DEVICES", ["cpu"])
        list(model.session([prompt], temperature=0, max_new_tokens=NEW))  # leaves a recorded step behind
    with steering(model, vector, 1.0):
        match way:
            case "engine":
                found = ask_engine(Engine(model, slots=2, max_context=64, chunk=2), prompt)
            case "ids":
                found = model.generate(torch.tensor(prompt), max_new_tokens=NEW, temperature=0).tolist()
            case _:
                settings = {"prompt_lookup": 2} if way == "prompt lookup" else {}
                session = model.session([prompt], temperature=0, max_new_tokens=NEW, **settings)
                found = [ids[0] for ids in session]

    assert found == wanted


def ask_engine(engine: Engine, prompt: list[int]) -> list[int]:
    asked = client(prompt, max_new_tokens=NEW)
    run(engine, asked)
    return asked.ids


@pytest.mark.parametrize("order", [(0.5, 0.0), (0.0, 0.5, 0.0)])
def test_an_engine_keeps_nothing_of_a_steered_prompt_and_gives_it_nothing_that_was_kept(model, order):
    """Kept pieces change no bit: neither of a plain request after a steered one, nor of a steered one after a plain."""

    def bits(engine: Engine, strength: float) -> list[tuple]:
        asked = client([1, 2, 3, 4, 5, 6], max_new_tokens=3, logprobs=2)
        with steering(model, some_vector(), strength):
            run(engine, asked)
        return asked.bits

    sizes = dict(slots=2, max_context=64, chunk=2)
    engine = Engine(model, **sizes)
    found = [bits(engine, strength) for strength in order]

    assert found == [bits(Engine(model, **sizes | {"prefixes": 0}), strength) for strength in order]
    assert found[0] != found[1]


def test_a_session_can_be_steered_from_its_middle_on(model):
    vector = plant(model, 17)
    session = model.session([[1, 2, 3]], temperature=0, max_new_tokens=NEW)
    begun = [session.step() for _ in range(4)]
    with steering(model, vector, 100.0):
        middle = [session.step()[0] for _ in range(3)]

    assert middle == [17, 17, 17] and [17] not in begun
    assert model.hooks == ()


def test_a_stream_of_text_is_steered_while_it_is_read():
    tokenizer = train_tokenizer(C.CharTokenizer(), ["the cat sat on the mat"])
    trunk = C.Trunk(dim=8, depth=1, mask="causal", attention=C.Attention(heads=2), dropout=C.NO_DROPOUT)
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(tokenizer)), trunk=trunk)).eval()
    model.tokenizer = tokenizer
    [m] = tokenizer.encode("m")
    with steering(model, plant(model, m), 1000.0):
        assert "".join(model.stream("the ", max_new_tokens=5, temperature=0)) == "mmmmm"
        assert model.generate("the ", max_new_tokens=5, temperature=0) == "mmmmm"


def test_whoever_calls_the_model_meanwhile_is_steered_in_any_thread(model):
    """A hook belongs to the model: this is said in the docs, and held here."""
    ids, found = torch.randint(V, (1, 7)), []
    with torch.no_grad(), steering(model, some_vector(), 1.0):
        wanted = model(ids)
        thread = threading.Thread(target=lambda: found.append(model(ids)))
        thread.start()
        thread.join()

    assert_close(found[0], wanted)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("vector", "strength", "words"),
    [
        (SteeringVector("trunk.7.residual", torch.ones(D)), 1.0, "no address 'trunk.7.residual'"),
        (SteeringVector("trunk.*.residual", torch.ones(D)), 1.0, r"\(2 of them\): a vector is added at one place"),
        (SteeringVector("trunk.0.attn.q", torch.ones(D)), 1.0, "a vector is added at one place"),
        (SteeringVector(ADDRESS, torch.ones(5)), 1.0, "5 numbers, and there the model has 32; it is of another model"),
        (SteeringVector(ADDRESS, torch.ones(D)), float("nan"), "expected finite numbers"),
    ],
)
def test_a_vector_that_does_not_fit_is_refused_in_a_sentence(model, vector, strength, words):
    with pytest.raises(ConfigError, match=words), steering(model, vector, strength):
        model(torch.tensor([[1, 2]]))


@pytest.mark.parametrize(
    ("pairs", "rest", "words"),
    [
        ([], {}, "at least one pair"),
        (["ab"], {}, "'ab' is no pair"),
        ([([1], [2], [3])], {}, "is no pair"),
        ([([1, 2], [3])], {"position": 1}, "text 2 of pair 1 has 1 tokens"),
        ([("the", "a")], {}, "no tokenizer"),
    ],
)
def test_pairs_that_cannot_be_compared_are_refused_in_a_sentence(model, pairs, rest, words):
    with pytest.raises((ConfigError, DataError), match=words):
        steering_vector(model, pairs, address=ADDRESS, **rest)


def test_a_file_that_holds_no_vector_is_refused_in_a_sentence(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2, 3)}, tmp_path / "w.safetensors")
    with pytest.raises(DataError, match=r"one tensor \(D,\) named by its address; found a \(2, 3\)"):
        SteeringVector.load(tmp_path / "w.safetensors")
    with pytest.raises(DataError, match="no such file"):
        SteeringVector.load(tmp_path / "none.safetensors")
