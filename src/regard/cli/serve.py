"""regard serve: models over HTTP, for OpenAI's clients and others."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from regard import config
from regard.cli.errors import print_stderr
from regard.cli.output import Dtype, WeightsOption, config_from_options, import_torch

KEY = "REGARD_API_KEY"
NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def serve(
    checkpoints: Annotated[
        list[str],
        typer.Argument(metavar="CHECKPOINT", help="Runs, checkpoints, Hugging Face folders or ids; each is called by "
                       "its folder, or as NAME=CHECKPOINT says."),
    ],
    *,
    host: Annotated[str, typer.Option(help="Where to listen; others than this machine need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 picks a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help=f"What clients must send; {KEY} or a file keep it out of the process list."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with a key, or several, a line each.")
    ] = None,
    slots: Annotated[int, typer.Option(help="Texts that each model generates at a time.")] = 8,
    max_context: Annotated[
        int | None, typer.Option(help="Tokens of a text with its prompt: what the model reads, 1,024 at most.")
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait for each model.")] = 64,
    specials: Annotated[
        str,
        typer.Option(metavar="parse|plain", help="Special tokens in prompts and texts of clients: plain text, or parse "
                     "them, for clients that you trust; messages of a chat are always plain."),
    ] = "plain",
    body: Annotated[
        int, typer.Option(help="Bytes of a request at most; while a large one is parsed, others wait.")
    ] = 1 << 20,
    weights: WeightsOption = "auto",
    dtype: Dtype = "fp32",
    device: Annotated[str, typer.Option(help="cpu, cuda, mps, or auto: the fastest there is.")] = "auto",
) -> int:  # fmt: skip
    """Serve models over HTTP: OpenAI's routes and some of ours. Each request is a line of JSON on stdout."""
    named = name_models(checkpoints)
    check_serve_extra()
    import_torch()
    from regard.inference.load import load_for_inference
    from regard.serve.app import create_app
    from regard.web import access_log
    from regard.web.server import open_socket, socket_url
    from regard.web.server import run_server as listen
    from regard.web.settings import ServerSettings

    said = {"host": host, "port": port, "keys": read_api_keys(api_key, api_key_file), "slots": slots,
            "max_queue": max_queue, "specials": specials, "body": body}  # fmt: skip
    settings = config_from_options(
        ServerSettings, said | ({} if max_context is None else {"max_context": max_context}), {"keys": "--api-key"}
    )
    with open_socket(settings) as found:
        models = {name: load_for_inference(path, device, dtype, weights) for name, path in named.items()}
        app = create_app(models, settings)
        print_stderr(
            f"{', '.join(named)} at {socket_url(found)}/v1{' with a key' if settings.keys else ''}; Ctrl-C ends it"
        )
        with access_log.log_to_stream(sys.stdout):
            return 128 + listen(app, found)


def name_models(checkpoints: list[str]) -> dict[str, str]:
    """Model names and their paths."""
    found: dict[str, str] = {}
    for word in checkpoints:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            name, path = model_name(word), word
        if not name or not path:
            raise config.ConfigError(f"CHECKPOINT {word!r}: expected a folder, or NAME=FOLDER")
        if name in found:
            raise config.ConfigError(f"CHECKPOINT {word}: {found[name]} is called {name} too; give one of them another "
                                     f"name, as in other={path}")  # fmt: skip
        found[name] = path
    return found


def model_name(path: str) -> str:
    """The folder's name, or the id of a downloaded model."""
    return Path(path).resolve().name if Path(path).exists() else path.removeprefix("hf:").partition("@")[0]


def read_api_keys(key: str | None, file: Path | None) -> list[str]:
    """API keys from the options, or else from the environment."""
    if key is not None and file is not None:
        raise config.ConfigError(f"--api-key-file {file}: there is an --api-key as well; keep one of the two")
    if file is not None:
        lines = [line.strip() for line in file.read_text(encoding="utf8", errors="replace").splitlines()]
        if not (found := [line for line in lines if line]):
            raise config.DataError(f"--api-key-file {file}: holds no key; write one into it, a line each")
        return found
    said = os.environ.get(KEY) if key is None else key
    if said == "":
        raise config.ConfigError(f"{KEY if key is None else '--api-key'}: it is empty; give a key, or leave it out")
    return [] if said is None else [said]


def check_serve_extra() -> None:
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise config.ConfigError(f"serve needs {' and '.join(missing)}, which is not here; pip install 'regard[serve]'")
