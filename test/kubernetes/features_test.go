package kubernetes

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// TestRenderedConfigMaps: rules and a placement come to the proxies as files, under
// the names that their flags have.
func TestRenderedConfigMaps(t *testing.T) {
	r := rendered(t, map[string]any{"tls": plain, "proxy": map[string]any{"enabled": true}, "placementConfigMap": "keys",
		"rules": []any{map[string]any{"job": "ads/ctr", "keys": "0-999", "threshold": 0.9}}})
	_, pods := r.pods()
	proxy := containers(pods)["proxy"]
	for _, f := range []struct{ flag, configMap, folder string }{
		{"--config=/etc/psidecar/rules/config.yaml", "psidecar-rules", "/etc/psidecar/rules"},
		{"--placement=/etc/psidecar/placement/placement.json", "keys", "/etc/psidecar/placement"},
	} {
		mounted := slices.ContainsFunc(proxy.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.MountPath == f.folder && slices.ContainsFunc(pods["agent"].Spec.Volumes, func(v corev1.Volume) bool {
				return v.Name == m.Name && v.ConfigMap != nil && v.ConfigMap.Name == f.configMap
			})
		})
		if !mounted || !slices.Contains(proxy.Args, f.flag) {
			t.Errorf("the proxy lacks %s, or the ConfigMap %s at %s: %v %v", f.flag, f.configMap, f.folder, proxy.Args, proxy.VolumeMounts)
		}
	}
	var rules corev1.ConfigMap
	r.read("ConfigMap", "psidecar-rules", &rules)
	if text := rules.Data["config.yaml"]; !strings.Contains(text, "codec-rules:") || !strings.Contains(text, "job: ads/ctr") || !strings.Contains(text, "threshold: 0.9") {
		t.Errorf("the rules are\n%s", text)
	}
}

// proxied are values with proxies, and pairs of names and values.
func proxied(pairs ...any) map[string]any {
	values := map[string]any{"proxy": map[string]any{"enabled": true}}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i].(string)] = pairs[i+1]
	}
	return values
}

// TestRenderedFeatures: each feature's value is a flag of the component that has it.
func TestRenderedFeatures(t *testing.T) {
	r := rendered(t, proxied("act", true, "handler", "add", "allowProbe", true, "split", "auto", "aggregate", "auto", "aggregateWait", "100ms", "charValues", "float32",
		"names", []any{map[string]any{"name": "users", "first": 0, "last": 1599}},
		"ingress", map[string]any{"enabled": true, "host": "psidecar.example", "className": "nginx", "tlsSecret": "page"}))
	_, pods := r.pods()
	all := containers(pods)
	for part, want := range map[string][]string{
		"agent":   {"--names=/etc/psidecar/names/names.yaml"},
		"planner": {"--names=/etc/psidecar/names/names.yaml", "--http-name=psidecar.example", "--act"},
		"proxy":   {"--act", "--handler=add", "--allow-probe", "--split=auto", "--aggregate=auto", "--aggregate-wait=100ms", "--char-values=float32"},
	} {
		for _, arg := range want {
			if !slices.Contains(all[part].Args, arg) {
				t.Errorf("%s lacks %s: %q", part, arg, all[part].Args)
			}
		}
		if part != "proxy" && !slices.ContainsFunc(all[part].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/etc/psidecar/names" }) {
			t.Errorf("%s mounts no names", part)
		}
	}
	var names corev1.ConfigMap
	r.read("ConfigMap", "psidecar-names", &names)
	if !strings.Contains(names.Data["names.yaml"], "name: users") {
		t.Errorf("the names are %q", names.Data)
	}
	var ingress networkingv1.Ingress
	r.read("Ingress", "psidecar-planner", &ingress)
	var service corev1.Service
	r.read("Service", "psidecar-planner", &service)
	to := ingress.Spec.Rules[0].HTTP.Paths[0].Backend.Service
	if to.Name != service.Name || !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == to.Port.Name }) || ingress.Spec.TLS[0].SecretName != "page" {
		t.Errorf("the ingress leads to %v, with %v", to, ingress.Spec.TLS)
	}
	named := rendered(t, map[string]any{"nameOverride": "watcher", "rbac": map[string]any{"create": false}, "tls": plain})
	if got := slices.Concat(named.names("DaemonSet"), named.names("Deployment"), named.names("ClusterRole"), named.names("ClusterRoleBinding")); !slices.Equal(got, []string{"watcher", "watcher-planner"}) {
		t.Errorf("with a name and without rights there are %q", got)
	}
}

// TestRenderedPolicy: the policy lets Prometheus reach the port that the ServiceMonitor names.
func TestRenderedPolicy(t *testing.T) {
	r := rendered(t, map[string]any{"networkPolicy": map[string]any{"enabled": true}, "serviceMonitor": map[string]any{"enabled": true}})
	var policy networkingv1.NetworkPolicy
	r.read("NetworkPolicy", "psidecar-planner", &policy)
	for _, rule := range policy.Spec.Ingress {
		if rule.Ports[0].Port.String() != "http" {
			continue
		}
		if !slices.ContainsFunc(rule.From, func(p networkingv1.NetworkPolicyPeer) bool {
			return p.NamespaceSelector != nil && p.PodSelector != nil && p.PodSelector.MatchLabels["app.kubernetes.io/name"] == "prometheus"
		}) {
			t.Errorf("the metrics are open to %v", rule.From)
		}
		return
	}
	t.Errorf("nobody reaches the page: %v", policy.Spec.Ingress)
}
