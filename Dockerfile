# syntax=docker/dockerfile:1
# The node in a box. Two stages: the first builds a virtual environment, the second holds nothing else.
#
#   docker build -t noloco-node .
#   docker run --init --gpus all --stop-timeout 30 -p 31337:31337 \
#       -v noloco:/data -v ./swarm.toml:/etc/noloco/swarm.toml:ro noloco-node
#
# A stop saves a checkpoint first, within 20 s; without --stop-timeout Docker kills after 10 s. Without --init a stop in
# the very first second is not heard: the kernel keeps signals from process 1 until it has asked for them.
#
# BASE_IMAGE: any Debian or Ubuntu image with Python 3.11 or newer in its package index; the CUDA runtime by default.
# TORCH_INDEX: the package index of the torch build (empty: the default index, which has the CUDA build).
ARG BASE_IMAGE=docker.io/nvidia/cuda:12.8.1-base-ubuntu24.04

FROM ${BASE_IMAGE} AS base
ENV DEBIAN_FRONTEND=noninteractive PYTHONDONTWRITEBYTECODE=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 ca-certificates \
    && rm -rf /var/lib/apt/lists/*

FROM base AS build
ARG TORCH_INDEX=""
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/noloco
WORKDIR /src
COPY requirements.lock ./
RUN version="$(sed -n 's/^torch==//p' requirements.lock)" \
    && /opt/noloco/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "torch==${version}"
COPY pyproject.toml README.md LICENSE ./
COPY noloco_node ./noloco_node
RUN /opt/noloco/bin/pip install --no-cache-dir --constraint requirements.lock .

FROM base
LABEL org.opencontainers.image.title="noloco-node" \
    org.opencontainers.image.description="A volunteer node of a NoLoCo swarm" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 noloco \
    && useradd --uid 10001 --gid noloco --no-create-home --home-dir /data --shell /usr/sbin/nologin noloco \
    && install -d -o noloco -g noloco -m 0700 /data && install -d /etc/noloco \
    && find / -xdev -type f -perm /6000 -exec chmod ug-s {} +
COPY --from=build /opt/noloco /opt/noloco
COPY LICENSE /usr/share/doc/noloco-node/LICENSE
ENV PATH=/opt/noloco/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/data \
    HF_HOME=/data/huggingface \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NOLOCO_DATA_DIR=/data \
    NOLOCO_SPEC=/etc/noloco/swarm.toml
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 31337/tcp 9464/tcp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 \
    CMD ["noloco-node", "status", "--healthy"]
ENTRYPOINT ["noloco-node"]
CMD ["run"]
