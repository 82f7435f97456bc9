package readme

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// recipe is a job of the README that is thresholded, left alone and thresholded again, by three
// lines.
type recipe struct {
	name string
	// program returns what stands for the job: it trains as long as the file trains is there, then
	// pushes once more and checks all weights to the last bit.
	program func(t *testing.T, trains string) hosts.Program
	env     []string
}

var recipes = []recipe{
	// As dist-lr does: a worker's keys of a server in one request.
	{name: "PS-lite", program: func(t *testing.T, trains string) hosts.Program {
		return hosts.Program{hoststest.BuildPeer(t), "--mode", "positions", "--keys", "6000", "--count-while", trains}
	}},
	// As MXNet's kvstore does: a key a request, servers that count pushes.
	{name: "MXNet", program: func(t *testing.T, trains string) hosts.Program {
		return hosts.Program{hoststest.BuildPeer(t), "--mode", "kvstore", "--keys", "8", "--width", "2000", "--count-while", trains}
	}},
}

// TestRecipes runs the lines of each recipe of the README as they stand there, on two hosts
// that have nothing in common but a network, beside a job; status comes to have the lines
// that the README shows, and the job ends with the right weights.
func TestRecipes(t *testing.T) {
	require.Root(t)
	require.BPF(t)
	text := require.Value(os.ReadFile("../../README.md"))(t)
	blocks, shown := recipesOf(t, string(text))
	for _, r := range recipes {
		lines := blocks[r.name]
		if len(lines) != 3 {
			t.Fatalf("the README's recipe for %s has the lines %q, want three", r.name, lines)
		}
		t.Run(r.name, func(t *testing.T) { r.play(t, lines, shown) })
	}
	// What BytePS's recipe has is MXNet's, and runs with BytePS's own programs where they are.
	if !slices.Equal(blocks["BytePS"], blocks["MXNet"]) {
		t.Errorf("BytePS's recipe is %q, and nothing runs it", blocks["BytePS"])
	}
	t.Run("BytePS", func(t *testing.T) {
		dir := require.Asked(t, "BYTEPS_BIN", "the folder of BytePS's own benchmark")
		recipe{name: "BytePS", program: func(*testing.T, string) hosts.Program {
			return hosts.Program{filepath.Join(dir, "test_benchmark"), "102400", "100000000", "0"}
		}, env: []string{"DMLC_ENABLE_RDMA=zmq", "BYTEPS_ENABLE_IPC=0", "NUM_KEY_PER_SERVER=4", "DMLC_GROUP_SIZE=1", "SKIP_DEV_ID_CHECK=1"}}.play(t, blocks["BytePS"], nil)
	})
}

// recipesOf returns the lines of each recipe, by the bold word before it, and the lines that
// status prints.
func recipesOf(t *testing.T, text string) (lines map[string][]string, status []string) {
	t.Helper()
	lines = map[string][]string{}
	block := regexp.MustCompile("(?ms)^\\*\\*([A-Za-z-]+)\\*\\*[^\n]*\n\n```sh recipe\n(.*?)^```")
	for _, m := range block.FindAllStringSubmatch(text, -1) {
		lines[m[1]] = strings.Split(strings.TrimSpace(m[2]), "\n")
	}
	m := regexp.MustCompile("(?ms)^```text\n(.*?)^```").FindStringSubmatch(text)
	if len(lines) != 3 || m == nil {
		t.Fatalf("the README has the recipes %q, and shows this status: %q", lines, m)
	}
	return lines, strings.Split(strings.TrimSpace(m[1]), "\n")
}

func (r recipe) play(t *testing.T, lines, shown []string) {
	tools := t.TempDir()
	for name, folder := range map[string]string{"psidecar": "cmd/psidecar", "psjob": "cmd/psjob"} {
		require.NoError(t, os.Symlink(hoststest.BuildJob(t, folder), filepath.Join(tools, name)))
	}
	const rate = 20e6
	n := hoststest.New(t, hosts.Config{Hosts: 2, Rate: rate})
	lines = slices.Clone(lines)
	for i := range lines {
		lines[i] = strings.Replace(lines[i], "JOB", n.Host(0).Address(9091), 1)
	}
	machines := []*machine{newMachine(t, n.Host(0), tools), newMachine(t, n.Host(1), tools)}
	first := machines[0]
	first.start(lines[0])
	machines[1].start(lines[0] + " --planner " + n.Host(0).Address(9811))
	for _, m := range machines {
		m.await("psidecar status", func(out []byte) error {
			if !json.Valid(out) {
				return fmt.Errorf("it prints %q", out)
			}
			return nil
		}, "psidecar", "status", "--json")
	}

	begin, trains := filepath.Join(t.TempDir(), "begin"), filepath.Join(t.TempDir(), "trains")
	// Like programs that load their libraries first: the agents find them before they connect.
	program := append(hosts.Program{"sh", "-c", `while [ ! -e "$0" ]; do sleep 0.1; done; exec "$@"`, begin}, r.program(t, trains)...)
	j := hosts.Job{Hosts: n.Hosts(), Scheduler: first.program(program), Env: append([]string{"PEER_TIMEOUT=240"}, r.env...)}
	for _, m := range machines {
		j.Servers, j.Workers = append(j.Servers, m.program(program)), append(j.Workers, m.program(program))
	}
	running := require.Value(j.Start(t.Context()))(t)
	for _, m := range machines {
		m.awaitListeners()
	}
	for _, f := range []string{trains, begin} {
		require.NoError(t, os.WriteFile(f, nil, 0o600))
	}
	awaitThreshold := func(on bool) {
		t.Helper()
		for _, m := range machines {
			m.awaitMeasure("threshold", on)
		}
	}
	awaitThreshold(true)
	if shown != nil && r.name == "PS-lite" {
		first.await("the status that the README shows", func(out []byte) error {
			have := plain(string(out))
			for _, line := range shown {
				if !strings.Contains(have, plain(line)) {
					return fmt.Errorf("it has no line like %q:\n%s", line, out)
				}
			}
			return nil
		}, "psidecar", "status")
	}
	// The planner hears of the job within seconds.
	first.await(lines[1], func([]byte) error { return nil }, strings.Fields(lines[1])...)
	awaitThreshold(false)
	first.run(lines[2])
	awaitThreshold(true)
	first.run(lines[1])
	awaitThreshold(false)
	if r.env != nil {
		return // a benchmark, which has no end
	}
	require.NoError(t, os.Remove(trains))
	if err := running.Wait(); err != nil {
		t.Fatalf("the job: %v", err)
	}
	for _, w := range running.Workers {
		var report hoststest.PeerWorker
		if err := json.Unmarshal(w.Stdout.Bytes(), &report); err != nil || report.Wrong != 0 {
			t.Errorf("worker %d says %s, %v", w.Index, w.Stdout.Bytes(), err)
		}
	}
}

