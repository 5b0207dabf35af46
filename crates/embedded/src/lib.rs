//! A Kubernetes API in memory.
