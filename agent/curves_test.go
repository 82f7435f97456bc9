package agent

import (
	"os"
	"testing"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/page/history"
	"github.com/psidecar/psidecar/test/replay"
	"github.com/psidecar/psidecar/test/require"
)

// watched is an observer that has seen a job of two servers and two workers.
func watched(t *testing.T) *observe.Observer {
	t.Helper()
	o := observe.New(observe.Options{Locality: counts.DefaultLocalityOptions})
	watch(t, o)
	return o
}

// watch has an observer see that job.
func watch(t *testing.T, o *observe.Observer) {
	t.Helper()
	f := require.Value(os.Open(require.Capture(t, "dmlc-kv-2s2w.pcapng")))(t)
	defer f.Close()
	require.Value(replay.Read(f, o.Handle))(t)
}

// What passes between two looks is in the point of that time, and nothing after
// it where the job stands still.
func TestNoteHourHasWhatPassedBetweenTwoLooks(t *testing.T) {
	took, sent := uint64(5000), uint64(3000) // before the first look
	a := &Agent{called: newCalled(nil, nil), observer: observe.New(observe.Options{Locality: counts.DefaultLocalityOptions}), opts: Options{Saved: func() (uint64, uint64, bool) { return took, sent, true }}}
	note := func() {
		t.Helper()
		require.NoError(t, a.noteHour())
	}
	note()
	watch(t, a.observer)
	took, sent = took+1000, sent+200
	note()
	note()
	job := a.observer.Jobs()[0]
	h, err := a.History(job.Job.Scheduler.String(), page.HistoryQuery{})
	if err != nil || len(h.Points) != 2 {
		t.Fatalf("%d points, want 2: %v", len(h.Points), err)
	}
	p, still := h.Points[0], h.Points[1]
	seconds := p.To.Sub(p.From).Seconds()
	if got, want := p.BytesPerSecond*seconds, float64(job.Job.Sums.Totals().Bytes); got < want-1 || got > want+1 || want == 0 {
		t.Errorf("%v bytes in the point, %v in all", got, want)
	}
	if p.Requests == 0 || p.P99 < p.P50 || p.P50 <= 0 || p.Skew < 1 || p.StepsPerSecond <= 0 || p.SavedPerSecond == nil {
		t.Errorf("%+v", p)
	}
	if saved := *p.SavedPerSecond * seconds; saved < 799 || saved > 801 || *still.SavedPerSecond != 0 {
		t.Errorf("%v bytes were saved, want 800, and then %v a second", saved, *still.SavedPerSecond)
	}
	if still.BytesPerSecond != 0 || still.StepsPerSecond != 0 || still.Requests != 0 || still.Skew != 0 {
		t.Errorf("where nothing passed: %+v", still)
	}
	if _, err := a.History("no such job", page.HistoryQuery{}); err == nil {
		t.Error("there is a history of a job that is not known")
	}
	if h, err := a.History("", page.HistoryQuery{}); err != nil || len(h.Points) != 2 {
		t.Errorf("of the host alone: %d points, %v", len(h.Points), err)
	}
}

// The curves of all workers, one by one, add up to those of all together, which are
// what the job moved; those of a worker and a server have what these two moved.
func TestPartsOfWorkersAddUp(t *testing.T) {
	v := watched(t).Jobs()[0]
	sum := func(of history.Selection) (steps, bytes float64, requests uint64) {
		for _, p := range partsOf(&v, of) {
			for _, n := range p.Steps {
				steps += n
			}
			for _, n := range p.Servers {
				bytes += n
			}
			for _, n := range p.Counts {
				requests += n
			}
		}
		return steps, bytes, requests
	}
	allSteps, allBytes, allRequests := sum(history.Selection{})
	if allSteps == 0 || allBytes == 0 || allRequests == 0 {
		t.Fatalf("%v steps, %v bytes, %d requests", allSteps, allBytes, allRequests)
	}
	moved := traffic(&v, page.Range{})
	want := 0.0
	for w, worker := range moved.Workers {
		for s, server := range moved.Servers {
			pair := float64(moved.ToServers[w][s] + moved.ToWorkers[w][s])
			want += pair
			if _, bytes, requests := sum(history.Selection{Workers: []string{worker}, Servers: []string{server}}); bytes != pair || pair == 0 || requests != 0 {
				t.Errorf("%s and %s moved %v bytes, want %v, in %d requests, of which the times are not known by pair", worker, server, bytes, pair, requests)
			}
		}
	}
	if allBytes != want {
		t.Errorf("%v bytes in all, %v by worker and server", allBytes, want)
	}
	for name, each := range map[string]func(string) history.Selection{
		"worker": func(n string) history.Selection { return history.Selection{Workers: []string{n}} },
		"server": func(n string) history.Selection { return history.Selection{Servers: []string{n}} },
	} {
		names := map[string][]string{"worker": v.WorkersByIndex, "server": v.ServersByIndex}[name]
		steps, bytes, requests := 0.0, 0.0, uint64(0)
		for _, n := range names {
			s, b, r := sum(each(n))
			if b == 0 || b >= allBytes {
				t.Errorf("%s moved %v of %v bytes", n, b, allBytes)
			}
			steps, bytes, requests = steps+s, bytes+b, requests+r
		}
		if bytes != allBytes || requests != allRequests || name == "worker" && steps != allSteps {
			t.Errorf("by %s: %v steps, %v bytes, %d requests; all together %v, %v, %d", name, steps, bytes, requests, allSteps, allBytes, allRequests)
		}
	}
}