// figures are what differs from one run to the next.
var figures = regexp.MustCompile(`[0-9][0-9.,:]*|\s+`)

// plain is text without its figures, and with a space for any white space.
func plain(text string) string {
	return figures.ReplaceAllStringFunc(text, func(s string) string {
		if strings.TrimSpace(s) == "" {
			return " "
		}
		return "0"
	})
}

// machine is a host with a name, processes, mounts and a /run of its own.
type machine struct {
	t     *testing.T
	host  *hosts.Host
	tools string
	init  string // number of a process in its namespaces
	log   hosts.Log
}

func newMachine(t *testing.T, h *hosts.Host, tools string) *machine {
	t.Helper()
	m := &machine{t: t, host: h, tools: tools}
	cmd := exec.Command("unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
		"hostname "+h.Name+" && mount -t tmpfs run /run && mount -t bpf bpf /sys/fs/bpf && echo ready && exec sleep infinity")
	child := hoststest.Start(t, h, "machine", cmd)
	if line := child.Line(); line != "ready" {
		t.Fatalf("a machine says %q", line)
	}
	children := require.Value(os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid)))(t)
	m.init = strings.TrimSpace(string(children))
	if _, err := strconv.Atoi(m.init); err != nil {
		t.Fatalf("a machine has the processes %q", children)
	}
	return m
}

// program returns a program as one that runs in the machine.
func (m *machine) program(p hosts.Program) hosts.Program {
	return append(hosts.Program{"nsenter", "--target", m.init, "--mount", "--pid", "--uts", "--"}, p...)
}

// command returns a command line as one that runs in the machine.
func (m *machine) command(words ...string) *exec.Cmd {
	if words[0] == "psidecar" {
		words[0] = filepath.Join(m.tools, words[0])
	}
	p := m.program(words)
	return exec.Command(p[0], p[1:]...)
}

// start starts a line that runs until the test ends.
func (m *machine) start(line string) {
	m.t.Helper()
	cmd := m.command(strings.Fields(line)...)
	cmd.Stdout, cmd.Stderr = &m.log, &m.log
	p := require.Value(m.host.StartIn("sidecar", cmd))(m.t)
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Logf("%s on %s:\n%s", line, m.host.Name, m.log.String())
		}
		_ = p.Kill() // the machine's end ends what it started
	})
}

// run runs a line to its end.
func (m *machine) run(line string) {
	m.t.Helper()
	var out bytes.Buffer
	cmd := m.command(strings.Fields(line)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := m.host.Run(m.t.Context(), cmd); err != nil {
		m.t.Fatalf("%s: %v\n%s", line, err, out.Bytes())
	}
	m.t.Logf("%s:\n%s", line, out.Bytes())
}

// await runs a command until ready accepts what it prints.
func (m *machine) await(what string, ready func(out []byte) error, words ...string) {
	m.t.Helper()
	require.Await(m.t, m.host.Name+": "+what, func() error {
		var out, errs bytes.Buffer
		cmd := m.command(slices.Clone(words)...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := m.host.Run(m.t.Context(), cmd)
		if err == nil {
			err = ready(out.Bytes())
		}
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, errs.Bytes())
		}
		return err
	})
}

// awaitListeners waits until connects of the job's processes here come to the proxy.
func (m *machine) awaitListeners() {
	m.t.Helper()
	m.await("listeners for the job", func(out []byte) error {
		if n, err := hoststest.SumMetrics(out, "psidecar_intercept_listeners"); err != nil || n == 0 {
			return fmt.Errorf("psidecar_intercept_listeners is %v: %w", n, err)
		}
		return nil
	}, "curl", "-s", fmt.Sprintf("127.0.0.1:%d/metrics", agentPage))
}

// awaitMeasure waits until status says that a measure is on for some of the job's
// connections, or for none.
func (m *machine) awaitMeasure(name string, on bool) {
	m.t.Helper()
	m.await(fmt.Sprintf("%s on: %v", name, on), func(out []byte) error {
		var status struct{ Jobs []page.Job }
		if err := json.Unmarshal(out, &status); err != nil {
			return err
		}
		for _, j := range status.Jobs {
			for _, l := range j.Measures {
				if l.Measure == name && (l.On > 0) == on {
					return nil
				}
			}
		}
		return fmt.Errorf("%s", out)
	}, "psidecar", "status", "--json")
}
