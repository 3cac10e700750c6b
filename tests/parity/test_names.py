"""Name tables account for every name on both sides, and change nothing where they cannot."""

import re

import pytest
import torch
from parity.families import MODELS, D, V, family, pair, stored

from regard.hub import name_table


@pytest.mark.parametrize("name", name_table.known_families())
def test_every_row_reads_the_same_in_both_directions(name):
    for row in name_table.load_name_table(name):
        if row.transform not in ("tied", "unused"):
            theirs = row.theirs.replace("{i}", "17").replace("{j}", "2").replace("{w}", "bias")

            assert row.translate(row.translate(theirs), back=True) == theirs


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoints_name_without_a_row_is_an_error(name):
    theirs, ours = pair(name)
    state = stored(theirs) | {"extra.weight": torch.zeros(3)}

    with pytest.raises(ValueError, match="extra.weight.*no row"):
        name_table.load_tensors(ours, state, family(name))


@pytest.mark.parametrize("name", MODELS)
def test_a_parameter_that_the_checkpoint_lacks_is_an_error(name):
    theirs, ours = pair(name)
    state = stored(theirs)
    lacking = [each for each in state if "0" in each][1]
    del state[lacking]
    ours_name = re.sub("/.*[.]", ".", name_table.find_row(name_table.load_name_table(family(name)), lacking)[1])

    with pytest.raises(ValueError, match=f"nothing for {re.escape(ours_name)}"):
        name_table.load_tensors(ours, state, family(name))


def test_a_parameter_without_a_row_is_an_error():
    _, ours = pair("gpt2")  # has biases, where Llama's norms have none

    with pytest.raises(ValueError, match=r"trunk\.positions\.0\.tables\.0: the family has no name for it"):
        name_table.export_tensors(ours, "llama")


def test_a_name_that_this_model_has_no_place_for_is_an_error():
    theirs, ours = pair("gpt2")
    state = stored(theirs) | {"transformer.h.9.ln_1.weight": torch.zeros(D)}

    with pytest.raises(ValueError, match=r"transformer.h.9.ln_1.weight.*no trunk.blocks.9.attn_norm.weight"):
        name_table.load_tensors(ours, state, "gpt2")


def test_an_untied_head_is_refused_by_a_tied_model():
    theirs, _ = pair("llama")
    _, ours = pair("llama tied")

    with pytest.raises(ValueError, match="lm_head.weight: the model ties it to embed.tokens.weight"):
        name_table.load_tensors(ours, stored(theirs), "llama")


def test_a_tied_head_may_be_stored_twice():
    theirs, ours = pair("llama tied")
    state = stored(theirs)
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()

    name_table.load_tensors(ours, state, "llama")


@pytest.mark.parametrize(
    "line", ["a unused flip", "b c unused", "a.{k} b.{k}", "[A", "[]", "a.{i} b", "a", "a b flip row"]
)
def test_a_line_that_is_no_row_is_refused_by_its_number(line):
    with pytest.raises(ValueError, match="line 2 of a name table"):
        list(name_table.parse_rows(f"# a table\n{line}\n"))


def test_a_wrong_shape_says_both_names_and_both_shapes():
    theirs, ours = pair("gpt2")
    state = stored(theirs) | {"transformer.wte.weight": torch.zeros(V + 1, D)}

    with pytest.raises(ValueError) as error:
        name_table.load_tensors(ours, state, "gpt2")
    for word in ("transformer.wte.weight", f"({V + 1}, {D})", f"({V}, {D})", "embed.tokens.weight"):
        assert word in str(error.value)


TIES = {
    "gpt2": ["lm_head.weight"],
    "bert": ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"],
    "t5": ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"],
    "marian": ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"],
}
TIED = pytest.mark.parametrize("name, tied", [(name, tied) for name, tie in TIES.items() for tied in tie])


@TIED
def test_a_tied_tensor_may_be_stored_twice(name, tied):
    theirs, ours = pair(name)
    name_table.load_tensors(ours, stored(theirs) | {tied: theirs.state_dict()[tied]}, name)

    assert name_table.export_tensors(ours, name).keys() == stored(theirs).keys()


@TIED
def test_a_tied_tensor_with_other_numbers_is_refused(name, tied):
    theirs, ours = pair(name)
    state = stored(theirs) | {tied: theirs.state_dict()[tied] + 1}

    with pytest.raises(ValueError, match=f"{tied}: the model ties it to"):
        name_table.load_tensors(ours, state, name)


def test_two_tied_tensors_that_differ_are_refused_even_without_their_first_name():
    theirs, ours = pair("marian")
    state = stored(theirs)
    table = state.pop("model.shared.weight")
    state |= {"model.encoder.embed_tokens.weight": table, "model.decoder.embed_tokens.weight": table + 1}

    with pytest.raises(ValueError, match="the model ties it to"):
        name_table.load_tensors(ours, state, "marian")


SPOILS = {
    "an extra name": lambda state: state | {"extra.weight": torch.zeros(3)},
    "a missing name": lambda state: {name: x for name, x in state.items() if name != "transformer.ln_f.bias"},
    "a wrong shape": lambda state: state | {"transformer.ln_f.bias": torch.zeros(D + 1)},
    "an untied head": lambda state: state | {"lm_head.weight": torch.zeros(V, D)},
    "no place": lambda state: state | {"transformer.h.7.ln_1.weight": torch.zeros(D)},
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_an_error_leaves_the_model_as_it_was(spoil):
    (theirs, _), (_, ours) = pair("gpt2"), pair("gpt2")
    before = {name: weight.clone() for name, weight in ours.state_dict().items()}

    with pytest.raises(ValueError):
        name_table.load_tensors(ours, spoil(stored(theirs)), "gpt2")
    assert all(torch.equal(weight, before[name]) for name, weight in ours.state_dict().items())


@pytest.mark.parametrize("line", ["alone", "theirs ours turn", "theirs ours flip row"])
def test_a_malformed_line_is_refused_with_its_number(line):
    text = f"# a comment\ntheirs.weight   ours.weight\n\n{line}\n"

    with pytest.raises(ValueError, match=f"line 4 of a name table: '{line}'"):
        list(name_table.parse_rows(text))


def test_an_unknown_family_suggests_a_known_one():
    with pytest.raises(ValueError, match="no name table 'lama'; did you mean 'llama'"):
        name_table.load_name_table("lama")
