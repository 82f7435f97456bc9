package kubernetes

import (
	"os"
	"os/exec"
	"time"
)

// planners runs the product's own test of two planners, with the rights that
// the chart gives to one and nothing else.
func (c *cluster) planners(namespace string) {
	token, _ := c.as(namespace, "psidecar-planner")
	cmd := exec.CommandContext(c.t.Context(), "go", "test", "-count=1", "-v", "-timeout", "5m", "-run", "KilledLeader", "./test/deploy")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOWORK=off", "KUBECONFIG="+c.kubeconfig("planner", token), "PSIDECAR_TEST_NAMESPACE="+namespace)
	began := time.Now()
	out, err := cmd.CombinedOutput()
	c.t.Logf("%s", out)
	if err != nil {
		c.t.Errorf("two planners, after %v: %v", time.Since(began).Round(time.Second), err)
	}
}
