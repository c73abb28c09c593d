"""The server's process and routes: socket, keys, guard, log, metrics, pages."""
