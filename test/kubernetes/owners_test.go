package kubernetes

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestNamesAndPolicy runs the product's own test of what owners of jobs may say, with an
// agent that has the rights that the chart gives to one.
func TestNamesAndPolicy(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("agents and proxies need root")
	}
	c := startCluster(t)
	c.addNamespace("psidecar")
	c.addNode("node-1")
	c.addNode("node-2")
	c.defineOthersKinds()
	c.apply(render(t, "psidecar", everything(map[string]any{"secretName": "links"})))
	token, _ := c.as("psidecar", "psidecar-agent")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-timeout", "8m", "-run", "NamesAndPolicy", "./test/owners")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOWORK=off", "KUBECONFIG="+c.kubeconfig("admin", adminToken), "PSIDECAR_TEST_AGENT_KUBECONFIG="+c.kubeconfig("agent", token))
	began := time.Now()
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("names and policy, after %v: %v", time.Since(began).Round(time.Second), err)
	}
}
