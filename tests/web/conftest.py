"""One server for all tests that leave it as it was, and small ones."""

from serve.fixtures import models, plain, server, small  # noqa: F401  pytest finds them by their names here
