"""The front doors: one package a protocol, all of them thin over the synthesis service."""
