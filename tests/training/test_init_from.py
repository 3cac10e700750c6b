"""Beginning with another model's weights: what fits is kept to the bit, what is new is said, the rest is refused."""

import pytest
import torch
from training.builders import RECIPE

import regard
from regard import config, tasks, text, zoo
from regard.training.init import pretrained

WORDS = ["the cat sat on the mat", "a dog met an owl", "the owl said nothing at all"] * 5
V, D, H, N = 23, 12, 3, 17
HEADS = {
    "masked": config.LMHead(transform=True, bias=True),
    "bert": config.PretrainingHead(),
    "classes": config.PoolingHead(dense=True, out=3),
    "tags": config.TokenHead(out=5),
    "untied": config.LMHead(tied=False),
    "tied": config.LMHead(),
}


def shape(head="masked", vocab=V, **changes):
    trunk = config.Trunk(dim=D, depth=2, attention=config.Attention(heads=H), position=config.LearnedPosition(length=N),
                         dropout=config.Dropout(embed=0.3), **changes)  # fmt: skip
    return config.Transformer(
        embed=config.TextEmbedding(vocab=vocab, segments=2), trunk=trunk, head=HEADS[head], init="bert"
    )


def made(c, task=None, seed=1):
    torch.manual_seed(seed)
    model = regard.build(c)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight))
    model.task = task
    return model


def saved(path, c, tokenizer=None, task=None):
    """A model in a folder, and what the folder says of itself."""
    model = made(c, task)
    model.tokenizer = tokenizer
    model.save(path)
    return model, pretrained.read_source(path)


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def body(model):
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("head.")}


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---------------------------------------------------------------- weights


def test_a_model_of_the_same_config_becomes_the_same_model(tmp_path):
    theirs, folder = saved(tmp_path / "m", shape())
    ours = made(shape(), seed=2)
    taken = pretrained.transfer_weights(ours, folder)

    assert_equal(state(ours), state(theirs))
    assert not taken.new and not taken.left and not taken.otherwise
    count = sum(weight.numel() for weight in ours.parameters())
    assert pretrained.describe_transfer(taken) == f"from {tmp_path / 'm'}: {count:,} of {count:,} weights"


@pytest.mark.spec("S092")
@pytest.mark.parametrize("head", ["classes", "tags", "tied", "untied"])
def test_one_checkpoint_begins_many_heads(tmp_path, head):
    theirs, folder = saved(tmp_path / "m", shape("bert"))
    ours = made(shape(head), seed=2)
    pretrained.transfer_weights(ours, folder)

    assert_equal(body(ours), body(theirs))


def test_a_new_head_begins_as_its_seed_has_it_and_is_told(tmp_path):
    theirs, folder = saved(tmp_path / "m", shape("masked"))
    ours = made(shape("tags"), seed=2)
    before = state(ours)
    taken = pretrained.transfer_weights(ours, folder)

    assert torch.equal(ours.state_dict()["head.out.weight"], before["head.out.weight"])
    assert list(taken.new) == ["head.out.weight", "head.out.bias"] and sum(taken.new.values()) == 5 * D + 5
    assert set(taken.left) == {"head.bias", "head.dense.weight", "head.dense.bias", "head.norm.weight",
                               "head.norm.bias"}  # fmt: skip
    count, kept = (sum(weight.numel() for weight in some) for some in (ours.parameters(), body(ours).values()))
    assert pretrained.describe_transfer(taken) == (f"from {tmp_path / 'm'}: {kept:,} of {count:,} weights; new: "
                                                   "head.out (65); left "
                                 "there: head (23), head.dense (156), head.norm (24)")  # fmt: skip


def test_berts_pooler_is_kept_and_its_next_sentence_is_not(tmp_path):
    theirs, folder = saved(tmp_path / "m", shape("bert"), task=config.MaskedLM(next_sentence=True))
    c = config.Classification(classes=("no", "yes"))
    ours = made(config.Transformer(**vars(shape()) | {"head": config.PoolingHead(dense=True, out=2)}), c, seed=2)
    before = state(ours)
    pretrained.transfer_weights(ours, folder)

    assert torch.equal(ours.head.dense.weight, theirs.head.pooling.dense.weight)
    assert torch.equal(ours.head.out.weight, before["head.out.weight"])


def test_the_transform_of_words_never_becomes_the_pooler_of_texts(tmp_path):
    _, folder = saved(tmp_path / "m", shape("masked"))  # head.dense of one shape and another meaning
    ours = made(shape("classes"), seed=2)
    before = state(ours)
    taken = pretrained.transfer_weights(ours, folder)

    assert torch.equal(ours.head.dense.weight, before["head.dense.weight"]) and "head.dense.weight" in taken.new


