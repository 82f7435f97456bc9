package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/internal/page"
)

var now = time.Unix(10_000, 0)

func before(seconds float64) time.Time {
	return now.Add(-time.Duration(seconds * float64(time.Second)))
}

// going is a job of three workers and two servers that goes on.
func going() *stallFacts {
	f := &stallFacts{Now: now, First: before(600), Last: before(0.1), Alive: true}
	for _, name := range []string{"worker0", "worker1", "worker2"} {
		f.Workers = append(f.Workers, worker{Name: name, Last: before(0.1), Here: true, StepEvery: 50 * time.Millisecond, Waited: 0.2})
	}
	for _, name := range []string{"server0", "server1"} {
		f.Servers = append(f.Servers, server{Name: name, Recent: 2 * time.Millisecond, Before: 2 * time.Millisecond, Answers: 100})
	}
	return f
}

func (f *stallFacts) waits(worker int, server string, seconds float64) *wait {
	f.Workers[worker].Last, f.Workers[worker].Waiting = before(seconds), true
	f.Waits = append(f.Waits, wait{
		Worker: f.Workers[worker].Name, Server: server, Since: before(seconds), Kind: "push", Bytes: 4_200_000, Keys: "keys 5 to 900",
	})
	return &f.Waits[len(f.Waits)-1]
}

