"""`unshare -n python on_ray.py CHECKOUT FOLDER CELL...`: cells on a Ray cluster of two nodes, one of which
dies; prints what `fedrepro run` reply."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checkouts import surroundings
from clusters import Ray
from repository import PATIENCE, wait_for


def main(checkout: Path, at: Path, *cells: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # sockets' names must be short
        cluster = Ray(Path(short), str(Path(sys.executable).with_name("ray")))
        try:
            cluster.start()
            command = [sys.executable, "-m", "pipeline", "run", *cells, "--on", "ray"]
            command += ["--address", cluster.address]
            with open(at / "reply", "w") as reply:
                process = subprocess.Popen(
                    command,
                    cwd=checkout,
                    stdout=reply,
                    stderr=subprocess.STDOUT,
                    env=surroundings(**cluster.variables),
                )
            wait_for(lambda: len([*checkout.glob(".cells/*/seed-*.pt")]) >= 2 or process.poll() is not None)
            killed = time.monotonic()
            cluster.kill("n2")
            wait_for(lambda: "requeued" in (at / "reply").read_text() or process.poll() is not None)
            print(f"again after {time.monotonic() - killed:.1f} s")
            process.wait(PATIENCE)
            print((at / "reply").read_text(), f"exit {process.returncode}")
        finally:
            cluster.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
