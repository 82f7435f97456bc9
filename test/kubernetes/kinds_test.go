package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// othersKinds are the kinds of objects that the chart makes and others define:
// files of definitions in the Go modules of those who do.
var othersKinds = []struct {
	module string
	files  []string
}{
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0", []string{
		"example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
		"example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
	}},
	{"github.com/cert-manager/cert-manager@v1.18.2", []string{"deploy/crds/crd-certificates.yaml"}},
	{"github.com/openshift/api@v0.0.0-20241216151652-de9de05a8e43", []string{"payload-manifests/crds/0000_03_config-operator_01_securitycontextconstraints-Default.crd.yaml"}},
}

// moduleDir is where the go command keeps a module, which it fetches, and
// checks against the checksum database, where it is not there yet.
func (c *cluster) moduleDir(module string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), "go", "mod", "download", "-json", module)
	cmd.Dir = c.dir // outside of any module: none has to require this one
	out, err := cmd.Output()
	var answer struct{ Dir, Error string }
	if wrong := json.Unmarshal(out, &answer); wrong != nil || answer.Dir == "" {
		c.t.Fatalf("go mod download %s: %v %s %s", module, err, answer.Error, out)
	}
	return answer.Dir
}

// defineOthersKinds teaches the API server the kinds that others define, and
// waits until it serves them.
func (c *cluster) defineOthersKinds() {
	c.t.Helper()
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, o := range othersKinds {
		dir := c.moduleDir(o.module)
		for _, file := range o.files {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				c.t.Fatal(err)
			}
			d := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(text, &d.Object); err != nil {
				c.t.Fatalf("%s of %s: %v", file, o.module, err)
			}
			// Their labels and annotations are templates, for their own charts.
			d.Object["metadata"] = map[string]any{"name": d.GetName()}
			if _, err := definitions.Create(c.t.Context(), d, metav1.CreateOptions{FieldValidation: "Strict"}); err != nil && !apierrors.IsAlreadyExists(err) {
				c.t.Fatalf("%s of %s: %v", file, o.module, err)
			}
			c.await(d.GetName(), time.Minute, func(ctx context.Context) error { return established(ctx, definitions, d.GetName()) })
		}
	}
}

func established(ctx context.Context, definitions dynamic.ResourceInterface, name string) error {
	d, err := definitions.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions, _, err := unstructured.NestedSlice(d.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
			return nil
		}
	}
	return fmt.Errorf("its conditions are %v", conditions)
}
