package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// agent runs a psidecar agent with the rights that the chart gives to one. Of
// two jobs in cgroups as the kubelet lays them out it watches the one whose pod
// has the label, and names the pod.
func (c *cluster) agent(namespace string) {
	psidecar, psjob := os.Getenv("PSIDECAR"), os.Getenv("PSJOB")
	if psidecar == "" || psjob == "" {
		c.t.Fatal("PSIDECAR and PSJOB do not name the programs: make test-kubernetes does")
	}
	if os.Geteuid() != 0 {
		c.t.Log("the agent itself is not run: that needs root")
		return
	}
	c.job(namespace, "plain", nil, psjob)
	c.job(namespace, "labelled", map[string]string{"psidecar.io/job": "true"}, psjob)
	token, _ := c.as(namespace, "psidecar-agent")
	at := "127.0.0.1:" + freePorts(c.t, 1)[0]
	cmd := exec.Command(psidecar, "agent", "--kubernetes", "--kubernetes-node", "node-1", "--kubernetes-selector", "psidecar.io/job=true", "--http", at)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig("agent", token))
	c.run(cmd, "agent")
	c.await("the agent to name the pod", time.Minute, func(ctx context.Context) error {
		r, err := http.Get("http://" + at + "/api/v1/jobs")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		var body bytes.Buffer
		if _, err := body.ReadFrom(r.Body); err != nil {
			return err
		}
		var answer struct {
			Jobs []struct {
				Nodes []struct {
					PodName *struct{ Namespace, Name, Node string } `json:"pod_name"`
				}
			}
		}
		if err := json.Unmarshal(body.Bytes(), &answer); err != nil {
			return err
		}
		jobs := answer.Jobs
		if len(jobs) != 1 || len(jobs[0].Nodes) < 3 {
			return fmt.Errorf("it shows %s", body.Bytes())
		}
		for _, n := range jobs[0].Nodes {
			if p := n.PodName; p == nil || p.Name != "labelled" || p.Namespace != namespace || p.Node != "node-1" {
				return fmt.Errorf("it shows %s", body.Bytes())
			}
		}
		return nil
	})
}

// job runs one in the cgroup of a pod of node-1.
func (c *cluster) job(namespace, name string, labels map[string]string, psjob string) {
	c.t.Helper()
	p, err := c.client.CoreV1().Pods(namespace).Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{{Name: "job", Image: "job"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	parent := filepath.Join(c.cgroup2(), fmt.Sprintf("psd-%d", os.Getpid()))
	group := filepath.Join(parent, "kubepods", "pod"+string(p.UID), "job")
	if err := os.MkdirAll(group, 0o755); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		for dir := group; len(dir) >= len(parent); dir = filepath.Dir(dir) {
			for range 50 { // until the last process is quite gone
				if err := os.Remove(dir); !errors.Is(err, syscall.EBUSY) {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
	})
	dir, err := os.Open(group)
	if err != nil {
		c.t.Fatal(err)
	}
	defer dir.Close()
	port := freePorts(c.t, 1)[0]
	for _, role := range []string{"scheduler", "server", "worker"} {
		args := []string{}
		if role == "worker" {
			args = []string{"--model", "count", "--steps", "1000000"}
		}
		cmd := exec.Command(psjob, args...)
		cmd.Env = append(os.Environ(), "DMLC_ROLE="+role, "DMLC_PS_ROOT_URI=127.0.0.1", "DMLC_PS_ROOT_PORT="+port,
			"DMLC_NODE_HOST=127.0.0.1", "DMLC_NUM_SERVER=1", "DMLC_NUM_WORKER=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
		c.run(cmd, name+" "+role)
	}
}

func (c *cluster) cgroup2() string {
	c.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1]
		}
	}
	c.t.Fatal("cgroup v2 is not mounted")
	return ""
}
