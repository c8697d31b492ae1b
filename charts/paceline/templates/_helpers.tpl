{{- define "paceline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Ends at 40 characters: names made of it end at 63. */}}
{{- define "paceline.fullname" -}}
{{- $name := include "paceline.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "paceline.selector" -}}
app.kubernetes.io/name: paceline-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "paceline.labels" -}}
{{ include "paceline.selector" . }}
app.kubernetes.io/part-of: paceline
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "paceline.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "paceline.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "paceline.masterKeySecret" -}}
{{- default (printf "%s-master-key" (include "paceline.fullname" .)) .Values.masterKey.existingSecret -}}
{{- end }}

{{/* Namespaces of a namespaced install, as a JSON list. */}}
{{- define "paceline.namespaces" -}}
{{- if eq .Values.scope "Namespaced" -}}
{{- .Values.namespaces | default (list .Release.Namespace) | uniq | toJson -}}
{{- else -}}
[]
{{- end -}}
{{- end }}

{{/* An image with its digest, its tag or the chart's version: (list image tag). */}}
{{- define "paceline.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (index . 1) $image.tag) -}}
{{- end -}}
{{- end }}

{{- define "paceline.operatorImage" -}}
{{- include "paceline.image" (list .Values.operator.image .Chart.AppVersion) -}}
{{- end }}

{{- define "paceline.podSecurity" -}}
{{- $own := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "fsGroup" 65532 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- mergeOverwrite $own (deepCopy .Values.operator.podSecurityContext) | toYaml -}}
{{- end }}

{{- define "paceline.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
