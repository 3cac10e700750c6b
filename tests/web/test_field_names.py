"""One table says what a request and the library call a setting, and both sides of the server read it."""

from dataclasses import fields

import pytest

from regard import config
from regard.serve.responses import CONVERTED, sampling_settings
from regard.serve.schemas import ChatCompletionRequest, CompletionRequest, GenerationFields
from regard.web.errors import request_error
from regard.web.field_names import FIELD_OF_SETTING, SETTING_OF_FIELD

PLAIN = [field for field in SETTING_OF_FIELD if field not in CONVERTED]


def test_the_table_reads_both_ways_and_names_what_there_is():
    assert {FIELD_OF_SETTING[setting]: setting for setting in SETTING_OF_FIELD.values()} == SETTING_OF_FIELD
    assert set(SETTING_OF_FIELD) <= set(GenerationFields.model_fields)
    assert set(SETTING_OF_FIELD.values()) <= {field.name for field in fields(config.SamplingParams)}
    assert set(CONVERTED) <= set(SETTING_OF_FIELD)


@pytest.mark.parametrize("field", PLAIN)
def test_a_plain_field_becomes_its_setting_as_it_stands(field):
    value = "[a-z]" if field == "regex" else 1
    asked = GenerationFields.model_construct(**{field: value})

    assert sampling_settings(asked, 7) == {SETTING_OF_FIELD[field]: value, "max_new_tokens": 7}


@pytest.mark.parametrize("field, setting", SETTING_OF_FIELD.items())
def test_a_mistake_in_a_setting_is_told_by_the_name_of_its_field(field, setting):
    refused = request_error(f"{setting}: 3 is too much; ask for less")

    assert refused.param == field and refused.detail == f"{field}: 3 is too much; ask for less"


def test_a_sentence_about_nothing_that_was_sent_names_no_field():
    assert request_error("weights: they are damaged").param is None
    assert request_error("temperature without a colon").param is None


def test_every_setting_that_both_routes_write_with_is_in_the_table():
    settings = {field.name for field in fields(config.SamplingParams)}
    for kind in (CompletionRequest, ChatCompletionRequest):
        assert {field for field in kind.model_fields if field in settings} <= set(SETTING_OF_FIELD)


@pytest.mark.parametrize("sent, field, value", [
    ({"max_new_tokens": 5}, "max_tokens", 5), ({"repeat_penalty": 1.5}, "repetition_penalty", 1.5),
    ({"stop_strings": ["."]}, "stop", ["."]), ({"min_tokens": 2}, "min_new_tokens", 2), ({"max_tokens": 5},
                                                                                         "max_tokens", 5),
])  # fmt: skip
def test_a_setting_may_have_its_name_in_transformers_or_vllm(sent, field, value):
    assert getattr(CompletionRequest.model_validate({"prompt": "a", **sent}), field) == value


def test_a_field_under_two_names_is_refused():
    with pytest.raises(ValueError, match="max_new_tokens: it is another name of max_tokens, and both are given"):
        CompletionRequest.model_validate({"prompt": "a", "max_tokens": 5, "max_new_tokens": 5})
