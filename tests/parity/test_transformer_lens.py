"""The lens beside TransformerLens on one folder of weights: the same numbers from the other library's own functions.

TransformerLens is not among the development packages, because what it needs would decide other versions here; `make
peers` makes an environment with it and runs these tests. Both libraries read one folder of a random GPT-2 that
transformers writes, without network.
"""

import pytest
import torch
import transformers as hf
from parity.tolerance import randomise
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.testing import assert_close

import regard
from regard import lens
from regard.core.hooks import looking

pytest.importorskip("transformer_lens", reason="TransformerLens, the oracle, is not installed: `make peers` has it")
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.tools.analysis import direct_logit_attribution, logit_lens

pytestmark = pytest.mark.filterwarnings("default")  # the other library's own
B, N, V, DEPTH, HEADS = 2, 7, 37, 3, 3
TOKEN, AGAINST = 11, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT-2 with a tokenizer of single characters, as transformers writes it."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("gpt2")
    sizes = dict(vocab_size=V, n_positions=13, n_embd=15, n_layer=DEPTH, n_head=HEADS, n_inner=29)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, bos_token_id=V - 1, eos_token_id=V - 1))
    randomise(model)
    model.save_pretrained(path)
    letters = Tokenizer(models.BPE({chr(33 + i): i for i in range(V - 1)} | {"<|endoftext|>": V - 1}, []))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    hf.PreTrainedTokenizerFast(tokenizer_object=letters, **ends).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def ours(folder):
    return regard.load(folder)


@pytest.fixture(scope="module")
def theirs(folder):
    """The weights as they are in the file."""
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
    bridge.enable_compatibility_mode(no_processing=True)
    return bridge.eval()


@pytest.fixture(scope="module")
def folded(folder):
    """The gains of its norms folded into the matrices after them: their direct attribution works on such a model."""
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
    bridge.enable_compatibility_mode(center_writing_weights=False, center_unembed=False, fold_value_biases=False)
    return bridge.eval()


def pairs():
    """Rows of ids and the same with another token at one place."""
    clean = torch.randint(V, (B, N), generator=torch.Generator().manual_seed(1))
    corrupted = clean.clone()
    corrupted[:, 2] = (clean[:, 2] + 3) % V
    return clean, corrupted


def assert_same(found, want):
    assert found.shape == want.shape
    assert_close(found.double(), want.detach().double(), rtol=1e-4, atol=1e-4)


def test_both_read_the_same_model(ours, theirs, folded):
    ids, _ = pairs()
    with torch.no_grad():
        assert_same(ours(ids), theirs(ids))
        assert_same(ours(ids), folded(ids))


@torch.no_grad()
def test_all_activations_are_theirs(ours, theirs):
    ids, _ = pairs()
    _, cache = theirs.run_with_cache(ids)
    with looking(ours, "*") as seen:
        ours(ids)

    for i in range(DEPTH):
        mine, other = f"trunk.{i}", f"blocks.{i}"
        for name, hook in (("residual_attn", "hook_resid_mid"), ("residual", "hook_resid_post"),
                           ("attn.out", "hook_attn_out"), ("mlp.out", "hook_mlp_out"),
                           ("mlp.hidden", "mlp.hook_post"), ("attn.scores", "attn.hook_attn_scores")):  # fmt: skip
            want = cache[f"{other}.{hook}"]
            hidden = seen[f"{mine}.{name}"] == float("-inf")  # above the diagonal
            assert_same(seen[f"{mine}.{name}"].masked_fill(hidden, 0), want.masked_fill(hidden, 0))
        for name, hook in (("q", "hook_q"), ("k", "hook_k"), ("v", "hook_v"), ("result", "hook_z")):
            assert_same(seen[f"{mine}.attn.{name}"].transpose(1, 2), cache[f"{other}.attn.{hook}"])


def test_attention_patterns_are_theirs(ours, theirs):
    ids, _ = pairs()
    _, cache = theirs.run_with_cache(ids)

    for i, pattern in enumerate(lens.attention_patterns(ours, ids)):
        assert_same(pattern, cache["pattern", i])


@pytest.mark.spec("S153")
def test_the_logit_lens_is_theirs(ours, theirs):
    ids, _ = pairs()
    found = lens.logit_lens(ours, ids, watch=[TOKEN, AGAINST], top_k=4)
    asked = dict(positions=None, incl_mid=True, return_type="probs")
    top = logit_lens(theirs, ids, top_k=4, **asked)
    watched = logit_lens(theirs, ids, targets=[TOKEN, AGAINST], **asked)
    places = len(top.labels)  # the embedding, two in each block, the last of which is what the model says

    assert places == 2 * DEPTH + 1
    assert_same(found.top_probs[:places], top.values)
    assert torch.equal(found.top_ids[:places], top.readout.top_ids)
    assert_same(found.watch_probs[:places], watched.values)
    assert torch.equal(found.watch_ranks[:places], watched.readout.target_ranks + 1)
    assert_same(found.entropy[:places] * torch.log(torch.tensor(2.0)), top.readout.entropy)


def test_direct_logit_attribution_is_theirs(ours, folded):
    ids, _ = pairs()
    found = lens.attribute_logit(ours, ids[:1], TOKEN, against=AGAINST)
    parts = direct_logit_attribution(folded, ids[:1], TOKEN, AGAINST, unit="component")
    heads = direct_logit_attribution(folded, ids[:1], TOKEN, AGAINST, unit="head")
    want = dict(zip(parts.labels, parts.attribution[:, 0], strict=True))
    whole = found.by_place()
    names = [f"{i}.{part}" for i in range(DEPTH) for part in ("attn", "mlp")]

    assert_same(found.heads(), heads.attribution[:-1, 0].view(DEPTH, HEADS))
    assert_same(torch.tensor([whole[name] for name in names]),
                torch.stack([want[name.replace(".", "_") + "_out"] for name in names]))  # fmt: skip
    assert_same(torch.tensor([found["embed"], found["position"]]), torch.stack([want["embed"], want["pos_embed"]]))


PATCHES = {
    "resid_pre": (patching.get_act_patch_resid_pre, "residual"),
    "resid_mid": (patching.get_act_patch_resid_mid, "residual"),
    "attn_out": (patching.get_act_patch_attn_out, "attn"),
    "mlp_out": (patching.get_act_patch_mlp_out, "mlp"),
    "z": (patching.get_act_patch_attn_head_out_all_pos, "heads"),
    "z_by_position": (patching.get_act_patch_attn_head_out_by_pos, "head_positions"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_activation_patching_is_theirs(name, ours, theirs):
    their_function, part = PATCHES[name]
    clean, corrupted = pairs()
    found = lens.patch_activations(ours, clean, corrupted, metric=lens.logit_difference(TOKEN, AGAINST), parts=(part,))
    with torch.no_grad():
        _, cache = theirs.run_with_cache(clean)
        want = their_function(theirs, corrupted, cache, lambda x: (x[:, -1, TOKEN] - x[:, -1, AGAINST]).mean())
    raw = found.grid(part).raw
    if part == "residual":  # the embedding, and two places of each block, the last of which no block reads
        raw = raw[0:-1:2] if name == "resid_pre" else raw[1::2]
    if part == "head_positions":
        raw = raw.view(DEPTH, HEADS, N).transpose(1, 2)

    assert_same(raw, want)
    assert float((raw - found.corrupted).abs().max()) > 0.01  # the patches do something
