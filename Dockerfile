# Three images from one file: headgate, headgate-agent, headgate-spark. Any Debian-like BASE with Python 3.11 or newer will do.
#   docker build --target headgate -t headgate:dev .          (or `make images`, which needs no container engine)
# Every image is "its dependencies" and then, as the only layer that changes with the sources, /opt/headgate.
# Behind a proxy that signs with its own authority: mount its bundle for the build and name it, e.g. with buildah
#   --volume BUNDLE:/run/build-ca.crt:ro --build-arg PIP_CERT=/run/build-ca.crt. Nothing of it stays in an image.
ARG BASE=python:3.12-slim

FROM ${BASE} AS base
RUN grep -q '^headgate:' /etc/passwd || { echo 'headgate:x:10001:10001:Headgate:/tmp:/usr/sbin/nologin' >>/etc/passwd \
    && echo 'headgate:x:10001:' >>/etc/group; }
# No bytecode is written at run time: the root is read-only, and all of it is compiled here. Python's own modules too: the official images
# delete their bytecode, and buildah sets the times of all files to 0, so that bytecode with times is out of date.
RUN python3 -m compileall -q -f --invalidation-mode unchecked-hash -x '/(test|tests|idlelib|lib2to3|turtledemo|site-packages)/' \
    "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
ENV PATH=/opt/headgate/bin:/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/opt/headgate:/opt/headgate/operator \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LANG=C.UTF-8
WORKDIR /opt/headgate

FROM base AS wheels
ARG PIP_CERT
ARG PIP_CACHE_DIR
RUN python3 -c 'import ensurepip' 2>/dev/null \
    || { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv; }
RUN python3 -m venv /opt/venv
COPY tools/images/slim.py /run/slim.py
COPY requirements-image.lock /run/
RUN /opt/venv/bin/pip install --disable-pip-version-check --progress-bar off --no-compile --no-deps --only-binary :all: \
        --require-hashes -r /run/requirements-image.lock \
    && python3 /run/slim.py /opt/venv/lib/python3*/site-packages && rm -f /opt/venv/bin/pip*

FROM wheels AS spark-wheels
ARG PIP_CERT
ARG PIP_CACHE_DIR
COPY requirements-spark.lock /run/
# PySpark is published as a source archive only: pip builds it here, with build tools that do not get into any image.
RUN python3 -m venv /run/build-venv \
    && /run/build-venv/bin/pip install --disable-pip-version-check --progress-bar off --no-compile --no-deps --require-hashes \
        --target /opt/spark-packages -r /run/requirements-spark.lock \
    && python3 /run/slim.py /opt/spark-packages

FROM base AS sources
COPY tools/images/lay_out.py pyproject.toml /src/
COPY testbed_runtime /src/testbed_runtime
COPY operator /src/operator
RUN python3 /src/lay_out.py /src /opt/headgate

FROM base AS headgate-deps
COPY --from=wheels /opt/venv /opt/venv
USER 10001:10001
CMD ["headgate", "--help"]

# Packet faults need NET_ADMIN, which Kubernetes gives to root only: all other capabilities are to be dropped by the pod.
FROM headgate-deps AS headgate-agent-deps
USER 0:0
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends nftables iptables iproute2 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* /usr/share/doc/* /usr/share/man/*
ENV XTABLES_LOCKFILE=/tmp/xtables.lock
CMD ["python", "-m", "testbed_runtime.entry.agent"]

FROM headgate-deps AS headgate-spark-deps
USER 0:0
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq \
    && { apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless procps \
        || apt-get install -y -qq --no-install-recommends openjdk-21-jre-headless procps; } \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* /usr/share/doc/* /usr/share/man/*
COPY --from=spark-wheels /opt/spark-packages /opt/spark-packages
COPY tools/images/spark-entry.sh /opt/spark-entry
ENV SPARK_HOME=/opt/spark-packages/pyspark PYTHONPATH=/opt/headgate:/opt/headgate/operator:/opt/spark-packages \
    PYSPARK_PYTHON=/opt/venv/bin/python PYSPARK_DRIVER_PYTHON=/opt/venv/bin/python
USER 10001:10001
ENTRYPOINT ["/opt/spark-entry"]
CMD ["python", "-m", "testbed_runtime.entry.spark"]

# What `--target` names. The last one is what a build without a target makes.
FROM headgate-agent-deps AS headgate-agent
COPY --from=sources /opt/headgate /opt/headgate

FROM headgate-spark-deps AS headgate-spark
COPY --from=sources /opt/headgate /opt/headgate

FROM headgate-deps AS headgate
COPY --from=sources /opt/headgate /opt/headgate
