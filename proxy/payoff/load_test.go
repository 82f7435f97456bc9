package payoff_test

import (
	"testing"
	"time"

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
func live(l *payoff.Load, h host, d time.Duration, now *time.Time) (sent float64, passed time.Duration) {
	for end := now.Add(d); now.Before(end); {
		rate, idle, throttled := h.coded, h.idleCoded, h.throttled
		if l.Passes() {
			rate, idle, throttled = h.plain, h.idlePlain, 0
			passed += tick
		}
		n := int(rate * tick.Seconds())
		for range n {
			l.Sent()
		}
		sent += float64(n)
		*now = now.Add(tick)
		l.Tick(payoff.Usage{At: *now, Idle: idle, Own: h.own, Throttled: throttled})
	}
	return sent, passed
}

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
		{"the job has ended", host{own: 0.4}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var l payoff.Load
			now := time.Unix(1000, 0)
			live(&l, c.host, time.Minute, &now)
			if l.Passes() != c.passes || (l.Figures() != nil) != c.trials {
				t.Errorf("messages pass: %v, want %v; %+v", l.Passes(), c.passes, l.Figures())
			}
			if f := l.Figures(); f != nil && (f.Passes != c.passes || f.Encoded != c.host.coded || f.Plain != c.host.plain) {
				t.Errorf("%+v of %+v", f, c.host)
			}
		})
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
		live(&l, c.first, time.Minute, &now)
		if !l.Passes() {
			t.Fatal("the faster way is not taken")
		}
		live(&l, then, 2*time.Minute, &now)
		if l.Passes() || l.Figures().Passes {
			t.Errorf("%s: messages still pass: %+v", name, l.Figures())
		}
	}
}

// The next job begins as the first one did.
func TestBusyHostsForgetAJobThatIsSilent(t *testing.T) {
	var l payoff.Load
	now := time.Unix(1000, 0)
	live(&l, host{coded: 1000, plain: 1300, own: 0.4}, 10*time.Minute, &now)
	if !l.Passes() {
		t.Fatal("the faster way is not taken")
	}
	now = now.Add(11 * time.Second)
	live(&l, host{coded: 1000, plain: 600, own: 0.4}, tick, &now)
	if l.Passes() || l.Figures().Passes {
		t.Errorf("messages of the next job pass: %+v", l.Figures())
	}
	if _, passed := live(&l, host{coded: 1000, plain: 600, own: 0.4}, time.Minute, &now); passed == 0 || l.Passes() {
		t.Errorf("its trial: messages passed for %v, and now: %v", passed, l.Passes())
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
	live(&busy, host{coded: 1000, plain: 1300, own: 0.4}, time.Minute, &now)
	m := &payoff.Meter{Path: &payoff.Path{}, Load: &busy}
	if m.Encode(now) || m.Encode(now.Add(time.Hour)) {
		t.Error("a message is encoded although the host is faster without")
	}
}