func TestFind(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*stallFacts)
		state  string
		cause  string
		text   string // part of it; empty: none at all
	}{
		{"goes on", func(*stallFacts) {}, page.Running, "", ""},
		{"over", func(f *stallFacts) { f.Alive, f.Last = false, before(90) }, page.Over, "", "over, last heard of 90 s ago"},
		{"has not begun", func(f *stallFacts) {
			for i := range f.Workers {
				f.Workers[i].Last = time.Time{}
			}
		}, page.Starting, "", ""},
		{"a server does not answer", func(f *stallFacts) {
			for i := range 3 {
				f.waits(i, "server1", 12).To.Known = true
			}
		}, page.Stalled, "server1", "stalled for 12 s: worker0 waits for server1, keys 5 to 900, request of 4.2 MB: server1 has received the request and does not answer"},
		{"before the second step", func(f *stallFacts) {
			for i := range f.Workers {
				f.Workers[i].Last, f.Workers[i].StepEvery = before(40), 0
			}
		}, page.Running, "", ""},
		{"silent after the first step", func(f *stallFacts) {
			for i := range f.Workers {
				f.Workers[i].Last, f.Workers[i].StepEvery = before(70), 0
			}
		}, page.Stalled, "worker0", "sends no requests and waits for no answer"},
		{"a stopped server", func(f *stallFacts) {
			for i := range 3 {
				f.waits(i, "server1", 3)
			}
			f.Servers[1].Process = 'T'
		}, page.Stalled, "server1", "stopped by a signal"},
		{"a server that takes nothing in", func(f *stallFacts) {
			for i := range 3 {
				f.waits(i, "server0", 30).To = socket{Known: true, Unsent: 3_000_000, ZeroWindow: true}
			}
		}, page.Stalled, "server0", "its receive window is closed, 3.0 MB are queued"},
		{"a cut link", func(f *stallFacts) {
			f.waits(2, "server1", 8).To = socket{Known: true, Unacked: 3, Retries: 5}
			for i := range 2 {
				f.Workers[i].Barrier, f.Workers[i].Last, f.Workers[i].Waiting = before(8), before(8), true
			}
		}, page.Stalled, "worker2-server1", "3 segments are unacknowledged, retransmitted 5 times"},
		{"answers that are cut off", func(f *stallFacts) {
			f.waits(2, "server1", 8).Back = socket{Known: true, Unacked: 1, Retries: 4}
		}, page.Running, "worker2-server1", "the answer does not reach worker2"},
		{"a stopped worker that the others wait for", func(f *stallFacts) {
			f.Workers[1].Last, f.Workers[1].Process = before(7), 'T'
			for _, i := range []int{0, 2} {
				f.Workers[i].Barrier, f.Workers[i].Last, f.Workers[i].Waiting = before(6.9), before(6.9), true
			}
		}, page.Stalled, "worker1", "stalled for 6 s: worker1 sends no requests and waits for no answer: its process is stopped"},
		{"a release from a barrier that is cut off", func(f *stallFacts) {
			f.Workers[1].Last = before(7)
			f.Workers[1].Cut = &cut{From: "scheduler", To: "worker1", socket: socket{Known: true, Unacked: 2, Retries: 4}}
			for _, i := range []int{0, 2} {
				f.Workers[i].Barrier, f.Workers[i].Last, f.Workers[i].Waiting = before(6.9), before(6.9), true
			}
		}, page.Stalled, "worker1-scheduler", "nothing from scheduler reaches worker1: 2 segments are unacknowledged, retransmitted 4 times"},
		{"a worker whose steps are long, and that is cut off", func(f *stallFacts) {
			f.Workers[1].Last, f.Workers[1].StepEvery = before(7), 15*time.Second
			f.Workers[1].Cut = &cut{From: "worker1", To: "server0", socket: socket{Known: true, Unacked: 2, Retries: 4}}
		}, page.Running, "worker1-server0", "nothing from worker1 reaches server0"},
		{"a worker that hangs, alone", func(f *stallFacts) { f.Workers[1].Last = before(20) }, page.Running, "worker1", "for 20 s: worker1 sends no requests"},
		{"a worker whose steps are long", func(f *stallFacts) {
			f.Workers[1].Last, f.Workers[1].StepEvery = before(20), 15*time.Second
		}, page.Running, "", ""},
		{"a worker of another host", func(f *stallFacts) { f.Workers[1].Last, f.Workers[1].Here = before(20), false }, page.Running, "", ""},
		{"at a barrier for workers elsewhere", func(f *stallFacts) {
			for i := range 3 {
				f.Workers[i].Barrier, f.Workers[i].Last, f.Workers[i].Waiting = before(9), before(9), true
			}
		}, page.Stalled, "", "worker0 waits at a barrier"},
		{"a request that has just been sent", func(f *stallFacts) { f.waits(0, "server0", 2) }, page.Running, "", ""},
		{"a server that always takes long", func(f *stallFacts) {
			f.Servers[0].Before, f.Servers[0].Recent, f.Servers[1].Recent = 4*time.Second, 4*time.Second, 4*time.Second
			f.waits(0, "server0", 8)
		}, page.Running, "", ""},
		{"a late server", func(f *stallFacts) { f.Servers[1].Recent = 400 * time.Millisecond }, page.Running, "server1", "server1 answers late: it takes 400 ms to answer, the others 2 ms"},
		{"the only server, late", func(f *stallFacts) {
			f.Servers = f.Servers[:1]
			f.Servers[0].Recent = 400 * time.Millisecond
		}, page.Running, "server0", "before 2 ms"},
		{"a little late", func(f *stallFacts) { f.Servers[1].Recent = 20 * time.Millisecond }, page.Running, "", ""},
		{"a straggler that the others wait for", func(f *stallFacts) {
			f.Workers[0].Waited, f.Workers[1].Waited, f.Workers[2].Waited = 0.9, 0.05, 0.85
		}, page.Running, "worker1", "worker1 delays the others"},
		{"a straggler that is left behind", func(f *stallFacts) { f.Stragglers = []string{"worker2"} }, page.Running, "worker2", "far fewer steps"},
		{"missed answers, on sockets that get on", func(f *stallFacts) {
			f.Blind = true
			for i := range 3 {
				f.waits(i, "server1", 12).To = socket{Known: true, Silent: 20 * time.Millisecond}
			}
		}, page.Running, "", ""},
		{"missed answers, and sockets that are silent", func(f *stallFacts) {
			f.Blind = true
			for i := range 3 {
				f.waits(i, "server1", 12).To = socket{Known: true, Silent: 12 * time.Second}
			}
		}, page.Stalled, "server1", "server1 has received the request and does not answer"},
		{"missed answers of a server that is stopped", func(f *stallFacts) {
			f.Blind, f.Servers[1].Process = true, 'T'
			for i := range 3 {
				f.waits(i, "server1", 12)
			}
		}, page.Stalled, "server1", "the process of server1 is stopped"},
		{"missed requests, barriers and steps", func(f *stallFacts) {
			f.Blind, f.Servers[1].Recent, f.Stragglers = true, 400*time.Millisecond, []string{"worker1"}
			f.Workers[0].Last = before(20)
			f.Workers[1].Barrier, f.Workers[1].Last, f.Workers[1].Waiting = before(9), before(9), true
			f.Workers[2].Last = before(20)
		}, page.Running, "", ""},
		{"a worker that is stopped, and others that are missed", func(f *stallFacts) {
			f.Blind = true
			f.Workers[0].Last = before(20)
			f.Workers[1].Last, f.Workers[1].Process = before(20), 'T'
		}, page.Running, "worker1", "its process is stopped"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := going()
			tc.change(f)
			found := findStall(f)
			if found.State != tc.state || found.Cause != tc.cause || !strings.Contains(found.Text, tc.text) || (found.Text == "") != (tc.text == "") {
				t.Errorf("%s because of %q: %q; want %s, %q, %q", found.State, found.Cause, found.Text, tc.state, tc.cause, tc.text)
			}
			if stopped := found.State == page.Stalled || found.State == page.Over; stopped == found.Since.IsZero() {
				t.Errorf("%s since %v", found.State, found.Since)
			}
		})
	}
}

