package life

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

// newRun returns a run of one worker that began then and made its last step then, or none if
// step is zero.
func newRun(resend bool, began, step time.Time) *run {
	r := &run{spec: spec{resend: resend, workers: 1}, began: began, ended: time.Now(), track: newTrack(new(patience), 1, "")}
	if !step.IsZero() {
		r.track.workers[0] = mark{step: 3, of: 9, at: step}
	}
	return r
}

// TestExcuse: a job may stall only for what the documentation says, and only when it happened.
func TestExcuse(t *testing.T) {
	now := time.Now()
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		name     string
		resend   bool
		step     time.Time // its last; zero: none
		how      harmful
		from, to time.Time
		excused  bool
	}{
		{"broken, without PS_RESEND", false, at(-12), harmful{breaks: true}, at(-12), at(-10), true},
		{"broken, with PS_RESEND", true, at(-12), harmful{breaks: true}, at(-12), at(-10), false},
		{"broken long before", false, at(-12), harmful{breaks: true}, at(-40), at(-38), false},
		{"broken long after", false, at(-30), harmful{breaks: true}, at(-5), at(-3), false},
		{"broken while it registered", true, time.Time{}, harmful{breaks: true}, at(-55), at(-53), true},
		{"held only", false, at(-12), harmful{holds: true}, at(-12), at(-10), false},
		{"forgotten", true, at(-12), harmful{forgets: true}, at(-40), at(-39), true},
		{"forgotten before it began", true, at(-12), harmful{forgets: true}, at(-90), at(-80), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &Life{harms: &harms{all: []*harm{{what: "a test", from: c.from, to: c.to, harmful: c.how}}}}
			r := newRun(c.resend, at(-60), c.step)
			_, m := r.track.waiting()
			if got := l.excuse(r, m.at); (got != "") != c.excused {
				t.Errorf("excuse %q, want one: %v", got, c.excused)
			}
		})
	}
}

// TestClockOfAKilledProcess: a clock that cannot be set since its process was killed just now
// is no failure.
func TestClockOfAKilledProcess(t *testing.T) {
	_, gone := os.ReadFile("/proc/4194305/mem") // beyond the largest number of a process
	for _, err := range []error{gone, fmt.Errorf("setting a clock: %w", syscall.ESRCH)} {
		if got := (setClock{}).unlessEnded(nil, err); got != nil {
			t.Error(got)
		}
	}
}

// TestExcusedUntil: while something is held a job need not move, and for as long again.
func TestExcusedUntil(t *testing.T) {
	now := time.Now()
	from, to := now.Add(-9*time.Second), now.Add(-7*time.Second)
	h := &harms{all: []*harm{{from: from, to: to, harmful: harmful{holds: true}}}}
	if got, want := h.excused(from), to.Add(2*time.Second); !got.Equal(want) {
		t.Errorf("excused until %v, want %v", got, want)
	}
	h.all[0].to = time.Time{}
	if got := h.excused(from); got.Before(now) {
		t.Errorf("excused until %v while it lasts, want now", got)
	}
	h.all = append(h.all, &harm{from: to.Add(-time.Second), to: now, harmful: harmful{holds: true}})
	h.all[0].to = now.Add(-30 * time.Second)
	h.all[0].from = now.Add(-31 * time.Second)
	h.all[1].from = now.Add(-5 * time.Second)
	if got, want := h.excused(h.all[0].from), now.Add(-29*time.Second); !got.Equal(want) {
		t.Errorf("excused until %v by what came when it should have moved already, want %v", got, want)
	}
	h.all = h.all[:1]
	h.all[0].harmful = harmful{breaks: true}
	if got := h.excused(from); !got.Equal(from) {
		t.Errorf("excused until %v by what does not hold, want %v", got, from)
	}
}

// TestStepsAreRead: steps are read from what workers print, however it is cut.
func TestStepsAreRead(t *testing.T) {
	x := newTrack(new(patience), 2, "")
	if x.begun() {
		t.Error("it has begun before anybody said so")
	}
	r := &stepReader{track: x, worker: 0}
	for _, part := range []string{"level=INFO msg=counting rank=1 st", "ep=17 of=40\nlevel=INFO msg=\"waiting for the end\"\n", "peer: round 18 of 40\npeer: ro"} {
		if n, err := r.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if m := x.workers[0]; m.step != 18 || m.of != 40 {
		t.Errorf("it read step %d of %d, want 18 of 40", m.step, m.of)
	}
	if worker, m := x.waiting(); worker != 1 || m.step != 0 {
		t.Errorf("worker %d at step %d is waited for, want 1 at 0", worker, m.step)
	}
	(&stepReader{track: x, worker: 1}).Write([]byte("step=40 of=40\n"))
	if worker, _ := x.waiting(); worker != 0 || !x.begun() {
		t.Errorf("worker %d is waited for, want 0, which alone has steps to make", worker)
	}
}

// TestWhyAPlannerMayEnd: a planner may end by itself if its store was lost and there is no room
// for another, and only then.
func TestWhyAPlannerMayEnd(t *testing.T) {
	full := "psidecar: --store: making the store /planner/plans: write /planner/plans.new-1: no space left on device"
	for _, c := range []struct {
		kind, words string
		may         bool
	}{
		{planner, full, true},
		{proxy, full, false},
		{planner, "psidecar: --store: making the store /planner/plans: permission denied", false},
		{planner, "psidecar: --store: /planner/plans is damaged; no space left on device", false},
		{planner, "", false},
	} {
		if got := lacksRoomForStore(c.kind, c.words); got != c.may {
			t.Errorf("a %s that says %q may end: %v", c.kind, c.words, got)
		}
	}
}

// TestToleranceOfModels: a model may differ by what values left out account for, and no more;
// what has learned nothing is not as good as direct.
func TestToleranceOfModels(t *testing.T) {
	const direct, untrained = 0.3698, 0.5786
	for _, c := range []struct {
		model string
		loss  float64
		good  bool
	}{
		{"dlrm", 0.4540, true},
		{"dlrm", untrained, false},
		{"lr", 0.4400, true},
		{"lr", 0.4540, false},
	} {
		if good := c.loss-direct <= (spec{model: c.model}).tolerance(direct); good != c.good {
			t.Errorf("%s with loss %v instead of %v is as good as direct: %v", c.model, c.loss, direct, good)
		}
	}
}

// TestMoreThanAtRestBefore: at rest a service may hold pipes that nobody has collected yet, and
// little else that it did not hold before.
func TestMoreThanAtRestBefore(t *testing.T) {
	was := held{descriptors: 40, sockets: 20, pipes: 6, goroutines: 60, memory: 90 << 20}
	for _, c := range []struct {
		name string
		now  func(*held)
		ok   bool
	}{
		{"the same", func(*held) {}, true},
		{"pipes", func(h *held) { h.pipes += morePipes }, true},
		{"pipes without end", func(h *held) { h.pipes += morePipes + 1 }, false},
		{"sockets", func(h *held) { h.sockets, h.descriptors = h.sockets+moreDescriptors+1, h.descriptors+moreDescriptors+1 }, false},
		{"a BPF map", func(h *held) { h.maps++ }, false},
	} {
		now := was
		c.now(&now)
		before, after := rest{services: map[string]held{"a proxy": was}}, rest{services: map[string]held{"a proxy": now}}
		if err := after.beyond(before); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
