"""The front doors: one module a protocol, all of them thin over the synthesis service."""
