{{- define "incipit.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "incipit.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "incipit.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "incipit.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What pods are selected by: never changed. */}}
{{- define "incipit.selector" -}}
app.kubernetes.io/name: {{ include "incipit.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "incipit.labels" -}}
{{ include "incipit.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: incipit
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* (dict "root" $ "repository" r "tag" t): ours have the registry before them and the chart's version behind. */}}
{{- define "incipit.image" -}}
{{- $global := .root.Values.global.image -}}
{{- $tag := .tag | default $global.tag | default .root.Chart.AppVersion -}}
{{- with $global.registry }}{{ . }}/{{ end }}{{ .repository }}:{{ $tag }}
{{- end -}}

{{- define "incipit.secretName" -}}
{{- .Values.auth.existingSecret | default (printf "%s-router" (include "incipit.fullname" .)) -}}
{{- end -}}

{{- define "incipit.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (printf "%s-router" (include "incipit.fullname" .)) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "incipit.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "incipit.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The router's --config: only what was given. */}}
{{- define "incipit.routerOptions" -}}
{{- $r := .Values.router -}}
{{- $o := dict "host" "0.0.0.0" "port" $r.port "admin-host" "0.0.0.0" "admin-port" $r.metrics.port "state-dir" "/var/lib/incipit" "threads" $r.threads "policy" $r.policy -}}
{{- if $r.serviceDiscovery.enabled -}}
{{- $_ := set $o "service-discovery" "k8s" -}}
{{- if $r.serviceDiscovery.inferencePool -}}
{{- $_ := set $o "inference-pool" $r.serviceDiscovery.inferencePool -}}
{{- else -}}
{{- $own := merge (dict "app.kubernetes.io/component" "worker") (include "incipit.selector" . | fromYaml) -}}
{{- $pairs := list -}}
{{- range $key, $value := ($r.serviceDiscovery.selector | default $own) -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- $_ := set $o "k8s-selector" $pairs -}}
{{- end -}}
{{- with $r.serviceDiscovery.namespace }}{{ $_ := set $o "k8s-namespace" . }}{{ end -}}
{{- with $r.serviceDiscovery.port }}{{ $_ := set $o "k8s-port" . }}{{ end -}}
{{- if $r.serviceDiscovery.clusterWide }}{{ $_ := set $o "k8s-all-namespaces" true }}{{ end -}}
{{- if $r.serviceDiscovery.writeDeletionCost }}{{ $_ := set $o "k8s-write-deletion-cost" true }}{{ end -}}
{{- end -}}
{{- with $r.shareRedis }}{{ $_ := set $o "share-redis" . }}{{ end -}}
{{- with $r.workerUrls }}{{ $_ := set $o "worker-urls" . }}{{ end -}}
{{- $given := dict "max-worker-requests" $r.maxWorkerRequests "home-weight" $r.homeWeight "cache-threshold" $r.cacheThreshold
  "balance-abs-threshold" $r.balanceAbsThreshold "balance-rel-threshold" $r.balanceRelThreshold
  "max-body-bytes" $r.maxPayloadSize "max-concurrent-requests" $r.maxConcurrentRequests
  "queue-size" $r.queueSize "max-retries" $r.retry.maxRetries
  "probe-misses" $r.healthCheck.failureThreshold "probe-hits" $r.healthCheck.successThreshold
  "probe-path" $r.healthCheck.endpoint -}}
{{- range $name, $value := $given -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $o $name $value }}{{ end -}}
{{- end -}}
{{- $seconds := dict "request-timeout" $r.requestTimeoutSecs "queue-timeout" $r.queueTimeoutSecs
  "probe-interval" $r.healthCheck.intervalSecs "probe-timeout" $r.healthCheck.timeoutSecs
  "drain-settle" $r.drain.settleSecs "drain-timeout" $r.drain.timeoutSecs -}}
{{- range $name, $value := $seconds -}}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $o $name (printf "%ds" (int64 $value)) }}{{ end -}}
{{- end -}}
{{- $_ := set $o "log-level" $r.logging.level -}}
{{- $_ := set $o "log-format" (ternary "json" "text" $r.logging.json) -}}
{{- if $r.tls.secretName -}}
{{- $_ := set $o "tls-cert-path" "/etc/incipit-tls/tls.crt" -}}
{{- $_ := set $o "tls-key-path" "/etc/incipit-tls/tls.key" -}}
{{- end -}}
{{- if .Values.auth.keysSecret }}{{ $_ := set $o "api-keys-file" "/etc/incipit-keys/keys" }}{{ end -}}
{{- toYaml (merge (deepCopy $r.options) $o) -}}
{{- end -}}

{{/* (dict "root" $ "entry" one of .Values.workers): the entry with what it leaves out, as YAML. */}}
{{- define "incipit.worker" -}}
{{- $w := mergeOverwrite (deepCopy .root.Values.workerDefaults) (deepCopy .entry) -}}
{{- $gpu := gt (int $w.gpu.count) 0 -}}
{{- $engines := dict
  "incipit" (dict "repository" (ternary "incipit-worker-cuda" "incipit-worker-cpu" $gpu) "tag" "" "port" 31000)
  "vllm" (dict "repository" "vllm/vllm-openai" "tag" "v0.10.0" "port" 8000)
  "sglang" (dict "repository" "lmsysorg/sglang" "tag" "v0.5.0" "port" 30000) -}}
{{- $engine := get $engines $w.engine -}}
{{- if not $w.image.repository }}{{ $_ := set $w.image "repository" $engine.repository }}{{ end -}}
{{- if not $w.image.tag }}{{ $_ := set $w.image "tag" $engine.tag }}{{ end -}}
{{- if not (int $w.port) }}{{ $_ := set $w "port" $engine.port }}{{ end -}}
{{- toYaml $w -}}
{{- end -}}

{{/* What clients call the model of a worker: a folder's last part, or the name on the hub. */}}
{{- define "incipit.modelName" -}}
{{- if .servedModelName }}{{ .servedModelName }}
{{- else if and (eq .engine "incipit") (hasPrefix "/" .model) }}{{ base .model }}
{{- else }}{{ .model }}
{{- end -}}
{{- end -}}

{{/* NixlConnector has one role for both; MooncakeConnector has two. */}}
{{- define "incipit.kvRole" -}}
{{- if eq .kvConnector "NixlConnector" }}kv_both{{ else if eq .role "prefill" }}kv_producer{{ else }}kv_consumer{{ end -}}
{{- end -}}
