"""Other names of settings are accepted where they mean the same, and answered with ours where they do not."""

from dataclasses import is_dataclass
from typing import get_args

import pytest
import torch

import regard
from regard import config
from regard.config.aliases import ALIASES, ANSWERS, CURRENT, RENAMED, RENAMED_VALUES, generation_aliases, suggest_word
from regard.config.reader import field_types
from regard.zoo.preset import SHORT_KEYS
from regard.zoo.recipe import read_recipe


def setting(recipe, path):
    for name in path.split("."):
        recipe = getattr(recipe, name)
    return recipe


@pytest.mark.parametrize("said, path, value", [
    ("train.lr=1e-3", "train.optimizer.lr", 1e-3),
    ("train.learning_rate=1e-3", "train.optimizer.lr", 1e-3),
    ("train.weight_decay=0.3", "train.optimizer.weight_decay", 0.3),
    ("train.warmup_steps=7", "train.schedule.warmup", 7),
    ("train.per_device_train_batch_size=3", "train.batch_size", 3),
    ("train.gradient_accumulation_steps=2", "train.gradient_accumulation", 2),
    ("train.block_size=64", "train.context", 64),
    ("train.grad_clip=0.5", "train.max_grad_norm", 0.5),
    ("train.num_train_epochs=2", "train.epochs", 2),
    ("train.gradient_checkpointing=true", "train.activation_checkpointing", True),
    ("model.hidden_size=64", "model.trunk.dim", 64),
    ("model.n_embd=64", "model.trunk.dim", 64),
    ("model.num_layers=2", "model.trunk.depth", 2),
    ("model.num_hidden_layers=2", "model.trunk.depth", 2),
    ("model.n_head=2", "model.trunk.attention.heads", 2),
    ("model.num_key_value_heads=2", "model.trunk.attention.kv_heads", 2),
    ("model.intermediate_size=99", "model.trunk.mlp.hidden", 99),
    ("model.trunk.num_attention_heads=2", "model.trunk.attention.heads", 2),
    ("model.trunk.hidden_size=64", "model.trunk.dim", 64),
    ("model.trunk.attention.num_kv_heads=1", "model.trunk.attention.kv_heads", 1),
    ("model.trunk.norm.rms_norm_eps=1e-4", "model.trunk.norm.eps", 1e-4),
    ("model.tie_word_embeddings=false", "model.head.tied", False),
])  # fmt: skip
def test_a_recipe_reads_the_names_of_other_libraries(said, path, value):
    assert setting(read_recipe("shakespeare", [said]), path) == value


@pytest.mark.parametrize("said, path, value", [
    ("train.batch=3", "train.batch_size", 3), ("train.clip=none", "train.max_grad_norm", None),
    ("train.accumulate=2", "train.gradient_accumulation", 2), ("train.average=0.9", "train.ema_decay", 0.9),
    ("model.groups=2", "model.trunk.attention.kv_heads", 2),
    ("model.trunk.place=post", "model.trunk.norm_placement", "post"),
    ("model.trunk.mask=causal & landmarks(2)", "model.trunk.mask", "causal & global_tokens(2)"),
    ("model.kernel=tiled(16)", "model.trunk.attention.kernel", "tiled_flash(16)"),
    ("model.init=quiet", "model.init", "zero_init"), ("text.fallback=false", "tokenizer.byte_fallback", False),
    ("task={kind='spans', mean=2.5, begin='end'}", "task",
     config.SpanCorruption(mean_span_length=2.5, decoder_start="eos")),
    ("data.bad=skip", "data.on_bad_record", "skip"), ("report.new=9", "report.max_new_tokens", 9),
])  # fmt: skip
def test_settings_of_format_1_are_read(said, path, value):
    changes = [said] if "spans" not in said else [said, "model.preset=t5-small", "tokenizer.kind=word"]

    assert setting(read_recipe("shakespeare", changes), path) == value


def test_an_override_by_another_name_wins_over_the_file(tmp_path):
    (tmp_path / "run.toml").write_text("[train]\nsteps = 3\noptimizer = {kind = 'adamw', lr = 0.5}\n")

    made = config.read_toml(config.Recipe, tmp_path / "run.toml", ["train.learning_rate=0.25", "train.max_steps=4"])

    assert (made.train.optimizer.lr, made.train.steps) == (0.25, 4)


def test_a_setting_under_two_names_is_refused():
    with pytest.raises(config.ConfigError, match="^train.lr: it is another name of optimizer.lr, and both are given"):
        read_recipe("shakespeare", ["train.lr=1e-3", "train.optimizer.lr=2e-3"])
    with pytest.raises(
        config.ConfigError, match="^max_tokens: it is another name of max_new_tokens, and both are given"
    ):
        tiny().generate(torch.tensor([1, 2]), max_tokens=3, max_new_tokens=3)


@pytest.mark.parametrize("said, answer", [
    ("train.n_ctx=64", "train.n_ctx: here it is train.context"),
    ("train.max_length=64", "train.max_length: here it is train.context"),
    ("train.bf16=true", "train.bf16: here it is train.precision"),
    ("train.adam_beta2=0.9", "train.adam_beta2: here it is train.optimizer.betas"),
    ("lr=1e-3", "lr: here it is train.optimizer.lr"),
    ("hidden_size=3", "hidden_size: here it is model.dim"),
])  # fmt: skip
def test_what_means_something_else_is_answered_with_our_word(said, answer):
    with pytest.raises(config.ConfigError) as problem:
        read_recipe("shakespeare", [said])

    assert str(problem.value) == answer


