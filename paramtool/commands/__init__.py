"""One module for each thing that people ask for.

Each joins formats, passes and the engine, returns data and prints nothing.  The command line is one call of these, and
so is the public library.
"""
