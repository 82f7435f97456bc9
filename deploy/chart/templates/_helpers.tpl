{{- define "psidecar.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "psidecar.name" -}}
{{ .Values.nameOverride | default .Release.Name | trunc 40 | trimSuffix "-" }}
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

{{/* psidecar.ownTLS is not empty if the chart makes certificates itself */}}
{{- define "psidecar.ownTLS" -}}
{{- with .Values.tls -}}
{{- if not (or .insecure .certManager.enabled .secretName .secretNames.agent .secretNames.proxy .secretNames.planner) -}}
{{- if or $.Values.proxy.enabled $.Values.planner.enabled -}}true{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* psidecar.tlsSecret: (list . "agent") gives the Secret with a part's certificate; empty: none */}}
{{- define "psidecar.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- $names := $root.Values.tls.secretNames -}}
{{- $own := dict "agent" $names.agent "proxy" $names.proxy "planner" $names.planner -}}
{{- if or $root.Values.tls.certManager.enabled (include "psidecar.ownTLS" $root) -}}
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
{{- $measures := or .Values.threshold .Values.slim .Values.quantize .Values.unchanged .Values.pullThreshold .Values.pullQuantize .Values.thresholdActivations .Values.wire .Values.rules .Values.placementConfigMap .Values.act .Values.charValues .Values.handler (ne .Values.aggregate "none") -}}
{{- if and $measures (not .Values.proxy.enabled) -}}
{{- fail "threshold, slim, quantize, unchanged, pullThreshold, pullQuantize, thresholdActivations, wire, charValues, rules, placementConfigMap, act, handler and aggregate are done by the proxy: set proxy.enabled=true" -}}
{{- end -}}
{{- if and .Values.priorityClass.create (or (not .Values.priorityClass.name) (hasPrefix "system-" .Values.priorityClass.name)) -}}
{{- fail "priorityClass.create needs a priorityClass.name of your own; those that begin with system- are the cluster's" -}}
{{- end -}}
{{- $accounts := .Values.serviceAccount.names -}}
{{- if and (not .Values.serviceAccount.create) (or (not $accounts.agent) (and .Values.planner.enabled (not $accounts.planner))) -}}
{{- fail "serviceAccount.create=false needs serviceAccount.names.agent and serviceAccount.names.planner, which name accounts that are there" -}}
{{- end -}}
{{- if and $accounts.agent (eq $accounts.agent $accounts.planner) -}}
{{- fail "serviceAccount.names: agent and planner need an account each; the planner needs none of the agents' rights" -}}
{{- end -}}
{{- if and (hasPrefix "system-" .Values.priorityClass.name) (ne .Release.Namespace "kube-system") -}}
{{- fail "priorityClass.name: classes that begin with system- are refused outside of kube-system by GKE and others; take a class of your own (priorityClass.create)" -}}
{{- end -}}
{{- if or (hasKey .Values.planner "replicas") (hasKey .Values.planner "store") (hasKey .Values "podDisruptionBudget") -}}
{{- fail "planner.replicas, planner.store and podDisruptionBudget were removed: one planner runs, with its store in a file; planner.volumeClaim.enabled keeps that on a volume. Upgrade with --reset-then-reuse-values in place of --reuse-values" -}}
{{- end -}}
{{- if and (include "psidecar.ownTLS" .) (not .Values.rbac.create) -}}
{{- fail "rbac.create=false: the chart may then not make certificates; set tls.secretNames or tls.secretName (psidecar certs makes them), tls.certManager.enabled, or tls.insecure=true" -}}
{{- end -}}
{{- if and .Values.act (not (or .Values.allowProbe (has .Values.handler (list "add" "assign")))) -}}
{{- fail "act moves keys of servers whose handler adds or assigns alone: set handler to add or assign, or allowProbe=true" -}}
{{- end -}}
{{- if and .Values.allowProbe (not .Values.act) -}}
{{- fail "allowProbe has an effect with act alone" -}}
{{- end -}}
{{- $adds := or (eq .Values.handler "add") (and .Values.act .Values.allowProbe) -}}
{{- if and (ne .Values.split "none") (not (and .Values.act $adds)) -}}
{{- fail "split needs act=true, and servers that add: handler=add or allowProbe=true" -}}
{{- end -}}
{{- if and (ne .Values.aggregate "none") (not $adds) -}}
{{- fail "aggregate needs servers that add: handler=add, or act=true with allowProbe=true" -}}
{{- end -}}
{{- if and .Values.aggregateWait (eq .Values.aggregate "none") -}}
{{- fail "aggregateWait has an effect with aggregate alone" -}}
{{- end -}}
{{- if and (or .Values.threshold .Values.slim) (eq .Values.handler "assign") -}}
{{- fail "threshold and slim send zeros for values that wait, which servers with handler=assign would store" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not (and .Values.planner.enabled .Values.ingress.host)) -}}
{{- fail "ingress.enabled needs planner.enabled, and ingress.host, for which the planner answers" -}}
{{- end -}}
{{- if and .Values.act (not .Values.planner.enabled) -}}
{{- fail "act needs planner.enabled" -}}
{{- end -}}
{{- end }}
