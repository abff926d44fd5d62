"""A process for the tests of supervision: says ready, then does what its specification tells."""

import subprocess
import sys
import time

import msgspec

from agentrl.runtime.child import read_spec, say_ready


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
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if spec.do == "silent":
        time.sleep(600)
    import os

    say_ready(Ready(os.getpid(), grandchild.pid))
    time.sleep(600)


if __name__ == "__main__":
    main()
