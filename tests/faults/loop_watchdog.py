"""`regard serve WORDS` with a watchdog on its event loop: GET /longest tells the longest time that the loop was not at
hand since the last time it was asked, in seconds. A program of its own."""

import asyncio
import sys
import time
from typing import Any

from regard.cli import main
from regard.serve import app as serving

TICK = 0.002
make = serving.create_app


class Watch:
    """Sleeps for a moment again and again; whatever that takes longer is time in which the loop did nothing else."""

    def __init__(self) -> None:
        self.longest, self.task = 0.0, None

    async def look(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(TICK)
            self.longest = max(self.longest, time.perf_counter() - before - TICK)


def application(*given: Any) -> Any:
    app, watch = make(*given), Watch()

    @app.get("/longest")
    async def longest() -> float:
        watch.task = watch.task or asyncio.create_task(watch.look())
        found, watch.longest = watch.longest, 0.0
        return found

    return app


if __name__ == "__main__":
    serving.create_app = application
    sys.exit(main(["serve", *sys.argv[1:]]))
