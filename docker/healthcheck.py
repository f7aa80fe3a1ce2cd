#!/usr/bin/python3 -IS
"""HEALTHCHECK of the image: exit code 0 when the server can be asked for speech."""

import http.client
import os
import sys

ADDRESSES_OF_ALL = ("", "0.0.0.0", "::", "*")


def main() -> int:
    """Ask `/readyz` where the settings say that the server listens; the answer is printed."""
    host = os.environ.get("KZTTS_HOST", "")
    port = int(os.environ.get("KZTTS_PORT") or 8080)
    connection = http.client.HTTPConnection(
        "127.0.0.1" if host in ADDRESSES_OF_ALL else host, port, timeout=5
    )
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        sys.stdout.write(answer.read(4096).decode("utf-8", "replace"))
        return 0 if answer.status == 200 else 1
    except OSError as error:
        sys.stdout.write(f"no answer at port {port}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
