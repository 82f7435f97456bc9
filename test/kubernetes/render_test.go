package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// release is the objects of a rendered chart.
type release struct {
	t       *testing.T
	objects []*unstructured.Unstructured
}

func rendered(t *testing.T, values map[string]any) release {
	t.Helper()
	return release{t, render(t, "watching", values)}
}

// names are those of the objects of a kind, sorted.
func (r release) names(kind string) (names []string) {
	for _, o := range r.objects {
		if o.GetKind() == kind {
			names = append(names, o.GetName())
		}
	}
	slices.Sort(names)
	return names
}

// read reads an object as its kind has it; fields that the kind has not are errors.
func (r release) read(kind, name string, into any) {
	r.t.Helper()
	for _, o := range r.objects {
		if o.GetKind() != kind || o.GetName() != name {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into, true); err != nil {
			r.t.Fatalf("%s %s: %v", kind, name, err)
		}
		return
	}
	r.t.Fatalf("no %s is called %s; there are %q", kind, name, r.names(kind))
}

// pods are the pods' templates of agents and proxies, and of the planner.
func (r release) pods() (set appsv1.DaemonSet, pods map[string]corev1.PodTemplateSpec) {
	r.t.Helper()
	var planner appsv1.Deployment
	r.read("DaemonSet", "psidecar", &set)
	r.read("Deployment", "psidecar-planner", &planner)
	return set, map[string]corev1.PodTemplateSpec{"agent": set.Spec.Template, "planner": planner.Spec.Template}
}

func containers(pods map[string]corev1.PodTemplateSpec) map[string]corev1.Container {
	all := map[string]corev1.Container{}
	for _, p := range pods {
		for _, c := range p.Spec.Containers {
			all[c.Name] = c
		}
	}
	return all
}

// TestRenderedDefaults: what the chart gives without further values is what clusters
// that restrict more than others take.
func TestRenderedDefaults(t *testing.T) {
	r := rendered(t, map[string]any{"tls": plain, "proxy": map[string]any{"enabled": true}})
	_, pods := r.pods()
	for part, p := range pods {
		if p.Spec.PriorityClassName != "" {
			t.Errorf("%s: priority class %q, which outside of kube-system may be refused", part, p.Spec.PriorityClassName)
		}
		if want := "psidecar-" + part; p.Spec.ServiceAccountName != want {
			t.Errorf("%s: service account %q, want %q", part, p.Spec.ServiceAccountName, want)
		}
	}
	for name, c := range containers(pods) {
		if c.Image != "psidecar:devel" {
			t.Errorf("%s: image %s", name, c.Image)
		}
		checkProbe(t, name+" liveness", c, c.LivenessProbe, "/healthz")
		checkProbe(t, name+" readiness", c, c.ReadinessProbe, "/readyz")
	}
	if got, want := r.names("ServiceAccount"), []string{"psidecar-agent", "psidecar-planner"}; !slices.Equal(got, want) {
		t.Errorf("service accounts %q, want %q", got, want)
	}
	if got := slices.Concat(r.names("SecurityContextConstraints"), r.names("PriorityClass")); len(got) > 0 {
		t.Errorf("nobody asked for %q", got)
	}
	var terms []string
	for _, term := range pods["agent"].Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			terms = append(terms, fmt.Sprintf("%s %s %s", e.Key, e.Operator, e.Values))
		}
	}
	if !slices.Contains(terms, "eks.amazonaws.com/compute-type NotIn [fargate]") {
		t.Errorf("agents may come to nodes without a kernel of their own: %q", terms)
	}
}

