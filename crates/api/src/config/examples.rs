//! Examples of settings, as a configuration file contains them.

pub(super) const EXAMPLE_RULES: &str = "\
rules:
- terminatePod:
    podLabelSelector:
      matchExpressions:
      - key: example.com/pod-safe-to-fail
        operator: In
        values: [\"true\"]
    forcefulTerminationGracePeriod: 5m
    action: Fail
- taintNodeOutOfService:
    nodeSelector:
      matchLabels:
        example.com/pool: bare-metal
    unreachableNodeTimeout: 15m
";
