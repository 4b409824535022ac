"""The only code that moves tensor bytes: reading windows, writing files, comparing."""
