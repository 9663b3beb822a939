"""`python -m instar`: the same as the command `instar`."""

from instar.cli import main

main()
