"""HOSTS: names, addresses and ports of the nodes, as they meet each other."""
