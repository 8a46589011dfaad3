{{/* The daemon's environment, which probes and kubectl exec also get. */}}
{{- define "pytriton.environment" -}}
{{- $repositories := .Values.models.repositories -}}
{{- if .Values.models.files }}{{ $repositories = append $repositories "/models/files" }}{{ end -}}
{{- if .Values.models.claim.name }}{{ $repositories = append $repositories "/models/claim" }}{{ end -}}
# A private directory on the volume; its root is writable by others.
- name: PYTRITON_DAEMON_RUNTIME_DIR
  value: /run/pytriton/daemon
- name: PYTRITON_DAEMON_STATE_DIR
  value: /var/lib/pytriton/state
- name: PYTRITON_DAEMON_HTTP_PORT
  value: {{ int .Values.ports.http | quote }}
- name: PYTRITON_DAEMON_GRPC_PORT
  value: {{ int .Values.ports.grpc | quote }}
- name: PYTRITON_DAEMON_METRICS_PORT
  value: {{ int .Values.ports.metrics | quote }}
- name: PYTRITON_DAEMON_OPENAI_PORT
  value: {{ int .Values.ports.openai | quote }}
- name: PYTRITON_DAEMON_GRACE_PERIOD_S
  value: {{ int .Values.gracePeriodSeconds | quote }}
{{- if $repositories }}
- name: PYTRITON_DAEMON_MODEL_REPOSITORY
  value: {{ include "pytriton.settingText" $repositories | quote }}
{{- end }}
{{- if not (hasKey .Values.settings "log_format") }}
- name: PYTRITON_DAEMON_LOG_FORMAT
  value: json
{{- end }}
{{- range $name, $value := .Values.settings }}
- name: PYTRITON_DAEMON_{{ upper $name }}
  {{- /* An empty variable counts as not set; of this one an empty list means none. */}}
  value: {{ include "pytriton.settingText" $value | default (ternary "none" "" (eq $name "restricted_endpoints")) | quote }}
{{- end }}
{{- with .Values.environment }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "pytriton.mounts" -}}
- name: runtime
  mountPath: /run/pytriton
- name: state
  mountPath: /var/lib/pytriton
- name: tmp
  mountPath: /tmp
