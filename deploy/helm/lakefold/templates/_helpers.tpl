{{/* SPDX-License-Identifier: Apache-2.0 */}}
{{- define "lakefold.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lakefold.selector" -}}
app.kubernetes.io/name: lakefold
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lakefold.labels" -}}
{{ include "lakefold.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "lakefold.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "lakefold.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "lakefold.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end }}

{{- define "lakefold.onKubernetes" -}}
{{- if hasPrefix "k8s://" .Values.spark.master }}yes{{ end }}
{{- end }}

{{/* The security context of every container of lakefold: no privileges, and writes only to its volumes. */}}
{{- define "lakefold.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}

{{- define "lakefold.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
{{- with .Values.lake.supplementalGroups }}
supplementalGroups: {{ toJson . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "lakefold.environment" -}}
- name: LAKEFOLD_DATABASE__URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.secretName }}
      key: {{ .Values.database.secretKey }}
- name: LAKEFOLD_HTTP__ADDRESS
  value: "0.0.0.0"
- name: LAKEFOLD_HTTP__PORT
  value: {{ .Values.http.port | quote }}
- name: LAKEFOLD_DAEMON__LOG_FORMAT
  value: json
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}
