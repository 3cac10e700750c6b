"""Request schemas, with OpenAI's field names; a field that OpenAI does not have is named as in the library.

Lists and objects are counted before they are validated, and validation of a list stops at the first mistake: a thousand
wrong elements cost no more than one.

Every field changes the response or is refused; only `user` and the like, which describe the client, change nothing.
Nothing is converted: "0.5" is a string and not a number.
"""

from collections.abc import Container
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from regard.config.aliases import generation_aliases
from regard.config.errors import did_you_mean
from regard.web.field_names import FIELD_OF_SETTING

LONGEST = 64  # characters of a name that are shown
IDS = 1 << 17  # of all prompts of a request
BACK = 1 << 14  # ids that are decoded at a time: it is one long call, during which other threads wait
MANY = 4096  # texts of a list; how many of them a request may have is a setting
TURNS, PARTS = 2048, 2048  # turns of a chat, and parts of one turn
BIASED, NOTES = 1024, 64  # entries of logit_bias, and of metadata
STOP = 1024  # characters of a stop string
PATTERN = 4096  # characters of a regular expression: the time to compile it may grow with their square


FIRST = Field(fail_fast=True)  # stop at the first mistake


def check_count(value: Any, most: int, what: str) -> Any:
    """Refuse a list or an object with more than `most` entries, those of nested lists included."""
    if isinstance(value, list | dict):
        count = len(value)
        if isinstance(value, list) and count <= most:
            count = max(count, sum(len(each) for each in value if isinstance(each, list)))
        if count > most:
            said = f"{count:,} {what} are more than the {most:,} that one request may have; send less at a time"
            raise PydanticCustomError("many", "{said}", {"said": said})
    return value


def max_count(most: int, what: str) -> BeforeValidator:
    return BeforeValidator(lambda value: check_count(value, most, what))


Id = Annotated[int, Field(ge=0, lt=1 << 31)]
Count = Annotated[int, Field(ge=0, le=1 << 20)]
Texts = Annotated[str | Annotated[list[str], Field(min_length=1, fail_fast=True)], max_count(MANY, "texts")]
Ids = Annotated[list[Id], FIRST]
Stop = Annotated[str, Field(max_length=STOP)]
Word = Annotated[str, Field(min_length=1, max_length=512)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class RequestModel(BaseModel):
    """Base of all request schemas: unknown fields are refused."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def no_others(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found: dict[str, Any] = {}
        for name, item in value.items():
            ours = field_of_alias(name, cls.model_fields)
            if ours not in cls.model_fields:
                meant = did_you_mean(name, cls.model_fields)
                said = f"there is no {name[:LONGEST]!r} here{meant} there are {', '.join(cls.model_fields)}"
                raise PydanticCustomError("unknown", "{said}", {"said": said})
            if ours in found:
                said = f"{name}: it is another name of {ours}, and both are given; keep one"
                raise PydanticCustomError("both", "{said}", {"said": said})
            found[ours] = item
        return found


def field_of_alias(name: str, fields: Container[str]) -> str:
    """Our field for a setting's name in `transformers` or vLLM, such as max_new_tokens; else the name itself."""
    setting = generation_aliases().get(name, name)
    field = FIELD_OF_SETTING.get(setting, setting)
    return field if name not in fields and field in fields else name


class ModelRequest(RequestModel):
    """A request to one model, which need not be named where there is only one."""

    model: Annotated[str, Field(max_length=512)] | None = None
    user: Annotated[str, Field(max_length=512)] | None = None


# ---------------------------------------------------------------- generation


class JsonSchemaSpec(RequestModel):
    name: Annotated[str, Field(max_length=64)] | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def no_others(cls, value: Any) -> Any:
        return value  # no aliases here: pydantic reports unknown fields itself


class ResponseFormat(RequestModel):
    """The format of generated text: any text, a JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaSpec | None = None

    @model_validator(mode="after")
    def complete(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("schema", "json_schema goes with the type json_schema only")
        return self


class StreamOptions(RequestModel):
    include_usage: bool | None = None


class GenerationFields(ModelRequest):
    """The fields that all generation routes share."""

    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Share | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[
        dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None, max_count(BIASED, "entries")
    ] = None
    response_format: ResponseFormat | None = None
    top_k: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    no_repeat_ngram_size: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    min_new_tokens: Count | None = None
    regex: Annotated[str, Field(max_length=PATTERN)] | None = None

    @model_validator(mode="after")
    def check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream", "stream_options are for streams; set stream, or leave them out")
        return self


class CompletionRequest(GenerationFields):
    """Body of POST /v1/completions."""

    prompt: Annotated[
        str | Annotated[list[str], FIRST] | Ids | Annotated[list[Ids], FIRST],
        max_count(IDS, "texts or ids"),
    ]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Annotated[int, Field(ge=1, le=128)] | None = None
    suffix: None = None


class ContentPart(RequestModel):
    type: Literal["text"]
    text: str


class ChatMessage(RequestModel):
    """One turn of a chat. The content of an assistant's turn may be empty."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str | Annotated[list[ContentPart], FIRST] | None, max_count(PARTS, "parts")] = None
    name: Annotated[str, Field(max_length=64)] | None = None

    @model_validator(mode="after")
    def check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise PydanticCustomError("content", "content is missing; only an assistant message may be empty")
        return self


class ChatCompletionRequest(GenerationFields):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=TURNS, fail_fast=True), max_count(TURNS, "messages")
    ]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none"] | None = None
    store: Literal[False] | None = None
    metadata: Annotated[dict[str, str] | None, max_count(NOTES, "entries")] = None

    @model_validator(mode="after")
    def check_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("logprobs", "top_logprobs: they go with logprobs; set logprobs as well")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise PydanticCustomError("both", "max_tokens: max_completion_tokens is given as well; keep one of the two")
        return self


# ---------------------------------------------------------------- other tasks


class EmbeddingRequest(ModelRequest):
    """Body of POST /v1/embeddings."""

    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None


class ClassifyRequest(ModelRequest):
    """Body of POST /v1/classify."""

    input: Texts
    pair: Texts | None = None
    top_k: Annotated[int, Field(ge=1, le=1 << 20)] | None = None


class FillRequest(ModelRequest):
    """Body of POST /v1/fill."""

    input: Texts
    top_k: Annotated[int, Field(ge=1, le=100)] | None = None


class TranslateRequest(ModelRequest):
    """Body of POST /v1/translate."""

    input: Texts
    num_beams: Annotated[int, Field(ge=1, le=32)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)] | None = None
    num_return_sequences: Annotated[int, Field(ge=1, le=32)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None


class TokenizeRequest(ModelRequest):
    """Body of POST /tokenize."""

    text: str


class DetokenizeRequest(ModelRequest):
    """Body of POST /detokenize."""

    ids: Annotated[list[Id], Field(max_length=BACK, fail_fast=True), max_count(BACK, "ids")]
