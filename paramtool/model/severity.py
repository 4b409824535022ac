"""How much a finding matters."""

ERROR, WARNING, NOTE, OFF = SEVERITIES = ("error", "warning", "note", "off")
"""An error fails a check, a warning and a note do not, and `off` is not looked for."""
