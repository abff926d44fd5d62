"""A process for the tests of supervision: says ready, then does what its specification tells."""

import subprocess
import sys
import time
from pathlib import Path

import msgspec

from agentrl.runtime.child import read_spec, tell


class Spec(msgspec.Struct):
    do: str
    scratch: str = ""


class Ready(msgspec.Struct):
    pid: int
    grandchild: int = 0


def main() -> None:
    spec = read_spec(Spec, scratch=lambda spec: spec.scratch)
    if spec.do == "die":
        print("the cause, in the last line", file=sys.stderr)
        sys.exit(3)
    if spec.do == "chatty":
        print("printed at import")
        subprocess.run(["echo", "printed by a program"], check=True)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if spec.do == "silent":
        time.sleep(600)
    import os

    tell(Ready(os.getpid(), grandchild.pid))
    if spec.do == "chatty":
        # More than a pipe that nobody reads would take.
        subprocess.run([sys.executable, "-c", "print('x' * 200_000)"], check=True)
        (Path(spec.scratch) / "done").touch()
    time.sleep(600)


if __name__ == "__main__":
    main()
