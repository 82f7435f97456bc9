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

{{/* psidecar.serviceAccount: (list . "agent") gives the name of a part's service account */}}
{{- define "psidecar.serviceAccount" -}}
{{- $root := index . 0 -}}
{{- $names := $root.Values.serviceAccount.names -}}
{{- index (dict "agent" $names.agent "planner" $names.planner) (index . 1) | default (printf "%s-%s" (include "psidecar.name" $root) (index . 1)) -}}
{{- end }}

{{/* psidecar.openshift is not empty on OpenShift */}}
{{- define "psidecar.openshift" -}}
{{- if or (eq .Values.openshift "always") (and (eq .Values.openshift "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}
true
{{- end -}}
{{- end }}

{{/* psidecar.capabilities are the agent's: to load programs and attach them; to read the
     environments of jobs, which are other users'. With the proxy also to enter the network
     namespaces of jobs, to give the proxy its socket and its state folder, and to end it
     where it hangs. */}}
{{- define "psidecar.capabilities" -}}
[BPF, PERFMON, NET_ADMIN, SYS_PTRACE, DAC_READ_SEARCH{{ if .Values.proxy.enabled }}, SYS_ADMIN, CHOWN, KILL{{ end }}]
{{- end }}

{{/* psidecar.probe: (list "/healthz" "http" .Values.agent.livenessProbe) gives a probe */}}
{{- define "psidecar.probe" -}}
httpGet: {path: {{ index . 0 }}, port: {{ index . 1 }}}
{{- with index . 2 }}
{{ toYaml . }}
{{- end }}
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
{{- $accounts := .Values.serviceAccount.names -}}
{{- if and (not .Values.serviceAccount.create) (or (not $accounts.agent) (and .Values.planner.enabled (not $accounts.planner))) -}}
{{- fail "serviceAccount.create=false needs serviceAccount.names.agent and serviceAccount.names.planner, which name accounts that are there" -}}
{{- end -}}
{{- if and $accounts.agent (eq $accounts.agent $accounts.planner) -}}
{{- fail "serviceAccount.names: agent and planner need an account each; with one for both the agents of all nodes could write plans" -}}
{{- end -}}
{{- if and (hasPrefix "system-" .Values.priorityClass.name) (ne .Release.Namespace "kube-system") -}}
{{- fail "priorityClass.name: classes that begin with system- are refused outside of kube-system by GKE and others; take a class of your own (priorityClass.create)" -}}
{{- end -}}
{{- if and .Values.act (not .Values.planner.enabled) -}}
{{- fail "act needs planner.enabled" -}}
{{- end -}}
{{- end }}
