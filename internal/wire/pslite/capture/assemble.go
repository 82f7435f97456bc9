package capture

import (
	"bytes"
	"cmp"
	"slices"
	"time"
)

// Sink takes the bytes of one direction of a connection in order.
type Sink interface {
	// Bytes hands over the next bytes, valid during the call. They begin where a
	// segment begins, unless part of the segment was there already: a message starts at
	// such a place, as a rule.
	Bytes(t time.Time, b []byte)
	// Gap says that the next n bytes of the stream were not recorded.
	Gap(t time.Time, n uint64)
	// End says that the direction was closed, or that the recording ended.
	End()
}

// Bounds of what an Assembler keeps.
const (
	maxDirections   = 1 << 16
	maxPendingBytes = 4 << 20         // out of order, in one direction
	maxPending      = 4096            // segments
	patience        = 2 * time.Second // of the recording's time, to wait for a late segment
)

// Assembler puts the segments of all connections in order. Repeated bytes are handed
// over once; a hole is waited for until patience or the bounds of memory are exceeded,
// and is then reported as a gap. Time is that of the recording, so that the result does
// not depend on how fast it is read.
type Assembler struct {
	Missing uint64 // bytes of all gaps so far
	Ignored uint64 // segments of connections beyond the bound

	open       func(f Flow, late bool) Sink
	directions map[Flow]*direction
}

// direction is the state of one direction of a connection. Sequence numbers wrap
// around; they are compared by the sign of their difference.
type direction struct {
	flow    Flow
	sink    Sink      // nil before the first byte
	first   uint32    // sequence number of the SYN, unless late
	next    uint32    // sequence number of the byte awaited
	late    bool      // the connection's beginning was not recorded
	ended   bool      // FIN, RST or the recording's end; kept so that repetitions of old segments are ignored
	pending []Segment // ordered by Seq, all beyond next, payloads copied
	held    int       // bytes in pending
	since   time.Time // when next began to be awaited
}

// NewAssembler returns an Assembler that asks open for the sink of each direction when
// its first byte comes; late says that the connection's beginning was not recorded.
func NewAssembler(open func(f Flow, late bool) Sink) *Assembler {
	return &Assembler{open: open, directions: map[Flow]*direction{}}
}

// Add takes the next segment of the recording. Its payload is copied if it is kept.
func (a *Assembler) Add(s *Segment) {
	d := a.directions[s.Flow]
	again := d != nil && !d.late && d.first == s.Seq // a repeated SYN
	// A SYN begins a connection, perhaps between the same ports as an older one. Data
	// without one belongs to a connection that was open before the recording.
	switch {
	case s.SYN && !again:
		if d != nil {
			a.finish(d)
		}
		d = a.start(&direction{flow: s.Flow, first: s.Seq, next: s.Seq + 1})
	case d == nil && len(s.Payload)+s.Missing > 0:
		d = a.start(&direction{flow: s.Flow, next: s.Seq, late: true})
	}
	if d == nil {
		return
	}
	seg := *s
	if s.SYN {
		seg.Seq++
	}
	// A SYN takes a sequence number, and may carry data (TCP Fast Open).
	a.acceptSegment(d, seg)
	if s.RST {
		a.finish(d)
		// A reset ends both directions.
		if other := a.directions[s.Flow.Reverse()]; other != nil {
			a.finish(other)
		}
	}
}

// start adds a direction; nil if there are too many that have not ended.
func (a *Assembler) start(d *direction) *direction {
	if len(a.directions) >= maxDirections {
		// Directions that have ended are kept for late repetitions only.
		for flow, old := range a.directions {
			if old.ended {
				delete(a.directions, flow)
			}
		}
	}
	if len(a.directions) >= maxDirections {
		a.Ignored++
		return nil
	}
	a.directions[d.flow] = d
	return d
}

// Close ends all connections and hands over what was still out of order, in an order
// that does not depend on the map's.
func (a *Assembler) Close() {
	flows := make([]Flow, 0, len(a.directions))
	for flow := range a.directions {
		flows = append(flows, flow)
	}
	slices.SortFunc(flows, func(x, y Flow) int {
		return cmp.Or(x.Src.Compare(y.Src), x.Dst.Compare(y.Dst))
	})
	for _, flow := range flows {
		a.finish(a.directions[flow])
	}
}

