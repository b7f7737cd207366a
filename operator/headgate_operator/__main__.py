"""`python -m headgate_operator`."""

import sys

from headgate_operator.app import main

sys.exit(main())
