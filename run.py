"""``python run.py sampler=localleap cache=elastic``: see README.md."""

from dllm.cli import main

if __name__ == "__main__":
    main()
