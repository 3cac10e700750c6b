"""Small random models made by `transformers`, each with the sentence that says the same in our nouns."""

from functools import partial

import torch
import transformers as hf
from parity.tolerance import randomise
from torch import Tensor, nn

from regard import config as C
from regard.core.model import Transformer
from regard.hub import name_table

B, N, S = 2, 7, 11  # rows, tokens, tokens of a source
V, D, H, F, LENGTH = 53, 36, 4, 60, 40
SMALL = dict(dropout=C.NO_DROPOUT)


def gpt2():
    theirs = hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=V, n_positions=LENGTH, n_embd=D, n_layer=3, n_head=H, n_inner=F,
            bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    ours = C.Transformer(
        embed=C.TextEmbedding(vocab=V),
        trunk=C.Trunk(
            dim=D, depth=3, mask="causal", position=C.LearnedPosition(length=LENGTH), attention=C.Attention(heads=H),
            mlp=C.MLP(hidden=F, activation="gelu_tanh"), **SMALL,
        ),
        init="gpt2",
    )  # fmt: skip
    return theirs, ours


def bert():
    theirs = hf.BertForMaskedLM(
        hf.BertConfig(
            vocab_size=V, hidden_size=D, num_hidden_layers=3, num_attention_heads=H, intermediate_size=F,
            max_position_embeddings=LENGTH, type_vocab_size=2, pad_token_id=0,
        )
    )  # fmt: skip
    ours = C.Transformer(
        embed=C.TextEmbedding(vocab=V, segments=2),
        trunk=C.Trunk(
            dim=D, depth=3, position=C.LearnedPosition(length=LENGTH), attention=C.Attention(heads=H),
            norm_placement="post",
            embed_norm=True, norm=C.Norm(eps=1e-12), mlp=C.MLP(hidden=F, activation="gelu"), **SMALL,
        ),
        head=C.LMHead(bias=True, transform=True),
        init="bert",
    )  # fmt: skip
    return theirs, ours


def llama(tied=False, said=None, **rotary):
    """`said` is what else their config says, the rest is our rotary. Heads are wider than D/H, two share their keys."""
    theirs = hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=V, hidden_size=D, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
            intermediate_size=F, rms_norm_eps=1e-6, tie_word_embeddings=tied,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, head_dim=14, **(said or {}),
        )
    )  # fmt: skip
    ours = C.Transformer(
        embed=C.TextEmbedding(vocab=V),
        trunk=C.Trunk(
            dim=D, depth=3, mask="causal", position=C.RotaryPosition(**rotary), norm=C.Norm(kind="rms", eps=1e-6),
            attention=C.Attention(heads=6, kv_heads=3, head_dim=14, bias=()),
            mlp=C.MLP(hidden=F, activation="silu", gated=True, bias=False), **SMALL,
        ),
        head=C.LMHead(tied=tied),
    )  # fmt: skip
    return theirs, ours


def t5(gated=False):
    """Plain is T5 1.0: tied, logits times D^-1/2. Gated is 1.1: a head of its own, logits as they are."""
    theirs = hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=V, d_model=D, d_kv=10, d_ff=F, num_layers=3, num_decoder_layers=2, num_heads=H,
            relative_attention_num_buckets=12, relative_attention_max_distance=20, dropout_rate=0.0,
            feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated,
            pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        )
    )  # fmt: skip
    if gated:  # transformers 5 ties every fresh T5 and unties it when a checkpoint brings two tables, as 1.1 does
        theirs.lm_head.weight = nn.Parameter(D**-0.5 * torch.randn(V, D))

    def trunk(depth, **more):
        return C.Trunk(
            dim=D, depth=depth, norm=C.Norm(kind="rms", eps=1e-6),
            attention=C.Attention(heads=H, head_dim=10, scale=1.0, bias=()),
            mlp=C.MLP(hidden=F, activation="gelu_tanh" if gated else "relu", gated=gated, bias=False), **SMALL, **more,
        )  # fmt: skip

    ours = C.Transformer(
        embed=C.TextEmbedding(vocab=V),
        trunk=trunk(
            2, mask="causal", cross="last", position=C.T5Bias(num_buckets=12, max_distance=20, bidirectional=False)
        ),
        encoder=C.Encoder(trunk=trunk(3, position=C.T5Bias(num_buckets=12, max_distance=20))),
        head=C.LMHead(tied=False) if gated else C.LMHead(scale=D**-0.5),
        init="t5",
    )
    return theirs, ours


