package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
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
	r := f.startFor(hosts.Job{Scheduler: program, Servers: hosts.Repeat(4, program), Workers: hosts.Repeat(4, program), Hosts: f.net.Hosts(),
		Env: []string{"DMLC_ENABLE_RDMA=zmq", "BYTEPS_ENABLE_IPC=0", "NUM_KEY_PER_SERVER=4", "DMLC_GROUP_SIZE=1", "SKIP_DEV_ID_CHECK=1"}}, time.Hour)
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

// goesOn waits until the job's messages go through the proxies of all hosts, in both
// ways.
func (r *run) goesOn(when string) {
	t := r.f.t
	t.Helper()
	for _, s := range r.f.sidecars {
		var first uint64
		for i := 0; ; i++ {
			messages := uint64(0)
			for _, c := range r.f.state(s).Connections {
				messages += min(c.ToFar.Messages, c.ToJob.Messages)
			}
			if i == 0 {
				first = messages
			} else if messages > first+10 {
				break
			}
			if r.over() {
				for _, n := range r.Nodes() {
					t.Logf("%s %d: %v: %s", n.Role, n.Index, n.Err, tail(n.Stderr.String(), 6))
				}
				t.Fatalf("%s the job has ended: %v", when, r.err)
			}
			if i > 1200 {
				t.Fatalf("%s the job does not go on: %d messages through the proxy on %s", when, messages, s.host.Name)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}
