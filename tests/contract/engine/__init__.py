"""What every engine promises, asked of each of them.

A package, and its fixtures are the package's: an engine is opened once for all files, and closed
before other tests look at the processes of this one.
"""
