"""Adds the folder of the scripts of the studies to the import path."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "studies"))
