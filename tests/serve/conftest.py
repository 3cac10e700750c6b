"""One server for all tests that leave it as it was."""

from serve.fixtures import client, models, plain, server, small  # noqa: F401  pytest finds them by their names here
