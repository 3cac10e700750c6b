"""Neurons: a stream of texts gives what sorting all of them gives, and units that were planted are found."""

import pytest
import torch
from lens.small_models import SHAPES
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.inference.model import Model
from regard.lens import find_top_examples, neuron_words, search_neurons
from regard.lens.features.neurons import RunningTop, UnitStats
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import Unembedding, recording
from regard.text import train_tokenizer

K, VOCAB, DIM, HIDDEN = 3, 29, 12, 17
TEXT = "the cat sat on the mat and the dog sat on the log. " * 20


def decoder(activation: str = "gelu", gated: bool = False, **rest) -> Model:
    trunk = C.Trunk(dim=DIM, depth=2, mask="causal", attention=C.Attention(heads=3), dropout=C.NO_DROPOUT,
                    mlp=C.MLP(hidden=HIDDEN, activation=activation, gated=gated), **rest)  # fmt: skip
    return Model(C.Transformer(embed=C.TextEmbedding(vocab=VOCAB), trunk=trunk)).eval()


def corpus(count: int = 7) -> list[Tensor]:
    """Batches of odd and different sizes."""
    return [torch.randint(VOCAB, (1 + i % 3, 5 + 2 * (i % 4))) for i in range(count)]


@torch.no_grad()
def all_activations(model: Model, texts: list[Tensor], address: str) -> Tensor:  # (tokens, units)
    found = []
    for ids in texts:
        with looking(model, address) as seen:
            model(ids)
        found.append(seen[address].flatten(0, 1))
    return torch.cat(found)


# ---------------------------------------------------------------- a stream is a sort


@pytest.mark.spec("S154")
@pytest.mark.parametrize(("activation", "gated"), [("gelu", False), ("relu", False), ("silu", True)])
def test_a_stream_finds_what_sorting_everything_finds(activation, gated):
    model, texts = decoder(activation, gated), corpus()
    found = find_top_examples(model, texts, top_k=K, context=2)
    ids = torch.cat([each.flatten() for each in texts])
    for layer in range(2):
        values = all_activations(model, texts, f"trunk.{layer}.mlp.hidden")
        rows = slice(HIDDEN * layer, HIDDEN * (layer + 1))
        best = values.sort(dim=0, descending=True, stable=True)  # equal ones in the order of the corpus

        assert torch.equal(found.values[rows], best.values[:K].mT)
        assert torch.equal(found.contexts[rows, :, 2], ids[best.indices[:K].mT].int())
        assert_close(found.mean[rows], values.double().mean(0))
        assert_close(found.std[rows], values.double().std(0, correction=0))
        assert_close(found.alive[rows], (values > 0).double().mean(0))
    assert found.tokens == len(ids)


def test_equal_values_are_listed_in_the_order_of_the_corpus():
    top, values = RunningTop(2, 5, 1), torch.tensor([[0.0, -1.0], [-0.0, 7.0], [0.0, -1.0], [-2.5, -1.0]])
    for start in range(0, 12, 4):
        places = torch.arange(start, start + 4, dtype=torch.int32)[:, None].expand(4, 3)
        top.update(values, places, start)

    assert torch.equal(top.values(), torch.tensor([[0.0] * 5, [7.0, 7.0, 7.0, -1.0, -1.0]]))
    assert top.context[..., 0].tolist() == [[0, 1, 2, 4, 5], [1, 5, 9, 0, 2]]


def test_the_order_of_the_batches_changes_neither_values_nor_statistics():
    model, texts = decoder(), corpus()
    one, other = (find_top_examples(model, each, top_k=K, context=1) for each in (texts, texts[::-1]))

    assert torch.equal(one.values, other.values) and torch.equal(one.contexts, other.contexts)
    for name in ("mean", "std", "alive"):
        assert_close(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-12)


def test_texts_of_different_lengths_give_what_each_gives_alone_and_padding_never_counts():
    model = decoder()
    model.embed.tokens.weight.data[0] = 100.0  # what padding is filled with would be the strongest of all
    texts = [torch.randint(1, VOCAB, (length,)) for length in (3, 11, 5, 7, 4)]
    together = find_top_examples(model, texts, top_k=K)
    alone = find_top_examples(model, [each[None] for each in texts], top_k=K)
    single = all_activations(model, [each[None] for each in texts], "trunk.0.mlp.hidden")

    assert together.tokens == alone.tokens == sum(map(len, texts))
    assert_close(together.values, alone.values, atol=1e-5, rtol=0)
    assert_close(together.mean[:HIDDEN], single.double().mean(0), atol=1e-6, rtol=0)


