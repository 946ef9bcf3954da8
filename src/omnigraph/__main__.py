"""`python -m omnigraph`: the command line where the console script is not on the path."""

import sys

from omnigraph.cli.main import main

sys.exit(main())
