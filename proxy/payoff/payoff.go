// Package payoff decides whether it pays to encode the messages of a
// connection: whether the time that the link is spared is more than the time
// that two proxies spend on it.
//
// A [Path] knows what a byte costs on the way to another host, from what the
// kernel says of the connections that go there. A [Meter] knows what one
// connection's messages save and cost when they are encoded. Both are state
// machines without sockets or clocks of their own.
package payoff

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Sample is what the kernel knows of one connection, of struct tcp_info.
type Sample struct {
	RTT, MinRTT  time.Duration // smoothed, and the least of some minutes; 0: not measured yet
	DeliveryRate uint64        // bytes per second, 0: not measured yet
	BytesSent    uint64        // since the connection began, without retransmissions
	Messages     uint64        // of the job that were sent with them
}

// sampleEvery is how far apart two samples of a path are at least, and kept is how
// many of them it remembers: what was two thirds of a second ago.
const (
	sampleEvery = 20 * time.Millisecond
	kept        = 32
)

// leastBytes is the size of messages from which on a sample says something of the
// link: more than a segment, so that the receiver's kernel acknowledges at once.
const leastBytes = 1536

// Path is the way to one other host. It is safe for use by several goroutines.
type Path struct {
	next atomic.Int64 // when the next sample is wanted, in nanoseconds of the clock

	mu      sync.Mutex    // guards what follows
	last    [kept]float64 // nanoseconds a byte, of the last samples, in a ring
	samples int
	perByte float64 // of a quarter of last it is less
}

// Wants reports whether it is time for a sample; to one caller only.
func (p *Path) Wants(now time.Time) bool {
	at := p.next.Load()
	return now.UnixNano() >= at && p.next.CompareAndSwap(at, now.UnixNano()+int64(sampleEvery))
}

// Add adds what two samples of one connection say, the later one taken now.
//
// The link's rate is what TCP measured, which for messages that are shorter
// than what may be in flight is the largest rate ever seen, and may be that of
// a burst. There the time of a round trip counts beyond the shortest one.
func (p *Path) Add(before, now Sample) {
	bytes, messages := now.BytesSent-before.BytesSent, now.Messages-before.Messages
	if messages == 0 || bytes/messages < leastBytes || now.DeliveryRate == 0 {
		return
	}
	perByte := 1e9 / float64(now.DeliveryRate)
	if now.RTT > now.MinRTT {
		perByte = max(perByte, float64(now.RTT-now.MinRTT)/float64(bytes/messages))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[p.samples%kept] = perByte
	p.samples++
	sorted, n := p.last, min(p.samples, kept)
	slices.Sort(sorted[:n])
	p.perByte = sorted[n/4]
}

// PerByte returns how many nanoseconds the path takes for a byte: a quarter of
// the samples say less. The others may have waited for a processor, which makes
// round trips longer than the link does. ok is false where it is not known yet.
func (p *Path) PerByte() (d float64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.perByte, p.samples >= leastSamples
}

// Paths are the paths to other hosts by what identifies their proxies. The zero
// Paths is ready for use, by several goroutines.
type Paths[K comparable] struct {
	mu    sync.Mutex  // guards paths
	paths map[K]*Path // at most maxPaths
}

// maxPaths bounds how many paths are shared. Beyond, one is forgotten: its meters
// keep it, later ones learn again.
const maxPaths = 4096

// To returns the path to a host, the same one each time.
func (p *Paths[K]) To(host K) *Path {
	p.mu.Lock()
	defer p.mu.Unlock()
	if path := p.paths[host]; path != nil {
		return path
	}
	if p.paths == nil {
		p.paths = map[K]*Path{}
	}
	for other := range p.paths {
		if len(p.paths) < maxPaths {
			break
		}
		delete(p.paths, other)
	}
	path := &Path{}
	p.paths[host] = path
	return path
}

// Len returns how many are kept.
func (p *Paths[K]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.paths)
}

const (
	leastSamples  = 3
	leastMessages = 8 // encoded ones, before a meter judges
	// probeEvery is how long messages pass before some are encoded to see what
	// that would save now, and probes is how many.
	probeEvery = 500 * time.Millisecond
	probes     = 4
	// A meter turns encoding on where it saves this much more than it costs, and
	// off where it saves less than it costs.
	hysteresis = 1.5
	// outlier times the median of the last recent messages is the most that one may
	// cost: any excess was spent waiting for a processor.
	outlier = 3
	recent  = 9
	// weight is that of the newest message in averages of many.
	weight = 1.0 / 8
	// bothEnds is the cost at both ends as a multiple of that of encoding.
	bothEnds = 2
)

// Meter decides for the messages of one direction of one connection. The zero
// Meter with a Path encodes until it knows better. Encode and Encoded are for
// one goroutine; Figures is safe for all.
type Meter struct {
	Path *Path

	spared, cost float64               // bytes and nanoseconds a message, smoothed
	encoded      int                   // messages of which they are averages
	took         [recent]time.Duration // of the last messages, in a ring
	passing      bool
	probing      int       // messages to be encoded although passing
	probed       time.Time // when the last probe began

	figures atomic.Pointer[Figures]
}

// Figures are what a [Meter] decided, and why.
type Figures struct {
	Encodes  bool
	Saves    time.Duration // on the link, a message
	Costs    time.Duration // at both ends, a message
	Switches uint64        // how often it changed its mind
}

// Figures returns the last decision; nil before there was evidence for one.
func (m *Meter) Figures() *Figures { return m.figures.Load() }

// Encode reports whether the next message is to be encoded.
func (m *Meter) Encode(now time.Time) bool {
	switch {
	case !m.passing:
		return true
	case m.probing > 0:
		return true
	case now.Sub(m.probed) < probeEvery:
		return false
	}
	m.probing, m.probed = probes, now
	return true
}

// Encoded says what became of a message: how many bytes the link was spared,
// and how long encoding took.
func (m *Meter) Encoded(now time.Time, spared int, took time.Duration) {
	m.took[m.encoded%recent] = took
	m.encoded++
	m.probing = max(m.probing-1, 0)
	newest := max(weight, 1/float64(m.encoded))
	sorted := m.took
	n := min(m.encoded, recent)
	slices.Sort(sorted[:n])
	cost := min(took, outlier*sorted[n/2])
	m.spared += (float64(spared) - m.spared) * newest
	m.cost += (float64(cost) - m.cost) * newest
	m.judge(now)
}

func (m *Meter) judge(now time.Time) {
	perByte, ok := m.Path.PerByte()
	if !ok || m.encoded < leastMessages {
		return
	}
	saves, costs := m.spared*perByte, bothEnds*m.cost
	was := m.passing
	if m.passing {
		m.passing = saves < hysteresis*costs
	} else {
		m.passing = saves < costs
	}
	f := Figures{Encodes: !m.passing, Saves: time.Duration(saves), Costs: time.Duration(costs)}
	if last := m.figures.Load(); last != nil {
		f.Switches = last.Switches
	}
	if m.passing != was {
		f.Switches++
		m.probing, m.probed = 0, now
	}
	m.figures.Store(&f)
}
