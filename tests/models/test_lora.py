"""Adapters: nothing changes when they are put on, they alone learn, and what they learned is never lost."""

import copy
import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from training.builders import D, N, V, advanced, assert_same, bits, copied, laid, lines, model
from training.launcher import Launcher

import regard
from regard import config, zoo
from regard.hub import locate, weights
from regard.lens.ablation import ablate
from regard.lens.pruning import prune_heads
from regard.models import lora
from regard.training.api import fit, resume_fit
from regard.training.loop import train_steps
from regard.training.optim.optimizer import OptimizerGroup
from regard.training.run import Run

IDS = torch.randint(V, (3, N), generator=torch.Generator().manual_seed(0))
EVERY = ("q", "k", "v", "out", "up", "down")
MODELS = {
    "gpt2": lambda: model("gpt2"),
    "llama": lambda: model("llama-7b"),
    "untied": lambda: model("gpt2", head={"tied": False}),
    "lean": lambda: model("gpt2", position={"kind": "sinusoidal", "mode": "qk"}),
    "cross": lambda: model("marian"),
}
WAYS = {"parts": EVERY, "shared": ("qkv", "out"), "one layer": ("trunk.blocks.1.attn.v", "blocks.1.mlp.*")}


def ask(made, ids=IDS):
    """An encoder-decoder reads the same backwards."""
    return made(ids) if made.encoder is None else made(ids, source=ids.flip(1))


def moved(made, spread=0.3):
    """Adapters that have learned something."""
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in lora.adapter_parameters(made).values():
            weight.copy_(spread * torch.randn(weight.shape, generator=chance))
    return made


# ---------------------------------------------------------------- putting them on


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_fresh_adapters_change_no_bit(name, way):
    made = MODELS[name]().eval()
    before = ask(made)
    made.adapt(config.LoRA(targets=WAYS[way], dropout=0.5))

    assert torch.equal(ask(made), before)
    assert torch.equal(ask(made.train().eval()), before)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["parts", "shared"])
def test_merging_keeps_the_answers_and_the_names_of_an_ordinary_model(name, way):
    made = MODELS[name]().eval()
    names, before = set(made.state_dict()), ask(made)
    moved(made.adapt(config.LoRA(rank=3, targets=WAYS[way])))
    worn = ask(made)
    made.merge()

    assert_close(ask(made), worn, atol=1e-5, rtol=0)
    assert (worn - before).abs().max() > 0.1
    assert set(made.state_dict()) == names and all(weight.requires_grad for weight in made.parameters())
    assert type(made.trunk.blocks[0].attn.out) is regard.core.layers.FusedLinear


def test_a_map_and_its_adapter_are_one_map_of_the_weight_w_and_s_times_b_a():
    made = moved(model().adapt(config.LoRA(rank=3, alpha=5, targets=("k", "v"))))
    qkv, x = made.trunk.blocks[0].attn.qkv, torch.randn(2, 5, D)
    weight, k, v = qkv.weight.clone(), qkv.lora["k"], qkv.lora["v"]
    weight[D : 2 * D] += 5 / 3 * k.b @ k.a
    weight[2 * D :] += 5 / 3 * v.b @ v.a
    whole = F.linear(x, weight, qkv.bias)
    split = qkv.split(x)

    assert_close(qkv(x), whole)
    assert_close(torch.cat([split[part] for part in "qkv"], -1), whole)
    assert_close(qkv.project_only(x, "v", "q"), {"v": whole[..., 2 * D :], "q": whole[..., :D]})
    assert torch.equal(split["q"], F.linear(x, *qkv.named_parts()["q"]))  # where there is no adapter, not a bit


def test_gradients_are_those_of_the_weight_seen_through_a_and_b():
    made = moved(model(head={"tied": False}).adapt(config.LoRA(rank=3, alpha=6, targets=("down",)))).double()
    same = copy.deepcopy(made)
    same.merge()
    for each in (made, same):
        each(IDS).square().mean().backward()
    for ours, theirs in zip(made.trunk.blocks, same.trunk.blocks, strict=True):
        low, slope = ours.mlp.down.lora["map"], theirs.mlp.down.weight.grad

        assert_close(low.b.grad, 2 * slope @ low.a.T, atol=1e-6, rtol=1e-5)  # merged in fp32
        assert_close(low.a.grad, 2 * low.b.T @ slope, atol=1e-6, rtol=1e-5)
        assert ours.mlp.down.weight.grad is None


