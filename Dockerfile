# dpmix in a container, from a wheel. Build the wheel first (CONTRIBUTING.md), for manylinux or in this Debian release:
#
#     docker build --tag dpmix .
#     docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/data" dpmix run sample.fcs
#
# On GPUs, take a CUDA image as base and install the extra cuda (docs/how-to/install.md).
FROM python:3.13-slim-bookworm

COPY dist/*.whl /tmp/
# The extras: AnnData, FlowJo workspaces, and maps. The wheel has its version.
# hadolint ignore=DL3013
RUN set -eu; \
    wheel=$(ls /tmp/dpmix_cytometry-*.whl); \
    pip install --no-cache-dir "${wheel}[anndata,flowjo,map]"; \
    rm /tmp/*.whl; \
    dpmix --version

# Matplotlib keeps a cache in the home folder.
ENV HOME=/tmp
WORKDIR /data
USER 1000
ENTRYPOINT ["dpmix"]
CMD ["--help"]
