"""Direct logit attribution: the parts of a logit sum to it, for every shape and every published family."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from lens.small_models import SHAPES, VOCAB, text, trunk
from parity.tolerance import randomise
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from zoo.tiny_presets import N, S, read, small

import regard
from regard import config as C
from regard.config.errors import ConfigError, DataError
from regard.core.hooks import looking
from regard.inference.model import Model
from regard.lens import attention_patterns, attribute_logit
from regard.lens.prompt import Prompt, read_prompt
from regard.lens.residual import recording
from regard.models.lora import LowRankUpdate, attach_adapter

FP32, FP64 = 1e-4, 1e-10
ATTRIBUTED = [name for name in SHAPES if name != "towers"]
FAMILIES = [name for name in C.PRESETS if not isinstance(regard.preset(name), C.DualEncoder)]
both_types = pytest.mark.parametrize(("kind", "within"), [(torch.float32, FP32), (torch.float64, FP64)])


def first_row(x: Tensor, kind: torch.dtype) -> Tensor:
    return x[:1].to(kind) if x.is_floating_point() else x[:1]


def shaped(name, kind=torch.float32):
    model = SHAPES[name].model().to(kind)
    torch.manual_seed(1)
    (first,) = SHAPES[name].reads()
    given = {key: first_row(x, kind) for key, x in SHAPES[name].named.items()}
    return model, read_prompt(model, first_row(first, kind), **given)


def assert_sums(found, model, prompt, position, within):
    """To the logit that the model itself says, relative to it."""
    with torch.no_grad():
        out = prompt.run(model)
    logits = (out[0] if isinstance(out, tuple) else out)[0]
    logit = (logits if logits.dim() == 1 else logits[position])[int(found.token)]
    assert_close(found.values.sum(), logit.double(), rtol=within, atol=within * 1e-2)
    # its own product of one row, which may round otherwise than that of all rows
    rounding = 8 * torch.finfo(logits.dtype).eps
    assert_close(found.logit, float(logit), rtol=rounding, atol=rounding * float(logits.abs().max()))


class WidestTensor(TorchDispatchMode):
    """The most numbers of a tensor that an operation makes."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out._base is None:
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.parametrize("read", [lambda model, ids: attribute_logit(model, ids, 4, against=9), attention_patterns])
def test_no_logits_are_made_that_are_not_asked_for(read):
    words = 10_000
    model = text(embed=C.TextEmbedding(vocab=words), mask="causal")()
    ids = torch.randint(words, (1, 17))  # more tokens than the vectors are wide
    with WidestTensor() as whole, torch.no_grad():
        model(ids)
    with WidestTensor() as found:
        read(model.eval(), ids)

    assert whole.numbers == 17 * words
    assert found.numbers < whole.numbers


# ---------------------------------------------------------------- the sum is exact


@both_types
@pytest.mark.parametrize("neurons", [0, 3])
@pytest.mark.parametrize("name", ATTRIBUTED)
def test_the_parts_sum_to_the_logit(name, neurons, kind, within):
    model, prompt = shaped(name, kind)
    found = attribute_logit(model, prompt, neurons=neurons)

    assert_sums(found, model, prompt, -1, within)


@both_types
@pytest.mark.parametrize("name", FAMILIES)
def test_the_parts_sum_to_the_logit_in_every_published_family(name, kind, within):
    torch.manual_seed(2)
    c = small(regard.preset(name))
    if isinstance(c.head, C.NoHead) or isinstance(c.head, C.PoolingHead) and not c.head.out:
        c = replace(c, head=C.LMHead(transform=c.trunk.embed_dim is not None))  # as published it answers with vectors
    model = Model(c).eval().to(kind)
    randomise(model)
    given = {"source": read(c.embed, S)[:1]} if c.encoder else {}
    prompt = read_prompt(model, first_row(read(c.embed, N), kind), **given)

    assert_sums(attribute_logit(model, prompt, 3, position=-2, neurons=2), model, prompt, -2, within)


