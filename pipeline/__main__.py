"""`python -m pipeline`: the command `fedrepro` of this checkout."""
from pipeline.commands.cli import main

main(prog_name="fedrepro")
