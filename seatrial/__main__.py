"""`python -m seatrial` does what the `seatrial` command does."""

from seatrial import main

if __name__ == "__main__":
    main()