CASES = {
    "embed norm, segments and a smaller embedding": text(
        embed=C.TextEmbedding(vocab=VOCAB, segments=2, scale=1.7), embed_dim=8, embed_norm=True, norm_placement="post",
        position=C.LearnedPosition(length=31), head=C.LMHead(tied=False, bias=True, scale=0.3), depth=3,
    ),
    "gated units and positions set beside the words": text(
        mlp=C.MLP(hidden=13, gated=True, activation="silu"), norm=C.Norm(kind="rms", offset=1.0),
        position=C.SinusoidalPosition(dim=4, mode="concat"), head=C.LMHead(tied=False),
    ),
    "post-norm with a final norm": text(norm_placement="post", final_norm=True, norm=C.Norm(gain=False, bias=False)),
    "no output projection": text(attention=C.Attention(heads=3, projections=("q", "k", "v"))),
    "tags": text(head=C.TokenHead(out=5)),
    "tags behind a dense layer": text(head=C.TokenHead(out=5, dense=True)),
    "the last token pooled": text(head=C.PoolingHead(pooling="last", out=5)),
    "the mean behind a dense layer": text(head=C.PoolingHead(pooling="mean", dense=True, out=5)),
    "two classifiers": text(head=C.PoolingHead(pooling="cls", out=5, classifiers=2)),
    "no attention": text(mixer=C.NoMixer()),
    "convolutions": text(mixer=C.ConvMixer(), mask="causal"),
    "reversible": text(kind="reversible", depth=3, mask="causal"),
}  # fmt: skip


@both_types
@pytest.mark.parametrize("name", CASES)
def test_the_parts_sum_to_the_logit_with(name, kind, within):
    torch.manual_seed(3)
    model = CASES[name]().eval().to(kind)
    randomise(model)
    prompt = read_prompt(model, torch.randint(1, VOCAB, (1, 7)))

    assert_sums(attribute_logit(model, prompt, 2, neurons=2), model, prompt, -1, within)


@pytest.mark.parametrize("name", ATTRIBUTED)
def test_a_difference_of_logits_has_the_difference_of_the_parts(name):
    model, prompt = shaped(name, torch.float64)
    a, b, both = (attribute_logit(model, prompt, *given[:1], against=given[1])
                  for given in ((2, None), (4, None), (2, 4)))  # fmt: skip

    assert a.labels == both.labels == b.labels
    exact = [part.kind != "remainder" for part in both.parts]
    assert_close((a.values - b.values)[exact], both.values[exact], rtol=FP64, atol=1e-12)
    assert_close(torch.tensor(a.logit - b.logit), torch.tensor(both.logit), rtol=FP64, atol=1e-12)


def test_only_a_head_that_is_not_linear_leaves_a_remainder():
    remainders = {name for name in ATTRIBUTED if "remainder" in attribute_logit(*shaped(name)).labels}

    assert remainders == {"encoder", "shared"}


# ---------------------------------------------------------------- each part is what it is called


def logit_without(model, prompt, token, *zeroed, kept=()):
    """The logit with these addresses set to zero, with what others were, and with the final norm's scale as it was."""
    norm, units = model.trunk.final_norm, dict(address for address in zeroed if isinstance(address, tuple))
    with recording(model, prompt, "trunk.1.residual", *kept) as run:
        x, seen = run.seen["trunk.1.residual"], {address: run.seen[address] for address in kept}
    square = x.var(-1, correction=0) if norm.c.kind == "layer" else x.square().mean(-1)

    def frozen(y):
        y = y - y.mean(-1, keepdim=True) if norm.c.kind == "layer" else y
        y = y * (square + norm.c.eps).rsqrt()[..., None] * norm.weight
        return y if norm.bias is None else y + norm.bias

    def edit(address, x):
        if address in units:
            return x.index_fill(-1, torch.tensor(units[address]), 0.0)
        return seen[address] if address in seen else torch.zeros_like(x)

    norm.forward = frozen
    names = [address[0] if isinstance(address, tuple) else address for address in (*zeroed, *kept)]
    with torch.no_grad(), looking(model, *names, edit=edit):
        logits = prompt.run(model)[0]
    del norm.forward
    return float((logits if logits.dim() == 1 else logits[-1])[token])


