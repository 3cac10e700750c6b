"""With the same weights, equal to `transformers`: logits, gradients, files, and what is generated."""

import re

import pytest
import torch
import torch.nn.functional as F
from parity.families import MODELS, N, S, V, family, ids, keep, pair, questions, stored
from parity.tolerance import assert_all_near, assert_near, gradients, renamed_gradients
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import GenerationConfig

from regard.core.model import Transformer
from regard.hub import name_table

EVERY = pytest.mark.parametrize("name", MODELS)


@EVERY
def test_logits_are_equal(name):
    theirs, ours = pair(name)
    asked, same, _ = questions(name)

    assert_near(ours(**same), theirs(**asked).logits)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "marian"])
def test_padding_on_either_side_changes_no_logit_of_theirs(name, padding):
    theirs, ours = pair(name)
    asked, same, real = questions(name, padding)

    assert_near(ours(**same)[real], theirs(**asked).logits[real])


@pytest.mark.parametrize("padding", ["right", "left"])
def test_marian_needs_padding_on_the_right_and_we_take_both_sides(padding):
    theirs, ours = pair("marian")
    asked, same, real = questions("marian", "right")
    want = theirs(**asked).logits[real]
    if padding == "left":  # the last row lacks three tokens: move its padding to the front
        same = {name: torch.cat([x[:-1], x[-1:].roll(3, -1)]) for name, x in same.items()}

    assert_near(ours(**same)[same["real"]], want)


@pytest.mark.parametrize("padding", ["none", "right"])
@EVERY
def test_gradients_of_every_parameter_are_equal(name, padding):
    theirs, ours = pair(name)
    asked, same, real = questions(name, padding)
    labels = torch.randint(V, real.shape)[real]
    F.cross_entropy(theirs(**asked).logits[real], labels, reduction="sum").backward()
    F.cross_entropy(ours(**same)[real], labels, reduction="sum").backward()
    trained = {name for name, weight in theirs.named_parameters() if weight.requires_grad}

    assert gradients(theirs).keys() == trained
    assert_all_near(renamed_gradients(ours, family(name)), gradients(theirs))


# ---------------------------------------------------------------- files


@EVERY
def test_loading_and_saving_gives_back_every_name_and_every_byte(name):
    theirs, ours = pair(name)
    want, saved = stored(theirs), name_table.export_tensors(ours, family(name))

    assert saved.keys() == want.keys()
    assert all(torch.equal(saved[name].view(torch.uint8), want[name].view(torch.uint8)) for name in want)


@EVERY
def test_we_read_the_file_that_transformers_writes(name, tmp_path):
    theirs, ours = pair(name)
    theirs.save_pretrained(tmp_path)
    again = Transformer(ours.c)
    name_table.load_tensors(again, load_file(tmp_path / "model.safetensors"), family(name))

    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), ours.parameters(), strict=True))


@EVERY
def test_transformers_reads_the_file_that_we_write(name, tmp_path):
    theirs, ours = pair(name)
    theirs.config.save_pretrained(tmp_path)
    save_file(name_table.export_tensors(ours, family(name)), tmp_path / "model.safetensors", metadata={"format": "pt"})
    again, report = type(theirs).from_pretrained(tmp_path, output_loading_info=True)

    assert not any(report.values()), report
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())


# ---------------------------------------------------------------- generation


class Generated:
    """32 greedy ids and their logits from both sides, in fp64: in fp32 a near-tie may fall either way."""

    def __init__(self, name: str) -> None:
        theirs, ours = restless(name)
        theirs.generation_config = GenerationConfig(
            max_new_tokens=32, use_cache=True, pad_token_id=0, decoder_start_token_id=5,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        prompt = ids(N)
        if theirs.config.is_encoder_decoder:
            prompt[:, 0] = 5
            source, real = ids(S), keep(S, "right")
            made = theirs.generate(source, attention_mask=real.long(), decoder_input_ids=prompt)
            self.ids, self.logits = greedy(ours, prompt, 32, source=source, source_real=real)
        else:
            real = keep(N, "left")
            made = theirs.generate(prompt, attention_mask=real.long())
            self.ids, self.logits = greedy(ours, prompt, 32, real=real)
        self.want_ids, self.want_logits = made.sequences[:, -32:], torch.stack(made.logits, 1)


def restless(name: str) -> tuple[nn.Module, Transformer]:
    """A pair that does not say one word again and again, as tied heads do: the last norm is turned around."""
    theirs, ours = (model.double() for model in pair(name))
    gains = [weight for each, weight in theirs.named_parameters() if re.search(r"(norm|ln_f)\.weight$", each)]
    gains[-1].data.neg_()
    name_table.load_tensors(ours, stored(theirs), family(name))
    return theirs, ours


@torch.no_grad()
def greedy(model: Transformer, start: Tensor, count: int, **first: Tensor) -> tuple[Tensor, Tensor]:
    """(B, N) to (B, count) most likely ids and (B, count, V) logits, step by step through a cache."""
    cache = model.cache(len(start), start.shape[1] + count)
    logits = [model(start, cache=cache, **first)[:, -1:]]
    while len(logits) < count:
        logits.append(model(logits[-1].argmax(-1), cache=cache))
    return torch.cat(logits, 1).argmax(-1), torch.cat(logits, 1)


GENERATING = pytest.mark.parametrize("name", ["gpt2", "llama", "llama tied", "t5", "t5 gated", "marian"])


@GENERATING
def test_thirty_two_greedy_ids_through_the_cache_are_equal(name):
    made = Generated(name)

    assert made.ids.tolist() == made.want_ids.tolist()


@GENERATING
def test_the_logits_of_every_step_through_the_cache_are_equal(name):
    made = Generated(name)

    assert_near(made.logits.float(), made.want_logits)  # generate() keeps its logits in fp32
