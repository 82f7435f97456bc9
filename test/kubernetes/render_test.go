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
	rbacv1 "k8s.io/api/rbac/v1"
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

// pods are the pods' templates of agents and proxies, and of planners.
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

// TestRenderedAccounts: accounts that are there are used and bound, and not made.
func TestRenderedAccounts(t *testing.T) {
	r := rendered(t, map[string]any{"tls": plain, "serviceAccount": map[string]any{"create": false, "names": map[string]any{"agent": "watcher", "planner": "keeper"}}})
	if got := r.names("ServiceAccount"); len(got) > 0 {
		t.Errorf("made are %q", got)
	}
	_, pods := r.pods()
	var cluster rbacv1.ClusterRoleBinding
	var role rbacv1.RoleBinding
	r.read("ClusterRoleBinding", "psidecar-agent", &cluster)
	r.read("RoleBinding", "psidecar-planner", &role)
	for _, x := range []struct {
		part, want string
		bound      []rbacv1.Subject
	}{{"agent", "watcher", cluster.Subjects}, {"planner", "keeper", role.Subjects}} {
		if got := pods[x.part].Spec.ServiceAccountName; got != x.want || len(x.bound) != 1 || x.bound[0].Name != x.want {
			t.Errorf("%s runs as %q, and the rights are those of %v; want %s", x.part, got, x.bound, x.want)
		}
	}
	named := rendered(t, map[string]any{"tls": plain, "serviceAccount": map[string]any{"names": map[string]any{"agent": "watcher"}}})
	if got, want := named.names("ServiceAccount"), []string{"psidecar-planner", "watcher"}; !slices.Equal(got, want) {
		t.Errorf("with a name made are %q, want %q", got, want)
	}
}

// TestRenderedOnOpenShift: there the agent's account may have what its pods ask for,
// and the planner asks for no user or group.
func TestRenderedOnOpenShift(t *testing.T) {
	apis := []string{"security.openshift.io/v1"}
	for _, tc := range []struct {
		value string
		apis  []string
		want  bool
	}{{"auto", apis, true}, {"auto", nil, false}, {"always", nil, true}, {"never", apis, false}} {
		t.Run(fmt.Sprintf("%s,%d APIs", tc.value, len(tc.apis)), func(t *testing.T) {
			objects, err := renderFor("watching", tc.apis, map[string]any{"tls": plain, "proxy": map[string]any{"enabled": true}, "openshift": tc.value})
			if err != nil {
				t.Fatal(err)
			}
			r := release{t, objects}
			_, pods := r.pods()
			planner, agent := pods["planner"].Spec.SecurityContext, pods["agent"].Spec.SecurityContext
			free := planner.RunAsUser == nil && planner.RunAsGroup == nil && planner.FSGroup == nil
			if free != tc.want || !*planner.RunAsNonRoot {
				t.Errorf("the planner is left free to have any user: %v, want %v", free, tc.want)
			}
			if kind := agent.SELinuxOptions; (kind != nil) != tc.want || kind != nil && kind.Type != "spc_t" {
				t.Errorf("the agent's SELinux options are %v", kind)
			}
			if made := len(r.names("SecurityContextConstraints")) == 1; made != tc.want {
				t.Fatalf("constraints are made: %v, want %v", made, tc.want)
			}
			if tc.want {
				checkConstraints(t, r, pods["agent"].Spec)
			}
		})
	}
}

func checkConstraints(t *testing.T, r release, pod corev1.PodSpec) {
	t.Helper()
	var c struct {
		runtime.TypeMeta    `json:",inline"`
		Users               []string            `json:"users"`
		AllowedCapabilities []corev1.Capability `json:"allowedCapabilities"`
		Volumes             []string            `json:"volumes"`
	}
	for _, o := range r.objects {
		if o.GetKind() == "SecurityContextConstraints" {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := "system:serviceaccount:watching:" + pod.ServiceAccountName; !slices.Equal(c.Users, []string{want}) {
		t.Errorf("the constraints are for %q, want %s", c.Users, want)
	}
	for _, container := range pod.Containers {
		for _, capability := range container.SecurityContext.Capabilities.Add {
			if !slices.Contains(c.AllowedCapabilities, capability) {
				t.Errorf("%s asks for %s, which is not allowed", container.Name, capability)
			}
		}
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil && !slices.Contains(c.Volumes, "hostPath") {
			t.Errorf("volume %s is a folder of the host, which is not allowed", v.Name)
		}
	}
}

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
		{"no certificates", "watching", nil, "tls.insecure=true"},
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

// TestRenderedLint: helm lint has nothing against the chart.
func TestRenderedLint(t *testing.T) {
	for _, m := range lint.AllWithKubeVersion(chartDir, map[string]any{"tls": plain}, "watching", nil).Messages {
		if m.Severity > support.InfoSev {
			t.Errorf("%s: %v", m.Path, m.Err)
		}
	}
}
