"""What every command that writes has in common: its options, where the output goes, how it is written and proved."""