- name: shm
  mountPath: /dev/shm
{{- if .Values.models.files }}
- name: files
  mountPath: /models/files
  readOnly: true
{{- end }}
{{- if .Values.models.modules }}
- name: modules
  mountPath: /modules
  readOnly: true
{{- end }}
{{- if .Values.models.claim.name }}
- name: claim
  mountPath: /models/claim
  readOnly: true
  {{- with .Values.models.claim.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "pytriton.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.gpu.count -}}
{{- $gpu := dict .Values.gpu.resource (int .Values.gpu.count) -}}
{{- $resources = mustMergeOverwrite $resources (dict "limits" $gpu) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{/* Common to all containers. */}}
{{- define "pytriton.container" -}}
image: {{ include "pytriton.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{/* Common to containers that run a daemon. */}}
{{- define "pytriton.daemonContainer" -}}
{{ include "pytriton.container" . }}
resources:
  {{- include "pytriton.resources" . | nindent 2 }}
{{- with .Values.environmentFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.models.modules }}
workingDir: /modules
{{- end }}
{{- end -}}

{{- define "pytriton.initContainers" -}}
{{- if .Values.control.enabled }}
# The daemon requires keys that only its user can read; files of a Secret belong to root.
- name: keys
  {{- include "pytriton.container" . | nindent 2 }}
  command:
    - sh
    - -euc
    - |
      umask 077
      mkdir -p "$KEYS/clients"
      for key in "$SECRET"/*.key; do
        case ${key##*/} in
          server.key) cp "$key" "$KEYS/" ;;
          *) cp "$key" "$KEYS/clients/" ;;
        esac
      done
      cp "$SECRET/server.key_secret" "$KEYS/"
  resources:
    requests:
      cpu: 10m
      memory: 16Mi
    limits:
      memory: 64Mi
  env:
    - name: KEYS
      value: /run/pytriton/keys
    - name: SECRET
      value: /secret
  volumeMounts:
    - name: runtime
      mountPath: /run/pytriton
    - name: secret
      mountPath: /secret
      readOnly: true
{{- end }}
{{- if .Values.models.register }}
# Register with a daemon inside this container; the pod's daemon restores the registrations that it persists.
- name: register
  {{- include "pytriton.daemonContainer" . | nindent 2 }}
  command:
    - sh
    - -euc
    - |
      unset PYTRITON_DAEMON_MODEL_REPOSITORY
      pytriton-daemon start --detach
      for target in "$@"; do
        pytriton-daemon register --replace "$target"
      done
      pytriton-daemon stop
    - register
    {{- range .Values.models.register }}
    - {{ . | quote }}
    {{- end }}
  env:
    {{- include "pytriton.environment" . | nindent 4 }}
  volumeMounts:
    {{- include "pytriton.mounts" . | nindent 4 }}
{{- end }}
{{- end -}}

{{- define "pytriton.pod" -}}
metadata:
  labels:
    {{- include "pytriton.labels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # Changed models trigger a rollout.
    checksum/models: {{ toJson (list .Values.models.files .Values.models.modules) | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "pytriton.serviceAccount" . }}
  # Callables do not need the cluster's API.
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add (int .Values.preStopSeconds) (int .Values.gracePeriodSeconds) 25 }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with include "pytriton.initContainers" . | trim }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  containers:
    - name: pytriton
      {{- include "pytriton.daemonContainer" . | nindent 6 }}
      # Runs as PID 1 and acts as init (docs/operations/service.md).
      command:
        - pytriton-daemon
        - start
        - "--http-address={{ .Values.listenAddress }}"
        - "--grpc-address={{ .Values.listenAddress }}"
        - "--metrics-address={{ .Values.listenAddress }}"
        - "--openai-address={{ .Values.listenAddress }}"
        - {{ printf "--management-address=%s:%d" (ternary (printf "[%s]" .Values.listenAddress) .Values.listenAddress (contains ":" .Values.listenAddress)) (int .Values.ports.management) | quote }}
        {{- if .Values.control.enabled }}
        - {{ printf "--control-tcp=%s:%d" (ternary (printf "[%s]" .Values.listenAddress) .Values.listenAddress (contains ":" .Values.listenAddress)) (int .Values.control.port) | quote }}
        - --keys-dir=/run/pytriton/keys
        {{- end }}
      env:
        {{- include "pytriton.environment" . | nindent 8 }}
      ports:
        {{- range $name, $port := .Values.ports }}
        - name: {{ $name }}
          containerPort: {{ int $port }}
        {{- end }}
        {{- if .Values.control.enabled }}
        - name: control
          containerPort: {{ int .Values.control.port }}
        {{- end }}
      startupProbe:
        httpGet:
          path: /v2/health/live
          port: http
          scheme: {{ .Values.probes.scheme }}
        periodSeconds: {{ int .Values.probes.startup.periodSeconds }}
        failureThreshold: {{ int .Values.probes.startup.failureThreshold }}
      readinessProbe:
        httpGet:
          path: {{ with .Values.probes.readiness.model }}/v2/models/{{ . }}/ready{{ else }}/v2/health/ready{{ end }}
          port: http
          scheme: {{ .Values.probes.scheme }}
        periodSeconds: {{ int .Values.probes.readiness.periodSeconds }}
        failureThreshold: {{ int .Values.probes.readiness.failureThreshold }}
      livenessProbe:
        exec:
          command: [pytriton-daemon, status, --json]
        periodSeconds: {{ int .Values.probes.liveness.periodSeconds }}
        timeoutSeconds: {{ int .Values.probes.liveness.timeoutSeconds }}
        failureThreshold: {{ int .Values.probes.liveness.failureThreshold }}
      lifecycle:
        preStop:
          exec:
            # Report not ready and keep serving until load balancers have noticed. SIGTERM then stops the daemon.
            command: [pytriton-daemon, drain, --keep-running, --settle, {{ int .Values.preStopSeconds | quote }}]
      volumeMounts:
        {{- include "pytriton.mounts" . | nindent 8 }}
  volumes:
    - name: runtime
      emptyDir:
        sizeLimit: {{ .Values.volumes.runtime.sizeLimit }}
    - name: tmp
      emptyDir:
        sizeLimit: {{ .Values.volumes.tmp.sizeLimit }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ .Values.volumes.shm.sizeLimit }}
    {{- if eq .Values.workload "Deployment" }}
    - name: state
      emptyDir:
        sizeLimit: {{ .Values.state.size }}
    {{- end }}
    {{- if .Values.models.files }}
    - name: files
      configMap:
        name: {{ include "pytriton.fullname" . }}-files
        items:
          {{- range $path, $text := .Values.models.files }}
          - key: {{ include "pytriton.fileKey" $path | quote }}
            path: {{ $path | quote }}
          {{- end }}
    {{- end }}
    {{- if .Values.models.modules }}
    - name: modules
      configMap:
        name: {{ include "pytriton.fullname" . }}-modules
    {{- end }}
    {{- with .Values.models.claim.name }}
    - name: claim
      persistentVolumeClaim:
        claimName: {{ . }}
        readOnly: true
    {{- end }}
    {{- if .Values.control.enabled }}
    - name: secret
      secret:
        secretName: {{ .Values.control.keysSecret }}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or .Values.tolerations .Values.gpu.count }}
  tolerations:
    {{- if .Values.gpu.count }}
    - key: {{ .Values.gpu.resource }}
      operator: Exists
      effect: NoSchedule
    {{- end }}
    {{- with .Values.tolerations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpread }}
  topologySpreadConstraints:
    {{- range . }}
    - {{- toYaml . | nindent 6 }}
      labelSelector:
        matchLabels:
          {{- include "pytriton.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end -}}
