"""``python run.py sampler=localleap cache=elastic``: see README.md."""

from dllm.__main__ import main

if __name__ == "__main__":
    main()
