"""`python -m paramtool` is `paramtool`."""

from paramtool.cli.main import main

main()
