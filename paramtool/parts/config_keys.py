ROWS: dict[str, str] = {}
TOWERS: dict[str, dict[str, str]] = {}
