package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/test/require"
)

// BytePS's own benchmark, whose servers abort where a connection breaks on which they
// owe an answer, goes on at full speed while proxies are replaced, one host's after the
// other. BYTEPS_BIN names its folder, PSIDECAR_REPLACEMENTS how many there are.
func TestBytePSBesideReplacements(t *testing.T) {
	dir := require.Asked(t, "BYTEPS_BIN", "the folder of BytePS's own benchmark")
	n := 20
	if asked, err := strconv.Atoi(os.Getenv("PSIDECAR_REPLACEMENTS")); err == nil {
		n = asked
	}
	f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second,
		proxyArgs: []string{"--insecure", "--threshold", "0.99", "--threshold-unpulled", "--char-values", "float32"}})
	program := hosts.Program{filepath.Join(dir, "test_benchmark"), "102400", "100000000", "0"} // length, repetitions, push then pull
	r := f.start(hosts.Job{Scheduler: program, Servers: hosts.Repeat(4, program), Workers: hosts.Repeat(4, program), Hosts: f.net.Hosts(),
		Env: []string{"DMLC_ENABLE_RDMA=zmq", "BYTEPS_ENABLE_IPC=0", "NUM_KEY_PER_SERVER=4", "DMLC_GROUP_SIZE=1", "SKIP_DEV_ID_CHECK=1"}})
	r.goesOn("before")
	before := f.redirected()
	for i := range n {
		s := f.sidecars[i%len(f.sidecars)]
		f.replace(s, s.proxy)
		r.goesOn(fmt.Sprintf("after replacement %d, on %s", i+1, s.host.Name))
	}
	if after := f.redirected(); after != before {
		t.Errorf("the job made %v connections anew", after-before)
	}
	t.Logf("%d replacements", n)
}

// A job on BytePS's own server, a third of whose keys are displaced, has no wrong sum while
// proxies are replaced, one host's after the other: what of its requests is on the way to another
// server's connection is handed over, too. BYTEPS_BIN names the folder of byteps_job, whose source is
// in test/reroute/testdata.
func TestPlacedBytePSBesideReplacements(t *testing.T) {
	dir := require.Asked(t, "BYTEPS_BIN", "the folder of byteps_job, built as test/reroute/testdata/byteps_job.cc says")
	const servers, keys, length, steps = 4, 48, 262144, 24
	var owners []plan.Range
	for home := range int32(servers) {
		for k := uint64(home); k < keys; k += 3 * servers {
			owners = append(owners, plan.Range{Keys: plan.One(plan.HomeRange(home, servers).First + k), Owner: (home + 1) % servers})
		}
	}
	f := newFleet(t, config{grace: 10 * time.Second, keep: 15 * time.Second, proxyArgs: []string{"--insecure", "--placement", placed(t, owners)}})
	program := hosts.Program{filepath.Join(dir, "byteps_job"), fmt.Sprint(keys), fmt.Sprint(length), fmt.Sprint(steps)}
	r := f.start(hosts.Job{Scheduler: program, Servers: hosts.Repeat(servers, program), Workers: hosts.Repeat(servers, program), Hosts: f.net.Hosts(),
		Env: []string{"DMLC_ENABLE_RDMA=zmq", "DMLC_GROUP_SIZE=1", "BYTEPS_SERVER_ENGINE_THREAD=2"}})
	r.goesOn("before")
	n, rerouted := 0, uint64(0)
	for ; !r.over(); n++ {
		s := f.sidecars[n%len(f.sidecars)]
		for _, j := range f.state(s).Jobs {
			rerouted += j.Rerouted
		}
		f.replace(s, s.proxy)
	}
	<-r.ended
	if r.err != nil {
		for _, node := range r.Nodes() {
			t.Logf("%s %d: %v: %s", node.Role, node.Index, node.Err, tail(node.Stderr.String()+node.Stdout.String(), 60))
		}
		t.Fatalf("after %d replacements the job has failed: %v", n, r.err)
	}
	for _, node := range r.Nodes() {
		if want := fmt.Sprintf("%d values in %d steps, 0 wrong", keys*length/4*steps, steps); node.Role == "worker" && !strings.Contains(node.Stdout.String(), want) {
			t.Errorf("%s %d says %q, want %q in it", node.Role, node.Index, node.Stdout.String(), want)
		}
	}
	if n < len(f.sidecars) || rerouted == 0 {
		t.Errorf("%d proxies were replaced beside the job, which had rerouted %d requests", n, rerouted)
	}
	t.Logf("%d replacements; %d requests rerouted by proxies that were replaced", n, rerouted)
	f.unguarded()
}

// goesOn waits until the job's messages go through the proxies of all hosts, in both
// ways.
func (r *run) goesOn(when string) {
	t := r.f.t
	t.Helper()
	for _, s := range r.f.sidecars {
		carried := func() (messages uint64) {
			for _, c := range r.f.state(s).Connections {
				messages += min(c.ToFar.Messages, c.ToJob.Messages)
			}
			return messages
		}
		first := carried()
		r.f.await("messages "+when+" through the proxy on "+s.host.Name, func() error {
			if r.over() {
				for _, n := range r.Nodes() {
					t.Logf("%s %d: %v: %s", n.Role, n.Index, n.Err, tail(n.Stderr.String(), 6))
				}
				t.Fatalf("%s the job has ended: %v", when, r.err)
			}
			if n := carried(); n <= first+10 {
				return fmt.Errorf("%d, then %d", first, n)
			}
			return nil
		})
	}
}