def marian():
    theirs = hf.MarianMTModel(
        hf.MarianConfig(
            vocab_size=V, d_model=D, encoder_layers=3, decoder_layers=2, encoder_attention_heads=H,
            decoder_attention_heads=H, encoder_ffn_dim=F, decoder_ffn_dim=F, max_position_embeddings=LENGTH,
            activation_function="silu", scale_embedding=True, dropout=0.0, pad_token_id=V - 1, eos_token_id=0,
            decoder_start_token_id=V - 1, forced_eos_token_id=0,
        )
    )  # fmt: skip

    def trunk(depth, **more):
        return C.Trunk(
            dim=D,
            depth=depth,
            norm_placement="post",
            position=C.SinusoidalPosition(layout="halves"),
            attention=C.Attention(heads=H),
            mlp=C.MLP(hidden=F, activation="silu"),
            **SMALL,
            **more,
        )

    ours = C.Transformer(
        embed=C.TextEmbedding(vocab=V, scale=D**0.5),
        trunk=trunk(2, mask="causal", cross="last"),
        encoder=C.Encoder(trunk=trunk(3)),
        head=C.LMHead(bias=True),
    )
    return theirs, ours


MODELS = {
    "gpt2": gpt2, "bert": bert, "llama": llama, "llama tied": partial(llama, tied=True),
    "t5": t5, "t5 gated": partial(t5, gated=True), "marian": marian,
}  # fmt: skip


def family(name: str) -> str:
    return name.split()[0]


def pair(name: str, **how):
    """Their model and ours with the same weights, in eval mode."""
    theirs, c = MODELS[name](**how)
    randomise(theirs)
    theirs.eval()
    ours = Transformer(c).eval()
    name_table.load_tensors(ours, stored(theirs), family(name))
    return theirs, ours


def stored(model: nn.Module) -> dict[str, Tensor]:
    """What `save_pretrained` writes: each tied tensor once, and no sinusoids."""
    seen, out = set(), {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen and "embed_positions" not in name:
            seen.add(tensor.data_ptr())
            out[name] = tensor
    return out


# ---------------------------------------------------------------- the same question in their words and in ours


def ids(count: int) -> Tensor:
    """(B, count), none of them a pad id, whose embedding `transformers` never trains."""
    return torch.randint(3, V - 1, (B, count))


def questions(name: str, padding: str = "none") -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Arguments for their model, arguments for ours, and which tokens are real: those whose answers count."""
    real, source_real = keep(N, padding), keep(S, padding)
    words = ids(N)
    if family(name) in ("t5", "marian"):
        source = ids(S)
        theirs = dict(input_ids=source, decoder_input_ids=words)
        ours = dict(ids=words, source=source)
        masks = dict(attention_mask=source_real.long(), decoder_attention_mask=real.long())
        ours_masks = dict(real=real, source_real=source_real)
    else:
        theirs, ours = dict(input_ids=words), dict(ids=words)
        masks, ours_masks = dict(attention_mask=real.long()), dict(real=real)
    if name == "bert":
        segment = torch.randint(2, (B, N))
        theirs, ours = theirs | dict(token_type_ids=segment), ours | dict(segment=segment)
    if name in ("gpt2", "bert"):  # their learned positions count padding unless told not to
        masks["position_ids"] = (real.cumsum(-1) - 1).clamp(min=0)
    return (theirs, ours, real) if padding == "none" else (theirs | masks, ours | ours_masks, real)


def keep(count: int, padding: str) -> Tensor:  # (B, count): row 1 lacks three tokens, on the side that is said
    missing = 0 if padding == "none" else 3
    right = torch.arange(count) < torch.tensor([[count], [count - missing]])
    return right.flip(-1) if padding == "left" else right