@pytest.mark.parametrize("name", ["decoder", "grouped", "t5", "vit", "relative", "translator"])
def test_without_a_part_of_the_last_block_and_with_frozen_norms_the_logit_falls_by_it(name):
    model, prompt = shaped(name, torch.float64)
    found, units = attribute_logit(model, prompt), attribute_logit(model, prompt, neurons=2)
    token, unit = int(found.token), next(part for part in units.parts if part.place == "1.mlp" and part.kind == "unit")
    later = [address for address in ("trunk.1.cross.out", "trunk.1.mlp.out") if address in model.addresses()]

    for part, fell in [
        ("1.mlp", logit_without(model, prompt, token, "trunk.1.mlp.out")),
        ("1.attn", logit_without(model, prompt, token, "trunk.1.attn.out", kept=later)),
    ]:
        assert_close(found.by_place()[part], found.logit - fell, rtol=1e-9, atol=1e-12)
    fell = logit_without(model, prompt, token, ("trunk.1.mlp.hidden", [unit.index]))
    assert_close(units[unit.name], found.logit - fell, rtol=1e-9, atol=1e-12)


def test_a_head_has_what_it_adds_times_the_direction_of_the_logit():
    model, prompt = shaped("decoder", torch.float64)
    found = attribute_logit(model, prompt, 3)
    with recording(model, prompt, "trunk.1.attn.head_out", "trunk.1.residual") as run:
        added, x = run.seen["trunk.1.attn.head_out"][0, :, -1], run.seen["trunk.1.residual"][0, -1]
    gain = model.head.weight[3].detach() * model.trunk.final_norm.weight.detach()
    expected = (added - added.mean(-1, keepdim=True)) @ gain / (x.var(correction=0) + 1e-5).sqrt()

    assert_close(found.heads()[1], expected)


def test_units_are_the_strongest_of_their_mlp_and_parts_of_its_whole():
    model, prompt = shaped("decoder", torch.float64)
    whole, two, every = (attribute_logit(model, prompt, 3, neurons=count) for count in (0, 2, 99))

    for found in (two, every):
        assert_close(found.by_place()["0.mlp"], whole["0.mlp"])
    sizes = [abs(every[part.name]) for part in every.parts if part.place == "0.mlp" and part.kind == "unit"]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 17
    assert (
        two.parts[two.labels.index("0.mlp rest") - 2 :][:2] == every.parts[every.labels.index("0.mlp rest") - 17 :][:2]
    )


def test_adapters_are_in_the_heads_and_units_that_they_change():
    torch.manual_seed(4)
    model = SHAPES["decoder"].model().double()
    for path in ("trunk.blocks.1.attn.out", "trunk.blocks.0.mlp.down"):
        weight = model.get_submodule(path).weight
        low = LowRankUpdate(weight, weight.shape[0], 2, 1.0).double()
        torch.nn.init.normal_(low.b)
        attach_adapter(model, path, "map", low)
    prompt = read_prompt(model, torch.tensor([3, 1, 4, 1, 5]))
    found = attribute_logit(model, prompt, neurons=17)

    assert_sums(found, model, prompt, -1, FP64)


def test_in_bf16_the_parts_sum_up_to_rounding_and_the_error_is_told():
    model, prompt = shaped("decoder", torch.bfloat16)
    found = attribute_logit(model, prompt, neurons=1)

    assert abs(found.error) < 0.05 * float(found.values.abs().sum())
    assert found.error == found.logit - float(found.values.sum())


@pytest.mark.parametrize("name", ATTRIBUTED)
def test_attribution_leaves_the_model_as_it_was(name):
    model, prompt = shaped(name)
    model.train()
    before = prompt.run(model.eval())
    model.train()
    attribute_logit(model, prompt, neurons=1)

    assert model.training and not model.hooks
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    after = prompt.run(model.eval())
    assert torch.equal(*(x[0] if isinstance(x, tuple) else x for x in (before, after)))


