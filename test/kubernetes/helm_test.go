package kubernetes

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// written returns the lines of documents of the project that call a program, each
// once, in order.
func written(t *testing.T, program string, documents ...string) (lines []string) {
	t.Helper()
	for _, d := range documents {
		text, err := os.ReadFile("../../" + d)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, program+" ") && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// helm runs a command as it is written, in the project's folder.
func (c *cluster) helm(kubeconfig, line string) {
	c.t.Helper()
	program := os.Getenv("HELM")
	if program == "" {
		c.t.Fatal("HELM does not name helm: make test-kubernetes does")
	}
	words := strings.Fields(strings.NewReplacer("REGISTRY", "registry.example", "TAG", "v1.2.3").Replace(line))
	if words[1] != "uninstall" {
		words = append(words, "--no-hooks") // no node runs the Job that makes certificates
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, words[1:]...)
	cmd.Dir = "../.."
	cmd.Env = []string{"HOME=" + c.dir, "KUBECONFIG=" + kubeconfig}
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// TestHelm runs the helm commands that the README files tell users to run, with
// helm itself: install, then what turns thresholding on, then uninstall.
func TestHelm(t *testing.T) {
	lines := written(t, "helm", "README.md", "docs/deploying.md")
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "helm install ") || !strings.HasPrefix(lines[1], "helm upgrade ") {
		t.Fatalf("the documents have %q", lines)
	}
	c := startCluster(t)
	kubeconfig := c.kubeconfig("user", adminToken)
	c.addNode("node-1")
	c.addNode("node-2")
	c.addNamespace("psidecar") // as kubectl create namespace does

	c.helm(kubeconfig, lines[0])
	c.awaitNodes("psidecar", "node-1", "node-2")
	if images, _ := c.agents(); !slices.Equal(images, []string{"registry.example/psidecar:v1.2.3"}) {
		t.Errorf("agents alone run %q", images)
	}
	for _, line := range lines[1:] {
		c.helm(kubeconfig, line)
	}
	images, args := c.agents()
	if len(images) != 2 || images[0] != images[1] || !slices.Contains(args, "--threshold=0.99") {
		t.Errorf("with thresholding they run %q with %q", images, args)
	}
	c.helm(kubeconfig, "helm uninstall psidecar --namespace psidecar")
	c.await("the DaemonSet to be gone", time.Minute, func(ctx context.Context) error {
		sets, err := c.client.AppsV1().DaemonSets("psidecar").List(ctx, metav1.ListOptions{})
		if err == nil && len(sets.Items) > 0 {
			err = errors.New("it is there")
		}
		return err
	})
}

// agents returns what the containers of the one DaemonSet run.
func (c *cluster) agents() (images, args []string) {
	c.t.Helper()
	sets, err := c.client.AppsV1().DaemonSets("psidecar").List(c.t.Context(), metav1.ListOptions{})
	if err != nil || len(sets.Items) != 1 {
		c.t.Fatalf("%d DaemonSets, %v", len(sets.Items), err)
	}
	for _, container := range sets.Items[0].Spec.Template.Spec.Containers {
		images, args = append(images, container.Image), append(args, container.Args...)
	}
	return images, args
}
