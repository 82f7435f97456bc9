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
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
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
		"nothing said":              {nil, ""}, // a Job makes them: TestRenderedCertificates
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

// TestRenderedCertificates: without certificates of the user's a hook makes them before
// anything mounts them, and a CronJob of the same commands renews them, with no rights but to
// the Secrets that the pods mount.
func TestRenderedCertificates(t *testing.T) {
	whole, err := renderFor("watching", nil, proxied())
	if err != nil {
		t.Fatal(err)
	}
	r := release{t, whole}
	_, pods := r.pods()
	mounted := map[string]bool{}
	for _, p := range pods {
		for _, v := range p.Spec.Volumes {
			if v.Secret != nil {
				mounted[v.Secret.SecretName] = true
			}
		}
	}
	if want := []string{"psidecar-tls-agent", "psidecar-tls-planner", "psidecar-tls-proxy"}; !slices.Equal(slices.Sorted(maps.Keys(mounted)), want) {
		t.Errorf("the pods mount %v, want %q", mounted, want)
	}
	var hook batchv1.Job
	r.read("Job", "psidecar-certs-hook", &hook)
	var renewal batchv1.CronJob
	r.read("CronJob", "psidecar-certs", &renewal)
	if hook.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" {
		t.Errorf("the Job's annotations are %v", hook.Annotations)
	}
	for account, pod := range map[string]corev1.PodSpec{"psidecar-certs-hook": hook.Spec.Template.Spec, "psidecar-certs": renewal.Spec.JobTemplate.Spec.Template.Spec} {
		made := map[string]bool{}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			if c.Args[0] != "certs" || !slices.Contains(c.Args, "--ca-secret=psidecar-tls-ca") || !*c.SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("%s: %s runs %q", account, c.Name, c.Args)
			}
			for _, arg := range c.Args {
				if name, ok := strings.CutPrefix(arg, "--secret="); ok {
					made[name] = true
				}
			}
		}
		if !maps.Equal(made, mounted) {
			t.Errorf("%s makes %v, the pods mount %v", account, made, mounted)
		}
		if pod.ServiceAccountName != account {
			t.Errorf("%s runs as %s", account, pod.ServiceAccountName)
		}
		var role rbacv1.Role
		r.read("Role", account, &role)
		for _, rule := range role.Rules {
			if !slices.Equal(rule.Resources, []string{"secrets"}) || len(rule.ResourceNames) == 0 && !slices.Equal(rule.Verbs, []string{"create"}) {
				t.Errorf("%s may %v", account, rule)
			}
		}
	}
	for name, values := range map[string]map[string]any{"without TLS": {"tls": plain}, "with Secrets of the user's": {"tls": map[string]any{"secretName": "mine"}},
		"agents alone": {"planner": map[string]any{"enabled": false}}} {
		objects, err := renderFor("watching", nil, values)
		if err != nil {
			t.Fatal(err)
		}
		if made := (release{t, objects}).names("CronJob"); len(made) > 0 {
			t.Errorf("%s: %q", name, made)
		}
	}
}
