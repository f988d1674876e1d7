"""``python -m pfedbred`` is the command line."""

from pfedbred.cli.main import main

main()
