# The demo on a CPU: docker build -t paceline . && docker run --rm -it paceline
# Any other command: docker run --rm -it -v "$PWD":/work -w /work --user "$(id -u)" paceline paceline run -n 4 train.py
FROM python:3.11-slim

# torch for CPUs: without this, 5.4 GB are installed.
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu PIP_NO_CACHE_DIR=1

WORKDIR /paceline
COPY constraints.txt ./
RUN pip install --constraint constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --constraint constraints.txt '.[examples]'
COPY examples examples

# Runs write to runs/ in the folder where they are started.
RUN useradd --create-home paceline && chown paceline /paceline
USER paceline
CMD ["paceline", "compare", "-p", "bsp", "-p", "all-reduce", "-p", "ssp:bound=3", "-p", "dssp", "-p", "sync-switch", \
     "-p", "asp", "--scenario", "examples/scenarios/one_slow.toml", "--learning-rate-rule", "linear", \
     "--target", "accuracy>=0.9", "examples/digits.py", "--epochs", "20"]
