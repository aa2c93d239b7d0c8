"""`python -m nccl_forensics` is `nccl-forensics`."""

from nccl_forensics.cli import main

if __name__ == "__main__":
    main()