// acceptSegment hands over s if it is next, or keeps it if it comes early.
func (a *Assembler) acceptSegment(d *direction, s Segment) {
	if d.ended {
		return
	}
	// Early: something before it is missing. How long the hole has been there is
	// measured by the segments that come after it.
	if int32(s.Seq-d.next) > 0 {
		d.keep(s)
		if d.held > maxPendingBytes || len(d.pending) > maxPending || s.Time.Sub(d.since) > patience {
			a.skipHole(d, s.Time)
		}
		return
	}
	a.deliver(d, s)
	a.drain(d)
}

// keep puts a copy of s among those pending, in order.
func (d *direction) keep(s Segment) {
	if len(s.Payload)+s.Missing == 0 && !s.FIN {
		return
	}
	if len(d.pending) == 0 {
		d.since = s.Time
	}
	s.Payload = bytes.Clone(s.Payload)
	// Differences of sequence numbers order them as long as all lie within half of the
	// number space, which TCP guarantees.
	at, _ := slices.BinarySearchFunc(d.pending, s.Seq, func(e Segment, seq uint32) int { return int(int32(e.Seq - seq)) })
	// Behind those that begin at the same place, so that the first that came is handed
	// over first.
	for at < len(d.pending) && d.pending[at].Seq == s.Seq {
		at++
	}
	d.pending = slices.Insert(d.pending, at, s)
	d.held += len(s.Payload)
}

// deliver hands over what s has beyond next. s begins at next or before. Bytes that the
// recording cut off (a short snap length) are a gap behind those that it has.
func (a *Assembler) deliver(d *direction, s Segment) {
	old := int(d.next - s.Seq) // bytes that were handed over before
	have := len(s.Payload)
	// A retransmission may begin with bytes that were handed over and go on with new
	// ones.
	if fresh := have + s.Missing - old; fresh > 0 {
		if old < have {
			a.sink(d).Bytes(s.Time, s.Payload[old:])
		}
		if lost := s.Missing - max(0, old-have); lost > 0 {
			a.gap(d, s.Time, uint64(lost))
		}
		d.next += uint32(fresh)
	}
	// Only a FIN directly behind what was handed over ends the direction: there may be
	// a hole before it.
	if s.FIN && s.Seq+uint32(have+s.Missing) == d.next {
		d.end()
	}
}

// drain hands over pending segments as far as there is no hole.
func (a *Assembler) drain(d *direction) {
	n := 0
	for n < len(d.pending) && int32(d.pending[n].Seq-d.next) <= 0 && !d.ended {
		s := d.pending[n]
		d.held -= len(s.Payload)
		d.since = s.Time
		a.deliver(d, s)
		n++
	}
	d.pending = slices.Delete(d.pending, 0, min(n, len(d.pending)))
}

// skipHole gives up on the bytes before the first pending segment.
func (a *Assembler) skipHole(d *direction, t time.Time) {
	if len(d.pending) == 0 {
		return
	}
	// The segments behind the hole are handed over up to the next hole. Later ones wait
	// for their own time.
	hole := d.pending[0].Seq - d.next
	a.gap(d, t, uint64(hole))
	d.next += hole
	a.drain(d)
}

func (a *Assembler) gap(d *direction, t time.Time, n uint64) {
	a.Missing += n
	a.sink(d).Gap(t, n)
}

func (a *Assembler) sink(d *direction) Sink {
	if d.sink == nil {
		d.sink = a.open(d.flow, d.late)
	}
	return d.sink
}

// finish ends a direction. Pending segments are handed over with their gaps.
func (a *Assembler) finish(d *direction) {
	for !d.ended && len(d.pending) > 0 {
		a.skipHole(d, d.pending[0].Time)
	}
	d.end()
}

// end closes the sink. Nothing follows, not even pending segments.
func (d *direction) end() {
	if d.ended {
		return
	}
	d.ended, d.pending, d.held = true, nil, 0
	if d.sink != nil {
		d.sink.End()
		d.sink = nil
	}
}
