// Package leader tests two planners that keep plans in a cluster: when the one
// that has the lead is killed the other goes on. It needs an API server, by
// KUBECONFIG, and a namespace; test/kubernetes runs it with its own.
package leader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/psidecar/psidecar/planner/plan"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/planner/store/kube"
	"github.com/psidecar/psidecar/test/job"
)

const (
	leaseName = "psidecar-planner"
	testJob   = "198.18.0.1:9000"
)

// planner is a psidecar planner that runs.
type planner struct {
	t            *testing.T
	program      string
	listen, http string
	cmd          *exec.Cmd
	log          *bytes.Buffer
}

func start(t *testing.T, program, namespace string) *planner {
	t.Helper()
	p := &planner{t: t, program: program, listen: freeAddress(t), http: freeAddress(t), log: &bytes.Buffer{}}
	p.cmd = exec.Command(program, "planner", "--listen", p.listen, "--http", p.http, "--store", "kubernetes:"+namespace, "--lease", leaseName)
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill() // has it ended, fine
		p.cmd.Wait()
		if t.Failed() {
			t.Logf("planner at %s: %s", p.http, p.log)
		}
	})
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// ready reports whether the planner serves, and what it says if not.
func (p *planner) ready() (bool, string) {
	r, err := http.Get("http://" + p.http + "/readyz")
	if err != nil {
		return false, err.Error()
	}
	defer r.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(r.Body); err != nil {
		return false, err.Error()
	}
	return r.StatusCode == http.StatusOK, body.String()
}

// show is psidecar plan show --json.
func (p *planner) show() (string, error) {
	cmd := exec.CommandContext(p.t.Context(), p.program, "plan", "show", "--json", "--planner", p.listen)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, errs.String())
	}
	return out.String(), nil
}

// propose keeps plans in the cluster, as a planner with the lead does.
func propose(t *testing.T, namespace string, epochs int) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	done := errors.New("done")
	c := kube.Campaign{Namespace: namespace, Lease: leaseName, Identity: "test", Config: config}
	err = c.Run(t.Context(), func(ctx context.Context, s *kube.Store) error {
		service, err := plans.New(ctx, s, plans.Options{})
		if err != nil {
			return err
		}
		for e := range epochs {
			targets := make([]plan.Range, 1000) // keys of their own each time
			for i := range targets {
				first := uint64(e*100000 + 10*i)
				targets[i] = plan.Range{Keys: plan.Keys{First: first, Last: first + 3}, Owner: int32(1)}
			}
			if _, err := service.Propose(ctx, plans.Proposal{Job: testJob, Servers: 2, Reason: "to be kept", Targets: targets}); err != nil {
				return err
			}
		}
		return done
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
}

// TestKilledLeader: the other planner has the lead within 15 seconds, with the
// same plans.
func TestKilledLeader(t *testing.T) {
	namespace := os.Getenv("PSIDECAR_TEST_NAMESPACE")
	if namespace == "" {
		t.Skip("no cluster: PSIDECAR_TEST_NAMESPACE is not set; make test-kubernetes sets it")
	}
	propose(t, namespace, 3)
	program := job.Build(t, "cmd/psidecar")
	first := start(t, program, namespace)
	await(t, first)
	second := start(t, program, namespace)
	before, err := first.show()
	if err != nil {
		t.Fatal(err)
	}
	var shown struct {
		Jobs []json.RawMessage `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(before), &shown); err != nil || !strings.Contains(before, testJob) {
		t.Fatalf("the first planner shows %.2000s, %v", before, err)
	}
	// The other one is there, and says that it has not the lead.
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		ready, says := second.ready()
		if ready {
			t.Fatal("both planners serve")
		}
		if strings.Contains(says, "has the lead") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the second planner says %q", says)
		}
	}
	if _, err := second.show(); err == nil || !strings.Contains(err.Error(), "has the lead") {
		t.Errorf("the second planner is asked for plans: %v", err)
	}
	killed := time.Now()
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, second)
	after, err := second.show()
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(killed)
	t.Logf("the other planner served the same plans %.1f s after the leader was killed", took.Seconds())
	if took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	if after != before {
		t.Errorf("before: %.3000s\nafter: %.3000s", before, after)
	}
}

func await(t *testing.T, p *planner) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		ready, says := p.ready()
		if ready {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the planner at %s does not get the lead: %s", p.http, says)
		}
	}
}
