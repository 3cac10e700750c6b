"""Masks are an algebra, say what they mean, and reach exactly as far as one can compute by hand."""

import sys

import pytest
import torch
from core.builders import MEANINGS, B, K, Q, asking, meant, scattered, scattered_pair, stack
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from regard import config as C
from regard.attention.flex import block_mask, cached_block_mask
from regard.config.masks import MASKS, check_mask
from regard.core.masks import CAUSAL, DOCUMENTS, FULL, MASK_TYPES, PADDING, Not, mask
from regard.core.tokens import grid_tokens, sequence_tokens

single = st.sampled_from([text for text in MEANINGS if "&" not in text and "|" not in text]).map(mask)
masks = st.recursive(
    single,
    lambda some: st.one_of(
        st.builds(lambda a, b: a & b, some, some), st.builds(lambda a, b: a | b, some, some), some.map(lambda m: ~m)
    ),
    max_leaves=6,
)
seeds = st.integers(0, 2**20)


# ---------------------------------------------------------------- an algebra


@given(masks, masks)
def test_joining_does_not_mind_the_order(a, b):
    assert a & b == b & a and hash(a & b) == hash(b & a)
    assert a | b == b | a and hash(a | b) == hash(b | a)


@given(masks, masks, masks)
def test_joining_does_not_mind_the_brackets(a, b, c):
    assert (a & b) & c == a & (b & c)
    assert (a | b) | c == a | (b | c)


@given(masks)
def test_joining_a_mask_with_itself_changes_nothing(a):
    assert a & a == a and a | a == a


@given(masks)
def test_full_leaves_an_and_alone_and_swallows_an_or(a):
    assert a & FULL == a and FULL & a == a
    assert a | FULL == FULL and FULL | a == FULL


def test_a_mask_joined_with_full_is_the_very_same_object():
    assert (CAUSAL & FULL) is CAUSAL and (FULL & CAUSAL) is CAUSAL


@given(masks)
def test_turning_twice_is_not_turning(a):
    assert ~~a == a and ~a != a


@given(masks)
def test_a_mask_is_read_back_from_what_it_prints(a):
    assert mask(str(a)) == a and str(mask(str(a))) == str(a)


@given(masks)
def test_what_a_mask_prints_is_what_a_config_takes(a):
    check_mask(str(a))


@given(masks, masks)
def test_equal_masks_print_alike_and_unlike_masks_do_not(a, b):
    assert (a == b) == (str(a) == str(b))
    assert a != b or hash(a) == hash(b)


@given(masks, masks, seeds)
@settings(max_examples=20)
def test_joining_and_turning_mean_what_they_say(a, b, seed):
    q, k = scattered_pair(seed)
    first, second = (m.table(q, k).expand(B, Q, K) for m in (a, b))

    assert torch.equal((a & b).table(q, k).expand(B, Q, K), first & second)
    assert torch.equal((a | b).table(q, k).expand(B, Q, K), first | second)
    assert torch.equal((~a).table(q, k).expand(B, Q, K), ~first)


def test_masks_of_different_kinds_with_the_same_numbers_differ():
    same = [
        mask(text) for text in ("window(3)", "strided(3)", "blocks(3)", "global_tokens(3)", "prefix(3)", "window2d(3)")
    ]

    assert len(set(same)) == len(same)


def test_a_mask_can_stand_for_itself_in_a_dict():
    assert {mask("causal & window(3)"): 1}[mask("window(3) & causal")] == 1


# ---------------------------------------------------------------- what they mean


@pytest.mark.spec("S020", "S021", "S026", "S027")
@pytest.mark.parametrize("text", MEANINGS)
@given(seed=seeds)
@settings(max_examples=5)
def test_a_mask_allows_what_it_says_in_plain_python(text, seed):
    q, k = scattered_pair(seed)

    assert torch.equal(mask(text).table(q, k).expand(B, Q, K), meant(text, q, k))


@pytest.mark.parametrize("text", MEANINGS)
def test_the_predicate_of_flex_is_the_dense_table(text):
    q, k = scattered_pair()
    allows = block_mask(asking(text, q, k), B).mask_mod

    assert torch.equal(create_mask(allows, B, 1, Q, K, device="cpu")[:, 0], mask(text).table(q, k).expand(B, Q, K))


@pytest.mark.parametrize("text", ["causal & window(2)", "window2d(2, 1)", "~strided(3) | global_tokens(2)"])
def test_the_predicate_of_flex_is_the_dense_table_where_no_data_is_needed(text):
    places, count = grid_tokens(torch.empty(B, 15, 0), (3, 5)), 15
    allows = block_mask(asking(text, places), None).mask_mod

    assert torch.equal(create_mask(allows, 1, 1, count, count, device="cpu")[:, 0], mask(text).table(places, places))


