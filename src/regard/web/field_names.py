"""Names of request fields: what OpenAI's API calls a setting and what the library calls it, one table for both ways.

    request        ── SETTING_OF_FIELD ──►  config.SamplingParams, BeamSearchParams
    "max_tokens"   ◄── FIELD_OF_SETTING ──  "max_new_tokens"                           in error messages

OTHER_FIELDS are fields without a setting of their own that an error may name as well.
"""

SETTING_OF_FIELD = {
    "max_tokens": "max_new_tokens", "response_format": "json_schema",
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty",
                               "frequency_penalty", "presence_penalty", "no_repeat_ngram_size", "logit_bias",
                               "min_new_tokens", "regex", "stop", "seed")},
}  # fmt: skip
FIELD_OF_SETTING = {setting: field for field, setting in SETTING_OF_FIELD.items()}
OTHER_FIELDS = (
    "prompt",
    "input",
    "messages",
    "model",
    "num_beams",
    "length_penalty",
    "num_return_sequences",
    "pair",
)
