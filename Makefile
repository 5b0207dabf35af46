# Everything a contributor or CI runs. `make test` is the whole of it.
.PHONY: test quick circles size docs control-plane bench-appwrapper bench-embedded bench-eviction bench-job bench-nodes bench-repair bench-simulate bench-simulate-truth bench-zombie choosing repair-incidents swarm

# Formatting, lints, docs, dependency policy, and every test, on the real control plane.
test:
	tools/test

# The inner loop: pure crates only.
quick:
	cargo test -p salvor-api -p salvor-recovery

# No circle of imports in a crate.
circles:
	cargo run --quiet -p salvor-xtask -- circles

# How large each crate is, beside its number in docs/develop/architecture.md.
size:
	cargo run --quiet -p salvor-xtask -- size

# Checks the links of all pages, and builds a site of them: target/book/index.html.
docs:
	tools/docs

# Builds the pinned etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl (once).
control-plane:
	control-plane/build

# 500 AppWrappers to Running and to Succeeded, beside CodeFlare's controller; writes docs/results/appwrappers.md.
bench-appwrapper:
	cargo run --release -p salvor-bench -- appwrapper

# The embedded API server: requests per second, a watch fanned out, and memory per stored pod.
bench-embedded:
	cargo run --release -p salvor-bench -- embedded

# 1,000 Jobs of one pod and one of 2,000, beside kube-controller-manager; writes docs/results/jobs.md.
bench-job:
	cargo run --release -p salvor-bench -- job

# 1,000 simulated nodes with 10,000 pods on the real control plane.
bench-nodes:
	cargo run --release -p salvor-bench -- nodes

# Memory at rest and storms of zombie recovery, beside bare requests and beside Kueue; writes docs/results/zombie.md.
bench-zombie:
	cargo run --release -p salvor-bench -- zombie

# Emptying nodes, beside bare requests; writes docs/results/eviction.md.
bench-eviction:
	cargo run --release -p salvor-bench -- eviction

# 10,000 nodes under one repair policy, 1,000 of them sick; writes docs/results/repair.md.
bench-repair:
	cargo run --release -p salvor-bench -- repair

# A virtual hour of 1,000 nodes with 10,000 pods, with mixed work, and of 5,000 nodes; writes docs/results/simulate.md.
bench-simulate:
	cargo run --release -p salvor-bench -- simulate

# The scenarios of docs/scenarios/truth in virtual time and on the real control plane; writes docs/results/simulate-truth.md.
bench-simulate-truth:
	cargo run -p salvor-bench -- simulate-truth

# Runs the commands of docs/guides/choosing.md, and writes their tables into it.
choosing:
	cargo run --release -p salvor-bench -- choosing

# The same incidents under Karpenter's own repair rules and under Salvor, in virtual time; writes docs/results/repair-incidents.md.
repair-incidents:
	cargo run -p salvor-bench -- incidents

# Random small clusters under random faults, in virtual time, on all cores: a seed (4711) or some (1..10000).
# With HISTORY=FILE, one seed and every change of every object in it.
SEEDS ?= 1..1000
swarm:
	cargo run --profile swarm -p salvor-simulate --example swarm -- $(SEEDS) $(HISTORY)
