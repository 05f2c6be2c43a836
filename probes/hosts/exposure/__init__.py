"""HOSTS: who can give orders to Ray, and where Ray listens."""
