"""The one synthesis service behind every door: admission, utterances, guards, voices' interface."""
