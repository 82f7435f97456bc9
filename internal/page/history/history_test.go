package history

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// The last hour is there without a gap, in few points, and its sums are right.
func TestHour(t *testing.T) {
	var l Log
	began := time.Unix(1_000_000_002, 0)
	now := began
	for i := range 3 * 720 {
		next := now.Add(Every)
		l.Add("j", Point{now, next, Sums{
			Steps: 10, Bytes: 500, Micros: []uint64{100, uint64(1000 + i%2)}, Counts: []uint64{9, 1},
			Busiest: 300, Mean: 200, Host: Host{CPU: 0.05, JobBytes: 400, FarBytes: 100, Carries: true},
		}})
		now = next
	}
	points := l.Of("j", time.Time{}, time.Time{})
	if n := len(points); n > 250 || n < 150 {
		t.Errorf("%d points", n)
	}
	bytes := 0.0
	for i, p := range points {
		if i > 0 && !p.From.Equal(points[i-1].To) {
			t.Fatalf("from %v to %v there is nothing", points[i-1].To, p.From)
		}
		seconds := p.To.Sub(p.From).Seconds()
		if math.Abs(p.Steps/seconds-2) > 1e-9 || math.Abs(p.Host.CPU/seconds-0.01) > 1e-9 || p.Busiest/p.Mean != 1.5 || p.Host.FarBytes*4 != p.Host.JobBytes {
			t.Fatalf("point %d: %+v", i, p)
		}
		if p.Quantile(0.5) != 100e-6 || p.Quantile(0.99) < 1000e-6 || float64(p.Requests()) != 2*seconds {
			t.Fatalf("point %d: p50 %v, p99 %v of %d requests", i, p.Quantile(0.5), p.Quantile(0.99), p.Requests())
		}
		bytes += p.Bytes
	}
	if back := now.Sub(points[0].From); back < Kept-Coarse || back > Kept+2*Coarse || bytes != 100*back.Seconds() {
		t.Errorf("%v bytes in the last %v", bytes, back)
	}
	if part := l.Of("j", now.Add(-time.Minute), now.Add(-30*time.Second)); len(part) != 6 {
		t.Errorf("half a minute has %d points, want 6", len(part))
	}
	if l.Of("other", time.Time{}, time.Time{}) != nil {
		t.Error("there are points of a job that is not known")
	}
}

func TestJobsAreBounded(t *testing.T) {
	var l Log
	for i := range maxJobs + 10 {
		at := time.Unix(int64(i), 0)
		l.Add("", Point{From: at, To: at.Add(Every)})
		l.Add(fmt.Sprint(i), Point{From: at, To: at.Add(Every)})
	}
	if len(l.jobs) > maxJobs || len(l.jobs["0"]) > 0 || len(l.jobs[""]) == 0 || len(l.jobs[fmt.Sprint(maxJobs+9)]) == 0 {
		t.Errorf("%d jobs are kept", len(l.jobs))
	}
}

func TestBetween(t *testing.T) {
	before := Counted{Bytes: 100, Steps: []uint64{5, 5}, ByServer: []uint64{50, 50}, Micros: []uint64{10, 20}, Counts: []uint64{2, 3}}
	now := Counted{Bytes: 400, LeftHost: 30, Steps: []uint64{8, 7, 4}, ByServer: []uint64{250, 150}, Micros: []uint64{10, 15, 20}, Counts: []uint64{2, 1, 7}}
	s := Between(before, now)
	p := Point{Sums: s}
	if s.Bytes != 300 || s.LeftHost != 30 || s.Steps != 3 || s.Busiest != 200 || s.Mean != 150 || p.Requests() != 5 || p.Quantile(0.1) != 15e-6 {
		t.Errorf("%+v", s)
	}
	if s := Between(now, before); s.Bytes != 0 || s.Steps != 0 || s.Busiest != 0 {
		t.Errorf("sums that have begun anew: %+v", s)
	}
}
