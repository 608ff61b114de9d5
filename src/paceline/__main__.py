"""`python -m paceline` is `paceline`."""

import sys

from paceline.cli.main import main

sys.exit(main())
