package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
)

// Stream is what the kernel has counted on one direction of a connection. The
// figures are exact whatever the sampling: each is added up in the kernel.
type Stream struct {
	ID          StreamID
	Local, Peer netip.AddrPort
	// Segments and Bytes of TCP payload; repeated bytes count in
	// Retransmitted alone.
	Segments, Bytes, Retransmitted uint64
	// Messages that passed whole, their data frames (meta included), and the
	// ZMTP commands.
	Messages, Frames, Commands uint64
	// SampledMessages were copied with their keys, where they have some.
	SampledMessages uint64
	// Missed are the bytes that passed while the frame boundary was not
	// known; Gaps the bytes that the program never saw.
	Missed, Gaps uint64
	// LostBatches did not fit into the ring buffer.
	LostBatches uint64
	// Late streams are older than the capture. PSLite tells that a message
	// was recognised, Synced that the tracker knows where it is, Closed that
	// FIN or RST was seen.
	Late, PSLite, Synced, Closed bool
	// Gone: the stream is over, or was idle when the table had to be cleared;
	// these are its last figures, and it is not reported again.
	Gone bool
}

// Streams that are closed are kept for a while, because segments may still be
// repeated, and idle ones until the table is nearly full.
const (
	closedAfter = 30 * time.Second
	idleAfter   = 10 * time.Minute
)

// quietStream says since when a stream has had that many segments.
type quietStream struct {
	segments uint64
	since    time.Time
}

// Streams reports all streams that are not known as foreign, and forgets
// those that are over (reported once more, as Gone). Call it every few
// seconds, or the table of streams fills up.
func (c *Capture) Streams() ([]Stream, error) {
	c.sweepMu.Lock()
	defer c.sweepMu.Unlock()
	var (
		list  []Stream
		id    uint64
		value captureStream
		now   = c.now()
		all   = c.objects.streams.Iterate()
	)
	for all.Next(&id, &value) {
		list = append(list, streamOf(StreamID(id), &value))
	}
	if err := all.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("reading the table of streams: %w", err)
	}
	crowded := len(list) > c.options.Streams/8*7
	known := make(map[StreamID]quietStream, len(list))
	for i := range list {
		s := &list[i]
		q := c.quiet[s.ID]
		if q.since.IsZero() || q.segments != s.Segments {
			q = quietStream{s.Segments, now}
		}
		quiet := now.Sub(q.since)
		if s.Closed && quiet >= closedAfter || crowded && quiet >= idleAfter {
			if err := c.objects.streams.Delete(uint64(s.ID)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return nil, fmt.Errorf("clearing the table of streams: %w", err)
			}
			s.Gone = true
			c.gone = append(c.gone, s.ID)
			continue
		}
		known[s.ID] = q
	}
	c.quiet = known
	return list, c.resetRates(func(id StreamID) bool { _, ok := known[id]; return ok })
}

const phaseUnsynced = 4 // UNSYNCED in wire.h

func streamOf(id StreamID, v *captureStream) Stream {
	var ends [endpointsSize]byte
	copy(ends[0:], v.Ends.Local[:])
	copy(ends[16:], v.Ends.Peer[:])
	native.PutUint16(ends[32:], v.Ends.LocalPort)
	native.PutUint16(ends[34:], v.Ends.PeerPort)
	ends[36] = v.Ends.Version
	local, peer := parseEndpoints(ends[:])
	return Stream{
		ID: id, Local: local, Peer: peer,
		Segments: v.Segments, Bytes: v.Bytes, Retransmitted: v.Retransmitted,
		Messages: v.Messages, Frames: v.DataFrames, Commands: v.Commands, SampledMessages: v.Sampled,
		Missed: v.Missed, Gaps: v.GapBytes, LostBatches: v.LostBatches,
		Late: v.Late != 0, PSLite: v.Dialect != 0, Closed: v.Closed != 0,
		Synced: v.Phase != phaseUnsynced && v.Tentative == 0,
	}
}
