package agent

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/test/require"
)

// recorded20 is a recording of 20 s: two workers that pull and push ten keys five
// times a second, of which one in oneIn was looked at.
func recorded20(t *testing.T, began time.Time, oneIn uint32) []byte {
	t.Helper()
	var file bytes.Buffer
	w := require.Value(recording.NewWriter(&file, recording.Header{Host: "host-0"}))(t)
	keys := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for step := int32(0); step < 100; step += int32(oneIn) {
		at := began.Add(time.Duration(step) * 200 * time.Millisecond).UnixNano()
		for worker, name := range []string{"worker0", "worker1"} {
			use := recording.Use{Job: "10.0.0.1:9000", Worker: name, Server: "server0", Keys: keys, OneIn: oneIn, UnixNanos: at + int64(worker), Timestamp: 2 * step}
			push, pull, answer := use, use, use
			push.Push, push.Bytes = true, 400
			pull.Pull, pull.Timestamp = true, 2*step+1
			answer.Pull, answer.Answer, answer.Bytes, answer.Timestamp, answer.UnixNanos = true, true, 400, pull.Timestamp, at+int64(worker)+2e6
			for _, u := range []recording.Use{push, pull, answer} {
				require.NoError(t, w.Add(&u))
			}
		}
	}
	require.Value(w.Close(began.Add(20*time.Second).UnixNano(), 0))(t)
	return file.Bytes()
}

// Two recordings, one of them of every second step alone, show the same job.
func TestRecordedWholeAndSampledShowTheSameJob(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	r := &Recorded{Version: "v"}
	for i, name := range []string{"first", "second"} {
		require.Value(r.Open(name, bytes.NewReader(recorded20(t, began.Add(time.Duration(i)*time.Hour), uint32(i+1)))))(t)
	}
	jobs := r.Jobs()
	if len(jobs) != 2 || jobs[0].Name != "first 10.0.0.1:9000" || jobs[1].Name != "second 10.0.0.1:9000" || !jobs[0].Exact || jobs[1].Exact {
		t.Fatalf("jobs: %+v", jobs)
	}
	for i, j := range jobs {
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got/want-1) > 0.06 {
				t.Errorf("%s: %s is %v, want about %v", j.Name, what, got, want)
			}
		}
		near("accesses", float64(j.Accesses), 4000)
		near("steps/s", j.StepsPerSecond, 5)
		near("p50", j.Latency.P50, 0.002)
		near("bytes", float64(j.Bytes), 200*(400+80+80+400+80))
		h, err := r.Heatmap(j.Name, page.HeatmapQuery{Blocks: 16, Last: math.MaxUint64, Measure: page.Bytes})
		if err != nil || len(h.Workers) != 2 || h.Job != j.Name {
			t.Fatalf("%s: %+v, %v", j.Name, h, err)
		}
		sum := 0.0
		for _, row := range h.Counts {
			for _, n := range row {
				sum += float64(n)
			}
		}
		near("bytes of values", sum, 200*800)
		history, err := r.History(j.Name, page.HistoryQuery{})
		if err != nil || len(history.Points) != 4 {
			t.Fatalf("%s: %d points, %v", j.Name, len(history.Points), err)
		}
		for _, p := range history.Points {
			if math.Abs(p.StepsPerSecond/5-1) > 0.25 || p.P50 == 0 {
				t.Errorf("%s: %+v", j.Name, p)
			}
		}
		// In rows of ten seconds that begin at five: what was counted over a boundary is
		// divided by it, and not doubled.
		from := began.Add(time.Duration(i)*time.Hour - 5*time.Second)
		rows, err := r.Heatmap(j.Name, page.HeatmapQuery{Blocks: 16, Last: math.MaxUint64, Measure: page.Pushes, Rows: 2, Range: page.Range{From: from}})
		if err != nil || len(rows.Times) < 2 {
			t.Fatalf("by time: %d rows, %v", len(rows.Times), err)
		}
		pushes := 0.0
		for _, row := range rows.Counts {
			for _, n := range row {
				pushes += float64(n)
			}
		}
		near("pushes by time", pushes, 2000)
		s, err := r.Servers(j.Name, page.Range{From: began.Add(time.Duration(i)*time.Hour + 10*time.Second)})
		if err != nil || len(s.Workers) != 2 || s.Servers[0].Share != 1 {
			t.Errorf("servers: %+v, %v", s, err)
		}
	}
	if _, err := r.Keys("other", 5); !errors.Is(err, page.ErrNoJob) {
		t.Errorf("of an unknown job: %v", err)
	}
}

// A name that is taken gets a number; a file that cannot be opened leaves nothing
// behind; and the number of jobs is bounded.
func TestRecordedKeeps(t *testing.T) {
	whole := recorded20(t, time.Unix(1000, 0), 1)
	damaged := bytes.Clone(whole)
	damaged[len(damaged)-3] ^= 1 // of the checksum
	r := &Recorded{Takes: 1 << 20}
	if names, err := r.Open("run", bytes.NewReader(damaged)); err == nil || len(names)+len(r.Jobs()) > 0 {
		t.Fatalf("of a damaged one %q is kept: %v", names, err)
	}
	for n := range maxRecorded {
		want := "run 10.0.0.1:9000"
		if n > 0 {
			want = fmt.Sprintf("run (%d) 10.0.0.1:9000", n+1)
		}
		names, err := r.Open("run", bytes.NewReader(whole))
		if err != nil || len(names) != 1 || names[0] != want {
			t.Fatalf("the recording is called %q, want %q: %v", names, want, err)
		}
	}
	if _, err := r.Open("run", bytes.NewReader(whole)); err == nil || !strings.Contains(err.Error(), "room for 16 jobs") || len(r.Jobs()) != maxRecorded {
		t.Errorf("one more than there is room for: %v", err)
	}
	if h, err := r.History("run (2) 10.0.0.1:9000", page.HistoryQuery{}); err != nil || len(h.Points) != 4 {
		t.Errorf("of the second: %d points, %v", len(h.Points), err)
	}
}

func TestRecordedRefuses(t *testing.T) {
	whole := recorded20(t, time.Unix(1000, 0), 1)
	r := &Recorded{}
	if _, err := r.Open("cut", bytes.NewReader(whole[:len(whole)-20])); err != nil && !strings.Contains(err.Error(), "holds no use") {
		t.Errorf("a recording that was cut off: %v", err)
	}
	if _, err := r.Open("other", strings.NewReader("something else")); err == nil || !strings.HasPrefix(err.Error(), "not a psidecar recording") {
		t.Errorf("another file: %v", err)
	}
}

// All ten keys are used in each step, also where every second step alone was looked at.
func TestAlphaOfARecording(t *testing.T) {
	for _, oneIn := range []uint32{1, 2} {
		r := &Recorded{Version: "v"}
		require.Value(r.Open("dense", bytes.NewReader(recorded20(t, time.Unix(1_700_000_000, 0), oneIn))))(t)
		a := require.Value(page.AlphaOf(r, r.Jobs()[0].Name, 64, page.EvenCluster(2, 1)))(t)
		if math.Abs(a.Alpha-1) > 0.06 || a.Keys != 10 || a.Bytes != 400 || a.Workers != 2 || len(a.Ranges) != 1 || a.SampledOneIn != oneIn ||
			math.Abs(a.Forms["servers"]/800-1) > 0.06 {
			t.Errorf("one in %d: %+v, want all of 10 keys of 400 bytes in each step of 2 workers", oneIn, a)
		}
	}
}
