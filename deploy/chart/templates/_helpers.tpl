{{- define "psidecar.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "psidecar.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "psidecar.labels" -}}
app.kubernetes.io/name: psidecar
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* psidecar.pods: (list . "agent") gives the labels by which a part's pods are selected */}}
{{- define "psidecar.pods" -}}
app.kubernetes.io/name: psidecar
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* psidecar.tlsSecret: (list . "agent") gives the Secret with a part's certificate; empty: none */}}
{{- define "psidecar.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- $names := $root.Values.tls.secretNames -}}
{{- $own := dict "agent" $names.agent "proxy" $names.proxy "planner" $names.planner -}}
{{- if $root.Values.tls.certManager.enabled -}}
{{ include "psidecar.name" $root }}-tls-{{ index . 1 }}
{{- else -}}
{{ index $own (index . 1) | default $root.Values.tls.secretName }}
{{- end -}}
{{- end }}

{{/* psidecar.check stops where values contradict each other */}}
{{- define "psidecar.check" -}}
{{- $agent := include "psidecar.tlsSecret" (list . "agent") -}}
{{- $proxy := include "psidecar.tlsSecret" (list . "proxy") -}}
{{- $planner := include "psidecar.tlsSecret" (list . "planner") -}}
{{- if and .Values.proxy.enabled (not $proxy) (not .Values.tls.insecure) -}}
{{- fail "proxy.enabled needs certificates: set tls.secretNames or tls.secretName (psidecar certs makes them), or tls.certManager.enabled, or, where the network is trusted, tls.insecure=true" -}}
{{- end -}}
{{- if and .Values.planner.enabled (not (and $agent $planner)) (not .Values.tls.insecure) -}}
{{- fail "planner.enabled needs certificates: set tls.secretNames or tls.secretName (psidecar certs makes them), or tls.certManager.enabled, or, where everybody who reaches the planner may report and change things, tls.insecure=true" -}}
{{- end -}}
{{- if and .Values.tls.insecure (or $agent $proxy $planner) -}}
{{- fail "tls.insecure and tls.secretNames, tls.secretName or tls.certManager exclude each other" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (or .Values.tls.secretName .Values.tls.secretNames.agent .Values.tls.secretNames.proxy .Values.tls.secretNames.planner) -}}
{{- fail "tls.secretNames or tls.secretName and tls.certManager.enabled exclude each other" -}}
{{- end -}}
{{- $measures := or .Values.threshold .Values.slim .Values.quantize .Values.unchanged .Values.pullThreshold .Values.pullQuantize .Values.thresholdActivations .Values.wire .Values.rules .Values.placementConfigMap .Values.act -}}
{{- if and $measures (not .Values.proxy.enabled) -}}
{{- fail "threshold, slim, quantize, unchanged, pullThreshold, pullQuantize, thresholdActivations, wire, rules, placementConfigMap and act are done by the proxy: set proxy.enabled=true" -}}
{{- end -}}
{{- if and .Values.priorityClass.create (or (not .Values.priorityClass.name) (hasPrefix "system-" .Values.priorityClass.name)) -}}
{{- fail "priorityClass.create needs a priorityClass.name of your own; those that begin with system- are the cluster's" -}}
{{- end -}}
{{- if and .Values.act (not .Values.planner.enabled) -}}
{{- fail "act needs planner.enabled" -}}
{{- end -}}
{{- end }}
