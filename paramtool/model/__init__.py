"""What a checkpoint is: named windows on storages, and who shares what.  Standard library only."""
