"""`python -m tilewright`: the command line."""

from tilewright.cli import app

if __name__ == "__main__":
    app(prog_name="tilewright")
