# docker build -t dllm .                                   for CPUs
# docker build --build-arg TORCH_INDEX=URL -t dllm .       URL of PyTorch's builds for your CUDA
# docker run -p 8000:8000 -e DLLM_API_KEY=KEY -v /weights:/weights:ro dllm model=NAME model.path=/weights
FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY dllm ./dllm
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url ${TORCH_INDEX} torch
RUN pip install --no-cache-dir -c constraints.txt '.[serve,constraints]'
RUN useradd --system --uid 10001 dllm
USER dllm
WORKDIR /tmp
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["dllm", "serve", "task.host=0.0.0.0", "task.port=8000"]
