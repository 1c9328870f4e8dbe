# FedRepro with what requirements/base.lock pins:
#   docker build -t fedrepro . && docker run --rm -it -v fedrepro:/fedrepro fedrepro fedrepro reproduce
FROM debian:trixie-slim@sha256:d7e12182ce18b85b93007c1dedf31f2d29e01ccf3182cc4017c709b6259bc132
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --no-install-recommends -y ca-certificates git make python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home fedrepro && install -d -o fedrepro /fedrepro
USER fedrepro
WORKDIR /fedrepro
COPY --chown=fedrepro . .
RUN make install && rm -rf ~/.cache
ENV PATH=/fedrepro/.venv/bin:$PATH OMP_NUM_THREADS=1
CMD ["bash"]
