#!/usr/bin/env bash
# Builds the image without a Docker engine and starts it once: `noloco-node version`, `--help`.
#
# Needs buildah and debootstrap, and root. The base image is made here from a Debian suite, so that nothing is pulled
# from an image registry. Where packages come from is this machine's affair, and no part of the image:
#   DEBIAN_SUITE, DEBIAN_MIRROR   for debootstrap (default: bookworm, its own mirror)
#   TORCH_INDEX                   package index of the torch build
#   BUILD_VOLUMES                 "host:container:ro ...", mounted while building only: pip.conf, wheels, certificates
#                                 (the image keeps their mount points, as empty files and folders)
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
suite="${DEBIAN_SUITE:-bookworm}"
base="localhost/noloco-base-${suite}"
tag="${IMAGE_TAG:-localhost/noloco-node:latest}"
work="${WORK_DIR:-$(mktemp -d)}"
export BUILDAH_ISOLATION="${BUILDAH_ISOLATION:-chroot}" STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"

make_base() {
    if [[ -n "$(buildah images --quiet --filter "reference=${base}" 2>/dev/null)" ]]; then
        return
    fi
    local root="${work}/root-${suite}" container
    debootstrap --variant=minbase "${suite}" "${root}" ${DEBIAN_MIRROR:+"${DEBIAN_MIRROR}"}
    rm -rf "${root}"/var/cache/apt/archives/*.deb "${root}"/var/lib/apt/lists/*
    container="$(buildah from scratch)"
    buildah add --quiet "${container}" "${root}" /
    buildah commit --quiet --rm "${container}" "${base}"
    rm -rf "${root}"
}

build() {
    local options=(--build-arg "BASE_IMAGE=${base}" --build-arg "TORCH_INDEX=${TORCH_INDEX:-}" --format docker) volume
    for volume in ${BUILD_VOLUMES:-}; do
        options+=(--volume "${volume}")
    done
    buildah build "${options[@]}" --tag "${tag}" "${here}"
}

start_once() {
    local container
    container="$(buildah from "${tag}")"
    # chroot isolation starts what it is told, so the entry point of the image is read and used as it stands
    local entry
    entry="$(buildah inspect --type image --format '{{index .OCIv1.Config.Entrypoint 0}}' "${tag}")"
    buildah run "${container}" -- "${entry}" version
    buildah run "${container}" -- "${entry}" --help
    # shellcheck disable=SC2016  # expanded inside the container
    buildah run "${container}" -- sh -c 'test "$(id -u)" = 10001 && test -w /data && test ! -w /opt/noloco'
    buildah rm "${container}" >/dev/null
}

make_base
build
start_once
echo "built and started ${tag}"