def test_layers_and_places_sum_to_the_logit_and_heads_are_a_grid():
    model, prompt = shaped("translator", torch.float64)
    found = attribute_logit(model, prompt)

    assert list(found.by_layer()) == ["embed", "0", "1", "head"]
    assert list(found.by_place()) == ["embed", "0.attn", "0.cross", "0.mlp", "1.attn", "1.cross", "1.mlp", "head"]
    for sums in (found.by_layer(), found.by_place()):
        assert_close(sum(sums.values()), found.logit)
    assert found.heads().shape == found.heads("cross").shape == (2, 3)
    assert float(found.heads("cross")[1, 2]) == found["1.cross head 2"]


def test_the_table_is_sorted_by_magnitude_or_in_the_order_of_the_walk():
    model, prompt = shaped("decoder")
    found = attribute_logit(model, prompt, 3, against=5)
    sizes = [abs(row[1]) for row in found.table().rows]

    assert sizes == sorted(sizes, reverse=True)
    assert [row[0] for row in found.table("walk").rows] == list(found.labels)
    assert found.labels[:4] == ("embed", "position", "0.attn head 0", "0.attn head 1")
    assert found.question == f"Which parts make the logit of '3' against '5' after {prompt.labels[-1]!r}?"
    assert found.picture().values.shape == (1, len(found.picture().columns))


def test_a_head_that_answers_only_its_own_position_reads_no_other():
    """The same prompt with other last tokens: position 2 of a causal model has the same parts."""
    model, prompt = shaped("decoder", torch.float64)
    longer = attribute_logit(model, prompt, 3, position=2)
    shorter = attribute_logit(model, prompt.first[:, :3], 3)

    assert_close(longer.values, shorter.values)


# ---------------------------------------------------------------- what is refused


def test_what_cannot_be_attributed_is_refused_in_a_sentence():
    model, prompt = shaped("decoder")
    plain = text(residual=False)()
    towers = SHAPES["towers"].model()
    vectors = text(head=C.NoHead())()
    ids = prompt.first

    for error, words, call in [
        (ConfigError, "no sum over parts", lambda: attribute_logit(plain, ids)),
        (ConfigError, "no stack of blocks", lambda: attribute_logit(towers, ids)),
        (ConfigError, "neither with words nor with classes", lambda: attribute_logit(vectors, ids)),
        (DataError, "2 rows", lambda: attribute_logit(model, ids.repeat(2, 1))),
        (DataError, "position: 11 is outside the prompt of 11", lambda: attribute_logit(model, ids, position=11)),
        (DataError, "position: -12 is outside", lambda: attribute_logit(model, ids, position=-12)),
        (ConfigError, "token: 23 is not among .* below 23", lambda: attribute_logit(model, ids, 23)),
        (ConfigError, "neurons: -1", lambda: attribute_logit(model, ids, neurons=-1)),
        (ConfigError, "token: 'cat' is not among .* below 5", lambda: attribute_logit(*shaped("vit"), "cat")),
        (ConfigError, "a grid needs as many", lambda: attribute_logit(model, ids).heads("cross")),
        (KeyError, "is no part of this logit", lambda: attribute_logit(model, ids)["7.mlp"]),
    ]:  # fmt: skip
        with pytest.raises(error, match=words):
            call()


def test_a_position_of_padding_is_refused():
    model, _ = shaped("encoder")
    with pytest.raises(DataError, match="position: token -1 is padding"):
        attribute_logit(model, Prompt(torch.tensor([[3, 4, 0]]), ("3", "4", "0")))


def test_a_recurrent_stack_has_no_stream_of_sums():
    c = C.Transformer(embed=C.TextEmbedding(vocab=7), trunk=C.RecurrentStack(dim=8, depth=1))
    with pytest.raises(ConfigError, match="no stack of blocks"):
        attribute_logit(Model(c), torch.tensor([1, 2]))
    assert trunk().residual


def test_classes_are_called_as_the_config_of_a_published_model_calls_them():
    model, prompt = shaped("vit")
    names = {str(place): name for place, name in enumerate(("cat", "dog", "owl", "fox", "bee"))}
    model.source_folder = SimpleNamespace(said={"id2label": names})
    found = attribute_logit(model, prompt, "owl", against="bee")

    assert (found.token, found.against) == ("owl", "bee")
    assert found.logit == attribute_logit(model, prompt, 2, against=4).logit
