package payoff_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/payoff"
)

// host is a made host whose job sends a number of messages per second, encoded and plain, and
// leaves its processors idle for a share of the time.
type host struct {
	coded, plain         float64
	idleCoded, idlePlain float64
	own                  float64 // share of the processors that its proxy uses
	throttled            float64 // share of the time that it waits while it encodes
}

const tick = 250 * time.Millisecond

// live has the host live for a time, and returns how many messages its job sent, and for how long
// they passed as they are.
func live(l *payoff.Load, h host, d time.Duration, now *time.Time, noise func() float64) (sent float64, passed time.Duration) {
	for end := now.Add(d); now.Before(end); {
		rate, idle, throttled := h.coded, h.idleCoded, h.throttled
		if l.Passes() {
			rate, idle, throttled = h.plain, h.idlePlain, 0
			passed += tick
		}
		n := int(rate * tick.Seconds() * noise())
		for range n {
			l.Sent()
		}
		sent += float64(n)
		*now = now.Add(tick)
		l.Tick(payoff.Usage{At: *now, Idle: idle, Own: h.own, Throttled: throttled})
	}
	return sent, passed
}

func quiet() float64 { return 1 }

func TestBusyHostsFindTheFasterWay(t *testing.T) {
	for _, c := range []struct {
		name   string
		host   host
		passes bool
		trials bool
	}{
		{"the job waits for processors", host{coded: 1000, plain: 1300, own: 0.4}, true, true},
		{"others use the processors, and the job waits for the link", host{coded: 1000, plain: 600, own: 0.1}, false, true},
		{"both ways are alike", host{coded: 1000, plain: 1020, own: 0.1}, false, true},
		{"processors are free", host{coded: 1000, plain: 1300, idleCoded: 0.4, own: 0.4}, false, false},
		{"the proxy is throttled, on a host of many free processors", host{coded: 1000, plain: 1300, idleCoded: 0.9, idlePlain: 0.9, own: 0.01, throttled: 0.5}, true, true},
		{"the proxy is throttled, and the job waits for the link", host{coded: 1000, plain: 600, idleCoded: 0.9, idlePlain: 0.9, own: 0.01, throttled: 0.5}, false, true},
		{"the proxy is hardly throttled", host{coded: 1000, plain: 1300, idleCoded: 0.9, idlePlain: 0.9, own: 0.01, throttled: 0.01}, false, false},
		{"the proxy hardly uses them", host{coded: 1000, plain: 1300, own: 0.01}, false, false},
		{"the job sends too few messages to tell", host{coded: 8, plain: 12, own: 0.4}, false, false},
		{"the job has ended", host{own: 0.4}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l payoff.Load
			now := time.Unix(1000, 0)
			live(&l, c.host, time.Minute, &now, quiet)
			if l.Passes() != c.passes || (l.Figures() != nil) != c.trials {
				t.Errorf("messages pass: %v, want %v; %+v", l.Passes(), c.passes, l.Figures())
			}
			if f := l.Figures(); f != nil && (f.Passes != c.passes || f.Encoded != c.host.coded || f.Plain != c.host.plain) {
				t.Errorf("%+v of %+v", f, c.host)
			}
		})
	}
}

// The trial of the slower way lasts for a second and a half at most, ever more seldom.
func TestTrialsCostLittle(t *testing.T) {
	var l payoff.Load
	now := time.Unix(1000, 0)
	_, passed := live(&l, host{coded: 1000, plain: 600, own: 0.1}, time.Hour, &now, quiet)
	if n := l.Figures().Trials; n < 5 || n > 12 {
		t.Errorf("%d trials in an hour", n)
	}
	if passed > time.Duration(l.Figures().Trials)*1500*time.Millisecond {
		t.Errorf("%d trials took %v", l.Figures().Trials, passed)
	}
}

// When a job begins to wait for its link instead, encoding is taken up again: since processors are
// free, or by the next trial.
func TestBusyHostsFollowTheJob(t *testing.T) {
	busy, limited := host{coded: 1000, plain: 1300, own: 0.4}, host{coded: 1000, plain: 1300, idleCoded: 0.9, idlePlain: 0.9, throttled: 0.5}
	for name, c := range map[string]struct{ first, then host }{
		"free":           {busy, host{coded: 1000, plain: 500, idlePlain: 0.5, own: 0.3}},
		"busy":           {busy, host{coded: 1000, plain: 500, own: 0.3}},
		"still limited":  {limited, host{coded: 1000, plain: 500, idleCoded: 0.9, idlePlain: 0.9, throttled: 0.5}},
		"limited before": {limited, host{coded: 1000, plain: 500, idleCoded: 0.9, idlePlain: 0.9}},
	} {
		var l payoff.Load
		now := time.Unix(1000, 0)
		then := c.then
		live(&l, c.first, time.Minute, &now, quiet)
		if !l.Passes() {
			t.Fatal("the faster way is not taken")
		}
		live(&l, then, 2*time.Minute, &now, quiet)
		if l.Passes() || l.Figures().Passes {
			t.Errorf("%s: messages still pass: %+v", name, l.Figures())
		}
	}
}

