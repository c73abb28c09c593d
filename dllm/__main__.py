"""``python -m dllm``, which ``torchrun -m`` starts."""

from dllm.app.command_line.main import main

if __name__ == "__main__":
    main()
