"""Names of request fields: what OpenAI's API calls a setting and what the library calls it, one table for both ways.

    request        ── SETTING_OF_FIELD ──►  config.SamplingParams, BeamSearchParams
    "max_tokens"   ◄── FIELD_OF_SETTING ──  "new"                                      of a mistake that is reported

Fields without a setting of their own are in OTHER_FIELDS: a mistake may be about them too.
"""

SETTING_OF_FIELD = {
    "max_tokens": "new", "frequency_penalty": "frequency", "presence_penalty": "presence", "logit_bias": "bias",
    "response_format": "schema",
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "typical", "repetition", "no_repeat",
                               "shortest", "regex", "stop", "seed")},
}  # fmt: skip
FIELD_OF_SETTING = {setting: field for field, setting in SETTING_OF_FIELD.items()}
OTHER_FIELDS = ("prompt", "input", "messages", "model", "beams", "length_penalty", "best", "top", "pair")
