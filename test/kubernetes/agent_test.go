package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// agent runs a psidecar agent, with the rights that the chart gives to one, and
// a planner. Of two jobs in cgroups as the kubelet lays them out the agent
// watches the one whose pod has the label. The agent names the pod, and so does
// the planner to which it reports, which knows how fast the node's link is too.
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
	annotation := []byte(`{"metadata":{"annotations":{"psidecar.io/link-mbit":"25000"}}}`)
	if _, err := c.client.CoreV1().Nodes().Patch(c.t.Context(), "node-1", types.MergePatchType, annotation, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	token, _ := c.as(namespace, "psidecar-agent")
	ports := freePorts(c.t, 3)
	at, reports, planner := "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[1], "127.0.0.1:"+ports[2]
	c.run(exec.Command(psidecar, "planner", "--listen", reports, "--insecure", "--socket", "", "--http", planner), "planner")
	cmd := exec.Command(psidecar, "agent", "--kubernetes", "--kubernetes-node", "node-1", "--kubernetes-selector", "psidecar.io/job=true",
		"--http", at, "--host", "node-1", "--planner", reports)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig("agent", token))
	c.run(cmd, "agent")
	for who, address := range map[string]string{"agent": at, "planner": planner} {
		c.await("the "+who+" to name the pod", time.Minute, func(context.Context) error { return namesPod(address, namespace) })
	}
	c.await("the planner to know the node's link", time.Minute, func(context.Context) error {
		var answer struct {
			Hosts []struct {
				Host    string
				Machine *struct {
					LinkMbit   uint32 `json:"link_mbit"`
					LinkSource string `json:"link_source"`
				}
			}
		}
		body, err := get("http://"+planner+"/api/v1/agent", &answer)
		if err != nil {
			return err
		}
		if h := answer.Hosts; len(h) != 1 || h[0].Host != "node-1" || h[0].Machine == nil || h[0].Machine.LinkMbit != 25000 {
			return fmt.Errorf("it shows %s", body)
		}
		return nil
	})
	c.await("the pod in the agent's metrics", time.Minute, func(context.Context) error {
		body, err := get("http://"+at+"/metrics", nil)
		want := fmt.Sprintf(`name="worker0",namespace="%s",node="node-1",pod="labelled",rank="0",role="worker"} 1`, namespace)
		if err == nil && !bytes.Contains(body, []byte(want)) {
			err = fmt.Errorf("no %s", want)
		}
		return err
	})
}

// namesPod checks that all nodes of the only job are shown with the pod that
// they are in.
func namesPod(address, namespace string) error {
	var answer struct {
		Jobs []struct {
			Nodes []struct {
				PodName *struct{ Namespace, Name, Node string } `json:"pod_name"`
			}
		}
	}
	body, err := get("http://"+address+"/api/v1/jobs", &answer)
	if err != nil {
		return err
	}
	jobs := answer.Jobs
	if len(jobs) != 1 || len(jobs[0].Nodes) < 3 {
		return fmt.Errorf("it shows %s", body)
	}
	for _, n := range jobs[0].Nodes {
		if p := n.PodName; p == nil || p.Name != "labelled" || p.Namespace != namespace || p.Node != "node-1" {
			return fmt.Errorf("it shows %s", body)
		}
	}
	return nil
}

// get reads an address; into, where not nil, takes what it answers in JSON.
func get(url string, into any) ([]byte, error) {
	r, err := http.Get(url)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || into == nil {
		return body, err
	}
	return body, json.Unmarshal(body, into)
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
