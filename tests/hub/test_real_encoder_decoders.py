"""A trained encoder-decoder of somebody else's making: a sentence in our nouns and a name table of one's own.

ANARCII (BSD-3) reads the residues of an antibody and tells its kind of chain and the IMGT number of each residue. Its
wheel is read as data. What it must answer is said again in torch's own layers, filled from the same file.
"""

import copy
import io
import math

import pytest
import torch
from hub.wheels import wheel
from parity.tolerance import assert_near
from torch import nn

import regard
from regard import config as C
from regard.hub import name_table

pytestmark = pytest.mark.xdist_group("real_encoder_decoders")  # what its tests share is made once

SHA256 = "6ac81caef04a9cad1af1ea320b35bdced620fe2bfdd0b8b17b98131495b584ca"
FILE = "anarcii/models/antibody/antibody_4_1_128_512.pt"
D, HEADS, HIDDEN, LENGTH = 128, 4, 512, 210
PAD, START, END, SKIP = range(4)
RESIDUES = "ACDEFGHIKLMNPQRSTVWXY"  # from 4 on
CHAINS = {133: "H", 134: "L", 135: "K"}  # behind the numbers 1 to 128, from 4 on, and X for what is inserted

TABLE = """
encoder.tok_embedding.weight                                            encoder_embed.tokens.weight
encoder.pos_embedding.weight                                            encoder.positions.0.tables.0
encoder.layers.{i}.self_attention.multihead_attn.in_proj_weight         encoder.blocks.{i}.attn.qkv.weight
encoder.layers.{i}.self_attention.multihead_attn.in_proj_bias           encoder.blocks.{i}.attn.qkv.bias
encoder.layers.{i}.self_attention.multihead_attn.out_proj.{w}           encoder.blocks.{i}.attn.out.{w}
encoder.layers.{i}.self_attn_layer_norm.{w}                             encoder.blocks.{i}.attn_norm.{w}
encoder.layers.{i}.positionwise_feedforward.fc_1.{w}                    encoder.blocks.{i}.mlp.up.{w}
encoder.layers.{i}.positionwise_feedforward.fc_2.{w}                    encoder.blocks.{i}.mlp.down.{w}
encoder.layers.{i}.ff_layer_norm.{w}                                    encoder.blocks.{i}.mlp_norm.{w}
decoder.tok_embedding.weight                                            embed.tokens.weight
decoder.pos_embedding.weight                                            trunk.positions.0.tables.0
decoder.layers.{i}.self_attention.multihead_attn.in_proj_weight         trunk.blocks.{i}.attn.qkv.weight
decoder.layers.{i}.self_attention.multihead_attn.in_proj_bias           trunk.blocks.{i}.attn.qkv.bias
decoder.layers.{i}.self_attention.multihead_attn.out_proj.{w}           trunk.blocks.{i}.attn.out.{w}
decoder.layers.{i}.self_attn_layer_norm.{w}                             trunk.blocks.{i}.attn_norm.{w}
decoder.layers.{i}.encoder_attention.multihead_attn.q_{w}               trunk.blocks.{i}.cross.q.{w}
decoder.layers.{i}.encoder_attention.multihead_attn.kv_{w}              trunk.blocks.{i}.cross.kv.{w}
decoder.layers.{i}.encoder_attention.multihead_attn.out_proj.{w}        trunk.blocks.{i}.cross.out.{w}
decoder.layers.{i}.enc_attn_layer_norm.{w}                              trunk.blocks.{i}.cross_norm.{w}
decoder.layers.{i}.positionwise_feedforward.fc_1.{w}                    trunk.blocks.{i}.mlp.up.{w}
decoder.layers.{i}.positionwise_feedforward.fc_2.{w}                    trunk.blocks.{i}.mlp.down.{w}
decoder.layers.{i}.ff_layer_norm.{w}                                    trunk.blocks.{i}.mlp_norm.{w}
decoder.fc_out.{w}                                                      head.{w}
"""

# The variable domains of trastuzumab.
HEAVY = ("EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMD"
         "YWGQGTLVTVSS")  # fmt: skip
LIGHT = "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK"


@pytest.fixture(scope="module")
def stored():
    with wheel("anarcii", "2.0.8", SHA256) as inside:
        return torch.load(io.BytesIO(inside.read(FILE)), weights_only=True, map_location="cpu")


def sentence() -> C.Transformer:
    def trunk(**more):
        return C.Trunk(dim=D, depth=1, norm_placement="post", position=C.LearnedPosition(length=LENGTH),
                       dropout=C.NO_DROPOUT, attention=C.Attention(heads=HEADS), mlp=C.MLP(hidden=HIDDEN),
                       **more)  # fmt: skip

    return C.Transformer(
        embed=C.TextEmbedding(vocab=136, scale=math.sqrt(D), eos_id=END),
        trunk=trunk(mask="causal", cross="last"),
        encoder=C.Encoder(trunk=trunk(), embed=C.TextEmbedding(vocab=25, scale=math.sqrt(D), pad_id=PAD)),
        head=C.LMHead(tied=False, bias=True),
    )


