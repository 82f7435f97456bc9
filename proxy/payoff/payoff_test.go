package payoff_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/payoff"
)

// link is a made connection: what a message takes on it encoded and plain.
type link struct {
	plain, coded int           // bytes a message
	perByte      float64       // nanoseconds of the link
	encode       time.Duration // at either end
}

// run has messages go over the link, and returns how long they took at most: with
// their time on the link and that of encoding and decoding, one after the other.
func run(m *payoff.Meter, l link, messages int, now *time.Time) (took time.Duration, encoded int) {
	var last payoff.Sample
	var sent, count uint64
	for range messages {
		size := l.plain
		if m.Encode(*now) {
			size = l.coded
			m.Encoded(*now, l.plain-l.coded, l.encode)
			took += 2 * l.encode
			encoded++
		}
		onLink := time.Duration(float64(size) * l.perByte)
		took += onLink
		sent, count = sent+uint64(size), count+1
		*now = now.Add(time.Millisecond + onLink)
		if m.Path.Wants(*now) {
			s := payoff.Sample{RTT: 50*time.Microsecond + onLink, MinRTT: 50 * time.Microsecond, DeliveryRate: uint64(1e9 / l.perByte), BytesSent: sent, Messages: count}
			m.Path.Add(last, s)
			last = s
		}
	}
	return took, encoded
}

func drawLink(t *rapid.T, name string) link {
	plain := rapid.IntRange(2000, 1<<20).Draw(t, name+" plain")
	return link{
		plain: plain, coded: max(1600, plain/rapid.IntRange(1, 20).Draw(t, name+" ratio")),
		perByte: rapid.Float64Range(0.1, 1000).Draw(t, name+" ns a byte"),
		encode:  time.Duration(rapid.IntRange(1, 500).Draw(t, name+" µs")) * time.Microsecond,
	}
}

// A job whose messages come a millisecond apart takes hardly longer with a meter
// than with the better of encoding all messages and none.
func TestMeterIsAsGoodAsTheBetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLink(t, "link")
		const messages = 5000
		now := time.Unix(1, 0)
		took, encoded := run(&payoff.Meter{Path: &payoff.Path{}}, l, messages, &now)
		always := messages * (time.Duration(float64(l.coded)*l.perByte) + 2*l.encode)
		never := messages * time.Duration(float64(l.plain)*l.perByte)
		const rest = messages * time.Millisecond
		if best := rest + min(always, never); float64(rest+took) > 1.05*float64(best) {
			t.Errorf("%d messages took %v, %d of them encoded; encoding all takes %v, none %v", messages, rest+took, encoded, rest+always, rest+never)
		}
	})
}

// It changes its mind within a second of the job's time.
func TestMeterFollowsTheLink(t *testing.T) {
	fast := link{plain: 10_000, coded: 3_000, perByte: 0.8, encode: 20 * time.Microsecond} // 10 Gbit/s
	slow := fast
	slow.perByte = 160 // 50 Mbit/s
	m := &payoff.Meter{Path: &payoff.Path{}}
	now := time.Unix(1, 0)
	if f := m.Figures(); f != nil {
		t.Fatalf("figures before there is evidence: %+v", f)
	}
	for round, l := range []link{fast, slow, fast, slow, fast} {
		end := now.Add(time.Second)
		for now.Before(end) {
			run(m, l, 1, &now)
		}
		f := m.Figures()
		if f == nil || f.Encodes != (l == slow) {
			t.Fatalf("round %d, a second after the link takes %v ns a byte: %+v", round, l.perByte, f)
		}
		if f.Switches != uint64(round+1) {
			t.Fatalf("round %d: it has changed its mind %d times, want %d", round, f.Switches, round+1)
		}
	}
}

// While messages pass, some are encoded to see what that would save now.
func TestProbesWhileMessagesPass(t *testing.T) {
	l := link{plain: 10_000, coded: 3_000, perByte: 0.8, encode: 20 * time.Microsecond}
	m := &payoff.Meter{Path: &payoff.Path{}}
	now := time.Unix(1, 0)
	run(m, l, 1000, &now)
	_, encoded := run(m, l, 10_000, &now) // ten seconds
	if encoded < 4*18 || encoded > 4*21 {
		t.Errorf("%d of 10,000 messages were encoded in ten seconds, want 4 each half second", encoded)
	}
}

// A processor that is busy makes no message dear: of those that wait for it, in a
// tenth of all messages here, only some of the time counts.
func TestMessagesThatWaitForAProcessor(t *testing.T) {
	l := link{plain: 100_000, coded: 3_000, perByte: 8, encode: 20 * time.Microsecond}
	m := &payoff.Meter{Path: &payoff.Path{}}
	now := time.Unix(1, 0)
	run(m, l, 1000, &now)
	for i := range 1000 {
		took := l.encode
		if i%10 == 0 {
			took = 10 * time.Millisecond
		}
		m.Encoded(now, 97_000, took)
		if f := m.Figures(); !f.Encodes || f.Costs > 4*l.encode {
			t.Fatalf("message %d: %+v; encoding takes %v", i, f, l.encode)
		}
	}
}

func TestPathWantsOneSampleAtATime(t *testing.T) {
	var p payoff.Path
	now := time.Unix(1, 0)
	if !p.Wants(now) || p.Wants(now) || p.Wants(now.Add(10*time.Millisecond)) || !p.Wants(now.Add(30*time.Millisecond)) {
		t.Error("a path wants a sample each 20 ms, from one caller")
	}
	if _, ok := p.PerByte(); ok {
		t.Error("a path without samples knows what a byte takes")
	}
	p.Add(payoff.Sample{}, payoff.Sample{BytesSent: 100}) // TCP knows no rate yet
	for range 10 {
		p.Add(payoff.Sample{BytesSent: 100}, payoff.Sample{BytesSent: 100, DeliveryRate: 5})
		p.Add(payoff.Sample{}, payoff.Sample{BytesSent: 10_000, Messages: 10, DeliveryRate: 5}) // a segment each
	}
	if _, ok := p.PerByte(); ok {
		t.Error("samples without bytes or rate, or of messages of a segment, say something")
	}
}

// Round trips that waited for a processor, half of them here, do not make a fast
// link a slow one.
func TestRoundTripsThatWaitForAProcessor(t *testing.T) {
	var p payoff.Path
	for i := range 1000 {
		rtt := 20 * time.Microsecond
		if i%2 == 0 {
			rtt = 20 * time.Millisecond
		}
		p.Add(payoff.Sample{}, payoff.Sample{RTT: rtt, MinRTT: 10 * time.Microsecond, DeliveryRate: 1e9, BytesSent: 10_000, Messages: 1})
		if d, ok := p.PerByte(); i > 3 && (!ok || d > 1) {
			t.Fatalf("after %d samples a byte takes %v ns, known %v; the link takes 1", i+1, d, ok)
		}
	}
}

func TestPathsAreSharedAndBounded(t *testing.T) {
	var paths payoff.Paths[int]
	one, other := paths.To(1), paths.To(2)
	if paths.To(1) != one || one == other {
		t.Error("a host has one path")
	}
	for i := range 10_000 {
		paths.To(i)
	}
	if n := paths.Len(); n > 4096 {
		t.Errorf("%d paths are kept", n)
	}
}
