"""Record of a run, its verdicts and its renderings. Imports neither ray nor torch."""