// However many wait, a bounded number are named, the longest first.
func TestStallsAreBounded(t *testing.T) {
	f := going()
	f.Workers = nil
	for i := range 1000 {
		f.Workers = append(f.Workers, worker{Name: "w", Here: true})
		f.waits(i, "server0", 10+float64(i%7))
	}
	found := findStall(f)
	if len(found.Stalls) != mostStalls || found.State != page.Stalled {
		t.Fatalf("%s, %d stalls", found.State, len(found.Stalls))
	}
	for i := 1; i < len(found.Stalls); i++ {
		if found.Stalls[i].Since.Before(found.Stalls[i-1].Since) {
			t.Fatal("they are not in order")
		}
	}
}

// A worker appears between the moments at which the counts are asked for names, states and waits:
// what is not known yet is left out.
func TestWorkersThatAppearMeanwhile(t *testing.T) {
	at := func(name string, last int64, waited float64) worker {
		return worker{Name: name, Last: moment(last), Waiting: last > 0, Waited: waited}
	}
	states := []counts.WorkerNow{{Last: 5, Waiting: true}, {Last: 6, Waiting: true}, {Last: 7, Waiting: true}}
	for _, c := range []struct {
		name   string
		names  []string
		states int
		waited []float64
		want   []worker
	}{
		{"all are known", []string{"worker0", "worker1"}, 2, []float64{0.5, 0.25}, []worker{at("worker0", 5, 0.5), at("worker1", 6, 0.25)}},
		{"one without waits", []string{"worker0", "worker1"}, 2, []float64{0.5}, []worker{at("worker0", 5, 0.5), at("worker1", 6, 0)}},
		{"one without a state", []string{"worker0", "worker1"}, 1, []float64{0.5}, []worker{at("worker0", 5, 0.5), at("worker1", 0, 0)}},
		{"one without a name", []string{"worker0"}, 2, []float64{0.5, 0.25}, []worker{at("worker0", 5, 0.5)}},
		{"one that is not shown", []string{"worker0", "", "worker2"}, 3, []float64{0.5, 0.25}, []worker{at("worker0", 5, 0.5), at("worker2", 7, 0)}},
	} {
		if got := workersOf(c.names, states[:c.states], c.waited); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
