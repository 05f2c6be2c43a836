"""How Ray's entrances treat requests, with the cluster's token and without."""
