"""``python -m hap.cli``, which torchrun can start."""

from hap.cli import app

if __name__ == "__main__":
    app(prog_name="hap")
