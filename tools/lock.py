"""Write requirements.lock: exact versions, with hashes, of everything that the service and the servers' drivers need.

Run it by `make lock`, which installs pip-tools.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("serve", "postgres", "redis")
HEADER = """\
# Exact versions with hashes of what `mainspring[serve,postgres,redis]` needs. Made by `make lock`; install with
#     pip install --require-hashes -r requirements.lock && pip install --no-deps .
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "lock.txt"
        command = [sys.executable, "-m", "piptools", "compile", "--quiet", "--generate-hashes", "--strip-extras"]
        command += ["--no-emit-index-url", "--no-emit-trusted-host", "--no-emit-find-links", "--no-header"]
        command += ["--no-annotate", *(f"--extra={extra}" for extra in EXTRAS), "-o", str(target), "pyproject.toml"]
        subprocess.run(command, cwd=ROOT, check=True)
        lines = target.read_text(encoding="utf-8")
    first = re.search(r"^[a-z]", lines, re.MULTILINE)
    assert first is not None
    (ROOT / "requirements.lock").write_text(HEADER + lines[first.start() :], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
