{{/* What follows from Salvor's code: `salvor docs --chart` writes it. */}}
{{- define "salvor.data" -}}
{{ .Files.Get "files/salvor.yaml" }}
{{- end -}}

{{/* The enabled recoveries, separated by spaces. */}}
{{- define "salvor.enabled" -}}
{{- $data := include "salvor.data" . | fromYaml -}}
{{- $on := list -}}
{{- range $name := $data.recoveries -}}
{{- if dig $name "enabled" false $.Values.recoveries }}{{ $on = append $on $name }}{{ end -}}
{{- end -}}
{{- if not $on -}}
{{- fail (printf "no recovery is enabled, and nothing is installed that is not: set recoveries.NAME.enabled=true for one or more of %s" (join ", " $data.recoveries)) -}}
{{- end -}}
{{- join " " $on -}}
{{- end -}}

{{/* The configuration file. */}}
{{- define "salvor.config" -}}
{{- $on := without (splitList " " (include "salvor.enabled" .)) "" -}}
{{- $config := deepCopy .Values.config -}}
{{- if hasKey $config "controllers" }}{{ fail "config.controllers cannot be used: set recoveries.NAME.enabled=true instead" }}{{ end -}}
{{- $_ := set $config "apiVersion" "config.salvor.dev/v1alpha1" -}}
{{- $_ := set $config "kind" "Configuration" -}}
{{- $_ := set $config "controllers" $on -}}
{{- if .Values.dryRun }}{{ $_ := set $config "dryRun" true }}{{ end -}}
{{- if has "zombie" $on -}}
{{- $_ := set $config "featureGates" (mergeOverwrite (default (dict) $config.featureGates) (dict "FailureRecoveryPolicy" true)) -}}
{{- end -}}
{{- $election := default (dict) $config.leaderElection -}}
{{- if not (dig "enabled" true $election) }}{{ fail "config.leaderElection.enabled cannot be false: two replicas would act at once" }}{{ end -}}
{{- $_ := set $config "leaderElection" (mergeOverwrite $election (dict "leaseNamespace" .Release.Namespace)) -}}
{{- if dig "webhooks" "url" "" $config }}{{ fail "config.webhooks.url is how a Salvor outside the cluster is called: remove it, and the chart brings a Service" }}{{ end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The port of an address such as 0.0.0.0:8080, which other hosts must reach. */}}
{{- define "salvor.port" -}}
{{- if regexMatch "^(127\\.|\\[::1\\])" .address }}{{ fail (printf "config.%s %s cannot be reached by other hosts: use for example 0.0.0.0:8080" .field .address) }}{{ end -}}
{{- regexFind "[0-9]+$" .address -}}
{{- end -}}

{{/* The ports that are served, as YAML: metrics, webhooks and page, each 0 if it is not reached from outside of the pod. */}}
{{- define "salvor.ports" -}}
{{- $data := include "salvor.data" . | fromYaml -}}
{{- $config := include "salvor.config" . | fromYaml -}}
metrics: {{ include "salvor.port" (dict "field" "bind" "address" (dig "bind" $data.defaults.bind $config)) }}
{{- $webhooks := false -}}
{{- range $name := $config.controllers -}}
{{- if hasKey $data.webhooks $name }}{{ $webhooks = true }}{{ end -}}
{{- end }}
{{- if and $webhooks (dig "webhooks" "enabled" true $config) (not (dig "dryRun" false $config)) }}
webhooks: {{ include "salvor.port" (dict "field" "webhooks.bind" "address" (dig "webhooks" "bind" $data.defaults.webhooksBind $config)) }}
{{- else }}
webhooks: 0
{{- end }}
{{- $page := dig "page" "bind" $data.defaults.pageBind $config }}
{{- if and (dig "page" "enabled" false $config) (not (regexMatch "^(127\\.|\\[::1\\])" $page)) }}
page: {{ regexFind "[0-9]+$" $page }}
{{- else }}
page: 0
{{- end }}
{{- end -}}

{{- define "salvor.selector" -}}
app.kubernetes.io/name: salvor
{{- end -}}

{{- define "salvor.labels" -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.extraLabels) (include "salvor.selector" . | fromYaml)) -}}
{{- end -}}

{{/* The plural of a kind, as Kubernetes guesses it. */}}
{{- define "salvor.plural" -}}
{{- $name := lower . -}}
{{- if regexMatch "[^aeiou]y$" $name }}{{ trimSuffix "y" $name }}ies
{{- else if regexMatch "(s|x|ch|sh)$" $name }}{{ $name }}es
{{- else }}{{ $name }}s
{{- end -}}
{{- end -}}