def test_dropout_is_on_what_an_adapter_reads_and_only_while_it_learns():
    made = moved(model().adapt(config.LoRA(dropout=0.5)))

    assert not torch.equal(made.train()(IDS), made(IDS))
    assert torch.equal(made.eval()(IDS), made(IDS))


@pytest.mark.parametrize("target", ["head", "q"])
def test_logits_that_are_held_back_are_the_same_logits(target):
    made = moved(model(head={"tied": False}).adapt(config.LoRA(rank=3, targets=(target,))))
    want = made(IDS)
    held = made(IDS, deferred=True)

    assert_close(F.linear(held.x, held.weight, held.bias), want)


def test_a_cache_gives_the_answers_of_the_whole_text():
    made = moved(model("llama-7b").adapt(config.LoRA(targets=EVERY))).eval()
    cache = made.cache(len(IDS), N)
    parts = [made(IDS[:, :9], cache=cache), *(made(IDS[:, i : i + 1], cache=cache) for i in range(9, N))]

    assert_close(torch.cat(parts, 1), made(IDS), atol=1e-5, rtol=0)


def test_looking_ablating_and_pruning_work_as_without():
    made = moved(model().adapt(config.LoRA(targets=EVERY))).eval()
    want = made(IDS)
    with regard.looking(made, "trunk.*.attn.pattern", "trunk.1.mlp.out") as seen:
        assert torch.equal(made(IDS), want)
    with ablate(made, {"trunk.1.attn": [0]}):
        poorer = made(IDS)

    assert_close(seen["trunk.0.attn.pattern"].sum(-1), torch.ones(3, 3, N))
    assert not torch.equal(poorer, want)
    assert_close(prune_heads(made, {"trunk.1.attn": [0]})(IDS), poorer, atol=1e-5, rtol=0)
    assert torch.equal(made(IDS), want)


