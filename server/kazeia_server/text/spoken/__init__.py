"""Numbers, signs and units in words, for voices that do not read them by themselves."""
