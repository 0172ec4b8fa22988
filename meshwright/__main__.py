"""`python -m meshwright` and `torchrun -m meshwright`: the console command."""

from meshwright.cli import main

if __name__ == "__main__":
    main()
