"""Time `make repro` and write the README's sentence on it: `make time-repro`, on an idle machine.

The environment is made before; all cells are trained, whatever an earlier call left. It writes nothing where
the command fails, or where other processes have more than a tenth of the cores before or after it.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from pipeline.files import write_text
from pipeline.place import cores
from pipeline.provenance.identity import machine
from pipeline.schema import ROOT

BEGIN = "<!-- time: written by `make time-repro` -->\n"
END = "<!-- end -->"
# Share of the cores that other processes may use before and after it is timed. Meanwhile its own workers, for
# which nobody waits, cannot be told from them.
OTHERS = 0.1
# Seconds for which they are watched.
WATCHED = 5
# Instruction sets, which the time depends on, as identity.machine names them; the widest first.
WIDEST = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
# The first numbers of /proc/stat: user, nice, system.
OF_PROCESSES = slice(0, 3)


def main() -> int:
    """Run it, and write the sentence; returns the exit code."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    sentence_in(text)  # before half an hour is spent
    if not is_idle():
        return 1
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pipeline", "reproduce", "--force"], cwd=ROOT)
    seconds = time.monotonic() - began
    if done.returncode:
        return done.returncode
    if not is_idle():
        return 1
    sentence = in_words(seconds, cores(), machine()["processor"])
    write_text(readme, text.replace(sentence_in(text), sentence))
    print(sentence)
    return 0


def sentence_in(text: str) -> str:
    """The sentence in the README's block; SystemExit where the block is missing."""
    if not (found := re.search(f"{re.escape(BEGIN)}(.*?)\n{END}", text, re.DOTALL)):
        raise SystemExit(f"error: README.md: the block {BEGIN.strip()!r} is missing")
    return found[1]


def in_words(seconds: float, count: int, processor: str) -> str:
    """`make repro` takes 28 minutes on 2 cores (Intel Xeon 2.50GHz with AVX-512)."""
    words = processor.replace("(R)", "").split()
    name = " ".join(word for word in words if not re.fullmatch(r"[a-z_]\w*", word))
    widest = next((title for instruction_set, title in WIDEST.items() if instruction_set in words), "")
    if widest:
        name += f" with {widest}"
    minutes = max(round(seconds / 60), 1)
    time_taken = f"{minutes} minute{'s' * (minutes > 1)}"
    return f"`make repro` takes {time_taken} on {count} core{'s' * (count > 1)} ({name})."


def is_idle() -> bool:
    """Whether other processes leave the cores alone; says so where not."""
    before = busy_seconds()
    time.sleep(WATCHED)
    others = (busy_seconds() - before) / (WATCHED * cores())
    if others > OTHERS:
        print(f"not written: other processes take {others:.0%} of the cores", file=sys.stderr)
    return others <= OTHERS


def busy_seconds() -> float:
    """Processor time of all processes of this machine since it began; 0 where Linux does not say."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    return sum(map(int, first[OF_PROCESSES])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
