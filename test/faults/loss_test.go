package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestWhatBreaksJobs measures how many jobs that repeat nothing go on when their
// connections between two hosts break: by themselves, with the relay that carries
// them, and with a proxy that is killed. Each job is counted as one whose requests
// were all answered then, or as one with requests under way. PSIDECAR_LAP names a
// program made of testdata/lap.cc and PS-lite's own sources, beside which psjob
// runs; PSIDECAR_LAP_JOBS how many jobs of each are broken in each case.
func TestWhatBreaksJobs(t *testing.T) {
	lap := require.Asked(t, "PSIDECAR_LAP", "a program made of testdata/lap.cc with PS-lite's sources")
	jobs := 20
	if n, err := strconv.Atoi(os.Getenv("PSIDECAR_LAP_JOBS")); err == nil {
		jobs = n
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T) breakable
	}{
		{"connections", brokenConnections},
		{"haproxy", killedRelay},
		{"relay", func(t *testing.T) breakable { return killedProxy(t, "--codec", "none") }},
		{"compact", func(t *testing.T) breakable { return killedProxy(t) }},
		{"outlived", func(t *testing.T) breakable { return killedProxy(t, "--outlive") }},
		{"displaced", func(t *testing.T) breakable {
			return killedProxy(t, "--placement", hoststest.WritePlacement(t, folder(t), []int{0, 1}, hoststest.JobKeys(t, lapKeys), others(t)))
		}},
	} {
		for _, rest := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/rest=%v", c.name, rest), func(t *testing.T) {
				m := &measurement{breakable: c.make(t), t: t, lap: lap, keys: lapFile(t), rest: rest}
				for m.least() < jobs {
					m.round(5)
				}
				for _, program := range m.programs() {
					t.Logf("%s, %s, at rest %v: %d went on, %d hung", c.name, program, rest, m.result[program].on, m.result[program].hung)
				}
			})
		}
	}
}

// lapKeys is how many keys each request has: 48 KB of keys and values.
const lapKeys = 4000

func lapFile(t *testing.T) (file string) {
	t.Helper()
	var all []byte
	for _, key := range hoststest.JobKeys(t, lapKeys) {
		all = binary.NativeEndian.AppendUint64(all, key)
	}
	file = filepath.Join(folder(t), "keys")
	require.NoError(t, os.WriteFile(file, all, 0o644))
	return file
}

// others puts every eighth key on the server that is not its home.
func others(t *testing.T) (owners []int32) {
	for i, key := range hoststest.JobKeys(t, lapKeys) {
		home := int32(0)
		if key >= ^uint64(0)/2 {
			home = 1
		}
		if i%8 == 0 {
			home = 1 - home
		}
		owners = append(owners, home)
	}
	return owners
}

// breakable is hosts whose connections can be broken.
type breakable struct {
	hosts []*hosts.Host
	cut   func() // breaks what there is between the first two
	mend  func() // waits until all is as before
}

func brokenConnections(t *testing.T) breakable {
	t.Helper()
	build(t)
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	a, b := n.Host(0), n.Host(1)
	return breakable{hosts: n.Hosts(), mend: func() {}, cut: func() {
		ss(t, b, "-K", "-t", "state", "connected", "src", b.IPv4.String(), "dst", a.IPv4.String())
	}}
}

func killedProxy(t *testing.T, args ...string) breakable {
	t.Helper()
	f := newFleet(t, config{proxyArgs: append([]string{"--insecure"}, args...)})
	s := f.sidecars[1]
	return breakable{hosts: f.net.Hosts()[:2], cut: s.proxy.kill, mend: func() { f.ready(s) }}
}

