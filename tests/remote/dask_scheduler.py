"""Start a dask scheduler with certificates of its own: ``dask_scheduler.py FOLDER [ADDRESS]``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from distributed import Scheduler
from distributed.security import Security


async def main(folder: Path, address: str = "127.0.0.1") -> None:
    security = Security.temporary()
    # One certificate that all machines share; it is its own authority.
    (folder / "ca.pem").write_text(security.tls_ca_file)
    (folder / "cert.pem").write_text(security.tls_scheduler_cert)
    (folder / "key.pem").write_text(security.tls_scheduler_key)
    scheduler = Scheduler(
        host=address, protocol="tls", security=security, dashboard_address="127.0.0.1:0"
    )
    async with scheduler:
        print(scheduler.address, flush=True)  # noqa: T201 - the test reads it
        await scheduler.finished()


asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