def tiny():
    torch.manual_seed(0)
    return regard.build(regard.preset("gpt2", depth=1, dim=32, heads=2, vocab=50)).eval()


@pytest.mark.parametrize("theirs, ours", [
    (dict(max_tokens=7), dict(max_new_tokens=7)),
    (dict(max_completion_tokens=7, repeat_penalty=1.5), dict(max_new_tokens=7, repetition_penalty=1.5)),
    (dict(max_new_tokens=7, min_tokens=2, n_best=2, beam_size=3),
     dict(max_new_tokens=7, min_new_tokens=2, num_beams=3)),
    (dict(max_new_tokens=7, sequence_bias={3: 9.0}), dict(max_new_tokens=7, logit_bias={3: 9.0})),
    (dict(max_new_tokens=7, prompt_lookup_num_tokens=2), dict(max_new_tokens=7, prompt_lookup=2)),
    (dict(new=7, repetition=1.5), dict(max_new_tokens=7, repetition_penalty=1.5)),
])  # fmt: skip
def test_generation_reads_the_names_of_other_libraries(theirs, ours):
    model, greedy = tiny(), {} if "num_beams" in ours else {"temperature": 0.0}
    prompt = torch.tensor([4, 1, 3])
    if "n_best" in theirs:
        found = model.beam_search([prompt.tolist()], **theirs)[0]
        assert len(found) == 2
        assert list(found[0].ids) == model.generate(prompt, **ours).tolist()
    else:
        assert torch.equal(model.generate(prompt, **theirs, **greedy), model.generate(prompt, **ours, **greedy))


@pytest.mark.parametrize("name, answer", [
    ("max_length", "here it is max_new_tokens, which counts new tokens alone"),
    ("do_sample", "here it is temperature, of which 0 is always the likeliest token; otherwise a text is drawn"),
    ("response_format", "here it is json_schema, which takes the schema itself"),
])  # fmt: skip
def test_generation_answers_what_means_something_else(name, answer):
    with pytest.raises(config.ConfigError) as problem:
        tiny().generate(torch.tensor([1, 2]), **{name: 3})

    assert str(problem.value) == f"{name}: {answer}"


def test_a_preset_reads_them_too():
    assert regard.preset("gpt2", hidden_size=96, num_attention_heads=3) == regard.preset("gpt2", dim=96, heads=3)


def test_a_slip_of_the_pen_is_still_answered_by_its_letters():
    assert suggest_word("contxet", field_types(config.Train)) == ""
    with pytest.raises(config.ConfigError, match="train.contxet: no such setting; did you mean 'context'"):
        read_recipe("shakespeare", ["train.contxet=3"])


def is_setting(kinds, path):
    """Whether a dotted path is a setting of one of these classes."""
    for name in path.split("."):
        if config.Transformer in kinds and name in (*SHORT_KEYS, "preset"):
            return True
        found = [field_types(kind)[name] for kind in kinds if name in field_types(kind)]
        if not found:
            return False
        kinds = [part for each in found for part in (get_args(each) or (each,)) if is_dataclass(part)]
    return True


@pytest.mark.parametrize("name", sorted({*ALIASES, *RENAMED} - {"Speculation"}))
def test_every_alias_stands_for_a_setting_of_its_class(name):
    cls = getattr(config, name, None) or getattr(config.generation, name)
    renamed = [pair.split("=")[1] for pair in RENAMED.get(name, "").split()]

    assert [path for path in (*ALIASES.get(name, {}), *renamed) if not is_setting([cls], path)] == []


@pytest.mark.parametrize("path", sorted({each.partition(",")[0] for each in ANSWERS.values()}))
def test_every_answer_is_a_setting_of_a_recipe(path):
    assert is_setting([config.Recipe], path)


def test_no_name_of_ours_is_an_alias_of_another_setting():
    for name in {*ALIASES, *RENAMED} - {"Speculation"}:
        cls = getattr(config, name, None) or getattr(config.generation, name)
        aliases = [alias for names in ALIASES.get(name, {}).values() for alias in names.split()]
        aliases += [pair.split("=")[0] for pair in RENAMED.get(name, "").split()]

        assert set(aliases).isdisjoint(field_types(cls)), name
        assert len(set(aliases)) == len(aliases), name
    settings = {*field_types(config.SamplingParams), *field_types(config.BeamSearchParams)}
    assert settings.isdisjoint(generation_aliases())


@pytest.mark.parametrize("name", RENAMED_VALUES)
def test_no_renamed_value_is_one_of_today_for_the_same_setting(name):
    table = RENAMED_VALUES[name]

    assert name == "kind" or set(table).isdisjoint(table.values())


def test_a_kernel_of_one_s_own_may_have_a_name_that_was_another_s(monkeypatch):
    assert config.from_dict(config.Attention, {"kernel": "tiled(8)"}).kernel == "tiled_flash(8)"

    monkeypatch.setattr("regard.config.trunk.KERNELS", known := [*config.KERNELS, "tiled"])
    monkeypatch.setitem(CURRENT, "kernel", known)

    assert config.from_dict(config.Attention, {"kernel": "tiled(8)"}).kernel == "tiled(8)"
