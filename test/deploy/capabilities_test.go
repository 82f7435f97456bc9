// Package deploy tests that psidecar works with the rights that deploy/ gives
// it, and no more.
package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// proxyUser is whom the proxy runs as, as in the image; jobUser owns the job.
const proxyUser, jobUser = 65532, 4321

// granted are the capabilities that the agent's systemd unit grants, in lower
// case and without CAP_.
func granted(t *testing.T) []string {
	t.Helper()
	unit := require.Value(os.ReadFile("../../deploy/systemd/psidecar-agent.service"))(t)
	line := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.+)$`).FindSubmatch(unit)
	if line == nil {
		t.Fatal("the agent's unit grants no capabilities")
	}
	var names []string
	for _, name := range strings.Fields(string(line[1])) {
		names = append(names, strings.ToLower(strings.TrimPrefix(name, "CAP_")))
	}
	return names
}

// withCapabilities is a command line that root runs with these capabilities
// and can never get others.
func withCapabilities(names []string, args ...string) *exec.Cmd {
	set := "-all"
	for _, n := range names {
		set += ",+" + n
	}
	return exec.Command("setpriv", append([]string{"--bounding-set=" + set, "--inh-caps=-all", "--no-new-privs"}, args...)...)
}

// withoutPrivileges is a command line that runs as a user without any
// capability, on a root file system that is read-only but for one folder.
func withoutPrivileges(folder string, args ...string) *exec.Cmd {
	drop := fmt.Sprintf("setpriv --reuid=%[1]d --regid=%[1]d --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs", proxyUser)
	script := `mount --make-rprivate / && mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec ` + drop + ` "$@"`
	return exec.Command("unshare", append([]string{"--mount", "sh", "-c", script, folder}, args...)...)
}

type service struct {
	process *hosts.Process
	log     *bytes.Buffer
}

func start(t *testing.T, h *hosts.Host, group string, cmd *exec.Cmd) service {
	t.Helper()
	s := service{log: &bytes.Buffer{}}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	s.process = require.Value(h.StartIn(group, cmd))(t)
	t.Cleanup(func() {
		s.process.Signal(syscall.SIGKILL)
		<-s.process.Done()
		if t.Failed() {
			t.Logf("%s on %s:\n%s", group, h.Name, s.log)
		}
	})
	return s
}

// stop ends it in order.
func (s service) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	require.NoError(t, s.process.Signal(syscall.SIGTERM))
	if err := s.process.Wait(ctx); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// effective are the capabilities in force of a process, as the kernel has them.
func effective(t *testing.T, pid int) (mask string) {
	t.Helper()
	status := require.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	return regexp.MustCompile(`CapEff:\t(\w+)`).FindStringSubmatch(string(status))[1]
}

// TestRights: with the capabilities of the agent's unit and none for the proxy,
// a job of another user is found, watched to the last access, and carried by
// the proxies, from the first connection that follows its discovery. The proxies
// have a state folder, in which they may write, and carry plans out.
func TestRights(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	require.Program(t, "setpriv")
	psidecar, psjob := hoststest.BuildJob(t, "cmd/psidecar"), hoststest.BuildJob(t, "cmd/psjob")
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	dir := require.Value(os.MkdirTemp("", "psd-deploy-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	bpffs := t.TempDir()
	require.NoError(t, unix.Mount("bpf", bpffs, "bpf", 0, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(bpffs, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	caps := granted(t)
	planner := n.Host(0).IPv4.String() + ":9811"
	plans := start(t, n.Host(0), "planner", exec.Command(psidecar, "planner", "--listen", planner, "--insecure", "--socket", "", "--store", filepath.Join(dir, "plans"), "--act", "--decide-every", "1s"))
	var agents, proxies []service
	for _, h := range n.Hosts() {
		pins := filepath.Join(bpffs, h.Name)
		t.Cleanup(func() {
			if _, err := redirect.Unload(pins); err != nil {
				t.Error(err)
			}
		})
		cgroup := require.Value(h.Group("job"))(t)
		run := filepath.Join(dir, h.Name)
		if err := os.Mkdir(run, 0o755); err != nil { // as the DaemonSet's volume, root's
			t.Fatal(err)
		}
		socket, state := filepath.Join(run, "listeners.sock"), filepath.Join(run, "state")
		agents = append(agents, start(t, h, "agent", withCapabilities(caps, psidecar, "agent", "--intercept", "--cgroup", cgroup,
			"--sample", "1", "--proxy-socket", socket, "--proxy-uid", fmt.Sprint(proxyUser), "--bpf-dir", pins, "--host", h.Name, "--planner", planner)))
		proxies = append(proxies, start(t, h, "proxy", withoutPrivileges(run, psidecar, "proxy", "--insecure", "--proxy-socket", socket,
			"--state-dir", state, "--planner", planner, "--act", "--handler", "add")))
	}
	for i, h := range n.Hosts() {
		require.Eventually(t, "proxy with listeners on "+h.Name, func() bool { return metric(t, h, "psidecar_intercept_listeners") > 0 })
		if mask := effective(t, proxies[i].process.Pid()); strings.Trim(mask, "0") != "" {
			t.Errorf("the proxy on %s has capabilities %s", h.Name, mask)
		}
		t.Logf("the agent on %s has capabilities %s", h.Name, effective(t, agents[i].process.Pid()))
	}
	asUser := hosts.Program{"setpriv", fmt.Sprintf("--reuid=%d", jobUser), fmt.Sprintf("--regid=%d", jobUser), "--clear-groups", psjob, "--json"}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	counting := append(asUser[:len(asUser):len(asUser)], "--model", "count", "--steps", "4000")
	running, err := hosts.Job{Scheduler: asUser, Servers: hosts.Repeat(2, asUser), Workers: hosts.Repeat(2, counting), Hosts: n.Hosts()}.Start(ctx)
	require.NoError(t, err)
	for _, h := range n.Hosts() {
		require.Eventually(t, "accesses seen on "+h.Name, func() bool { return accesses(t, h) > 0 })
	}
	if err := running.Wait(); err != nil { // workers fail where a sum is wrong
		t.Fatal(err)
	}
	for i, h := range n.Hosts() {
		if c := metric(t, h, `psidecar_intercept_events_total{class="redirected",reason="redirected"}`); c < 3 {
			t.Errorf("%v connections of the job on %s were intercepted", c, h.Name)
		}
		proxies[i].stop(t)
		agents[i].stop(t)
	}
	plans.stop(t)
}

// get asks a service on a host, and returns nothing where there is no answer.
func get(t *testing.T, h *hosts.Host, url string) []byte {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}}
	request := require.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	answer, err := client.Do(request)
	if err != nil {
		return nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return nil
	}
	return text
}

// metric is a value in the agent's metrics, 0 where it is not there.
func metric(t *testing.T, h *hosts.Host, name string) (value float64) {
	t.Helper()
	for line := range strings.Lines(string(get(t, h, "http://127.0.0.1:9810/metrics"))) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			value = require.Value(strconv.ParseFloat(text, 64))(t)
		}
	}
	return value
}

// accesses are those that the agent on a host has seen, of all keys.
func accesses(t *testing.T, h *hosts.Host) (sum uint64) {
	t.Helper()
	text := get(t, h, "http://127.0.0.1:9810/api/v1/heatmap")
	if text == nil {
		return 0
	}
	var m struct{ Counts [][]uint64 }
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for _, row := range m.Counts {
		for _, c := range row {
			sum += c
		}
	}
	return sum
}
