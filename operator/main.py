"""kopf entry script: `kopf run operator/main.py`."""

import headgate_operator