func ss(t *testing.T, h *hosts.Host, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(require.Program(t, "ss"), args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := h.Run(t.Context(), cmd); err != nil {
		t.Fatalf("ss %v: %v: %s", args, err, out.Bytes())
	}
	return out.Bytes()
}

// result is how many jobs went on and how many hung.
type result struct{ on, hung int }

type measurement struct {
	breakable
	t         *testing.T
	lap, keys string
	rest      bool
	result    map[string]*result
	rounds    int
	looked    time.Time // when the last look began
}

func (m *measurement) programs() []string { return []string{"psjob", "PS-lite"} }

// least is how many jobs of each program were counted at least.
func (m *measurement) least() (n int) {
	if m.result == nil {
		m.result = map[string]*result{"psjob": {}, "PS-lite": {}}
	}
	for i, p := range m.programs() {
		if all := m.result[p].on + m.result[p].hung; i == 0 || all < n {
			n = all
		}
	}
	return n
}

// trial is a job that is broken.
type trial struct {
	*hosts.Running
	program  string
	received uint64        // by its processes, when it was looked at last
	changed  time.Time     // when that was found to have changed
	since    time.Time     // and from when on it may have
	moving   bool          // since the look before
	over     chan struct{} // closed at its end
}

// round breaks n jobs of each program at once.
func (m *measurement) round(n int) {
	t := m.t
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, h := range m.hosts {
		rate := uint64(100e6)
		require.NoError(t, h.SetRate(rate))
	}
	m.rounds++
	var all []*trial
	for i := range 2 * n {
		x := m.start(ctx, i)
		all = append(all, x)
		defer func() { cancel(); <-x.over }()
	}
	counted := m.awaitMoment(all)
	m.cut()
	for x := range counted { // a busy machine may have taken long
		if m.rest && time.Since(x.since) > lapPause-200*time.Millisecond {
			delete(counted, x)
		}
	}
	m.mend()
	time.Sleep(5 * time.Second)
	m.look(all)
	before := map[*trial]uint64{}
	for _, x := range all {
		before[x] = x.received
	}
	time.Sleep(7 * time.Second)
	m.look(all)
	for _, x := range all {
		grown := x.received > before[x]+lapKeys*4
		select {
		case <-x.over:
			t.Logf("a job of %s ended: %s", x.program, tail(x.Workers[0].Stderr.String(), 4))
		default:
		}
		switch {
		case counted[x] == 0:
		case grown:
			m.result[x.program].on++
		default:
			m.result[x.program].hung++
			if m.rest {
				t.Logf("a job of %s at rest hung, quiet for %v: %s", x.program, counted[x], tail(x.Workers[0].Stderr.String(), 4))
			}
		}
	}
	t.Logf("round %d: psjob %+v, PS-lite %+v", m.rounds, *m.result["psjob"], *m.result["PS-lite"])
}

// lapPause is how long a step takes whose job is to be at rest.
const lapPause = 3 * time.Second

func (m *measurement) start(ctx context.Context, i int) *trial {
	m.t.Helper()
	pause := time.Duration(0)
	if m.rest {
		pause = lapPause
	}
	x := &trial{program: m.programs()[i%2], over: make(chan struct{})}
	node := hosts.Program{m.lap}
	worker := node
	env := []string{"LAP_KEYS=" + m.keys, "LAP_STEPS=1000000", fmt.Sprint("LAP_MILLIS=", pause.Milliseconds())}
	if x.program == "psjob" {
		node = hosts.Program{built.psjob, "--json"}
		worker = append(node[:2:2], "--model", "count", "--steps", "1000000", "--count-keys", fmt.Sprint(lapKeys), "--count-batch", fmt.Sprint(lapKeys),
			"--count-compute", pause.String())
	}
	j := hosts.Job{Scheduler: node, Servers: hosts.Repeat(2, node), Workers: hosts.Repeat(2, worker), Hosts: m.hosts, Env: env, Port: 9100 + i}
	x.Running = require.Value(j.Start(ctx))(m.t)
	go func() { defer close(x.over); x.Wait() }()
	return x
}

// awaitMoment waits until most jobs are at rest, or are not, and returns those.
// One at rest has just become so: it does not start over before what comes next.
func (m *measurement) awaitMoment(all []*trial) map[*trial]time.Duration {
	m.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		m.look(all)
		now := time.Now()
		counted := map[*trial]time.Duration{}
		for _, x := range all {
			quiet := now.Sub(x.changed)
			if training := x.received > 3*2*lapKeys*12; training && (m.rest && quiet > 300*time.Millisecond && now.Sub(x.since) < lapPause*2/3 || !m.rest && x.moving) {
				counted[x] = quiet
			}
		}
		alive := 0 // some end by themselves: a server that hears a worker too early, on a busy machine
		for _, x := range all {
			select {
			case <-x.over:
				delete(counted, x)
			default:
				alive++
			}
		}
		if 3*len(counted) >= 2*alive {
			return counted
		}
		if now.After(end) {
			for _, x := range all {
				m.t.Logf("%s has received %d bytes: %s", x.program, x.received, tail(x.Workers[0].Stderr.String(), 3))
			}
			m.t.Fatalf("%d of %d jobs are as they should be", len(counted), len(all))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

var received = regexp.MustCompile(`pid=(\d+).*bytes_received:(\d+)`)

// look finds out what the jobs' processes have received on connections that are
// there.
func (m *measurement) look(all []*trial) {
	m.t.Helper()
	began, byProcess := time.Now(), map[string]uint64{}
	for _, h := range m.hosts {
		for line := range strings.Lines(string(ss(m.t, h, "-tnipOH", "state", "established"))) {
			if f := received.FindStringSubmatch(line); f != nil {
				n, _ := strconv.ParseUint(f[2], 10, 64)
				byProcess[f[1]] += n
			}
		}
	}
	for _, x := range all {
		sum := uint64(0)
		for _, n := range x.Nodes() {
			sum += byProcess[fmt.Sprint(n.Process.Pid())]
		}
		x.moving = sum != x.received
		if x.moving {
			x.since, x.changed = m.looked, time.Now()
		}
		x.received = sum
	}
	m.looked = began
}