@pytest.fixture(scope="module")
def ours(stored):
    """Their q, k and v are one table also where the decoder looks across; ours are two, since they read two things."""
    state = dict(stored)
    for name in [name for name in state if "encoder_attention" in name and "in_proj" in name]:
        table, whole = state.pop(name), name.replace("in_proj", "{}")
        state[whole.format("q")], state[whole.format("kv")] = table[:D], table[D:]
    model = regard.build(sentence()).eval()
    name_table.load_tensors(model, state, list(name_table.parse_rows(TABLE)))
    return model


class Theirs(nn.Module):
    """The same model out of torch's own layers."""

    def __init__(self, stored):
        super().__init__()
        how = dict(d_model=D, nhead=HEADS, dim_feedforward=HIDDEN, dropout=0.0, batch_first=True, norm_first=False)
        self.read, self.write = nn.TransformerEncoderLayer(**how), nn.TransformerDecoderLayer(**how)
        self.tables = {side: [stored[f"{side}.{what}_embedding.weight"] for what in ("tok", "pos")] for side in SIDES}
        for layer, words in ((self.read, SIDES["encoder"]), (self.write, SIDES["decoder"])):
            layer.load_state_dict({mine: stored[theirs] for mine, theirs in words.items()})
        self.out = stored["decoder.fc_out.weight"], stored["decoder.fc_out.bias"]

    def embed(self, side, ids):
        words, places = self.tables[side]
        return words[ids] * math.sqrt(D) + places[: ids.shape[1]]

    def forward(self, ids, source):
        absent = source == PAD
        memory = self.read(self.embed("encoder", source), src_key_padding_mask=absent)
        ahead = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        x = self.write(self.embed("decoder", ids), memory, tgt_mask=ahead, memory_key_padding_mask=absent)
        return nn.functional.linear(x, *self.out)


MAPS = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")


def words(side, parts):
    """torch's names for a layer's tensors, and theirs."""
    found = {}
    for mine, theirs in parts.items():
        ends = MAPS if "attn" in mine else ("weight", "bias")
        found |= {f"{mine}.{end}": f"{side}.layers.0.{theirs}.{end}" for end in ends}
    return found


AROUND = {"self_attn": "self_attention.multihead_attn", "norm1": "self_attn_layer_norm"}
ACROSS = "encoder_attention.multihead_attn"
THINK = {f"linear{place}": f"positionwise_feedforward.fc_{place}" for place in (1, 2)}
SIDES = {
    "encoder": words("encoder", {**AROUND, **THINK, "norm2": "ff_layer_norm"}),
    "decoder": words("decoder", {**AROUND, "multihead_attn": ACROSS, "norm2": "enc_attn_layer_norm", **THINK,
                                 "norm3": "ff_layer_norm"}),
}  # fmt: skip


def residues(text):
    return [START, *(RESIDUES.index(letter) + 4 for letter in text), END]


def padded(rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


@pytest.mark.slow
@torch.no_grad()
def test_logits_are_those_of_torchs_own_layers_with_the_same_weights(stored, ours):
    """In fp64, and in fp32 as near as logits up to 40 can be."""
    torch.manual_seed(3)
    source = padded([residues(HEAVY), residues(LIGHT), residues("QVQLX")])
    ids = torch.randint(3, 136, (3, 37))
    ids[:, 0] = START
    exact = Theirs({name: table.double() for name, table in stored.items()}).double().eval()(ids, source)

    assert exact.std() > 1
    assert_near(copy.deepcopy(ours).double()(ids, source=source), exact, 1e-10)
    assert_near(ours(ids, source=source), Theirs(stored).eval()(ids, source), 1e-5 * exact.abs().max().item())


def numbered(model, text):
    """The kind of chain, and (residue, number) for each residue that has one."""
    source = torch.tensor([residues(text)])
    chain, *numbers = model.generate(
        torch.tensor([START]), source=source, max_new_tokens=len(text) + 2, temperature=0
    ).tolist()
    return CHAINS.get(chain), [(letter, id - 3) for letter, id in zip(text, numbers, strict=False) if 4 <= id < 132]


@pytest.mark.slow
@pytest.mark.parametrize("text, chain", [(HEAVY, "H"), (LIGHT, "K")])
def test_an_antibodys_residues_get_the_numbers_that_imgt_gives_them(ours, text, chain):
    """In every variable domain two cysteines are 23 and 104, a tryptophan is 41, and numbers rise."""
    kind, told = numbered(ours, text)
    numbers = [number for _, number in told]

    assert kind == chain and len(told) > 100
    assert numbers == sorted(set(numbers)) and numbers[0] == 1 and numbers[-1] in (127, 128)
    assert {("C", 23), ("W", 41), ("C", 104)} <= set(told)


@pytest.mark.slow
def test_it_is_kept_in_a_folder_of_ours_and_says_the_same(ours, tmp_path):
    ours.save(tmp_path / "anarcii")
    again = regard.load(tmp_path / "anarcii", device="cpu")

    assert numbered(again, HEAVY) == numbered(ours, HEAVY)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours.parameters(), strict=True))
