package readme

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/require"
)

// address is this host's, as its jobs and planner have it.
const address = "198.18.0.1"

// patience is for what comes beside a load that takes all cores.
const patience = 10 * time.Minute

// house is a machine as a new user has it: nothing of psidecar's and no job on it.
type house struct {
	t     *testing.T
	ctx   context.Context
	group string // cgroup of jobs
	tools string // folder of psidecar and psjob
	port  int    // of the last job's scheduler
}

// enter makes the process's new namespaces such a machine.
func enter(dir string) error {
	steps := []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("proc", "/proc", "proc", 0, "") },
		func() error { return unix.Mount("tmpfs", "/run", "tmpfs", 0, "") },
		func() error { return unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "") },
		func() error {
			hosts := filepath.Join(dir, "hosts")
			if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"+address+" planner-host\n"), 0o644); err != nil {
				return err
			}
			return unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, "")
		},
		network,
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d of making a machine: %w", i, err)
		}
	}
	return nil
}

// network gives the namespace its addresses.
func network() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	at, err := netlink.ParseAddr(address + "/32")
	if err != nil {
		return err
	}
	return netlink.AddrAdd(lo, at)
}

// load takes all cores until the test ends.
func (h *house) load() {
	for range runtime.NumCPU() {
		h.start("sh", "-c", "while :; do :; done")
	}
}

// process is a command that runs.
type process struct {
	cmd  *exec.Cmd
	out  hosts.Log // both streams
	done chan struct{}
	stop func() // kills it; may be called again
}

// start starts a command, which is killed at the end of the test at the latest.
func (h *house) start(name string, args ...string) *process {
	h.t.Helper()
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	h.begin(p)
	return p
}

func (h *house) begin(p *process) {
	h.t.Helper()
	require.NoError(h.t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // its end is what counts; those who care look at the state
		close(p.done)
	}()
	p.stop = sync.OnceFunc(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	})
	h.t.Cleanup(p.stop)
}

// serve starts psidecar with a command line of the README, and returns when it is
// ready at the port.
func (h *house) serve(line string, port int) *process {
	h.t.Helper()
	p := h.start(h.tools+"/psidecar", strings.Fields(line)[1:]...)
	h.await(line+" is ready", p, func() error {
		_, err := h.get(port, "/healthz") // an agent is ready when there is a job
		return err
	})
	return p
}

// end ends a process in order.
func (h *house) end(p *process) {
	h.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		h.t.Errorf("%v has ended already:\n%s", p.cmd.Args, p.out.String())
	}
	select {
	case <-p.done:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			h.t.Errorf("%v ends with %d:\n%s", p.cmd.Args, code, p.out.String())
		}
	case <-time.After(patience):
		h.t.Errorf("%v does not end:\n%s", p.cmd.Args, p.out.String())
		p.stop()
	}
}

// run runs a command line of the README to its end and returns what it printed.
func (h *house) run(line string) string {
	h.t.Helper()
	out, err := h.try(line)
	if err != nil {
		h.t.Errorf("%s: %v\n%s", line, err, out)
	}
	return out
}

func (h *house) try(line string) (string, error) {
	ctx, cancel := context.WithTimeout(h.ctx, patience)
	defer cancel()
	words := strings.Fields(line)
	if words[0] == "psidecar" || words[0] == "psjob" {
		words[0] = h.tools + "/" + words[0]
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errs.Bytes())
	}
	return out.String(), err
}

// await waits until ready returns nil; p, where not nil, must not end before.
func (h *house) await(what string, p *process, ready func() error) {
	h.t.Helper()
	require.Await(h.t, what, func() error {
		err := ready()
		if err == nil {
			return nil
		}
		log := ""
		if p != nil {
			log = p.out.String()
			select {
			case <-p.done:
				h.t.Fatalf("%v has ended:\n%s", p.cmd.Args, log)
			default:
			}
		}
		return fmt.Errorf("%w\n%s", err, log)
	})
}

// awaitOutput runs a command until what it prints has all the words.
func (h *house) awaitOutput(line string, words ...string) {
	h.t.Helper()
	h.await(line, nil, func() error {
		out, err := h.try(line)
		for _, w := range words {
			if err == nil && !strings.Contains(out, w) {
				err = fmt.Errorf("it does not print %q, but:\n%s", w, out)
			}
		}
		return err
	})
}

var client = http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func (h *house) get(port int, path string) ([]byte, error) {
	answer, err := client.Get("http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.200s", answer.Status, body)
	}
	return body, err
}

// decode fails where text is not JSON of v's kind.
func (h *house) decode(text string, v any) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		h.t.Errorf("%v: %.300s", err, text)
	}
}

// carriedJob is job where an agent intercepts: the other nodes start when it has
// found the scheduler, since connections made before go direct.
func (h *house) carriedJob(servers, workers int) (stop func()) {
	h.t.Helper()
	return h.startJob(servers, workers, func() {
		h.await("the agent has listeners for the job", nil, func() error {
			body, err := h.get(agentPage, "/metrics")
			if _, after, _ := strings.Cut(string(body), "\npsidecar_intercept_listeners "); err == nil && (after == "" || after[0] == '0') {
				err = fmt.Errorf("psidecar_intercept_listeners %.10q", after)
			}
			return err
		})
	})
}

// job starts a job that goes on until the function returned ends it. Its workers
// make at most 25 steps a second.
func (h *house) job(servers, workers int) (stop func()) {
	h.t.Helper()
	return h.startJob(servers, workers, func() {})
}

// startJob is job; begun is called between the scheduler's start and the others'.
func (h *house) startJob(servers, workers int, begun func()) (stop func()) {
	h.t.Helper()
	h.port++
	var all []*process
	group := require.Value(os.Open(h.group))(h.t)
	defer group.Close()
	node := func(role string) {
		p := &process{cmd: exec.Command(h.tools+"/psjob", "--model", "count", "--count-compute", "40ms", "--steps", "1000000"), done: make(chan struct{})}
		p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
		p.cmd.Env = append(os.Environ(), "DMLC_ROLE="+role, "DMLC_PS_ROOT_URI="+address, "DMLC_PS_ROOT_PORT="+strconv.Itoa(h.port), "DMLC_NODE_HOST="+address,
			"DMLC_NUM_SERVER="+strconv.Itoa(servers), "DMLC_NUM_WORKER="+strconv.Itoa(workers))
		p.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
		h.begin(p)
		all = append(all, p)
	}
	node("scheduler")
	begun()
	for range servers {
		node("server")
	}
	for range workers {
		node("worker")
	}
	return func() {
		for _, p := range all {
			p.stop()
		}
	}
}
