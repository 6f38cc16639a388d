"""`python -m distrff`: the command line where its script is not on the path."""

from distrff.cli import main

if __name__ == "__main__":
    main(prog_name="python -m distrff")
