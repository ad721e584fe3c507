# docker build -t steep . && docker run -v "$PWD:/work" steep train model.onnx …
FROM debian:12 AS build
RUN apt-get update && apt-get install -y --no-install-recommends \
    ca-certificates g++ git make python3-dev python3-venv
COPY . /steep
WORKDIR /steep
RUN make wheel

FROM debian:12-slim
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv libstdc++6 \
    && rm -rf /var/lib/apt/lists/* && python3 -m venv /opt/steep
COPY --from=build /steep/dist /tmp/dist
RUN /opt/steep/bin/pip install --no-cache-dir /tmp/dist/steep-*-cp311-*.whl && rm -r /tmp/dist
ENV PATH=/opt/steep/bin:$PATH
WORKDIR /work
ENTRYPOINT ["steep"]