func checkProbe(t *testing.T, what string, c corev1.Container, p *corev1.Probe, path string) {
	t.Helper()
	if p == nil || p.HTTPGet == nil {
		t.Errorf("%s: no probe by HTTP: %v", what, p)
		return
	}
	port := slices.ContainsFunc(c.Ports, func(have corev1.ContainerPort) bool { return have.Name == p.HTTPGet.Port.String() })
	if p.HTTPGet.Path != path || !port || p.TimeoutSeconds < 2 {
		t.Errorf("%s: asks %s at port %s, with %d s for the answer; the container has the ports %v", what, p.HTTPGet.Path, p.HTTPGet.Port.String(), p.TimeoutSeconds, c.Ports)
	}
}

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// allPods is what concerns the pods and containers of every part.
var allPods = map[string]any{
	"tls": plain, "proxy": map[string]any{"enabled": true, "livenessProbe": map[string]any{"periodSeconds": 7}},
	"image":         map[string]any{"repository": "registry.example/psidecar", "tag": "v1", "digest": digest},
	"priorityClass": map[string]any{"create": true, "name": "watchers", "value": 5000},
	"updateStrategy": map[string]any{
		"type": "OnDelete", "rollingUpdate": nil},
	"podLabels": map[string]any{"team": "ads"}, "podAnnotations": map[string]any{"note": "kept"},
	"extraEnv":          []any{map[string]any{"name": "GOMEMLIMIT", "value": "512MiB"}},
	"extraVolumes":      []any{map[string]any{"name": "scratch", "emptyDir": map[string]any{}}},
	"extraVolumeMounts": []any{map[string]any{"name": "scratch", "mountPath": "/scratch"}},
	"serviceAccount":    map[string]any{"annotations": map[string]any{"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/p"}},
	"seLinuxOptions":    map[string]any{"type": "psidecar_t"},
}

// TestRenderedPods: what is set for pods and containers is in each of them.
func TestRenderedPods(t *testing.T) {
	r := rendered(t, allPods)
	set, pods := r.pods()
	if set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType || set.Spec.UpdateStrategy.RollingUpdate != nil {
		t.Errorf("update strategy %v", set.Spec.UpdateStrategy)
	}
	if got := pods["agent"].Spec.PriorityClassName; got != "watchers" || !slices.Equal(r.names("PriorityClass"), []string{"watchers"}) {
		t.Errorf("the agents' priority class is %q; made are %q", got, r.names("PriorityClass"))
	}
	if got := pods["agent"].Spec.SecurityContext.SELinuxOptions; got == nil || got.Type != "psidecar_t" {
		t.Errorf("SELinux options %v", got)
	}
	for part, p := range pods {
		if p.Labels["team"] != "ads" || p.Annotations["note"] != "kept" || p.Labels["app.kubernetes.io/component"] != part {
			t.Errorf("%s: labels %v, annotations %v", part, p.Labels, p.Annotations)
		}
		if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "scratch" && v.EmptyDir != nil }) {
			t.Errorf("%s lacks the volume: %v", part, p.Spec.Volumes)
		}
	}
	all := containers(pods)
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, []string{"agent", "planner", "proxy"}) {
		t.Fatalf("containers %q", got)
	}
	for name, c := range all {
		if c.Image != "registry.example/psidecar@"+digest {
			t.Errorf("%s: image %s", name, c.Image)
		}
		if !slices.Contains(c.Env, corev1.EnvVar{Name: "GOMEMLIMIT", Value: "512MiB"}) {
			t.Errorf("%s lacks the variable: %v", name, c.Env)
		}
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "scratch" && m.MountPath == "/scratch" }) {
			t.Errorf("%s does not mount the volume: %v", name, c.VolumeMounts)
		}
	}
	if got := all["proxy"].LivenessProbe.PeriodSeconds; got != 7 {
		t.Errorf("the proxy is probed every %d s, not 7", got)
	}
	for _, name := range r.names("ServiceAccount") {
		var account corev1.ServiceAccount
		r.read("ServiceAccount", name, &account)
		if account.Annotations["eks.amazonaws.com/role-arn"] == "" {
			t.Errorf("service account %s: annotations %v", name, account.Annotations)
		}
	}
}

