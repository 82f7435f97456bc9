package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

// TestNothingIsOpenByItself: the chart has certificates, or is told to do
// without; anything between is refused with what to set.
func TestNothingIsOpenByItself(t *testing.T) {
	proxy := map[string]any{"enabled": true}
	one := func(names ...string) map[string]any {
		all := map[string]any{}
		for _, n := range names {
			all[n] = "psidecar-tls-" + n
		}
		return map[string]any{"secretNames": all}
	}
	for name, tc := range map[string]struct {
		values map[string]any
		want   string // in the error; empty: it renders
	}{
		"nothing said":              {nil, "planner.enabled needs certificates"},
		"agents alone":              {map[string]any{"planner": map[string]any{"enabled": false}}, ""},
		"insecure":                  {map[string]any{"tls": plain}, ""},
		"one Secret":                {map[string]any{"proxy": proxy, "tls": map[string]any{"secretName": "all"}}, ""},
		"a Secret each":             {map[string]any{"proxy": proxy, "tls": one("agent", "proxy", "planner")}, ""},
		"none for the proxy":        {map[string]any{"proxy": proxy, "tls": one("agent", "planner")}, "proxy.enabled needs certificates"},
		"none for the planner":      {map[string]any{"tls": one("agent")}, "planner.enabled needs certificates"},
		"insecure and certificates": {map[string]any{"tls": map[string]any{"insecure": true, "secretName": "all"}}, "exclude each other"},
	} {
		t.Run(name, func(t *testing.T) {
			chart, err := loader.Load(chartDir)
			if err != nil {
				t.Fatal(err)
			}
			values, err := chartutil.ToRenderValues(chart, tc.values, chartutil.ReleaseOptions{Name: "psidecar", Namespace: "psidecar", IsInstall: true}, chartutil.DefaultCapabilities)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = engine.Render(chart, values); err == nil != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// TestCertificatesByPart: each part has a certificate of its own, with its role
// and no other, under the name at which it is reached.
func TestCertificatesByPart(t *testing.T) {
	values := map[string]any{"proxy": map[string]any{"enabled": true},
		"tls": map[string]any{"certManager": map[string]any{"enabled": true, "issuerRef": map[string]any{"name": "ours"}}}}
	uris, mounted := map[string]string{}, map[string]bool{}
	for _, o := range render(t, "train", values) {
		switch o.GetKind() {
		case "Certificate":
			spec := o.Object["spec"].(map[string]any)
			uris[spec["secretName"].(string)] = fmt.Sprint(spec["uris"], spec["dnsNames"])
		case "DaemonSet", "Deployment":
			text, err := json.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			for name := range map[string]bool{"psidecar-tls-agent": true, "psidecar-tls-proxy": true, "psidecar-tls-planner": true} {
				if strings.Contains(string(text), `"secretName":"`+name+`"`) {
					mounted[o.GetKind()+" "+name] = true
				}
			}
			if strings.Contains(string(text), "--insecure") {
				t.Errorf("%s %s is open", o.GetKind(), o.GetName())
			}
		}
	}
	want := map[string]string{
		"psidecar-tls-agent":   "[psidecar://agent/*] [psidecar-agent.train.svc]",
		"psidecar-tls-proxy":   "[psidecar://proxy/*] [psidecar-proxy.train.svc]",
		"psidecar-tls-planner": "[psidecar://planner/*] [psidecar-planner.train.svc]",
	}
	if !maps.Equal(uris, want) {
		t.Errorf("the certificates are %v, want %v", uris, want)
	}
	if got := slices.Sorted(maps.Keys(mounted)); !slices.Equal(got, []string{"DaemonSet psidecar-tls-agent", "DaemonSet psidecar-tls-proxy", "Deployment psidecar-tls-planner"}) {
		t.Errorf("mounted are %v", got)
	}
}
