#!/usr/bin/python3 -IS
"""HEALTHCHECK of the image: exit code 0 when the server can be asked for speech, else 1."""

import http.client
import os
import sys


def main() -> int:
    """Ask `/readyz` where the settings say that the server listens; the answer is printed."""
    # Linux takes the addresses that stand for all of them, 0.0.0.0 and ::, for its own.
    host = os.environ.get("KZTTS_HOST") or "127.0.0.1"
    port = os.environ.get("KZTTS_PORT") or "8080"
    try:
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        sys.stdout.write(answer.read(4096).decode("utf-8", "replace"))
        return 0 if answer.status == 200 else 1
    except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
        sys.stdout.write(f"no answer at {host}, port {port}: {error!r}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
