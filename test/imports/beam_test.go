package imports

import (
	"os/exec"
	"strings"
	"testing"
)

// TestProductWithoutBeam keeps the engine of cmd/psidecar-beam, a module of its
// own, out of what every host runs.
func TestProductWithoutBeam(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/psidecar", "./cmd/psjob")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	if len(packages) < 300 {
		t.Fatalf("only %d packages are listed", len(packages))
	}
	for _, pkg := range packages {
		if strings.HasPrefix(pkg, "github.com/apache/beam") || strings.HasPrefix(pkg, module+"cmd/psidecar-beam") {
			t.Errorf("the product depends on %s", pkg)
		}
	}
}
