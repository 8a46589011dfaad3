{{/* The name of all objects: at most 52 characters, so that a suffix fits. */}}
{{- define "pytriton.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $whole := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $whole .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "pytriton.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pytriton.labels" -}}
{{ include "pytriton.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "pytriton.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "pytriton.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "pytriton.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The headless service: always for a StatefulSet, otherwise if enabled. */}}
{{- define "pytriton.headless" -}}
{{- if or .Values.service.headless (eq .Values.workload "StatefulSet") }}true{{ end -}}
{{- end -}}

{{- define "pytriton.autoscaled" -}}
{{- if or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled }}true{{ end -}}
{{- end -}}

{{/* The ConfigMap key of a repository file; slashes are not allowed in keys. */}}
{{- define "pytriton.fileKey" -}}
{{- replace "/" ".." . -}}
{{- end -}}

{{/* Quote a word for the shell. */}}
{{- define "pytriton.word" -}}
{{- if regexMatch "^[A-Za-z0-9_./:=@*,+-]+$" . }}{{ . }}{{ else }}{{ printf "'%s'" (replace "'" `'"'"'` .) }}{{ end -}}
{{- end -}}

{{/* Format a setting's value for the environment. Helm parses integers as floats. */}}
{{- define "pytriton.settingText" -}}
{{- if kindIs "slice" . -}}
{{- $words := list -}}
{{- range . }}{{ $words = append $words (include "pytriton.word" (toString .)) }}{{ end -}}
{{- join " " $words -}}
{{- else if kindIs "map" . -}}
{{- $words := list -}}
{{- range $name, $value := . -}}
{{- range $one := ternary $value (list $value) (kindIs "slice" $value) -}}
{{- $words = append $words (include "pytriton.word" (printf "%s=%s" $name (include "pytriton.settingText" $one))) -}}
{{- end -}}
{{- end -}}
{{- join " " $words -}}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{- int64 . -}}
{{- else -}}
{{- toString . -}}
{{- end -}}
{{- end -}}

{{/* Queue-to-compute ratio of all pods of the release. */}}
{{- define "pytriton.ratioQuery" -}}
{{- $pods := printf "namespace=%q, pod=~%q" .Release.Namespace (printf "%s-.+" (include "pytriton.fullname" .)) -}}
{{- $window := printf "%ds" (int .Values.autoscaling.rateSeconds) -}}
sum(rate(nv_inference_queue_duration_us{ {{- $pods -}} }[{{ $window }}])) / (sum(rate(nv_inference_compute_infer_duration_us{ {{- $pods -}} }[{{ $window }}])) > 0) or vector(0)
{{- end -}}

{{- define "pytriton.checks" -}}
{{- if and .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled -}}
{{- fail "autoscaling.hpa.enabled and autoscaling.keda.enabled: enable only one of them" -}}
{{- end -}}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and .Values.autoscaling.keda.enabled (not .Values.autoscaling.keda.serverAddress) -}}
{{- fail "autoscaling.keda.serverAddress: set the URL of Prometheus, such as http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- if and .Values.control.enabled (not .Values.control.keysSecret) -}}
{{- fail "control.keysSecret: set the name of the Secret with the keys (docs/operations/kubernetes.md)" -}}
{{- end -}}
{{- if and (eq .Values.workload "StatefulSet") .Values.settings.ephemeral -}}
{{- fail "settings.ephemeral: a StatefulSet persists registrations; use a Deployment for pods without persistence" -}}
{{- end -}}
{{- end -}}