def test_a_long_text_is_read_in_windows_and_places_are_those_of_the_text():
    model = decoder(position=C.LearnedPosition(length=9))
    ids = torch.randint(VOCAB, (31,))
    found = find_top_examples(model, [ids[:4], ids], top_k=K, context=2)
    middle = ids[found.positions[found.texts == 1].long()]

    assert found.tokens == 35 and int(found.positions.max()) > 9
    assert torch.equal(found.contexts[found.texts == 1][:, 2], middle.int())


class Largest(TorchDispatchMode):
    """The number of elements in the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **kwargs or {})
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_memory_is_that_of_a_batch_and_of_units_times_top_k_however_long_the_corpus_is():
    model, sizes = decoder(), []
    for count in (3, 40):
        with Largest() as largest:
            find_top_examples(model, (torch.randint(VOCAB, (2, 9)) for _ in range(count)), top_k=K, context=2)
        sizes.append(largest.elements)

    assert sizes[0] == sizes[1] <= 2 * (2 * HIDDEN) * K * (2 + 5)  # both layers joined, and a row's own place


def test_texts_are_taken_one_batch_at_a_time():
    pulled, done = [], []

    def texts():
        for number in range(30):
            pulled.append(number)
            yield torch.randint(VOCAB, (1, 700))

    find_top_examples(decoder(), texts(), top_k=K, progress=lambda count: done.append(count - len(pulled)))

    assert done[-1] == 0 and min(done) >= -2  # at most the text that opens the next batch was read ahead


# ---------------------------------------------------------------- planted units


@torch.no_grad()
def planted(unit: int = 5, token: int = 11, out: int = 7) -> Model:
    """Unit 5 of the first layer fires for token 11 alone, and writes the direction of token 7."""
    model = decoder("relu")
    table = model.embed.tokens.weight
    table.normal_()
    table -= table.mean(1, keepdim=True)
    block, scale = model.trunk.blocks[0], (table[token] / table[token].norm()) * 4
    block.attn.out.weight.zero_()
    block.mlp.up.weight[unit], block.mlp.up.bias[unit] = scale, -9.0
    block.mlp.down.weight[:, unit] = table[out]
    return model


def test_a_planted_unit_fires_at_its_token_and_promotes_its_word():
    model, texts = planted(), [torch.randint(VOCAB, (2, 13)) for _ in range(5)]
    texts[2][1, 4] = texts[4][0, 9] = 11
    found = find_top_examples(model, texts, top_k=2, context=1)
    words = neuron_words(model, 0, 5, top_k=3)

    assert {example.token for example in found.examples("trunk.0.mlp.hidden", 5)} == {"11"}
    assert found.alive[found.row("trunk.0.mlp.hidden", 5)] == pytest.approx(
        sum(int((each == 11).sum()) for each in texts) / 130
    )
    assert words.promotes[0].id == 7 and words.excited_by[0].id == 11
    assert search_neurons(model, 7, top_k=1).matches[0].unit == 5
    match = search_neurons(model, 11, examples=find_top_examples(model, texts, top_k=2, context=0), top_k=1).matches[0]
    assert (match.layer, match.unit, match.examples) == (0, 5, 2)


def test_a_direction_is_read_as_a_unit_and_several_at_once():
    model, texts, rays = decoder(), corpus(), torch.randn(2, DIM)
    found = find_top_examples(model, texts, where="trunk.1.residual", direction=rays, top_k=K)
    values = all_activations(model, texts, "trunk.1.residual") @ rays.mT

    assert_close(found.values, values.topk(K, dim=0).values.mT, atol=1e-5, rtol=1e-5)
    assert found.units == (0, 1)


def test_chosen_units_have_the_examples_that_they_have_among_all():
    model, texts = decoder(), corpus()
    whole, part = (find_top_examples(model, texts, units=units, top_k=K) for units in (None, [16, 3]))

    assert torch.equal(part.values[3], whole.values[whole.row("trunk.1.mlp.hidden", 3)])
    assert part.examples("trunk.0.mlp.hidden", 16) == whole.examples("trunk.0.mlp.hidden", 16)


# ---------------------------------------------------------------- words


@torch.no_grad()
@pytest.mark.parametrize("name", ["decoder", "grouped", "translator", "vit", "stages", "encoder", "pixels"])
def test_what_a_unit_promotes_is_what_the_head_makes_of_its_column(name):
    """Of a head that is linear in the normed stream: the slope of its logits where the norm divides by one."""
    model, unit, layer = SHAPES[name].model(), 4, 1
    words, column = neuron_words(model, layer, unit, top_k=5), model.trunk.blocks[layer].mlp.down.weight[:, unit]
    norm, head = model.trunk.final_norm, model.head
    if name == "encoder":  # post-norm, and a head with a transform
        norm, head = model.trunk.blocks[-1].mlp_norm, model.head.lm
    x = (column if norm.c.kind == "rms" else column - column.mean()) * norm.weight
    if name == "encoder":
        x = head.dense.weight @ x
        x = (x - x.mean()) * head.norm.weight
    weight = head.out.weight if hasattr(head, "out") else head.weight
    scores = weight @ x

    assert [word.id for word in words.promotes] == scores.sort(descending=True).indices[:5].tolist()
    assert_close(torch.tensor([word.score for word in words.suppresses]), scores.sort().values[:5])
    assert bool(words.excited_by) == (name not in ("vit", "stages"))


@torch.no_grad()
def test_the_direct_path_is_the_head_on_the_column_up_to_the_division_of_the_norm():
    model = SHAPES["decoder"].model()
    prompt = read_prompt(model, torch.randint(1, 23, (1, 7)))
    with recording(model, prompt, "trunk.1.residual") as run:
        decode, x = Unembedding(model, run.tokens), run.seen["trunk.1.residual"]
    column = model.trunk.blocks[1].mlp.down.weight[:, 4]
    norm = model.trunk.final_norm
    std = (x.var(-1, correction=0, keepdim=True) + norm.c.eps).sqrt()
    with_unit = decode((x - x.mean(-1, keepdim=True) + column - column.mean()) / std * norm.weight, final=False)
    without = decode((x - x.mean(-1, keepdim=True)) / std * norm.weight, final=False)
    slope = ((with_unit - without) * std)[0, 3]
    best = neuron_words(model, 1, 4, top_k=1).promotes[0]

    assert best.id == int(slope.argmax())
    assert best.score == pytest.approx(float(slope.max()), rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("gated", [False, True])
def test_what_excites_a_unit_is_what_it_gets_where_a_token_stands_alone(gated):
    model = decoder("silu", gated, position=C.NoPosition())
    model.trunk.blocks[0].attn.out.weight.zero_()  # nothing but the embedding reaches the first feed-forward
    values = all_activations(model, [torch.arange(VOCAB)[:, None]], "trunk.0.mlp.hidden")[:, 6]
    best = neuron_words(model, 0, 6, top_k=4).excited_by

    if gated:
        assert [word.id for word in best] == values.sort(descending=True).indices[:4].tolist()
        assert_close(torch.tensor([word.score for word in best]), values.sort(descending=True).values[:4])
    else:
        pre = torch.tensor([word.score for word in best])
        assert_close(torch.nn.functional.silu(pre), values[[word.id for word in best]])


@torch.no_grad()
def test_adapters_are_read_with_the_weights_that_they_change():
    model = decoder().adapt(C.LoRA(rank=2, targets=("down",)))
    for name, weight in model.named_parameters():
        if name.endswith(".b"):
            weight.normal_()
    worn = neuron_words(model, 0, 3)

    assert worn.promotes == neuron_words(model.merge(), 0, 3).promotes


def writer() -> Model:
    tokenizer = train_tokenizer(C.SubwordTokenizer(vocab=300), [TEXT])
    trunk = C.Trunk(dim=8, depth=1, mask="causal", attention=C.Attention(heads=2), mlp=C.MLP(hidden=9))
    model = Model(C.Transformer(embed=C.TextEmbedding(vocab=len(tokenizer)), trunk=trunk)).eval()
    model.tokenizer = tokenizer
    return model


def test_examples_of_texts_are_shown_as_text_and_found_by_a_word():
    model = writer()
    found = find_top_examples(model, ["the cat sat on the mat", "and the dog"], top_k=4, context=2)
    example = found.examples("trunk.0.mlp.hidden", 3)[0]
    matches = search_neurons(model, "dog", examples=found, top_k=3).matches

    assert str(example).replace("«", "").replace("»", "") in "the cat sat on the mat and the dog"
    assert 1 <= len(matches) <= 3 and matches[0].examples >= matches[-1].examples >= 1
    assert "of 9 units" in str(found.table()) and "alive" in found.table().to_csv()


# ---------------------------------------------------------------- every shape, and refusals


def test_a_model_without_feed_forwards_has_no_neurons():
    model = SHAPES["attention only"].model()
    with pytest.raises(ConfigError, match=r"no address 'trunk.\*.mlp.hidden'"):
        find_top_examples(model, [torch.tensor([1, 2, 3])])
    with pytest.raises(ConfigError, match="layer 1: trunk.mlp.kind is none, so it has no feed-forward, and no units"):
        neuron_words(model, 1, 0)


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in ("towers", "attention only")])
def test_every_shape_has_neurons(name):
    shape = SHAPES[name]
    model = shape.model()
    torch.manual_seed(1)
    (first,) = shape.reads()
    before = [part.training for part in model.modules()]
    prompt = read_prompt(model, first, **shape.named)
    found = find_top_examples(model, [Prompt(prompt.first, prompt.labels, prompt.given)], where="trunk.*.mlp.hidden",
                              top_k=2)  # fmt: skip
    with recording(model, prompt, "trunk.1.mlp.hidden") as run:
        hidden = run.seen["trunk.1.mlp.hidden"]
        real = run.tokens.is_real
    hidden = hidden.flatten(0, 1) if real is None else hidden[real]

    assert torch.equal(found.values[17:34, 0], hidden.amax(0))
    assert [part.training for part in model.modules()] == before and model.hooks == ()


def test_a_tower_has_neurons_of_its_own():
    tower = SHAPES["towers"].model().towers[1]
    found = find_top_examples(tower, torch.randint(1, 22, (3, 11)), where="towers.1.trunk.*.mlp.hidden", top_k=2)

    assert found.tokens == 33 and len(found.units) == 34


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"where": "trunk.9.mlp.hidden"}, "no address 'trunk.9.mlp.hidden'"),
        ({"where": "trunk.0.attn.pattern"}, "reads a vector for each token"),
        ({"units": [17]}, "has units 0 to 16"),
        ({"top_k": 0}, "at least one example"),
        ({"direction": torch.zeros(5)}, "5 numbers, and the vectors at trunk.0.mlp.hidden have 17"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(settings, words):
    with pytest.raises(ConfigError, match=words):
        find_top_examples(decoder(), corpus(1), **settings)


def test_other_mistakes_are_refused_in_a_sentence():
    model = decoder()
    for mistake, words in (((2, 0), "layers 0 to 1"), ((0, 17), "units 0 to 16")):
        with pytest.raises(ConfigError, match=words):
            neuron_words(model, *mistake)
    with pytest.raises(DataError, match="there are none"):
        find_top_examples(model, [])
    with pytest.raises(ConfigError, match="no tokenizer"):
        search_neurons(model, "cat")
    with pytest.raises(ConfigError, match="is not among these"):
        find_top_examples(model, corpus(1), units=[3]).examples("trunk.0.mlp.hidden", 4)
    residual = find_top_examples(model, corpus(1), where="trunk.0.residual")
    with pytest.raises(ConfigError, match="feed-forward units"):
        search_neurons(model, 3, examples=residual)


def test_moments_of_a_far_mean_lose_nothing():
    stats, values = UnitStats(1, 1, 1), 1e4 + torch.randn(900, 1)
    for part in values.split(70):
        stats.update(part, torch.zeros(len(part), 3, dtype=torch.int32))

    assert_close((stats.squares / stats.count).sqrt(), values.double().std(0, correction=0), rtol=1e-9, atol=0)
