"""`python -m coachrl`: the command line."""

from coachrl.cli.main import main

main()
