"""Whether what is long is done at full size, which `make test-full` asks for."""

import os

FULL = os.environ.get("REGARD_TESTS") == "full"
