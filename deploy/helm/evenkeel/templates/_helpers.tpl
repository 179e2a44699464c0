{{- define "evenkeel.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "evenkeel.labels" -}}
{{ include "evenkeel.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "evenkeel.selector" -}}
app.kubernetes.io/name: evenkeel
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "evenkeel.secret" -}}
{{ .Values.auth.existingSecret | default (include "evenkeel.name" .) }}
{{- end }}

{{- /* The name of a pod of the headless service: what precedes this. */ -}}
{{- define "evenkeel.domain" -}}
{{ include "evenkeel.name" . }}-nodes.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- define "evenkeel.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "evenkeel.podSecurity" -}}
runAsNonRoot: true
runAsUser: 999
runAsGroup: 999
fsGroup: 999
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "evenkeel.password" -}}
{{- if .Values.auth.enabled }}
- name: EVENKEEL_PASSWORD
  valueFrom: { secretKeyRef: { name: {{ include "evenkeel.secret" . }}, key: password } }
{{- end }}
{{- end }}

{{- define "evenkeel.placing" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "evenkeel.volume" -}}
- metadata: { name: data }
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .root.Values.persistence.storageClass }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources: { requests: { storage: {{ .size }} } }
{{- end }}

{{- /* A StatefulSet of servers. root, name, role, count, follows (host of the primary, or empty), config (file). */ -}}
{{- define "evenkeel.servers" -}}
{{- $root := .root }}
{{- $values := .root.Values }}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ .name }}
  labels: {{ include "evenkeel.labels" $root | nindent 4 }}
spec:
  serviceName: {{ include "evenkeel.name" $root }}-nodes
  replicas: {{ .count }}
  podManagementPolicy: Parallel
  selector:
    matchLabels:
      {{- include "evenkeel.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
  template:
    metadata:
      labels:
        {{- include "evenkeel.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .role }}
      annotations:
        evenkeel/config: {{ include "evenkeel.config" $root | sha256sum | trunc 16 | quote }}
        {{- with $values.podAnnotations }}{{ toYaml . | nindent 8 }}{{- end }}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      securityContext: {{ include "evenkeel.podSecurity" $root | nindent 8 }}
      {{- include "evenkeel.placing" $root | nindent 6 }}
      {{- if eq .role "server" }}
      initContainers:
        - name: role
          image: {{ $values.sentinel.image }}
          command: [sh, /etc/evenkeel/role.sh]
          securityContext: {{ include "evenkeel.security" $root | nindent 12 }}
          volumeMounts:
            - { name: config, mountPath: /etc/evenkeel }
            - { name: data, mountPath: /data }
      {{- end }}
      containers:
        - name: evenkeel
          image: "{{ $values.image.repository }}:{{ $values.image.tag | default $root.Chart.AppVersion }}"
          imagePullPolicy: {{ $values.image.pullPolicy }}
          command: [/usr/bin/evenkeel]
          args:
            - {{ .config }}
            {{- if $values.auth.enabled }}
            - --requirepass
            - $(EVENKEEL_PASSWORD)
            - --masterauth
            - $(EVENKEEL_PASSWORD)
            {{- end }}
            {{- if ne .role "alone" }}
            - --replica-announce-ip
            - $(POD_NAME).{{ include "evenkeel.domain" $root }}
            {{- end }}
            {{- with .follows }}
            - --replicaof
            - {{ . }}
            - "6379"
            {{- end }}
          env:
            - name: POD_NAME
              valueFrom: { fieldRef: { fieldPath: metadata.name } }
            {{- include "evenkeel.password" $root | nindent 12 }}
          ports:
            - { name: resp, containerPort: 6379 }
            {{- if $values.http.enabled }}
            - { name: http, containerPort: 8379 }
            {{- end }}
          startupProbe:
            exec: { command: [/usr/bin/evenkeel, ping, --timeout, "2"] }
            periodSeconds: 5
            timeoutSeconds: 3
            failureThreshold: {{ max 1 (div (int $values.startupSeconds) 5) }}
          readinessProbe:
            exec: { command: [/usr/bin/evenkeel, ping, --timeout, "2"] }
            periodSeconds: 5
            timeoutSeconds: 3
          livenessProbe:
            {{- if $values.http.enabled }}
            httpGet: { path: /healthz, port: http }
            {{- else }}
            exec: { command: [/usr/bin/evenkeel, ping, --timeout, "4"] }
            {{- end }}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          securityContext: {{ include "evenkeel.security" $root | nindent 12 }}
          resources: {{ toYaml $values.resources | nindent 12 }}
          volumeMounts:
            - { name: config, mountPath: /etc/evenkeel, readOnly: true }
            - { name: data, mountPath: /data }
            - { name: tmp, mountPath: /tmp }
      volumes:
        - name: config
          configMap: { name: {{ include "evenkeel.name" $root }} }
        - name: tmp
          emptyDir: {}
        {{- if not $values.persistence.enabled }}
        - name: data
          emptyDir: {}
        {{- end }}
  {{- if $values.persistence.enabled }}
  volumeClaimTemplates: {{ include "evenkeel.volume" (dict "root" $root "size" $values.persistence.size) | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "evenkeel.config" -}}
bind * -::*
dir /data
{{- if .Values.persistence.enabled }}
appendonly yes
appendfsync everysec
{{- end }}
save ""
{{- if .Values.http.enabled }}
http-port 8379
{{- end }}
{{- if not .Values.auth.enabled }}
protected-mode no
{{- end }}
{{- with .Values.maxmemory }}
maxmemory {{ . }}
{{- end }}
{{- with .Values.config }}
{{ . }}
{{- end }}
{{- end }}
