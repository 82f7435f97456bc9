package kubernetes

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write deploy/manifests")

// manifests are what deploy/manifests holds, rendered from the chart.
var manifests = []struct {
	name, what string
	values     map[string]any
}{
	{"observe.yaml", "Agents on every node and a planner: jobs are watched, nothing is in their data path.\n# A Job makes the certificates; the pods start when it has.", nil},
	{"proxy.yaml", "The same, and proxies.", map[string]any{"proxy": map[string]any{"enabled": true}}},
}

// TestManifests: the manifests are those that the chart gives. With -update
// they are written.
func TestManifests(t *testing.T) {
	for _, m := range manifests {
		var want bytes.Buffer
		fmt.Fprintf(&want, "# %s\n# Made from deploy/chart by make manifests; the namespace psidecar must be there, and the\n# image be one of your registry.\n", m.what)
		objects, err := renderFor("psidecar", nil, m.values)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if o.GetAnnotations()["helm.sh/hook"] == "test" {
				continue // the Job of certificates is a hook, too
			}
			text, err := yaml.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&want, "---\n%s", text)
		}
		path := filepath.Join("../../deploy/manifests", m.name)
		if *update {
			if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s is not what the chart gives (%v); make manifests writes it", path, err)
		}
	}
}