{{/* Every right, as YAML: a list of namespace, group, resource, name and verbs. */}}
{{- define "salvor.rights" -}}
{{- $data := include "salvor.data" . | fromYaml -}}
{{- $config := include "salvor.config" . | fromYaml -}}
{{- $ports := include "salvor.ports" . | fromYaml -}}
{{- $here := .Release.Namespace -}}
{{- $mode := ternary "dryRun" "acting" (dig "dryRun" false $config) -}}
{{- $lease := dig "leaderElection" "leaseName" $data.defaults.leaseName $config -}}
{{- $rows := list
  (dict "namespace" $here "group" "coordination.k8s.io" "resource" "leases" "name" "" "verbs" (list "create"))
  (dict "namespace" $here "group" "coordination.k8s.io" "resource" "leases" "name" $lease "verbs" (list "get" "update")) -}}
{{- $taints := false -}}
{{- range dig "failureRecoveryPolicy" "rules" (list) $config }}{{ if hasKey . "taintNodeOutOfService" }}{{ $taints = true }}{{ end }}{{ end -}}
{{- $chosen := dict
  "taintNodeOutOfService" (toString $taints)
  "lostPods" (dig "failureRecoveryPolicy" "jobs" "lostPods" "RaiseLimit" $config)
  "deleteFinishedJobs" (toString (dig "job" "deleteFinishedJobs" false $config))
  "userRBACAdmissionCheck" (toString (and (dig "appwrapper" "userRBACAdmissionCheck" true $config) (dig "webhooks" "enabled" true $config)))
  "clusterAPI" (dig "repair" "clusterAPI" "Remediate" $config) -}}
{{- range $name := $config.controllers -}}
{{- $rights := index $data.rights $name -}}
{{- $rows = concat $rows (index $rights $mode) -}}
{{- range $option, $values := $rights.options -}}
{{- $rows = concat $rows (dig (get $chosen $option) $mode (list) $values) -}}
{{- end -}}
{{- end -}}
{{- if has "appwrapper" $config.controllers -}}
{{- range $kind := dig "appwrapper" "wrappedKinds" $data.defaults.wrappedKinds $config -}}
{{- $name := first (splitList ":" $kind) -}}
{{- $parts := splitn "." 2 $name -}}
{{- $plural := include "salvor.plural" $parts._0 -}}
{{- if contains ":" $kind }}{{ $plural = last (splitList ":" $kind) }}{{ end -}}
{{- $rows = append $rows (dict "namespace" "" "group" (default "" $parts._1) "resource" $plural "name" "" "verbs" (index $data.wrapped $mode)) -}}
{{- end -}}
{{- end -}}
{{- if $ports.webhooks -}}
{{- $rows = append $rows (dict "namespace" $here "group" "" "resource" "secrets" "name" "salvor-webhooks" "verbs" (list "get" "update")) -}}
{{- range $name := $config.controllers -}}
{{- range $kind, $entries := index $data.webhooks $name -}}
{{- $rows = append $rows (dict "namespace" "" "group" "admissionregistration.k8s.io" "resource" (printf "%ss" (lower $kind)) "name" "salvor" "verbs" (list "get" "update")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
rows:
{{ toYaml $rows }}
{{- end -}}

{{/* The rules of the role in one namespace, or of the ClusterRole if it is empty. */}}
{{- define "salvor.rules" -}}
{{- $verbs := dict -}}
{{- range .rows -}}
{{- if eq .namespace $.namespace -}}
{{- $key := printf "%s %s %s" .group .resource .name -}}
{{- $_ := set $verbs $key (concat (default (list) (get $verbs $key)) .verbs) -}}
{{- end -}}
{{- end -}}
{{- $rules := list -}}
{{- range $key := keys $verbs | sortAlpha -}}
{{- $parts := splitList " " $key -}}
{{- $sorted := list -}}
{{- range $verb := list "get" "list" "watch" "create" "update" "patch" "delete" -}}
{{- if has $verb (get $verbs $key) }}{{ $sorted = append $sorted $verb }}{{ end -}}
{{- end -}}
{{- $rule := dict "apiGroups" (list (index $parts 0)) "resources" (list (index $parts 1)) "verbs" $sorted -}}
{{- if index $parts 2 }}{{ $_ := set $rule "resourceNames" (list (index $parts 2)) }}{{ end -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end -}}

{{/* The memory limit in mebibytes. */}}
{{- define "salvor.memory" -}}
{{- $data := include "salvor.data" . | fromYaml -}}
{{- $limit := $data.memory.base | int -}}
{{- range $name := without (splitList " " (include "salvor.enabled" .)) "" -}}
{{- $limit = add $limit (index $data.memory $name | int) -}}
{{- end -}}
{{- $limit -}}
{{- end -}}
