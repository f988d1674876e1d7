"""``python -m pfedbred`` is the command line."""

from pfedbred.cli import main

main()
