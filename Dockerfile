# One static binary, nothing else: no shell, no package manager, no root.
#
#   docker build -t salvor .

FROM rust:1.95-alpine AS build
# ring compiles C; the static C library comes with it.
RUN apk add --no-cache build-base
WORKDIR /src
# Not rust-toolchain.toml: the image is the toolchain, and must not fetch another.
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY lab lab
# On Alpine the target is musl, which links statically.
RUN cargo build --release --locked --package salvor
# The hook by which tests end or hold the process is in debug builds only.
RUN ! grep -q SALVOR_TEST_CRASH target/release/salvor

FROM alpine AS certificates
RUN apk add --no-cache ca-certificates

FROM scratch
# Only for a kubeconfig that relies on the system's roots; in a pod the cluster's own certificate is used.
COPY --from=certificates /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /src/target/release/salvor /salvor
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/salvor"]
CMD ["run"]
