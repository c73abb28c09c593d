"""``python run.py sampler=localleap cache=elastic``: see README.md."""

from dllm.app.command_line.main import main

if __name__ == "__main__":
    main()
