package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/psidecar/psidecar/planner/store"
	"github.com/psidecar/psidecar/test/hoststest"
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

func startProcess(t *testing.T, program, namespace string, args ...string) *planner {
	t.Helper()
	p := &planner{t: t, program: program, listen: freeAddress(t), http: freeAddress(t), log: &bytes.Buffer{}}
	args = append([]string{"planner", "--listen", p.listen, "--insecure", "--socket", "", "--http", p.http, "--store", "kubernetes:" + namespace, "--lease", leaseName}, args...)
	p.cmd = exec.Command(program, args...)
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

// stop ends it in order.
func (p *planner) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the planner at %s ends with %v", p.http, err)
	}
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

// get asks the planner's page.
func (p *planner) get(path string) (string, error) {
	r, err := http.Get("http://" + p.http + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, body)
	}
	return string(body), err
}

// ready asks whether the planner takes requests; the error says why not.
func (p *planner) ready() (string, error) { return p.get("/readyz") }

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
	c := store.Campaign{Namespace: namespace, Lease: leaseName, Identity: "test", Config: config}
	err = c.Run(t.Context(), func(ctx context.Context, s *store.KubeStore) error {
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

// await waits until a planner says what is wanted, and returns that.
func (p *planner) await(what string, ask func() (string, error)) string {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		says, err := ask()
		if err == nil {
			return says
		}
		if time.Now().After(end) {
			p.t.Fatalf("waiting for the planner at %s %s: %v", p.http, what, err)
		}
	}
}

// TestKilledLeader: when the planner that has the lead is killed the other has it
// within 15 seconds, with the same plans. Who waits answers that it does not
// serve, or sends on to one that says where it is.
func TestKilledLeader(t *testing.T) {
	namespace := os.Getenv("PSIDECAR_TEST_NAMESPACE")
	if namespace == "" {
		namespace = "training"
		t.Setenv("KUBECONFIG", startAPIServer(t))
	}
	propose(t, namespace, 3)
	program := hoststest.BuildJob(t, "cmd/psidecar")
	first := startProcess(t, program, namespace)
	before := first.await("to have the lead", first.show)
	if !strings.Contains(before, testJob) {
		t.Fatalf("the first planner shows %.2000s", before)
	}
	second := startProcess(t, program, namespace, "--advertise", "127.0.0.1")
	second.await("to hear of the leader", func() (string, error) {
		says, err := second.ready()
		if err == nil {
			t.Fatal("both planners serve")
		}
		if strings.Contains(err.Error(), "has the lead") {
			return says, nil
		}
		return says, err
	})
	if _, err := second.show(); err == nil || !strings.Contains(err.Error(), "has the lead") {
		t.Errorf("the second planner is asked for plans: %v", err)
	}

	killed := time.Now()
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	second.await("to go on", second.ready)
	took := time.Since(killed)
	after := second.await("to show its plans", second.show)
	t.Logf("the other planner served the same plans %.1f s after the leader was killed", took.Seconds())
	if took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	if after != before {
		t.Errorf("before: %.3000s\nafter: %.3000s", before, after)
	}

	third := startProcess(t, program, namespace)
	third.await("to be ready", third.ready)
	for end := range 2 {
		if shown, err := third.show(); err != nil || shown != before {
			t.Errorf("asked at the third planner: %.2000s, %v\nat the first: %.2000s", shown, err, before)
		}
		if there, err := third.get("/api/v1/plan?job=" + testJob); err != nil || !strings.Contains(there, "to be kept") {
			t.Errorf("the third planner's page shows %.2000s, %v", there, err)
		}
		if end == 0 { // in order: the lead is given back
			second.stop()
			third.await("to go on", third.show)
		}
	}
}
