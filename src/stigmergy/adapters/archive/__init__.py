"""What is kept of a log outside its journal: flight logs, the folder they are archived in, and the file of holds."""

from stigmergy.adapters.archive.flight import FlightFile, open_flight, open_whole_flight
from stigmergy.adapters.archive.folder import FolderArchive, HoldsFile
from stigmergy.adapters.archive.newfile import NewFile

__all__ = ["FlightFile", "FolderArchive", "HoldsFile", "NewFile", "open_flight", "open_whole_flight"]
