"""Pruning: a model without heads says what the whole model says while those heads give zeros, and is smaller."""

import copy
from fnmatch import fnmatch

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from lens.shape_calls import make_case
from lens.small_models import SHAPES, VOCAB, Shape, ids, text
from parity.tolerance import assert_near
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard import config as C
from regard import lens
from regard.hub.families.registry import family_of
from regard.lens.attention_maps import find_attentions
from regard.text.trainers import train_tokenizer

every = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
saved = pytest.mark.parametrize("name", [name for name in SHAPES if name != "towers"])


def counted(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def arithmetic(shape: Shape, model: nn.Module) -> int:
    """By torch's own counter."""
    with FlopCounterMode(display=False) as counter:
        shape.ask(model)
    return counter.get_total_flops()


@every
@pytest.mark.spec("S103")
def test_a_pruned_model_says_what_the_whole_one_says_without_those_heads(shape: Shape):
    model = shape.model()
    small = lens.prune_heads(model, shape.gone)

    with lens.ablate(model, shape.gone):
        expected = shape.ask(model)
    assert_near(shape.ask(small), expected)
    assert (expected - shape.ask(model)).abs().max() > 1e-3  # the heads did something


@every
@pytest.mark.spec("S103")
def test_the_rows_are_really_gone(shape: Shape):
    model = shape.model()
    small, before = lens.prune_heads(model, shape.gone), find_attentions(model)

    assert counted(small) < counted(model) and arithmetic(shape, small) < arithmetic(shape, model)
    for where, attention in find_attentions(small).items():
        lost = sum(len(some) for name, some in shape.gone.items() if fnmatch(where, name))
        heads, groups = before[where].heads - lost, attention.kv_heads
        assert attention.heads == heads and heads * before[where].kv_heads == groups * before[where].heads
        assert attention.out.weight.shape[1] == heads * attention.value_head_dim
        parts = {name: weight for part in attention.children() if hasattr(part, "named_parts")
                 for name, (weight, _) in part.named_parts().items()}  # fmt: skip
        assert len(parts["q"]) == heads * attention.head_dim
        assert (len(parts["k"]), len(parts["v"])) == (groups * attention.head_dim, groups * attention.value_head_dim)


@every
def test_the_config_of_a_pruned_model_builds_it_again(shape: Shape):
    small = lens.prune_heads(shape.model(), shape.gone)
    again = type(small)(C.from_dict(type(small.c), C.to_dict(small.c)))
    again.load_state_dict(small.state_dict())

    assert again.c == small.c
    assert torch.equal(shape.ask(again.eval()), shape.ask(small))


@saved
@pytest.mark.spec("S103")
def test_a_pruned_model_is_saved_smaller_and_loaded_the_same(name: str, tmp_path):
    shape = SHAPES[name]
    model = shape.model()
    small = lens.prune_heads(model, shape.gone)
    model.save(tmp_path / "whole")
    small.save(tmp_path / "small")
    again = regard.load(tmp_path / "small", device="cpu")

    sizes = [(tmp_path / each / "model.safetensors").stat().st_size for each in ("whole", "small")]
    assert sizes[1] < sizes[0] and again.c == small.c
    assert torch.equal(shape.ask(again), shape.ask(small))


@every
def test_the_model_that_is_pruned_stays_as_it_was(shape: Shape):
    model = shape.model().train()
    before, c, chance = copy.deepcopy(model.state_dict()), model.c, torch.get_rng_state()
    small = lens.prune_heads(model, shape.gone)

    assert small.training and model.c == c and not model.hooks
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert not {weight.data_ptr() for weight in small.parameters()} & {w.data_ptr() for w in model.parameters()}


@pytest.mark.parametrize("name", ["decoder", "windowed decoder", "grouped", "relative", "shaw", "t5", "layerwise"])
def test_a_pruned_model_generates_with_its_cache_what_it_says_without(name: str):
    shape = SHAPES[name]
    small = lens.prune_heads(shape.model(), shape.gone)
    (prompt,), given = ids(), shape.named
    cache, said = small.cache(len(prompt), 17), []
    with torch.no_grad():
        for part in prompt.split([4, 1, 5, 1], 1):
            said.append(small(part, cache=cache, **given))
            given = {}
        assert_near(torch.cat(said, 1), small(prompt, **shape.named))


def test_a_pruned_model_can_be_trained_and_pruned_again():
    shape = SHAPES["grouped"]
    small = lens.prune_heads(shape.model(), {"trunk.0.attn": [0, 1]}).train()
    (rows,) = ids()
    F.cross_entropy(small(rows).flatten(0, 1), rows.flatten()).backward()
    smaller = lens.prune_heads(small, {"trunk.0.attn": [2, 3], "trunk.1.attn": [4, 5]}).eval()

    assert all(weight.grad is not None for weight in small.parameters())
    assert smaller.c.trunk.attention.heads == (2, 4) and smaller.c.trunk.attention.kv_heads == (1, 2)
    with lens.ablate(small.eval(), {"trunk.0.attn": [2, 3], "trunk.1.attn": [4, 5]}):
        expected = shape.ask(small)
    assert_near(shape.ask(smaller), expected)


@pytest.mark.spec("S103")
def test_a_llama_that_lost_the_same_heads_in_every_layer_is_one_that_transformers_opens(tmp_path):
    llama = regard.build(regard.preset("llama-7b", dim=48, depth=2, heads=6, kv_heads=3, vocab=VOCAB)).eval()
    lens.prune_heads(llama, {"trunk.*.attn": [2, 3]}).save(tmp_path / "small")
    theirs = hf.LlamaForCausalLM.from_pretrained(tmp_path / "small").eval()

    with torch.no_grad(), lens.ablate(llama, {"trunk.*.attn": [2, 3]}):
        rows = ids()[0]
        assert_near(theirs(rows).logits, llama(rows))
    assert (theirs.config.num_attention_heads, theirs.config.num_key_value_heads, theirs.config.head_dim) == (4, 2, 8)


def test_a_gpt2_that_lost_heads_is_no_gpt2_any_more(tmp_path):
    whole = regard.build(regard.preset("gpt2", dim=48, depth=2, heads=3, vocab=VOCAB)).eval()
    small, (rows,) = lens.prune_heads(whole, {"trunk.*.attn": [2]}), ids()
    small.save(tmp_path / "small")

    assert family_of(whole.c) is not None and family_of(small.c) is None
    assert torch.equal(regard.load(tmp_path / "small", device="cpu")(rows), small(rows))


def test_tied_weights_types_and_the_tokenizer_stay():
    words = train_tokenizer(C.CharTokenizer(), ["the cat"])
    model = SHAPES["decoder"].model().to(torch.bfloat16)
    model.tokenizer, model.context = words, 31
    small = lens.prune_heads(model, {"trunk.0.attn": [1]})

    assert small.head.weight is small.embed.tokens.weight and {w.dtype for w in small.parameters()} == {torch.bfloat16}
    assert (small.tokenizer, small.context) == (words, 31)


def test_heads_of_the_trunk_within_a_front_end_can_go():
    given = make_case("chunks")
    small = lens.prune_heads(given.model, {"embed.1.attn": [0]})
    with torch.no_grad(), lens.ablate(given.model, {"embed.1.attn": [0]}):
        wanted = given.model(*given.inputs)

    assert_near(small(*given.inputs), wanted)
    assert small.c.embed.trunk.attention.heads[1] == given.model.c.embed.trunk.attention.heads - 1


def test_the_same_heads_gone_everywhere_leave_one_number_and_one_table():
    small = lens.prune_heads(SHAPES["relative"].model(), {"trunk.*.attn": [1]})

    assert small.c.trunk.attention.heads == 2 and small.c.trunk.position.tables == "shared"


def test_taking_nothing_changes_nothing():
    shape = SHAPES["t5"]
    model = shape.model()

    assert lens.prune_heads(model, {}).c == model.c
    assert torch.equal(shape.ask(lens.prune_heads(model, {"trunk.0.attn": []})), shape.ask(model))


@pytest.mark.spec("S103")
def test_pruning_idle_heads_changes_the_loss_by_what_was_measured():
    shape = SHAPES["grouped"]
    model, (rows,) = shape.model(), ids()
    with torch.no_grad():
        model.trunk.blocks[1].attn.out.weight[:, 2 * 5 : 4 * 5] = 1e-5  # heads 2 and 3 say next to nothing

    def loss(model: nn.Module) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(model(rows[:, :-1]).flatten(0, 1).double(), rows[:, 1:].flatten()))

    gone = lens.prunable_heads(model, lens.idle_heads(lens.ablate_all(model, loss)))
    with lens.ablate(model, gone):
        measured = loss(model)
    assert gone == {"trunk.1.attn": [2, 3]}
    assert loss(lens.prune_heads(model, gone)) == pytest.approx(measured, abs=1e-6)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "shape, gone, why",
    [
        ("decoder", {"trunk.0.atn": [1]}, "trunk.0.atn: no such attention; did you mean 'trunk.0.attn'?"),
        ("decoder", {"trunk.7.attn": [1]}, "trunk.7.attn: no such attention"),
        ("decoder", {"trunk.0.attn": [3]}, "trunk.0.attn: no head 3; there are 0 to 2"),
        ("decoder", {"trunk.0.attn": [-1]}, "trunk.0.attn: no head -1; there are 0 to 2"),
        ("decoder", {"trunk.*.attn": [0, 1, 2]}, "trunk.0.attn: all 3 heads would go; leave one"),
        ("grouped", {"trunk.0.attn": [2]}, "trunk.0.attn: heads 2, 3 share keys and values; take all of them or none"),
        ("shared", {"trunk.1.attn": [2]}, "trunk: its layers share one block; name them all at once, 'trunk.*.attn'"),
    ],
)  # fmt: skip
def test_what_cannot_be_pruned_is_refused_in_a_sentence(shape, gone, why):
    with pytest.raises(C.ConfigError, match=f"^{why.replace('.', '[.]').replace('?', '[?]').replace('*', '[*]')}"):
        lens.prune_heads(SHAPES[shape].model(), gone)


def test_the_first_few_of_many_attentions_are_named():
    with pytest.raises(C.ConfigError, match=r"there are trunk\.0\.attn, trunk\.1\.attn, trunk\.2\.attn and 2 more$"):
        lens.prune_heads(text(mask="causal", depth=5)(), {"nothing": [0]})


def test_slopes_that_go_by_the_number_of_heads_are_refused():
    with pytest.raises(C.ConfigError, match="trunk.position: 'alibi' gives each head a slope"):
        lens.prune_heads(text(mask="causal", position=C.AlibiPosition())(), {"trunk.0.attn": [0]})


def test_maps_that_are_not_there_are_refused():
    attention = C.Attention(heads=3, projections=("q", "k", "out"))
    with pytest.raises(C.ConfigError, match="trunk.0.attn: a map that attention.projections leaves out"):
        lens.prune_heads(text(attention=attention)(), {"trunk.0.attn": [0]})


def test_a_model_within_a_wrapper_is_found():
    model = SHAPES["decoder"].model()
    wrapped = nn.DataParallel(model)

    assert counted(lens.prune_heads(wrapped, {"trunk.0.attn": [0]})) < counted(model)
