"""Samples on their way out: PCM, containers and codecs, time-stretch."""