def test_answers_are_kept_where_they_mean_the_same(tmp_path):
    task = config.Classification(classes=("a", "b", "c"))
    theirs, folder = saved(tmp_path / "m", shape("classes"), task=task)
    same = made(shape("classes"), config.Classification(classes=("a", "b", "c"), input="sentence"), seed=2)
    other = made(shape("classes"), config.Classification(classes=("x", "y", "z")), seed=2)
    pretrained.transfer_weights(same, folder)
    taken = pretrained.transfer_weights(other, folder)

    assert torch.equal(same.head.out.weight, theirs.head.out.weight)
    assert not torch.equal(other.head.out.weight, theirs.head.out.weight)
    assert set(taken.left) == {"head.out.weight", "head.out.bias"}


@pytest.mark.parametrize("there, here", [("tied", "untied"), ("untied", "tied"), ("untied", "untied")])
def test_a_tied_table_and_a_head_of_its_own_find_each_other(tmp_path, there, here):
    theirs, folder = saved(tmp_path / "m", shape(there))
    ours = made(shape(here), seed=2)
    taken = pretrained.transfer_weights(ours, folder)

    assert torch.equal(ours.embed.tokens.weight, theirs.embed.tokens.weight) and not taken.new
    if here == "untied":
        assert torch.equal(ours.head.weight, theirs.head.weight)
    assert set(taken.left) == ({"head.weight"} if (there, here) == ("untied", "tied") else set())


def test_a_table_of_words_may_have_grown(tmp_path):
    theirs, folder = saved(tmp_path / "m", shape("masked"))
    ours = made(shape("masked", vocab=V + 2), seed=2)
    before = state(ours)
    taken = pretrained.transfer_weights(ours, folder)

    assert torch.equal(ours.embed.tokens.weight[:V], theirs.embed.tokens.weight)
    assert torch.equal(ours.embed.tokens.weight[V:], before["embed.tokens.weight"][V:])
    assert torch.equal(ours.head.bias[:V], theirs.head.bias)
    assert taken.new == {"embed.tokens.weight": 2 * D, "head.bias": 2}


def test_the_random_numbers_of_a_run_stay_where_they_are(tmp_path):
    _, folder = saved(tmp_path / "m", shape())
    ours = made(shape(), seed=2)
    before = torch.get_rng_state()
    pretrained.transfer_weights(ours, folder)

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_weights_of_another_family_come_in_its_own_names(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=D, n_layer=2, n_head=H, vocab_size=V,
                                                                  n_positions=N)).eval()  # fmt: skip
    theirs.save_pretrained(tmp_path / "gpt2")
    folder = pretrained.read_source(tmp_path / "gpt2")
    c = pretrained.model_config_from(config.Transformer(head=config.PoolingHead(pooling="last", out=2)), folder)
    ours = regard.build(c).eval()
    pretrained.transfer_weights(ours, folder)
    ids, seen = torch.randint(V, (2, 7)), []
    ours.head.register_forward_pre_hook(lambda head, given: seen.append(given[0].x))
    ours(ids)

    torch.testing.assert_close(seen[0], theirs.transformer(ids).last_hidden_state)


# ---------------------------------------------------------------- what does not fit


@pytest.mark.parametrize("changes, said", [
    (dict(depth=3), "trunk.blocks.2.attn_norm.weight is missing there and (12,) here"),
    (dict(depth=1), "trunk.blocks.1.attn_norm.weight is (12,) there and missing here"),
    (dict(dim=24), "is (17, 12) there and (17, 24) here"),
    (dict(position=config.LearnedPosition(length=5)), "trunk.positions.0.tables.0 is (17, 12) there and (5, 12) here"),
])  # fmt: skip
def test_a_trunk_of_another_shape_is_refused_by_name_and_shape(tmp_path, changes, said):
    _, folder = saved(tmp_path / "m", shape())
    c = shape()
    trunk = config.Trunk(**vars(c.trunk) | changes)
    ours = made(config.Transformer(**vars(c) | {"trunk": trunk}), seed=2)
    before = state(ours)
    with pytest.raises(config.DataError, match="do not fit this model") as problem:
        pretrained.transfer_weights(ours, folder)

    assert said in str(problem.value) and str(tmp_path / "m") in str(problem.value)
    assert_equal(state(ours), before)  # nothing was taken


def test_a_smaller_vocabulary_is_refused(tmp_path):
    _, folder = saved(tmp_path / "m", shape())
    with pytest.raises(config.DataError, match=r"embed.tokens.weight is \(23, 12\) there and \(21, 12\) here"):
        pretrained.transfer_weights(made(shape(vocab=V - 2), seed=2), folder)