// The next job begins as the first one did.
func TestBusyHostsForgetAJobThatIsSilent(t *testing.T) {
	var l payoff.Load
	now := time.Unix(1000, 0)
	live(&l, host{coded: 1000, plain: 1300, own: 0.4}, 10*time.Minute, &now, quiet)
	if !l.Passes() {
		t.Fatal("the faster way is not taken")
	}
	now = now.Add(11 * time.Second)
	live(&l, host{coded: 1000, plain: 600, own: 0.4}, tick, &now, quiet)
	if l.Passes() || l.Figures().Passes {
		t.Errorf("messages of the next job pass: %+v", l.Figures())
	}
	if _, passed := live(&l, host{coded: 1000, plain: 600, own: 0.4}, time.Minute, &now, quiet); passed == 0 || l.Passes() {
		t.Errorf("its trial: messages passed for %v, and now: %v", passed, l.Passes())
	}
}

// Whatever the two ways are like, a host loses little against the better one, with rates that
// change by a twentieth from tick to tick.
func TestBusyHostsAreAsGoodAsTheBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := host{coded: rapid.Float64Range(500, 5000).Draw(t, "encoded"), own: 0.3}
		h.plain = h.coded * rapid.Float64Range(0.3, 3).Draw(t, "ratio")
		if rapid.Bool().Draw(t, "throttled") {
			h.throttled = rapid.Float64Range(0.06, 3).Draw(t, "throttled for")
		}
		h.idleCoded, h.idlePlain = rapid.Float64Range(0, 0.14).Draw(t, "idle encoded"), rapid.Float64Range(0, 0.29).Draw(t, "idle plain")
		noise := rapid.Float64Range(0.95, 1.05)
		var l payoff.Load
		now := time.Unix(int64(rapid.IntRange(1000, 1100).Draw(t, "begins")), 0)
		const time10 = 10 * time.Minute
		sent, _ := live(&l, h, time10, &now, func() float64 { return noise.Draw(t, "noise") })
		if best := max(h.coded, h.plain) * time10.Seconds(); sent < 0.9*best {
			t.Errorf("%.0f messages, at best %.0f: %+v", sent, best, l.Figures())
		}
	})
}

// Hosts whose proxies have not begun at the same time try at the same time.
func TestTrialsOfHostsAreAligned(t *testing.T) {
	begins := func(first time.Time) time.Time {
		var l payoff.Load
		now := first
		for !l.Passes() {
			live(&l, host{coded: 1000, plain: 1300, own: 0.4}, tick, &now, quiet)
			if now.Sub(first) > time.Minute {
				t.Fatal("there is no trial")
			}
		}
		return now
	}
	one := begins(time.Unix(1000, 200e6))
	other := begins(time.Unix(1001, 450e6))
	if d := one.Sub(other).Abs(); d > 2*tick {
		t.Errorf("trials begin %v apart", d)
	}
	// Also a host that has tried before, and so tries less often, tries when others do.
	h := host{coded: 1000, plain: 600, own: 0.4}
	var early, late payoff.Load
	now, then := time.Unix(1000, 0), time.Unix(1070, 0)
	live(&early, h, then.Sub(now), &now, quiet)
	if early.Figures() == nil {
		t.Fatal("there is no trial")
	}
	together := 0
	for range 10 * time.Minute / tick {
		_, one := live(&early, h, tick, &now, quiet)
		_, other := live(&late, h, tick, &then, quiet)
		if one > 0 && other > 0 {
			together++
		} else if one > 0 {
			t.Fatal("the one that tries less often tries alone")
		}
	}
	if together == 0 {
		t.Error("they never try together")
	}
}

func TestNilLoadEncodes(t *testing.T) {
	var l *payoff.Load
	l.Sent()
	if l.Passes() || l.Figures() != nil {
		t.Error("messages pass")
	}
	// A meter whose host passes messages encodes none, and takes no probes.
	var busy payoff.Load
	now := time.Unix(1000, 0)
	live(&busy, host{coded: 1000, plain: 1300, own: 0.4}, time.Minute, &now, quiet)
	m := &payoff.Meter{Path: &payoff.Path{}, Load: &busy}
	if m.Encode(now) || m.Encode(now.Add(time.Hour)) {
		t.Error("a message is encoded although the host is faster without")
	}
}
