package history

import (
	"math"
	"testing"
	"time"
)

// What a selection did is in the points of its time, whatever stretches it was
// counted in, and nothing of it twice.
func TestAmong(t *testing.T) {
	at := func(seconds float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(seconds * 1e9)) }
	var points []Point
	for i := range 5 {
		points = append(points, Point{From: at(5 * float64(i)), To: at(5*float64(i) + 5), Sums: Sums{Steps: 99, Bytes: 99, LeftHost: 99, Host: Host{CPU: 1}}})
	}
	part := func(from, to, steps, bytes float64) Part {
		return Part{at(from), at(to), map[string]float64{"w0": steps, "w1": 2 * steps}, map[string]float64{"s0": bytes, "s1": 3 * bytes}, []uint64{10}, []uint64{uint64(steps)}}
	}
	got := Among(points, []Part{part(5, 9, 40, 100), part(9, 11, 20, 40), part(21, 21, 7, 1)})
	want := []Sums{
		{Steps: 100, Bytes: 480, Busiest: 360, Mean: 240, Counts: []uint64{40}},
		{Steps: 20, Bytes: 80, Busiest: 60, Mean: 40, Counts: []uint64{20}},
		{},
		{Steps: 14, Bytes: 4, Busiest: 3, Mean: 2, Counts: []uint64{7}},
	}
	if len(got) != len(want) {
		t.Fatalf("%d points, want %d: those before the first part are not known", len(got), len(want))
	}
	for i, w := range want {
		p := got[i]
		near := func(what string, got, want float64) {
			t.Helper()
			if math.Abs(got-want) > 1e-9 {
				t.Errorf("point %d: %s %v, want %v", i, what, got, want)
			}
		}
		near("steps", p.Steps, w.Steps)
		near("bytes", p.Bytes, w.Bytes)
		near("busiest", p.Busiest, w.Busiest)
		near("mean", p.Mean, w.Mean)
		near("left host", p.LeftHost, 0)
		near("cost", p.Host.CPU, 1)
		n := uint64(0)
		for _, c := range w.Counts {
			n += c
		}
		if p.Requests() != n || !p.From.Equal(points[i+1].From) {
			t.Errorf("point %d from %v: %d requests, want %d", i, p.From, p.Requests(), n)
		}
	}
	if Among(points, nil) != nil {
		t.Error("there are points of which nothing is known")
	}
}