def test_settings_that_change_what_weights_mean_are_told(tmp_path):
    _, folder = saved(tmp_path / "m", shape())
    ours = made(shape(mask="causal"), seed=2)
    taken = pretrained.transfer_weights(ours, folder)

    assert taken.otherwise == ("model.trunk.mask is 'causal' and was 'full'",)
    assert pretrained.describe_transfer(taken).endswith("; model.trunk.mask is 'causal' and was 'full'")


def test_a_source_that_is_none_is_one_sentence_that_names_the_setting(tmp_path):
    with pytest.raises(config.DataError, match="train.init_from: .*nowhere: no such folder"):
        pretrained.read_source(tmp_path / "nowhere")


# ---------------------------------------------------------------- what a recipe inherits


@pytest.fixture
def bert(tmp_path):
    """A small pre-trained model with its words."""
    words = tasks.add_task_tokens(
        config.MaskedLM(), text.train_tokenizer(config.SubwordTokenizer(kind="wordpiece", vocab=600), WORDS)
    )
    c = shape("bert", vocab=len(words))
    _, folder = saved(tmp_path / "bert", c, words)
    return folder


def recipe(tmp_path, *changes):
    path = tmp_path / "recipe.toml"
    path.write_text("[train]\nsteps = 3\ncontext = 9\n")
    return zoo.read_recipe(path, changes)


def test_a_recipe_that_says_no_shape_has_that_of_the_weights(tmp_path, bert):
    said = recipe(tmp_path, "model.head.kind=pooling", "model.head.out=2")
    got, words = pretrained.inherit_model(said, bert)

    assert (got.model.embed, got.model.trunk, got.model.init) == (bert.config.embed, bert.config.trunk, "bert")
    assert got.model.head == said.model.head and len(words) == bert.config.embed.vocab
    assert got.tokenizer == config.TokenizerFile(path=str(bert.path))
    assert pretrained.inherit_model(got, bert)[0] == got  # what was resolved stays


def test_dropout_and_precision_may_be_said(tmp_path, bert):
    got, _ = pretrained.inherit_model(recipe(tmp_path, "model.dropout=0.25", "train.precision=bf16"), bert)
    plain, _ = pretrained.inherit_model(recipe(tmp_path), bert)

    assert got.model.trunk.dropout.residual == 0.25 and got.model.precision == "bf16"
    assert plain.model.trunk.dropout == bert.config.trunk.dropout and plain.model.precision == "fp32"


def test_a_head_over_words_of_which_nothing_is_said_is_their_own(tmp_path, bert):
    got, _ = pretrained.inherit_model(recipe(tmp_path), bert)

    assert got.model.head == bert.config.head.lm


def test_a_recipe_that_says_a_shape_keeps_it(tmp_path, bert):
    said = recipe(tmp_path, "model.dim=24", "model.heads=3")

    assert pretrained.inherit_model(said, bert)[0].model == said.model


def test_words_of_ones_own_are_refused(tmp_path, bert):
    says = "tokenizer: 'bpe', and the weights use the tokenizer of .*bert; leave it out"
    with pytest.raises(config.ConfigError, match=says):
        pretrained.inherit_model(recipe(tmp_path, 'tokenizer={kind="bpe", vocab=400}'), bert)
    said = recipe(tmp_path, f'tokenizer={{kind="file", path="{bert.path}"}}')

    assert pretrained.inherit_model(said, bert)[1].text() == text.Tokenizer.load(bert.path).text()


def test_weights_without_words_need_a_tokenizer(tmp_path, bert):
    _, folder = saved(tmp_path / "bare", shape())
    with pytest.raises(config.DataError, match="bare: there is no tokenizer.json"):
        pretrained.inherit_model(recipe(tmp_path), folder)
    said = recipe(tmp_path, f'tokenizer={{kind="file", path="{bert.path}"}}')

    assert len(pretrained.inherit_model(said, folder)[1]) == bert.config.embed.vocab


# ---------------------------------------------------------------- a run


def test_a_run_begins_with_the_weights_and_goes_its_own_way(desk):
    first = regard.Run.from_recipe("recipe.toml")
    list(regard.train(first))
    first.save("first")
    notes = []
    (desk / "next.toml").write_text("[train]" + RECIPE.partition("[train]")[2])  # nothing of model and text
    changes = ["train.init_from=first", "train.seed=5", "data.source=text.txt"]
    second = regard.Run.from_recipe("next.toml", changes, notice=notes.append)

    assert_equal(state(second.model), state(first.model))
    assert (second.step, second.recipe.model.trunk) == (0, first.recipe.model.trunk)
    assert any(note.startswith("from first: ") for note in notes)


def test_resuming_and_beginning_are_two_things(desk):
    with pytest.raises(config.ConfigError, match="train.init_from: a run keeps its settings"):
        regard.training.resume_fit("runs/lab", ["train.init_from=elsewhere"])
