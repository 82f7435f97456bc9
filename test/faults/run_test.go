package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// counting is a job of one server and one worker a host that counts, at most a
// step every 10 ms.
func (f *fleet) counting(steps int, env ...string) hosts.Job {
	node := hosts.Program{f.programs.psjob, "--json"}
	worker := append(node[:2:2], "--model", "count", "--count-compute", "10ms", "--count-keys", "4000", "--steps", strconv.Itoa(steps))
	return hosts.Job{Scheduler: node, Servers: hosts.Repeat(4, node), Workers: hosts.Repeat(4, worker), Hosts: f.net.Hosts(), Env: env}
}

// unending has the workers of a job that counts, psjob's or the C++ peer's, make steps until finish is called, however
// long what is done to it takes: its steps are the fewest.
func (f *fleet) unending(j hosts.Job) hosts.Job {
	f.t.Helper()
	file, _ := hoststest.WhileTraining(f.t)
	j.Workers = slices.Clone(j.Workers)
	for i, w := range j.Workers {
		j.Workers[i] = append(slices.Clone(w), whileFlag, file)
	}
	return j
}

const whileFlag = "--count-while"

// A run is a job on its way.
type run struct {
	*hosts.Running
	f     *fleet
	while string // the file that keeps it from its end; "": none does
	ended chan struct{}
	err   error
}

// mayTake ends a job that hangs.
const mayTake = 15 * time.Minute

func (f *fleet) start(j hosts.Job) *run {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), mayTake)
	running, err := j.Start(ctx)
	if err != nil {
		cancel()
		f.t.Fatal(err)
	}
	r := &run{Running: running, f: f, ended: make(chan struct{})}
	if at := slices.Index(j.Workers[0], whileFlag); at >= 0 {
		r.while = j.Workers[0][at+1]
	}
	go func() {
		defer close(r.ended)
		defer cancel()
		r.err = running.Wait()
	}()
	f.t.Cleanup(func() { cancel(); <-r.ended })
	return r
}

// training waits until steps are made over the links of all hosts. Before, while
// nodes register, PS-lite's resender does not retransmit.
func (r *run) training() {
	t := r.f.t
	t.Helper()
	for _, s := range r.f.sidecars {
		r.f.await("steps on "+s.host.Name, func() error {
			if r.over() {
				t.Fatalf("the job has ended, before it went through all proxies: %v", r.err)
			}
			messages := uint64(0)
			for _, c := range r.f.state(s).Connections {
				messages += c.ToFar.Messages
			}
			if messages < 100 {
				return fmt.Errorf("%d messages", messages)
			}
			return nil
		})
	}
}

// over reports whether the job has ended.
func (r *run) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// report is what a worker says at its end.
type report struct {
	Steps       int     `json:"steps"`
	Seconds     float64 `json:"seconds"`
	LongestStep float64 `json:"longest_step"`
	Checked     int     `json:"checked"`
	Statistics  struct {
		Repeated   int `json:"repeated"`
		Duplicates int `json:"duplicates"`
	} `json:"statistics"`
}

// finish has the job come to its end, and waits for it. Its workers fail where a sum is
// not exact.
func (r *run) finish() {
	t := r.f.t
	t.Helper()
	if r.while != "" {
		require.NoError(t, os.Remove(r.while))
		r.while = ""
	}
	<-r.ended
	if r.err != nil {
		for _, n := range r.Nodes() {
			t.Logf("%s %d: %v: %s", n.Role, n.Index, n.Err, tail(n.Stderr.String(), 6))
		}
		t.Fatal(r.err)
	}
}

// exact finishes the job; all its workers, psjob's, must have checked some sums.
func (r *run) exact() (all []report) {
	t := r.f.t
	t.Helper()
	r.finish()
	longest, repeated := 0.0, 0
	for _, n := range r.Workers {
		var w report
		if err := json.Unmarshal(n.Stdout.Bytes(), &w); err != nil {
			t.Fatalf("worker %d says %q: %v", n.Index, n.Stdout.Bytes(), err)
		}
		if w.Checked == 0 {
			t.Errorf("worker %d has checked no sum", n.Index)
		}
		longest, repeated = max(longest, w.LongestStep), repeated+w.Statistics.Repeated
		all = append(all, w)
	}
	t.Logf("%d steps in %.1f s, the longest %.2f s; %d messages repeated", all[0].Steps, all[0].Seconds, longest, repeated)
	return all
}
