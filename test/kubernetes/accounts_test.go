package kubernetes

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestRenderedAccounts: accounts that are there are used and bound, and not made.
func TestRenderedAccounts(t *testing.T) {
	r := rendered(t, map[string]any{"tls": plain, "serviceAccount": map[string]any{"create": false, "names": map[string]any{"agent": "watcher", "planner": "keeper"}}})
	if got := r.names("ServiceAccount"); len(got) > 0 {
		t.Errorf("made are %q", got)
	}
	_, pods := r.pods()
	for part, want := range map[string]string{"agent": "watcher", "planner": "keeper"} {
		if got := pods[part].Spec.ServiceAccountName; got != want {
			t.Errorf("%s runs as %q, want %s", part, got, want)
		}
	}
	var cluster rbacv1.ClusterRoleBinding
	r.read("ClusterRoleBinding", "psidecar-agent", &cluster)
	if bound := cluster.Subjects; len(bound) != 1 || bound[0].Name != "watcher" || len(r.names("RoleBinding")) > 0 {
		t.Errorf("rights have %v, and others in %q; want watcher alone", bound, r.names("RoleBinding"))
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