// TestRenderedHelmTest: the pod of helm test asks what the release has, by names and
// ports that its Services have, and may do nothing in the cluster.
func TestRenderedHelmTest(t *testing.T) {
	for _, tc := range []struct {
		name   string
		values map[string]any
		want   []string
	}{
		{"all parts", map[string]any{"tls": plain, "proxy": map[string]any{"enabled": true, "httpPort": 4}, "agent": map[string]any{"httpPort": 3}, "planner": map[string]any{"httpPort": 5}},
			[]string{"--agents=psidecar-agents.watching.svc:3", "--proxies=psidecar-agents.watching.svc:4", "--planners=psidecar-planner.watching.svc:5"}},
		{"agents alone", map[string]any{"planner": map[string]any{"enabled": false}}, []string{"--agents=psidecar-agents.watching.svc:9810"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			objects, err := renderFor("watching", nil, tc.values)
			if err != nil {
				t.Fatal(err)
			}
			r := release{t, objects}
			var pod corev1.Pod
			r.read("Pod", "psidecar-test", &pod)
			c := pod.Spec.Containers[0]
			if want := append([]string{"check", "--patience=2m"}, tc.want...); !slices.Equal(c.Args, want) || len(c.Command) > 0 {
				t.Errorf("it runs %q %q, want %q", c.Command, c.Args, want)
			}
			if pod.Annotations["helm.sh/hook"] != "test" || pod.Spec.RestartPolicy != corev1.RestartPolicyNever || *pod.Spec.AutomountServiceAccountToken {
				t.Errorf("no pod of helm test, or one with a token or that begins again: %v %v", pod.Annotations, pod.Spec)
			}
			for _, arg := range tc.want {
				_, address, _ := strings.Cut(arg, "=")
				host, port, _ := strings.Cut(address, ":")
				service, _, _ := strings.Cut(host, ".")
				var s corev1.Service
				r.read("Service", service, &s)
				if !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return fmt.Sprint(p.Port) == port }) {
					t.Errorf("%s: the Service has the ports %v", arg, s.Spec.Ports)
				}
			}
			var agents corev1.Service
			r.read("Service", "psidecar-agents", &agents)
			var set appsv1.DaemonSet
			r.read("DaemonSet", "psidecar", &set)
			if agents.Spec.ClusterIP != corev1.ClusterIPNone || !agents.Spec.PublishNotReadyAddresses || !maps.Equal(agents.Spec.Selector, set.Spec.Selector.MatchLabels) {
				t.Errorf("the Service does not stand for each of the agents: %v", agents.Spec)
			}
		})
	}
}

// TestRenderedStore: one planner at a time has the store, which is on a volume where the values ask
// for one.
func TestRenderedStore(t *testing.T) {
	for _, claimed := range []bool{false, true} {
		r := rendered(t, map[string]any{"tls": plain, "planner": map[string]any{"volumeClaim": map[string]any{"enabled": claimed, "size": "2Gi", "storageClassName": "fast"}}})
		var planner appsv1.Deployment
		r.read("Deployment", "psidecar-planner", &planner)
		if *planner.Spec.Replicas != 1 || planner.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType {
			t.Errorf("%d planners are replaced by %s; want 1 by Recreate", *planner.Spec.Replicas, planner.Spec.Strategy.Type)
		}
		pod := planner.Spec.Template.Spec
		store := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "store" })
		mount := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "store" })
		if store < 0 || mount < 0 || !slices.Contains(pod.Containers[0].Args, "--store="+pod.Containers[0].VolumeMounts[mount].MountPath+"/plans") {
			t.Fatalf("the store is not on its volume: %v, %v, %v", pod.Containers[0].Args, pod.Containers[0].VolumeMounts, pod.Volumes)
		}
		claim := pod.Volumes[store].PersistentVolumeClaim
		if claims := r.names("PersistentVolumeClaim"); (claim != nil) != claimed || (len(claims) == 1) != claimed || (pod.Volumes[store].EmptyDir == nil) != claimed {
			t.Fatalf("with volumeClaim.enabled=%v the volume is %v, and the claims are %q", claimed, pod.Volumes[store], claims)
		}
		if !claimed {
			continue
		}
		var made corev1.PersistentVolumeClaim
		r.read("PersistentVolumeClaim", claim.ClaimName, &made)
		if size := made.Spec.Resources.Requests.Storage().String(); size != "2Gi" || *made.Spec.StorageClassName != "fast" {
			t.Errorf("claimed are %s of class %s", size, *made.Spec.StorageClassName)
		}
	}
}

// TestRenderedLint: helm lint has nothing against the chart.
func TestRenderedLint(t *testing.T) {
	for _, m := range lint.AllWithKubeVersion(chartDir, map[string]any{"tls": plain}, "watching", nil).Messages {
		if m.Severity > support.InfoSev {
			t.Errorf("%s: %v", m.Path, m.Err)
		}
	}
}