@pytest.mark.parametrize("text", [text for text in MEANINGS if mask(text).tables <= {"order", "coords"}])
def test_a_mask_without_data_has_one_table_for_all_rows(text):
    places = grid_tokens(torch.empty(B, 15, 0), (3, 5))

    assert mask(text).table(places, places).shape == (1, 15, 15)


@pytest.mark.parametrize("text", ["causal", "window2d(2, 1)", "causal & padding"])
def test_flex_makes_the_blocks_of_a_mask_once_unless_it_reads_data(text):
    places = grid_tokens(torch.empty(B, 15, 0), (3, 5))
    places.is_real = torch.ones(B, 15, dtype=torch.bool)
    ask = asking(text, places)

    assert (cached_block_mask(ask) is cached_block_mask(ask)) == ("padding" not in text)


@pytest.mark.parametrize("text, wants", [("padding", "real"), ("documents", "document"), ("edges", "edges")])
def test_a_mask_that_lacks_its_table_says_which(text, wants):
    bare = sequence_tokens(torch.empty(B, Q, 0))

    with pytest.raises(ValueError, match=f"reads '{wants}'.* give {wants}="):
        mask(text).table(bare, bare)


@pytest.mark.spec("S027")
def test_a_decoder_window_is_the_window_behind():
    assert mask("causal & window(1)").picture(4) == "■ · · ·\n■ ■ · ·\n· ■ ■ ·\n· · ■ ■"


# ---------------------------------------------------------------- pictures


@pytest.mark.spec("S020")
def test_the_causal_mask_of_four_tokens_is_a_triangle_with_its_diagonal():
    assert mask("causal").picture(4) == "■ · · ·\n■ ■ · ·\n■ ■ ■ ·\n■ ■ ■ ■"


@pytest.mark.spec("S027")
@pytest.mark.parametrize("text", [text for text in MEANINGS if mask(text).tables <= {"order", "coords"}])
def test_every_pattern_prints_a_gallery_picture(text):
    rows = mask(text).picture(5).split("\n")

    assert len(rows) == 5 and all(len(row.split(" ")) == 5 and set(row) <= set("■· ") for row in rows)


def test_a_mask_with_data_is_drawn_for_its_first_row():
    places = scattered(5, 5)
    columns = mask("padding").picture(places).split("\n")[0].split(" ")

    assert [cell == "■" for cell in columns] == places.is_real[0].tolist()


# ---------------------------------------------------------------- how far they reach


