// Package payoff decides whether it pays to encode the messages of a connection: whether the
// link is spared more time than two proxies spend on it.
//
// A [Path] knows what a byte costs on the way to another host, from what the kernel knows of
// the connections that go there. A [Meter] knows what one connection's messages save and cost
// when they are encoded. A [Trial] finds out whether a job is faster with a measure or without, and
// with it a [Load] whether a host whose processors are busy is better off without encoding. All are
// state machines without sockets or clocks of their own.
package payoff

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Sample is the kernel's view of one connection, from struct tcp_info.
type Sample struct {
	RTT, MinRTT  time.Duration // smoothed, and the minimum of some minutes; 0: not measured yet
	DeliveryRate uint64        // bytes per second, 0: not measured yet
	BytesSent    uint64        // since the connection began, without retransmissions
	Messages     uint64        // of the job, sent so far
}

// sampleEvery is the minimum distance of two samples of a path, and kept is how many it
// remembers: those of the last two thirds of a second.
const (
	sampleEvery = 20 * time.Millisecond
	kept        = 32
)

// leastBytes is the mean size of messages from which on a sample shows something of the link:
// beyond a segment, so that the receiver's kernel acknowledges at once.
const leastBytes = 1536

// Path is the way to one other host. It is safe for concurrent use.
type Path struct {
	next atomic.Int64 // when the next sample is due, in nanoseconds of the clock

	mu      sync.Mutex    // guards what follows
	last    [kept]float64 // nanoseconds per byte of the last samples, a ring
	samples int
	perByte float64 // first quartile of last
}

// Wants reports whether a sample is due, to one caller only.
func (p *Path) Wants(now time.Time) bool {
	at := p.next.Load()
	return now.UnixNano() >= at && p.next.CompareAndSwap(at, now.UnixNano()+int64(sampleEvery))
}

// Add adds what two samples of one connection show, the later one taken now.
//
// TCP's delivery rate is the link's rate where much is in flight. With messages shorter than
// that it is the largest rate ever seen, possibly that of a burst. There the part of a round
// trip beyond the shortest one counts.
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

// PerByte returns how many nanoseconds the path takes per byte: the first quartile of the
// samples. The others may have waited for a processor, which makes round trips longer than
// the link does. ok is false while there are too few samples.
func (p *Path) PerByte() (d float64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.perByte, p.samples >= leastSamples
}

// Paths has the paths to other hosts, by what identifies their proxies. The zero value is
// ready for concurrent use.
type Paths[K comparable] struct {
	mu    sync.Mutex  // guards paths
	paths map[K]*Path // at most maxPaths
}

// maxPaths bounds the paths that are shared. Beyond it one is dropped: meters that have it
// keep it, later ones learn anew.
const maxPaths = 4096

// To returns the path to a host, always the same one while it is kept.
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

// Len returns the number of paths.
func (p *Paths[K]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.paths)
}

const (
	leastSamples = 3
	// leastMessages is the number of encoded messages before a meter judges.
	leastMessages = 8 // encoded ones, before a meter judges
	// probeEvery is how long messages pass before probes of them are encoded, to see what
	// that would save now.
	probeEvery = 500 * time.Millisecond
	probes     = 4
	// Encoding is turned on where it saves this many times what it costs, and off where it
	// saves less than it costs.
	hysteresis = 1.5
	// One message costs at most outlier times the median of the recent ones: any excess was
	// spent waiting for a processor.
	outlier = 3
	recent  = 9
	// weight is that of the newest message in averages of many.
	weight = 1.0 / 8
	// bothEnds is the cost at both ends, as a multiple of that of encoding.
	bothEnds = 2
)

// Meter decides for the messages of one direction of one connection. The zero Meter with a
// Path encodes until it knows better. Encode and Encoded are for one goroutine; Figures may
// be called by any.
type Meter struct {
	Path *Path
	Load *Load // of the host; nil: its processors do not matter

	spared, cost float64               // bytes and nanoseconds per message, smoothed
	encoded      int                   // messages that these average
	took         [recent]time.Duration // of the last messages, a ring
	passing      bool
	probing      int       // messages still to be encoded although passing
	probed       time.Time // when the last probe began

	figures atomic.Pointer[Figures]
}

// Figures are a [Meter]'s decision and its reasons.
type Figures struct {
	Encodes  bool
	Saves    time.Duration // per message, on the link
	Costs    time.Duration // per message, at both ends
	Switches uint64        // number of changes of the decision
}

// Figures returns the last decision; nil before there was one.
func (m *Meter) Figures() *Figures { return m.figures.Load() }

// Encode reports whether the next message is to be encoded.
func (m *Meter) Encode(now time.Time) bool {
	switch {
	case m.Load.Passes():
		return false
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

// Encoded notes what became of an encoded message: how many bytes the link was spared,
// possibly fewer than none, and how long encoding took.
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

// judge updates the decision.
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