@pytest.mark.slow
def test_a_model_with_adapters_compiles_whole_with_the_same_answers():
    made = moved(model("llama-7b").adapt(config.LoRA(targets=("q", "v", "gate", "out")))).eval()

    assert_close(torch.compile(made, fullgraph=True)(IDS), made(IDS), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_merged_weights_are_those_of_a_merged_model_and_the_model_is_not_touched(name):
    plain = MODELS[name]().eval()
    made = moved(copy.deepcopy(plain).adapt(config.LoRA(targets=EVERY)))
    want, before, learn = ask(made), copied(made.state_dict()), [w.requires_grad for w in made.parameters()]
    base, merged = lora.base_state_dict(made), lora.merged_state_dict(made)
    assert_same(copied(base), copied(plain.state_dict()))
    plain.load_state_dict(merged)

    assert_close(ask(plain), want, atol=1e-5, rtol=0)
    assert_same(copied(made.state_dict()), before)
    assert [w.requires_grad for w in made.parameters()] == learn and torch.equal(ask(made), want)
    assert_same(copied(merged), copied(made.merge().state_dict()))


@pytest.mark.parametrize("save", ["save", "save_adapter"])
def test_another_thread_gets_the_same_bits_while_a_model_is_saved(tmp_path, monkeypatch, save):
    made, seen = moved(model().adapt(config.LoRA(targets=EVERY))).eval(), []
    want, names, write = made(IDS), set(made.state_dict()), weights.save_tensors

    def slowly(path, tensors):
        with ThreadPoolExecutor(1) as other:
            seen.append(other.submit(lambda: (made(IDS), set(made.state_dict()))).result())
        write(path, tensors)

    for place in ("write_folder", "peft_save"):
        monkeypatch.setattr(f"regard.hub.{place}.save_tensors", slowly)
    getattr(made, save)(tmp_path / "out")

    [(told, names_then)] = seen
    assert torch.equal(told, want) and names_then == names


def test_a_layer_with_adapters_stands_in_the_place_of_the_plain_one_and_shares_its_parameters():
    made = model(head={"tied": False}).eval()
    old, before = dict(made.named_modules()), dict(made.named_parameters())
    made.adapt(config.LoRA(targets=(*EVERY, "head")))
    worn = lora.adapted_modules(made)

    assert all(old[path].weight is part.weight and old[path].bias is part.bias for path, part in worn.items())
    assert [name for name in dict(made.named_parameters()) if name in before] == list(before), "in the same order"
    assert not any(hasattr(part, "lora") for part in old.values()), "no module that was there has changed"
    made.merge()
    assert {name: id(weight) for name, weight in made.named_parameters()} == {
        name: id(weight) for name, weight in before.items()
    }


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_layer_with_a_forward_hook_is_not_replaced_behind_its_back(hook):
    made = model()
    handle = getattr(made.trunk.blocks[1].attn.qkv, hook)(lambda *given: None)
    with pytest.raises(config.ConfigError, match=r"trunk.blocks.1.attn.qkv: a forward hook is on this layer"):
        made.adapt(config.LoRA())
    assert not lora.adapted_modules(made) and all(weight.requires_grad for weight in made.parameters())
    handle.remove()
    before = copied(moved(made.adapt(config.LoRA())).state_dict())
    getattr(made.trunk.blocks[1].attn.qkv, hook)(lambda *given: None)
    with pytest.raises(config.ConfigError, match="remove the hook first"):
        made.merge()
    assert_same(copied(made.state_dict()), before)


def test_a_copy_wears_adapters_of_its_own():
    made = moved(model().adapt(config.LoRA()))
    other = copy.deepcopy(made)
    other.merge()

    assert lora.adapted_modules(made) and not lora.adapted_modules(other)
    assert_close(other.eval()(IDS), made.eval()(IDS), atol=1e-5, rtol=0)


def test_one_after_the_other_by_merging():
    made = model().eval()
    for targets in (("q",), ("v", "down")):
        moved(made.adapt(config.LoRA(targets=targets)))
        want = made(IDS)
        made.merge()

        assert_close(made(IDS), want, atol=1e-5, rtol=0)


# ---------------------------------------------------------------- what learns


@pytest.mark.parametrize("optimizer", [config.AdamW(lr=0.03), config.Muon(), config.Adafactor()], ids=lambda c: c.kind)
def test_adapters_alone_learn_and_have_room_in_the_optimizer(optimizer):
    made = model(head={"tied": False}).adapt(config.LoRA(targets=EVERY, modules_to_save=("head", "trunk.*norm")))
    before, moves = copied(made.state_dict()), OptimizerGroup(made, optimizer)
    for _ in range(3):
        made(IDS).square().mean().backward()
        moves.step(1.0)
        moves.zero_grad()
    changed = {name for name, tensor in made.state_dict().items() if not torch.equal(tensor, before[name])}
    learn = {"head.weight", "trunk.final_norm.weight", "trunk.final_norm.bias", *lora.adapter_parameters(made)}

    assert changed == learn
    assert {name.rpartition("/")[0] for name in moves.state()} == learn


@pytest.mark.parametrize("c, said", [
    (config.LoRA(targets=("qq",)), "lora.targets: no layer 'qq' in the model; did you mean 'q'? there are "),
    (config.LoRA(targets=("q", "qkv")), "lora.targets: trunk.blocks.0.attn.q twice, alone and in its fused"),
    (config.LoRA(targets=("head",)), "lora.targets: head shares its weight with another part of the model"),
    (config.LoRA(modules_to_save=("hed",)),
     "lora.modules_to_save: no part 'hed' in the model; did you mean 'head'? its parts are "),
    (config.LoRA(modules_to_save=("trunk",)), "lora.targets: q, v are trained in full, and need no adapter"),
], ids=lambda c: str(c)[:40])  # fmt: skip
def test_what_cannot_be_adapted_is_told_and_nothing_is_changed(c, said):
    made = model()
    with pytest.raises(config.ConfigError) as told:
        made.adapt(c)

    assert str(told.value).startswith(said) and "\n" not in str(told.value)
    assert not lora.adapted_modules(made) and all(weight.requires_grad for weight in made.parameters())


def test_adapters_on_adapters_are_refused():
    made = model().adapt(config.LoRA())
    with pytest.raises(config.ConfigError, match="has adapters already; merge them first"):
        made.adapt(config.LoRA())


@pytest.mark.parametrize("changes, said", [
    (["train.lora.rank=0"], "train.lora.rank: 0 is less than 1"),
    (["train.lora.rnk=4"], "train.lora.rnk: no such setting; did you mean 'rank'?"),
    (["train.lora.alpha=0"], "train.lora.alpha: 0.0 cancels the adapters"),
    (["train.lora.dropout=1"], "train.lora.dropout: 1.0 is not from 0 up to 1"),
    (["train.lora.targets=[]"], "train.lora.targets: an empty name"),
    (["train.lora.rank=4"], "train.lora: adapters need a pretrained model; name it with"),
], ids=str)  # fmt: skip
def test_settings_that_make_no_sense_are_told_by_their_path(recipe, changes, said):
    with pytest.raises(config.ConfigError) as told:
        recipe(*changes)

    assert said in str(told.value)


# ---------------------------------------------------------------- runs

LORA = ["train.lora.rank=3", 'train.lora.targets=["q", "v", "down"]', "train.init_from=base",
        'tokenizer={kind="file", path="base"}', "train.context=31"]  # fmt: skip
KINDS = {
    "adamw": [],
    "dropped": ["train.lora.dropout=0.3"],
    "muon": ["train.optimizer.kind=muon"],
    "bf16": ["train.precision=bf16"],
    "mixed and accumulated": ["train.precision=mixed", "train.gradient_accumulation=2"],
    "averaged": ["train.ema_decay=0.9"],
    "frozen and recomputed": ['train.freeze=["trunk.blocks.0"]', "train.activation_checkpointing=true"],
    "with the norms": ['train.lora.modules_to_save=["trunk.blocks.*.attn_norm"]'],
}


@pytest.fixture
def base(desk, recipe):
    """A model that has learned a little, in the folder `base`."""
    run = Run.from_recipe(recipe("train.steps=3", "train.context=31"))
    advanced(run)
    run.save(desk / "base")
    return run.model.eval()


def told(made, ids):
    with torch.no_grad():
        return made.eval()(ids)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_goes_on_bit_for_bit(desk, recipe, base, kind):
    straight, parts = (Run.from_recipe(recipe(*LORA, *KINDS[kind]), notice=lambda line: None) for _ in range(2))
    losses, first = advanced(straight), advanced(parts, 3)
    parts.save(desk / "saved")
    again = Run.from_recipe(parts.recipe, fresh=False)
    again.load(desk / "saved")

    assert first + advanced(again) == losses
    assert_same(bits(again), bits(straight))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_is_an_ordinary_folder_and_holds_the_adapter_beside(desk, recipe, base, kind):
    run = Run.from_recipe(recipe(*LORA, *KINDS[kind], "train.optimizer.lr=0.03"), notice=lambda line: None)
    advanced(run)
    run.save(desk / "saved")
    ids = torch.arange(7)[None]
    with run.ema.applied() if run.ema else torch.no_grad():
        want = told(run.model, ids)
    merged, worn = regard.load(desk / "saved", device="cpu"), regard.load("base", device="cpu", adapter=desk / "saved")
    loose = 0.05 if run.settings.precision != "fp32" else 1e-5

    assert not lora.adapted_modules(merged) and lora.adapted_modules(worn)
    assert_close(told(merged, ids).to(want.dtype), want, atol=loose, rtol=0)
    assert_close(told(worn, ids).to(want.dtype), want, atol=loose, rtol=0)
    assert not torch.equal(want.float(), told(base, ids))


def test_everything_but_the_adapters_stays_as_the_base_has_it(desk, recipe, base):
    run = Run.from_recipe(recipe(*LORA), notice=lambda line: None)
    advanced(run)

    assert run.recipe.train.lora.modules_to_save == ()  # the head is the base's own
    assert {name.rpartition("/")[0] for name in run.optimizer.state()} == lora.adapter_parameters(run.model).keys()
    assert_same(copied(lora.base_state_dict(run.model)), copied(base.state_dict()))


@pytest.mark.slow
def test_a_run_can_be_killed_and_goes_on_as_if_nothing_had_happened(desk, recipe, base):
    def interrupted(run, notice):
        for step in train_steps(run, notice):
            if step.number == 4:
                signal.raise_signal(signal.SIGINT)
            yield step

    settings = recipe(*LORA, "train.ema_decay=0.9")
    fit(settings, desk / "straight", quiet=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["regard.training.trainer"], "train_steps", interrupted)
        fit(settings, desk / "stopped", quiet=True)
    (desk / "base").rename(desk / "gone")  # who resumes needs the base no more
    resume_fit(desk / "stopped", quiet=True)

    assert lines(desk / "stopped/log.jsonl") == lines(desk / "straight/log.jsonl")
    ours, theirs = (locate.newest_checkpoint(desk / name) for name in ("stopped", "straight"))
    files = sorted(path.relative_to(theirs) for path in theirs.rglob("*.safetensors"))
    assert {"train/lora.safetensors", "adapter/adapter_model.safetensors"} <= {path.as_posix() for path in files}
    for name in files:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


WORDS = "".join(json.dumps({"text": f"{who} {what} the {whom}", "label": "no" if whom == "king" else "yes"}) + "\n"
                for who in ("a cat", "my dog", "the owl") for what in ("saw", "met", "fed")
                for whom in ("mouse", "king", "jug"))  # fmt: skip
CLASSES = ["data.source=rows.jsonl", 'task={kind="classification"}', 'model.head={kind="pooling", pooling="mean"}',
           "train.init_from=base", "train.lora.rank=3", "train.optimizer.lr=0.03"]  # fmt: skip


@pytest.fixture
def classes(desk, base):
    (desk / "rows.jsonl").write_text(WORDS)
    (desk / "classes.toml").write_text(
        "[train]\nsteps = 4\nbatch_size = 5\ncontext = 31\ncompile = false\ndevice = 'cpu'\n"
        "eval_every = 'none'\nschedule = {kind = 'constant', warmup = 0}\n"
    )
    return lambda *changes: zoo.read_recipe("classes.toml", [*CLASSES, *changes])


@pytest.mark.slow
def test_a_new_head_learns_whole_and_goes_where_the_adapter_goes(desk, classes):
    run = Run.from_recipe(classes(), notice=lambda line: None)
    began = copied(run.model.head.state_dict())
    advanced(run)
    run.save(desk / "saved")
    ids, real = torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[True, True, True, True, False]])
    worn = regard.load("base", device="cpu", adapter=desk / "saved")
    with torch.no_grad():
        want, got = run.model.eval()(ids, real=real), worn(ids, real=real)

    assert "head" in run.recipe.train.lora.modules_to_save
    assert all(not torch.equal(began[name], weight) for name, weight in run.model.head.state_dict().items())
    assert want.shape == (1, 2) and worn.task.classes == ("no", "yes")
    assert_close(got, want, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_resuming_remembers_what_was_new(desk, classes):
    straight, parts = (Run.from_recipe(classes(), notice=lambda line: None) for _ in range(2))
    losses = advanced(straight)
    advanced(parts, 2)
    parts.save(desk / "saved")
    again = Run.from_recipe(parts.recipe, fresh=False, tokenizer=parts.tokenizer)
    again.load(desk / "saved")

    assert advanced(again) == losses[2:]
    assert_same(bits(again), bits(straight))


@pytest.mark.slow
def test_a_run_says_how_many_weights_learn(desk, recipe, base, capsys):
    fit(recipe(*LORA, "train.steps=1"), desk / "run")
    run = Run.from_recipe(recipe(*LORA), notice=lambda line: None)
    count = sum(weight.numel() for weight in lora.adapter_parameters(run.model).values())

    assert f"of which {count:,} are trained" in capsys.readouterr().err
    assert json.loads((desk / "run/run.json").read_text())["trained"] == count


@pytest.mark.parametrize("changes, said", [
    (['train.lora.targets=["qq"]'], "train.lora.targets: no layer 'qq'"),
    (['train.lora.modules_to_save=["hed"]'], "train.lora.modules_to_save: no part 'hed'"),
    (["train.lora.modules_to_save=['trunk.blocks.0.mlp.down.bias']"], "train.lora.modules_to_save: what it names "
                                                                      "holds"),
], ids=str)  # fmt: skip
def test_mistakes_are_told_before_anything_is_trained(recipe, base, changes, said):
    with pytest.raises(config.ConfigError) as problem:
        Run.from_recipe(recipe(*LORA, *changes), notice=lambda line: None)

    assert str(problem.value).startswith(said)


@pytest.mark.slow
def test_replicas_learn_what_one_process_learns(tmp_path_factory, monkeypatch):
    place = laid(tmp_path_factory.mktemp("group"), monkeypatch)
    group = Launcher(place)
    try:
        plain = ["recipe.toml", "model.dropout=0", "train.batch_size=6"]
        assert group.run("train", *plain, "train.steps=2", "--out", "base", size=1).codes == [0]
        words = 'tokenizer={kind="file", path="base/checkpoints/step-000002"}'
        more = [*plain, *LORA[:2], words, "--init-from", "base"]
        end = group.run("train", *more, "--out", "one", size=1)
        assert end.codes == [0], end
        assert group.run("train", *more, "train.parallel=ddp", "--out", "two").codes == [0, 0]
        refused = group.run("train", *more, "train.parallel=fsdp", "--out", "parts")
    finally:
        group.close()
    ones, twos = (lines(place / name / "log.jsonl") for name in ("one", "two"))

    assert [line["step"] for line in ones] == [line["step"] for line in twos]
    for ours, theirs in zip(twos, ones, strict=True):
        assert_close(ours.get("loss", 0.0), theirs.get("loss", 0.0), atol=1e-5, rtol=0)
    assert refused.codes == [2, 2] and "choose ddp" in refused.sentences[0]