@pytest.mark.spec("S027")
@pytest.mark.parametrize("kernel", ["reference", "fused"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(
    "text",
    [
        "window(1)", "causal & window(2)", "strided(3)", "causal & strided(4)", "dilated(1, 2)", "blocks(3)",
        "global_tokens(1) | window(0)", "causal & (global_tokens(1) | window(1))", "full", "causal",
    ],
)  # fmt: skip
def test_after_some_layers_a_token_has_heard_of_exactly_those_in_its_reach(text, depth, kernel):
    count = 9
    trunk = stack(depth=depth, mask=text, attention=C.Attention(heads=3, kernel=kernel))
    x = torch.randn(1, count, trunk.c.dim, requires_grad=True)
    out = trunk(sequence_tokens(x)).x
    probe = torch.randn(trunk.c.dim)
    felt = [torch.autograd.grad(out[0, i] @ probe, x, retain_graph=True)[0][0].abs().sum(-1) > 0 for i in range(count)]
    one = mask(text).table(sequence_tokens(x), sequence_tokens(x))[0] | torch.eye(
        count, dtype=torch.bool
    )  # the residual sees itself
    reach = torch.linalg.matrix_power(one.double(), depth) > 0

    assert torch.equal(torch.stack(felt), reach)


@pytest.mark.spec("S027")
def test_masks_tiled_over_layers_reach_as_far_as_one_after_the_other():
    trunk = stack(depth=2, mask=("strided(4)", "blocks(3)"))
    x = torch.randn(1, 9, trunk.c.dim, requires_grad=True)
    felt = torch.autograd.grad(trunk(sequence_tokens(x)).x[0, 4] @ torch.randn(trunk.c.dim), x)[0][0].abs().sum(-1) > 0

    assert felt.nonzero().flatten().tolist() == [0, 1, 3, 4, 5, 7, 8]  # of 3, 4, 5 in its block, every fourth


# ---------------------------------------------------------------- masks as text


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("casual", "mask: no 'casual'; did you mean 'causal'?"),
        ("windows(3)", "mask: no 'windows'; did you mean 'window'?"),
        ("causal & global_token(2)", "mask: no 'global_token'; did you mean 'global_tokens'?"),
        ("window", "window takes window(radius), got 0 numbers"),
        ("window()", "window takes window(radius), got 0 numbers"),
        ("window(1, 2)", "window takes window(radius), got 2 numbers"),
        ("causal(3)", "causal takes causal, got 1 numbers"),
        ("dilated(3)", "dilated takes dilated(radius, step), got 1 numbers"),
        ("window(radius=3)", "is not a mask such as window(64)"),
        ("window(-1)", "window takes whole numbers of zero or more, got '-1'"),
        ("window(1.5)", "window takes whole numbers of zero or more, got '1.5'"),
        ("window(True)", "window takes whole numbers of zero or more, got 'True'"),
        ("window('3')", "window takes whole numbers of zero or more"),
        ("window(1 + 2)", "window takes whole numbers of zero or more, got '1 + 2'"),
        ("window(*numbers)", "window takes whole numbers of zero or more"),
        ("window(causal)", "window takes whole numbers of zero or more, got 'causal'"),
        ("causal and window(3)", "masks join with &, | and ~"),
        ("causal + window(3)", "masks join with &, | and ~"),
        ("not causal", "masks join with &, | and ~"),
        ("-causal", "masks join with &, | and ~"),
        ("3", "masks join with &, | and ~"),
        ("'causal'", "masks join with &, | and ~"),
        ("causal if 1 else window(2)", "masks join with &, | and ~"),
        ("lambda: causal", "masks join with &, | and ~"),
        ("(causal, window(3))", "masks join with &, | and ~"),
        ("", "cannot read ''"),
        ("causal &", "cannot read 'causal &'"),
        ("causal; window(3)", "cannot read"),
        ("import os", "cannot read"),
        ("causal \x00", "cannot read"),
        ("__import__('os').system('true')", "is not a mask such as window(64)"),
        ("__import__('os')", "mask: no '__import__'; there are full"),
        ("causal.__class__", "masks join with &, | and ~"),
        ("[].append(1)", "is not a mask such as window(64)"),
        ("strided(0)", "mask: strided takes a step of 1 or more, and less than 2^31, got 0"),
        ("blocks(0)", "mask: blocks takes a size of 1 or more, and less than 2^31, got 0"),
        ("window2d(0)", "mask: window2d takes a size of 1 or more, and less than 2^31, got 0"),
        ("dilated(1, 0)", "mask: dilated takes a step of 1 or more, and less than 2^31, got 0"),
        (f"window({2**31})", f"mask: window takes a radius of 0 or more, and less than 2^31, got {2**31}"),
        (f"dilated({2**30}, 2)", f"mask: window takes a radius of 0 or more, and less than 2^31, got {2**31}"),
        ("causal " + "| causal " * 111, "mask: more than 1000 characters or 50 brackets and signs are no mask"),
        ("~" * 980 + "causal", "mask: more than 1000 characters or 50 brackets and signs are no mask"),
        ("window(" + "-" * 900 + "1)", "mask: more than 1000 characters or 50 brackets and signs are no mask"),
        ("(" * 51 + "causal" + ")" * 51, "mask: more than 1000 characters or 50 brackets and signs are no mask"),
    ],
)
def test_an_expression_that_is_no_mask_is_told_in_one_sentence(text, sentence):
    with pytest.raises(ValueError) as error:
        mask(text)

    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["{}", "window({})", "causal & {}", "~{}"])
def test_nothing_in_an_expression_is_ever_run(text):
    with pytest.raises(ValueError):
        mask(text.format("__import__('sys').setrecursionlimit(77)"))

    assert sys.getrecursionlimit() != 77


@pytest.mark.parametrize("text", ["~" * 50 + "causal", "(" * 50 + "causal" + ")" * 50], ids=["turns", "brackets"])
def test_fifty_turns_or_brackets_are_not_too_many(text):
    assert mask(text) == CAUSAL


def test_the_largest_number_that_is_read_is_one_that_torch_can_hold():
    assert mask(f"window({2**31 - 1})").picture(3) == mask("full").picture(3)
    assert mask(f"blocks({2**31 - 1})").picture(3) == mask("full").picture(3)
    assert mask(f"strided({2**31 - 1})").picture(3) == mask("window(0)").picture(3)


@given(st.text(max_size=40))
def test_any_text_is_a_mask_or_one_sentence(text):
    try:
        read = mask(text)
    except ValueError as error:
        assert str(error)
    else:
        assert mask(str(read)) == read


@given(st.text(alphabet="causlwindo(1) &|~", max_size=30))
def test_any_text_that_looks_like_a_mask_is_one_or_one_sentence(text):
    try:
        read = mask(text)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert mask(str(read)) == read


def test_dilated_is_a_window_of_strides():
    assert mask("dilated(2, 3)") == mask("window(6) & strided(3)")


def test_optional_numbers_may_be_left_out():
    assert mask("window2d(3)") == mask("window2d(3, 0)") and mask("edges") == mask("edges(1)")


def test_the_closed_table_of_masks_is_the_rooms_table():
    assert set(MASKS) == {*MASK_TYPES, "dilated"}


def test_padding_and_documents_join_by_name():
    assert mask("padding") == PADDING and mask("documents") == DOCUMENTS and mask("~padding") == Not(PADDING)
