"""`python -m kazeia_client` is `kazeia-client`."""

from __future__ import annotations

import sys

from kazeia_client.cli import main

sys.exit(main())
