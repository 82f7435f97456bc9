package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

const chartDir = "../../deploy/chart"

// render renders the chart as helm does, its values checked against the schema,
// without what helm makes for itself: the pod of helm test.
func render(t *testing.T, namespace string, values map[string]any) []*unstructured.Unstructured {
	t.Helper()
	objects, err := renderFor(namespace, nil, values)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetAnnotations()["helm.sh/hook"] != "" })
}

// renderFor is render for a cluster that has further APIs, such as
// security.openshift.io/v1.
func renderFor(namespace string, apis []string, values map[string]any) ([]*unstructured.Unstructured, error) {
	chart, err := loader.Load(chartDir)
	if err != nil {
		return nil, err
	}
	cluster := chartutil.DefaultCapabilities.Copy()
	cluster.APIVersions = append(slices.Clone(cluster.APIVersions), apis...)
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "psidecar", Namespace: namespace, IsInstall: true}, cluster)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(files[name])), 4096)
		for {
			o := &unstructured.Unstructured{}
			if err := d.Decode(o); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w\n%s", name, err, files[name])
			}
			if len(o.Object) > 0 {
				objects = append(objects, o)
			}
		}
	}
	return objects, nil
}

// apply applies objects as kubectl apply --server-side --validate=strict does.
func (c *cluster) apply(objects []*unstructured.Unstructured) {
	c.t.Helper()
	groups, err := restmapper.GetAPIGroupResources(c.client.Discovery())
	if err != nil {
		c.t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, o := range objects {
		kind := o.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			c.t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
		text, err := o.MarshalJSON()
		if err != nil {
			c.t.Fatal(err)
		}
		force := true
		_, err = client.Resource(mapping.Resource).Namespace(o.GetNamespace()).Patch(c.t.Context(), o.GetName(), types.ApplyPatchType, text,
			metav1.PatchOptions{FieldManager: "test", Force: &force, FieldValidation: "Strict"})
		if err != nil {
			c.t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// nodesOf returns the nodes for which the DaemonSet has pods, sorted. A pod
// without a node is one that its node's taints keep out.
func (c *cluster) nodesOf(ctx context.Context, namespace string) ([]string, error) {
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=agent"})
	if err != nil {
		return nil, err
	}
	var nodes []string
	for i := range pods.Items {
		p := &pods.Items[i]
		if err := c.kubelet(ctx, p); err != nil {
			return nil, err
		}
		if p.DeletionTimestamp == nil {
			nodes = append(nodes, p.Spec.NodeName)
		}
	}
	slices.Sort(nodes)
	return nodes, nil
}

// kubelet does what a node would for a pod: lets it run, and lets it go when it
// is to end.
func (c *cluster) kubelet(ctx context.Context, p *corev1.Pod) (err error) {
	pods := c.client.CoreV1().Pods(p.Namespace)
	switch {
	case p.DeletionTimestamp != nil:
		now := int64(0)
		err = pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	case p.Spec.NodeName != "" && p.Status.Phase != corev1.PodRunning:
		_, err = pods.Patch(ctx, p.Name, types.MergePatchType, []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *cluster) awaitNodes(namespace string, want ...string) {
	c.t.Helper()
	c.await(fmt.Sprintf("agents on %v", want), time.Minute, func(ctx context.Context) error {
		got, err := c.nodesOf(ctx, namespace)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("there are agents on %q", got)
		}
		return err
	})
}

// everything is turned on, with certificates of one kind or the other.
func everything(tls map[string]any) map[string]any {
	tls["meshOnly"] = true
	return map[string]any{
		"jobs":  map[string]any{"selector": "psidecar.io/job=true"},
		"proxy": map[string]any{"enabled": true, "adopt": true}, "threshold": 0.99, "slim": "0.3,0.1", "quantize": 8, "unchanged": true,
		"act": true, "handler": "add", "allowProbe": true, "split": "auto", "aggregate": "auto", "charValues": "float32", "tls": tls,
		"names": []any{map[string]any{"name": "users", "first": 0, "last": 9}}, "ingress": map[string]any{"enabled": true, "host": "psidecar.example"}, "planner": map[string]any{"volumeClaim": map[string]any{"enabled": true}},
		"networkPolicy": map[string]any{"enabled": true}, "dashboard": map[string]any{"enabled": true},
		"serviceMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
		"prometheusRule": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
		"priorityClass":  map[string]any{"create": true, "name": "psidecar"},
		"openshift":      "always",
	}
}

// plain is no certificates.
var plain = map[string]any{"insecure": true}

// TestChart: the API server takes all that the chart renders, and its
// controllers make a pod for each node that is meant to have one, and the
// planner.
func TestChart(t *testing.T) {
	c := startCluster(t)
	c.addNamespace("watching")
	c.addNode("node-1")
	c.addNode("node-2")
	c.addNode("taken", corev1.Taint{Key: "team", Value: "other", Effect: corev1.TaintEffectNoSchedule})

	c.apply(render(t, "watching", map[string]any{"tolerations": []any{}, "tls": plain}))
	c.awaitNodes("watching", "node-1", "node-2")
	whole, err := renderFor("watching", nil, nil) // with the Job of certificates, which is a hook
	if err != nil {
		t.Fatal(err)
	}
	c.apply(whole)
	c.apply(render(t, "watching", map[string]any{"tls": plain}))
	c.awaitNodes("watching", "node-1", "node-2", "taken")
	c.addNode("node-3")
	c.awaitNodes("watching", "node-1", "node-2", "node-3", "taken")
	c.await("a planner on a node", time.Minute, func(ctx context.Context) error {
		pods, err := c.client.CoreV1().Pods("watching").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=planner"})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Spec.NodeName == "" || p.Spec.NodeName == "taken" {
				return fmt.Errorf("%s is on node %q", p.Name, p.Spec.NodeName)
			}
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d planners", len(pods.Items))
		}
		return nil
	})
	c.defineOthersKinds()
	given := everything(map[string]any{"secretName": "links"})
	made := everything(map[string]any{"certManager": map[string]any{"enabled": true, "issuerRef": map[string]any{"name": "ours"}}})
	c.turnedOn(made)
	c.apply(render(t, "watching", made))
	c.applyHelmTest(made)
	c.apply(render(t, "watching", given))
	c.apply(render(t, "watching", everything(map[string]any{"secretNames": map[string]any{"agent": "a", "proxy": "b", "planner": "c"}})))
	c.rights("watching")
	c.agent("watching")
}

// applyHelmTest has the API server take the pod of helm test.
func (c *cluster) applyHelmTest(values map[string]any) {
	c.t.Helper()
	all, err := renderFor("watching", nil, values)
	if err != nil {
		c.t.Fatal(err)
	}
	hooks := slices.DeleteFunc(all, func(o *unstructured.Unstructured) bool { return o.GetAnnotations()["helm.sh/hook"] != "test" })
	if len(hooks) != 1 {
		c.t.Fatalf("%d objects are for helm test", len(hooks))
	}
	c.apply(hooks)
}

// turnedOn checks that values turn on whatever values.yaml has that is off: a
// new one is to be tried too.
func (c *cluster) turnedOn(values map[string]any) {
	c.t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		c.t.Fatal(err)
	}
	var off func(path string, defaults, with map[string]any)
	off = func(path string, defaults, with map[string]any) {
		for name, v := range defaults {
			is, set := with[name]
			switch v := v.(type) {
			case map[string]any:
				inner, _ := is.(map[string]any)
				off(path+name+".", v, inner)
			case bool:
				if !v && (!set || is != true) && path+name != "tls.insecure" { // which excludes the rest of tls
					c.t.Errorf("%s%s is off, and not turned on here", path, name)
				}
			}
		}
	}
	off("", chart.Values, values)
}
