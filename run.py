"""``python run.py sampler=localleap cache=elastic``: see README.md."""

import sys

try:
    from dllm.app.command_line.main import main
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] == "dllm":
        raise
    print(f"Error: this Python lacks {missing.name}. Activate the environment: . .venv/bin/activate", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    main()
