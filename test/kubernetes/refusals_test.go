package kubernetes

import (
	"strings"
	"testing"
)

// TestRenderedRefusals: values that contradict each other, or that clusters refuse,
// are errors that say what to set.
func TestRenderedRefusals(t *testing.T) {
	account := func(create bool, agent, planner string) map[string]any {
		return map[string]any{"tls": plain, "serviceAccount": map[string]any{"create": create, "names": map[string]any{"agent": agent, "planner": planner}}}
	}
	critical := map[string]any{"tls": plain, "priorityClass": map[string]any{"name": "system-node-critical"}}
	for _, tc := range []struct {
		name, namespace string
		values          map[string]any
		want            string
	}{
		{"no certificates, which are made", "watching", nil, ""},
		{"no certificates, and no right to make them", "watching", map[string]any{"rbac": map[string]any{"create": false}}, "tls.secretNames"},
		{"moves of an unknown handler", "watching", proxied("act", true), "handler"},
		{"moves of a handler that does neither", "watching", proxied("act", true, "handler", "none"), "add or assign"},
		{"moves with a probe", "watching", proxied("act", true, "allowProbe", true), ""},
		{"moves without a planner", "watching", proxied("act", true, "handler", "add", "planner", map[string]any{"enabled": false}), "planner.enabled"},
		{"a probe alone", "watching", proxied("allowProbe", true), "act alone"},
		{"parts without moves", "watching", proxied("split", "auto", "handler", "add"), "act=true"},
		{"parts on servers that assign", "watching", proxied("split", "auto", "act", true, "handler", "assign"), "servers that add"},
		{"parts", "watching", proxied("split", "4", "act", true, "handler", "add"), ""},
		{"sums on unknown servers", "watching", proxied("aggregate", "auto"), "handler=add"},
		{"sums", "watching", proxied("aggregate", "auto", "handler", "add", "aggregateWait", "100ms"), ""},
		{"a wait without sums", "watching", proxied("aggregateWait", "100ms"), "aggregate alone"},
		{"thresholds on servers that assign", "watching", proxied("threshold", 0.9, "handler", "assign"), "zeros"},
		{"a handler without a proxy", "watching", map[string]any{"handler": "add"}, "proxy.enabled=true"},
		{"an ingress without a host", "watching", map[string]any{"ingress": map[string]any{"enabled": true}}, "ingress.host"},
		{"a class of the system's", "watching", critical, "priorityClass.create"},
		{"a class of the system's in kube-system", "kube-system", critical, ""},
		{"a class of the system's made", "kube-system", map[string]any{"tls": plain, "priorityClass": map[string]any{"create": true, "name": "system-x"}}, "name of your own"},
		{"accounts without names", "watching", account(false, "", ""), "serviceAccount.names.agent"},
		{"one account without a name", "watching", account(false, "a", ""), "serviceAccount.names.planner"},
		{"one account for both", "watching", account(true, "a", "a"), "an account each"},
		{"two accounts", "watching", account(false, "a", "b"), ""},
		{"measures without a proxy", "watching", map[string]any{"tls": plain, "threshold": 0.9}, "proxy.enabled=true"},
		{"a digest that is none", "watching", map[string]any{"tls": plain, "image": map[string]any{"digest": "v1"}}, "digest"},
		{"a probe's path", "watching", map[string]any{"tls": plain, "agent": map[string]any{"livenessProbe": map[string]any{"httpGet": map[string]any{}}}}, "httpGet"},
		{"a value that was removed", "watching", map[string]any{"tls": plain, "planner": map[string]any{"replicas": 2}}, "planner.volumeClaim"},
		{"another that was removed", "watching", map[string]any{"tls": plain, "podDisruptionBudget": map[string]any{"enabled": true}}, "one planner runs"},
		{"another platform", "watching", map[string]any{"tls": plain, "openshift": "yes"}, "openshift"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := renderFor(tc.namespace, nil, tc.values)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
