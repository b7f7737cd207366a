{{- define "headgate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "headgate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "headgate.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "headgate.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "headgate.operator" -}}{{ include "headgate.fullname" . }}-operator{{- end -}}

{{/* The Secret with the certificate of the webhook: the given one, or the chart's. */}}
{{- define "headgate.webhookSecret" -}}
{{- default (printf "%s-webhook" (include "headgate.fullname" .)) .Values.webhook.certificate.secretName -}}
{{- end -}}

{{- define "headgate.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "headgate.operator" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "headgate.selector" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of every object. Call with (dict "root" $ "component" "operator"). */}}
{{- define "headgate.labels" -}}
{{ include "headgate.selector" .root }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
app.kubernetes.io/part-of: headgate
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image reference. Call with (dict "root" $ "image" .Values.agentImage). */}}
{{- define "headgate.image" -}}
{{- $registry := default "" (coalesce .root.Values.global.imageRegistry .root.Values.image.registry) | trimSuffix "/" -}}
{{- $repository := ternary .image.repository (printf "%s/%s" $registry .image.repository) (empty $registry) -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ default .root.Chart.AppVersion .image.tag }}
{{- end -}}
{{- end -}}

{{/* Settings of every pod that the operator creates, as JSON. Values that are not set are left out. */}}
{{- define "headgate.pods" -}}
{{- $found := dict -}}
{{- range $key, $value := .Values.pods -}}
{{- if $value -}}{{- $_ := set $found $key $value -}}{{- end -}}
{{- end -}}
{{- if and .Values.priorityClasses.create (not .Values.pods.priorityClassName) -}}
{{- $_ := set $found "priorityClassName" (printf "%s-pods" (include "headgate.fullname" .)) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Where the chart's own Jobs and test pods run: as the operator. */}}
{{- define "headgate.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- $priority := .Values.priorityClassName }}
{{- if and .Values.priorityClasses.create (not $priority) }}
{{- $priority = printf "%s-operator" (include "headgate.fullname" .) }}
{{- end }}
{{- with $priority }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Refuse what the schema cannot: a name that is set twice would be refused by the API server, and not by its name. */}}
{{- define "headgate.checkEnv" -}}
{{- $seen := dict -}}
{{- range .Values.extraEnv -}}
{{- if or (hasKey $seen .name) (regexMatch "^(POD_NAME|POD_NAMESPACE|MALLOC_ARENA_MAX|MALLOC_TRIM_THRESHOLD_|HEADGATE_(NAMESPACES|IMAGE|AGENT_IMAGE|SPARK_IMAGE|IMAGE_PULL_POLICY|IMAGE_PULL_SECRETS|PODS|RUNNER_ENV|ROLE_PREFIX|PODS_TTL_S|RECORDER_STORAGE|RECORDER_STORAGE_CLASS|WEBHOOK_CERTIFICATE|WORKERS|LOG_LEVEL))$" .name) -}}
{{- fail (printf "extraEnv: %s is set twice; remove one, or use the chart's value for it" .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- $seen = dict -}}
{{- range .Values.runner.extraEnv -}}
{{- if or (hasKey $seen .name) (regexMatch "^(POD|HEADGATE)_" .name) -}}
{{- fail (printf "runner.extraEnv: %s is set twice; remove one: the operator sets HEADGATE_… and POD_…" .name) -}}
{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- end -}}

{{- define "headgate.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "headgate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "headgate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The namespace of the Jobs for `helm test` and for healing before an uninstall. */}}
{{- define "headgate.firstNamespace" -}}
{{- $named := concat (default list .Values.watchNamespaces) (default list .Values.rbac.testbedNamespaces) -}}
{{- $existing := include "headgate.existing" (dict "root" . "watched" $named) | fromJsonArray -}}
{{- append $existing .Release.Namespace | first -}}
{{- end -}}

{{/* Of the namespaces in `watched`, those that exist, as JSON; Helm could create nothing in the others. All of them when that cannot be
known, or when none does, as in an installation, whose errors name a mistyped one. An account that installs the chart may read
service accounts where it creates them, but perhaps no namespaces. */}}
{{- define "headgate.existing" -}}
{{- $found := list -}}
{{- if .root.Release.IsUpgrade -}}
{{- range $namespace := .watched -}}
{{- if lookup "v1" "ServiceAccount" $namespace "default" -}}
{{- $found = append $found $namespace -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- default .watched $found | toJson -}}
{{- end -}}

{{- define "headgate.watched" -}}
{{- include "headgate.existing" (dict "root" . "watched" .Values.watchNamespaces) -}}
{{- end -}}
