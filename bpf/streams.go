package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
)

// A Stream is what the kernel has counted on one direction of a connection. The figures are
// exact whatever the sampling, since the kernel adds them up itself.
type Stream struct {
	ID          StreamID
	Local, Peer netip.AddrPort
	// Segments and Bytes are those of TCP payload. Bytes that are sent again count as
	// Retransmitted only.
	Segments, Bytes, Retransmitted uint64
	// Messages that passed completely, their data frames (metas included), and ZMTP commands.
	Messages, Frames, Commands uint64
	// SampledMessages were copied with their keys, if they have any.
	SampledMessages uint64
	// Missed are the bytes that passed while the frame boundary was unknown, Gaps those that
	// the program never saw.
	Missed, Gaps uint64
	// Rested are the bytes that passed in rests, and until the boundary was found again.
	Rested uint64
	// LostBatches is the number of batches that did not fit into the ring buffer.
	LostBatches uint64
	// Late: older than the capture. PSLite: a message was recognized. Synced: the tracker knows
	// the frame boundary. Closed: FIN or RST was seen.
	Late, PSLite, Synced, Closed bool
	// Gone: it is over, or was idle when the table had to be cleared. These are its last
	// figures; it is not reported again.
	Gone bool
}

// Closed streams are kept for closedAfter, because segments may be retransmitted. Idle ones are
// kept as long as there is room, and at least for idleAfter.
const (
	closedAfter = 30 * time.Second
	idleAfter   = 10 * time.Minute
)

// quietStream says since when a stream has had the same number of segments.
type quietStream struct {
	segments uint64
	since    time.Time
}

// Streams returns all streams that are not known to be foreign, and forgets those that are
// over, which it reports once more as Gone. Call it every few seconds, or the kernel's table
// fills up. It reads the whole table, tableBatch streams for each system call.
func (c *Capture) Streams() ([]Stream, error) {
	c.sweepMu.Lock()
	defer c.sweepMu.Unlock()
	list, err := c.table()
	if err != nil {
		return nil, fmt.Errorf("reading the table of streams: %w", err)
	}
	now := c.now()
	// An idle connection may still become busy, so it is dropped only when new ones need the
	// room.
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
	return list, c.resetRates(func(id StreamID) bool {
		_, one := known[id]
		_, other := known[id^1]
		return one || other
	})
}

// tableBatch is how many streams one system call reads. No bucket of the kernel's hash table has
// that many.
const tableBatch = 256

// table reads the table of streams.
func (c *Capture) table() (list []Stream, err error) {
	var cursor ebpf.MapBatchCursor
	ids, values := make([]uint64, tableBatch), make([]captureStream, tableBatch)
	for {
		n, err := c.objects.streams.BatchLookup(&cursor, ids, values, nil)
		for i := range n {
			list = append(list, streamOf(StreamID(ids[i]), &values[i]))
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist): // the end
			return list, nil
		case err != nil:
			return nil, err
		}
	}
}

const phaseUnsynced = 4 // UNSYNCED in wire.h

func streamOf(id StreamID, v *captureStream) Stream {
	// The generated struct is laid out again as the kernel has it, so that there is one parser.
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
		Missed: v.Missed, Gaps: v.GapBytes, Rested: v.Rested, LostBatches: v.LostBatches,
		Late: v.Late != 0, PSLite: v.Dialect != 0, Closed: v.Closed != 0,
		Synced: v.Phase != phaseUnsynced && v.Tentative == 0,
	}
}
